"""Read runs, and compare their configs and results in a table."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs336_lib import formatting
from cs336_lib.config import GPTConfig, TrainConfig, UserError, from_json
from cs336_lib.formatting import duration
from cs336_lib.io import inside, read_json
from cs336_lib.training.metrics import read_metrics
from cs336_lib.training.run_folder import CONFIG, METRICS

# Losses are comparable only between runs in which these agree.
OF_THE_TASK = ("train_data", "val_data", "tokenizer", "eval_tokens", "block_size")

NONE = "-"

LOG = "log.jsonl"  # of train_gpt2.py


@dataclass(frozen=True)
class Run:
    """Name, config and metrics of a run folder."""

    name: str
    config: TrainConfig
    rows: list[dict[str, Any]]


def read_run(folder: Path) -> Run:
    """Read the config and metrics of a finished or unfinished run, also one of train_gpt2.py.

    Raises:
        FileNotFoundError: If the folder, config.json or metrics.jsonl doesn't exist.
        ValueError: If a file is corrupt or contains no finished step.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such run folder; `cs336 train` makes one")
    path, metrics = (inside(folder, name) for name in (CONFIG, METRICS))
    written = read_json(path)
    if (folder / LOG).exists():
        metrics = folder / LOG
        config, rows = of_one_file(folder, written)
    else:
        config = from_json(TrainConfig, written, path)
        if not metrics.exists():
            raise FileNotFoundError(f"{metrics}: no such file")
        rows = read_metrics(metrics)
    if not rows:
        raise UserError(f"{metrics}: no step is finished yet")
    return Run(str(folder), config, rows)


def of_one_file(folder: Path, written: dict[str, Any]) -> tuple[TrainConfig, list[dict[str, Any]]]:
    """Read a run of train_gpt2.py, which uses other names and logs no tokens.

    Raises `UserError` if its files are malformed.
    """
    known = {field.name for field in dataclasses.fields(TrainConfig)} - {"compile"}
    fields = {name: value for name, value in written.items() if name in known}
    is_gpt2 = written.get("vocab_size") == GPTConfig().vocab_size
    fields |= {"tokenizer": "gpt2" if is_gpt2 else "char", "train_data": written.get("data", "")}
    config = from_json(TrainConfig, fields, folder / CONFIG)

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        seconds, tokens = row["seconds"], config.batch_tokens
        speed = {"step_ms": 1000 * seconds, "tokens_per_sec": tokens / seconds}
        return row | speed | {"tokens": (row["step"] + 1) * tokens, "train_loss": row["loss"]}

    return config, read_metrics(inside(folder, LOG), convert)


def outcome(run: Run) -> dict[str, str]:
    """Format a run's progress, losses (nats per token), speed and time for `table`."""
    losses = [row["train_loss"] for row in run.rows if row.get("train_loss") is not None]
    recent = losses[-max(1, len(losses) // 20) :]  # one batch is too noisy
    measured = [(row["val_loss"], row["step"] + 1) for row in run.rows if "val_loss" in row]
    best = min(measured, default=None)
    seconds = sum(row["step_ms"] for row in run.rows) / 1000
    return {
        "steps": f"{run.rows[-1]['step'] + 1:,} of {run.config.max_steps:,}",
        "tokens": f"{run.rows[-1]['tokens']:,}",
        "training loss (last 5%)": f"{statistics.fmean(recent):.4f}" if recent else NONE,
        "validation loss, final": f"{measured[-1][0]:.4f}" if measured else NONE,
        "validation loss, best": f"{best[0]:.4f} (step {best[1]:,})" if best else NONE,
        "tokens/s (median)": f"{statistics.median(r['tokens_per_sec'] for r in run.rows):,.0f}",
        "time in steps": duration(seconds),
    }


def table(runs: Sequence[Run]) -> str:
    """Format a table that compares runs, with one column per run.

    The rows are the config fields that differ, followed by the results.
    """
    configs = [dataclasses.asdict(run.config) | {"run_dir": "", "resume": ""} for run in runs]
    fields = {name: [str(config[name]) or NONE for config in configs] for name in configs[0]}
    changed = {name: values for name, values in fields.items() if len(set(values)) > 1}
    outcomes = [outcome(run) for run in runs]
    results = {name: [outcome[name] for outcome in outcomes] for name in outcomes[0]}
    rows = {"": [run.name for run in runs], **changed, **results}
    lines = formatting.table([(name, *cells) for name, cells in rows.items()])
    lines.insert(1 + len(changed), "")
    if other := [name for name in OF_THE_TASK if name in changed]:
        lines += ["", f"Losses of different {' and '.join(other)} are not comparable."]
    return "\n".join(lines)
