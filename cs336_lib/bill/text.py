"""Format text for the command line, such as summaries and tables."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs336_lib import accounting
from cs336_lib.bill import architecture
from cs336_lib.bill.architecture import Architecture, Published
from cs336_lib.bill.memory import peak
from cs336_lib.bill.traffic import Layout
from cs336_lib.config import Estimate, require
from cs336_lib.io import printable, read_json
from cs336_lib.system.datasheets import DATASHEET, Device


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows of cells as aligned lines of text.

    The first column is left-aligned, and all other columns are right-aligned. Control characters
    are escaped, so that a cell can't look like a row.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return ["  ".join(cells) for cells in padded]


MAX_VALUE = 1e24  # larger inputs could overflow
MIN_MFU = 1e-6


def find_device(name: str) -> Device:
    """Return the datasheet of a device name such as `h100`, `H100` or `rtx-4090`.

    Raises:
        ValueError: If there is no datasheet for this name.
    """
    sheets = {key.replace(" ", ""): sheet for key, sheet in DATASHEET.items()}
    wanted = name.lower().replace(" ", "").replace("-", "")
    names = ", ".join(key.replace(" ", "-") for key in DATASHEET)
    require(wanted in sheets, f"hardware {name!r} is unknown; one of {names} expected")
    return sheets[wanted]


def digits(value: float) -> str:
    """Format a number with up to four significant digits, such as 7e10, 0.5 or 1,120."""
    plain = f"{value:,.4g}" if 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"
    return re.sub(r"e([+-])0*", lambda sign: "e" + sign[1].strip("+"), plain)


def short(value: float) -> str:
    """Format a count with up to four significant digits and a letter, such as 70B."""
    for power, letter in ((12, "T"), (9, "B"), (6, "M")):
        if value >= 10**power:
            return f"{value / 10**power:.4g}{letter}"
    return digits(value)


def plain(value: float) -> str:
    """Format hours as a whole number from 100 on, and with three significant digits below."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def gigabytes(value: float) -> str:
    """Format a number of bytes in GB (1e9 bytes)."""
    return f"{value / 1e9:,.0f} GB" if value >= 1e10 else f"{value / 1e9:.3g} GB"


@dataclass(frozen=True)
class Work:
    """What a model costs, for `time_table`.

    Attributes:
        name: Name of the model, or its number of parameters.
        parameters: Number of parameters.
        flops_per_token: FLOPs per training token.
        derivation: How `flops_per_token` comes about.
    """

    name: str
    parameters: float
    flops_per_token: float
    derivation: str


def find_model(name: str) -> Published:
    """Return a published model by its name, or the model of a folder with a config.json.

    Raises:
        ValueError: If there is no such model, or config.json isn't that of a supported model.
    """
    path = Path(name) / "config.json"
    if path.is_file():
        shape = architecture.from_hugging_face(read_json(path), path)
        return Published(name, str(path), shape, architecture.count_parameters(shape))
    return architecture.model(name)


def work_of(estimate: Estimate) -> Work | None:
    """Return the work of the model that was named or given by its size, or `None` without one."""
    if estimate.model:
        found = find_model(estimate.model)
        seq = training_length(found.architecture, estimate.seq)
        per_token = architecture.train_flops_per_token(found.architecture, seq)
        return Work(
            found.title, found.parameters, per_token, f"{digits(per_token)} FLOPs per token"
        )
    if estimate.params is None:
        return None
    params, per_token = estimate.params, accounting.training_flops(estimate.params, 1)
    return Work(
        f"{short(params)} parameters", params, per_token, f"6 x {digits(params)} parameters"
    )


def training_length(shape: Architecture, seq: int) -> int:
    """Return the sequence length to train at. 0 means the context, but at most 8192 tokens.

    Models with a long context are trained on shorter sequences for most of their tokens.
    """
    message = f"seq is {seq}; 1 to {shape.block_size} expected, the context of this model"
    require(0 <= seq <= shape.block_size, message)
    return seq or min(shape.block_size, 8192)


def model_table(estimate: Estimate) -> str:
    """Format the parameters, FLOPs and cache of a published model."""
    found = find_model(estimate.model)
    shape = found.architecture
    seq = training_length(shape, estimate.seq)
    active = architecture.active_parameters(shape)
    experts = f", of which {short(active)} process a token" if shape.n_expert else ""
    attention = 3 * architecture.attention_flops(shape, seq)
    per_token = architecture.train_flops_per_token(shape, seq)
    one, all_of = (architecture.kv_cache_bytes(shape, n) for n in (1, shape.block_size))
    return f"""\
{found.title}
  source   {found.source}
  counts   {found.parameters:,} parameters{experts}
  FLOPs    6 x {digits(architecture.matmul_parameters(shape))} in matmuls + {digits(attention)} \
of attention at {seq:,} tokens = {digits(per_token)} per token
  KV cache {one / 1000:,.1f} kB per token in bf16, {gigabytes(all_of)} for \
{shape.block_size:,} tokens

"""


