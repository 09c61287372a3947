"""Pictures of the page stride_costs: the sets of a cache, and times of walks."""

from collections.abc import Mapping

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cs336_course.drawing.style import RED, SKY, figure, label, show_cover
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
        used = f"64 sets: {PLACES * (lines > 0).sum()} places for 64 lines"
        label(axes, f"{width:,} columns: {pace}", used, "8 places")
    show_cover()


def step_bars(times: Mapping[int, float], line: int) -> Figure:
    """Draw the time per number against the stride. Strides of at least a cache line are red."""
    words = ["several numbers per cache line", "a cache line for every number"]
    drawing, axes = _two_colours(times, [step >= line for step in times], words)
    label(axes, "Numbers further and further apart", "stride [elements]", "time per number [ns]")
    return drawing


def share_bars(times: Mapping[int, float], shares: Mapping[int, float]) -> Figure:
    """Draw the time per number by width. Widths whose lines don't stay in simulation are red."""
    words = ["simulated: the lines stay", "simulated: most lines are thrown out"]
    drawing, axes = _two_colours(times, [shares[width] > 0.5 for width in times], words)
    label(axes, "Down the columns of 64 rows", "columns of x", "time per number [ns]")
    return drawing


def _two_colours(times: Mapping[int, float], red: list[bool], words: list[str]) -> tuple:
    """Draw a bar per time, some in red, and explain both colours."""
    drawing, axes = figure(10, 4.6)
    names = [f"{number:,}" for number in times]
    bars = axes.bar(names, list(times.values()), color=[RED if x else SKY for x in red])
    axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=LARGE)
    axes.margins(y=0.5)
    axes.grid(axis="x", visible=False)
    key = [Rectangle((0, 0), 1, 1, facecolor=colour) for colour in (SKY, RED)]
    axes.legend(key, words, fontsize=LARGE, loc="upper left")
    return drawing, axes
