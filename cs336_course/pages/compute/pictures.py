"""Figures on FLOPs, time, and the price of a run."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cs336_course.drawing.charts import curves
from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LINES,
    ORANGE,
    RED,
    SKY,
    figure,
    ink,
    label,
    show_cover,
)
from cs336_course.shared.roofline import Roof, ridge, roofline

MARKERS = ("o", "s", "D", "^", "v", "P")
NAMES = ("ReLU", "GELU", "dot", "matvec", "matmul, n = 512", "matmul, n = 4096")
EVENTS = {1088: "first university", 1450: "printing press", 1687: "Newton", 1947: "transistor"}


def cover_compute() -> None:
    """Ask since when one GPU would have had to compute, for Llama 3 70B to be ready in 2024."""
    _, axes = figure(10, 3.2)
    fading = np.linspace(0, 1, 256)[None]  # so that the bar has no left end
    colours = LinearSegmentedColormap.from_list("fading", ["white", BLUE])
    axes.imshow(fading, cmap=colours, extent=(1000, 2024, -0.25, 0.25), aspect="auto")
    axes.text(1480, 0, "? hours of computing", fontsize=22, ha="center", va="center")
    axes.text(1000, 0.36, "since when?", fontsize=19, va="bottom")
    axes.text(2024, 0.36, "Llama 3 70B", fontsize=19, ha="right", va="bottom")
    for year, event in EVENTS.items():
        axes.vlines(year, -0.38, -0.25, color=BLACK, lw=2)
        axes.text(year, -0.42, event, fontsize=15, ha="center", va="top")
    axes.grid(False)
    axes.set(xlim=(1000, 2050), ylim=(-0.75, 0.75), yticks=[])
    axes.spines["left"].set_visible(False)
    label(axes, "If a single H100 had trained Llama 3 70B", "year", "")
    show_cover()


def lanes(operations: Mapping[str, tuple[float, float]]) -> Figure:
    """Draw how long computing and moving take, two lanes for each operation, in microseconds."""
    fig, row = figure(12.5, 3, ncols=len(operations))
    for axes, (name, (computing, moving)) in zip(row, operations.items(), strict=True):
        done = max(computing, moving)
        for lane, spent in enumerate((moving, computing)):
            axes.barh(lane, spent, color=BLUE if lane else ORANGE, height=0.6)
            waits = ", and waits" if spent < done else ""
            axes.text(spent + done / 40, lane, f"{spent:g} µs{waits}", va="center")
        axes.axvline(done, color=RED, ls="--", lw=2)
        axes.text(1.02 * done, 1.45, "done", color=ink(RED), va="bottom")
        axes.set(yticks=(0, 1), yticklabels=("move", "compute"), xlim=(0, 1.25 * done))
        axes.set_ylim(-0.5, 1.8)
        axes.grid(False, axis="y")
        label(axes, name, "time [µs]", "")
    return fig


def two_clocks(weights: int, roof: Roof, marks: Sequence[int]) -> Figure:
    """Draw the microseconds of a layer by the tokens: of its fetching, its computing, and both.

    The layer has weights of 2 bytes, and a point stands at each number of tokens in `marks`.
    """
    fetching, computing = 2e6 * weights / roof.bandwidth, 2e6 * weights / roof.peak
    ridge, end = fetching / computing, 700
    multiply = [0, fetching, computing * end]
    lines = {
        "fetch the weights": ([0, end], [fetching, fetching]),
        "multiply the tokens": ([0, ridge, end], multiply),
        "the later of the two": ([0, ridge, end], [fetching, *multiply[1:]]),
    }
    title, x, y = "Two clocks run at once, and the later one counts", "tokens at once", "time [µs]"
    fig = curves(title, x, y, lines, names="legend", size=(11, 4.7), xlim=(-8, end), ylim=(0, 350))
    (axes,) = fig.axes
    axes.get_lines()[-1].set(color=GREY, linestyle="-", linewidth=9, zorder=1)
    axes.legend(loc="upper left")
    axes.axvspan(-8, ridge, color=SKY, alpha=0.18, lw=0)
    axes.text(ridge - 8, 6, "memory-bound", ha="right")
    axes.text(ridge + 8, 6, "compute-bound")
    for tokens in marks:
        point = tokens, max(fetching, computing * tokens)
        axes.plot(*point, "o", color=BLACK, ms=10)
        axes.annotate(f"{tokens}", point, (4, -22), textcoords="offset points")
    return fig


def rooflines(panels: Sequence[tuple[Roof, Mapping[str, tuple[float, float]], str]]) -> Figure:
    """Draw a roofline panel for each triple (roof, points, label of the points).

    A point is (FLOP/B, FLOP/s). Kernels to the left of the ridge are memory-bound, and kernels to
    the right are compute-bound. A dashed line is the lower roof of the vector units.
    """
    fig, all_axes = figure(13, 5.2, ncols=len(panels), squeeze=False)
    for axes, (roof, points, what) in zip(all_axes[0], panels, strict=True):
        intensities = np.geomspace(0.05, 20_000, 300)
        heights = [roofline(x, roof.peak, roof.bandwidth) for x in intensities]
        axes.plot(intensities, heights, color=BLACK, zorder=1)
        if roof.vector is not None:
            flat = intensities[intensities >= ridge(roof.vector, roof.bandwidth)]
            axes.plot(flat, [roof.vector] * len(flat), color=BLACK, ls="--", zorder=1)
            axes.text(18_000, roof.vector / 1.2, "vector units", ha="right", va="top", fontsize=13)
        corner = ridge(roof.peak, roof.bandwidth)
        axes.axvspan(0.05, corner, color=SKY, alpha=0.18, lw=0)
        axes.axvline(corner, color=GREY, ls=":", lw=1.5)
        bottom = min(heights[0], *(speed for _, speed in points.values())) / 3
        axes.text(corner / 1.15, bottom * 1.5, "memory-bound", ha="right", fontsize=13)
        axes.text(corner * 1.15, bottom * 1.5, "compute-bound", fontsize=13)
        for name, (x, y) in points.items():
            place = NAMES.index(name)
            axes.plot(x, y, MARKERS[place], color=LINES[place], ms=11, label=name, zorder=2)
        axes.set(xscale="log", yscale="log", xlim=(0.05, 20_000), ylim=(bottom, roof.peak * 4))
        axes.legend(
            title=what, loc="upper left", alignment="left", bbox_to_anchor=(0, -0.16), ncols=2
        )
        title = f"{roof.name}: ridge at {corner:.3g} FLOP/B"
        label(axes, title, "arithmetic intensity [FLOP/B]", "speed [FLOP/s]")
    return fig


def waterfall(start: float, factors: Mapping[str, float], computed: str, goal: float) -> Figure:
    """Draw GPU hours (in millions) that grow by one factor after another, up to a known total.

    On the logarithmic axis, a factor has the same length wherever it stands. A last bar shows what
    the factors don't explain. All of them are assumed but the one with the name `computed`.
    """
    fig, axes = figure(12.5, 0.6 * len(factors) + 2.8)
    names, ends = ["napkin"], [start / 1e6]
    for name, factor in factors.items():
        names.append(f"{name}: x {factor:.2f}")
        ends.append(ends[-1] * factor)
    names.append(f"not explained: x {goal / 1e6 / ends[-1]:.2f}")
    ends.append(goal / 1e6)
    starts = [ends[0], *ends[:-1]]
    colours = [BLUE, *(GREEN if name == computed else ORANGE for name in factors), GREY]
    rows = range(len(names))[::-1]
    widths = [end - begin for begin, end in zip(starts, ends, strict=True)]
    axes.set_xscale("log")
    axes.barh(rows, widths, left=starts, color=colours, height=0.62)
    axes.plot(ends[0], rows[0], "|", color=BLUE, ms=32, mew=4)
    for row, end in zip(rows, ends, strict=True):
        axes.text(end, row, f"  {end:.2f}M", va="center")
    axes.axvline(goal / 1e6, color=RED, ls="--", lw=2)
    axes.text(goal / 1e6, len(names) - 0.45, " model card", color=ink(RED), va="bottom")
    kinds = ((GREEN, "computed"), (ORANGE, "assumed"), (GREY, "unknown"))
    handles = [Patch(color=colour, label=kind) for colour, kind in kinds]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.4, 1.02), ncols=3)
    axes.set_yticks(rows, names)
    axes.set_xticks((4, 5, 6), ("4", "5", "6"))
    axes.minorticks_off()
    axes.set(xlim=(starts[0] / 1.1, goal / 1e6 * 1.12), ylim=(-0.6, len(names)))
    axes.grid(False, axis="y")
    label(axes, "From the napkin to the model card", "GPU hours [millions], log scale", "")
    return fig