def time_table(work: Work, tokens: float, estimate: Estimate, device: Device) -> str:
    """Format the training time and its calculation."""
    gpus, mfu = estimate.gpus, estimate.mfu
    flops = work.flops_per_token * tokens
    peak = device.peak_flops[estimate.dtype]
    seconds = accounting.training_seconds(flops, gpus, peak, mfu)
    speed = f"{gpus:,} x {digits(peak)} FLOP/s (dense {estimate.dtype}) x MFU {mfu:g}"
    sizes = {"day": accounting.SECONDS_PER_DAY, "hour": 3600, "minute": 60}
    unit = next((unit for unit, size in sizes.items() if seconds >= size), "minute")
    hours = gpus * seconds / 3600
    text = f"""\
Time to train {work.name} on {short(tokens)} tokens
  work   {work.derivation} x {digits(tokens)} tokens = {digits(flops)} FLOPs
  speed  {speed} = {digits(gpus * peak * mfu)} FLOP/s
  time   {digits(flops)} / {digits(gpus * peak * mfu)} = {digits(seconds)} s
         {digits(seconds)} s / {sizes[unit]:,} s per {unit} = {seconds / sizes[unit]:,.1f} {unit}s
  rent   {gpus:,} GPU{"s" if gpus > 1 else ""} x {plain(seconds / 3600)} h = \
{plain(hours)} GPU hours
"""
    if estimate.price is not None:
        cost = hours * estimate.price
        dollars = short(cost) if cost >= 1e6 else f"{cost:,.{0 if cost >= 100 else 2}f}"
        text += f"  cost   {plain(hours)} GPU hours x ${estimate.price:g} = ${dollars}\n"
    return text + "\n"


def memory_table(estimate: Estimate, memory: float, parameters: float | None) -> str:
    """Format the largest model that fits into `memory` bytes per GPU.

    If the number of parameters is given, also show whether that model fits.
    """
    gpus, optimizer, precision = estimate.gpus, estimate.optimizer, estimate.precision
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
    if parameters is not None:
        need = parameters * per.total
        text += f"\n  needed   {digits(parameters)} x {digits(per.total)} = {gigabytes(need)}"
        if need > total:
            return f"{text}; too much, at least {math.ceil(need / memory):,} such GPUs are needed"
        text += f", {gigabytes(need / gpus)} on each GPU" if gpus > 1 else ""
        text += peak_lines(estimate, memory) if estimate.model else "; it fits"
    return text


def peak_lines(estimate: Estimate, memory: float) -> str:
    """Format the least memory of a training step: one sequence, and each block computed again."""
    shape = find_model(estimate.model).architecture
    seq = training_length(shape, estimate.seq)
    kinds = peak(
        shape,
        Layout(dp=estimate.gpus, zero=3),
        seq,
        recompute="full",
        precision=estimate.precision,
        optimizer=estimate.optimizer,
    )
    parts = " + ".join(f"{gigabytes(size)} {kind}" for kind, size in kinds.items() if size)
    total = sum(kinds.values())
    fits = "it fits" if total <= memory else "too much; `cs336 simulate` lists layouts that fit"
    return f"""
  peak     with ZeRO-3, {seq:,} tokens on each GPU and full recomputation:
           {parts}
           = {gigabytes(total)} of {gigabytes(memory)}; {fits}"""


def report(**options: Any) -> str:
    """Estimate the training time and the largest model that fits, and show the arithmetic.

    Args:
        **options: Fields of `config.Estimate`.

    Raises:
        ValueError: If a value is out of range or a name is unknown.

    Example:
        print(report(params=70e9, tokens=15e12, gpus=1024))
    """
    estimate = Estimate(**options)
    device = find_device(estimate.hardware)
    for name in ("params", "tokens", "gpus", "memory"):
        value = getattr(estimate, name)
        message = f"{name} is {value}; a number from 1 to {MAX_VALUE:g} expected"
        require(value is None or 1 <= value <= MAX_VALUE, message)
    price = estimate.price
    dollars = f"price is {price}; a number above 0 and up to {MAX_VALUE:g} expected"
    require(price is None or 0 < price <= MAX_VALUE, dollars)
    require(MIN_MFU <= estimate.mfu <= 1, f"mfu is {estimate.mfu}; {MIN_MFU} to 1 expected")
    peaks, tokens = device.peak_flops, estimate.tokens
    message = f"dtype {estimate.dtype!r} has no peak for the {device.name}"
    require(estimate.dtype in peaks, f"{message}; one of {', '.join(peaks)} expected")
    both = f"params is {estimate.params} and model is {estimate.model}; give one of the two"
    require(not (estimate.model and estimate.params), both)
    alone = f"seq is {estimate.seq}, and it needs a model; name one with --model"
    require(bool(estimate.model) or estimate.seq == 0, alone)
    work = work_of(estimate)
    need_both = f"tokens is {tokens} and params is missing; days of training need both, or a model"
    require(tokens is None or work is not None, need_both)
    text = f"{estimate.gpus:,} x {device.name}\n  source   {device.source}\n\n"
    if estimate.model:
        text += model_table(estimate)
    if work is not None and tokens is not None:
        text += time_table(work, tokens, estimate, device)
    parameters = work.parameters if work else None
    return text + memory_table(estimate, estimate.memory or device.memory, parameters)
