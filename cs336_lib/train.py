"""The training loop: `train(config)`, for the notebook, the command line and torchrun alike."""

import dataclasses
import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from cs336_lib import accounting, checkpoint, hardware
from cs336_lib.config import TrainConfig, require
from cs336_lib.data import Loader, hash_key, open_data, prefetched
from cs336_lib.distributed import World, process_group, world_from_environment
from cs336_lib.evaluate import validation_loss
from cs336_lib.model import GPT
from cs336_lib.optim import learning_rate, make_optimizer, set_learning_rate
from cs336_lib.tokenizer import Tokenizer, save_tokenizer

EXPECTED_MFU = 0.4  # for the estimate before the start; what is reached is measured


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
        """The last validation loss, in nats per token."""
        return next(row["val_loss"] for row in reversed(self.metrics) if "val_loss" in row)


def train(config: TrainConfig) -> TrainResult:
    """Train a GPT as `config` says, writing checkpoints and metrics to its run_dir.

    Raises:
        ValueError: the config, the data or the run folder is not usable; nothing is written then.
    """
    device = hardware.select_device(config.device, world_from_environment().local_rank)
    dtype = hardware.autocast_dtype(device, config.precision)
    autocast = torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)
    with process_group(device) as world, reproducible(config, device), stop_signals() as stop:
        train_stream, val_stream, tokenizer = open_data(
            config.train_data, config.val_data, config.tokenizer
        )
        model_config = config.model_config(tokenizer.vocab_size)
        train_loader, val_loader = (
            Loader(stream, config.block_size, tokenizer.vocab_size, config.seed)
            for stream in (train_stream, val_stream)
        )
        require(
            config.batch_windows >= world.size,
            f"batch_tokens {config.batch_tokens} are {config.batch_windows} sequences, too few for "
            f"{world.size} processes",
        )
        run_dir = open_run(config, tokenizer, world)

        torch.manual_seed(config.seed)
        model = GPT(model_config).to(device)
        optimizer = make_optimizer(model, config)
        first_step = 0
        last_good = checkpoint.newest_good(run_dir / "checkpoints") if config.resume else None
        if last_good is not None:
            first_step = checkpoint.restore(last_good, model, optimizer)["step"]
        metrics = Metrics(run_dir / "metrics.jsonl", first_step, world)
        stepper = parallel(compiled(model, config, device), device, world)
        peak = hardware.peak_flops(device, dtype)
        if world.is_main:
            print(announcement(config, model, tokenizer, device, dtype, peak, first_step, world))

        finished = True
        flops_per_token = accounting.train_flops_per_token(model_config)
        total_peak = None if peak[0] is None else peak[0] * world.size
        progress = tqdm(
            range(first_step, config.max_steps),
            initial=first_step,
            total=config.max_steps,
            unit="step",
            disable=not world.is_main,
        )
        steps = range(first_step, config.max_steps)
        pieces = (p for step in steps for p in micro_batches(train_loader, config, step, world))
        batches = prefetched(pieces, device)
        model.train()
        for step in progress:
            hardware.synchronize(device)
            start = time.perf_counter()
            torch.manual_seed(hash_key(config.seed, step, world.rank))  # dropout's randomness
            lr = learning_rate(step, config)
            set_learning_rate(optimizer, lr)
            loss = backward(stepper, batches, config, world, autocast)
            grad_norm = clip_gradients(model, config.grad_clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            # One sum over the ranks serves both: the loss, and whether anyone was told to stop.
            loss, stopping = world.sum(loss.item(), stop.is_set(), device=device)
            seconds = time.perf_counter() - start

            done = step + 1
            tokens_per_second = config.batch_tokens / seconds
            row = {
                "step": step,
                "tokens": done * config.batch_tokens,
                "train_loss": loss,
                "lr": lr,
                "grad_norm": grad_norm.item(),
                "step_ms": seconds * 1000,
                "tokens_per_sec": tokens_per_second,
                "mfu": accounting.mfu(flops_per_token * tokens_per_second, total_peak),
            }
            is_last = done == config.max_steps
            if is_last or (config.eval_every and done % config.eval_every == 0):
                row["val_loss"] = validation_loss(
                    stepper,
                    val_loader,
                    config.eval_tokens,
                    micro_batch_size=config.micro_batch_size,
                    device=device,
                    autocast=autocast,
                    world=world,
                )
            metrics.add(row)
            progress.set_postfix_str(summary(row), refresh=False)
            is_due = config.checkpoint_every and done % config.checkpoint_every == 0
            if is_last or is_due or stopping:
                if world.is_main:
                    state = {
                        "step": done,
                        "val_loss": row.get("val_loss"),
                        "model": dataclasses.asdict(model_config),
                    }
                    checkpoint.save(run_dir / "checkpoints", model, optimizer, state)
                    checkpoint.prune(run_dir / "checkpoints", config.keep_checkpoints)
                world.barrier()
            if stopping and not is_last:
                finished = False
                break
        progress.close()
        if world.is_main and not finished:
            print(f"Stopped after step {done} of {config.max_steps} and saved; --resume goes on.")
        return TrainResult(run_dir, model.eval(), tokenizer, metrics.rows, finished)


def shares(config: TrainConfig, world: World) -> list[tuple[int, int]]:
    """This rank's part of a step's windows as (first, count) pieces of micro_batch_size at most."""
    mine = world.share(config.batch_windows)
    begins = range(mine.start, mine.stop, config.micro_batch_size)
    return [(begin, min(config.micro_batch_size, mine.stop - begin)) for begin in begins]


def micro_batches(
    loader: Loader, config: TrainConfig, step: int, world: World
) -> Iterator[tuple[Tensor, Tensor]]:
    """What this rank reads in a step."""
    for begin, count in shares(config, world):
        yield loader.batch(step * config.batch_windows + begin, count)


def backward(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, Tensor]],
    config: TrainConfig,
    world: World,
    autocast: AbstractContextManager,
) -> Tensor:
    """Accumulate the gradient of the step's mean loss; return this rank's part of that loss.

    Each micro-batch counts by its size, so any split gives the gradient of the whole batch. DDP
    averages over ranks where a sum is needed (hence `* world.size`), and is let to communicate
    once per step, with the last micro-batch.
    """
    losses = []
    pieces = shares(config, world)
    for piece, (_, count) in enumerate(pieces):
        x, y = next(batches)
        silent = world.size > 1 and piece < len(pieces) - 1
        with model.no_sync() if silent else nullcontext():
            with autocast:
                loss = model(x, y) * (count / config.batch_windows)
            (loss * world.size).backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Scale the whole gradient down to norm `limit` (0: leave it); return the norm it had."""
    return nn.utils.clip_grad_norm_(model.parameters(), limit or math.inf)


def compiled(model: GPT, config: TrainConfig, device: torch.device) -> nn.Module:
    """torch.compile where it is asked for, or where it pays: a GPU; see docs/decisions.md."""
    wanted = config.compile == "on" or (config.compile == "auto" and device.type == "cuda")
    return torch.compile(model) if wanted else model


def parallel(model: nn.Module, device: torch.device, world: World) -> nn.Module:
    """Wrap for data parallelism where there are several processes."""
    if world.size == 1:
        return model
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids)


@contextmanager
def reproducible(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """Deterministic kernels if the config wants them; the caller's RNG and settings come back."""
    wanted = config.deterministic == "on"
    wanted |= config.deterministic == "auto" and device.type == "cpu"
    before = torch.are_deterministic_algorithms_enabled()
    fill_before = torch.utils.deterministic.fill_uninitialized_memory
    if wanted and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            torch.use_deterministic_algorithms(wanted)
            # Filling fresh memory with NaN would show reads of it; there are none: save the time.
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


