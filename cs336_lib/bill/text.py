"""Tables of `cs336 estimate` and `cs336 simulate`, with the arithmetic behind them."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from cs336_lib import accounting
from cs336_lib.accounting import Architecture
from cs336_lib.bill import stacks, traffic
from cs336_lib.bill.memory import peak
from cs336_lib.bill.models import SHAPE, Published, chosen
from cs336_lib.bill.network import Cluster, cluster_of
from cs336_lib.bill.simulate import (
    FAILURES_PER_DEVICE_HOUR,
    SPREAD,
    Step,
    Workload,
    best_interval,
    goodput,
    interval_of,
    memory,
    simulate,
    sweep,
)
from cs336_lib.bill.traffic import Layout, schedule_of
from cs336_lib.config import EstimateConfig, SimulateConfig, UserError
from cs336_lib.formatting import digits, duration, gigabytes, short, table
from cs336_lib.system.datasheets import DATASHEET, Device

MAX_VALUE = 1e24  # larger inputs could overflow
MIN_MFU = 1e-6
CONVENTIONS = {
    "palm": "attention to all keys, as MFU counts in PaLM; --convention causal omits masked ones",
    "causal": "attention to the keys that the causal mask lets through; PaLM's MFU counts all",
}


def find_device(name: str) -> Device:
    """Return the datasheet of a device name such as `h100`, `H100` or `rtx-4090`.

    Raises:
        UserError: If there is no datasheet for this name.
    """
    sheets = {key.replace(" ", ""): sheet for key, sheet in DATASHEET.items()}
    wanted = name.lower().replace(" ", "").replace("-", "")
    if wanted not in sheets:
        names = ", ".join(key.replace(" ", "-") for key in DATASHEET)
        raise UserError(f"hardware {name!r} is unknown; one of {names} expected")
    return sheets[wanted]


def training_length(shape: Architecture, seq: int) -> int:
    """Return the sequence length to train at. 0 means the context, but at most 8192 tokens.

    Models with a long context are trained on shorter sequences for most of their tokens.
    """
    if not 0 <= seq <= shape.block_size:
        longest = shape.block_size
        raise UserError(f"seq is {seq}; 1 to {longest} expected, the context of this model")
    return seq or min(shape.block_size, 8192)


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
    device = find_device(wanted.hardware)
    check_estimate(wanted, device)
    found = chosen(wanted, wanted.seq)
    text = f"{wanted.gpus:,} x {device.name}\n  source   {device.source}\n\n"
    if found is not None:
        text += model_table(found, wanted)
    if wanted.tokens is not None:
        text += time_table(found, wanted, wanted.tokens, device)
    return text + memory_table(found, wanted, wanted.memory or device.memory)


def check_estimate(wanted: EstimateConfig, device: Device) -> None:
    """Raise `UserError` unless the options are in range and go together."""
    for name in ("params", "tokens", "gpus", "memory"):
        value = getattr(wanted, name)
        if value is not None and not 1 <= value <= MAX_VALUE:
            raise UserError(f"{name} is {value}; a number from 1 to {MAX_VALUE:g} expected")
    if wanted.price is not None and not 0 < wanted.price <= MAX_VALUE:
        price = wanted.price
        raise UserError(f"price is {price}; a number above 0 and up to {MAX_VALUE:g} expected")
    if not MIN_MFU <= wanted.mfu <= 1:
        raise UserError(f"mfu is {wanted.mfu}; {MIN_MFU} to 1 expected")
    if wanted.dtype not in device.peak_flops:
        known = ", ".join(device.peak_flops)
        raise UserError(
            f"dtype {wanted.dtype!r} has no peak for the {device.name}; one of {known} expected"
        )
    accounting.require_choice("convention", wanted.convention, ("palm", "causal"))
    described = any(getattr(wanted, name) is not None for name in SHAPE)
    if (wanted.model or described) and wanted.params:
        model = f"model is {wanted.model}" if wanted.model else "a shape is given"
        raise UserError(f"params is {wanted.params} and {model}; give one of the two")
    if not wanted.model and not described:
        for name, default in (("seq", 0), ("convention", "palm")):
            value = getattr(wanted, name)
            if value != default:
                raise UserError(f"{name} is {value}, and it needs a model; name one with --model")


def model_table(found: Published, wanted: EstimateConfig) -> str:
    """Format the parameters, FLOPs and cache of a model."""
    a = found.architecture
    seq = training_length(a, wanted.seq)
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


def training_work(found: Published | None, wanted: EstimateConfig) -> tuple[str, float, str]:
    """Return what is trained, its FLOPs per token, and how they come about.

    Raises:
        UserError: If neither a model nor its number of parameters is given.
    """
    if found is not None:
        seq = training_length(found.architecture, wanted.seq)
        per_token = accounting.train_flops_per_token(found.architecture, seq, wanted.convention)
        return found.title, per_token, f"{digits(per_token)} FLOPs per token"
    if (n := wanted.params) is None:
        need = "days of training need both, or a model"
        raise UserError(f"tokens is {wanted.tokens} and params is missing; {need}")
    return f"{short(n)} parameters", accounting.six_n_d(n, 1), f"6 x {digits(n)} parameters"


def time_table(
    found: Published | None, wanted: EstimateConfig, tokens: float, device: Device
) -> str:
    """Format the training time and its calculation."""
    gpus, mfu, peak = wanted.gpus, wanted.mfu, device.peak_flops[wanted.dtype]
    name, per_token, derivation = training_work(found, wanted)
    flops = per_token * tokens
    seconds = accounting.training_seconds(flops, gpus, peak, mfu)
    speed = f"{gpus:,} x {digits(peak)} FLOP/s (dense {wanted.dtype}) x MFU {mfu:g}"
    sizes = {"day": accounting.SECONDS_PER_DAY, "hour": 3600, "minute": 60}
    unit = next((unit for unit, size in sizes.items() if seconds >= size), "minute")
    hours = gpus * seconds / 3600
    text = f"""\
