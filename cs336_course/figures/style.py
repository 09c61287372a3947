"""Common style of all figures, with colours for every kind of colour vision and large type."""

from typing import Any

import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from cs336_course.figures import alt

# Okabe and Ito 2008. The colours differ for every kind of colour vision, and in lightness.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    *("#000000", "#E69F00", "#56B4E9", "#009E73"),
    *("#F0E442", "#0072B2", "#D55E00", "#CC79A7"),
)
# The light ones have a contrast below 3:1 with white, so they only fill areas with a black edge.
# Brown and purple replace them in lines, and are as easy to tell apart.
BROWN, PURPLE, GREY = "#6B4E00", "#AA3377", "#767676"
LINES = (BLUE, RED, GREEN, BROWN, PURPLE, BLACK)
FILLS = (BLUE, ORANGE, GREEN, RED, SKY, PINK, BLACK, YELLOW)

STYLE = {
    "axes.prop_cycle": cycler(color=LINES),
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 17,
    "axes.labelsize": 15,
    "figure.dpi": 80,
    "figure.facecolor": "white",  # also legible in a dark theme
    "figure.constrained_layout.use": True,
    "font.size": 14,
    "grid.alpha": 0.3,
    "legend.fontsize": 13,
    "legend.frameon": False,
    "lines.linewidth": 2.5,
    "lines.markersize": 8,
    "patch.edgecolor": "black",
    "patch.force_edgecolor": True,
    "patch.linewidth": 0.8,
}


plt.rcParams.update(STYLE)
alt.install()


def figure(width: float = 10, height: float = 4.5, **subplots) -> tuple[Figure, Any]:
    """Call `plt.subplots` with a figure size in inches."""
    return plt.subplots(figsize=(width, height), **subplots)


def ink(colour: str) -> tuple[float, ...]:
    """Return a darker shade of one of `LINES`, because text needs a contrast of 4.5:1."""
    return tuple(0.82 * part for part in to_rgb(colour))


def label(axes: Axes, title: str, x: str, y: str) -> None:
    """Set the title and the axis labels. Include the unit, as in 'time [ms]'."""
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
