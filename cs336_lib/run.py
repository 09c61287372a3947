"""A run on disk: its folder, its metrics, whether it can be resumed, and runs side by side."""

import dataclasses
import json
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
from cs336_lib.io import inside, locked, read_json, sync, write_atomic, writing

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
            write_atomic(path, kept)

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


CONFIG = "config.json"

SHAPE = ("n_layer", "n_head", "n_embd", "bias")  # what `init_from` decides


def check(config: TrainConfig, tokenizer: Tokenizer) -> tuple[TrainConfig, bool]:
    """The config to go on with, and whether the folder holds a run that it continues.

    Where `init_from` decides the shape, the run's config.json has it, so that those weights, which
    are in the checkpoints by now, need not be there any more. Nothing is written.

    Raises:
        ValueError: it holds a run and resume is off, or holds another run.
    """
    require(bool(config.run_dir), "run_dir is empty; a folder for checkpoints and metrics needed")
    run_dir = Path(config.run_dir)
    if not (run_dir / CONFIG).exists():
        names = {path.name for path in run_dir.iterdir()} if run_dir.is_dir() else set()
        require(
            not run_dir.exists() or (run_dir.is_dir() and names <= {f".tmp-{CONFIG}"}),
            f"{run_dir} exists and is no run of ours; use another --run-dir",
        )
        return config, False
    require(
        config.resume,
        f"{run_dir} already holds a run; pass --resume to continue it, or another --run-dir",
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
    ours = tokenizer_of(run_dir)
    require(
        ours is None or ours == tokenizer,
        f"{run_dir} was trained with another tokenizer than {data_name(config)} has now; "
        f"bring that data back, or use another --run-dir",
    )
    return config, True


def data_name(config: TrainConfig) -> str:
    """How to call the data in a message."""
    return config.train_data or "the corpus that ships"


def check_checkpoint(found: Path, shape: GPTConfig, data: dict[str, Any]) -> int:
    """How many steps a checkpoint has done, of this model and on this data.

    `data` has a fingerprint for each part; a checkpoint without them is older than they are.

    Raises:
        ValueError: it holds another model, or was trained on other data.
    """
    checkpoint.require_same_model(found, shape)
    state = checkpoint.read_state(found)
    saved = state.get("data", data)
    known = saved if isinstance(saved, dict) else {}
    parts = [part for part in data if known.get(part) != data[part]]
    require(
        not parts,
        f"{found}: the {' and '.join(parts)} data has changed since; bring back what this run was "
        f"trained on, or use another --run-dir",
    )
    return state["step"]


@contextmanager
def lock(run_dir: Path, world: World, *, begun: bool) -> Iterator[None]:
    """In here no other run writes to the folder, which is made where it is missing.

    Raises:
        ValueError: another run is writing to it, or has begun in it since it was checked.
    """
    world.barrier()  # until then a process may find something wrong, and nothing is written
    if not world.is_main:
        yield
        return
    with writable(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
    with locked(run_dir):
        require(
            (run_dir / CONFIG).exists() == begun,
            f"{run_dir}: another run was begun or removed there just now; give the command again",
        )
        yield


def write(config: TrainConfig, tokenizer: Tokenizer, found: Path | None, world: World) -> None:
    """Write what makes the folder a run's, and get it ready to go on from checkpoint `found`.

    Raises:
        ValueError: it cannot be written.
    """
    run_dir = Path(config.run_dir)
    if world.is_main:
        with writable(run_dir):
            # First what makes it a run of ours, so that one killed here can be resumed.
            text = json.dumps(dataclasses.asdict(config), indent=1) + "\n"
            write_atomic(run_dir / CONFIG, text)
            if not (run_dir / "tokenizer.json").exists():
                save_tokenizer(tokenizer, run_dir / "tokenizer.json")
            (run_dir / "checkpoints").mkdir(exist_ok=True)
            if found is not None:
                checkpoint.quarantine_newer(found)
    world.barrier()


@contextmanager
def writable(run_dir: Path) -> Iterator[None]:
    """Have an error of the disk before the first step say that the folder is the wrong one."""
    try:
        yield
    except OSError as error:
        reason = f"{run_dir}: cannot be written ({error.strerror})" if error.strerror else error
        raise ValueError(str(reason)) from None


def nan_hint(run_dir: Path) -> str:
    """Return the end of the message about NaN: the newest checkpoint, and what to try."""
    newest = checkpoint.newest_valid(run_dir / "checkpoints", (checkpoint.STATE,))
    return f"newest checkpoint: {newest or 'none'}; try a smaller --learning-rate"


@contextmanager
def resume_hint(config: TrainConfig) -> Iterator[None]:
    """Have an error of the disk or of another process say how the run goes on."""
    try:
        yield
    except BrokenPipeError:  # nobody reads what we print
        raise
    except OSError as error:
        found = checkpoint.checkpoints(Path(config.run_dir) / "checkpoints")
        where = f"from {found[-1].name}" if found else "at step 0, for there is no checkpoint yet"
        raise OSError(f"{error}; with --resume the run goes on {where}") from error


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
