"""Figures on training with many devices, such as shares of a batch, memory and cost."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from cs336_course.figures.style import (
    BLACK,
    BLUE,
    BROWN,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    figure,
    ink,
    label,
)

RANK_COLOURS = (SKY, ORANGE, GREEN, PINK)
PART_COLOURS = {"weights": BLUE, "gradients": ORANGE, "optimizer state": GREEN}

Pieces = Sequence[tuple[int, int]]  # (first window, how many), as returned by World.pieces
FP32_STEP = 2.0**-20  # between neighbouring numbers from 8 to 16
EQUAL = 1e-8  # where differences of zero are drawn
Run = tuple[Sequence[int], Sequence[float], Sequence[float]]  # steps, losses, accuracies


def who_reads_what(rows: Mapping[str, Sequence[Pieces]], windows: int, title: str) -> Figure:
    """Draw a batch's windows as boxes coloured by rank, in one row per number of processes.

    `rows` holds the pieces of every rank, by the name of the row. Each piece is framed, and the
    number in its boxes is the rank that reads it.
    """
    drawing, axes = figure(10, 1.6 + 0.75 * len(rows))
    for y, ranks in enumerate(rows.values()):
        for rank, pieces in enumerate(ranks):
            colour = RANK_COLOURS[rank % len(RANK_COLOURS)]
            for first, size in pieces:
                axes.add_patch(Rectangle((first, y - 0.36), size, 0.72, facecolor=colour))
                frame = {"fill": False, "edgecolor": BLACK, "linewidth": 2.5}
                axes.add_patch(Rectangle((first, y - 0.36), size, 0.72, **frame))
                for window in range(first, first + size):
                    axes.text(window + 0.5, y, str(rank), ha="center", va="center", size=15)
    axes.set_xlim(0, windows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xticks([window + 0.5 for window in range(windows)], [str(w) for w in range(windows)])
    axes.grid(visible=False)
    label(axes, title, "window of the batch (in its box: the rank that reads it)", "")
    return drawing


def same_curve(
    curves: Mapping[str, Sequence[float]], differences: Mapping[str, Sequence[float]], title: str
) -> Figure:
    """Plot loss curves on the left, the first one as a wide band, and differences on the right."""
    drawing, (left, right) = figure(11.5, 4.6, ncols=2)
    size = {"linestyle": "none", "markersize": 9, "markeredgewidth": 2}
    looks = [
        {"color": GREEN, "linewidth": 9, "solid_capstyle": "round"},
        {"color": BLACK, "linewidth": 2.5},
        {"color": RED, "marker": "o", "fillstyle": "none", **size},
    ]
    for (name, losses), look in zip(curves.items(), looks, strict=False):
        left.plot(losses, label=name, **look)
    markers = [{"color": BLACK, "marker": "x"}, {"color": RED, "marker": "o", "fillstyle": "none"}]
    for (name, values), look in zip(differences.items(), markers, strict=False):
        right.semilogy([max(v, EQUAL) for v in values], label=name, **size, **look)
    right.set_ylim(EQUAL / 3, 1e-2)
    right.set_yticks([EQUAL, 1e-6, 1e-4, 1e-2], ["equal", "1e-6", "1e-4", "1e-2"])
    right.minorticks_off()
    right.axhline(FP32_STEP, color=GREY, linestyle=":", linewidth=2.5)
    note = {"xytext": (0, -12), "textcoords": "offset points", "ha": "right", "va": "top"}
    place = {"xycoords": ("axes fraction", "data")}  # below its line, where no marker can be
    right.annotate("fp32's spacing near 10", (1, FP32_STEP), **place, **note, size=14)
    label(left, title, "step", "loss [nats/token]")
    label(right, "Difference from one process", "step", "|difference| [nats] (log)")
    left.legend()
    right.legend(loc="upper left")
    return drawing


def bytes_per_gpu(
    bars: Mapping[str, Mapping[str, float]], memory: Mapping[str, float], title: str
) -> Figure:
    """Draw stacked bars of gigabytes on one GPU, by part, and dashed lines for GPU memories."""
    drawing, axes = figure(11, 0.62 * len(bars) + 2.2)
    for y, parts in enumerate(bars.values()):
        left = 0.0
        for part, size in parts.items():
            axes.barh(y, size / 1e9, left=left, color=PART_COLOURS[part], height=0.66)
            left += size / 1e9
        note = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "size": 14}
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.annotate(f"{left:.1f} GB", (left, y), **note, bbox=ground, zorder=5)
    for name, size in memory.items():
        axes.axvline(size / 1e9, color=RED, linestyle="--", linewidth=2)
        note = {"xytext": (4, 5), "textcoords": "offset points", "size": 13, "color": ink(RED)}
        axes.annotate(name, (size / 1e9, 1), xycoords=("data", "axes fraction"), **note)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.grid(axis="y", visible=False)
    axes.legend(
        handles=[Patch(facecolor=colour, label=part) for part, colour in PART_COLOURS.items()],
        loc="lower right",
    )
    label(axes, title, "memory on one GPU, activations left out [GB]", "")
    axes.title.set_position((0, 1.1))
    axes.set_title(title, loc="left", fontweight="bold", pad=28)
    return drawing


def bill(hours: Mapping[str, tuple[float, float]], dollars: Sequence[float], title: str) -> Figure:
    """Draw the hours of each model on one and on eight GPUs, with the price written above."""
    drawing, axes = figure(10.5, 4.8)
    for shift, column, colour, name in ((-0.2, 0, BLUE, "1 GPU"), (0.2, 1, ORANGE, "8 GPUs")):
        places = [x + shift for x in range(len(hours))]
        values = [pair[column] for pair in hours.values()]
        axes.bar(places, values, width=0.38, color=colour, label=name)
        for x, value in zip(places, values, strict=True):
            text = f"{value:.2g} h"
            axes.text(x, value * 1.06, text, ha="center", va="bottom", size=13)
    axes.set_yscale("log")
    axes.set_ylim(0.3, 200)
    axes.set_yticks([1, 10, 100], ["1", "10", "100"])
    names = [f"{name}\n${price:,.0f}" for name, price in zip(hours, dollars, strict=True)]
    axes.set_xticks(range(len(hours)), names)
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper left")
    label(axes, title, "model, and its price either way", "time [h] (log)")
    return drawing


def own_run(log: Path) -> dict[str, Run]:
    """Read the validations of a run of `train_gpt2.py` from its log, if there is one.

    Returns:
        The run by name. The result is empty if the log doesn't exist or has no validation.
    """
    lines = log.read_text().splitlines() if log.exists() else []
    rows = [row for line in lines if "val_loss" in (row := json.loads(line))]
    if not rows:
        return {}
    steps, losses = [row["step"] for row in rows], [row["val_loss"] for row in rows]
    return {"yours": (steps, losses, [row["hellaswag"] for row in rows if "hellaswag" in row])}


def real_runs(runs: Mapping[str, Run], levels: tuple[float, float, float]) -> Figure:
    """Plot runs' validation losses and HellaSwag accuracies, with the levels of GPT-2 and chance.

    Args:
        runs: Steps, losses and accuracies by the run's name. Without accuracies, it is on the left
            only.
        levels: GPT-2's loss, GPT-2's accuracy, and the accuracy of guessing.
    """
    drawing, (left, right) = figure(12, 5, ncols=2)
    looks = zip((BLUE, BROWN, GREEN), "os^", strict=True)
    for (name, (steps, losses, accuracies)), (colour, marker) in zip(
        runs.items(), looks, strict=False
    ):
        look = {"color": colour, "marker": marker, "markersize": 6}
        left.plot(steps, losses, label=name, **look)
        if accuracies:
            right.plot(steps, [100 * accuracy for accuracy in accuracies], **look)
    for axes in (left, right):
        axes.set_xticks(range(0, 20_001, 5000), [f"{step:,}" for step in range(0, 20_001, 5000)])
        axes.set_xlim(0, 20_000)
    left.set_ylim(2.95, 4.4)
    right.set_ylim(23, 32)
    above = {"textcoords": "offset points", "xytext": (0, 6), "size": 14}
    left.axhline(levels[0], color=RED, linestyle="--", label=f"GPT-2, on FineWeb-Edu: {levels[0]}")
    for level, name, colour, x in (
        (100 * levels[1], f"OpenAI's GPT-2: {100 * levels[1]:.2f}", RED, 0.02),
        (100 * levels[2], f"guessing: {100 * levels[2]:.0f}", GREY, 0.98),
    ):
        right.axhline(level, color=colour, linestyle="--")
        place = {"xycoords": ("axes fraction", "data"), "ha": "left" if x < 0.5 else "right"}
        right.annotate(name, (x, level), color=ink(colour), **place, **above)
    left.legend(loc="upper right")
    label(left, "Validation loss", "step of 524,288 tokens", "loss [nats/token]")
    label(right, "HellaSwag", "step of 524,288 tokens", "right answers [%]")
    return drawing
