"""A run on disk: folder, config, lock, metrics, resuming, and comparing runs."""

import dataclasses
import json
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs336_lib import checkpoint
from cs336_lib.accounting import duration
from cs336_lib.config import GPTConfig, TrainConfig, from_json, require
from cs336_lib.data.tokenizer import Tokenizer, save_tokenizer, tokenizer_of
from cs336_lib.distributed import World
from cs336_lib.io import inside, locked, read_json, sync, temporary_path, write_atomic, writing

CONFIG, METRICS, TOKENIZER, LOCK = "config.json", "metrics.jsonl", "tokenizer.json", ".lock"

SHAPE = ("n_layer", "n_head", "n_embd", "bias")  # set by `init_from`

# A loss is a spike if it exceeds the median of the RECENT losses before it by SPIKE times their
# median absolute deviation. Normally distributed losses would do so once in thirty million steps.
SPIKE, RECENT = 8.0, 100


class Metrics:
    """Writer of metrics.jsonl, which has exactly one row per step, also after a kill and resume."""

    def __init__(self, path: Path, first_step: int, world: World):
        self.rows: list[dict[str, Any]] = []
        self.path = path if world.is_main else None
        if path.exists():
            self.rows = [row for row in read_metrics(path) if row["step"] < first_step]
        if self.path:
            write_atomic(path, "".join(json.dumps(row) + "\n" for row in self.rows))

    def add(self, row: dict[str, Any]) -> None:
        """Append a row, and mark it with "spike" if its loss is one."""
        if is_spike(row["train_loss"], self.rows[-RECENT:]):
            row["spike"] = True
        self.rows.append(row)
        if self.path:
            with writing(self.path), open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")

    def sync(self) -> None:
        """Flush the rows to disk. A checkpoint needs those of its steps."""
        if self.path:
            sync(self.path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl, without a last line that a kill cut off.

    Raises:
        ValueError: Another line isn't a row.
    """
    rows = []
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if line.endswith("\n"):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            is_row = isinstance(row, dict) and isinstance(row.get("step"), int)
            require(is_row, f"{path}: line {number} isn't a row of metrics; fix or delete it")
            rows.append(row)
    return rows


def is_spike(loss: float | None, before: list[dict[str, Any]]) -> bool:
    """Return whether a loss is far above the previous ones, of which RECENT / 5 are needed."""
    recent = [row["train_loss"] for row in before if row.get("train_loss") is not None]
    if loss is None or len(recent) < RECENT // 5:
        return False
    median = statistics.median(recent)
    deviation = statistics.median(abs(other - median) for other in recent)
    return loss - median > SPIKE * max(deviation, 0.001 * median)


def check(config: TrainConfig, tokenizer: Tokenizer) -> tuple[TrainConfig, bool]:
    """Check that a run can start or resume in its folder; write nothing.

    Returns:
        The config, and whether the folder holds the run that is to be resumed. If `init_from` set
        the model's shape, the shape is taken from the saved run, so those weights may be gone.

    Raises:
        FileExistsError: The folder holds a run and resume is off, or it holds something else.
        ValueError: The folder holds a run with another config or tokenizer.
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
        shape = {name: saved.get(name, getattr(config, name)) for name in SHAPE}
        config = dataclasses.replace(config, **shape)
    conflicts = config.conflicts(saved)
    require(
        not conflicts,
        f"{run_dir} holds a run with another config: {'; '.join(conflicts)}; "
        f"resume with the same one, or use another --run-dir",
    )
    require(
        tokenizer_of(run_dir) in (None, tokenizer),
        f"{run_dir} was trained with another tokenizer than {data_name(config)} has now; "
        f"restore that data, or use another --run-dir",
    )
    return config, True


def data_name(config: TrainConfig) -> str:
    """Return the name of the training data for messages."""
    return config.train_data or "the corpus that ships"


def check_checkpoint(path: Path, shape: GPTConfig, data: dict[str, Any]) -> int:
    """Check that a checkpoint is of this model and this data; return its number of steps.

    Args:
        path: The checkpoint.
        shape: The model's config.
        data: A fingerprint of each part of the data. Old checkpoints have none.

    Raises:
        ValueError: It holds another model, or was trained on other data.
    """
    checkpoint.require_same_model(path, shape)
    state = checkpoint.read_state(path)
    saved = state.get("data", data)
    known = saved if isinstance(saved, dict) else {}
    parts = [part for part in data if known.get(part) != data[part]]
    require(
        not parts,
        f"{path}: the {' and '.join(parts)} data has changed since; restore what this run was "
        f"trained on, or use another --run-dir",
    )
    return state["step"]


@contextmanager
def lock(run_dir: Path, world: World, *, begun: bool) -> Iterator[None]:
    """Create the run folder if needed, and lock it against other runs within this block.

    Raises:
        OSError: The folder cannot be written.
        ValueError: Another run holds the lock, or has started there since `check`.
    """
    world.barrier()  # all ranks have passed their checks, so the folder may be written
    if not world.is_main:
        yield
        return
    with writing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
    with locked(run_dir / LOCK):
        require(
            (run_dir / CONFIG).exists() == begun,
            f"{run_dir}: another run has just started or was removed there; run the command again",
        )
        yield


def write(config: TrainConfig, tokenizer: Tokenizer, resumed: Path | None, world: World) -> None:
    """Write config and tokenizer, and set aside what is newer than the checkpoint to resume from.

    Raises:
        OSError: The folder cannot be written.
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
    """Return the end of the message about NaN: the newest checkpoint, and what to try."""
    newest = checkpoint.newest_valid(run_dir / "checkpoints", (checkpoint.STATE,))
    if newest is None:
        return "newest checkpoint: none; begin a new run with a smaller --learning-rate"
    return (
        f"newest checkpoint: {newest}; begin a new run there with --init-from {run_dir} and a "
        f"smaller --learning-rate"
    )


@contextmanager
def resume_hint(config: TrainConfig) -> Iterator[None]:
    """Add to errors of the disk or of another process where --resume would continue the run."""
    try:
        yield
    except (BrokenPipeError, FileExistsError, FileNotFoundError):
        raise
    except OSError as error:
        if not os.path.exists(Path(config.run_dir) / CONFIG):
            raise
        saved = checkpoint.checkpoints(Path(config.run_dir) / "checkpoints")
        where = f"from {saved[-1].name}" if saved else "at step 0, as there is no checkpoint yet"
        raise OSError(f"{error}; with --resume the run continues {where}") from error


NEEDED = {"step", "tokens", "train_loss", "tokens_per_sec", "step_ms"}

NULLABLE = ("train_loss", "val_loss")  # null stands for NaN, which JSON lacks

LARGEST = 1e18  # so that sums stay finite

# Losses are comparable only between runs in which these agree.
OF_THE_TASK = ("train_data", "val_data", "tokenizer", "eval_tokens", "block_size")

NONE = "-"


@dataclass(frozen=True)
class Run:
    """A run folder as read: its name, its config, and a row of metrics per step."""

    name: str
    config: TrainConfig
    rows: list[dict[str, Any]]


def read_run(folder: Path) -> Run:
    """Read the config and metrics of a run, finished or not; drop each val_loss that is null.

    Raises:
        FileNotFoundError: There is no such folder, or a file is missing in it.
        ValueError: A file is damaged, or no step is finished yet.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such run folder")
    paths = [inside(folder, name) for name in (CONFIG, METRICS)]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path}: not found; expected a run folder of `cs336 train`")
    config = from_json(TrainConfig, read_json(paths[0]), paths[0])
    rows = read_metrics(paths[1])
    require(bool(rows), f"{paths[1]}: no step is finished yet")
    for number, row in enumerate(rows, start=1):
        check_row(row, f"{paths[1]}: line {number}")
        if row.get("val_loss", 0) is None:
            del row["val_loss"]
    return Run(str(folder), config, rows)


