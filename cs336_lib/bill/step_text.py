"""Format a simulated training step, or the fastest layouts of a model."""

import shlex
from dataclasses import asdict, replace
from typing import Any

from cs336_lib import accounting
from cs336_lib.bill import traffic
from cs336_lib.bill.architecture import Architecture
from cs336_lib.bill.simulate import (
    FAILURES_PER_DEVICE_HOUR,
    Cluster,
    Step,
    Work,
    best_interval,
    goodput,
    memory,
    simulate,
    sweep,
)
from cs336_lib.bill.text import digits, find_device, find_model, gigabytes, table, training_length
from cs336_lib.bill.traffic import LINKS, Layout
from cs336_lib.config import Simulate, require

# What a layout has without a flag. Without a layout, the search tries several values of each.
USUAL: dict[str, Any] = {
    "ep": 1,
    "zero": 3,
    "chunks": 1,
    "micro_batch": 1,
    "recompute": "selective",
}

WAITS = ("tensor", "expert", "context", "pipeline", "data")


def simulation(**options: Any) -> str:
    """Simulate a training step, or list the fastest layouts without `tp` and `pp`.

    Args:
        **options: Fields of `config.Simulate`.

    Raises:
        ValueError: If a value is out of range, a name is unknown, or a layout doesn't fit.

    Example:
        print(simulation(model="llama3-70b", gpus=256, tp=8, batch=512))
    """
    wanted = Simulate(**options)
    for name in ("gpus", "cp", "ep", "chunks", "micro_batch"):
        value = getattr(wanted, name)
        message = f"{name} is {value}; a number from 1 to 1000000 expected"
        require(value is None or 1 <= value <= 10**6, message)
    require(wanted.zero in (None, 0, 1, 2, 3), f"zero is {wanted.zero}; 0, 1, 2 or 3 expected")
    for name in ("save", "restart", "straggler"):
        value = getattr(wanted, name)
        low = 1 if name == "straggler" else 1e-3
        require(low <= value <= 1e6, f"{name} is {value}; {low:g} to 1000000 expected")
    for name in ("tp", "pp", "dp", "batch"):
        value = getattr(wanted, name)
        require(0 <= value <= 10**6, f"{name} is {value}; a number from 0 to 1000000 expected")
    found = find_model(wanted.model)
    for name in ("inner", "outer"):
        accounting.require_choice(name, getattr(wanted, name), LINKS)
    cluster = Cluster(find_device(wanted.hardware), LINKS[wanted.inner], LINKS[wanted.outer])
    seq = training_length(found.architecture, wanted.seq)
    batch = wanted.batch or 2 * wanted.gpus
    work = Work(found.architecture, Layout(), seq, straggler=wanted.straggler)
    if wanted.tp == wanted.pp == wanted.dp == 0:
        return sweep_table(found.title, work, cluster, wanted, batch)
    layout = layout_of(wanted, found.architecture, batch, seq)
    work = replace(work, layout=layout, recompute=(USUAL | given(wanted))["recompute"])
    return step_report(found.title, work, cluster, wanted)


def given(wanted: Simulate) -> dict[str, Any]:
    """Return the fields of `USUAL` that have a flag."""
    return {name: getattr(wanted, name) for name in USUAL if getattr(wanted, name) is not None}


