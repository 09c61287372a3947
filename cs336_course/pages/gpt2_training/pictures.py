"""Figures on training GPT-2, with warm-ups and a live view of a run."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from IPython import get_ipython
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cs336_course.drawing.charts import curves, draw_levels
from cs336_course.drawing.shown import as_data
from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    RED,
    SKY,
    figure,
    label,
    show_cover,
)
from cs336_lib.data.corpus import DATA

__all__ = ["curves"]

Row = Mapping[str, Any]

STUCK = 0.1  # a past in reverse costs at least as many nats, if a model reads it


def cover() -> None:
    """Draw the loss of a recorded run of an hour, with what it wrote along the way."""
    run = json.loads((DATA / "hour_run.json").read_text())
    _, (left, right) = figure(10, 3.2, ncols=2, width_ratios=(1, 1.5))
    means = np.reshape(run["losses"], (-1, 5, 2)).mean(1)
    left.plot(*means.T, color=BLUE)
    right.axis("off")
    badge = {"boxstyle": "circle,pad=0.25", "facecolor": RED}
    number = {"ha": "center", "va": "center", "color": "white", "weight": "bold", "size": 17}
    for row, stage in enumerate(run["stages"], 1):
        text = " ".join(stage["sample"].removeprefix("Romeo:").split())
        text, height = text[:34].rpartition(" ")[0], 1.14 - 0.27 * row
        left.text(stage["step"], np.interp(stage["step"], *means.T), row, bbox=badge, **number)
        right.text(0.02, height, row, bbox=badge, **number)
        right.text(0.08, height, text, family="monospace", size=18, va="center")
    left.set(xlim=(0, 6200), ylim=(1.3, 3.2), xticks=(0, 3000, 6000))
    label(left, "One hour of training", "step", "training loss [nats/letter]")
    right.set_title("What it writes after “Romeo:”", loc="left", weight="bold")
    show_cover()


def warmups(runs: Sequence[Row], mark: float) -> Figure:
    """Plot the loss of runs of 400 steps by warm-up, with a panel per rate and a dashed mark.

    Runs to which the order of the past makes hardly any difference are red crosses.
    """
    chosen = {"steps": 400, "lowest": 0.1, "clip": 1}
    runs = [run for run in runs if chosen.items() <= run.items()]
    rates, lengths = (sorted({run[name] for run in runs}) for name in ("rate", "warmup"))
    drawing, panels = figure(13, 4.6, ncols=len(rates), sharey=True)
    kinds = {True: ("hardly reads its past", "X", RED), False: ("reads its past", "o", BLUE)}
    for axes, rate in zip(panels, rates, strict=True):
        for run in (run for run in runs if run["rate"] == rate):
            name, marker, colour = kinds[run["backward"] - run["forward"] < STUCK]
            place = lengths.index(run["warmup"]) + 0.15 * (run["seed"] - 1.5)
            axes.plot(place, run["loss"], marker, color=colour, markersize=10, label=name)
        axes.axhline(mark, color=BLACK, linestyle="--", linewidth=1.5, label="pairs of letters")
        axes.set_xticks(range(len(lengths)), lengths)
        axes.set_xlim(-0.5, len(lengths) - 0.5)
        label(axes, f"rate {rate:g}", "warm-up [steps]", "")
    named = dict(zip(*panels[-1].get_legend_handles_labels()[::-1], strict=True))
    drawing.legend(named.values(), named, loc="outside lower center", ncols=3)
    panels[0].set_ylabel("loss [nats/letter]")
    return drawing


def draw_run(axes: Axes, metrics: Sequence[Row], levels: Mapping[str, float]) -> None:
    """Plot each step's training loss (thin), its mean (thick), validation loss, and levels."""
    steps = np.array([row["step"] for row in metrics])
    losses = np.array([row["train_loss"] for row in metrics])
    if len(losses):
        width = max(1, len(losses) // 30)
        smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
        axes.plot(steps, losses, color=SKY, linewidth=0.8)
        middle = slice(width // 2, width // 2 + len(smooth))
        axes.plot(steps[middle], smooth, color=BLUE, label=f"training, mean of {width}")
    measured = [row for row in metrics if "val_loss" in row]
    if measured:
        axes.plot(
            [row["step"] for row in measured],
            [row["val_loss"] for row in measured],
            color=RED,
            marker="o",
            label="validation",
        )
    draw_levels(axes, levels)
    if len(losses):
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)


class LiveLossPlot:
    """A plot of the loss that is redrawn in place while a run continues.

        with LiveLossPlot(config.max_steps) as live:
            train(config, on_step=live)

    It is drawn at most once every `every` seconds, less often if that would take more than a tenth
    of the time, and a last time on leaving. Outside a notebook, no figure appears.

    Args:
        max_steps: The end of the step axis.
        levels: Named horizontal lines [nats/letter].
        every: Least time between two drawings [s].
        clock: Function that returns the time [s], for tests.
    """

    def __init__(
        self,
        max_steps: int,
        levels: Mapping[str, float] | None = None,
        *,
        every: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.max_steps, self.levels, self.every, self.clock = max_steps, levels or {}, every, clock
        self.rows: list[Row] = []
        self.drawing, self.axes = figure(11, 5)
        plt.close(self.drawing)  # otherwise the notebook shows it again at the end of the cell
        self.handle = None
        self.drawings, self.next_drawing = 0, -float("inf")

    def __enter__(self) -> "LiveLossPlot":
        self.redraw()
        if get_ipython() is not None:
            data, how = as_data(self.drawing)
            self.handle = display(data, display_id=True, **how)
        return self

    def __call__(self, row: Row) -> None:
        """Add a step's row of metrics, and redraw if it is time."""
        self.rows.append(row)
        if self.clock() >= self.next_drawing:
            self.redraw()

    def __exit__(self, *error: object) -> None:
        self.redraw()

    def redraw(self) -> None:
        """Draw all rows so far, and update the figure in place."""
        begin = self.clock()
        self.axes.clear()
        draw_run(self.axes, self.rows, self.levels)
        done = self.rows[-1]["step"] + 1 if self.rows else 0
        self.axes.set_xlim(0, self.max_steps)
        title = f"Step {done:,} of {self.max_steps:,}"
        label(self.axes, title, "step", "loss [nats/letter]")
        self.drawings += 1
        if self.handle is not None:
            data, how = as_data(self.drawing)
            self.handle.update(data, **how)
        end = self.clock()
        self.next_drawing = end + max(self.every, 10 * (end - begin))
