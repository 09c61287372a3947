"""Common style of all figures, with colours for every kind of colour vision and large type."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from cs336_course.drawing import shown
from cs336_lib.report.palette import (  # noqa: F401, because figures take them from here
    BLACK,
    BLUE,
    BROWN,
    CHARCOAL,
    FILLS,
    GREEN,
    GREY,
    LINES,
    MINT,
    ORANGE,
    PINK,
    PURPLE,
    RED,
    RUST,
    SKY,
    YELLOW,
)

STYLE = {
    "axes.prop_cycle": cycler(color=LINES),
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 17,
    "axes.labelsize": 15,
    "figure.dpi": 80,
    "figure.facecolor": "white",  # which custom.css turns round in a dark theme
    "figure.constrained_layout.use": True,
    "font.size": 14,
    "grid.alpha": 0.2,
    "legend.fontsize": 13,
    "legend.frameon": False,
    "lines.linewidth": 2.5,
    "lines.markersize": 8,
    "patch.edgecolor": "#333333",
    "patch.force_edgecolor": True,
    "patch.linewidth": 0.8,
}


plt.rcParams.update(STYLE)
shown.install()


def figure(width: float = 10, height: float = 4.5, **subplots) -> tuple[Figure, Any]:
    """Call `plt.subplots` with a figure size in inches."""
    return plt.subplots(figsize=(width, height), **subplots)


def ink(colour: Any) -> tuple[float, ...]:
    """Return a darker shade of a line's colour, because text needs a contrast of 4.5:1."""
    return tuple(0.82 * part for part in to_rgb(colour))


def label(axes: Axes, title: str, x: str, y: str) -> None:
    """Set the title and the axis labels. Include the unit, as in 'time [ms]'."""
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def label_ends(axes: Axes, size: float = 14) -> None:
    """Write the name of each line beside its last point, in its colour, instead of a legend.

    Names that would overlap move apart. Call this when the limits of the axes are set.

    Args:
        axes: Axes with lines that have labels and end at the right.
        size: Size of the type in points.
    """
    per_point = axes.get_figure(root=True).dpi / 72
    low, high = sorted(axes.get_ylim())  # also scales the axes to what they show
    found = []
    for line in axes.get_lines():
        x, y = line.get_data()
        seen = np.flatnonzero(np.isfinite(np.asarray(y, float)))
        if not str(line.get_label()).startswith("_") and len(seen):
            end = x[seen[-1]], min(max(y[seen[-1]], low), high)  # a line may leave the axes
            found.append((axes.transData.transform(end)[1] / per_point, end, line))
    lowest = -np.inf
    for height, end, line in sorted(found, key=lambda each: each[0]):
        place = max(height, lowest)
        lowest = place + 1.3 * size
        note = {"xytext": (10, place - height), "textcoords": "offset points", "va": "center"}
        name, colour = str(line.get_label()), ink(line.get_color())
        axes.annotate(name, end, color=colour, size=size, annotation_clip=False, **note)


def show_cover() -> None:
    """Show the figure that opens a notebook, and let all figures follow the theme of its page."""
    shown.follow_theme()
    plt.show()
