"""The folder of a run: who may write to it, whether it can be resumed, and what stands in it."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cs336_lib import checkpoint
from cs336_lib.config import TrainConfig, require
from cs336_lib.distributed import World
from cs336_lib.files import inside, read_json, write_whole
from cs336_lib.tokenizer import Tokenizer, save_tokenizer


def open_run(config: TrainConfig, tokenizer: Tokenizer, world: World) -> Path:
    """Make the run folder, or check that it can be resumed.

    Raises:
        ValueError: it holds a run and resume is off, holds another run, or cannot be written.
    """
    require(bool(config.run_dir), "run_dir is empty; a folder for checkpoints and metrics needed")
    run_dir = Path(config.run_dir)
    config_file = run_dir / "config.json"
    if config_file.exists():
        require(
            config.resume,
            f"{run_dir} already holds a run; pass --resume to continue it, or another --run-dir",
        )
        conflicts = config.conflicts(read_json(inside(run_dir, "config.json")))
        require(
            not conflicts,
            f"{run_dir} holds a run with another config: {'; '.join(conflicts)}; "
            f"resume with the same one, or use another --run-dir",
        )
    elif run_dir.exists():
        require(
            run_dir.is_dir() and {path.name for path in run_dir.iterdir()} <= {".tmp-config.json"},
            f"{run_dir} exists and is no run of ours; use another --run-dir",
        )
    world.barrier()
    if world.is_main:
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            # First what makes it a run of ours, so that one killed here can be resumed.
            text = json.dumps(dataclasses.asdict(config), indent=1) + "\n"
            write_whole(config_file, text)
            save_tokenizer(tokenizer, run_dir / "tokenizer.json")
            (run_dir / "checkpoints").mkdir(exist_ok=True)
        except OSError as error:
            reason = f"{run_dir}: cannot be written ({error.strerror})" if error.strerror else error
            raise ValueError(str(reason)) from None
    world.barrier()
    return run_dir


def advice(run_dir: Path) -> str:
    """Where a run whose numbers have gone wrong was still right."""
    last_good = checkpoint.newest_good(run_dir / "checkpoints")
    return f"last good checkpoint: {last_good or 'none'}; try a smaller --learning-rate"


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
