"""One training step of GPT-2 in a variant for each rung of the ladder, measured and profiled.

`Settings` choose how a step is computed, `Shape` how much it computes, and `Parts` hold the model
that the learner wrote. The step itself is `Step(settings, shape, device, parts)`. All rungs start
from the same weights and train on the same tokens, so their losses can be compared.
"""

import gc
import json
import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from cs336_lib import accounting, optim
from cs336_lib.bill import memory
from cs336_lib.config import GPTConfig, TrainConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.tokenizer import GPT2Tokenizer
from cs336_lib.model import GPT
from cs336_lib.system import cpu, hardware

SEED = 1337
LEARNING_RATE = 3e-4
FAST = 2e12  # FLOP/s in fp32 with which 14 TFLOP take seconds, not minutes
# Allowed relative difference of the losses, by the precision of the rung: one rounding of what the
# matmuls read. In fp32, whose roundings add up, the losses were seen to differ by 2e-7.
TOLERANCE = {"fp32": 1e-4, "tf32": 2**-11, "bf16": 2**-8}

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


@dataclass(frozen=True)
class Shape:
    """The size of a step, given by a GPT-2 and `batch` sequences of its full block size."""

    config: GPTConfig
    batch: int

    @property
    def tokens(self) -> int:
        """The number of tokens in a step."""
        return self.batch * self.config.block_size

    @property
    def flops(self) -> int:
        """The FLOPs of a step, forward and backward."""
        return self.tokens * accounting.train_flops_per_token(self.config)

    def __str__(self) -> str:
        c = self.config
        return (
            f"{self.batch} x {c.block_size} tokens, {c.n_layer} layer{'s' * (c.n_layer > 1)}, "
            f"{c.n_head} head{'s' * (c.n_head > 1)}, "
            f"{c.n_embd} wide, {c.vocab_size} ids"
        )


# 2001 is an odd number like 50257. It leaves the 2000 commonest tokens and one id for all others.
SMALL = Shape(GPTConfig(block_size=512, vocab_size=2001, n_layer=1, n_head=2, n_embd=128), batch=2)
# For arithmetic without hardware support on the device, such as bf16 on most CPUs.
TINY = Shape(GPTConfig(block_size=64, vocab_size=257, n_layer=1, n_head=1, n_embd=64), batch=2)


def shape_for(device: torch.device) -> Shape:
    """Return GPT-2 124M with 16 x 1024 tokens for a fast CUDA GPU, and SMALL for other devices.

    The batch is halved until it fits into the GPU's memory.
    """
    if device.type != "cuda" or hardware.measured_matmul_flops(device, torch.float32) < FAST:
        return SMALL
    free = torch.cuda.mem_get_info(device)[0]
    shape = Shape(GPTConfig(), batch=16)
    while shape.batch > 1 and 1.5 * needed_bytes(shape) > free:
        shape = replace(shape, batch=shape.batch // 2)
    return shape


def needed_bytes(shape: Shape) -> float:
    """Return the predicted memory of the first rung, which needs the most.

    Temporary buffers of the backward pass come on top.
    """
    kinds = memory.of_gpt(shape.config, shape.batch, fused_attention=False)
    return sum(kinds.values()) - kinds["temporary"]


@dataclass(frozen=True)
class Settings:
    """The choices that change how a step is computed but not its result.

    Attributes:
        precision: "fp32", "tf32" or "bf16".
        compiled: Compile the model.
        attention: "written out" or "flash".
        padded: Pad the vocabulary to a multiple of 64.
        fused: Use the fused AdamW.
        library: Use the library's own `GPT` and `make_optimizer`.
    """

    precision: str = "fp32"
    compiled: bool = False
    attention: str = "written out"
    padded: bool = False
    fused: bool = False
    library: bool = False


@dataclass(frozen=True)
class Parts:
    """A learner's GPT-2, as modules that `assemble.module` returns.

    Attributes:
        before: The parts up to page 09, with attention written out.
        after: The same with the `attention` and the `make_optimizer` of page 10.
    """

    before: ModuleType
    after: ModuleType


def build_model(parts: Parts, config: GPTConfig, settings: Settings) -> nn.Module:
    """Build a GPT from SEED, with the attention and vocabulary of `settings`."""
    module = parts.after if settings.attention == "flash" else parts.before
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = module.GPT(config)
    if settings.library:
        weights = model.state_dict()
        model = cpu.accelerate(GPT(config))
        model.load_state_dict(weights)
    if not settings.padded:  # cut the rows beyond vocab_size off
        weight = nn.Parameter(model.lm_head.weight[: config.vocab_size].detach().clone())
        model.transformer.wte.weight = model.lm_head.weight = weight
    return model


def build_optimizer(parts: Parts, model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return AdamW, from `make_optimizer` if it is to be fused, else with PyTorch's defaults."""
    config = TrainConfig(learning_rate=LEARNING_RATE)
    if settings.library:
        return optim.make_optimizer(model, config)
    if settings.fused:
        return parts.after.make_optimizer(model, config)
    groups = parts.before.parameter_groups(model, config.weight_decay)
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95))


