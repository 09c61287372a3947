"""Plots of what models of today cost."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cs336_course.drawing.style import (
    BLACK,
    FILLS,
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
