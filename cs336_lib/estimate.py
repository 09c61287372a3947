"""Napkin maths with its working shown: what `cs336 estimate` prints."""

import math
import re

from cs336_lib import accounting
from cs336_lib.config import require
from cs336_lib.hardware import DATASHEET, Device

LARGEST = 1e24  # of what can be given: beyond, products and quotients would overflow
LEAST_MFU = 1e-6


def find_device(name: str) -> Device:
    """The datasheet of `h100`, `H100`, `rtx-4090`, ...

    Raises:
        ValueError: we have no datasheet of that name.
    """
    sheets = {key.replace(" ", ""): sheet for key, sheet in DATASHEET.items()}
    wanted = name.lower().replace(" ", "").replace("-", "")
    names = ", ".join(key.replace(" ", "-") for key in DATASHEET)
    require(wanted in sheets, f"hardware {name!r} is unknown; one of {names} expected")
    return sheets[wanted]


def digits(value: float) -> str:
    """Four digits, as one would write them: 7e10, 0.5, 1,120."""
    plain = f"{value:,.4g}" if 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"
    return re.sub(r"e([+-])0*", lambda found: "e" + found[1].strip("+"), plain)


def short(value: float) -> str:
    """Four digits with the letter people use for parameters and tokens: 7e10 -> 70B."""
    for power, letter in ((12, "T"), (9, "B"), (6, "M")):
        if value >= 10**power:
            return f"{value / 10**power:.4g}{letter}"
    return digits(value)


def gigabytes(value: float) -> str:
    """Bytes in GB (1e9), whole ones with commas."""
    return f"{value / 1e9:,.0f} GB" if value >= 1e10 else f"{value / 1e9:.3g} GB"


def require_positive(**values: float | None) -> None:
    """Raise `ValueError` for a value that is given and not between 1 and LARGEST."""
    for name, value in values.items():
        require(
            value is None or 1 <= value <= LARGEST,
            f"{name} is {value}; a number from 1 to {LARGEST:g} expected",
        )


def time_lines(
    params: float, tokens: float, gpus: int, device: Device, dtype: str, mfu: float
) -> list[str]:
    """How long the training takes, step by step."""
    flops = accounting.training_flops(params, tokens)
    peak = device.peak_flops[dtype]
    speed = gpus * peak * mfu
    seconds = accounting.training_seconds(flops, gpus, peak, mfu)
    return [
        f"Time to train {short(params)} parameters on {short(tokens)} tokens",
        f"  work   6 x {digits(params)} parameters x {digits(tokens)} tokens = "
        f"{digits(flops)} FLOPs",
        f"  speed  {gpus} x {digits(peak)} FLOP/s (dense {dtype}) x MFU {mfu:g} = "
        f"{digits(speed)} FLOP/s",
        f"  time   {digits(flops)} / {digits(speed)} = {digits(seconds)} s",
        f"         {digits(seconds)} s / {accounting.SECONDS_PER_DAY:,} s a day = "
        f"{seconds / accounting.SECONDS_PER_DAY:,.1f} days",
        f"  hire   {gpus} GPU{'s' if gpus > 1 else ''} x {digits(seconds / 3600)} h = "
        f"{gpus * seconds / 3600:,.0f} GPU hours",
    ]


def memory_lines(
    params: float | None, gpus: int, memory: float, optimizer: str, precision: str
) -> list[str]:
    """The largest model that fits, and whether one of `params` parameters does."""
    per = accounting.bytes_per_parameter(optimizer, precision)
    total = gpus * memory
    largest = accounting.largest_model(total, optimizer, precision)
    lines = [
        f"Memory to train with {optimizer} in {precision}, activations left out",
        f"  bytes    {per.weights:g} weight + {per.gradient:g} gradient + {per.master:g} master "
        f"weight + {digits(per.state)} state = {digits(per.total)} a parameter",
        f"  there    {gpus} x {gigabytes(memory)} = {gigabytes(total)}",
        f"  largest  {digits(total)} / {digits(per.total)} = {short(largest)} parameters",
    ]
    if params is not None:
        need, least = params * per.total, math.ceil(params * per.total / memory)
        verdict = "it fits" if need <= total else f"too much: {least:,} such GPUs at least"
        lines.append(
            f"  yours    {digits(params)} x {digits(per.total)} = {gigabytes(need)}; {verdict}"
        )
    if optimizer == "adafactor":
        lines.append("  note     Adafactor's row and column of state for each matrix count as 0")
    if gpus > 1:
        lines.append(
            f"  note     spread over {gpus} GPUs (ZeRO-3, FSDP); plain data parallelism has one "
            f"GPU's {gigabytes(memory)}: {short(largest / gpus)} parameters"
        )
    return lines


def report(
    params: float | None = None,
    tokens: float | None = None,
    gpus: int = 1,
    hardware: str = "h100",
    dtype: str = "bf16",
    mfu: float = 0.5,
    memory: float | None = None,
    optimizer: str = "adamw",
    precision: str = "fp32",
) -> str:
    """Days of training where `params` and `tokens` are given, and the largest model that fits.

    `memory` is bytes per GPU (default: the datasheet's), `dtype` that of the matmuls, `precision`
    how weights and gradients are kept (see `accounting.PRECISION_BYTES`).

    Raises:
        ValueError: a value is out of range, or a name is unknown.
    """
    device = find_device(hardware)
    require_positive(params=params, tokens=tokens, gpus=gpus, memory=memory)
    require(LEAST_MFU <= mfu <= 1, f"mfu is {mfu}; {LEAST_MFU} to 1 expected")
    require(
        dtype in device.peak_flops,
        f"dtype {dtype!r} has no peak for the {device.name}; "
        f"one of {', '.join(device.peak_flops)} expected",
    )
    require(
        tokens is None or params is not None,
        f"tokens is {tokens} and params is missing; days of training need both",
    )
    blocks = [[f"{gpus} x {device.name}", f"  source   {device.source}"]]
    if params is not None and tokens is not None:
        blocks.append(time_lines(params, tokens, gpus, device, dtype, mfu))
    blocks.append(memory_lines(params, gpus, memory or device.memory, optimizer, precision))
    return "\n\n".join("\n".join(block) for block in blocks)
