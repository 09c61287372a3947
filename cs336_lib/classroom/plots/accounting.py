"""Figures on cost, with rooflines, peaks, utilization, days, and the memory of training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from cs336_lib.accounting import ridge, roofline
from cs336_lib.classroom.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    RED,
    SKY,
    figure,
    label,
)

MARKERS = ("o", "s", "D", "^", "v", "P", "X")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")


@dataclass(frozen=True)
class Roof:
    """A device in the roofline model, with its peak FLOP/s and memory bandwidth in B/s."""

    name: str
    peak: float
    bandwidth: float


def rooflines(panels: Sequence[tuple[Roof, Mapping[str, tuple[float, float]], str]]) -> Figure:
    """Draw a roofline panel for each (roof, points, name of the points).

    A point is (FLOP/B, FLOP/s). Memory is the limit left of the ridge, under the sloping roof.
    Arithmetic is the limit right of it, under the flat roof.
    """
    fig, all_axes = figure(13, 5.2, ncols=len(panels), squeeze=False)
    for axes, (roof, points, what) in zip(all_axes[0], panels, strict=True):
        intensities = np.geomspace(0.05, 4000, 300)
        heights = [roofline(x, roof.peak, roof.bandwidth) for x in intensities]
        axes.plot(intensities, heights, color=BLACK, zorder=1)
        corner = ridge(roof.peak, roof.bandwidth)
        axes.axvspan(0.05, corner, color=SKY, alpha=0.18, lw=0)
        axes.axvline(corner, color=GREY, ls=":", lw=1.5)
        bottom = min(heights[0], *(speed for _, speed in points.values())) / 3
        axes.text(corner / 1.15, bottom * 1.5, "waits for memory", ha="right", fontsize=13)
        axes.text(corner * 1.15, bottom * 1.5, "computes", fontsize=13)
        for (name, (x, y)), marker, colour in zip(points.items(), MARKERS, PALETTE, strict=False):
            axes.plot(x, y, marker, color=colour, ms=11, label=name, zorder=2)
        axes.set(xscale="log", yscale="log", xlim=(0.05, 4000), ylim=(bottom, roof.peak * 4))
        axes.legend(
            title=what, loc="upper left", alignment="left", bbox_to_anchor=(0, -0.16), ncols=2
        )
        title = f"{roof.name}: ridge at {corner:.3g} FLOP/B"
        label(axes, title, "arithmetic intensity [FLOP/B]", "speed [FLOP/s]")
    return fig


def peak_bars(peaks: Mapping[str, Mapping[str, float]], dtypes: Sequence[str]) -> Figure:
    """Plot peak TFLOP/s on a logarithmic axis, with a group per device and a bar per dtype."""
    fig, axes = figure(12.5, 5)
    colours = dict(zip(dtypes, PALETTE, strict=False))
    for place, by_dtype in enumerate(peaks.values()):
        there = [dtype for dtype in dtypes if dtype in by_dtype]
        for number, dtype in enumerate(there):
            left = place + 0.21 * (number - (len(there) - 1) / 2)
            bars = axes.bar(left, by_dtype[dtype] / 1e12, 0.19, color=colours[dtype])
            axes.bar_label(bars, [digits(by_dtype[dtype] / 1e12)], fontsize=13, padding=2)
    axes.set_yscale("log")
    axes.set_ylim(top=axes.get_ylim()[1] * 2)
    axes.set_xticks(range(len(peaks)), list(peaks))
    axes.grid(False, axis="x")
    handles = [Patch(color=colour, label=dtype) for dtype, colour in colours.items()]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1, 0.5))
    label(axes, "Dense peaks", "", "peak [TFLOP/s], log scale")
    return fig


def digits(value: float) -> str:
    """Format three digits without an exponent, as in 0.0743, 989 and 2,250."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def mfu_bars(shares: Mapping[str, float], good: float = 0.5) -> Figure:
    """Draw a horizontal bar per kind of work, for the share of the peak that it reaches."""
    fig, axes = figure(11, 0.7 * len(shares) + 1.6)
    names = list(shares)[::-1]
    values = [shares[name] for name in names]
    colours = [GREEN if value >= good else BLUE for value in values]
    bars = axes.barh(names, values, color=colours, height=0.62)
    for text in axes.bar_label(bars, [f"{value:.1%}" for value in values], padding=5):
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1.5})
    axes.axvline(good, color=BLACK, ls="--", lw=1.5)
    axes.text(good, len(names) - 0.45, f" very good: {good:.0%}", va="bottom", fontsize=13)
    axes.set_xlim(0, max(1.08, max(values) * 1.15))
    axes.set_ylim(top=len(names) - 0.1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    axes.grid(False, axis="y")
    label(axes, "Model FLOPs utilisation", "share of the peak", "")
    return fig


def timing_samples(samples: Mapping[str, Sequence[float]]) -> Figure:
    """Draw each timing in milliseconds as a dot, in the order taken, and a line at each median."""
    fig, axes = figure(11, 4.2)
    for (name, seconds), marker, colour in zip(samples.items(), MARKERS, PALETTE, strict=False):
        values = 1e3 * np.array(seconds)
        axes.plot(range(1, len(values) + 1), values, marker, color=colour, label=name)
        axes.axhline(np.median(values), color=colour, ls="--", lw=1.5)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    label(axes, "Every repeat; dashed: the median", "repeat", "time [ms]")
    return fig


def days_against_gpus(
    gpus: Sequence[int], days: Mapping[str, Sequence[float]], mark: tuple[int, float, str]
) -> Figure:
    """Plot days of training against the number of GPUs on log-log axes, with a line per name."""
    fig, axes = figure(11, 4.8)
    for (name, values), style, colour in zip(
        days.items(), ("-", "--", "-.", ":"), PALETTE, strict=False
    ):
        axes.plot(gpus, values, style, color=colour, label=name)
    x, y, text = mark
    axes.plot(x, y, "o", color=RED, ms=12)
    axes.annotate(
        text, (x, y), (-12, -8), textcoords="offset points", ha="right", va="top", fontsize=15
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(gpus, [f"{count:,}" for count in gpus])
    for height, name in ((30, "a month"), (365, "a year")):
        axes.axhline(height, color=GREY, lw=1, ls=":")
        axes.text(gpus[-1], height * 1.06, name, ha="right", fontsize=13)
    axes.grid(False)
    axes.legend(loc="lower left")
    label(axes, "Twice the GPUs, half the days", "GPUs", "days (log scale)")
    return fig


def stacked(
    totals: Mapping[str, Mapping[str, float]], title: str, unit: str, limit: float | None = None
) -> Figure:
    """Draw a horizontal bar per name, made of its parts, with the sum written after it.

    Colour and hatching tell the parts apart. `limit` draws a line, such as a device's memory.
    """
    fig, axes = figure(12.5, 0.7 * len(totals) + 2.0)
    kinds = list(dict.fromkeys(kind for parts in totals.values() for kind in parts))
    names = list(totals)[::-1]
    left = np.zeros(len(names))
    for number, kind in enumerate(kinds):
        widths = np.array([totals[name].get(kind, 0.0) for name in names])
        axes.barh(
            names,
            widths,
            left=left,
            height=0.66,
            color=PALETTE[number % len(PALETTE)],
            hatch=HATCHES[number % len(HATCHES)],
            edgecolor="white",
            label=kind,
        )
        left += widths
    for place, total in enumerate(left):
        axes.text(total, place, f"  {digits(total)}", va="center")
    if limit is not None:
        axes.axvline(limit, color=BLACK, ls="--", lw=2, label=f"{digits(limit)}: one device")
    axes.set_xlim(0, max(left.max(), limit or 0) * 1.12)
    axes.grid(False, axis="y")
    if len(kinds) > 1 or limit is not None:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    label(axes, title, unit, "")
    return fig


def share_lines(
    x: Sequence[float], shares: Mapping[str, Sequence[float]], title: str, x_label: str
) -> Figure:
    """Plot shares between 0 and 1 against a quantity on a logarithmic axis, a line per name."""
    fig, axes = figure(10, 4.5)
    for (name, values), style, colour in zip(
        shares.items(), ("-", "--", "-.", ":"), PALETTE, strict=False
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
    """Plot the MB in use after each operator of a step, with the phases (first, last) shaded."""
    fig, axes = figure(12, 4.8)
    values = np.array(live) / 1e6
    axes.plot(values, color=BLACK, lw=2)
    top = values.max() * 1.2
    for (name, (first, last)), colour in zip(phases.items(), (SKY, ORANGE, GREEN), strict=False):
        axes.axvspan(first, last, color=colour, alpha=0.25, lw=0)
        axes.text((first + last) / 2, top * 0.97, name, ha="center", va="top", fontsize=15)
    axes.axhline(values[0], color=BLUE, ls="--", lw=1.5)
    axes.set(ylim=(0, top), xlim=(0, len(values) - 1))
    axes.grid(False, axis="x")
    label(axes, "Memory through one training step", "operators run so far", "alive [MB]")
    return fig


def checkpointing(
    measured: Mapping[int, Mapping[int, float]], predicted: Mapping[int, Sequence[float]]
) -> Figure:
    """Plot peak memory against the number of segments, with a colour per depth of the stack.

    `measured[depth][segments]` are points, and `predicted[depth]` is the curve at 1, 2, ...
    segments.
    """
    fig, axes = figure(11, 5)
    for number, (depth, points) in enumerate(measured.items()):
        colour = PALETTE[number % len(PALETTE)]
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
    axes.set_yscale("log")
    ticks = [2**power for power in range(max(measured).bit_length())]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend(title="points: measured\nlines: predicted")
    label(axes, "Checkpoints against recomputed segments", "segments", "peak [block inputs]")
    return fig


def growth(x: Sequence[int], lines: Mapping[str, Sequence[float]], title: str, y: str) -> Figure:
    """Plot quantities against depth on log-log axes, where a power law is a straight line."""
    fig, axes = figure(10, 4.6)
    for (name, values), marker, colour in zip(lines.items(), MARKERS, PALETTE, strict=False):
        axes.plot(x, values, marker=marker, color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(x, [str(value) for value in x])
    plain(axes)
    axes.legend()
    label(axes, title, "blocks", y)
    return fig


def plain(axes: Axes) -> None:
    """Format the numbers of a logarithmic y axis without powers."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axes.minorticks_off()
