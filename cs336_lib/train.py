"""The training loop: `train(config)`, for notebooks, the command line and torchrun alike."""

import dataclasses
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cs336_lib import (
    CallableModule,
    accounting,
    checkpoint,
    distributed,
    hardware,
    hf,
    report,
    run,
    schedule,
)
from cs336_lib.config import TrainConfig, require
from cs336_lib.data.loader import Loader, hash_key, open_data, prefetched
from cs336_lib.data.tokenizer import Tokenizer, tokenizer_of
from cs336_lib.distributed import World
from cs336_lib.evals.loss import validation_loss
from cs336_lib.io import Bar, Log, draws_in_place
from cs336_lib.model import GPT
from cs336_lib.optim import make_optimizer
from cs336_lib.trackers import Send, open_tracker, require_tracker

Batches = Iterator[tuple[Tensor, Tensor]]


def train(config: TrainConfig, on_step: Send | None = None) -> "TrainResult":
    """Train a GPT as `config` says, writing checkpoints and metrics to its run_dir.

    Args:
        config: Everything that the run depends on. The same values give the same run.
        on_step: Called with each row of metrics once it is written, for a live plot, say.

    Raises:
        ValueError: The config, the data or the run folder can't be used. Nothing was written.
        FloatingPointError: A loss or gradient was NaN or infinite. The weights before it are kept.
        OSError: The disk is full, or another process died or hung. --resume continues the run.
    """
    with run.resume_hint(config), ExitStack() as stack:
        job = set_up(config, stack)
        config, stop = job.config, stack.enter_context(stop_signals())
        batches, log = training_batches(job), StepLog(job, [on_step, job.tracker])
        for step in log.steps():
            lr = schedule.learning_rate(step, config)
            schedule.set_learning_rate(job.optimizer, lr)
            loss, grad_norm = train_step(job, batches, step)
            log.add(step, lr, loss, grad_norm)
            done, is_last = step + 1, step + 1 == config.max_steps
            evaluates = is_last or is_multiple(done, config.eval_every)
            saves = is_last or is_multiple(done, config.checkpoint_every)
            if not (evaluates or saves or is_multiple(done, config.log_every)):
                continue
            rows = log.read()
            stopping = job.world.sum(stop.is_set(), device=job.device)[0] > 0
            if evaluates:
                rows[-1]["val_loss"] = evaluate(job, step)
            log.write(rows)
            if saves or stopping:
                save(job, done, rows[-1].get("val_loss"))
            if stopping:
                break
            log.restart_clock()
        return log.finish()


def train_step(job: "Job", batches: Batches, step: int) -> tuple[Tensor, Tensor]:
    """Do one optimizer step: forward and backward passes over all micro-batches, clip, update.

    If the loss or the gradient isn't finite, the update is left out, and with on_nan="stop" all
    updates after it. With log_every above 1 the device does that by itself, and isn't waited for.

    Returns:
        The mean loss over all ranks in nats per token, and the norm of the gradient before it was
        clipped, both still on the device.
    """
    config, world, optimizer = job.config, job.world, job.optimizer
    torch.manual_seed(hash_key(config.seed, step, world.rank))  # dropout's randomness
    windows = schedule.batch_windows(step, config)
    loss = backward(job.called, batches, windows, config, world, job.autocast)
    loss = world.all_reduce(loss)
    grad_norm = clip_gradients(job.model, config.grad_clip)
    broken = ~(loss.isfinite() & grad_norm.isfinite())
    job.broken = broken if config.on_nan == "skip" else broken | job.broken
    if config.log_every > 1:
        optimizer.found_inf = job.broken.float()
        optimizer.step()
    elif not job.broken:  # the host waits for every step anyway
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss, grad_norm


