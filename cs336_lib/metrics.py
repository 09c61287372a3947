"""What a run tells: metrics.jsonl, the progress bar's line, and the announcement at the start."""

import json
from pathlib import Path
from typing import Any

import torch

from cs336_lib import accounting, hardware
from cs336_lib.config import TrainConfig
from cs336_lib.distributed import World
from cs336_lib.files import write_whole
from cs336_lib.model import GPT
from cs336_lib.optim import windows_before
from cs336_lib.tokenizer import Tokenizer

EXPECTED_MFU = 0.4  # for the estimate before the start; what is reached is measured


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
        """Append a row."""
        self.rows.append(row)
        if self.path:
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut off by a kill is left out."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def summary(row: dict[str, Any]) -> str:
    """One line for the progress bar."""
    parts = ["skipped" if row["train_loss"] is None else f"loss {row['train_loss']:.3f}"]
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
