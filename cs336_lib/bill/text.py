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
from cs336_lib.bill.simulate import SPREAD, Step, Workload, interval_of
from cs336_lib.bill.traffic import Layout
from cs336_lib.config import EstimateConfig, RunConfig, SimulateConfig, UserError
from cs336_lib.data.corpus import DATA
from cs336_lib.formatting import digits, duration, gigabytes, short, table
from cs336_lib.io import read_json
from cs336_lib.system.datasheets import DATASHEET, Device

MAX_VALUE = 1e24  # larger inputs could overflow
CONVENTIONS = {
    "palm": "attention to all keys, as MFU counts in PaLM; --convention causal omits masked ones",
    "causal": "attention to the keys that the causal mask lets through; PaLM's MFU counts all",
}
# MFU of 8 of 10 published steps of data/layouts.json if each source counts equally, and of
# GeForces and RTX cards that are joined by PCIe only
REACHED, OVER_PCIE = (0.29, 0.54), (0.11, 0.30)
# What a family of programs does, with its sources
STACKS: dict[str, dict[str, Any]] = read_json(DATA / "stacks.json")
Pair = tuple[float, float]


def span(pair: Pair, show: Callable[[float], str]) -> str:
    """Format both ends of a range, or one number if they agree."""
    low, high = map(show, pair)
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

    Models with a long context are trained on shorter sequences for most of their tokens.

    Args:
        shape: The model.
        seq: The wanted length in tokens.
        extend: Whether it may exceed the model's context.
    """
    longest = shape.block_size
    if not 0 <= seq <= (10**9 if extend else longest):
        told = f"seq is {seq}; 1 to {longest} expected, the context of this model"
        raise UserError(f"{told}, or --extend for a longer one")
    return seq or min(longest, 8192)


def rent_lines(seconds: Pair, wanted: RunConfig) -> str:
    """Format the GPU hours of a run that takes this long, and their price."""
    gpus = wanted.gpus
    hours = span((gpus * seconds[0] / 3600, gpus * seconds[1] / 3600), in_hours)
    each = span((seconds[0] / 3600, seconds[1] / 3600), in_hours)
    text = f"  rent   {gpus:,} GPU{'s' * (gpus > 1)} x {each} h = {hours} GPU hours\n"
    if wanted.price is not None:
        price = gpus * wanted.price / 3600
        cost = span((seconds[0] * price, seconds[1] * price), dollars)
        text += f"  cost   {hours} GPU hours x ${wanted.price:g} = {cost}\n"
    return text


def in_hours(value: float) -> str:
    """Format hours as a whole number from 100 on, and with three significant digits below."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def dollars(value: float) -> str:
    """Format an amount of dollars."""
    return "$" + (short(value) if value >= 1e6 else f"{value:,.{0 if value >= 100 else 2}f}")


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
    text = f"{wanted.gpus:,} x {device.name}\n  source   {device.source}\n\n"
    if found := chosen(wanted, wanted.seq):
        seq = training_length(found.architecture, wanted.seq, extend=wanted.extend)
        wanted = replace(wanted, seq=seq)
        text += model_table(found, wanted)
    if wanted.tokens is not None:
        text += time_table(found, wanted, wanted.tokens, device)
    return text + memory_table(found, wanted, device.memory)


def check_estimate(wanted: EstimateConfig, device: Device) -> None:
    """Raise `UserError` unless the options are in range and go together."""
    in_range(wanted, 1, MAX_VALUE, "params")
    in_range(wanted, 1e-6, 1, "mfu")
    if wanted.dtype not in device.peak_flops:
        known = f"one of {', '.join(device.peak_flops)} expected"
        raise UserError(f"dtype {wanted.dtype!r} has no peak for the {device.name}; {known}")
    accounting.require_choice("convention", wanted.convention, ("palm", "causal"))
    described = any(getattr(wanted, name) is not None for name in SHAPE)
    if (wanted.model or described) and wanted.params:
        model = f"model is {wanted.model}" if wanted.model else "a shape is given"
        raise UserError(f"params is {wanted.params} and {model}; give one of the two")
    if not (wanted.model or described) and (wanted.seq or wanted.convention != "palm"):
        raise UserError("seq and convention need a model; name one with --model")