def backward(
    model: nn.Module,
    batches: Batches,
    windows: int,
    config: TrainConfig,
    world: World,
    autocast: AbstractContextManager,
) -> Tensor:
    """Accumulate the gradient of the mean loss over a step's windows.

    Each micro-batch counts by its size, so any split gives the gradient of the whole batch. DDP
    and FSDP average over ranks where we need a sum, hence `* world.size`. DDP communicates
    gradients once per step, with the last micro-batch.

    Args:
        model: What computes the loss, perhaps wrapped by DDP or torch.compile.
        batches: Inputs and targets of this rank's micro-batches.
        windows: Sequences in the step's batch over all ranks.

    Returns:
        This rank's part of the mean loss. The ranks' parts add up to it.
    """
    losses = []
    pieces = world.pieces(windows, config.micro_batch_size)
    for number, (_, size) in enumerate(pieces, start=1):
        x, y = next(batches)
        with distributed.gradient_sync(model, number == len(pieces)):
            with autocast:
                loss = model(x, y) * (size / windows)
            (loss * world.size).backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Scale the whole gradient down to norm `limit` (0 leaves it); return the norm it had."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit or math.inf)
    return distributed.gathered(norm)


def evaluate(job: "Job", step: int) -> float:
    """Return the validation loss in nats per token.

    Raises:
        FloatingPointError: It isn't finite.
    """
    loss = validation_loss(
        job.called,
        job.val_loader,
        job.config.eval_tokens,
        micro_batch_size=distributed.micro_batch(job.config, job.world),
        device=job.device,
        autocast=job.autocast,
        world=job.world,
    )
    if not math.isfinite(loss):
        advice = run.nan_hint(job.run_dir)
        raise FloatingPointError(f"step {step}: validation loss {loss}; {advice}")
    return loss


def save(job: "Job", done: int, val_loss: float | None) -> None:
    """Write a checkpoint after `done` steps, and delete those that are no longer kept."""
    folder = job.run_dir / "checkpoints"
    shape = dataclasses.asdict(job.model.config)
    state = {"step": done, "val_loss": val_loss, "model": shape, "data": job.data}
    job.metrics.sync()  # a checkpoint relies on the rows of its steps
    checkpoint.save(folder, job.model, job.optimizer, state, job.world)
    if job.world.is_main:
        checkpoint.prune(folder, job.config.keep_checkpoints)
    job.world.barrier()


@dataclass
class Job:
    """A run that is set up: what the loop needs besides its config."""

    config: TrainConfig
    world: World
    device: torch.device
    autocast: AbstractContextManager
    tokenizer: Tokenizer
    train_loader: Loader
    val_loader: Loader
    data: dict[str, Any]
    """A fingerprint of the data."""
    model: GPT
    called: nn.Module
    """What the loop calls: the model, perhaps compiled and wrapped by DDP."""
    optimizer: torch.optim.Optimizer
    metrics: run.Metrics
    tracker: Send | None
    steps: range
    peak: float | None
    """FLOP/s of all devices; None where a device's peak is unknown."""
    broken: Tensor
    """On the device: whether NaN or infinity prevents the update."""

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return Path(self.config.run_dir)


@dataclass(frozen=True)
class TrainResult:
    """What a run leaves: the model, its tokenizer, and a row of metrics per step."""

    run_dir: Path
    model: GPT
    tokenizer: Tokenizer
    metrics: list[dict[str, Any]]
    finished: bool

    @property
    def val_loss(self) -> float:
        """The last validation loss, in nats per token; from a checkpoint if no row has one.

        Raises:
            ValueError: It wasn't measured yet.
        """
        found = [row["val_loss"] for row in self.metrics if "val_loss" in row]
        if not found:  # metrics.jsonl was lost
            saved = map(checkpoint.val_loss, checkpoint.checkpoints(self.run_dir / "checkpoints"))
            found = [loss for loss in saved if loss is not None]
        require(
            bool(found),
            f"{self.run_dir}: no validation loss was measured yet; continue it with --resume",
        )
        return found[-1]


