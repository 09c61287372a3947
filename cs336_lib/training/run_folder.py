"""Create, lock and resume run folders."""

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cs336_lib.config import CHANGEABLE, PATHS, TrainConfig, UserError
from cs336_lib.data.tokenizer import Tokenizer, save_tokenizer, tokenizer_of
from cs336_lib.io import inside, locked, read_json, temporary_path, write_atomic, writing
from cs336_lib.system.processes import World
from cs336_lib.training import checkpoint

CONFIG, METRICS, TOKENIZER, LOCK = "config.json", "metrics.jsonl", "tokenizer.json", ".lock"

ENVIRONMENT = "environment.json"

SHAPE = ("n_layer", "n_head", "n_embd", "bias")  # set by `init_from`


def check(folder: Path, config: TrainConfig, tokenizer: Tokenizer) -> tuple[TrainConfig, bool]:
    """Check that a run can start or resume in a folder. Files aren't changed.

    Returns:
        The config, and whether the folder contains a run to resume. With `init_from`, the model
        shape is read from the saved run, so resuming doesn't need the initial weights.

    Raises:
        FileExistsError: If the folder contains a run and `config.resume` is false, or if it
            contains other files.
        ValueError: If the saved run has a different config or tokenizer.
    """
    if not (folder / CONFIG).exists():
        leftovers = {LOCK, temporary_path(folder / CONFIG).name}
        if folder.exists() and not (folder.is_dir() and {*os.listdir(folder)} <= leftovers):
            raise FileExistsError(f"{folder} exists and isn't a run folder; use another --run-dir")
        return config, False
    if not config.resume:
        raise FileExistsError(
            f"{folder} already holds a run; pass --resume to continue it, or another --run-dir"
        )
    saved = read_json(inside(folder, CONFIG))
    if config.init_from:
        config = with_shape(config, saved)
    found = conflicts(config, saved)
    if tokenizer_of(folder) not in (None, tokenizer):
        found.append(f"tokenizer.json isn't the tokenizer of {data_name(config.train_data)}")
    if found:
        other = f"{folder} holds a run with another config: {'; '.join(found)}"
        raise UserError(f"{other}; resume with the same, or use another --run-dir")
    return config, True


def conflicts(config: TrainConfig, saved: dict[str, Any]) -> list[str]:
    """List the fields that differ from a saved config and affect the result of the run."""
    differences = []
    for field in dataclasses.fields(config):
        before, now = saved.get(field.name, field.default), getattr(config, field.name)
        same = before == now
        if field.name in PATHS and before and now:
            same = os.path.abspath(str(before)) == os.path.abspath(now)
        if not same and field.name not in CHANGEABLE:
            differences.append(f"{field.name} was {before!r}, now {now!r}")
    return differences


def with_shape(config: TrainConfig, shape: dict[str, Any]) -> TrainConfig:
    """Return the config with the shape of a model, which `init_from` decides."""
    return dataclasses.replace(config, **{name: shape[name] for name in SHAPE if name in shape})


def data_name(train_data: str) -> str:
    """Return the name of the training data for messages."""
    return train_data or "the corpus that ships"


def resume_point(
    folder: Path, data: dict[str, Any], device: torch.device, world: World
) -> Path | None:
    """Find the newest valid checkpoint, and check that it was made with this data.

    All ranks return the same checkpoint.

    Args:
        folder: Folder of the run.
        data: Fingerprints of the training and validation data. If a checkpoint has no fingerprints,
            the data isn't compared.
        device: Device for communication between the ranks.
        world: The ranks. Only rank 0 searches the folder.

    Returns:
        The checkpoint, or `None` if there is none.

    Raises:
        ValueError: If all checkpoints are corrupt, or if the data differs.
    """
    folder, step = folder / "checkpoints", 0
    if world.is_main and checkpoint.checkpoints(folder):
        newest = checkpoint.newest_valid(folder)
        step = checkpoint.step_of(newest) if newest else -1
    step = int(world.sum(step, device=device)[0])  # the other ranks add zero
    if step < 0:  # starting at step 0 would overwrite the run
        raise UserError(
            f"{folder}: all checkpoints are corrupt; restore one or use another --run-dir"
        )
    if step == 0:
        return None
    path = checkpoint.path_of(folder, step)
    if checkpoint.read_state(path).get("data", data) != data:
        advice = "restore it, or use another --run-dir"
        raise UserError(f"{path}: this run's data has changed since; {advice}")
    return path


@contextmanager
def lock(folder: Path, world: World, *, begun: bool) -> Iterator[None]:
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
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK):
        if (folder / CONFIG).exists() != begun:
            changed = "another run has just started or was removed there"
            raise UserError(f"{folder}: {changed}; run this again")
        yield


def write(
    folder: Path, config: TrainConfig, tokenizer: Tokenizer, resumed: Path | None, world: World
) -> None:
    """Write config.json and tokenizer.json, and rename checkpoints newer than `resumed`.

    Raises:
        OSError: If the folder can't be written.
    """
    if world.is_main:
        # The config comes first, because --resume accepts a folder that has one.
        write_atomic(folder / CONFIG, json.dumps(dataclasses.asdict(config), indent=1) + "\n")
        if not (folder / TOKENIZER).exists():
            save_tokenizer(tokenizer, folder / TOKENIZER)
        with writing(folder):
            (folder / "checkpoints").mkdir(exist_ok=True)
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
def resume_hint(folder: Path) -> Iterator[None]:
    """Add advice about --resume to disk and communication errors raised in this block."""
    try:
        yield
    except (BrokenPipeError, FileExistsError, FileNotFoundError):
        raise
    except OSError as error:
        if not os.path.exists(folder / CONFIG):
            raise
        saved = checkpoint.checkpoints(folder / "checkpoints")
        where = saved[-1].name if saved else "step 0, as there is no checkpoint yet"
        raise OSError(f"{error}; with --resume the run continues from {where}") from error