def model_table(found: Published, wanted: EstimateConfig) -> str:
    """Format the parameters, FLOPs and cache of a model."""
    a, seq = found.architecture, wanted.seq
    experts = f", of which {short(accounting.active_parameters(a))} process a token"
    matmuls = digits(accounting.matmul_parameters(a))
    attention = digits(3 * accounting.attention_flops(a, seq, wanted.convention))
    per_token = digits(accounting.train_flops_per_token(a, seq, wanted.convention))
    one, all_of = (accounting.kv_cache_bytes(a, n) for n in (1, a.block_size))
    return f"""\
{found.title}
  source   {found.source}
  counts   {found.parameters:,} parameters{experts if a.n_expert else ""}
  FLOPs    6 x {matmuls} in matmuls + {attention} of attention at {seq:,} tokens = {per_token} \
per token
           {CONVENTIONS[wanted.convention]}
  KV cache {one / 1000:,.1f} kB per token in bf16, {gigabytes(all_of)} for {a.block_size:,} tokens

"""


def time_table(
    found: Published | None, wanted: EstimateConfig, tokens: float, device: Device
) -> str:
    """Format the training time and its calculation.

    Raises:
        UserError: If neither a model nor its number of parameters is given.
    """
    if found is not None:
        a, name = found.architecture, found.title
        per_token = accounting.train_flops_per_token(a, wanted.seq, wanted.convention)
        derivation = f"{digits(per_token)} FLOPs per token"
    elif (n := wanted.params) is not None:
        name, per_token = f"{short(n)} parameters", accounting.six_n_d(n, 1)
        derivation = f"6 x {digits(n)} parameters"
    else:
        need = "days of training need both, or a model"
        raise UserError(f"tokens is {wanted.tokens} and params is missing; {need}")
    top, flops = wanted.gpus * device.peak_flops[wanted.dtype], per_token * tokens
    joined = wanted.gpus > 1 and str(device.links.inner).startswith("pcie")
    reached = (wanted.mfu, wanted.mfu) if wanted.mfu else OVER_PCIE if joined else REACHED
    guess = "" if wanted.mfu else ", as programs reach here; --mfu sets yours"
    speeds, low_high = (top * reached[0], top * reached[1]), (top * reached[1], top * reached[0])
    seconds = (flops / low_high[0], flops / low_high[1])
    return f"""\
Time to train {name} on {short(tokens)} tokens
  work   {derivation} x {digits(tokens)} tokens = {digits(flops)} FLOPs
  speed  {wanted.gpus:,} x {digits(top / wanted.gpus)} FLOP/s (dense {wanted.dtype}) x MFU \
{span(reached, digits)}{guess}
  time   {digits(flops)} / {span(speeds, digits)} FLOP/s = {span(seconds, duration)}
{rent_lines(seconds, wanted)}
"""


def memory_table(found: Published | None, wanted: EstimateConfig, memory: float) -> str:
    """Format the largest model that fits into `memory` bytes per GPU.

    If a model or its number of parameters is given, also show whether that model fits.
    """
    gpus, optimizer, precision = wanted.gpus, wanted.optimizer, wanted.precision
    per = accounting.bytes_per_parameter(optimizer, precision)
    total = gpus * memory
    largest = accounting.largest_model(total, optimizer, precision)
    copies = f" + {digits(per.copies)} copies" if per.copies else ""
    text = f"""\
Memory to train with {optimizer} in {precision}, without activations
  bytes    {per.weights:g} weight + {per.gradient:g} gradient + {per.master:g} master \
weight + {digits(per.state)} state{copies} = {digits(per.total)} per parameter
  total    {gpus:,} x {gigabytes(memory)} = {gigabytes(total)}
  largest  {digits(total)} / {digits(per.total)} = {short(largest)} parameters"""
    if gpus > 1:
        text += f""", sharded over all GPUs (ZeRO-3, FSDP)
           {short(largest / gpus)} parameters, if every GPU holds the whole model (DDP)"""
    parameters = found.parameters if found else wanted.params
    if parameters is not None:
        need = parameters * per.total
        text += f"\n  needed   {digits(parameters)} x {digits(per.total)} = {gigabytes(need)}"
        if need > total:
            return f"{text}; too much, at least {math.ceil(need / memory):,} such GPUs are needed"
        text += f", {gigabytes(need / gpus)} on each GPU" if gpus > 1 else ""
        text += peak_lines(found.architecture, wanted, memory) if found else "; it fits"
    return text


