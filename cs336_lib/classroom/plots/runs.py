"""Figure that compares the metrics of training runs."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from cs336_lib.classroom.plots.style import BLACK, PALETTE, figure, label

MARKERS = "osD^vP*X"


def compared(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Plot the losses of several runs against tokens.

    Training losses are drawn as thin lines, and validation losses as thick lines.
    """
    fig, axes = figure(12, 6)
    looks = cycle(zip(PALETTE, MARKERS, strict=True))
    for (name, rows), (colour, marker) in zip(runs.items(), looks, strict=False):
        steps = [row for row in rows if row["train_loss"] is not None]
        tokens = np.array([row["tokens"] for row in steps])
        losses = np.array([row["train_loss"] for row in steps])
        width = max(1, len(losses) // 50)
        smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
        axes.plot(tokens[width - 1 :], smooth, color=colour, alpha=0.5, linewidth=1.5)
        measured = [row for row in rows if "val_loss" in row]
        axes.plot(
            [row["tokens"] for row in measured],
            [row["val_loss"] for row in measured],
            color=colour,
            marker=marker,
            label=name,
        )
    axes.plot([], [], color=BLACK, alpha=0.5, linewidth=1.5, label="thin: in training, smoothed")
    axes.xaxis.set_major_formatter(EngFormatter())
    label(axes, "Validation loss of each run", "tokens", "loss [nats per token]")
    axes.legend()
    return fig
