"""Profile one training step operator by operator with torch.profiler."""

from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from cs336_course.pages.gpt2_speed.ladder_step import Step, matmul_precision
from cs336_lib.system import hardware

KINDS = ("matmul", "attention", "loss", "norm, GELU, other", "optimizer")
PHASES = ("forward", "backward", "update")
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
