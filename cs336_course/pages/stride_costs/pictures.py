"""Pictures of the page stride_costs: the sets of a cache, and times of walks."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cs336_course.drawing.style import ORANGE, RED, SKY, figure, label, show_cover
from cs336_course.pages.stride_costs.story import LINE, PLACES, SETS

LARGE = 17


def cover() -> None:
    """Draw the places of a cache that one column of 64 numbers may use, for two widths."""
    _, both = figure(10, 2.6, ncols=2)
    for axes, width, pace in zip(both, (1024, 1040), ("slow", "fast"), strict=True):
        lines = np.bincount(4 * width * np.arange(64) // LINE % SETS, minlength=SETS)
        held = np.arange(PLACES)[:, None] < lines
        colours = ListedColormap(["#E3F1FA", RED])
        axes.pcolormesh(held, cmap=colours, vmin=0, vmax=1, edgecolors="white", linewidth=0.5)
        axes.grid(False)
        axes.set(xticks=[], yticks=[])
        used = f"64 sets; a column's 64 lines share {PLACES * (lines > 0).sum()} places"
        label(axes, f"{width:,} columns: {pace}", used, "8 places")
    show_cover()


def step_bars(steps: Sequence[int], nanoseconds: Sequence[float], line: int) -> Figure:
    """Draw the time per element against the stride. Strides of at least a cache line are red."""
    drawing, axes = figure(10, 4.6)
    colours = [RED if step >= line else SKY for step in steps]
    bars = axes.bar([str(step) for step in steps], nanoseconds, color=colours)
    axes.bar_label(bars, fmt="%.2g", padding=3, fontsize=LARGE)
    axes.margins(y=0.15)
    label(axes, "Numbers further and further apart", "stride [elements]", "time per number [ns]")
    axes.grid(axis="x", visible=False)
    key = [Rectangle((0, 0), 1, 1, facecolor=c) for c in (SKY, RED)]
    words = ["several numbers per cache line", "a cache line for every number"]
    axes.legend(key, words, fontsize=LARGE)
    return drawing


def width_bars(widths: Mapping[int, tuple[float, float]], title: str) -> Figure:
    """Draw the time per number of reading a matrix of 64 rows, and of reading its transpose.

    Args:
        widths: Nanoseconds per number by width, along the rows and along the columns.
        title: Title of the figure.
    """
    drawing, axes = figure(8 + 0.7 * len(widths), 4.6)
    places = range(len(widths))
    for shift, name, colour, hatch in ((-0.2, "x", SKY, ""), (0.2, "x.T", ORANGE, "//")):
        times = [pair[shift > 0] for pair in widths.values()]
        at = [place + shift for place in places]
        bars = axes.bar(at, times, 0.4, color=colour, hatch=hatch, label=name)
        axes.bar_label(bars, fmt="%.2g", padding=3, fontsize=LARGE)
    axes.set_xticks(places, [f"{width:,}" for width in widths], fontsize=LARGE)
    axes.margins(y=0.15)
    axes.grid(axis="x", visible=False)
    label(axes, title, "columns of x", "time per number [ns]")
    axes.legend(fontsize=LARGE)
    return drawing
