"""Send metrics to experiment trackers."""

import dataclasses
import json
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from typing import Any

from cs336_lib.config import TrainConfig, UserError
from cs336_lib.io import Log, inside, write_atomic

Send = Callable[[dict[str, Any]], None]

CODE = "    "  # TensorBoard shows text as Markdown, in which indented lines are code
ID = "tracker_id"  # file in the run folder, with which a resumed run finds its curves


def require_tracker(name: str) -> None:
    """Raise `UserError` if the package of this tracker isn't installed. "" is no tracker."""
    if name and find_spec(name) is None:
        raise UserError(f"--log-to {name}: the package {name} isn't installed; pip install {name}")


def open_tracker(config: TrainConfig, stack: ExitStack, first_step: int = 0) -> Send | None:
    """Open the tracker named by `config.log_to`, and send it the config. `stack` closes it.

    A failing tracker doesn't stop the run. After the first error, a warning is printed, and nothing
    more is sent. A resumed run continues its curves.

    Args:
        config: Config of the run.
        stack: Exit stack that closes the tracker.
        first_step: Step at which the run starts or resumes.

    Returns:
        A function that sends the numbers and the sample of a row to the tracker, or `None` if
        log_to is empty.
    """
    if not config.log_to:
        return None
    broken = False

    def attempt(action: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal broken
        if broken:
            return None
        try:
            return action(*arguments)
        except Exception as error:  # many kinds, from the client, the network and the disk
            broken = True
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            advice = "the run continues without it, and metrics.jsonl has every row"
            Log().write(f"Warning: {config.log_to} failed ({reason:.200}); {advice}\n")
            return None

    tensorboard = partial(open_tensorboard, first_step=first_step)
    opened = attempt(tensorboard if config.log_to == "tensorboard" else open_client, config)
    if opened is None:
        return None
    send, close = opened
    stack.callback(attempt, close)
    return lambda row: attempt(send, row)


def open_tensorboard(config: TrainConfig, first_step: int) -> tuple[Send, Callable[[], None]]:
    """Open TensorBoard event files in the subfolder `tensorboard` of the run folder.

    TensorBoard hides earlier rows from `first_step` on, because a resumed run repeats them.

    Returns:
        Functions that send a row and close the files.
    """
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(Path(config.run_dir) / "tensorboard"), purge_step=first_step)
    text = json.dumps(dataclasses.asdict(config), indent=1)
    writer.add_text("config", indent(text, CODE), first_step)

    def send(row: dict[str, Any]) -> None:
        for name, value in numbers(row).items():
            writer.add_scalar(name, value, row["step"])
        if "sample" in row:
            writer.add_text("sample", indent(row["sample"], CODE), row["step"])

    return send, writer.close


def open_client(config: TrainConfig) -> tuple[Send, Callable[[], None]]:
    """Start or resume a run of Weights & Biases or trackio, which have nearly the same interface.

    A resumed run repeats the steps after its checkpoint. wandb gets only those that it lacks.
    trackio doesn't say what it has, so it keeps both rows of such a step.

    Returns:
        Functions that send a row and finish the run.
    """
    tracker = import_module(config.log_to)
    run_dir = Path(config.run_dir)
    path = inside(run_dir, ID)
    if not path.exists():
        write_atomic(path, secrets.token_hex(8) + "\n")
    number = path.read_text().strip()
    # trackio has no id, and finds a run by its name.
    has_id = config.log_to == "wandb"
    names = {"name": run_dir.name, "id": number} if has_id else {"name": f"{run_dir.name}-{number}"}
    settings = dataclasses.asdict(config)
    opened = tracker.init(project="cs336", config=settings, resume="allow", **names)
    unsent = getattr(opened, "step", 0)  # wandb's next step

    def send(row: dict[str, Any]) -> None:
        text = {"sample": row["sample"]} if "sample" in row else {}
        if row["step"] >= unsent:
            tracker.log(numbers(row) | text, step=row["step"])

    return send, tracker.finish


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """Return the numeric values of a row, without the step."""
    values = row.items()
    return {k: float(v) for k, v in values if k != "step" and isinstance(v, (int, float))}