def layout_of(wanted: Simulate, a: Architecture, batch: int, seq: int) -> Layout:
    """Return the layout of a simulation.

    Raises:
        ValueError: If the devices, the batch or the model can't be divided in this way. The message
            has the nearest layout that fits.
    """
    tp, pp = max(1, wanted.tp), max(1, wanted.pp)
    fields = USUAL | given(wanted)
    size, chunks = fields["micro_batch"], fields["chunks"]
    one = tp * pp * wanted.cp
    dp = wanted.dp or max(1, round(wanted.gpus / one))
    step = dp * size * (pp if chunks > 1 else 1)
    interleaved = chunks > 1 and wanted.schedule == "1f1b"
    layout = Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=wanted.cp,
        ep=fields["ep"],
        zero=fields["zero"],
        micro_batch=size,
        micro_batches=max(1, round(batch / step)) * step // dp // size,
        schedule="interleaved" if interleaved else wanted.schedule,
        chunks=chunks,
    )
    nearest = f"the nearest layout is {traffic.nearest_fit(a, layout, seq)}"
    message = f"{wanted.gpus} GPUs can't be divided by tp {tp} x pp {pp} x cp {wanted.cp} = {one}"
    require(wanted.gpus % one == 0, f"{message}; {nearest}")
    message = f"dp {dp} x tp {tp} x pp {pp} x cp {wanted.cp} = {dp * one}, not {wanted.gpus} GPUs"
    require(dp * one == wanted.gpus, f"{message}; use --dp {wanted.gpus // one} or leave it out")
    message = f"batch {batch} isn't a multiple of {step}, which {dp} replicas take at a time"
    require(batch % step == 0, f"{message}; {nearest}")
    traffic.require_fit(a, layout, seq)
    return layout


def step_report(title: str, work: Work, cluster: Cluster, wanted: Simulate) -> str:
    """Format a simulated step with its memory, traffic and goodput."""
    layout, devices = work.layout, work.layout.devices
    step = simulate(work, cluster)
    held = memory(work)
    total, there = sum(held.values()), cluster.device.memory
    kinds = ", ".join(f"{gigabytes(size)} {kind}" for kind, size in held.items() if size)
    fits = "it fits" if total <= there else f"too much; {remedy(work, there)}"
    sent = traffic.traffic(work.architecture, layout, work.seq)
    moved = ", ".join(f"{gigabytes(size)} {kind}" for kind, size in sent.items() if size)
    interval = best_interval(devices, wanted.save)
    good = goodput(devices, wanted.save, wanted.restart, interval)
    ways = f"dp {layout.dp}, tp {layout.tp}, pp {layout.pp}, cp {layout.cp}, ep {layout.ep}"
    text = f"""\
{title} on {devices:,} x {cluster.device.name}
  layout   {ways}, ZeRO-{layout.zero}, {layout.schedule}, {layout.micro_batches} micro-batches of \
{layout.micro_batch} x {work.seq:,} tokens
  step     {digits(step.seconds)} s: {seconds(step, ("matmuls", "elementwise", "update"))}
  waits    {seconds(step, WAITS) or "never"}
  speed    {step.mfu:.1%} MFU, {layout.batch * work.seq / step.seconds:,.0f} tokens/s
  memory   {kinds}
           {gigabytes(total)} of {gigabytes(there)}; {fits}
  sends    {moved or "nothing"} from each device in a step
  failures one in {accounting.duration(3600 / FAILURES_PER_DEVICE_HOUR / devices)}, and with a \
checkpoint every {accounting.duration(interval)}, {good:.0%} of the time counts"""
    if wanted.straggler > 1:
        usual = simulate(replace(work, straggler=1.0), cluster)
        text += f"\n  slow     a stage {wanted.straggler:g} times as slow makes the step "
        text += f"{step.seconds / usual.seconds:.2f} times as long"
    return text


