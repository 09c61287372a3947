"""The ladder of notebook 09, which makes one training step of GPT-2 faster rung by rung.

`Ladder(shape_for(device), device, parts).climb()` measures the next rung. All rungs start from the
same weights and train on the same tokens, so their losses can be compared.
"""

import gc
import json
import math
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from cs336_course.pages.gpt2_speed.ladder_step import (
    TINY,
    Parts,
    Settings,
    Shape,
    Step,
    matmul_precision,
)
from cs336_lib import accounting
from cs336_lib.system import hardware

GIB = 2**30
# Allowed relative difference of the losses, by the precision of the rung.
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-3, "bf16": 1e-2}


@dataclass(frozen=True)
class Rung:
    """A step of the ladder, with its name, a description, and the settings it changes."""

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
    Rung("our library", "the library's model and optimizer", {"library": True}),
)

# Measurement


@dataclass(frozen=True)
class Row:
    """The measurements of a rung, where a missing value is `None` and `note` gives the reason."""

    name: str
    ms: float | None = None
    tokens_per_sec: float | None = None
    mfu: float | None = None
    memory_gib: float | None = None
    loss: float | None = None
    note: str = ""
    losses: tuple[float, ...] = field(default=(), repr=False)
    settings: Settings = field(default=Settings(), repr=False)


def measure(
    name: str,
    settings: Settings,
    shape: Shape,
    device: torch.device,
    parts: Parts,
    *,
    note: str = "",
    repeats: int = 5,
    warmup: int = 2,
) -> Row:
    """Build the step, warm it up, and measure the fastest of `repeats` steps and the memory.

    Other programs only add time, so the fastest step says most about the rung. MFU refers to the
    peak of the precision that the matmuls run in. `losses` holds the loss of every step and `loss`
    the last one.
    """
    step = Step(settings, shape, device, parts)
    losses, times = [], []
    for _ in range(warmup + repeats):
        hardware.synchronize(device)
        start = time.perf_counter()
        loss = step()
        hardware.synchronize(device)
        times.append(time.perf_counter() - start)
        losses.append(loss.item())
    seconds = min(times[warmup:])
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
        losses=tuple(losses),
        settings=settings,
    )


def free(device: torch.device) -> None:
    """Free the last rung's memory, so that it does not count towards the next rung."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def peak_flops(precision: str, device: torch.device) -> float | None:
    """Return the device's peak FLOP/s for matmuls in this precision, or `None` if unknown."""
    if precision == "bf16" and not hardware.has_bf16(device):
        return None
    if device.type == "cpu" and precision == "tf32" and has_tf32(device):
        return None
    if device.type == "cpu" and precision != "bf16":  # most CPUs run TF32 on the fp32 units
        sizes = (512, 768, 1024)  # take the best of several, because other programs disturb them
        return max(hardware.measured_matmul_flops(device, torch.float32, n) for n in sizes)
    with matmul_precision(precision):
        return hardware.peak_flops(device, torch.bfloat16 if precision == "bf16" else None)[0]


def peak_bytes(step: Step) -> int | None:
    """Return the peak memory of a step in bytes, or `None` if the device does not report it.

    CUDA's allocator keeps the figure itself. On a CPU, the profiler logs every allocation, and we
    add the highest running total to the memory that persists between steps.
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
    """Return the bytes of weights and optimizer state, which persist between steps."""
    state = [v for kept in step.optimizer.state.values() for v in kept.values()]
    return sum(t.nbytes for t in (*step.model.parameters(), *state) if isinstance(t, Tensor))


def trace_events(watched: profile) -> list[dict[str, Any]]:
    """Return the events of a profile's trace file, sorted by time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return sorted(events, key=lambda event: event.get("ts", 0))


def same_loss(row: Row, first: Row) -> bool:
    """Return whether every loss of a rung equals that of the first rung within the tolerance."""
    if not row.losses or len(row.losses) != len(first.losses):
        return False
    allowed = TOLERANCE[row.settings.precision]
    pairs = zip(row.losses, first.losses, strict=True)
    return all(math.isclose(a, b, rel_tol=allowed) for a, b in pairs)


