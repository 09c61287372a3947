"""Send metrics to experiment trackers."""

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cs336_lib.config import TrainConfig

Send = Callable[[dict[str, Any]], None]


def require_tracker(config: TrainConfig) -> None:
    """Raise `ValueError` if the package named by `config.log_to` isn't installed."""
    name = config.log_to
    if name and find_spec(name) is None:
        raise ValueError(f"--log-to {name}: the package {name} isn't installed; pip install {name}")


def open_tracker(config: TrainConfig, stack: ExitStack) -> Send | None:
    """Open the tracker named by `config.log_to`. `stack` closes it.

    TensorBoard event files are written to the subfolder `tensorboard` of the run folder. Weights &
    Biases and trackio have the same interface.

    Returns:
        A function that sends the numbers of a row to the tracker, or `None` if log_to is empty.
    """
    if not config.log_to:
        return None
    folder = Path(config.run_dir)
    if config.log_to == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = stack.enter_context(SummaryWriter(str(folder / "tensorboard")))

        def send(row: dict[str, Any]) -> None:
            for name, value in numbers(row).items():
                writer.add_scalar(name, value, row["step"])

        return send
    tracker = import_module(config.log_to)
    tracker.init(project="cs336", name=folder.name, config=dataclasses.asdict(config))
    stack.callback(tracker.finish)
    return lambda row: tracker.log(numbers(row), step=row["step"])


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """Return the numeric values of a row, without the step."""
    values = row.items()
    return {k: float(v) for k, v in values if k != "step" and isinstance(v, (int, float))}
