"""Create, lock, resume and compare run folders."""

import dataclasses
import json
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cs336_lib.accounting import duration
from cs336_lib.bill import text
from cs336_lib.config import GPTConfig, TrainConfig, from_json, require
from cs336_lib.data.tokenizer import Tokenizer, save_tokenizer, tokenizer_of
from cs336_lib.io import inside, locked, read_json, sync, temporary_path, write_atomic, writing
from cs336_lib.system.processes import World
from cs336_lib.training import checkpoint

CONFIG, METRICS, TOKENIZER, LOCK = "config.json", "metrics.jsonl", "tokenizer.json", ".lock"

ENVIRONMENT = "environment.json"

SHAPE = ("n_layer", "n_head", "n_embd", "bias")  # set by `init_from`

# A loss is a spike if it exceeds the median of the RECENT losses before it by SPIKE times their
# median absolute deviation. Normally distributed losses would do so once in thirty million steps.
SPIKE, RECENT = 8.0, 100

# Each is a number in a row of metrics. A null stands for NaN, which JSON lacks.
NEEDED, NULLABLE = ("step", "tokens", "tokens_per_sec", "step_ms"), ("train_loss", "val_loss")

LARGEST = 1e18  # so that sums stay finite


class Metrics:
    """Writer of metrics.jsonl.

    The file has exactly one row per step, even after a kill and resume.

    Args:
        path: Path of the file. Existing rows for steps before `first_step` are kept.
        first_step: Step at which the run starts or resumes.
        world: The ranks. Only rank 0 writes the file, but every rank keeps all rows in memory.
    """

    def __init__(self, path: Path, first_step: int, world: World):
        self.path, self.is_main = path, world.is_main
        saved = read_metrics(path) if path.exists() else []
        self.rows = [row for row in saved if row["step"] < first_step]
        if self.is_main:
            write_atomic(path, "".join(json.dumps(row) + "\n" for row in self.rows))

    def add(self, row: dict[str, Any]) -> None:
        """Append a row. If the loss is a spike, set `row["spike"]` to True."""
        if is_spike(row["train_loss"], self.rows[-RECENT:]):
            row["spike"] = True
        self.rows.append(row)
        if self.is_main:
            with writing(self.path), open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")

    def sync(self) -> None:
        """Flush the rows to disk. Call this before saving a checkpoint."""
        if self.is_main:
            sync(self.path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl file.

    An incomplete last line is ignored, and a val_loss of null is removed from its row.

    Raises:
        ValueError: If a complete line isn't a valid row.
    """
    rows = []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            require(isinstance(row, dict), "not a JSON object")
            for name in (*NEEDED, *NULLABLE):
                value: Any = row.get(name)
                is_number = type(value) in (int, float) and -LARGEST < value < LARGEST  # not NaN
                is_null = value is None and name in NULLABLE
                require(is_number or is_null, f"{name} is {value!r:.40}; a number expected")
        except (ValueError, RecursionError) as error:
            message = f"{path}: line {number} isn't a row of metrics ({error}); fix or delete it"
            raise ValueError(message) from None
        if row.get("val_loss") is None:
            row.pop("val_loss", None)
        rows.append(row)
    return rows


def is_spike(loss: float | None, before: list[dict[str, Any]]) -> bool:
    """Return whether a loss is far above the previous losses.

    The result is False if there are fewer than RECENT / 5 previous losses.
    """
    recent = [row["train_loss"] for row in before if row.get("train_loss") is not None]
    if loss is None or len(recent) < RECENT // 5:
        return False
    median = statistics.median(recent)
    deviation = statistics.median(abs(other - median) for other in recent)
    return loss - median > SPIKE * max(deviation, 0.001 * median)


def check(config: TrainConfig, tokenizer: Tokenizer) -> tuple[TrainConfig, bool]:
    """Check that a run can start or resume in `config.run_dir`. Files aren't changed.

    Returns:
        The config, and whether the folder contains a run to resume. With `init_from`, the model
        shape is read from the saved run, so resuming doesn't need the initial weights.

    Raises:
        FileExistsError: If the folder contains a run and `config.resume` is false, or if it
            contains other files.
        ValueError: If the saved run has a different config or tokenizer.
    """
    require(bool(config.run_dir), "run_dir is empty; name a folder for checkpoints and metrics")
    run_dir = Path(config.run_dir)
    if not (run_dir / CONFIG).exists():
        leftovers = {LOCK, temporary_path(run_dir / CONFIG).name}
        if run_dir.exists() and not (run_dir.is_dir() and {*os.listdir(run_dir)} <= leftovers):
            raise FileExistsError(f"{run_dir} exists and isn't a run folder; use another --run-dir")
        return config, False
    if not config.resume:
        raise FileExistsError(
            f"{run_dir} already holds a run; pass --resume to continue it, or another --run-dir"
        )
    saved = read_json(inside(run_dir, CONFIG))
    if config.init_from:
        config = dataclasses.replace(config, **{k: saved[k] for k in SHAPE if k in saved})
    conflicts = config.conflicts(saved)
    if tokenizer_of(run_dir) not in (None, tokenizer):
        conflicts.append(f"tokenizer.json isn't the tokenizer of {data_name(config)}")
    message = f"{run_dir} holds a run with another config: {'; '.join(conflicts)}"
    require(not conflicts, f"{message}; resume with the same, or use another --run-dir")
    return config, True


def data_name(config: TrainConfig) -> str:
    """Return the name of the training data for messages."""
    return config.train_data or "the corpus that ships"


def resume_point(
    run_dir: Path, shape: GPTConfig, data: dict[str, Any], device: torch.device, world: World
) -> tuple[Path | None, int]:
    """Find the newest valid checkpoint, and check that it matches the model and the data.

    All ranks return the same checkpoint.

    Args:
        run_dir: Folder of the run.
        shape: Expected model config.
        data: Fingerprints of the training and validation data. If a checkpoint has no fingerprints,
            the data isn't compared.
        device: Device for communication between the ranks.
        world: The ranks. Only rank 0 searches the folder.

    Returns:
        The checkpoint and its number of finished steps, or `None` and 0 if there is no checkpoint.

    Raises:
        ValueError: If all checkpoints are corrupt, or if the model or the data differs.
    """
    folder, step = run_dir / "checkpoints", 0
    if world.is_main and checkpoint.checkpoints(folder):
        newest = checkpoint.newest_valid(folder)
        step = checkpoint.step_of(newest) if newest else -1
    step = int(world.sum(step, device=device)[0])  # the other ranks add zero
    corrupt = f"{folder}: all checkpoints are corrupt; restore one or use another --run-dir"
    require(step >= 0, corrupt)  # starting at step 0 would overwrite the run
    if step == 0:
        return None, 0
    path = checkpoint.path_of(folder, step)
    checkpoint.require_same_model(path, shape)
    state = checkpoint.read_state(path)
    changed = f"{path}: this run's data has changed since; restore it, or use another --run-dir"
    require(state.get("data", data) == data, changed)
    return path, step


@contextmanager
def lock(run_dir: Path, world: World, *, begun: bool) -> Iterator[None]:
    """Create the run folder if it is missing, and lock it within this block.

    Raises:
        OSError: If the folder can't be written.
        ValueError: If another run holds the lock, or if config.json appeared or disappeared after
            `check`.
    """
    world.barrier()  # all ranks have passed their checks, so the folder may be written
    if not world.is_main:
        yield
        return
    with writing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
    with locked(run_dir / LOCK):
        message = f"{run_dir}: another run has just started or was removed there; run this again"
        require((run_dir / CONFIG).exists() == begun, message)
        yield


def write(config: TrainConfig, tokenizer: Tokenizer, resumed: Path | None, world: World) -> None:
    """Write config.json and tokenizer.json, and rename checkpoints newer than `resumed`.

    Raises:
        OSError: If the folder can't be written.
    """
    run_dir = Path(config.run_dir)
    if world.is_main:
        # The config comes first, because --resume accepts a folder that has one.
        write_atomic(run_dir / CONFIG, json.dumps(dataclasses.asdict(config), indent=1) + "\n")
        if not (run_dir / TOKENIZER).exists():
            save_tokenizer(tokenizer, run_dir / TOKENIZER)
        with writing(run_dir):
            (run_dir / "checkpoints").mkdir(exist_ok=True)
            if resumed is not None:
                checkpoint.quarantine_newer(resumed)
    world.barrier()


def nan_hint(run_dir: Path) -> str:
    """Return advice for a NaN error message, including the path of the newest checkpoint."""
    newest = checkpoint.newest_valid(run_dir / "checkpoints", (checkpoint.STATE,))
    there = f" there with --init-from {run_dir} and" if newest else " with"
    return (
        f"newest checkpoint: {newest or 'none'}; begin a new run{there} a smaller --learning-rate"
    )


@contextmanager
def resume_hint(config: TrainConfig) -> Iterator[None]:
    """Add advice about --resume to disk and communication errors raised in this block."""
    try:
        yield
    except (BrokenPipeError, FileExistsError, FileNotFoundError):
        raise
    except OSError as error:
        if not os.path.exists(Path(config.run_dir) / CONFIG):
            raise
        saved = checkpoint.checkpoints(Path(config.run_dir) / "checkpoints")
        where = saved[-1].name if saved else "step 0, as there is no checkpoint yet"
        raise OSError(f"{error}; with --resume the run continues from {where}") from error


# Losses are comparable only between runs in which these agree.
OF_THE_TASK = ("train_data", "val_data", "tokenizer", "eval_tokens", "block_size")

NONE = "-"


@dataclass(frozen=True)
class Run:
    """Name, config and metrics of a run folder."""

    name: str
    config: TrainConfig
    rows: list[dict[str, Any]]


def read_run(folder: Path) -> Run:
    """Read the config and metrics of a finished or unfinished run.

    Raises:
        FileNotFoundError: If the folder, config.json or metrics.jsonl doesn't exist.
        ValueError: If a file is corrupt or contains no finished step.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such run folder; `cs336 train` makes one")
    path, metrics = (inside(folder, name) for name in (CONFIG, METRICS))
    config = from_json(TrainConfig, read_json(path), path)
    if not metrics.exists():
        raise FileNotFoundError(f"{metrics}: no such file")
    rows = read_metrics(metrics)
    require(bool(rows), f"{metrics}: no step is finished yet")
    return Run(str(folder), config, rows)


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
    lines = text.table([(name, *cells) for name, cells in rows.items()])
    lines.insert(1 + len(changed), "")
    if other := [name for name in OF_THE_TASK if name in changed]:
        lines += ["", f"Losses of different {' and '.join(other)} are not comparable."]
    return "\n".join(lines)
