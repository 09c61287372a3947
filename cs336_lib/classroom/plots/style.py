"""Common style of all figures, with the Okabe-Ito palette and large type."""

from typing import Any

import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cs336_lib.classroom.plots import alt

# Okabe and Ito 2008. The colours differ for every kind of colour vision, and in lightness.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    *("#000000", "#E69F00", "#56B4E9", "#009E73"),
    *("#F0E442", "#0072B2", "#D55E00", "#CC79A7"),
)
PALETTE = (BLUE, ORANGE, GREEN, RED, SKY, PINK, BLACK, YELLOW)
GREY = "#7F7F7F"

STYLE = {
    "axes.prop_cycle": cycler(color=PALETTE),
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
}


plt.rcParams.update(STYLE)
alt.install()


def figure(width: float = 10, height: float = 4.5, **subplots) -> tuple[Figure, Any]:
    """Call `plt.subplots` with a figure size in inches."""
    return plt.subplots(figsize=(width, height), **subplots)


def label(axes: Axes, title: str, x: str, y: str) -> None:
    """Set the title and the axis labels. Include the unit, as in 'time [ms]'."""
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
