"""Tables of `cs336 estimate` and `cs336 simulate`, with the arithmetic behind them."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from cs336_lib import accounting
from cs336_lib.accounting import Architecture
from cs336_lib.bill import simulate as steps
from cs336_lib.bill import traffic
from cs336_lib.bill.memory import peak
from cs336_lib.bill.models import SHAPE, Published, chosen
from cs336_lib.bill.network import Cluster, cluster_of
from cs336_lib.bill.simulate import SPREAD, Step, interval_of
from cs336_lib.bill.traffic import Layout, Workload
from cs336_lib.config import EstimateConfig, RunConfig, SimulateConfig, UserError
from cs336_lib.data.corpus import DATA
from cs336_lib.formatting import digits, duration, gigabytes, short, table
from cs336_lib.io import read_json
from cs336_lib.system.datasheets import DATASHEET, Device

MAX_VALUE = 1e24  # larger inputs could overflow
# MFU of 8 of 10 published steps of data/layouts.json if each source counts equally, and of
# GeForces and RTX cards that are joined by PCIe only
REACHED, OVER_PCIE = (0.29, 0.54), (0.11, 0.30)
# What a family of programs does, with its sources
STACKS: dict[str, dict[str, Any]] = read_json(DATA / "stacks.json")
Pair = tuple[float, float]
Row = tuple[str, str]


# Of both commands


def section(title: str, *rows: Row) -> str:
    """Format a title, and under it rows of a name and a text, which may have several lines."""
    indented = (f"  {name:8} " + text.replace("\n", "\n" + 11 * " ") for name, text in rows)
    return "\n".join([title, *indented])


def span(pair: Pair, show: Callable[[float], str], factor: float = 1) -> str:
    """Format both ends of a range times a factor, or one number if they agree."""
    low, high = (show(factor * end) for end in pair)
    return low if low == high else f"{low} to {high}"


def in_range(wanted: RunConfig, low: float, high: float, *names: str) -> None:
    """Raise `UserError` unless the options with these names are in a range, or `None`."""
    for name in names:
        value = getattr(wanted, name)
        if value is not None and not low <= value <= high:
            raise UserError(f"{name} is {value}; a number from {low:g} to {high:g} expected")


def device_of(wanted: RunConfig) -> Device:
    """Return the datasheet of a name such as `h100` or `rtx-4090`, with the numbers of flags.

    Raises:
        UserError: If there is no datasheet for this name, or a number is out of range.
    """
    in_range(wanted, 1, MAX_VALUE, "gpus", "tokens", "peak", "bandwidth", "memory")
    in_range(wanted, 1e-6, MAX_VALUE, "price")
    if wanted.price is not None and wanted.tokens is None:
        raise UserError(
            f"price is {wanted.price:g} and tokens is missing; give --tokens, such as 1T"
        )
    sheets = {key.replace(" ", ""): sheet for key, sheet in DATASHEET.items()}
    name = wanted.hardware.lower().replace(" ", "").replace("-", "")
    if name not in sheets:
        names = ", ".join(key.replace(" ", "-") for key in DATASHEET)
        told = f"hardware {wanted.hardware!r} is unknown; one of {names} expected"
        raise UserError(f"{told}, or one of them with your --peak, --bandwidth and --memory")
    found = sheets[name]
    if wanted.peak:
        flops = found.peak_flops | dict.fromkeys(("bf16", "fp16"), wanted.peak)
        found = replace(found, name=f"{found.name} with your numbers", peak_flops=flops)
    memory, bandwidth = wanted.memory or found.memory, wanted.bandwidth or found.bandwidth
    return replace(found, memory=memory, bandwidth=bandwidth)


def training_length(shape: Architecture, seq: int, *, extend: bool = False) -> int:
    """Return the sequence length to train at. 0 means the context, but at most 8192 tokens.

    Models with a long context are trained on shorter sequences for most of their tokens. With
    `extend`, the wanted length may exceed the context.
    """
    longest = shape.block_size
    if not 0 <= seq <= (10**9 if extend else longest):
        told = f"seq is {seq}; 1 to {longest} expected, the context of this model"
        raise UserError(f"{told}, or --extend for a longer one")
    return seq or min(longest, 8192)


def workload(shape: Architecture, layout: Layout, wanted: RunConfig, **program: Any) -> Workload:
    """Return a step of a model as the flags of both commands say, with the rest of its program."""
    seq = training_length(shape, wanted.seq, extend=wanted.extend)
    program |= {"precision": wanted.precision, "optimizer": wanted.optimizer}
    return Workload(shape, layout, seq, **program)


def rent_rows(seconds: Pair, wanted: RunConfig) -> list[Row]:
    """Format the GPU hours of a run that takes this long, and their price."""
    gpus = wanted.gpus
    hours, each = (span(seconds, plain, count / 3600) for count in (gpus, 1))
    rows = [("rent", f"{gpus:,} GPU{'s' * (gpus > 1)} x {each} h = {hours} GPU hours")]
    if wanted.price is not None:
        cost = span(seconds, lambda amount: f"${plain(amount)}", gpus * wanted.price / 3600)
        rows.append(("cost", f"{hours} GPU hours x ${wanted.price:g} = {cost}"))
    return rows


def plain(value: float) -> str:
    """Format an amount as a whole number from 100 on, and with three significant digits below."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def peak_text(work: Workload, memory: float, remedy: str) -> str:
    """Format the peak memory of a step by kind, and whether it fits."""
    kinds = peak(work)
    total = sum(kinds.values())
    told = "it fits" if total <= memory else f"too much; {remedy}"
    return f"{sizes(kinds)}\n{gigabytes(total)} of {gigabytes(memory)}; {told}"


