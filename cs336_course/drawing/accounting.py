"""Figures on training cost, such as rooflines, utilization, training days and memory."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    CHARCOAL,
    FILLS,
    GREEN,
    GREY,
    LINES,
    MINT,
    ORANGE,
    RED,
    RUST,
    SKY,
    figure,
    ink,
    label,
    show_cover,
)
from cs336_course.pages.compute.story import LLAMA3_HOURS
from cs336_course.shared.roofline import Roof, ridge, roofline
from cs336_lib.accounting import count_parameters
from cs336_lib.bill.models import model as published

MARKERS = ("o", "s", "D", "^", "v", "P", "X")
HOURS_PER_YEAR = 24 * 365.25
EVENTS = {1450: "printing\npress", 1687: "Newton's\nPrincipia", 1769: "Watt's\nengine"}
EVENTS |= {1947: "transistor"}
DARK = (BLUE, RUST, CHARCOAL)  # white text is legible on these


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


def cover_memory() -> None:
    """Draw what a training run keeps in memory in its first step, beside the memory of a GPU."""
    _, axes = figure(10, 3.2)
    billions = count_parameters(published("llama3-8b").architecture) / 1e9
    parts = {"weights": (2, BLUE), "fp32 master\nweights": (4, SKY), "gradients": (2, MINT)}
    left = 0.0
    for name, (size, colour) in parts.items():
        axes.barh(0, size * billions, left=left, height=0.6, color=colour, label=name)
        text = f"{name}\n{size * billions:.0f} GB"
        spot = {"ha": "center", "va": "center", "fontsize": 15}
        axes.text(
            left + size * billions / 2,
            0,
            text,
            color="white" if colour == BLUE else "black",
            **spot,
        )
        left += size * billions
    rest = {"color": "white", "hatch": "//", "edgecolor": RED, "label": "the rest"}
    axes.barh(0, 8 * billions, left=left, height=0.6, **rest)
    spot = {"ha": "center", "va": "center", "fontsize": 40}
    box = {"facecolor": "white", "edgecolor": "none"}
    axes.text(left + 4 * billions, 0, "?", color=ink(RED), bbox=box, **spot)
    axes.axvline(80, color=BLACK, lw=4)
    axes.text(79, 0.5, "an H100 ends here", fontsize=19, ha="right", va="center")
    axes.grid(False)
    axes.set(xlim=(0, 131), ylim=(-0.4, 0.7), yticks=[])
    label(axes, "The first step of Llama 3 8B", "memory [GB]", "")
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


def digits(value: float) -> str:
    """Format a number with three significant digits, such as 0.0743, 989 or 2,250."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


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


def stacked(
    totals: Mapping[str, Mapping[str, float]], title: str, unit: str, limit: float | None = None
) -> Figure:
    """Draw a stacked horizontal bar for each name, with the total at its end.

    Args:
        totals: Sizes of the parts, by name of the bar and kind of part.
        title: Title of the figure.
        unit: Axis label, including the unit.
        limit: Position of a vertical line, for example the memory of a device.
    """
    fig, axes = figure(12.5, 0.75 * len(totals) + 2.2)
    kinds = list(dict.fromkeys(kind for parts in totals.values() for kind in parts))
    names = list(totals)[::-1]
    left = np.zeros(len(names))
    longest = max(max(sum(parts.values()) for parts in totals.values()), limit or 0)
    for number, kind in enumerate(kinds):
        widths = np.array([totals[name].get(kind, 0.0) for name in names])
        colour = FILLS[number % len(FILLS)]
        axes.barh(names, widths, left=left, height=0.66, color=colour, label=kind)
        for place, (start, width) in enumerate(zip(left, widths, strict=True)):
            if len(kinds) > 1 and width > 0.05 * longest:  # wide enough for its number
                ink = "white" if colour in DARK else "black"
                middle = start + width / 2
                axes.text(middle, place, digits(width), color=ink, ha="center", va="center")
        left += widths
    for place, total in enumerate(left):
        axes.text(total, place, f"  {digits(total)}", va="center", fontweight="bold")
    if limit is not None:
        axes.axvline(limit, color=BLACK, ls="--", lw=2, label=f"{digits(limit)}: one device")
    axes.set_xlim(0, longest * 1.12)
    axes.grid(False, axis="y")
    if len(kinds) > 1 or limit is not None:
        columns = min(len(kinds) + (limit is not None), 5)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16 - 0.2 / len(totals)), ncols=columns)
    label(axes, title, unit, "")
    return fig