def set_up(config: TrainConfig, stack: ExitStack) -> Job:
    """Check all that can be wrong, open the run folder, and build the model and its optimizer.

    `stack` gets what must be undone at the end of the run. The run folder isn't touched until
    everything else is known to work.
    """
    device = hardware.select_device(config.device, distributed.world_from_environment().local_rank)
    dtype = hardware.autocast_dtype(device, config.precision)
    world = stack.enter_context(distributed.process_group(device))
    stack.enter_context(reproducible(config, device))
    stack.enter_context(hardware.freed_memory_kept())
    *streams, tokenizer = open_data(config.train_data, config.val_data, config.tokenizer)
    data = dict(zip(("train", "val"), (s.fingerprint() for s in streams), strict=True))
    config, begun = run.check(config, tokenizer)
    run_dir, found, first_step = Path(config.run_dir), None, 0
    if begun:  # lock it before looking for a checkpoint, since a run that ends may write one more
        stack.enter_context(run.lock(run_dir, world, begun=True))
        found = checkpoint.resume_point(run_dir / "checkpoints", device, world)
    if found is not None:
        first_step = run.check_checkpoint(found, config.model_config(tokenizer.vocab_size), data)
    torch.manual_seed(config.seed)  # for the initial weights
    model, config = build_model(config, tokenizer, found, (device, world, dtype is not None))
    batch = distributed.micro_batch(config, world)
    flops = accounting.largest_matmul_flops(model.config, batch)
    stack.enter_context(hardware.threads_for(flops))
    train_loader, val_loader = (
        Loader(stream, config.block_size, tokenizer.vocab_size, config.seed) for stream in streams
    )
    steps = range(first_step, config.max_steps)
    check_batches(train_loader, val_loader, config, steps, world)
    compiled = distributed.compiles(config, device, world)
    require_tracker(config)
    if not begun:
        stack.enter_context(run.lock(run_dir, world, begun=False))
    run.write(config, tokenizer, found, world)
    called = distributed.prepare_model(model, config, device, world, dtype, compiled=compiled)
    optimizer = make_optimizer(model, config)
    if found is not None:
        checkpoint.restore(found, model, optimizer)
    peak = hardware.peak_flops(device, dtype)
    if world.is_main:
        print(report.banner(config, model, tokenizer, device, dtype, peak, first_step, world))
    return Job(
        config=config,
        world=world,
        device=device,
        autocast=torch.autocast(device.type, dtype=dtype, enabled=dtype is not None),
        tokenizer=tokenizer,
        train_loader=train_loader,
        val_loader=val_loader,
        data=data,
        model=model.train(),
        called=called,
        optimizer=optimizer,
        metrics=run.Metrics(run_dir / "metrics.jsonl", first_step, world),
        tracker=open_tracker(config, stack) if world.is_main else None,
        steps=steps,
        peak=peak[0] and peak[0] * world.size,
        broken=torch.tensor(False, device=device),
    )


def build_model(
    config: TrainConfig,
    tokenizer: Tokenizer,
    found: Path | None,
    place: tuple[torch.device, World, bool],
) -> tuple[GPT, TrainConfig]:
    """Make the model, with fresh weights or those that `init_from` names.

    A model that is to be sharded is made on the meta device, and gets fresh weights later.

    Args:
        found: The checkpoint whose weights will replace the fresh ones, if there is one.
        place: The device, the processes, and whether matmuls run in bf16: for the memory check.

    Returns:
        The model on the CPU, and the config with the shape that the model really has.

    Raises:
        ValueError: It doesn't fit into memory, or the weights of `init_from` don't fit the config.
    """
    _, world, _ = place
    if config.init_from and found is None:
        model = init_from(config, tokenizer)
        shape = {name: getattr(model.config, name) for name in run.SHAPE}
        config = dataclasses.replace(config, **shape)
        distributed.require_room(model.config, config, *place)
        return model, config
    shape = config.model_config(tokenizer.vocab_size)
    distributed.require_room(shape, config, *place)  # before a billion weights are drawn
    if distributed.is_sharded(config, world):
        with torch.device("meta"):
            return GPT(shape), config
    numbers = accounting.count_parameters(shape)
    hardware.require_memory(4 * numbers, hf.CPU, f"a model of {numbers:,} parameters")
    return GPT(shape), config