def sizes(kinds: dict[str, float]) -> str:
    """Format the bytes of each kind that there is."""
    return ", ".join(f"{gigabytes(size)} {kind}" for kind, size in kinds.items() if size)


# cs336 estimate


def estimate(**options: Any) -> str:
    """Estimate the training time and the largest model that fits, and show the arithmetic.

    Args:
        **options: Fields of `config.EstimateConfig`.

    Raises:
        UserError: If a value is out of range or a name is unknown.

    Example:
        print(estimate(params=70e9, tokens=15e12, gpus=1024))
    """
    wanted = EstimateConfig(**options)
    device = device_of(wanted)
    check_estimate(wanted, device)
    sections = [section(f"{wanted.gpus:,} x {device.name}", ("source", device.source))]
    work, parameters, name, derivation, per_token = None, wanted.params, "", "", 0.0
    if found := chosen(wanted, wanted.seq):
        a, layout = found.architecture, Layout(dp=wanted.gpus, zero=3)
        work = workload(a, layout, wanted, recompute="full")
        name, parameters = found.title, found.parameters
        per_token = accounting.train_flops_per_token(a, work.seq, wanted.convention)
        derivation = f"{digits(per_token)} FLOPs per token"
        sections.append(model_section(found, work, wanted.convention))
    elif parameters is not None:
        name, per_token = f"{short(parameters)} parameters", accounting.six_n_d(parameters, 1)
        derivation = f"6 x {digits(parameters)} parameters"
    elif wanted.tokens is not None:
        need = "days of training need both, or a model"
        raise UserError(f"tokens is {wanted.tokens} and params is missing; {need}")
    if wanted.tokens is not None:
        rows = time_rows(derivation, per_token, wanted.tokens, wanted, device)
        sections.append(section(f"Time to train {name} on {short(wanted.tokens)} tokens", *rows))
    sections.append(memory_section(parameters, work, wanted, device.memory))
    return "\n\n".join(sections)


def check_estimate(wanted: EstimateConfig, device: Device) -> None:
    """Raise `UserError` unless the options are in range and go together."""
    in_range(wanted, 1, MAX_VALUE, "params")
    in_range(wanted, 1e-6, 1, "mfu")
    if wanted.dtype not in device.peak_flops:
        known = f"one of {', '.join(device.peak_flops)} expected"
        raise UserError(f"dtype {wanted.dtype!r} has no peak for the {device.name}; {known}")
    named = wanted.model or any(getattr(wanted, name) is not None for name in SHAPE)
    if named and wanted.params:
        raise UserError(f"params is {wanted.params} and a model is given; give one of the two")
    if not named and (wanted.seq or wanted.convention != "palm"):
        raise UserError("seq and convention need a model; name one with --model")


