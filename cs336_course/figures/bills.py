"""Plots of what models of today cost."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cs336_course.figures.style import BLACK, BLUE, FILLS, RED, SKY, figure, label
from cs336_lib.text import digits

__all__ = ["FILLS", "bill", "errors"]


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


def errors(
    stacks: Mapping[str, Sequence[tuple[float, bool]]], interval: tuple[float, float]
) -> Figure:
    """Draw how much longer published steps took than simulated ones, a row for each stack.

    Args:
        stacks: Stated over simulated seconds of each step, and whether it was held out by name, by
            name of a stack.
        interval: Ends of the interval to shade, as ratios.
    """
    fig, axes = figure(12.5, 0.44 * len(stacks) + 1.8)
    axes.axvspan(*interval, color=SKY, alpha=0.3, label="8 of 10 papers")
    axes.axvline(1, color=BLACK, lw=1.5)
    for row, ratios in enumerate(stacks.values()):
        for held_out, marker, colour, size in ((False, "o", BLUE, 9), (True, "*", RED, 17)):
            found = [ratio for ratio, is_held in ratios if is_held == held_out]
            axes.plot(found, [row] * len(found), marker, color=colour, ms=size)
    for marker, colour, name in (("o", BLUE, "paper left out"), ("*", RED, "held out by name")):
        axes.plot([], [], marker, color=colour, ms=11, label=name)
    axes.set_yticks(range(len(stacks)), list(stacks))
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda ratio, _: f"{ratio - 1:+.0%}")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    count = sum(map(len, stacks.values()))
    label(axes, f"{count} published steps, against their simulation", "took longer by", "")
    return fig