def peak_lines(a: Architecture, wanted: EstimateConfig, memory: float) -> str:
    """Format the least memory of a training step: one sequence, and each block computed again."""
    how = {"precision": wanted.precision, "optimizer": wanted.optimizer}
    kinds = peak(a, Layout(dp=wanted.gpus, zero=3), wanted.seq, recompute="full", **how)
    total = sum(kinds.values())
    fits = "it fits" if total <= memory else "too much; `cs336 simulate` lists layouts that fit"
    return f"""
  peak     with ZeRO-3, {wanted.seq:,} tokens on each GPU and full recomputation:
           {" + ".join(sizes(kinds))}
           = {gigabytes(total)} of {gigabytes(memory)}; {fits}"""


def sizes(kinds: dict[str, float]) -> list[str]:
    """Format the bytes of each kind that there is."""
    return [f"{gigabytes(size)} {kind}" for kind, size in kinds.items() if size]


# cs336 simulate

# What a layout has without a flag. Without a layout, the search tries several values of each.
USUAL: dict[str, Any] = {
    "ep": 1,
    "zero": 3,
    "chunks": 1,
    "micro_batch": 1,
    "recompute": "selective",
}

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
    wanted = filled(SimulateConfig(**options))
    in_range(wanted, 1, 10**6, "gpus", "cp", "ep", "chunks", "micro_batch")
    in_range(wanted, 0, 10**6, "tp", "pp", "dp", "batch")
    device = device_of(wanted)
    found = chosen(wanted, wanted.seq)
    if found is None:
        raise UserError("model is ''; the name of one, a file or a folder expected")
    cluster = cluster_of(device, wanted.inner, wanted.outer, wanted.gpus)
    a, fields = found.architecture, given(wanted)
    seq = training_length(a, wanted.seq, extend=wanted.extend)
    batch = wanted.batch or 2 * wanted.gpus
    work = Workload(
        a,
        Layout(),
        seq,
        recompute=(USUAL | fields)["recompute"],
        fused_attention=wanted.attention != "eager",
        sequence=wanted.sequence is not False,
        overlap=wanted.overlap is not False,
        async_tensor=bool(wanted.async_tp),
    )
    if wanted.tp and wanted.pp:
        work = replace(work, layout=layout_of(wanted, a, batch, seq))
        return step_table(found.title, work, cluster, wanted)
    return sweep_table(found.title, work, cluster, wanted, batch)


def filled(wanted: SimulateConfig) -> SimulateConfig:
    """Return the flags of a simulation, with the settings of its stack where no flag is given.

    Raises:
        UserError: If the stack or the kind of attention is unknown.
    """
    accounting.require_choice("attention", wanted.attention or "fused", ("fused", "eager"))
    if wanted.stack is None:
        return wanted
    accounting.require_choice("stack", wanted.stack, STACKS)
    usual = {name: value for name, value in STACKS[wanted.stack].items() if name != "source"}
    missing = {name: value for name, value in usual.items() if getattr(wanted, name) is None}
    return replace(wanted, **missing, stack=None)


def given(wanted: SimulateConfig) -> dict[str, Any]:
    """Return the fields of `USUAL` that have a flag."""
    return {name: getattr(wanted, name) for name in USUAL if getattr(wanted, name) is not None}