def training_batch(
    shape: Shape, device: torch.device
) -> tuple[Int[Tensor, "batch seq"], Int[Tensor, "batch seq"]]:
    """Return the first tokens of the plays as inputs, and the tokens shifted by one as targets.

    If the model has a smaller vocabulary, the commonest tokens get its ids and all others share
    the last id.
    """
    text, vocab = shakespeare(), shape.config.vocab_size
    encoded = GPT2Tokenizer().encode(text[: 8 * (shape.tokens + 1)])[: shape.tokens + 1]
    ids = torch.from_numpy(encoded.astype(np.int64))
    if ids.max() >= vocab:
        by_count = torch.bincount(ids).argsort(descending=True, stable=True)
        rank = torch.empty_like(by_count)
        rank[by_count] = torch.arange(len(by_count))
        ids = rank[ids].clamp(max=vocab - 1)
    x, y = (part.view(shape.batch, -1).to(device) for part in (ids[:-1], ids[1:]))
    return x, y


class Step:
    """One training step that always uses the same batch.

    Calling it runs a whole step and returns the loss, which stays on the device. A profiler can
    also call the forward pass, the backward pass and the update one by one.
    """

    def __init__(self, settings: Settings, shape: Shape, device: torch.device, parts: Parts):
        self.settings, self.shape, self.device = settings, shape, device
        self.model = build_model(parts, shape.config, settings).to(device)
        self.optimizer = build_optimizer(parts, self.model, settings)
        self.x, self.y = training_batch(shape, device)
        self._forward = torch.compile(self.model) if settings.compiled else self.model

    def __call__(self) -> Float[Tensor, ""]:
        with matmul_precision(self.settings.precision):
            loss = self.forward()
            loss.backward()
            self.update()
        return loss.detach()

    def forward(self) -> Float[Tensor, ""]:
        """Compute the loss, under autocast if the precision is bf16."""
        low = self.settings.precision == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=low):
            return self._forward(self.x, self.y)

    def update(self) -> None:
        """Update the weights and clear the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Run fp32 matmuls in TF32 within the block if `precision` is tf32, else in full fp32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# The ladder

RUNGS = {  # what each changes
    "fp32": {},  # attention written out, true vocabulary
    "TF32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "compile": {"compiled": True},
    "flash attention": {"attention": "flash"},
    "padded vocabulary": {"padded": True},
    "fused AdamW": {"fused": True},
    "our library": {"library": True},
}


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
        memory_gib=None if memory is None else memory / 2**30,
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

    def climb(self) -> Row:
        """Measure the next rung and check that it has the losses of the first.

        Raises:
            ValueError: The losses differ, or all rungs have been climbed.
        """
        if len(self.rows) == len(RUNGS):
            raise ValueError(f"all {len(RUNGS)} rungs have been climbed")
        name, change = list(RUNGS.items())[len(self.rows)]
        settings = replace(self.settings, **change)
        skip, note = self.judge(name)
        if skip:
            row = Row(name, note=note, settings=settings)
        else:
            here = self.shape, self.device, self.parts
            row = measure(name, settings, *here, note=note, repeats=self.repeats)
            first = self.rows[0] if self.rows else row
            if not same_loss(row, first):
                raise ValueError(
                    f"{name} has losses {row.losses}, but {first.name} has {first.losses}"
                )
            if name != "compile" or self.device.type != "cpu":
                self.settings = settings
        self.rows.append(row)
        return row

    def judge(self, name: str) -> tuple[bool, str]:
        """Return whether to skip a rung on this device, and the note for its row."""
        if name == "TF32" and not has_tf32(self.device):
            return False, "no effect on this device"
        if name == "bf16" and not hardware.has_bf16(self.device):
            return True, "left out: no instructions for bf16"
        if name == "compile":
            why = hardware.why_not_compiled(self.device)
            not_kept = "not kept above" if self.device.type == "cpu" else ""
            return bool(why), f"left out: {why}" if why else not_kept
        return False, ""


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


# Profiles

KINDS = ("matmul", "attention", "loss", "norm, GELU, other", "optimizer")
# These operators return a new view of memory, or call another operator that does the work.
IDLE = frozenset(
    "view t mT transpose permute expand as_strided select slice unbind reshape _unsafe_view detach "
    "empty empty_like empty_strided resolve_conj result_type linear matmul layer_norm softmax "
    "log_softmax embedding arange to _to_copy clone contiguous item _local_scalar_dense "
    "_reshape_alias broadcast_to lift_fresh cross_entropy_loss resize_ dropout ones".split()
)


@dataclass(frozen=True)
class Span:
    """One operator call in a profiled step, with its kind and its time in milliseconds.

    `inputs` gives the shapes of its tensors, for example "1024x128, 128x384".
    """

    op: str
    kind: str
    phase: str
    start: float
    ms: float
    inputs: str = ""


def kind_of(op: str, phase: str, shapes: list[list[int]]) -> str:
    """Classify an operator as one of KINDS, by its name, its phase and the shapes of its inputs."""
    name = op.removeprefix("aten::")
    if phase == "update":
        return "optimizer"
    if "log_softmax" in name or "nll_loss" in name:
        return "loss"
    on_scores = any(len(s) == 4 and s[-1] == s[-2] for s in shapes)  # (batch, head, T, T)
    if "softmax" in name or "attention" in name or name in ("bmm", "baddbmm") or on_scores:
        return "attention"
    if name in ("mm", "addmm", "_addmm_activation"):
        return "matmul"
    return "norm, GELU, other"


def profile_step(step: Step, *, warmup: int = 2, repeats: int = 3) -> list[Span]:
    """Profile the fastest of some steps, because other programs only add time."""
    for _ in range(warmup):
        step()
    profiles = [profile_once(step) for _ in range(repeats)]
    return min(profiles, key=lambda spans: sum(span.ms for span in spans))


def profile_once(step: Step) -> list[Span]:
    """Profile one step and return every operator with its own time, without that of its callees.

    On a CUDA GPU this is the time of its kernels, laid end to end in the order of launch, so idle
    gaps do not show. On other devices, and where CUPTI may not trace kernels, it is the CPU time at
    which the operator really ran.
    """
    wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    activities = wanted & supported_activities()  # CUDA is missing without CUPTI
    with (
        matmul_precision(step.settings.precision),
        profile(activities=activities, record_shapes=True) as watched,
    ):
        with record_function("phase: forward"):
            loss = step.forward()
            hardware.synchronize(step.device)
        with record_function("phase: backward"):
            loss.backward()
            hardware.synchronize(step.device)
        with record_function("phase: update"):
            step.update()
            hardware.synchronize(step.device)
    events = [e for e in watched.events() if e.device_type == torch.autograd.DeviceType.CPU]
    on_gpu = any(e.self_device_time_total > 0 for e in events)
    ranges = {e.name.removeprefix("phase: "): e.time_range for e in events if "phase: " in e.name}
    spans, clock = [], 0.0
    for event in sorted(events, key=lambda e: e.time_range.start):
        begin = event.time_range.start
        phase = next((p for p, r in ranges.items() if r.start <= begin <= r.end), None)
        own = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if phase is None or own <= 0 or not event.name.startswith(("aten::", "triton")):
            continue
        start = clock if on_gpu else begin - ranges["forward"].start
        clock += own
        shapes = event.input_shapes or []
        kind, op = kind_of(event.name, phase, shapes), event.name.removeprefix("aten::")
        inputs = ", ".join("x".join(map(str, s)) for s in shapes if len(s) > 0)
        spans.append(Span(op, kind, phase, start / 1e3, own / 1e3, inputs))
    return spans


def workers(spans: list[Span]) -> list[Span]:
    """Return the operators that do work of their own."""
    return [span for span in spans if span.op not in IDLE]


def ms_by(spans: list[Span], key: str) -> dict[str, float]:
    """Add up milliseconds by "kind", "op" or "phase", and sort them from longest to shortest."""
    totals: dict[str, float] = {}
    for span in spans:
        name = getattr(span, key)
        totals[name] = totals.get(name, 0.0) + span.ms
    return dict(sorted(totals.items(), key=lambda item: -item[1]))
