"""A training run as its metrics.jsonl tells it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cs336_lib.classroom.plots.style import BLUE, GREY, ORANGE, figure, label


def training_run(
    metrics: Sequence[Mapping[str, Any]], levels: Mapping[str, float] | None = None
) -> Figure:
    """Training loss of each step (thin) and smoothed, validation loss, and named levels [nats]."""
    fig, axes = figure(11, 5)
    steps = np.array([row["step"] for row in metrics])
    losses = np.array([row["train_loss"] for row in metrics])
    width = max(1, len(losses) // 40)
    smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
    axes.plot(steps, losses, color=BLUE, alpha=0.25, linewidth=1)
    axes.plot(steps[width - 1 :], smooth, color=BLUE, label=f"training, mean of {width} steps")
    measured = [row for row in metrics if "val_loss" in row]
    axes.plot(
        [row["step"] for row in measured],
        [row["val_loss"] for row in measured],
        color=ORANGE,
        marker="o",
        label="validation",
    )
    for name, level in (levels or {}).items():
        axes.axhline(level, color=GREY, linestyle="--", linewidth=2)
        axes.annotate(name, (steps[-1], level), ha="right", va="bottom", color="black")
    label(axes, "Loss during training", "step", "loss [nats per token]")
    axes.legend(loc="upper right", bbox_to_anchor=(1, 0.8))
    return fig