def check_row(row: dict[str, Any], where: str) -> None:
    """Raise `ValueError` if a row lacks a number that `outcome` needs."""
    missing = sorted(NEEDED - row.keys())
    require(not missing, f"{where} lacks {', '.join(missing)}")
    for name in sorted({*NEEDED, "val_loss"} & row.keys()):
        value = row[name]
        is_number = type(value) in (int, float) and -LARGEST < value < LARGEST  # not NaN either
        require(
            is_number or (value is None and name in NULLABLE),
            f"{where}: {name} is {value!r:.40}; expected a number, fix or delete the row",
        )


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the config fields that differ between runs, except run_dir and resume."""
    configs = [dataclasses.asdict(run.config) for run in runs]
    values = {name: [str(config[name]) or NONE for config in configs] for name in configs[0]}
    return {
        name: row
        for name, row in values.items()
        if len(set(row)) > 1 and name not in ("run_dir", "resume")
    }


def outcome(run: Run) -> dict[str, str]:
    """Return the results of a run as text, with losses in nats per token."""
    losses = [row["train_loss"] for row in run.rows if row["train_loss"] is not None]
    recent = losses[-max(1, len(losses) // 20) :]  # one batch is too noisy
    measured = [(row["val_loss"], row["step"]) for row in run.rows if "val_loss" in row]
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
    """Return a table with a column per run: config fields that differ, then results."""
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
        lines += ["", f"Losses of different {' and '.join(other)} are not comparable."]
    return "\n".join(lines)
