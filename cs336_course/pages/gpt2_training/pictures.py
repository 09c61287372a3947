"""Figures on training GPT-2, with tokens, schedules, gradients, and a live view of a run."""

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
from matplotlib.patches import Rectangle

from cs336_course.drawing.charts import curves, draw_levels
from cs336_course.drawing.shown import as_data
from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SKY,
    figure,
    label,
    show_cover,
)
from cs336_course.drawing.training import loss_curves
from cs336_lib.data.corpus import DATA

__all__ = ["loss_curves"]

Row = Mapping[str, Any]


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
        left.text(stage["step"], stage["val_loss"], row, bbox=badge, **number)
        right.text(0.02, height, row, bbox=badge, **number)
        right.text(0.08, height, text, family="monospace", size=18, va="center")
    left.set(xlim=(0, 6200), ylim=(1.3, 3.2), xticks=(0, 3000, 6000))
    label(left, "One hour of training", "step", "loss [nats/letter]")
    right.set_title("What it writes after “Romeo:”", loc="left", weight="bold")
    show_cover()


def token_strip(pieces: Sequence[str], ids: Sequence[int], title: str, columns: int = 8) -> Figure:
    """Draw every token as a box with its text above its id, with `␣` for space, `⏎` for newline."""
    rows = -(-len(pieces) // columns)
    drawing, axes = figure(13, 0.8 + 1.0 * rows)
    for number, (piece, token) in enumerate(zip(pieces, ids, strict=True)):
        row, column = divmod(number, columns)
        colour = (SKY, ORANGE)[(row + column) % 2]
        axes.add_patch(Rectangle((column, row), 0.96, 0.86, facecolor=colour, alpha=0.45))
        shown = piece.replace(" ", "␣").replace("\n", "⏎")
        middle = {"ha": "center", "va": "center"}
        axes.text(column + 0.48, row + 0.28, shown, **middle, size=17, family="DejaVu Sans")
        axes.text(column + 0.48, row + 0.66, str(token), **middle, size=14)
    axes.set(xlim=(0, columns), ylim=(rows, -0.05))
    axes.axis("off")
    axes.set_title(title, loc="left", fontweight="bold")
    return drawing


def schedule(rates: Sequence[float], warmup_steps: int, title: str) -> Figure:
    """Plot a learning rate for every step, with the warm-up shaded and both ends named.

    Args:
        rates: The rate of each step.
        warmup_steps: The number of steps until the peak.
        title: Stands above the figure.
    """
    drawing, axes = figure(11, 4.8)
    axes.plot(rates, color=BLUE)
    peak, last = warmup_steps - 1, len(rates) - 1
    axes.axvspan(0, peak, color=SKY, alpha=0.35)
    notes = {
        0: (16, -2, "left", f"step 0: {rates[0]:.1e}"),
        peak: (10, 4, "left", f"step {peak:,}, end of the warm-up: {rates[peak]:.0e}"),
        last: (-8, -26, "right", f"step {last:,}: {rates[last]:.0e}"),
    }
    for step, (dx, dy, side, text) in notes.items():
        axes.plot(step, rates[step], marker="o", color=BLUE)
        place = {"xytext": (dx, dy), "textcoords": "offset points", "ha": side, "size": 15}
        axes.annotate(text, (step, rates[step]), **place)
    axes.margins(x=0.01, y=0.16)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    label(axes, title, "step", "learning rate")
    return drawing


def gradient_error(errors: Mapping[str, Mapping[int, float]], title: str) -> Figure:
    """Plot the relative error of a gradient over the tokens in its batch, on log-log axes.

    Args:
        errors: For each model, the error by the number of tokens.
        title: Stands above the figure.
    """
    lines = {name: (list(found), list(found.values())) for name, found in errors.items()}
    levels = {"error as large as the gradient": 1}
    y, look = "relative error of the gradient", {"log": "xy", "dots": True, "names": "legend"}
    drawing = curves(title, "tokens in the batch", y, lines, levels=levels, size=(11, 4.8), **look)
    (axes,) = drawing.axes
    tokens = sorted({n for found in errors.values() for n in found})
    axes.set_xticks(tokens, [f"{n:,}" for n in tokens])
    axes.set_yticks([0.01, 0.03, 0.1, 0.3, 1, 3], ["0.01", "0.03", "0.1", "0.3", "1", "3"])
    axes.minorticks_off()
    return drawing


def same_run(ours: Sequence[float], theirs: Sequence[float], title: str) -> Figure:
    """Plot two runs' losses over each other, and below them how far apart they are."""
    drawing, (top, bottom) = figure(11, 6, nrows=2, sharex=True, height_ratios=[1.4, 1])
    top.plot(theirs, color=GREEN, linewidth=9, label="production loop")
    top.plot(ours, color=BLUE, label="yours")
    top.legend()
    apart = np.abs(np.subtract(ours, theirs))
    one_ulp = float(np.spacing(np.float32(max(ours))))
    zero = one_ulp / 10  # where a difference of 0 is drawn
    bottom.semilogy(np.maximum(apart, zero), color=BLACK, linestyle="", marker="o")
    bottom.axhline(one_ulp, color=GREY, linestyle="--", linewidth=2)
    place = {"xytext": (-4, 5), "textcoords": "offset points", "ha": "right", "va": "bottom"}
    note = f"one rounding of fp32 at {max(ours):.1f}"
    bottom.annotate(note, (1, one_ulp), xycoords=("axes fraction", "data"), **place)
    bottom.set_ylim(zero / 4, 1)
    bottom.set_yticks([zero, 1e-5, 1e-3, 1e-1], ["0", "1e-5", "0.001", "0.1"])
    label(top, title, "", "loss [nats/token]")
    label(bottom, "", "step", "difference (log)")
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
        levels: Named horizontal lines [nats per token].
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
        label(self.axes, title, "step", "loss [nats per token]")
        self.drawings += 1
        if self.handle is not None:
            data, how = as_data(self.drawing)
            self.handle.update(data, **how)
        end = self.clock()
        self.next_drawing = end + max(self.every, 10 * (end - begin))