def open_run(config: TrainConfig, tokenizer: Tokenizer, world: World) -> Path:
    """Make the run folder, or check that it can be resumed.

    Raises:
        ValueError: it holds a run and resume is off, holds another run, or cannot be written.
    """
    require(bool(config.run_dir), "run_dir is empty; a folder for checkpoints and metrics needed")
    run_dir = Path(config.run_dir)
    config_file = run_dir / "config.json"
    if config_file.exists():
        require(
            config.resume,
            f"{run_dir} already holds a run; pass --resume to continue it, or another --run-dir",
        )
        conflicts = config.conflicts(json.loads(config_file.read_text()))
        require(
            not conflicts,
            f"{run_dir} holds a run with another config: {'; '.join(conflicts)}; "
            f"resume with the same one, or use another --run-dir",
        )
    elif run_dir.exists():
        require(
            run_dir.is_dir() and not any(run_dir.iterdir()),
            f"{run_dir} exists and is no run of ours; use another --run-dir",
        )
    world.barrier()
    if world.is_main:
        try:
            (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
            save_tokenizer(tokenizer, run_dir / "tokenizer.json")
            text = json.dumps(dataclasses.asdict(config), indent=1) + "\n"
            checkpoint.write_whole(config_file, text)
        except OSError as error:
            raise ValueError(f"{run_dir}: cannot be written ({error.strerror})") from None
    world.barrier()
    return run_dir


class Metrics:
    """metrics.jsonl: one row per step, none missing and none twice, whatever was killed when."""

    def __init__(self, path: Path, first_step: int, world: World):
        self.rows: list[dict[str, Any]] = []
        self.path = path if world.is_main else None
        if path.exists():
            self.rows = [row for row in read_metrics(path) if row["step"] < first_step]
        if self.path:
            kept = "".join(json.dumps(row) + "\n" for row in self.rows)
            checkpoint.write_whole(path, kept)

    def add(self, row: dict[str, Any]) -> None:
        """Append a row."""
        self.rows.append(row)
        if self.path:
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut off by a kill is left out."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def summary(row: dict[str, Any]) -> str:
    """One line for the progress bar."""
    parts = [f"loss {row['train_loss']:.3f}"]
    if "val_loss" in row:
        parts.append(f"val {row['val_loss']:.3f}")
    parts += [f"lr {row['lr']:.1e}", f"{row['tokens_per_sec']:,.0f} tok/s"]
    if row["mfu"] is not None:
        parts.append(f"MFU {row['mfu']:.0%}")
    return ", ".join(parts)


def announcement(
    config: TrainConfig,
    model: GPT,
    tokenizer: Tokenizer,
    device: torch.device,
    dtype: torch.dtype | None,
    peak: tuple[float | None, str],
    first_step: int,
    world: World,
) -> str:
    """What is about to happen, and how long it should take."""
    tokens = (config.max_steps - first_step) * config.batch_tokens
    flops = tokens * accounting.train_flops_per_token(model.config)
    speed, source = peak
    if speed is None:
        expected = "unknown (no peak FLOP/s known for this device)"
    else:
        seconds = accounting.training_seconds(flops, world.size, speed, EXPECTED_MFU)
        expected = f"{accounting.duration(seconds)} at {EXPECTED_MFU:.0%} MFU"
    peak_text = source if speed is None else f"{accounting.human(speed)}FLOP/s, {source}"
    resumed = f", from step {first_step}" if first_step else ""
    return "\n".join(
        [
            f"model      {model.num_parameters():,} parameters: {config.n_layer} layers, "
            f"{config.n_head} heads, {config.n_embd} wide, context {config.block_size}",
            f"data       {config.train_data or 'the plays that ship'}, tokenizer {tokenizer.name}, "
            f"{tokenizer.vocab_size:,} ids",
            f"device     {hardware.device_name(device)} x {world.size}, "
            f"{'bf16 autocast' if dtype else 'fp32'} (peak {peak_text})",
            f"run        {config.max_steps} steps of {config.batch_tokens:,} tokens{resumed}: "
            f"{tokens:,} tokens, {flops:.2e} FLOPs",
            f"expected   {expected}",
            f"writes to  {config.run_dir}",
        ]
    )