def model_section(found: Published, work: Workload, convention: accounting.Convention) -> str:
    """Format the parameters, FLOPs and cache of a model."""
    a, seq = found.architecture, work.seq
    experts = f", of which {short(accounting.active_parameters(a))} process a token"
    matmuls = digits(accounting.matmul_parameters(a))
    attention = digits(3 * accounting.attention_flops(a, seq, convention))
    per_token = digits(accounting.train_flops_per_token(a, seq, convention))
    one, all_of = (accounting.kv_cache_bytes(a, n) for n in (1, a.block_size))
    summed = f"6 x {matmuls} in matmuls + {attention} of attention at {seq:,} tokens"
    cache = f"{one / 1000:,.1f} kB per token in bf16, {gigabytes(all_of)}"
    return section(
        found.title,
        ("source", found.source),
        ("counts", f"{found.parameters:,} parameters{experts if a.n_expert else ''}"),
        ("FLOPs", f"{summed} = {per_token} per token ({convention})"),
        ("KV cache", f"{cache} for {a.block_size:,} tokens"),
    )


def time_rows(
    derivation: str, per_token: float, tokens: float, wanted: EstimateConfig, device: Device
) -> list[Row]:
    """Format the training time and its calculation, from the FLOPs of a token on."""
    top, flops = wanted.gpus * device.peak_flops[wanted.dtype], per_token * tokens
    joined = wanted.gpus > 1 and str(device.links.inner).startswith("pcie")
    reached = (wanted.mfu, wanted.mfu) if wanted.mfu else OVER_PCIE if joined else REACHED
    guess = "" if wanted.mfu else ", as programs reach here; --mfu sets yours"
    seconds = (flops / top / reached[1], flops / top / reached[0])
    speed = f"{wanted.gpus:,} x {digits(top / wanted.gpus)} FLOP/s (dense {wanted.dtype})"
    speeds = span(reached, digits, top)
    return [
        ("work", f"{derivation} x {digits(tokens)} tokens = {digits(flops)} FLOPs"),
        ("speed", f"{speed} x MFU {span(reached, digits)}{guess}"),
        ("time", f"{digits(flops)} / {speeds} FLOP/s = {span(seconds, duration)}"),
        *rent_rows(seconds, wanted),
    ]


def memory_section(
    parameters: float | None, work: Workload | None, wanted: EstimateConfig, memory: float
) -> str:
    """Format the largest model that fits into `memory` bytes per GPU, and whether this one does.

    The peak of a model is its least: one sequence on a GPU, and each block computed again.
    """
    gpus, per = wanted.gpus, accounting.bytes_per_parameter(wanted.optimizer, wanted.precision)
    total, each = gpus * memory, digits(per.total)
    largest = total / per.total
    parts = {"weight": per.weights, "gradient": per.gradient, "master weight": per.master}
    parts |= {"state": per.state, "copies": per.copies}
    summed = " + ".join(f"{digits(size)} {part}" for part, size in parts.items() if size)
    fits = f"{digits(total)} / {each} = {short(largest)} parameters"
    if gpus > 1:
        fits += ", sharded over all GPUs (ZeRO-3, FSDP)\n"
        fits += f"{short(largest / gpus)} parameters, if every GPU holds the whole model (DDP)"
    rows = [
        ("bytes", f"{summed} = {each} per parameter"),
        ("total", f"{gpus:,} x {gigabytes(memory)} = {gigabytes(total)}"),
        ("largest", fits),
    ]
    if parameters is not None:
        need = parameters * per.total
        told = f"{digits(parameters)} x {each} = {gigabytes(need)}"
        if need > total:
            told += f"; too much, at least {math.ceil(need / memory):,} such GPUs are needed"
            work = None
        elif gpus > 1:
            told += f", {gigabytes(need / gpus)} on each GPU"
        rows.append(("needed", told))
    if work is not None:
        how = f"with ZeRO-3, {work.seq:,} tokens on each GPU and full recomputation"
        text = peak_text(work, memory, "`cs336 simulate` lists layouts that fit")
        rows.append(("peak", f"{how}:\n{text}"))
    title = f"Memory to train with {wanted.optimizer} in {wanted.precision}, without activations"
    return section(title, *rows)