def layout_of(wanted: SimulateConfig, a: Architecture, batch: int, seq: int) -> Layout:
    """Return the layout of a simulation.

    Raises:
        UserError: If the devices, the batch or the model can't be divided in this way.
    """
    fields = USUAL | given(wanted)
    del fields["recompute"]
    one = wanted.tp * wanted.pp * wanted.cp
    dp = wanted.dp or max(1, wanted.gpus // one)
    step = dp * fields["micro_batch"] * (wanted.pp if fields["chunks"] > 1 else 1)
    layout = Layout(
        dp=dp,
        tp=wanted.tp,
        pp=wanted.pp,
        cp=wanted.cp,
        micro_batches=batch // dp // fields["micro_batch"],
        **fields,
    )
    problem = traffic.misfit(a, layout, seq)
    if dp * one != wanted.gpus:
        ways = f"dp {dp} x tp {layout.tp} x pp {layout.pp} x cp {layout.cp}"
        problem = f"{ways} = {dp * one}, not {wanted.gpus} GPUs"
    elif batch % step:
        problem = f"batch {batch} isn't a multiple of {step}, which {dp} replicas take at a time"
    if problem:
        raise UserError(f"{problem}; leave out --tp or --pp to list the layouts that fit")
    return layout


def step_table(title: str, work: Workload, cluster: Cluster, wanted: SimulateConfig) -> str:
    """Format a simulated step with its memory, traffic and goodput."""
    layout, devices = work.layout, work.layout.devices
    step, held = steps.simulate(work, cluster), steps.memory(work)
    total, there = sum(held.values()), cluster.device.memory
    remedy = "too much; try --recompute full, --micro-batch 1, --zero 3 or a larger --tp"
    moved = ", ".join(sizes(traffic.traffic(work.architecture, layout, work.seq)))
    over = cluster.inner.name
    if devices > cluster.machine:
        over += f", and {cluster.outer.name} between machines of {cluster.machine:,}"
    interval = steps.best_interval(devices, SAVE)
    good = steps.goodput(devices, SAVE, RESTART, interval)
    speed = layout.batch * work.seq / step.seconds
    expected = span(interval_of(step.seconds), lambda end: digits(float(f"{end:.2g}")))
    ways = f"dp {layout.dp}, tp {layout.tp}, pp {layout.pp}, cp {layout.cp}, ep {layout.ep}"
    trust = "as for 9 of 10 published steps; good to compare layouts"
    if devices > 1 and "PCIe" in cluster.inner.name:
        trust = (
            f"if PCIe hides; no such step was fitted, and they reach {span(OVER_PCIE, digits)} MFU"
        )
    text = f"""\
{title} on {devices:,} x {cluster.device.name}
  layout   {ways}, ZeRO-{layout.zero}, {layout.chunks} chunk{"s" * (layout.chunks > 1)}, \
{layout.micro_batches} micro-batches of {layout.micro_batch} x {work.seq:,} tokens
  step     {digits(step.seconds)} s: {seconds(step, ("matmuls", "elementwise", "update"))}
  expect   {expected} s, {trust}
  program  {program(work)}
  waits    {seconds(step, WAITS) or "never"}
  speed    {step.mfu:.1%} MFU (as in PaLM: all keys), {speed:,.0f} tokens/s
  memory   {", ".join(sizes(held))}
           {gigabytes(total)} of {gigabytes(there)}; {"it fits" if total <= there else remedy}
  sends    {f"{moved} from each device in a step" if moved else "nothing"}
  links    {over}
  failures one in {duration(steps.between_failures(devices))}, and with a checkpoint every \
{duration(interval)}, {good:.0%} of the time counts"""
    if wanted.tokens is None:
        return text
    low, high = interval_of(wanted.tokens / speed / good)
    return f"""{text}
Time to train on {short(wanted.tokens)} tokens, with these failures
  time   {duration(wanted.tokens / speed / good)} expected, {span((low, high), duration)}
{rent_lines((low, high), wanted)}""".rstrip()


def program(work: Workload) -> str:
    """Format what the training program does."""
    return ", ".join(
        [
            "fused attention" if work.fused_attention else "attention that stores its scores",
            f"{work.recompute} recomputation" if work.recompute != "none" else "no recomputation",
            *(["norms split by tp" if work.sequence else "whole norms"] * (work.layout.tp > 1)),
            *["async TP"] * work.async_tensor,
            *["no overlap of data parallelism"] * (not work.overlap),
        ]
    )


def seconds(step: Step, kinds: tuple[str, ...]) -> str:
    """Format the seconds of a step that these kinds take."""
    return ", ".join(f"{digits(step.parts[kind])} s {kind}" for kind in kinds if step.parts[kind])


def sweep_table(
    title: str, work: Workload, cluster: Cluster, wanted: SimulateConfig, batch: int
) -> str:
    """Format the fastest layouts that fit into memory, and the details of the first.

    Raises:
        UserError: If no layout fits.
    """
    fixed = {name: getattr(wanted, name) for name in ("tp", "pp", "dp") if getattr(wanted, name)}
    fixed |= given(wanted) | ({"cp": wanted.cp} if wanted.cp > 1 else {})
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
{step_table(title, found[0][0], cluster, wanted)}"""