def largest_models(bytes_per_parameter: Mapping[str, float], memory: float, goal: float) -> Figure:
    """Draw the largest model that fits into `memory` bytes, with one bar per technique.

    Args:
        bytes_per_parameter: Bytes of training state per parameter, by technique.
        memory: Total memory of all devices in bytes.
        goal: Number of parameters of the target model, which is marked by a line.
    """
    fig, axes = figure(12.5, 0.6 * len(bytes_per_parameter) + 1.6)
    names = list(bytes_per_parameter)[::-1]
    largest = [memory / bytes_per_parameter[name] / 1e9 for name in names]
    colours = [GREEN if value * 1e9 >= goal else GREY for value in largest]
    bars = axes.barh(names, largest, color=colours, height=0.66)
    texts = [
        f"{digits(value)}B at {digits(bytes_per_parameter[name])} bytes"
        for name, value in zip(names, largest, strict=True)
    ]
    for text in axes.bar_label(bars, texts, padding=5):
        text.set(bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}, zorder=3)
    axes.axvline(goal / 1e9, color=RED, ls="--", lw=2, zorder=2)
    words = f" {digits(goal / 1e9)}B, as in 04"
    axes.text(goal / 1e9, len(names) - 0.45, words, color=ink(RED), va="bottom")
    axes.set_xlim(0, max(largest) * 1.3)
    axes.set_ylim(top=len(names))
    axes.grid(False, axis="y")
    title = f"Largest model in {digits(memory / 1e9)} GB, by bytes per parameter"
    label(axes, title, "parameters [billions]", "")
    return fig


def share_lines(
    x: Sequence[float], shares: Mapping[str, Sequence[float]], title: str, x_label: str
) -> Figure:
    """Plot fractions between 0 and 1 against a logarithmic x axis, with one line per name."""
    fig, axes = figure(10, 4.5)
    for (name, values), style, colour in zip(
        shares.items(), ("-", "--", "-.", ":"), LINES, strict=False
    ):
        axes.plot(x, values, style, color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(x, [f"{int(value):,}" for value in x])
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    axes.legend()
    label(axes, title, x_label, "share of the FLOPs")
    return fig


def memory_timeline(live: Sequence[float], phases: Mapping[str, tuple[int, int]]) -> Figure:
    """Plot the memory in use (in MB) after each operator of a training step.

    `phases` maps a name to the first and last operator of a phase, which is shaded.
    """
    fig, axes = figure(12, 4.8)
    values = np.array(live) / 1e6
    axes.plot(values, color=BLACK, lw=2)
    top = values.max() * 1.2
    for (name, (first, last)), colour in zip(phases.items(), (SKY, ORANGE, GREEN), strict=False):
        axes.axvspan(first, last, color=colour, alpha=0.25, lw=0)
        axes.text((first + last) / 2, top * 0.97, name, ha="center", va="top", fontsize=15)
    axes.axhline(values[0], color=BLUE, ls="--", lw=1.5)
    right = 0.99 * len(values)
    note = {"ha": "right", "va": "top", "fontsize": 15, "color": ink(BLUE)}
    axes.text(right, values[0], "between steps", **note)
    axes.set(ylim=(0, top), xlim=(0, len(values) - 1))
    axes.grid(False, axis="x")
    label(axes, "Memory through one training step", "operators run so far", "alive [MB]")
    return fig


def checkpointing(
    measured: Mapping[int, Mapping[int, float]], predicted: Mapping[int, Sequence[float]]
) -> Figure:
    """Plot peak memory against the number of segments, with one colour per depth.

    `measured[depth][segments]` is drawn as a point. `predicted[depth]` is drawn as a curve that
    starts at one segment.
    """
    fig, axes = figure(11, 5)
    for number, (depth, points) in enumerate(measured.items()):
        colour = LINES[number % len(LINES)]
        curve = predicted[depth]
        axes.plot(range(1, len(curve) + 1), curve, color=colour, lw=2)
        axes.plot(
            list(points),
            list(points.values()),
            MARKERS[number % len(MARKERS)],
            color=colour,
            label=f"{depth} blocks",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    plain(axes)
    ticks = [2**power for power in range(max(measured).bit_length())]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend(title="points: measured\nlines: predicted")
    label(axes, "Peak of the activations by number of segments", "segments", "peak [block inputs]")
    return fig


def plain(axes: Axes) -> None:
    """Format the numbers of a logarithmic y axis without powers."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axes.minorticks_off()
