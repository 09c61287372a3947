"""Plots of what models of today cost."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from cs336_course.figures.style import BLACK, BLUE, FILLS, RED, SKY, figure, label
from cs336_lib.text import digits

__all__ = ["FILLS", "bill", "ratios", "simulated"]


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
    fig, (above, below) = figure(12.5, 5.0, nrows=2)
    stack(above, seconds, "a step [s]")
    stack(below, gigabytes, "memory [GB]")
    below.axvline(there, color=BLACK, ls="--", lw=2.5)
    below.set_xlim(0, max(below.get_xlim()[1], 1.08 * there))
    below.text(there, 0.42, f" {digits(there)} GB", va="bottom", fontweight="bold")
    fig.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=17)
    return fig


def stack(axes: Axes, parts: Mapping[str, float], unit: str) -> None:
    """Draw one stacked bar with a legend below it."""
    left, total = 0.0, sum(parts.values())
    for (kind, size), colour in zip(parts.items(), FILLS, strict=False):
        if size < 0.002 * total:
            continue
        name = f"{kind} {size:.3g}"
        axes.barh(0, size, left=left, height=0.7, color=colour, label=name)
        left += size
    axes.text(left, 0, f" {total:.3g}", va="center", fontweight="bold", color=BLACK)
    axes.set(yticks=[], xlim=(0, 1.06 * total), ylim=(-0.5, 0.75), xlabel=unit)
    axes.grid(False)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.35), ncols=3)


def ratios(ratio: Mapping[str, float], title: str) -> Figure:
    """Draw each run's predicted time over its stated time as a dot, sorted."""
    names = sorted(ratio, key=lambda name: ratio[name])
    fig, axes = figure(12.5, 0.36 * len(names) + 1.4)
    axes.axvspan(0.97, 1.03, color=SKY, alpha=0.3, label="within 3 %")
    axes.axvline(1, color=BLACK, lw=1.5)
    axes.plot([ratio[name] for name in names], range(len(names)), "o", color=BLUE, ms=11)
    for place, name in enumerate(names):
        axes.text(ratio[name] + 0.006, place, f"{ratio[name]:.2f}", va="center")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0.6, 1.1)
    axes.legend(loc="upper left")
    label(axes, title, "predicted / stated", "")
    return fig


def simulated(halves: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Draw the simulated MFU of published steps over the stated one.

    Args:
        halves: Stated and simulated MFU of each step, by name of a group of steps.
    """
    fig, axes = figure(9.5, 5)
    ends = np.array([0.15, 0.65])
    axes.plot(ends, ends, color=BLACK, lw=1.5)
    axes.fill_between(ends, 0.85 * ends, 1.15 * ends, color=SKY, alpha=0.3, label="within 15 %")
    for (name, pairs), colour, marker in zip(halves.items(), (RED, BLUE), "os", strict=False):
        stated, found = zip(*pairs, strict=True)
        axes.plot(stated, found, marker, color=colour, ms=10, label=name)
    axes.set(xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.legend(loc="upper left")
    count = sum(map(len, halves.values()))
    label(axes, f"MFU of {count} published steps", "stated", "simulated")
    return fig
