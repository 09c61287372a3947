"""Training loop for notebooks, the command line and torchrun."""

import dataclasses
import json
import math
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cs336_lib import __version__, accounting, schedule
from cs336_lib.bill.text import summary, troubles
from cs336_lib.config import TrainConfig, require
from cs336_lib.data.loader import Loader, hash_key, open_data, prefetched
from cs336_lib.data.tokenizer import Tokenizer, tokenizer_of
from cs336_lib.evals import hellaswag
from cs336_lib.evals.hellaswag import load_examples
from cs336_lib.evals.loss import validation_loss
from cs336_lib.hugging_face import load as load_hugging_face
from cs336_lib.io import Bar, Log, draws_in_place, write_atomic
from cs336_lib.model import GPT
from cs336_lib.optim import make_optimizer
from cs336_lib.sampling import complete, encode
from cs336_lib.system import hardware, processes
from cs336_lib.training import checkpoint, distributed, run_folder
from cs336_lib.training.trackers import Send, open_tracker, require_tracker

Batches = Iterator[tuple[Tensor, Tensor]]

SAMPLE_TOKENS = 32  # of a sample during training
# The range of MFU for the estimate before the start. Public runs of GPT-2 reach a quarter to half
# of a datasheet's peak (docs/reproduce_gpt2.md). A CPU's peak is measured, and steps of GPT-2 come
# close to it (README.md).
EXPECTED_MFU = {"cpu": (0.3, 0.85), "cuda": (0.25, 0.5)}


def train_step(job: "Job", batches: Batches, step: int) -> tuple[Tensor, Tensor]:
    """Run the forward pass, backward pass, gradient clipping and update of one optimizer step.

    The update is skipped if the loss or the gradient isn't finite. With on_nan="stop", all later
    updates are skipped too. With log_every greater than 1, the check runs on the device, and the
    host doesn't wait for its result.

    Returns:
        The mean loss over all ranks in nats per token, and the gradient norm before clipping. Both
        tensors stay on the device.
    """
    config, world, optimizer = job.config, job.world, job.optimizer
    torch.manual_seed(hash_key(config.seed, step, world.rank))  # dropout's randomness
    schedule.set_learning_rate(optimizer, schedule.learning_rate(step, config))
    windows = schedule.batch_windows(step, config)
    loss = world.all_reduce(backward(job, batches, windows))
    grad_norm = clip_gradients(job.raw_model, config.grad_clip)
    broken = ~(loss.isfinite() & grad_norm.isfinite())
    job.broken = broken if config.on_nan == "skip" else broken | job.broken
    if config.log_every > 1:
        # GradScaler skips updates in this way too. PyTorch's stubs don't know the attribute.
        optimizer.found_inf = job.broken.float()  # type: ignore[attr-defined]
        optimizer.step()
    elif not job.broken:  # the host waits for every step anyway
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss, grad_norm


