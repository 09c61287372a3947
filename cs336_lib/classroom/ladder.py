"""The ladder of notebook 09: one training step of GPT-2, made faster rung by rung, each measured.

`Ladder(shape_for(device), device).climb()` measures the next rung. Every rung starts from the same
weights and trains on the same tokens, so that its losses can be held against those of the first.
"""

import gc
import json
import math
import statistics
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from cs336_lib import accounting, hardware
from cs336_lib.classroom.speed_step import (
    SMALL,
    TINY,
    Precision,
    Settings,
    Shape,
    Step,
    matmul_precision,
    shape_for,
)
from cs336_lib.config import require

__all__ = [
    "A6000_LOSS",
    "A6000_MS",
    "RUNGS",
    "SMALL",
    "TINY",
    "Ladder",
    "Row",
    "Rung",
    "Settings",
    "Shape",
    "Step",
    "has_tf32",
    "measure",
    "read_report",
    "read_reports",
    "report",
    "same_loss",
    "shape_for",
]

GIB = 2**30
# How far losses may be apart, relatively, at the precision of the less precise of two rungs.
TOLERANCE: dict[Precision, float] = {"fp32": 1e-4, "tf32": 1e-3, "bf16": 1e-2}


@dataclass(frozen=True)
class Rung:
    """A step of the ladder: its name, what it changes in words, and in settings."""

    name: str
    what: str
    change: dict[str, Any]


RUNGS = (
    Rung("fp32", "attention written out, true vocabulary, all in fp32", {}),
    Rung("TF32", "matmuls round their inputs to 10 bits of fraction", {"precision": "tf32"}),
    Rung("bf16", "autocast: matmuls read and write bf16", {"precision": "bf16"}),
    Rung("compile", "element-wise operations fused into few kernels", {"compiled": True}),
    Rung("flash attention", "the T x T scores never go to memory", {"attention": "flash"}),
    Rung("padded vocabulary", "a multiple of 64 output columns", {"padded": True}),
    Rung("fused AdamW", "the whole update in one kernel", {"fused": True}),
    Rung("best of all", "the library's own parts, as `cs336 train` runs them", {"library": True}),
)

# Measuring.


@dataclass(frozen=True)
class Row:
    """What a rung gave; None where it could not be had, and then `note` says why."""

    name: str
    ms: float | None = None
    tokens_per_sec: float | None = None
    mfu: float | None = None
    memory_gib: float | None = None
    loss: float | None = None
    note: str = ""
    first_ms: float | None = None
    best_ms: float | None = None
    losses: tuple[float, ...] = field(default=(), repr=False)
    settings: Settings = field(default=Settings(), repr=False)


def measure(
    name: str,
    settings: Settings,
    shape: Shape,
    device: torch.device,
    *,
    note: str = "",
    repeats: int = 5,
    warmup: int = 2,
) -> Row:
    """Build the step, warm it up, take the median of `repeats` steps, then one for peak memory.

    MFU is against the peak of the precision that the matmuls run in; `loss` is that of the last
    timed step, `losses` are those of all; `first_ms` is the first step, with any compiling in it,
    and `best_ms` the fastest: how far the median is above it shows how busy the machine was.
    """
    step = Step(settings, shape, device)
    losses, times = [], []
    for _ in range(warmup + repeats):
        hardware.synchronize(device)
        start = time.perf_counter()
        loss = step()
        hardware.synchronize(device)
        times.append(time.perf_counter() - start)
        losses.append(loss.item())
    seconds = statistics.median(times[warmup:])
    memory = peak_bytes(step)
    del step, loss
    free(device)
    return Row(
        name=name,
        ms=1e3 * seconds,
        tokens_per_sec=shape.tokens / seconds,
        mfu=accounting.mfu(shape.flops / seconds, peak_flops(settings.precision, device)),
        memory_gib=None if memory is None else memory / GIB,
        loss=losses[-1],
        note=note,
        first_ms=1e3 * times[0],
        best_ms=1e3 * min(times[warmup:]),
        losses=tuple(losses),
        settings=settings,
    )


def free(device: torch.device) -> None:
    """Give back what the last rung held, so that it does not count as the next one's."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def peak_flops(precision: Precision, device: torch.device) -> float | None:
    """The device's peak for matmuls in this precision; None where we know none."""
    if precision == "bf16" and not hardware.has_bf16(device):
        return None
    if device.type == "cpu" and precision != "bf16":  # TF32 runs on the same circuits there
        sizes = (512, 768, 1024)  # the best of several: other programs disturb each of them
        return max(hardware.measured_matmul_flops(device, torch.float32, n) for n in sizes)
    with matmul_precision(precision):
        return hardware.peak_flops(device, torch.bfloat16 if precision == "bf16" else None)[0]


def peak_bytes(step: Step) -> int | None:
    """The most memory in use at any moment of a step; None where the device does not tell.

    A CUDA allocator keeps the figure itself. For a CPU, the profiler logs every allocation: the
    highest running total comes on top of what lives between steps.
    """
    if step.device.type == "cuda":
        hardware.synchronize(step.device)
        torch.cuda.reset_peak_memory_stats(step.device)
        step()
        hardware.synchronize(step.device)
        return torch.cuda.max_memory_allocated(step.device)
    if step.device.type != "cpu":
        return None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    now = highest = 0
    for event in trace_events(watched):
        if event["name"] == "[memory]":
            now += event["args"]["Bytes"]
            highest = max(highest, now)
    return resident_bytes(step) + highest


def resident_bytes(step: Step) -> int:
    """Weights and optimizer state: what is there between two steps."""
    state = [v for kept in step.optimizer.state.values() for v in kept.values()]
    return sum(t.nbytes for t in (*step.model.parameters(), *state) if isinstance(t, Tensor))


