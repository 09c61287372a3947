"""The training loop: `train(config)`, for the notebook, the command line and torchrun alike."""

import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cs336_lib import accounting, checkpoint, hardware, parallel, pretrained, run_folder
from cs336_lib.config import TrainConfig, require
from cs336_lib.data import Loader, hash_key, open_data, prefetched
from cs336_lib.distributed import World, process_group, world_from_environment
from cs336_lib.evaluate import validation_loss
from cs336_lib.metrics import Metrics, announcement, summary, troubles
from cs336_lib.model import GPT
from cs336_lib.optim import (
    batch_windows,
    learning_rate,
    make_optimizer,
    set_learning_rate,
    windows_before,
)
from cs336_lib.progress import Bar
from cs336_lib.same_ids import same_tokenizer, tokenizer_of
from cs336_lib.tokenizer import Tokenizer


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
            ValueError: none was measured yet.
        """
        found = [row["val_loss"] for row in self.metrics if "val_loss" in row]
        if not found:  # metrics.jsonl was lost
            saved = map(checkpoint.val_loss, checkpoint.checkpoints(self.run_dir / "checkpoints"))
            found = [loss for loss in saved if loss is not None]
        require(
            bool(found),
            f"{self.run_dir}: no validation loss was measured yet; go on with --resume",
        )
        return found[-1]


def train(
    config: TrainConfig, on_step: Callable[[dict[str, Any]], None] | None = None
) -> TrainResult:
    """Train a GPT as `config` says, writing checkpoints and metrics to its run_dir.

    `on_step` is called after every step with its row of metrics: for a live plot, say.

    Raises:
        ValueError: the config, the data or the run folder is not usable, and nothing is written; or
            a loss or gradient was NaN or infinite.
        OSError: a full disk, or another process that died or hung; --resume goes on.
    """
    device = hardware.select_device(config.device, world_from_environment().local_rank)
    dtype = hardware.autocast_dtype(device, config.precision)
    autocast = torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)
    with (
        run_folder.way_back(config),
        process_group(device) as world,
        reproducible(config, device),
        hardware.freed_memory_kept(),
        ExitStack() as later,
        stop_signals() as stop,
    ):
        train_stream, val_stream, tokenizer = open_data(
            config.train_data, config.val_data, config.tokenizer
        )
        data = {"train": train_stream.fingerprint(), "val": val_stream.fingerprint()}
        config, begun = run_folder.check(config, tokenizer)
        run_dir, found, first_step = Path(config.run_dir), None, 0
        if begun:  # before looking for a checkpoint, lest the run that is ending writes one more
            later.enter_context(run_folder.only_run(run_dir, world, begun=True))
            found = checkpoint.to_resume(run_dir / "checkpoints", device, world)
        if found is not None:
            shape = config.model_config(tokenizer.vocab_size)
            first_step = run_folder.check_checkpoint(found, shape, data)
        torch.manual_seed(config.seed)
        room = (config, device, world, dtype is not None)
        shape_known = found is not None or not config.init_from
        if shape_known:  # asked before a billion weights are drawn
            parallel.require_room(config.model_config(tokenizer.vocab_size), *room)
        model = starting_model(config, tokenizer, found, world)
        config = with_shape_of(model, config)
        parallel.require_room(model.config, *room)
        batch = parallel.micro_batch(config, world)
        largest = accounting.largest_matmul_flops(model.config, batch)
        later.enter_context(hardware.threads_for(largest))
        train_loader, val_loader = (
            Loader(stream, config.block_size, tokenizer.vocab_size, config.seed)
            for stream in (train_stream, val_stream)
        )
        require(
            batch_windows(0, config) >= world.size,
            f"the first step's batch is {batch_windows(0, config)} sequences of "
            f"{config.block_size} tokens, too few for {world.size} processes",
        )
        if first_step < config.max_steps:
            read_ahead(train_loader, val_loader, config, first_step, world)
        compiled = parallel.compiles(config, device, world)
        if not begun:
            later.enter_context(run_folder.only_run(run_dir, world, begun=False))
        run_folder.write(config, tokenizer, found, world)

        called = parallel.prepare_model(model, config, device, world, dtype, compiled=compiled)
        optimizer = make_optimizer(model, config)
        if found is not None:
            checkpoint.restore(found, model, optimizer)
        metrics = Metrics(run_dir / "metrics.jsonl", first_step, world)
        peak = hardware.peak_flops(device, dtype)
        if world.is_main:
            print(announcement(config, model, tokenizer, device, dtype, peak, first_step, world))

        finished = True
        flops_per_token = accounting.train_flops_per_token(model.config)
        total_peak = None if peak[0] is None else peak[0] * world.size
        progress = Bar(
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
            loss = backward(called, batches, batch_windows(step, config), config, world, autocast)
            grad_norm = clip_gradients(model, config.grad_clip).item()
            # One sum over the ranks serves both: the loss, and whether anyone was told to stop.
            loss, stopping = world.sum(loss.item(), stop.is_set(), device=device)
            is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
            if is_finite:
                optimizer.step()
            elif config.on_nan == "stop":
                raise ValueError(gone_wrong(step, loss, grad_norm, train_loader, config, run_dir))
            optimizer.zero_grad(set_to_none=True)
            hardware.synchronize(device)
            seconds = time.perf_counter() - start

            done = step + 1
            tokens_per_second = batch_windows(step, config) * config.block_size / seconds
            row = {
                "step": step,
                "tokens": windows_before(done, config) * config.block_size,
                "train_loss": loss,
                "lr": lr,
                "grad_norm": grad_norm,
                "step_ms": seconds * 1000,
                "tokens_per_sec": tokens_per_second,
                "mfu": accounting.mfu(flops_per_token * tokens_per_second, total_peak),
            }
            if not is_finite:  # JSON knows no NaN
                row |= {"train_loss": None, "grad_norm": None, "skipped": True}
            is_last = done == config.max_steps
            if is_last or (config.eval_every and done % config.eval_every == 0):
                row["val_loss"] = validation_loss(
                    called,
                    val_loader,
                    config.eval_tokens,
                    micro_batch_size=batch,
                    device=device,
                    autocast=autocast,
                    world=world,
                )
                require(
                    math.isfinite(row["val_loss"]),
                    f"step {step}: validation loss {row['val_loss']}; {run_folder.advice(run_dir)}",
                )
            metrics.add(row)
            progress.set_postfix_str(summary(row), refresh=False)
            if on_step and world.is_main:
                on_step(row)
            is_due = config.checkpoint_every and done % config.checkpoint_every == 0
            if is_last or is_due or stopping:
                state = {
                    "step": done,
                    "val_loss": row.get("val_loss"),
                    "model": dataclasses.asdict(model.config),
                    "data": data,
                }
                metrics.sync()
                checkpoint.save(run_dir / "checkpoints", model, optimizer, state, world)
                if world.is_main:
                    checkpoint.prune(run_dir / "checkpoints", config.keep_checkpoints)
                world.barrier()
            if stopping and not is_last:
                finished = False
                break
        progress.close()
        if world.is_main and (trouble := troubles(metrics.rows)):
            print(f"Worth a look: {trouble}")
        if world.is_main and not finished:
            print(f"Stopped after step {done} of {config.max_steps} and saved; --resume goes on.")
        return TrainResult(run_dir, model.eval(), tokenizer, metrics.rows, finished)


def starting_model(
    config: TrainConfig, tokenizer: Tokenizer, found: Path | None, world: World
) -> GPT:
    """Fresh weights, or those that `init_from` names, with the context cut to block_size.

    Where a checkpoint is found, its weights will take the place of the fresh ones. A model that is
    to be sharded is made on the meta device, without memory, and gets its weights when it is.

    Raises:
        ValueError: the weights cannot be had, know another vocabulary or have too short a context.
    """
    vocab_size = tokenizer.vocab_size
    if found is not None or not config.init_from:
        shape = config.model_config(vocab_size)
        if parallel.is_sharded(config, world):
            with torch.device("meta"):
                return GPT(shape)
        numbers = accounting.count_parameters(shape)
        hardware.require_memory(4 * numbers, pretrained.CPU, f"a model of {numbers:,} parameters")
        return GPT(shape)
    source = Path(config.init_from)
    if (source / "checkpoints").is_dir():
        given = checkpoint.load_model(source, pretrained.CPU)
    else:
        given = pretrained.load(config.init_from)
    require(
        given.config.vocab_size == vocab_size,
        f"{source} knows {given.config.vocab_size:,} token ids, and tokenizer {config.tokenizer} "
        f"has {vocab_size:,}; pass the tokenizer and the data these weights were made with",
    )
    theirs = tokenizer_of(source)
    require(
        theirs is None or same_tokenizer(theirs, tokenizer),
        f"{source} was trained with another tokenizer than {run_folder.data_name(config)} has; "
        f"pass the tokenizer and the data these weights were made with",
    )
    require(
        given.config.block_size >= config.block_size,
        f"{source} has a context of {given.config.block_size} tokens, "
        f"and block_size is {config.block_size}; pass --block-size {given.config.block_size}",
    )
    model = GPT(with_shape_of(given, config).model_config(vocab_size))
    state = given.state_dict()
    state["transformer.wpe.weight"] = state["transformer.wpe.weight"][: config.block_size]
    model.load_state_dict(state)
    return model


def with_shape_of(model: GPT, config: TrainConfig) -> TrainConfig:
    """The config with the shape that the model really has."""
    shape = {name: getattr(model.config, name) for name in run_folder.SHAPE}
    return dataclasses.replace(config, **shape)


def micro_batches(
    loader: Loader, config: TrainConfig, step: int, world: World
) -> Iterator[tuple[Tensor, Tensor]]:
    """What this rank reads in a step; for an empty piece, which counts nothing, one window."""
    before = windows_before(step, config)
    for first, size in world.pieces(batch_windows(step, config), config.micro_batch_size):
        yield loader.batch(before + first, max(size, 1))


def read_ahead(
    train_loader: Loader, val_loader: Loader, config: TrainConfig, step: int, world: World
) -> None:
    """Read the first batch and all that validation will read, so that what is wrong shows now.

    Raises:
        ValueError: there is an id outside the vocabulary.
    """
    for _ in micro_batches(train_loader, config, step, world):
        pass
    for start in val_loader.validation_starts(config.eval_tokens)[world.rank :: world.size]:
        val_loader.windows([start])


def backward(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, Tensor]],
    windows: int,
    config: TrainConfig,
    world: World,
    autocast: AbstractContextManager,
) -> Tensor:
    """Accumulate the gradient of the mean loss over the step's windows; return this rank's part.

    Each micro-batch counts by its size, so any split gives the gradient of the whole batch. DDP
    and FSDP average over ranks where we need a sum, hence `* world.size`. DDP communicates
    gradients once per step, with the last micro-batch.
    """
    losses = []
    pieces = world.pieces(windows, config.micro_batch_size)
    for number, (_, size) in enumerate(pieces, start=1):
        x, y = next(batches)
        with parallel.gradient_sync(model, number == len(pieces)):
            with autocast:
                loss = model(x, y) * (size / windows)
            (loss * world.size).backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Scale the whole gradient down to norm `limit` (0: leave it); return the norm it had."""
    return parallel.gathered(nn.utils.clip_grad_norm_(model.parameters(), limit or math.inf))


def gone_wrong(
    step: int,
    loss: float,
    grad_norm: float,
    loader: Loader,
    config: TrainConfig,
    run_dir: Path,
) -> str:
    """What to tell whoever finds a run stopped by NaN or infinity."""
    first, count = windows_before(step, config), batch_windows(step, config)
    start = int(loader.starts(first, 1)[0])
    return (
        f"step {step}: loss {loss}, gradient norm {grad_norm}; the batch is windows {first} to "
        f"{first + count - 1}, the first at {loader.stream.where(start)}; "
        f"{run_folder.advice(run_dir)}, or go on from there with --resume --on-nan skip"
    )


@contextmanager
def reproducible(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """Deterministic kernels if the config wants them; the caller's RNG and settings come back."""
    wanted = config.deterministic == "on"
    wanted |= config.deterministic == "auto" and device.type == "cpu"
    before = torch.are_deterministic_algorithms_enabled()
    fill_before = torch.utils.deterministic.fill_uninitialized_memory
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
