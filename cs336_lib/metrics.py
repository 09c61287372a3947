"""What a run tells: metrics.jsonl, the progress bar's line, and the announcement at the start."""

import json
import statistics
from pathlib import Path
from typing import Any

import torch

from cs336_lib import accounting, hardware
from cs336_lib.config import TrainConfig, require
from cs336_lib.distributed import World
from cs336_lib.files import sync, write_whole, writing
from cs336_lib.model import GPT
from cs336_lib.optim import windows_before
from cs336_lib.tokenizer import Tokenizer

EXPECTED_MFU = 0.4  # for the estimate before the start; what is reached is measured
# A loss is a spike if it lies SPIKE times the spread (median deviation) of the RECENT losses before
# it above their median: were they normal, one in thirty million would.
SPIKE, RECENT = 8.0, 100


class Metrics:
    """metrics.jsonl: one row per step, none missing and none twice, whatever was killed when."""

    def __init__(self, path: Path, first_step: int, world: World):
        self.rows: list[dict[str, Any]] = []
        self.path = path if world.is_main else None
        if path.exists():
            self.rows = [row for row in read_metrics(path) if row["step"] < first_step]
        if self.path:
            kept = "".join(json.dumps(row) + "\n" for row in self.rows)
            write_whole(path, kept)

    def add(self, row: dict[str, Any]) -> None:
        """Append a row, with "spike" in it where the loss is one."""
        if is_spike(row["train_loss"], self.rows[-RECENT:]):
            row["spike"] = True
        self.rows.append(row)
        if self.path:
            with writing(self.path), open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")

    def sync(self) -> None:
        """Have the rows on the disk: before a checkpoint, which counts on them."""
        if self.path:
            sync(self.path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut off by a kill is left out.

    Raises:
        ValueError: another line is damaged.
    """
    rows = []
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if line.endswith("\n"):
            try:
                rows.append(json.loads(line))
            except ValueError:
                rows.append(None)
            is_row = isinstance(rows[-1], dict) and isinstance(rows[-1].get("step"), int)
            require(is_row, f"{path}: line {number} is no row of metrics; mend it or take it out")
    return rows


def is_spike(loss: float | None, before: list[dict[str, Any]]) -> bool:
    """Whether a loss lies far above those of the rows before it; needs a fifth of RECENT."""
    recent = [row["train_loss"] for row in before if row.get("train_loss") is not None]
    if loss is None or len(recent) < RECENT // 5:
        return False
    middle = statistics.median(recent)
    spread = statistics.median(abs(other - middle) for other in recent)
    return loss - middle > SPIKE * max(spread, 0.001 * middle)


def troubles(rows: list[dict[str, Any]]) -> str:
    """What somebody should look at after a run: batches skipped and spikes of the loss, or ''."""
    found = []
    for key, what in (("skipped", "skipped for NaN or infinity"), ("spike", "with a loss spike")):
        steps = [row["step"] for row in rows if row.get(key)]
        if steps:
            which = ", ".join(map(str, steps[:5])) + (", ..." if steps[5:] else "")
            found.append(f"{len(steps)} of {len(rows)} steps {what}: {which}")
    return "; ".join(found)


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


def announcement(
    config: TrainConfig,
    model: GPT,
    tokenizer: Tokenizer,
    device: torch.device,
    dtype: torch.dtype | None,
    peak: tuple[float | None, str],
    first_step: int,
    world: World,
) -> str:
    """What is about to happen, and how long it should take."""
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
