"""Send metrics to experiment trackers."""

import dataclasses
import json
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cs336_lib.config import TrainConfig
from cs336_lib.io import Log

Send = Callable[[dict[str, Any]], None]


def require_tracker(config: TrainConfig) -> None:
    """Raise `ValueError` if the package named by `config.log_to` isn't installed."""
    name = config.log_to
    if name and find_spec(name) is None:
        raise ValueError(f"--log-to {name}: the package {name} isn't installed; pip install {name}")


def open_tracker(config: TrainConfig, stack: ExitStack) -> Send | None:
    """Open the tracker named by `config.log_to`, and send it the config. `stack` closes it.

    A failing tracker doesn't stop the run. After the first error, a warning is printed, and nothing
    more is sent.

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

    opened = attempt(open_tensorboard if config.log_to == "tensorboard" else open_client, config)
    if opened is None:
        return None
    send, close = opened
    stack.callback(attempt, close)
    return lambda row: attempt(send, row)


def open_tensorboard(config: TrainConfig) -> tuple[Send, Callable[[], None]]:
    """Open TensorBoard event files in the subfolder `tensorboard` of the run folder.

    Returns:
        Functions that send a row and close the files.
    """
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(Path(config.run_dir) / "tensorboard"))
    # TensorBoard shows text as Markdown, in which indented lines are code.
    writer.add_text("config", indented(json.dumps(dataclasses.asdict(config), indent=1)), 0)

    def send(row: dict[str, Any]) -> None:
        for name, value in numbers(row).items():
            writer.add_scalar(name, value, row["step"])
        if "sample" in row:
            writer.add_text("sample", indented(row["sample"]), row["step"])

    return send, writer.close


def open_client(config: TrainConfig) -> tuple[Send, Callable[[], None]]:
    """Start a run of Weights & Biases or trackio, which have the same interface.

    Returns:
        Functions that send a row and finish the run.
    """
    tracker = import_module(config.log_to)
    name = Path(config.run_dir).name
    tracker.init(project="cs336", name=name, config=dataclasses.asdict(config))

    def send(row: dict[str, Any]) -> None:
        text = {"sample": row["sample"]} if "sample" in row else {}
        tracker.log(numbers(row) | text, step=row["step"])

    return send, tracker.finish


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """Return the numeric values of a row, without the step."""
    values = row.items()
    return {k: float(v) for k, v in values if k != "step" and isinstance(v, (int, float))}


def indented(text: str) -> str:
    """Return a text as a code block in Markdown."""
    return "\n".join(f"    {line}" for line in text.split("\n"))