def trace_events(watched: profile) -> list[dict[str, Any]]:
    """The events of a profile as its trace file has them, in the order of their time stamps."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return sorted(events, key=lambda event: event.get("ts", 0))


def same_loss(row: Row, first: Row) -> bool:
    """Whether a rung has the first one's loss at every step, up to its precision's rounding."""
    if not row.losses or len(row.losses) != len(first.losses):
        return False
    allowed = TOLERANCE[row.settings.precision]
    pairs = zip(row.losses, first.losses, strict=True)
    return all(math.isclose(a, b, rel_tol=allowed) for a, b in pairs)


# The ladder of the notes: ms per step on one RTX A6000, 16 x 1024 tokens, and the loss at step 49.
# The first four had the padded vocabulary already; the fifth alone has 50257 columns.
A6000_MS = {
    "fp32": 807.30,
    "TF32": 539.33,
    "bf16": 414.78,
    "compile": 226.40,
    "flash attention": 164.09,
    "padded vocabulary": 151.45,
}
A6000_LOSS = {
    "fp32": 6.01735782623291,
    "TF32": 6.017364978790283,
    "bf16": 6.018825531005859,
    "compile": 6.019706726074219,
    "flash attention": 6.056464672088623,
    "padded vocabulary": 6.0193634033203125,
}

# What a device can do.


def has_tf32(device: torch.device) -> bool:
    """Whether matmuls of fp32 tensors can run as TF32: NVIDIA GPUs from Ampere (8.0) on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


class Ladder:
    """Climbs RUNGS one at a time; each rung keeps what the ones below it changed.

    A rung that this device cannot use is stepped over: later rungs go on without its change. So are
    compiled kernels on a CPU, after they have been measured, since each further variant would
    compile for as long as hundreds of steps take.
    """

    def __init__(self, shape: Shape, device: torch.device, *, repeats: int = 11):
        self.shape, self.device, self.repeats = shape, device, repeats
        self.rows: list[Row] = []
        self.settings = Settings()

    @property
    def next(self) -> Rung:
        """The rung that `climb` will measure.

        Raises:
            ValueError: all have been climbed.
        """
        require(len(self.rows) < len(RUNGS), f"all {len(RUNGS)} rungs have been climbed")
        return RUNGS[len(self.rows)]

    def climb(self) -> Row:
        """Measure the next rung; it must have the loss of the first.

        Raises:
            ValueError: the loss is another one, or all rungs have been climbed.
        """
        rung = self.next
        settings = replace(self.settings, **rung.change)
        skip, note = self.judge(rung.name)
        if skip:
            row = Row(rung.name, note=note, settings=settings)
        else:
            row = measure(
                rung.name, settings, self.shape, self.device, note=note, repeats=self.repeats
            )
            first = self.rows[0] if self.rows else row
            require(
                same_loss(row, first),
                f"{rung.name} has losses {row.losses}, where {first.name} has {first.losses}",
            )
            if rung.name != "compile" or self.device.type != "cpu":
                self.settings = settings
        self.rows.append(row)
        return row

    def judge(self, name: str) -> tuple[bool, str]:
        """Whether to skip this rung on this device, and what its row has to say."""
        if name == "TF32" and not has_tf32(self.device):
            return False, "no effect on this device"
        if name == "bf16" and not hardware.has_bf16(self.device):
            return (
                True,
                f"left out: {slower_in_bf16(self.device):.1f}x fp32's time (tiny model)",
            )
        if name == "compile":
            why = hardware.why_not_compiled(self.device)
            not_kept = "not kept above" if self.device.type == "cpu" else ""
            return bool(why), f"left out: {why}" if why else not_kept
        return False, ""


def slower_in_bf16(device: torch.device) -> float:
    """How many times as long a step of the TINY model takes in bf16 as in fp32."""
    fp32, bf16 = (
        measure(precision, Settings(precision=precision), TINY, device)
        for precision in ("fp32", "bf16")
    )
    require(same_loss(bf16, fp32), f"bf16 has losses {bf16.losses}, fp32 has {fp32.losses}")
    return bf16.ms / fp32.ms


# Results that benchmarks write and the notebook shows: benchmarks/results/gpu_ladder_*.json.

ROW_KEYS = ("name", "ms", "tokens_per_sec", "mfu", "memory_gib", "loss")


def report(ladder: Ladder) -> dict[str, Any]:
    """What a climbed ladder leaves, ready for json.dump.

    {"device": str, "torch": str, "shape": str, "rungs": [{"name", "ms", "tokens_per_sec", "mfu",
    "memory_gib", "loss"}]}; null where a rung was skipped or a peak is unknown.
    """
    return {
        "device": hardware.device_name(ladder.device),
        "torch": torch.__version__,
        "shape": str(ladder.shape),
        "rungs": [{key: getattr(row, key) for key in ROW_KEYS} for row in ladder.rows],
    }


def read_report(path: Path) -> tuple[str, list[Row]]:
    """The device and the rows of a report.

    Raises:
        ValueError: the file is not of the form that `report` gives.
    """
    try:
        content = json.loads(path.read_text())
        rows = [Row(**{key: rung[key] for key in ROW_KEYS}) for rung in content["rungs"]]
        return content["device"], rows
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no ladder report ({type(error).__name__}: {error})") from None


def read_reports(folder: Path) -> dict[str, list[Row]]:
    """Device -> rows for every gpu_ladder_*.json in the folder; empty where there are none."""
    return dict(read_report(path) for path in sorted(folder.glob("gpu_ladder_*.json")))
