"""Plots of what models of today cost."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    BROWN,
    FILLS,
    GREY,
    ORANGE,
    figure,
)
from cs336_lib.formatting import digits

NAMES = {"tensor": "waiting for sums (tensor)", "data": "waiting for weights (data)"}  # of parts


def bill(
    title: str, seconds: Mapping[str, float], gigabytes: Mapping[str, float], there: float
) -> Figure:
    """Draw the time of a step and the memory of a device as two stacked bars.

    Args:
        title: Title of the figure.
        seconds: Seconds of a step by part.
        gigabytes: Memory of a device in GB, by kind.
        there: Memory that a device has, in GB.
    """
    fig, (above, below) = figure(12.5, 5.6, nrows=2)
    stack(above, seconds, "a step [s]")
    stack(below, gigabytes, "memory [GB]")
    below.axvline(there, color=BLACK, ls="--", lw=2.5)
    below.set_xlim(0, max(below.get_xlim()[1], 1.08 * there))
    below.text(there, 0.42, f" {digits(there)} GB", va="bottom", fontweight="bold")
    fig.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=17)
    return fig


def stack(axes: Axes, parts: Mapping[str, float], unit: str) -> None:
    """Draw one stacked bar with a legend beside it."""
    left, total = 0.0, sum(parts.values())
    for (kind, size), colour in zip(parts.items(), FILLS, strict=False):
        if size < 0.002 * total:
            continue
        name = f"{NAMES.get(kind, kind)} {size:.3g}"
        axes.barh(0, size, left=left, height=0.7, color=colour, label=name)
        left += size
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 0}  # the limit may be behind it
    axes.text(
        left, 0, f" {total:.3g}", va="center", fontweight="bold", color=BLACK, bbox=ground, zorder=3
    )
    axes.set(yticks=[], xlim=(0, 1.06 * total), ylim=(-0.5, 0.75), xlabel=unit)
    axes.grid(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1.1))


def experts(count: int, chosen: int) -> Figure:
    """Draw a layer of experts, of which a router chooses some, beside the one that all share.

    Args:
        count: Number of experts, a multiple of 32.
        chosen: How many of them a token meets.
    """
    drawing, axes = figure(12, 3.1)
    rows = count // 32
    lit = np.random.default_rng(0).choice(count, chosen, replace=False)
    for expert in range(count):
        x, y = expert % 32, rows - 1 - expert // 32
        colour = BLUE if expert in lit else "white"
        axes.add_patch(Rectangle((x, y), 0.8, 0.8, facecolor=colour, edgecolor=GREY, zorder=3))
        if expert in lit:
            axes.plot([-3.2, x], [rows / 2, y + 0.4], color=BLUE, lw=1.2, zorder=4)
    axes.add_patch(Rectangle((0, -2), 0.8, 0.8, facecolor=ORANGE, edgecolor=GREY))
    axes.plot([-8.6, 0], [rows / 2 - 0.6, -1.6], color=BROWN, lw=1.2)
    look = {"va": "center", "fontsize": 16}
    axes.text(-8.4, rows / 2, "a token", ha="right", **look)
    axes.text(-3.2, rows / 2, "router", ha="right", fontweight="bold", **look)
    axes.annotate(
        "", (-6.4, rows / 2), (-8.2, rows / 2), arrowprops={"arrowstyle": "->", "lw": 1.2}
    )
    axes.text(1.2, -1.6, "the shared expert", **look)
    axes.set(xlim=(-12, 32), ylim=(-2.3, rows + 0.2))
    axes.axis("off")
    title = f"A token meets {chosen} of {count} experts, and the shared one"
    axes.set_title(title, loc="left", fontweight="bold")
    return drawing