def init_from(config: TrainConfig, tokenizer: Tokenizer) -> GPT:
    """Load the weights that `config.init_from` names, with the context cut to block_size.

    Raises:
        ValueError: They can't be found, have another vocabulary, or too short a context.
    """
    source = Path(config.init_from)
    if (source / "checkpoints").is_dir():
        given = checkpoint.load_model(source, hf.CPU)
    else:
        given = hf.load(config.init_from)
    require(
        given.config.vocab_size == tokenizer.vocab_size,
        f"{source} knows {given.config.vocab_size:,} token ids, and tokenizer {config.tokenizer} "
        f"has {tokenizer.vocab_size:,}; pass the tokenizer and the data that these weights were "
        f"made with",
    )
    theirs = tokenizer_of(source)
    require(
        theirs is None or theirs == tokenizer,
        f"{source} was trained with another tokenizer than {run.data_name(config)} has; "
        f"pass the tokenizer and the data that these weights were made with",
    )
    require(
        given.config.block_size >= config.block_size,
        f"{source} has a context of {given.config.block_size} tokens, "
        f"and block_size is {config.block_size}; pass --block-size {given.config.block_size}",
    )
    shape = {name: getattr(config, name) for name in ("block_size", "dropout")}
    model = GPT(dataclasses.replace(given.config, **shape))
    state = given.state_dict()
    state["transformer.wpe.weight"] = state["transformer.wpe.weight"][: config.block_size]
    model.load_state_dict(state)
    return model


def check_batches(
    train_loader: Loader, val_loader: Loader, config: TrainConfig, steps: range, world: World
) -> None:
    """Read the first batch and the whole validation set, so that bad data shows before the start.

    Raises:
        ValueError: A token id is outside the vocabulary, or there are too few sequences.
    """
    first = schedule.batch_windows(0, config)
    require(
        first >= world.size,
        f"the first step's batch is {first} sequences of {config.block_size} tokens, too few for "
        f"{world.size} processes",
    )
    if not steps:
        return
    for _ in micro_batches(train_loader, config, steps.start, world):
        pass
    for start in val_loader.validation_starts(config.eval_tokens)[world.rank :: world.size]:
        val_loader.windows([start])


def training_batches(job: Job) -> Batches:
    """Yield this rank's micro-batches of all steps on the device, the next one read ahead."""
    pieces = (
        piece
        for step in job.steps
        for piece in micro_batches(job.train_loader, job.config, step, job.world)
    )
    return prefetched(pieces, job.device)


def micro_batches(loader: Loader, config: TrainConfig, step: int, world: World) -> Batches:
    """Yield what this rank reads in a step; an empty piece, which counts as 0, has one window."""
    before = schedule.windows_before(step, config)
    windows = schedule.batch_windows(step, config)
    for first, size in world.pieces(windows, config.micro_batch_size):
        yield loader.batch(before + first, max(size, 1))