# cs336 simulate

# What a search tries several values of, unless a flag fixes it
SEARCHED = ("ep", "zero", "chunks", "micro_batch", "recompute")
SAVE, RESTART = 60.0, 600.0  # seconds of a checkpoint, and from a failure to the next step
WAITS = ("tensor", "expert", "context", "pipeline", "data")


def simulation(**options: Any) -> str:
    """Simulate a training step, or list the fastest layouts without `tp` or `pp`.

    Args:
        **options: Fields of `config.SimulateConfig`.

    Raises:
        UserError: If a value is out of range, a name is unknown, or a layout doesn't fit.

    Example:
        print(simulation(model="llama3-70b", gpus=256, tp=8, pp=1, batch=512))
    """
    wanted = SimulateConfig(**options)
    in_range(wanted, 1, 10**6, "gpus", "cp", "ep", "chunks", "micro_batch")
    in_range(wanted, 0, 10**6, "tp", "pp", "batch")
    accounting.require_choice("stack", wanted.stack or "torchtitan", STACKS)
    device = device_of(wanted)
    found = chosen(wanted, wanted.seq)
    if found is None:
        raise UserError("model is ''; the name of one, a file or a folder expected")
    cluster = cluster_of(device, wanted.inner, wanted.outer, wanted.gpus)
    stack = STACKS[wanted.stack or "torchtitan"]
    flags = {name: getattr(wanted, name) for name in SEARCHED}
    flags = {name: value for name, value in flags.items() if value is not None}
    fixed = {name: stack[name] for name in ("zero", "recompute") if wanted.stack} | flags
    program = {name: stack[name] for name in ("fused_attention", "sequence", "overlap")}
    program["recompute"] = fixed.get("recompute", stack["recompute"])
    work = workload(found.architecture, Layout(), wanted, **program)
    batch = wanted.batch or 2 * wanted.gpus
    if not (wanted.tp and wanted.pp):
        return sweep_section(found.title, work, cluster, wanted, batch, fixed)
    fields = {"ep": 1, "zero": stack["zero"], "chunks": 1, "micro_batch": 1} | fixed
    fields.pop("recompute", None)
    try:
        work = replace(work, layout=layout_of(wanted, batch, fields))
    except UserError as error:
        hint = "leave out --tp or --pp to list the layouts that fit"
        raise UserError(f"{error}; {hint}") from None
    return step_section(found.title, work, cluster, wanted)