Time to train {name} on {short(tokens)} tokens
  work   {derivation} x {digits(tokens)} tokens = {digits(flops)} FLOPs
  speed  {speed} = {digits(gpus * peak * mfu)} FLOP/s
  time   {digits(flops)} / {digits(gpus * peak * mfu)} = {digits(seconds)} s
         {digits(seconds)} s / {sizes[unit]:,} s per {unit} = {seconds / sizes[unit]:,.1f} {unit}s
  rent   {gpus:,} GPU{"s" if gpus > 1 else ""} x {in_hours(seconds / 3600)} h = \
{in_hours(hours)} GPU hours
"""
    if wanted.price is not None:
        cost = hours * wanted.price
        dollars = short(cost) if cost >= 1e6 else f"{cost:,.{0 if cost >= 100 else 2}f}"
        text += f"  cost   {in_hours(hours)} GPU hours x ${wanted.price:g} = ${dollars}\n"
    return text + "\n"


def in_hours(value: float) -> str:
    """Format hours as a whole number from 100 on, and with three significant digits below."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


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
    if optimizer == "adafactor":
        text += "\n           Adafactor's row and column of state for each matrix count as 0"
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
    seq = training_length(a, wanted.seq)
    kinds = peak(
        a,
        Layout(dp=wanted.gpus, zero=3),
        seq,
        recompute="full",
        precision=wanted.precision,
        optimizer=wanted.optimizer,
    )
    parts = " + ".join(f"{gigabytes(size)} {kind}" for kind, size in kinds.items() if size)
    total = sum(kinds.values())
    fits = "it fits" if total <= memory else "too much; `cs336 simulate` lists layouts that fit"
    return f"""
  peak     with ZeRO-3, {seq:,} tokens on each GPU and full recomputation:
           {parts}
           = {gigabytes(total)} of {gigabytes(memory)}; {fits}"""


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
    wanted = stacks.filled(SimulateConfig(**options))
    check_simulate(wanted)
    found = chosen(wanted, wanted.seq)
    if found is None:
        raise UserError("model is ''; the name of one, a file or a folder expected")
    device = find_device(wanted.hardware)
    cluster = cluster_of(device, wanted.inner, wanted.outer, wanted.gpus)
    seq = training_length(found.architecture, wanted.seq)
    batch = wanted.batch or 2 * wanted.gpus
    how: dict[str, Any] = stacks.settings(wanted)
    work = Workload(found.architecture, Layout(), seq, **how)
    if not (wanted.tp and wanted.pp):
        return sweep_table(found.title, work, cluster, wanted, batch)
    layout = layout_of(wanted, found.architecture, batch, seq)
    work = replace(work, layout=layout, recompute=(USUAL | given(wanted))["recompute"])
    return step_table(found.title, work, cluster)


