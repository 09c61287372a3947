"""Measure this machine, and predict the time and memory of training steps on it."""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from cs336_lib import accounting, schedule
from cs336_lib.config import PRESETS, GPTConfig, TrainConfig, from_json
from cs336_lib.data.loader import open_data
from cs336_lib.formatting import digits, duration, gigabytes, table
from cs336_lib.io import Bar, read_json
from cs336_lib.model import GPT
from cs336_lib.sampling import WEIGHTS
from cs336_lib.system import hardware
from cs336_lib.system.processes import World
from cs336_lib.training import distributed
from cs336_lib.training.job import Job, Place, make_job
from cs336_lib.training.loop import train_step

Precision = Literal["auto", "fp32", "bf16"]

DEPTHS = (1, 4)  # blocks of the models that are measured
CPU_FLOPS = 5e11  # most FLOPs of a measured pass on a CPU, unless a single sequence needs more
FEW_TOKENS = 32  # a pass with so few takes little more than its constant part
ROUNDS, ROUND_SECONDS = 9, 3.0  # most rounds, and the time after which no other round starts


@dataclass(frozen=True)
class Passes:
    """Seconds of the parts of a training step of one model.

    Attributes:
        whole: A step with a single micro-batch.
        few: Forward and backward pass of a micro-batch with `FEW_TOKENS` tokens.
        later: The same for a later micro-batch, whose gradients are added to earlier ones.
        last: The same for the last micro-batch, with gradient clipping and the optimizer.
    """

    whole: float
    few: float
    later: float
    last: float


def make_trial(config: TrainConfig, vocab_size: int, device: torch.device) -> Job:
    """Make the job of a new model on one process, without a run folder."""
    model = GPT(config.model_config(vocab_size), config.seed)
    dtype = hardware.autocast_dtype(device, config.precision)
    return make_job(model, config, Place(device, dtype, World()))


def passes(trial: Job) -> Passes:
    """Measure a step with one full micro-batch, and one with three small ones of random tokens."""
    config = trial.config
    size = (2, config.micro_batch_size, config.block_size)
    x, y = torch.randint(trial.model.config.vocab_size, size, device=trial.place.device)
    (whole,) = step_parts(trial, x, y, 1)
    few = min(FEW_TOKENS, x.size(1))
    first, later, last = step_parts(trial, x[:1, :few], y[:1, :few], 3)
    return Passes(whole, first, later, last)


def step_parts(trial: Job, x: Tensor, y: Tensor, count: int) -> list[float]:
    """Run a training step with `count` micro-batches.

    Returns:
        The seconds from the start of each micro-batch to the next start or to the end.
    """
    stamps: list[float] = []

    def stamp() -> None:
        hardware.synchronize(trial.place.device)
        stamps.append(time.perf_counter())

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(count):
            stamp()
            yield x, y

    tokens = count * trial.config.block_size
    config = dataclasses.replace(trial.config, micro_batch_size=1, batch_tokens=tokens)
    measured = train_step(dataclasses.replace(trial, config=config), batches(), step=0)
    measured["train_loss"].item()
    stamp()
    return [after - before for before, after in itertools.pairwise(stamps)]


def measured_passes(
    config: TrainConfig, vocab_size: int, device: torch.device
) -> tuple[Passes, ...]:
    """Measure the parts of a training step for models with the numbers of blocks in `DEPTHS`.

    The models take turns, and the shortest time of each part counts, because other programs can
    only add time.
    """
    shape, rounds = config.model_config(vocab_size), list[list[Passes]]()
    with ExitStack() as stack:
        stack.enter_context(hardware.reproducible(config.deterministic, config.tf32, device))
        stack.enter_context(hardware.freed_memory_kept())
        flops = accounting.largest_matmul_flops(shape, config.micro_batch_size)
        stack.enter_context(hardware.threads_for(flops))
        configs = [dataclasses.replace(config, n_layer=n_layer) for n_layer in DEPTHS]
        trials = [make_trial(shallow, vocab_size, device) for shallow in configs]
        for trial in trials:  # allocates memory, and compiles on a GPU
            passes(trial)
        begin = time.perf_counter()
        while len(rounds) < ROUNDS and time.perf_counter() - begin < ROUND_SECONDS:
            rounds.append([passes(trial) for trial in trials])
    by_model = zip(*rounds, strict=True)
    return tuple(
        Passes(*map(min, zip(*map(dataclasses.astuple, found), strict=True))) for found in by_model
    )


