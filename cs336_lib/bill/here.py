"""Measure this machine, and predict the time and memory of training steps on it."""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from cs336_lib import __version__, accounting, schedule
from cs336_lib.config import PRESETS, GPTConfig, TrainConfig, from_json
from cs336_lib.data.loader import open_data
from cs336_lib.formatting import digits, duration, gigabytes, table
from cs336_lib.io import Bar, Log, read_json, write_atomic
from cs336_lib.model import GPT
from cs336_lib.sampling import WEIGHTS, store_weights, stream
from cs336_lib.system import hardware
from cs336_lib.system.processes import World
from cs336_lib.training import distributed
from cs336_lib.training.job import Job, Place, make_job
from cs336_lib.training.loop import train_step

Found = TypeVar("Found")
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


def best_threads(device: torch.device) -> int:
    """Return the number of CPU threads with the fastest training step of a GPT-2 block."""
    most = torch.get_num_threads()
    counts = sorted({most, *(2**power for power in range(most.bit_length()))})
    config = TrainConfig(n_layer=1, block_size=256, batch_tokens=256, micro_batch_size=1)
    times = dict.fromkeys(counts, math.inf)
    trial = make_trial(config, 64, device)
    try:
        for _ in range(5):
            for count in counts:
                torch.set_num_threads(count)
                times[count] = min(times[count], passes(trial).whole)
    finally:
        torch.set_num_threads(most)
    return min(times, key=times.__getitem__)


COURSE_TOKENS, COURSE_WIDTH = 1024, 768


def matmul_flops(dtype: torch.dtype, device: torch.device) -> dict[str, list[float]]:
    """Measure the FLOP/s of GPT-2's matmuls for 1024 tokens.

    Returns:
        By shape, the FLOP/s of the output, of the input's gradient and of the weight's gradient.
    """
    found = {}
    for width in (3 * COURSE_WIDTH, 4 * COURSE_WIDTH, GPTConfig().padded_vocab_size):
        x = torch.randn(COURSE_TOKENS, COURSE_WIDTH, device=device).to(dtype)
        weight = torch.randn(width, COURSE_WIDTH, device=device).to(dtype)
        gradient = torch.randn(COURSE_TOKENS, width, device=device).to(dtype)
        pairs = (x, weight.T), (gradient, weight), (gradient.T, x)
        flops = 2 * x.numel() * width
        found[f"{COURSE_WIDTH} x {width}"] = [
            flops / hardware.best_seconds(partial(torch.mm, *pair), device) for pair in pairs
        ]
    return found


def seconds_per_token(shape: GPTConfig, device: torch.device, tokens: int = 4) -> dict[str, float]:
    """Measure the seconds to sample a token, by the data type of the weights.

    The types take turns, and the shortest of several times counts.

    Args:
        shape: Shape of the model.
        device: Device of the model.
        tokens: Number of tokens in each of eight turns.
    """
    streams = {}
    for name, dtype in WEIGHTS.items():
        model = GPT(shape).to(device)
        store_weights(model, dtype)
        prompt = torch.zeros(1, 1, dtype=torch.long)
        streams[name] = stream(model, prompt, 1 + 8 * tokens, temperature=0.0)
        next(streams[name])  # reads the prompt
    times = dict.fromkeys(streams, math.inf)
    for _ in range(8):
        for name, sampled in streams.items():
            begin = time.perf_counter()
            for _ in range(tokens):
                next(sampled).item()
            times[name] = min(times[name], (time.perf_counter() - begin) / tokens)
    return times


@dataclass(frozen=True)
class Machine:
    """Speed of a machine. Rates are in FLOP/s and B/s, and times are in seconds.

    Attributes:
        rows: Prediction for each preset.
        matmuls: FLOP/s by precision and shape, from `matmul_flops`.
        peaks: Peak FLOP/s by precision, or `None` where it is unknown.
        bandwidth: Memory bandwidth of a sum.
        sampling: Time for a token, by data type of the weights.
        threads: Number of CPU threads with the fastest step.
    """

    rows: list[Prediction]
    matmuls: dict[str, dict[str, list[float]]]
    peaks: dict[str, float | None]
    bandwidth: float
    sampling: dict[str, float]
    threads: int


def measure(device: torch.device) -> Machine:
    """Measure a machine for about two minutes, and predict every preset on it.

    Both precisions are compared up to GPT-2 124M. Larger models use the faster one of GPT-2 124M.
    """
    default = torch.get_num_threads()
    precisions = precisions_of(TrainConfig(), device)
    bar = Bar(total=len(PRESETS) + 3, desc="measuring this machine", unit="part")
    try:
        threads = best_threads(device) if device.type == "cpu" else default
        torch.set_num_threads(threads)
        bar.update()
        matmuls: dict[str, dict[str, list[float]]] = {}
        peaks: dict[str, float | None] = {}
        for precision in precisions:
            matmuls[precision] = matmul_flops(WEIGHTS[precision], device)
            peaks[precision] = hardware.peak_flops(device, WEIGHTS[precision])[0]
        bar.update()
        bandwidth, sampling = (
            hardware.read_bandwidth(device),
            seconds_per_token(GPTConfig(), device),
        )
        bar.update()
        rows: list[Prediction] = []
        for name, (_, config) in PRESETS.items():
            rows.append(predict(name, config, precisions, device))
            if name == "gpt2-124m":
                precisions = [rows[-1].precision]
            bar.update()
    finally:
        bar.close()
        torch.set_num_threads(default)
    return Machine(rows, matmuls, peaks, bandwidth, sampling, threads)


