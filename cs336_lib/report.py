"""Text for the command line: banner, step line, warnings, and the tables of `estimate`."""

import math
import re
from typing import Any

import torch

from cs336_lib import accounting, hardware
from cs336_lib.config import TrainConfig, require
from cs336_lib.data.tokenizer import Tokenizer
from cs336_lib.distributed import World
from cs336_lib.hardware import DATASHEET, Device
from cs336_lib.model import GPT
from cs336_lib.schedule import windows_before

EXPECTED_MFU = 0.4  # for the estimate before the start; the real MFU is measured


def troubles(rows: list[dict[str, Any]]) -> str:
    """Summarize skipped batches and loss spikes of a run; "" if there are none."""
    parts = []
    for key, name in (("skipped", "skipped for NaN or infinity"), ("spike", "with a loss spike")):
        steps = [row["step"] for row in rows if row.get(key)]
        if steps:
            shown = ", ".join(map(str, steps[:5])) + (", ..." if steps[5:] else "")
            parts.append(f"{len(steps)} of {len(rows)} steps {name}: {shown}")
    return "; ".join(parts)


def summary(row: dict[str, Any]) -> str:
    """One line for the progress bar."""
    parts = ["skipped" if row["train_loss"] is None else f"loss {row['train_loss']:.3f}"]
    if row.get("spike"):
        parts[0] += " (spike)"
    if "val_loss" in row:
        parts.append(f"val {row['val_loss']:.3f}")
    parts += [f"lr {row['lr']:.1e}", f"{row['tokens_per_sec']:,.0f} tok/s"]
    if row["mfu"] is not None:
        parts.append(f"MFU {row['mfu']:.0%}")
    return ", ".join(parts)


def banner(
    config: TrainConfig,
    model: GPT,
    tokenizer: Tokenizer,
    device: torch.device,
    dtype: torch.dtype | None,
    peak: tuple[float | None, str],
    first_step: int,
    world: World,
) -> str:
    """Describe a run before it starts, with its expected duration.

    Args:
        dtype: The dtype of matmuls; None means fp32.
        peak: The peak FLOP/s of one device, or None, and its source.
        first_step: Greater than 0 when the run resumes.
    """
    windows = windows_before(config.max_steps, config) - windows_before(first_step, config)
    tokens = windows * config.block_size
    flops = tokens * accounting.train_flops_per_token(model.config)
    speed, source = peak
    if speed is None:
        expected = "unknown (no peak FLOP/s known for this device)"
    else:
        seconds = accounting.training_seconds(flops, world.size, speed, EXPECTED_MFU)
        expected = f"{accounting.duration(seconds)} at {EXPECTED_MFU:.0%} MFU"
    peak_text = source if speed is None else f"{accounting.human(speed)}FLOP/s, {source}"
    resumed = f", from step {first_step}" if first_step else ""
    return "\n".join(
        [
            f"model      {model.num_parameters():,} parameters: {config.n_layer} layers, "
            f"{config.n_head} heads, {config.n_embd} wide, context {config.block_size}",
            f"data       {config.train_data or 'the plays that ship'}, tokenizer {tokenizer.name}, "
            f"{tokenizer.vocab_size:,} ids",
            f"device     {hardware.device_name(device)} x {world.size}, "
            f"{'bf16 autocast' if dtype else 'fp32'} (peak {peak_text})",
            f"run        {config.max_steps} steps of {config.batch_tokens:,} tokens{resumed}: "
            f"{tokens:,} tokens, {flops:.2e} FLOPs",
            f"expected   {expected}",
            f"writes to  {config.run_dir}",
        ]
    )


MAX_VALUE = 1e24  # larger inputs could overflow
MIN_MFU = 1e-6


def find_device(name: str) -> Device:
    """Return the datasheet of `h100`, `H100`, `rtx-4090` and so on.

    Raises:
        ValueError: We have no datasheet of that name.
    """
    sheets = {key.replace(" ", ""): sheet for key, sheet in DATASHEET.items()}
    wanted = name.lower().replace(" ", "").replace("-", "")
    names = ", ".join(key.replace(" ", "-") for key in DATASHEET)
    require(wanted in sheets, f"hardware {name!r} is unknown; one of {names} expected")
    return sheets[wanted]


def digits(value: float) -> str:
    """Format a number with four digits: 7e10, 0.5, 1,120."""
    plain = f"{value:,.4g}" if 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"
    return re.sub(r"e([+-])0*", lambda sign: "e" + sign[1].strip("+"), plain)


def short(value: float) -> str:
    """Format a count with four digits and a letter: 7e10 -> 70B."""
    for power, letter in ((12, "T"), (9, "B"), (6, "M")):
        if value >= 10**power:
            return f"{value / 10**power:.4g}{letter}"
    return digits(value)


def gigabytes(value: float) -> str:
    """Format bytes in GB (1e9)."""
    return f"{value / 1e9:,.0f} GB" if value >= 1e10 else f"{value / 1e9:.3g} GB"


def require_positive(**values: float | None) -> None:
    """Raise `ValueError` for a value that is neither None nor between 1 and MAX_VALUE."""
    for name, value in values.items():
        require(
            value is None or 1 <= value <= MAX_VALUE,
            f"{name} is {value}; a number from 1 to {MAX_VALUE:g} expected",
        )


def time_lines(
    params: float, tokens: float, gpus: int, device: Device, dtype: str, mfu: float
) -> list[str]:
    """Format the training time with its arithmetic."""
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
    """Format the largest model that fits, and whether one of `params` parameters fits."""
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
    """Estimate days of training and the largest model that fits, with the arithmetic.

    Args:
        params: Parameters of the model; days need both params and tokens.
        tokens: Tokens to train on.
        gpus: How many GPUs.
        hardware: A name for `find_device`.
        dtype: Precision of the matmuls, which sets the peak.
        mfu: Model FLOPs utilization, above 0 and up to 1.
        memory: Bytes per GPU (default: from the datasheet).
        optimizer: A key of `accounting.STATE_BYTES`.
        precision: How weights and gradients are stored, a key of `accounting.PRECISION_BYTES`.

    Raises:
        ValueError: A value is out of range, or a name is unknown.
    """
    device = find_device(hardware)
    require_positive(params=params, tokens=tokens, gpus=gpus, memory=memory)
    require(MIN_MFU <= mfu <= 1, f"mfu is {mfu}; {MIN_MFU} to 1 expected")
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
