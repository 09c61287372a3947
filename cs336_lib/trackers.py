"""Experiment trackers that rows of metrics can go to, beside metrics.jsonl."""

import dataclasses
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cs336_lib.config import TrainConfig, require

Send = Callable[[dict[str, Any]], None]


def open_tracker(config: TrainConfig) -> Send | None:
    """Open the tracker that `config.log_to` names; return what sends a row, or None without one."""
    if not config.log_to:
        return None
    return tensorboard(config) if config.log_to == "tensorboard" else wandb_like(config)


def require_tracker(config: TrainConfig) -> None:
    """Raise `ValueError` if the tracker's package isn't installed."""
    name = config.log_to
    require(
        not name or find_spec(name) is not None,
        f"--log-to {name}: the package {name} isn't installed; pip install {name}",
    )


def wandb_like(config: TrainConfig) -> Send:
    """Open a run of Weights & Biases, or of trackio, which has the same functions."""
    if config.log_to == "wandb":
        import wandb as tracker
    else:
        import trackio as tracker
    settings = dataclasses.asdict(config)
    tracker.init(project="cs336", name=Path(config.run_dir).name, config=settings)
    return lambda row: tracker.log(numbers(row), step=row["step"])


def tensorboard(config: TrainConfig) -> Send:
    """Write TensorBoard's event files into the folder `tensorboard` of the run."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(Path(config.run_dir) / "tensorboard"))

    def send(row: dict[str, Any]) -> None:
        for name, value in numbers(row).items():
            writer.add_scalar(name, value, row["step"])

    return send


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """What a tracker can draw of a row: its numbers, without the step itself."""
    return {
        name: float(value)
        for name, value in row.items()
        if name != "step" and isinstance(value, (int, float))
    }