def backward(job: "Job", batches: Batches, windows: int) -> Tensor:
    """Accumulate gradients over the micro-batches of one step.

    Each micro-batch is weighted by its size, so the gradient is the same for any micro-batch size.
    DDP and FSDP average gradients over ranks. We need the sum, so we multiply the loss by
    `world.size`. DDP communicates gradients only after the last micro-batch.

    Args:
        job: The run. Its model may be wrapped by DDP or torch.compile.
        batches: Inputs and targets of the micro-batches on this rank.
        windows: Number of sequences in the batch over all ranks.

    Returns:
        The loss of this rank, scaled so that the sum over all ranks is the mean loss in nats per
        token.
    """
    losses = []
    pieces = job.world.pieces(windows, job.config.micro_batch_size)
    for number, (_, size) in enumerate(pieces, start=1):
        x, y = next(batches)
        with distributed.gradient_sync(job.model, number == len(pieces)):
            with job.autocast:
                loss = job.model(x, y) * (size / windows)
            (loss * job.world.size).backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Clip the gradient to norm `limit`, and return its norm before clipping.

    A limit of 0 turns clipping off.
    """
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit or math.inf)
    return distributed.gathered(norm)


def train(config: TrainConfig, on_step: Send | None = None) -> "TrainResult":
    """Train a GPT, and write checkpoints and metrics to `config.run_dir`.

    Args:
        config: All settings of the run. The same settings give the same run.
        on_step: Function to call with each row of metrics after the row is written.

    Returns:
        The model, its tokenizer and the metrics.

    Raises:
        ValueError: If the config, the data or the run folder is invalid. No file is written.
        FloatingPointError: If a loss or gradient is NaN or infinite. The model keeps the last
            finite weights.
        OSError: If the disk is full, or if a distributed process died or hung. Use --resume to
            continue.

    Example:
        >>> train(PRESETS["shakespeare-char"][1]).val_loss
    """
    with run_folder.resume_hint(config), ExitStack() as stack:
        job = Job(config, stack)
        config, stop = job.config, stack.enter_context(stop_signals())
        batches, log = job.batches(), StepLog(job, [on_step, job.tracker])
        for step in log.steps():
            loss, grad_norm = train_step(job, batches, step)
            log.add(loss, grad_norm)
            evaluates = is_due(step, config.eval_every, config)
            saves = is_due(step, config.checkpoint_every, config)
            if not (evaluates or saves or is_due(step, config.log_every, config)):
                continue
            rows = log.read()
            stopping = job.world.sum(stop.is_set(), device=job.device)[0] > 0
            try:
                if evaluates:
                    rows[-1] |= evaluate(job, step)
            finally:  # the steps are done, whatever becomes of the evaluation
                log.write(rows)
            if saves or stopping:
                save(job, step + 1, rows[-1].get("val_loss"))
            if stopping:
                break
            log.restart_clock()
        return log.finish()


def is_due(step: int, every: int, config: TrainConfig) -> bool:
    """Return whether a periodic action is due after this step. It is always due at the end."""
    return step + 1 == config.max_steps or (every > 0 and (step + 1) % every == 0)


def evaluate(job: "Job", step: int) -> dict[str, float | str]:
    """Measure the validation loss in nats per token.

    If the config requests them, the result also includes a HellaSwag score and a text sample. The
    model runs without the compiler, which would compile anew for every layer of a KV cache and for
    the lengths of texts. The compiled training step stays as it is.

    Raises:
        FloatingPointError: If the validation loss isn't finite.
    """
    config, tokens = job.config, job.config.eval_tokens
    place: dict[str, Any] = {"device": job.device, "autocast": job.autocast, "world": job.world}
    size = distributed.micro_batch(config, job.world)
    with torch.compiler.set_stance("force_eager"):
        loss = validation_loss(job.model, job.val_loader, tokens, micro_batch_size=size, **place)
        if not math.isfinite(loss):
            hint = run_folder.nan_hint(job.run_dir)
            raise FloatingPointError(f"step {step}: validation loss {loss}; {hint}")
        found: dict[str, float | str] = {"val_loss": loss}
        model = job.raw_model
        if job.examples:
            score = hellaswag.score(model, job.examples, config.block_size, **place)
            found["hellaswag"] = score.acc_per_token
        if config.sample:
            seed = hash_key(config.seed, step) // 2  # as large as a seed may be
            text = complete(model, job.tokenizer, config.sample, SAMPLE_TOKENS, seed=seed)
            found["sample"] = text
    return found


def save(job: "Job", done: int, val_loss: float | None) -> None:
    """Write a checkpoint after `done` steps, and delete old checkpoints."""
    folder, model = job.run_dir / "checkpoints", job.raw_model
    shape = dataclasses.asdict(model.config)
    state = {
        "step": done,
        "val_loss": val_loss,
        "model": shape,
        "data": job.data,
        "tokenizer": job.tokenizer.digest,
    }
    job.metrics.sync()  # a checkpoint relies on the rows of its steps
    checkpoint.save(folder, model, job.optimizer, state, job.world)
    if job.world.is_main:
        checkpoint.prune(folder, job.config.keep_checkpoints, job.config.keep_every)
    job.world.barrier()


@dataclass(frozen=True)
class TrainResult:
    """Model, tokenizer and metrics of a run. `metrics` has one row per step."""

    run_dir: Path
    model: GPT
    tokenizer: Tokenizer
    metrics: list[dict[str, Any]]
    finished: bool

    @property
    def val_loss(self) -> float:
        """The last validation loss in nats per token.

        Raises:
            ValueError: If no validation loss has been measured yet.
        """
        losses = [row["val_loss"] for row in self.metrics if "val_loss" in row]
        if not losses:  # metrics.jsonl was lost
            saved = map(checkpoint.val_loss, checkpoint.checkpoints(self.run_dir / "checkpoints"))
            losses = [loss for loss in saved if loss is not None]
        message = f"{self.run_dir}: no validation loss was measured yet; continue it with --resume"
        require(bool(losses), message)
        return losses[-1]


class Job:
    """State of a training run, such as the model, optimizer, data loaders and device.

    Args:
        config: Config of the run. With `init_from`, `self.config` gets the shape of the loaded
            model.
        stack: Exit stack that undoes the setup at the end of the run.

    Raises:
        ValueError: If a setting is invalid. All settings are checked before the run folder changes.
    """

    def __init__(self, config: TrainConfig, stack: ExitStack):
        local_rank = processes.world_from_environment().local_rank
        self.device = device = hardware.select_device(config.device, local_rank)
        self.dtype = dtype = hardware.autocast_dtype(device, config.precision)
        self.autocast = torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)
        self.world = world = stack.enter_context(processes.process_group(device))
        stack.enter_context(reproducible(config, device))
        stack.enter_context(hardware.freed_memory_kept())
        *streams, tokenizer = open_data(config.train_data, config.val_data, config.tokenizer)
        self.tokenizer, vocab_size = tokenizer, tokenizer.vocab_size
        self.data = {"train": streams[0].fingerprint(), "val": streams[1].fingerprint()}
        self.examples = load_examples(config.hellaswag, tokenizer) if config.hellaswag else []
        if config.sample:
            encode(tokenizer, config.sample)  # checks it
        self.config, begun = run_folder.check(config, tokenizer)
        self.run_dir, resumed, first_step = Path(config.run_dir), None, 0
        if begun:  # lock it first, since a run that ends may write one more checkpoint
            stack.enter_context(run_folder.lock(self.run_dir, world, begun=True))
            shape = self.config.model_config(vocab_size)
            resumed, first_step = run_folder.resume_point(
                self.run_dir, shape, self.data, device, world
            )
        self.steps = range(first_step, config.max_steps)
        self.raw_model = self.build_model(resumed).train()
        config = self.config  # with the model's real shape
        batch = distributed.micro_batch(config, world)
        flops = accounting.largest_matmul_flops(self.raw_model.config, batch)
        stack.enter_context(hardware.threads_for(flops))
        self.train_loader, self.val_loader = (
            Loader(tokens, config.block_size, vocab_size, config.seed) for tokens in streams
        )
        self.check_batches()
        compiled = distributed.compiles(config, device, world)
        require_tracker(config)
        if not begun:
            stack.enter_context(run_folder.lock(self.run_dir, world, begun=False))
        run_folder.write(config, tokenizer, resumed, world)
        # The raw model, perhaps compiled and wrapped by DDP.
        self.model = distributed.prepare_model(
            self.raw_model, config, device, world, dtype, compiled=compiled
        )
        self.optimizer = make_optimizer(self.raw_model, config)
        if resumed is not None:
            checkpoint.restore(resumed, self.raw_model, self.optimizer)
        peak = hardware.peak_flops(device, dtype)
        self.peak = peak[0] and peak[0] * world.size  # None where it is unknown
        self.broken = torch.tensor(False, device=device)  # whether NaN prevents the update
        self.metrics = run_folder.Metrics(self.run_dir / "metrics.jsonl", first_step, world)
        self.tracker = open_tracker(config, stack, first_step) if world.is_main else None
        if world.is_main:
            text = json.dumps(environment(self), indent=1) + "\n"
            write_atomic(self.run_dir / run_folder.ENVIRONMENT, text)
            print(banner(self, peak))

    def build_model(self, resumed: Path | None) -> GPT:
        """Create the model on the CPU with random weights, or load the weights in `init_from`.

        The weights in `init_from` determine the model's shape, which is stored in `self.config`.
        With FSDP, a model with random weights is created on the meta device and initialized later.

        Args:
            resumed: Checkpoint that will be loaded into the model later, or `None`. If it is
                given, `init_from` is ignored.

        Raises:
            ValueError: If the model doesn't fit into memory, or the weights don't match the config.
        """
        given = None
        if self.config.init_from and resumed is None:
            given = init_from(self.config, self.tokenizer)
            shape = {name: getattr(given.config, name) for name in run_folder.SHAPE}
            self.config = dataclasses.replace(self.config, **shape)
        config = self.config.model_config(self.tokenizer.vocab_size)
        # Checked before a billion weights are drawn.
        bf16 = self.dtype is not None
        distributed.require_room(config, self.config, self.device, self.world, bf16)
        if given is not None:
            return given
        if distributed.is_sharded(self.config, self.world):
            with torch.device("meta"):
                return GPT(config)
        numbers = accounting.count_parameters(config)
        what = f"a model of {numbers:,} parameters"
        hardware.require_memory(4 * numbers, torch.device("cpu"), what)
        return GPT(config, self.config.seed)

    def check_batches(self) -> None:
        """Read the first batch and the validation set, so that invalid data fails before training.

        Raises:
            ValueError: If a token id is outside the vocabulary, or if a batch has fewer sequences
                than there are ranks.
        """
        for _ in self.micro_batches(self.steps.start):
            pass
        starts = self.val_loader.validation_starts(self.config.eval_tokens)
        for start in starts[self.world.rank :: self.world.size]:
            self.val_loader.windows([start])

    def micro_batches(self, step: int) -> Batches:
        """Yield the micro-batches of one step on this rank.

        All ranks yield the same number of micro-batches. A rank with too few sequences yields an
        extra window, which gets weight 0 in the loss.
        """
        before = schedule.windows_before(step, self.config)
        windows = schedule.batch_windows(step, self.config)
        message = f"step {step}: {windows} sequences are too few for {self.world.size} processes"
        require(windows >= self.world.size, message)
        for first, size in self.world.pieces(windows, self.config.micro_batch_size):
            yield self.train_loader.batch(before + first, max(size, 1))

    def batches(self) -> Batches:
        """Yield the micro-batches of all steps on this rank, prefetched to the device."""
        pieces = (piece for step in self.steps for piece in self.micro_batches(step))
        return prefetched(pieces, self.device)


def environment(job: Job) -> dict[str, str | int]:
    """Describe the machine and the software of a run, for `cs336 report`."""
    return {
        "device": hardware.device_name(job.device),
        "devices": job.world.size,
        "precision": "bf16 autocast" if job.dtype else "fp32",
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cs336_lib": __version__,
    }


def banner(job: Job, peak: tuple[float | None, str]) -> str:
    """Describe a run and its expected duration before it starts.

    Args:
        job: The run.
        peak: Peak FLOP/s of one device (or `None`), and its source.
    """
    config, model, tokenizer, first_step = job.config, job.raw_model, job.tokenizer, job.steps.start
    done, total = (schedule.windows_before(n, config) for n in (first_step, config.max_steps))
    tokens = (total - done) * config.block_size
    flops = tokens * accounting.train_flops_per_token(model.config)
    speed, source = peak
    expected = "unknown (no peak FLOP/s known for this device)"
    if speed is not None:
        slow, fast = EXPECTED_MFU[job.device.type]
        shortest, longest = (
            accounting.duration(accounting.training_seconds(flops, job.world.size, speed, share))
            for share in (fast, slow)
        )
        shortest = shortest.removesuffix(f" {longest.split()[1]}")  # "3 to 8 minutes"
        shares = f"at {fast:.0%} to {slow:.0%} MFU; small models take longer"
        expected = f"{shortest} to {longest} without validation ({shares})"
        source = f"peak {accounting.human(speed)}FLOP/s, {source}"
    resumed = f", from step {first_step}" if first_step else ""
    return f"""\