def check_simulate(wanted: SimulateConfig) -> None:
    """Raise `UserError` unless every option is in range."""
    sizes = dict.fromkeys(("gpus", "cp", "ep", "chunks", "micro_batch"), 1)
    for name, low in (sizes | dict.fromkeys(("tp", "pp", "dp", "batch"), 0)).items():
        value = getattr(wanted, name)
        if value is not None and not low <= value <= 10**6:
            raise UserError(f"{name} is {value}; a number from {low} to 1000000 expected")


def given(wanted: SimulateConfig) -> dict[str, Any]:
    """Return the fields of `USUAL` that have a flag."""
    return {name: getattr(wanted, name) for name in USUAL if getattr(wanted, name) is not None}


def layout_of(wanted: SimulateConfig, a: Architecture, batch: int, seq: int) -> Layout:
    """Return the layout of a simulation.

    Raises:
        UserError: If the devices, the batch or the model can't be divided in this way.
    """
    gpus, fields = wanted.gpus, USUAL | given(wanted)
    one = wanted.tp * wanted.pp * wanted.cp
    dp = wanted.dp or max(1, gpus // one)
    chunks, size = fields["chunks"], fields["micro_batch"]
    step = dp * size * (wanted.pp if chunks > 1 else 1)
    layout = Layout(
        dp=dp,
        tp=wanted.tp,
        pp=wanted.pp,
        cp=wanted.cp,
        ep=fields["ep"],
        zero=fields["zero"],
        micro_batch=size,
        micro_batches=batch // dp // size,
        schedule=schedule_of(wanted.schedule, chunks),
        chunks=chunks,
    )
    problem = traffic.misfit(a, layout, seq)
    if dp * one != gpus:
        ways = f"dp {dp} x tp {layout.tp} x pp {layout.pp} x cp {layout.cp}"
        problem = f"{ways} = {dp * one}, not {gpus} GPUs"
    elif batch % step:
        problem = f"batch {batch} isn't a multiple of {step}, which {dp} replicas take at a time"
    if problem:
        raise UserError(f"{problem}; leave out --tp or --pp to list the layouts that fit")
    return layout


def written(flags: Mapping[str, Any]) -> str:
    """Write flags as on the command line."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in flags.items())


def step_table(title: str, work: Workload, cluster: Cluster) -> str:
    """Format a simulated step with its memory, traffic and goodput."""
    layout, devices = work.layout, work.layout.devices
    step = simulate(work, cluster)
    held = memory(work)
    total, there = sum(held.values()), cluster.device.memory
    kinds = ", ".join(f"{gigabytes(size)} {kind}" for kind, size in held.items() if size)
    fits = (
        "it fits"
        if total <= there
        else "too much; try --recompute full, --micro-batch 1, --zero 3 or a larger --tp"
    )
    sent = traffic.traffic(work.architecture, layout, work.seq)
    moved = ", ".join(f"{gigabytes(size)} {kind}" for kind, size in sent.items() if size)
    over = cluster.inner.name
    if devices > cluster.machine:
        over += f", and {cluster.outer.name} between machines of {cluster.machine:,}"
    interval = best_interval(devices, SAVE)
    good = goodput(devices, SAVE, RESTART, interval)
    low, high = (digits(float(f"{limit:.2g}")) for limit in interval_of(step.seconds))
    speed = layout.batch * work.seq / step.seconds
    ways = f"dp {layout.dp}, tp {layout.tp}, pp {layout.pp}, cp {layout.cp}, ep {layout.ep}"
    return f"""\
{title} on {devices:,} x {cluster.device.name}
  layout   {ways}, ZeRO-{layout.zero}, {layout.schedule}, {layout.micro_batches} micro-batches of \
{layout.micro_batch} x {work.seq:,} tokens
  step     {digits(step.seconds)} s: {seconds(step, ("matmuls", "elementwise", "update"))}
  expect   {low} to {high} s, as in 8 of 10 papers whose steps weren't fitted
  program  {program(work)}
  waits    {seconds(step, WAITS) or "never"}
  speed    {step.mfu:.1%} MFU (as in PaLM: all keys), {speed:,.0f} tokens/s
  memory   {kinds}
           {gigabytes(total)} of {gigabytes(there)}; {fits}
  sends    {f"{moved} from each device in a step" if moved else "nothing"}
  links    {over}
  failures one in {duration(3600 / FAILURES_PER_DEVICE_HOUR / devices)}, and with a \
checkpoint every {duration(interval)}, {good:.0%} of the time counts"""


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


def details_command(wanted: SimulateConfig, first: Workload) -> str:
    """Return the command that shows the details of a layout from the table."""
    at = asdict(first.layout) | {"recompute": first.recompute}
    chosen = asdict(wanted) | {name: at[name] for name in ("tp", "pp", *USUAL)}
    usual = asdict(SimulateConfig()) | USUAL
    words = ["cs336", "simulate"]
    for name, value in chosen.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool) and value != usual[name]:
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value != usual[name]:
            words += [f"--{flag}", str(value)]
    return shlex.join(words)


def fixed_fields(wanted: SimulateConfig) -> dict[str, Any]:
    """Return the fields of a layout that the flags leave no choice for."""
    fixed = {name: getattr(wanted, name) for name in ("tp", "pp", "dp") if getattr(wanted, name)}
    fixed |= given(wanted)
    if wanted.cp > 1:
        fixed["cp"] = wanted.cp
    if wanted.schedule != "1f1b":
        fixed["schedule"] = wanted.schedule
    return fixed


def sweep_table(
    title: str, work: Workload, cluster: Cluster, wanted: SimulateConfig, batch: int
) -> str:
    """Format the fastest layouts that fit into memory.

    Raises:
        UserError: If no layout fits.
    """
    gpus, fixed = wanted.gpus, fixed_fields(wanted)
    head = (
        f"{title} on {gpus:,} x {cluster.device.name}, {batch:,} sequences of {work.seq:,} tokens"
    )
    found = sweep(work, cluster, gpus, batch, fixed)
    if not found:
        flags = f" with {written(fixed)}" if fixed else ""
        remedy = "leave out flags, or use more --gpus, or a multiple of them as --batch"
        raise UserError(f"no layout fits {head}{flags}; {remedy}")
    rows: list[tuple[str, ...]] = [
        ("tp", "pp", "dp", "ep", "chunks", "ZeRO", "micro-batch", "recompute", "step", "MFU")
    ]
    for tried, step in found[:10]:
        at = tried.layout
        cells = (at.tp, at.pp, at.dp, at.ep, at.chunks, at.zero, at.micro_batch, tried.recompute)
        rows.append((*map(str, cells), f"{digits(step.seconds)} s", f"{step.mfu:.1%}"))
    lines = "\n".join(table(rows))
    head += "".join(f", {name} {fixed[name]}" for name in ("cp", "schedule") if name in fixed)
    return f"""\
{head}; MFU as in PaLM; expect {SPREAD[0]:g} to {SPREAD[1]:g} times as long
{lines}
{len(found)} layouts fit, and these are the fastest. tp x pp GPUs (tensor, pipeline) share a model,
dp is the number of its copies, and ep GPUs share its experts. For details of the first, run
{details_command(wanted, found[0][0])}"""