# Measurements are kept for a day

DAY = 86_400.0

SPEED_VARIABLES = ("CS336_CPU_BF16", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def cache_file(device: torch.device, shape: GPTConfig | None = None) -> Path:
    """Return the file in the user's cache folder for all that changes the speed.

    This is the device, the CPU, its threads and how they wait, torch and this package. With a
    shape, the file is for the weights of this model.
    """
    key = (
        *(hardware.device_name(device), hardware.cpu_model(), os.cpu_count()),
        *(torch.get_num_threads(), torch.__version__, __version__),
        *(os.environ.get(name) for name in SPEED_VARIABLES),
        *((shape,) if shape else ()),
    )
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cs336"
    name = "weights" if shape else "here"
    return folder / f"{name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.json"


def measured_once_a_day(
    file: Path, parse: Callable[[Any], Found], measure: Callable[[], Found]
) -> Found:
    """Return the measurement in a cache file, or measure and store it if the last is a day old."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        if time.time() - file.stat().st_mtime < DAY:
            return parse(read_json(file))
    if hasattr(os, "getloadavg") and (load := os.getloadavg()[0]) > 0.5:
        Log().write(f"other programs are running (load {load:.1f}), so times may be too long\n")
    found = measure()
    content = dataclasses.asdict(found) if isinstance(found, Machine) else found
    with suppress(OSError):  # without a cache, it is measured again next time
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(content) + "\n")
    return found


def this_machine(device: torch.device) -> Machine:
    """Return the measurement of this machine."""
    return measured_once_a_day(
        cache_file(device),
        lambda stored: Machine(**{**stored, "rows": [Prediction(**row) for row in stored["rows"]]}),
        lambda: measure(device),
    )


# Tables of `cs336 estimate --here`


def sampling_choice(sampling: dict[str, float]) -> str:
    """Format the fastest data type of the weights, and the times of all types."""
    best = min(sampling, key=sampling.__getitem__)
    times = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in sampling.items())
    note = "" if best == "fp32" else "; fewer bits may change the text"
    return f"{best} to sample (--weights {best}): {times} ms a token{note}"


def cells(row: Prediction) -> list[str]:
    """Format the prediction for a run as the cells of a table."""
    start, memory = [row.name, row.precision], gigabytes(row.memory)
    if row.seconds is None:
        return [*start, "too large", "", memory, ""]
    is_short = row.seconds < 10
    step = f"{digits(1000 * row.seconds)} ms" if is_short else f"{digits(row.seconds)} s"
    rate = f"{row.tokens / row.seconds:,.0f}"
    return [*start, step, rate, memory, duration(row.steps * row.seconds)]


def matmul_table(machine: Machine) -> list[str]:
    """Format the speed of GPT-2's matmuls in GFLOP/s."""
    header = ["GFLOP/s of matmuls, 1,024 tokens", "forward", "input grad", "weight grad"]
    rows = [
        [f"  {precision}  {shape}", *(f"{rate / 1e9:,.0f}" for rate in rates)]
        for precision, shapes in machine.matmuls.items()
        for shape, rates in shapes.items()
    ]
    return table([header, *rows])


def choices(machine: Machine) -> list[str]:
    """Format the fastest precision, number of threads and data type of the weights."""
    trained = next(row.precision for row in machine.rows if row.name == "gpt2-124m")
    return [
        f"precision  {trained} to train GPT-2 124M (--precision {trained})",
        f"threads    {machine.threads} of {torch.get_num_threads()} "
        f"(OMP_NUM_THREADS={machine.threads})",
        f"weights    {sampling_choice(machine.sampling)}",
    ]


def report(config: str = "") -> str:
    """Measure this machine, predict the training steps of every preset, and format the result.

    Args:
        config: JSON file with fields of `TrainConfig`, such as the config.json of a run. This run
            is predicted too.

    Raises:
        OSError: If the config can't be read.
        UserError: If the config is invalid.
    """
    device = hardware.select_device()
    own: dict[str, Any] = {config: read_json(Path(config))} if config else {}
    configs = {name: from_json(TrainConfig, content, name) for name, content in own.items()}
    machine = this_machine(device)
    rows = list(machine.rows)
    for name, chosen in configs.items():
        rows.append(predict(name, chosen, precisions_of(chosen, device), device))
    peaks = (f"{name} {peak / 1e9:,.0f} GFLOP/s" for name, peak in machine.peaks.items() if peak)
    header = ["run", "precision", "step", "tokens/s", "memory", "all steps"]
    total = hardware.memory(device)
    return "\n".join(
        [
            f"{hardware.cpu_model()}; {hardware.device_name(device)}; torch {torch.__version__}",
            f"peak       {', '.join(peaks) or 'unknown'}",
            f"memory     {gigabytes(total) if total else 'unknown'}, "
            f"read at {machine.bandwidth / 1e9:.1f} GB/s",
            "",
            *matmul_table(machine),
            "",
            *choices(machine),
            "",
            *table([header, *map(cells, rows)]),
            "",
            "All steps take this long without validation and checkpoints.",
        ]
    )