class StepLog:
    """Turns the numbers of steps, which the device may still be computing, into rows of metrics."""

    def __init__(self, job: Job, listeners: list[Send | None]):
        self.job = job
        self.listeners = [send for send in listeners if send and job.world.is_main]
        self.flops_per_token = accounting.train_flops_per_token(job.model.config)
        self.done = job.steps.start
        self.pending: list[tuple[int, float, Tensor]] = []
        self.has_bar = draws_in_place(sys.stderr)  # a log gets a line for every row instead
        self.bar = Bar(
            job.steps,
            initial=job.steps.start,
            total=job.config.max_steps,
            unit="step",
            disable=not (job.world.is_main and self.has_bar),
        )

    def steps(self) -> Iterator[int]:
        """Yield the numbers of the steps, with a progress bar."""
        self.restart_clock()
        yield from self.bar

    def restart_clock(self) -> None:
        """Begin to measure time now: evaluation and saving don't count as training."""
        hardware.synchronize(self.job.device)
        self.start = time.perf_counter()

    def add(self, step: int, lr: float, loss: Tensor, grad_norm: Tensor) -> None:
        """Note a step, without waiting for the device."""
        self.pending.append((step, lr, torch.stack((loss, grad_norm))))
        self.done = step + 1

    def read(self) -> list[dict[str, Any]]:
        """Wait for the device, and return a row for each step since the last time.

        Raises:
            FloatingPointError: With on_nan="stop", the first step whose loss or gradient isn't
                finite. The rows before it are written.
        """
        config = self.job.config
        values = torch.stack([both for *_, both in self.pending]).tolist()
        hardware.synchronize(self.job.device)
        seconds = time.perf_counter() - self.start
        windows = sum(schedule.batch_windows(step, config) for step, *_ in self.pending)
        speed = windows * config.block_size / seconds
        rows: list[dict[str, Any]] = []
        for (step, lr, _), (loss, grad_norm) in zip(self.pending, values, strict=True):
            row = {
                "step": step,
                "tokens": schedule.windows_before(step + 1, config) * config.block_size,
                "train_loss": loss,
                "lr": lr,
                "grad_norm": grad_norm,
                "step_ms": seconds * 1000 / len(self.pending),
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
        """Append rows to the metrics, and show the newest one."""
        for row in rows:
            self.job.metrics.add(row)
            self.show(row)
            for send in self.listeners:
                send(row)

    def show(self, row: dict[str, Any]) -> None:
        """Put a row's numbers beside the bar; a log without a terminal gets a line instead."""
        if self.has_bar:
            self.bar.set_postfix_str(report.summary(row), refresh=False)
        elif self.job.world.is_main:
            total = self.job.config.max_steps
            print(f"step {row['step'] + 1}/{total}: {report.summary(row)}", file=Log())

    def finish(self) -> TrainResult:
        """Say how the run ended, and return what it leaves."""
        job, total = self.job, self.job.config.max_steps
        self.bar.close()
        if job.world.is_main and (trouble := report.troubles(job.metrics.rows)):
            print(f"Worth a look: {trouble}")
        if job.world.is_main and self.done < total:
            print(f"Stopped after step {self.done} of {total} and saved; --resume continues it.")
        rows, finished = job.metrics.rows, self.done >= total
        return TrainResult(job.run_dir, job.model.eval(), job.tokenizer, rows, finished)


def not_finite(job: Job, step: int, loss: float, grad_norm: float) -> str:
    """Describe where NaN or infinity came up, and what to do."""
    first = schedule.windows_before(step, job.config)
    last = first + schedule.batch_windows(step, job.config) - 1
    start = int(job.train_loader.starts(first, 1)[0])
    return (
        f"step {step}: loss {loss}, gradient norm {grad_norm}; the batch is windows {first} to "
        f"{last}, the first at {job.train_loader.stream.where(start)}; "
        f"{run.nan_hint(job.run_dir)}, or continue this one with --resume --on-nan skip"
    )


def is_multiple(done: int, every: int) -> bool:
    """Whether something that happens every so many steps is due; 0 means never."""
    return every > 0 and done % every == 0


@contextmanager
def reproducible(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """Set determinism and TF32 as the config says; at the end restore the caller's settings."""
    wanted = config.deterministic == "on"
    wanted |= config.deterministic == "auto" and device.type == "cpu"
    before = torch.are_deterministic_algorithms_enabled()
    fill_before = torch.utils.deterministic.fill_uninitialized_memory
    rng = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with rng, hardware.tf32(config.tf32):
        try:
            torch.use_deterministic_algorithms(wanted)
            # PyTorch would fill new memory with NaN to expose reads of it. We have none.
            torch.utils.deterministic.fill_uninitialized_memory = False
            yield
        finally:
            torch.use_deterministic_algorithms(before)
            torch.utils.deterministic.fill_uninitialized_memory = fill_before


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event set by Ctrl-C (or the stop button) and SIGTERM; a second one interrupts at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return
    previous = {}

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


sys.modules[__name__].__class__ = CallableModule