model      {model.num_parameters():,} parameters: {config.n_layer} layers, {config.n_head} heads, \
{config.n_embd} wide, context {config.block_size}
data       {config.train_data or "the plays that ship"}, tokenizer {tokenizer.name}, \
{tokenizer.vocab_size:,} ids
device     {hardware.device_name(job.device)} x {job.world.size}, \
{"bf16 autocast" if job.dtype else "fp32"} ({source})
run        {config.max_steps} steps of {config.batch_tokens:,} tokens{resumed}: \
{tokens:,} tokens, {flops:.2e} FLOPs
expected   {expected}
writes to  {config.run_dir}"""


def init_from(config: TrainConfig, tokenizer: Tokenizer) -> GPT:
    """Load the weights in `config.init_from`, and shorten their context to `config.block_size`.

    Raises:
        ValueError: If the weights can't be found, use a different tokenizer, or have a context
            shorter than block_size.
    """
    source = Path(config.init_from)
    if (source / "checkpoints").is_dir():
        model = checkpoint.load_model(source, torch.device("cpu"))
    else:
        model = load_hugging_face(config.init_from)
    theirs, context = model.config.vocab_size, model.config.block_size
    require(
        theirs == tokenizer.vocab_size and tokenizer_of(source) in (None, tokenizer),
        f"{source} ({theirs:,} token ids) was trained with another tokenizer than "
        f"{run_folder.data_name(config)} ({tokenizer.vocab_size:,} token ids) has; pass the "
        f"tokenizer and the data that these weights were made with",
    )
    message = f"{source} has a context of {context} tokens; pass --block-size {context}"
    require(context >= config.block_size, message)
    state = model.state_dict()
    state["transformer.wpe.weight"] = state["transformer.wpe.weight"][: config.block_size]
    shape = dataclasses.replace(model.config, block_size=config.block_size, dropout=config.dropout)
    model = GPT(shape)
    model.load_state_dict(state)
    return model


class StepLog:
    """Collect losses and gradient norms on the device, and convert them to rows of metrics.

    Args:
        job: The run.
        listeners: Functions to call with each row on rank 0.
    """

    def __init__(self, job: Job, listeners: list[Send | None]):
        self.job, self.done = job, job.steps.start
        self.listeners = [send for send in listeners if send and job.world.is_main]
        self.flops_per_token = accounting.train_flops_per_token(job.raw_model.config)
        self.pending: list[Tensor] = []
        self.has_bar = draws_in_place(sys.stderr)  # a log gets a line for every row instead
        hidden = not (job.world.is_main and self.has_bar)
        size = {"initial": self.done, "total": job.config.max_steps}
        self.bar = Bar(job.steps, **size, unit="step", disable=hidden, leave=True, delay=0)

    def steps(self) -> Iterator[int]:
        """Yield the step numbers, and show a progress bar."""
        self.restart_clock()
        yield from self.bar

    def restart_clock(self) -> None:
        """Restart the timer, because evaluation and saving don't count as training time."""
        hardware.synchronize(self.job.device)
        self.start = time.perf_counter()

    def add(self, loss: Tensor, grad_norm: Tensor) -> None:
        """Record the loss and gradient norm of a step without waiting for the device."""
        self.pending.append(torch.stack((loss, grad_norm)))
        self.done += 1

    def read(self) -> list[dict[str, Any]]:
        """Wait for the device, and return one row of metrics for each step since the last call.

        Raises:
            FloatingPointError: If on_nan="stop" and the loss or gradient of a step isn't finite.
                The rows of earlier steps are written first.
        """
        config, first = self.job.config, self.done - len(self.pending)
        values = torch.stack(self.pending).tolist()
        hardware.synchronize(self.job.device)
        seconds = time.perf_counter() - self.start
        windows = sum(schedule.batch_windows(step, config) for step in range(first, self.done))
        speed = windows * config.block_size / seconds
        rows: list[dict[str, Any]] = []
        for step, (loss, grad_norm) in enumerate(values, start=first):
            row = {
                "step": step,
                "tokens": schedule.windows_before(step + 1, config) * config.block_size,
                "train_loss": loss,
                "lr": schedule.learning_rate(step, config),
                "grad_norm": grad_norm,
                "step_ms": seconds * 1000 / len(values),
                "tokens_per_sec": speed,
                "mfu": accounting.mfu(self.flops_per_token * speed, self.job.peak),
            }
            if not (math.isfinite(loss) and math.isfinite(grad_norm)):
                if config.on_nan == "stop":
                    self.write(rows)
                    raise FloatingPointError(not_finite(self.job, step, loss, grad_norm))
                row |= {"train_loss": None, "grad_norm": None, "skipped": True}  # JSON has no NaN
            rows.append(row)
        self.pending = []
        return rows

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Append rows to the metrics file, display them, and send them to the listeners.

        A terminal shows the latest row in the progress bar. A log file gets one line per row.
        """
        for row in rows:
            self.job.metrics.add(row)
            if self.has_bar:
                self.bar.set_postfix_str(summary(row), refresh=False)
            elif self.job.world.is_main:
                print(f"step {row['step'] + 1}/{self.bar.total}: {summary(row)}", file=Log())
            if "sample" in row and self.job.world.is_main:
                self.bar.write(f"step {row['step'] + 1}: {row['sample']}", file=Log())
            for send in self.listeners:
                send(row)

    def finish(self) -> TrainResult:
        """Print skipped steps, loss spikes or an early stop, and return the result of the run."""
        job, total, rows = self.job, self.job.config.max_steps, self.job.metrics.rows
        self.bar.close()
        if job.world.is_main and (trouble := troubles(rows)):
            print(f"Worth a look: {trouble}")
        if job.world.is_main and self.done < total:
            print(f"Stopped after step {self.done} of {total} and saved; --resume continues it.")
        model, finished = job.raw_model.eval(), self.done >= total
        return TrainResult(job.run_dir, model, job.tokenizer, rows, finished)


def not_finite(job: Job, step: int, loss: float, grad_norm: float) -> str:
    """Return an error message with the step, the batch and possible fixes."""
    first, end = (schedule.windows_before(n, job.config) for n in (step, step + 1))
    start = int(job.train_loader.starts(first, 1)[0])
    return (
        f"step {step}: loss {loss}, gradient norm {grad_norm}; the batch is windows {first} to "
        f"{end - 1}, the first at {job.train_loader.stream.where(start)}; "
        f"{run_folder.nan_hint(job.run_dir)}, or continue this one with --resume --on-nan skip"
    )


@contextmanager
def reproducible(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """Apply the config's determinism and TF32 settings within this block."""
    deterministic = config.deterministic == "on"
    deterministic |= config.deterministic == "auto" and device.type == "cpu"
    before = torch.are_deterministic_algorithms_enabled()
    warn_before = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic  # mypy doesn't know this module's property
    fill_before = memory.fill_uninitialized_memory
    rng = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with rng, hardware.tf32(config.tf32):
        try:
            torch.use_deterministic_algorithms(deterministic)
            # PyTorch would fill new memory with NaN to expose reads of it. We never read it.
            memory.fill_uninitialized_memory = False
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warn_before)
            memory.fill_uninitialized_memory = fill_before


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Set an event on SIGINT or SIGTERM. A second signal raises KeyboardInterrupt."""
    stop = threading.Event()

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    is_main = threading.current_thread() is threading.main_thread()  # only it may handle signals
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