def layout_of(wanted: SimulateConfig, batch: int, fields: dict[str, int]) -> Layout:
    """Return the layout of a simulation, with these further fields.

    Raises:
        UserError: If the devices or the batch can't be divided in this way.
    """
    one = wanted.tp * wanted.pp * wanted.cp
    dp = max(1, wanted.gpus // one)
    if dp * one != wanted.gpus:
        ways = f"dp {dp} x tp {wanted.tp} x pp {wanted.pp} x cp {wanted.cp}"
        raise UserError(f"{ways} = {dp * one}, not {wanted.gpus} GPUs")
    step = dp * fields["micro_batch"] * (wanted.pp if fields["chunks"] > 1 else 1)
    if batch % step:
        told = f"batch {batch} isn't a multiple of {step}"
        raise UserError(f"{told}, which {dp} replicas take at a time")
    split = {"tp": wanted.tp, "pp": wanted.pp, "cp": wanted.cp}
    return Layout(dp=dp, micro_batches=batch // dp // fields["micro_batch"], **split, **fields)


def step_section(title: str, work: Workload, cluster: Cluster, wanted: SimulateConfig) -> str:
    """Format a simulated step with its memory, traffic and goodput, and the run of its tokens."""
    layout, devices, step = work.layout, work.layout.devices, steps.simulate(work, cluster)
    moved, over = sizes(traffic.traffic(work)), cluster.inner.name
    if devices > cluster.machine:
        over += f", and {cluster.outer.name} between machines of {cluster.machine:,}"
    interval = steps.best_interval(devices, SAVE)
    good = steps.goodput(devices, SAVE, RESTART, interval)
    speed = layout.batch * work.seq / step.seconds
    expected = span(interval_of(step.seconds), lambda end: digits(float(f"{end:.2g}")))
    trust = "as for 9 of 10 published steps; good to compare layouts"
    if devices > 1 and "PCIe" in cluster.inner.name:
        reached = span(OVER_PCIE, digits)
        trust = f"if PCIe hides; no such step was fitted, and they reach {reached} MFU"
    batches = f"{layout.micro_batches} micro-batches of {layout.micro_batch} x {work.seq:,} tokens"
    again = f"{work.recompute} recomputation" if work.recompute != "none" else "no recomputation"
    remedy = "try --recompute full, --micro-batch 1, --zero 3 or a larger --tp"
    every = f"with a checkpoint every {duration(interval)}, {good:.0%} of the time counts"
    computes = seconds(step, "matmuls", "elementwise", "update")
    text = section(
        f"{title} on {devices:,} x {cluster.device.name}",
        ("layout", f"{layout}, ZeRO-{layout.zero}, {batches}, {again}"),
        ("step", f"{digits(step.seconds)} s: {computes}"),
        ("expect", f"{expected} s, {trust}"),
        ("waits", seconds(step, *WAITS) or "never"),
        ("speed", f"{step.mfu:.1%} MFU (as in PaLM: all keys), {speed:,.0f} tokens/s"),
        ("memory", peak_text(work, cluster.device.memory, remedy)),
        ("sends", f"{moved} from each device in a step" if moved else "nothing"),
        ("links", over),
        ("failures", f"one in {duration(steps.between_failures(devices))}, and {every}"),
    )
    if wanted.tokens is None:
        return text
    whole = wanted.tokens / speed / good
    ends = interval_of(whole)
    return f"{text}\n" + section(
        f"Time to train on {short(wanted.tokens)} tokens, with these failures",
        ("time", f"{duration(whole)} expected, {span(ends, duration)}"),
        *rent_rows(ends, wanted),
    )


def seconds(step: Step, *kinds: str) -> str:
    """Format the seconds of a step that these kinds take."""
    return ", ".join(f"{digits(step.parts[kind])} s {kind}" for kind in kinds if step.parts[kind])


def sweep_section(
    title: str,
    work: Workload,
    cluster: Cluster,
    wanted: SimulateConfig,
    batch: int,
    fixed: dict[str, Any],
) -> str:
    """Format the fastest layouts that fit into memory, and the details of the first.

    Raises:
        UserError: If no layout fits.
    """
    split = {name: getattr(wanted, name) for name in ("tp", "pp") if getattr(wanted, name)}
    fixed = split | ({"cp": wanted.cp} if wanted.cp > 1 else {}) | fixed
    head = f"{title} on {wanted.gpus:,} x {cluster.device.name}, {batch:,} sequences of "
    head += f"{work.seq:,} tokens"
    found = steps.sweep(work, cluster, wanted.gpus, batch, fixed)
    if not found:
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in fixed.items())
        remedy = "leave out flags, or use more --gpus, or a multiple of them as --batch"
        raise UserError(f"no layout fits {head}{' with ' * bool(flags)}{flags}; {remedy}")
    ways = ("tp", "pp", "dp", "ep", "chunks", "zero", "micro_batch")
    rows = [tuple(way.replace("_", "-") for way in (*ways, "recompute", "step", "MFU"))]
    for tried, step in found[:10]:
        at = asdict(tried.layout)
        cells = (*(str(at[way]) for way in ways), tried.recompute)
        rows.append((*cells, f"{digits(step.seconds)} s", f"{step.mfu:.1%}"))
    lines = "\n".join(table(rows))
    return f"""\
{head}; MFU as in PaLM; expect {SPREAD[0]:g} to {SPREAD[1]:g} times as long
{lines}
{len(found)} layouts fit, and these are the fastest. tp x pp GPUs (tensor, pipeline) share a model,
dp is the number of its copies, and ep GPUs share its experts. The first in detail:
{step_section(title, found[0][0], cluster, wanted)}"""
