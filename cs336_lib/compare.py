"""Runs side by side: what they were told to do differently, and what came out."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs336_lib.accounting import duration
from cs336_lib.config import TrainConfig, from_json, require
from cs336_lib.files import inside, read_json
from cs336_lib.metrics import read_metrics

NEEDED = {"step", "tokens", "train_loss", "tokens_per_sec", "step_ms"}
MAY_LACK = ("train_loss", "val_loss")  # JSON knows no NaN: null stands for it
LARGEST = 1e18  # sums of what is smaller are numbers still
# Where these differ, a nat per token means something else.
OF_THE_TASK = ("train_data", "val_data", "tokenizer", "eval_tokens", "block_size")
NONE = "-"


@dataclass(frozen=True)
class Run:
    """A run folder as read: its name, what it was told, and a row of metrics per step."""

    name: str
    config: TrainConfig
    rows: list[dict[str, Any]]


def read_run(folder: Path) -> Run:
    """Read the config and the metrics of a run, finished or not; a val_loss of null is left out.

    Raises:
        ValueError: the folder holds no run, or one whose files are damaged.
    """
    require(folder.is_dir(), f"{folder}: no such run folder")
    path = inside(folder, "config.json")
    require(path.exists(), f"{folder}: no config.json; a folder made by `cs336 train` expected")
    config = from_json(TrainConfig, read_json(path), path)
    path = inside(folder, "metrics.jsonl")
    require(path.exists(), f"{folder}: no metrics.jsonl; has the run begun?")
    rows = read_metrics(path)
    whole = all(row.keys() >= NEEDED for row in rows)
    require(whole, f"{path}: a row lacks one of {', '.join(sorted(NEEDED))}")
    require(bool(rows), f"{path}: no step is finished yet")
    for number, row in enumerate(rows, start=1):
        check_row(row, f"{path}: line {number}")
        if row.get("val_loss", 0) is None:
            del row["val_loss"]
    return Run(str(folder), config, rows)


def check_row(row: dict[str, Any], where: str) -> None:
    """Raise `ValueError` for a row in which something that we count with is no number."""
    for name in sorted({*NEEDED, "val_loss"} & row.keys()):
        value = row[name]
        is_number = type(value) in (int, float) and -LARGEST < value < LARGEST  # nor NaN
        require(
            is_number or (value is None and name in MAY_LACK),
            f"{where}: {name} is {value!r:.40}; a number expected, mend the row or take it out",
        )


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The fields of the configs that are not the same in all runs (but where they write to)."""
    configs = [dataclasses.asdict(run.config) for run in runs]
    values = {name: [str(config[name]) or NONE for config in configs] for name in configs[0]}
    return {
        name: found
        for name, found in values.items()
        if len(set(found)) > 1 and name not in ("run_dir", "resume")
    }


def outcome(run: Run) -> dict[str, str]:
    """What came out of a run: losses [nats per token], speed, and the time of its steps."""
    losses = [row["train_loss"] for row in run.rows if row["train_loss"] is not None]
    lately = losses[-max(1, len(losses) // 20) :]  # one batch alone says little
    measured = [(row["val_loss"], row["step"]) for row in run.rows if "val_loss" in row]
    best = min(measured, default=None)
    seconds = sum(row["step_ms"] for row in run.rows) / 1000
    return {
        "steps": f"{run.rows[-1]['step'] + 1:,} of {run.config.max_steps:,}",
        "tokens": f"{run.rows[-1]['tokens']:,}",
        "training loss (last 5%)": f"{statistics.fmean(lately):.4f}" if lately else NONE,
        "validation loss, final": f"{measured[-1][0]:.4f}" if measured else NONE,
        "validation loss, best": f"{best[0]:.4f} (step {best[1]:,})" if best else NONE,
        "tokens/s (median)": f"{statistics.median(r['tokens_per_sec'] for r in run.rows):,.0f}",
        "time in steps": duration(seconds),
    }


def table(runs: Sequence[Run]) -> str:
    """A column per run: the differing fields of their configs above what came out."""
    changed = differences(runs)
    outcomes = [outcome(run) for run in runs]
    rows = {"": [run.name for run in runs], **changed}
    rows |= {name: [found[name] for found in outcomes] for name in outcomes[0]}
    width = max(len(name) for name in rows)
    columns = [max(len(row[i]) for row in rows.values()) for i in range(len(runs))]
    lines = []
    for name, row in rows.items():
        cells = (cell.rjust(size) for cell, size in zip(row, columns, strict=True))
        lines.append("  ".join((name.ljust(width), *cells)))
    lines.insert(1 + len(changed), "")
    if other := [name for name in OF_THE_TASK if name in changed]:
        lines += ["", f"Losses of different {' and '.join(other)} do not compare."]
    return "\n".join(lines)
