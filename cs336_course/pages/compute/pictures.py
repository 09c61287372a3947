"""Figures on FLOPs, time, and the price of a run."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

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
from cs336_course.pages.compute.story import LLAMA3_HOURS
from cs336_course.shared.roofline import Roof, ridge, roofline

MARKERS = ("o", "s", "D", "^", "v", "P", "X")


HOURS_PER_YEAR = 24 * 365.25


EVENTS = {1450: "printing\npress", 1687: "Newton's\nPrincipia", 1769: "Watt's\nengine"}
EVENTS |= {1947: "transistor"}


def cover_compute() -> None:
    """Draw since when one GPU would have had to compute, for Llama 3 70B to be ready in 2024."""
    _, axes = figure(10, 3.2)
    end = 2024.3  # April 2024
    hours = LLAMA3_HOURS["llama3-70b"]
    start = end - hours / HOURS_PER_YEAR
    axes.barh(0, end - start, left=start, height=0.5, color=BLUE)
    spot = {"ha": "center", "va": "center"}
    words = f"{hours / 1e6} million hours of computing"
    axes.text((start + end) / 2, 0, words, color="white", fontsize=22, **spot)
    axes.text(start, 0.36, f"It starts in {start:.0f}", fontsize=19, va="bottom")
    axes.text(end, 0.36, "Llama 3 70B", fontsize=19, ha="right", va="bottom")
    for year, event in EVENTS.items():
        axes.vlines(year, -0.38, -0.25, color=BLACK, lw=2)
        axes.text(year, -0.42, event, fontsize=15, ha="center", va="top")
    axes.grid(False)
    axes.set(xlim=(1270, 2050), ylim=(-0.95, 0.75), yticks=[])
    axes.spines["left"].set_visible(False)
    label(axes, "If a single H100 had trained Llama 3 70B", "year", "")
    show_cover()


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
        for (name, (x, y)), marker, colour in zip(points.items(), MARKERS, LINES, strict=False):
            axes.plot(x, y, marker, color=colour, ms=11, label=name, zorder=2)
        axes.set(xscale="log", yscale="log", xlim=(0.05, 20_000), ylim=(bottom, roof.peak * 4))
        axes.legend(
            title=what, loc="upper left", alignment="left", bbox_to_anchor=(0, -0.16), ncols=2
        )
        title = f"{roof.name}: ridge at {corner:.3g} FLOP/B"
        label(axes, title, "arithmetic intensity [FLOP/B]", "speed [FLOP/s]")
    return fig


def waterfall(
    start: tuple[str, float], factors: Mapping[str, float], computed: Sequence[str], goal: float
) -> Figure:
    """Draw GPU hours (in millions) that grow by one factor after another, up to a known total.

    On the logarithmic axis, a factor has the same length wherever it stands.

    Args:
        start: Name and hours of the first bar.
        factors: Factor of each later bar, by its name.
        computed: Names of the factors that aren't assumptions.
        goal: The known total. A last bar shows what the factors don't explain.
    """
    fig, axes = figure(12.5, 0.6 * len(factors) + 2.8)
    names, ends = [start[0]], [start[1] / 1e6]
    for name, factor in factors.items():
        names.append(f"{name}: x {factor:.2f}")
        ends.append(ends[-1] * factor)
    names.append(f"not explained: x {goal / 1e6 / ends[-1]:.2f}")
    ends.append(goal / 1e6)
    starts = [ends[0] / 1.1, *ends[:-1]]
    colours = [BLUE, *(GREEN if name in computed else ORANGE for name in factors), GREY]
    rows = range(len(names))[::-1]
    widths = [end - begin for begin, end in zip(starts, ends, strict=True)]
    axes.set_xscale("log")
    axes.barh(rows, widths, left=starts, color=colours, height=0.62)
    for row, end in zip(rows, ends, strict=True):
        axes.text(end, row, f"  {end:.2f}M", va="center")
    axes.axvline(goal / 1e6, color=RED, ls="--", lw=2)
    axes.text(goal / 1e6, len(names) - 0.45, " model card", color=ink(RED), va="bottom")
    kinds = ((GREEN, "computed"), (ORANGE, "assumed"), (GREY, "unknown"))
    handles = [Patch(color=colour, label=kind) for colour, kind in kinds]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.4, 1.02), ncols=3)
    axes.set_yticks(rows, names)
    ticks = [tick / 2 for tick in range(math.ceil(2 * starts[0]), math.floor(2 * ends[-1]) + 2)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlim=(starts[0], goal / 1e6 * 1.12), ylim=(-0.6, len(names)))
    axes.grid(False, axis="y")
    title = "From the napkin to the model card"
    label(axes, title, "GPU hours [millions], log scale", "")
    return fig


def share_lines(
    x: Sequence[float], shares: Mapping[str, Sequence[float]], title: str, x_label: str
) -> Figure:
    """Plot fractions between 0 and 1 against a logarithmic x axis, with one line per name."""
    lines = {name: (x, values) for name, values in shares.items()}
    drawing = curves(title, x_label, "share of the FLOPs", lines, log="x", ylim=(0, 1))
    (axes,) = drawing.axes
    axes.set_xticks(x, [f"{int(value):,}" for value in x])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    return drawing