def step_seconds(config: TrainConfig, vocab_size: int, device: torch.device) -> float:
    """Predict the seconds of a training step from steps of models with 1 and 4 blocks.

    The measured models have the width, heads, sequence length, vocabulary and optimizer of the
    config. Each part of a step is linear in the number of blocks. A pass is linear in the number of
    sequences, so a part of a large micro-batch is enough.
    """
    full = distributed.micro_batch(config, World())
    deep = dataclasses.replace(config, n_layer=max(DEPTHS)).model_config(vocab_size)
    flops = config.block_size * accounting.train_flops_per_token(deep)
    size = full if device.type != "cpu" else min(full, max(1, int(CPU_FLOPS / flops)))
    single = dataclasses.replace(
        config,
        micro_batch_size=size,
        batch_tokens=size * config.block_size,
        initial_batch_tokens=0,
        batch_growth_steps=0,
    )
    low, high = (
        dataclasses.astuple(found) for found in measured_passes(single, vocab_size, device)
    )
    depth = (config.n_layer - DEPTHS[0]) / (DEPTHS[1] - DEPTHS[0])
    whole, few, later, last = (
        max(0.0, a + depth * (b - a)) for a, b in zip(low, high, strict=True)
    )
    update = max(0.0, last - later)
    pieces = len(World().pieces(config.batch_windows, config.micro_batch_size))
    tokens, least = size * config.block_size, min(FEW_TOKENS, config.block_size)
    per_token = max(0.0, whole - update - few) / max(1, tokens - least)
    more = config.batch_tokens - pieces * tokens
    return whole + (pieces - 1) * (whole - update + later - few) + more * per_token


def vocabulary(config: TrainConfig) -> int:
    """Return the number of token ids of a config. Letters are those of the plays that ship."""
    if config.tokenizer == "gpt2":
        return GPTConfig().vocab_size
    return open_data("", "", config.tokenizer)[2].vocab_size


@dataclass(frozen=True)
class Prediction:
    """Prediction for a run.

    Attributes:
        name: Name of the preset, or path of the config.
        precision: Precision of the matmuls, fp32 or bf16.
        seconds: Seconds of a step, or `None` if the run doesn't fit into memory.
        tokens: Tokens in a step.
        steps: Steps of the run.
        memory: Peak memory of a step in bytes.
    """

    name: str
    precision: Precision
    seconds: float | None
    tokens: int
    steps: int
    memory: float


def predict(
    name: str, config: TrainConfig, precisions: Sequence[Precision], device: torch.device
) -> Prediction:
    """Predict a run in each precision, and return the row of the fastest."""
    size, rows = vocabulary(config), []
    shape, batch = config.model_config(size), distributed.micro_batch(config, World())
    limit = hardware.memory(device)
    for precision in precisions:
        kinds = accounting.peak_memory(
            shape, batch, optimizer=config.optimizer, autocast=precision == "bf16"
        )
        single = config.batch_windows <= config.micro_batch_size
        memory = sum(kinds.values()) - single * kinds["gradients"]
        seconds = None
        if limit is None or memory <= limit:
            chosen = dataclasses.replace(config, precision=precision)
            seconds = step_seconds(chosen, size, device)
        windows = schedule.windows_before(config.max_steps, config)
        steps = windows / config.batch_windows
        rows.append(Prediction(name, precision, seconds, config.batch_tokens, round(steps), memory))
    return min(rows, key=lambda row: row.seconds or math.inf)


def precisions_of(config: TrainConfig, device: torch.device) -> list[Precision]:
    """Return the precisions to compare for a config: its own, or all that are fast here."""
    if config.precision != "auto":
        return [config.precision]
    return ["fp32", "bf16"] if hardware.has_bf16(device) else ["fp32"]


def cells(row: Prediction) -> list[str]:
    """Format the prediction for a run as the cells of a table."""
    start, memory = [row.name, row.precision], gigabytes(row.memory)
    if row.seconds is None:
        return [*start, "too large", "", memory, ""]
    is_short = row.seconds < 10
    step = f"{digits(1000 * row.seconds)} ms" if is_short else f"{digits(row.seconds)} s"
    rate = f"{row.tokens / row.seconds:,.0f}"
    return [*start, step, rate, memory, duration(row.steps * row.seconds)]


def report(config: str = "") -> str:
    """Measure this machine, predict the training steps of every preset, and format the result.

    Both precisions are compared up to GPT-2 124M. Larger models use the faster one of GPT-2 124M.

    Args:
        config: JSON file with fields of `TrainConfig`, such as the config.json of a run. This run
            is predicted too.

    Raises:
        OSError: If the config can't be read.
        UserError: If the config is invalid.
    """
    device = hardware.select_device()
    configs = {name: preset for name, (_, preset) in PRESETS.items()}
    if config:
        configs[config] = from_json(TrainConfig, read_json(Path(config)), config)
    precisions, rows = precisions_of(TrainConfig(), device), list[Prediction]()
    peaks = [(name, hardware.peak_flops(device, WEIGHTS[name])[0]) for name in precisions]
    for name, chosen in Bar(configs.items(), desc="measuring this machine", unit="run"):
        usual = precisions if name in PRESETS else precisions_of(chosen, device)
        rows.append(predict(name, chosen, usual, device))
        if name == "gpt2-124m":
            precisions = [rows[-1].precision]
    known = (f"{name} {peak / 1e9:,.0f} GFLOP/s" for name, peak in peaks if peak)
    total = hardware.memory(device)
    header = ["run", "precision", "step", "tokens/s", "memory", "all steps"]
    return "\n".join(
        [
            f"{hardware.cpu_model()}; {hardware.device_name(device)}; torch {torch.__version__}",
            f"peak       {', '.join(known) or 'unknown'}",
            f"memory     {gigabytes(total) if total else 'unknown'}",
            "",
            *table([header, *map(cells, rows)]),
            "",
            "All steps take this long without validation and checkpoints.",
        ]
    )