def remedy(work: Work, there: float) -> str:
    """Name the smallest change with which a step fits into `there` bytes of each device."""
    layout, full = work.layout, replace(work, recompute="full")
    small = replace(layout, micro_batch=1, micro_batches=layout.batch // layout.dp)
    tried = {
        "--recompute selective": replace(work, recompute="selective"),
        "--recompute full": full,
        "--recompute full --micro-batch 1": replace(full, layout=small),
        "--recompute full --micro-batch 1 --zero 3": replace(full, layout=replace(small, zero=3)),
    }
    for tp in (2, 4, 8):
        if tp > layout.tp and layout.dp * layout.tp % tp == work.architecture.n_head % tp == 0:
            wider = replace(small, zero=3, tp=tp, dp=layout.dp * layout.tp // tp)
            flags = f"--recompute full --micro-batch 1 --zero 3 --tp {tp}"
            tried[flags] = replace(full, layout=wider)
    fitting = (flags for flags, way in tried.items() if sum(memory(way).values()) <= there)
    found = next(fitting, "")
    return f"it fits with {found}" if found else "use more or larger GPUs, or a shorter --seq"


def seconds(step: Step, kinds: tuple[str, ...]) -> str:
    """Format the seconds of a step that these kinds take."""
    return ", ".join(f"{digits(step.parts[kind])} s {kind}" for kind in kinds if step.parts[kind])


def details_command(wanted: Simulate, first: Work) -> str:
    """Return the command that shows the details of a layout from the table."""
    at = asdict(first.layout) | {"recompute": first.recompute}
    chosen = asdict(wanted) | {name: at[name] for name in ("tp", "pp", *USUAL)}
    usual = asdict(Simulate()) | USUAL
    words = ["cs336", "simulate"]
    for name, value in chosen.items():
        if value != usual[name]:
            words += ["--" + name.replace("_", "-"), str(value)]
    return shlex.join(words)


def fixed_fields(wanted: Simulate, work: Work) -> dict[str, Any]:
    """Return the fields of a layout that the flags leave no choice for.

    Raises:
        ValueError: If no number of stages, replicas and micro-batches can make them fit.
    """
    fixed = given(wanted)
    if wanted.cp > 1:
        fixed["cp"] = wanted.cp
        message = f"{wanted.gpus} GPUs can't be divided by cp {wanted.cp}"
        require(wanted.gpus % wanted.cp == 0, f"{message}; use another --cp or --gpus")
    if wanted.schedule != "1f1b":
        fixed["schedule"] = wanted.schedule
    # The first layout to which all of these apply.
    shape = {name: value for name, value in fixed.items() if name != "recompute"}
    least = Layout(**{"pp": 2, "dp": fixed.get("ep", 1), "micro_batches": 4, **shape})
    problem = traffic.misfit(work.architecture, least, work.seq)
    require(not problem, f"{problem}; change or leave out a flag")
    return fixed


def sweep_table(title: str, work: Work, cluster: Cluster, wanted: Simulate, batch: int) -> str:
    """Format the fastest layouts that fit into memory.

    Raises:
        ValueError: If no layout fits.
    """
    gpus, fixed = wanted.gpus, fixed_fields(wanted, work)
    found = sweep(work, cluster, gpus, batch, fixed)
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in fixed.items()]
    limits = " and ".join([f"batch {batch}", *flags])
    advice = "use more GPUs, a shorter --seq, another --batch" + (
        " or fewer flags" if flags else ""
    )
    message = f"no layout of {title} fits on {gpus} x {cluster.device.name} with {limits}"
    require(bool(found), f"{message}; {advice}")
    rows: list[tuple[str, ...]] = [
        ("tp", "pp", "dp", "ep", "chunks", "ZeRO", "micro-batch", "recompute", "step", "MFU")
    ]
    for tried, step in found[:10]:
        at = tried.layout
        cells = (at.tp, at.pp, at.dp, at.ep, at.chunks, at.zero, at.micro_batch, tried.recompute)
        rows.append((*map(str, cells), f"{digits(step.seconds)} s", f"{step.mfu:.1%}"))
    lines = "\n".join(table(rows))
    head = (
        f"{title} on {gpus:,} x {cluster.device.name}, {batch:,} sequences of {work.seq:,} tokens"
    ) + "".join(f", {name} {fixed[name]}" for name in ("cp", "schedule") if name in fixed)
    return f"""\
{head}
{lines}
{len(found)} layouts fit, and these are the fastest. tp x pp GPUs (tensor, pipeline) share a model,
dp is the number of its copies, and ep GPUs share its experts. For details of the first, run
{details_command(wanted, found[0][0])}"""