# The ladder of the lecture notes, measured on one RTX A6000 with 16 x 1024 tokens: milliseconds per
# step and the loss at step 49. Only the fifth rung has 50257 columns; the first four are padded.
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

# Device capabilities


def has_tf32(device: torch.device) -> bool:
    """Return whether fp32 matmuls can run as TF32, which shows in a product's last bits.

    They can on NVIDIA GPUs from Ampere on, and on the few CPUs with AMX-FP16 instructions.
    """
    a, b = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0)).to(device)
    products = []
    for precision in ("fp32", "tf32"):
        with matmul_precision(precision):
            products.append(a @ b)
    return not torch.equal(*products)


class Ladder:
    """Measures RUNGS one by one, where each rung keeps the changes of the rungs below it.

    A rung that this device cannot use is skipped, and later rungs run without its change. On a CPU,
    `compile` is measured but not kept, because compiling each further variant would take as long as
    hundreds of steps.
    """

    def __init__(self, shape: Shape, device: torch.device, parts: Parts, *, repeats: int = 15):
        self.shape, self.device, self.parts, self.repeats = shape, device, parts, repeats
        self.rows: list[Row] = []
        self.settings = Settings()

    @property
    def next(self) -> Rung:
        """The rung that `climb` will measure.

        Raises:
            ValueError: All rungs have been climbed.
        """
        if len(self.rows) == len(RUNGS):
            raise ValueError(f"all {len(RUNGS)} rungs have been climbed")
        return RUNGS[len(self.rows)]

    def climb(self) -> Row:
        """Measure the next rung and check that it has the losses of the first.

        Raises:
            ValueError: The losses differ, or all rungs have been climbed.
        """
        rung = self.next
        settings = replace(self.settings, **rung.change)
        skip, note = self.judge(rung.name)
        if skip:
            row = Row(rung.name, note=note, settings=settings)
        else:
            row = measure(
                rung.name,
                settings,
                self.shape,
                self.device,
                self.parts,
                note=note,
                repeats=self.repeats,
            )
            first = self.rows[0] if self.rows else row
            if not same_loss(row, first):
                raise ValueError(
                    f"{rung.name} has losses {row.losses}, but {first.name} has {first.losses}"
                )
            if rung.name != "compile" or self.device.type != "cpu":
                self.settings = settings
        self.rows.append(row)
        return row

    def judge(self, name: str) -> tuple[bool, str]:
        """Return whether to skip a rung on this device, and the note for its row."""
        if name == "TF32" and not has_tf32(self.device):
            return False, "no effect on this device"
        if name == "bf16" and not hardware.has_bf16(self.device):
            return True, f"left out: {slower_in_bf16(self.device, self.parts):.1f}x fp32's time"
        if name == "compile":
            why = hardware.why_not_compiled(self.device)
            not_kept = "not kept above" if self.device.type == "cpu" else ""
            return bool(why), f"left out: {why}" if why else not_kept
        return False, ""


def slower_in_bf16(device: torch.device, parts: Parts) -> float:
    """Return the time of a step of the TINY model in bf16 divided by its time in fp32."""
    fp32, bf16 = (
        measure(precision, Settings(precision=precision), TINY, device, parts)
        for precision in ("fp32", "bf16")
    )
    if not same_loss(bf16, fp32):
        raise ValueError(f"bf16 has losses {bf16.losses}, but fp32 has {fp32.losses}")
    return bf16.ms / fp32.ms


def report(ladder: Ladder) -> dict[str, Any]:
    """Return the results of a ladder in a form ready for json.dump.

    The form is {"device": str, "torch": str, "shape": str, "rungs": [{"name", "ms",
    "tokens_per_sec", "mfu", "memory_gib", "loss"}]}. A skipped rung or an unknown peak gives null.
    """
    keys = ("name", "ms", "tokens_per_sec", "mfu", "memory_gib", "loss")
    return {
        "device": hardware.device_name(ladder.device),
        "torch": torch.__version__,
        "shape": str(ladder.shape),
        "rungs": [{key: getattr(row, key) for key in keys} for row in ladder.rows],
    }
