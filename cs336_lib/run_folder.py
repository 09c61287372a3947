"""The folder of a run: who may write to it, whether it can be resumed, and what stands in it."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cs336_lib import checkpoint
from cs336_lib.config import GPTConfig, TrainConfig, require
from cs336_lib.distributed import World
from cs336_lib.files import inside, only_writer, read_json, write_whole
from cs336_lib.same_ids import same_tokenizer, tokenizer_of
from cs336_lib.tokenizer import Tokenizer, save_tokenizer

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
        ours is None or same_tokenizer(ours, tokenizer),
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
def only_run(run_dir: Path, world: World, *, begun: bool) -> Iterator[None]:
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
    with only_writer(run_dir):
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
            write_whole(run_dir / CONFIG, text)
            if not (run_dir / "tokenizer.json").exists():
                save_tokenizer(tokenizer, run_dir / "tokenizer.json")
            (run_dir / "checkpoints").mkdir(exist_ok=True)
            if found is not None:
                checkpoint.set_aside_after(found)
    world.barrier()


@contextmanager
def writable(run_dir: Path) -> Iterator[None]:
    """Have an error of the disk before the first step say that the folder is the wrong one."""
    try:
        yield
    except OSError as error:
        reason = f"{run_dir}: cannot be written ({error.strerror})" if error.strerror else error
        raise ValueError(str(reason)) from None


def advice(run_dir: Path) -> str:
    """Return the end of the message about NaN: the newest checkpoint, and what to try."""
    newest = checkpoint.newest_good(run_dir / "checkpoints", (checkpoint.STATE,))
    return f"newest checkpoint: {newest or 'none'}; try a smaller --learning-rate"


@contextmanager
def way_back(config: TrainConfig) -> Iterator[None]:
    """Have an error of the disk or of another process say how the run goes on."""
    try:
        yield
    except BrokenPipeError:  # nobody reads what we print
        raise
    except OSError as error:
        found = checkpoint.checkpoints(Path(config.run_dir) / "checkpoints")
        where = f"from {found[-1].name}" if found else "at step 0, for there is no checkpoint yet"
        raise OSError(f"{error}; with --resume the run goes on {where}") from error
