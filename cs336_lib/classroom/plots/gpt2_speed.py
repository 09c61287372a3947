"""Figures of the ladder in notebook 09, rung by rung, and of where time and memory go."""

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from cs336_lib.classroom.ladder import Row
from cs336_lib.classroom.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    PINK,
    RED,
    SKY,
    YELLOW,
    figure,
    label,
)
from cs336_lib.classroom.step_profile import KINDS, PHASES, Span

KIND_COLOURS = dict(zip(KINDS, (BLUE, RED, PINK, YELLOW, GREEN), strict=True))
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo", "**")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")


def digits(value: float) -> str:
    """Format three digits without an exponent, as in 0.0743, 55.3 and 2,250."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bars(
    axes: Axes, names: Sequence[str], values: Mapping[str, float | None], colour: str, **text
) -> None:
    """Draw a horizontal bar for each name that has a value, with the value beside it."""
    there = {name: value for name, value in values.items() if value is not None}
    places = [names.index(name) for name in there]
    drawn = axes.barh(places, list(there.values()), color=colour, height=0.62)
    written = [text.get("form", digits)(value) for value in there.values()]
    axes.bar_label(drawn, written, padding=4, fontsize=13)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.3 * max(there.values(), default=1.0) or 1.0)
    axes.grid(False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(4, min_n_ticks=2))


def notes(axes: Axes, names: Sequence[str], rows: Sequence[Row]) -> None:
    """Write why a rung was skipped in place of its bar, and other remarks inside the bars."""
    for row in rows:
        if row.ms is not None and row.note:
            place = {"va": "center", "fontsize": 13, "color": "white"}
            axes.text(0, names.index(row.name), f" {row.note}", **place)
        if row.ms is None and row.note:
            place = {"va": "center", "fontsize": 13, "color": "#444444"}
            text = row.note.replace(": ", ":\n", 1)
            axes.text(
                0.01, names.index(row.name), text, transform=axes.get_yaxis_transform(), **place
            )


def so_far(
    names: Sequence[str], rows: Sequence[Row], published: Mapping[str, float], device: str
) -> Figure:
    """Plot milliseconds per step of the rungs so far, beside the lecture notes' A6000."""
    drawing, (left, right) = figure(13, 4.8, ncols=2, sharey=True)
    bars(left, names, {row.name: row.ms for row in rows}, BLUE)
    notes(left, names, rows)
    climbed = {row.name for row in rows}
    bars(right, names, {n: v for n, v in published.items() if n in climbed}, ORANGE)
    left.set_yticks(range(len(names)), names)
    label(left, f"Here: {device}", "time per step [ms]", "")
    label(right, "RTX A6000, 124M", "time per step [ms]", "")
    return drawing


def whole_ladder(names: Sequence[str], rows: Sequence[Row], title: str) -> Figure:
    """Draw time, throughput, MFU and peak memory of all rungs in four panels."""
    drawing, panels = figure(14, 5.4, ncols=4, sharey=True)
    columns = (
        ("Time", "step [ms]", {r.name: r.ms for r in rows}, BLUE, digits),
        (
            "Throughput",
            "1000 tokens/s",
            {r.name: r.tokens_per_sec and r.tokens_per_sec / 1e3 for r in rows},
            GREEN,
            digits,
        ),
        ("MFU", "share of peak [%]", {r.name: r.mfu and 100 * r.mfu for r in rows}, ORANGE, digits),
        (
            "Peak memory",
            "MiB",
            {r.name: r.memory_gib and 1024 * r.memory_gib for r in rows},
            SKY,
            digits,
        ),
    )
    for axes, (caption, unit, values, colour, form) in zip(panels, columns, strict=True):
        bars(axes, names, values, colour, form=form)
        label(axes, caption, unit, "")
    notes(panels[0], names, [row for row in rows if row.ms is None])
    panels[0].set_yticks(range(len(names)), names)
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing


def speedups(names: Sequence[str], by_device: Mapping[str, Mapping[str, float]]) -> Figure:
    """Plot the speedup over its own fp32 after every rung, with a line per device."""
    drawing, axes = figure(13, 5)
    for (device, factors), marker, colour in zip(by_device.items(), MARKERS, PALETTE, strict=False):
        places = [names.index(name) for name in factors]
        axes.plot(places, list(factors.values()), marker=marker, color=colour, label=device)
        last = list(factors.values())[-1]
        place = {"xytext": (9, 0), "textcoords": "offset points", "va": "center", "size": 14}
        axes.annotate(f"{last:.2g}x", (places[-1], last), color=colour, **place)
    axes.axhline(1, color=GREY, linestyle=":", linewidth=2)
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n", 1) for name in names])
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.3, len(names) - 0.5)
    axes.legend(loc="upper left")
    label(axes, "What the rungs bought", "", "times as fast as fp32")
    return drawing


def step_timeline(spans: Sequence[Span], title: str) -> Figure:
    """Draw one step from left to right, with a lane per phase and operators coloured by kind."""
    drawing, axes = figure(13, 3.8)
    for span in spans:
        lane = PHASES.index(span.phase)
        axes.barh(lane, span.ms, left=span.start, height=0.7, color=KIND_COLOURS[span.kind])
    axes.set_yticks(range(len(PHASES)), PHASES)
    axes.set_ylim(len(PHASES) - 0.45, -0.55)
    axes.grid(False, axis="y")
    handles = [Patch(color=colour, label=kind) for kind, colour in KIND_COLOURS.items()]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.22), ncols=len(KINDS))
    label(axes, title, "time since the step began [ms]", "")
    return drawing


def time_by_kind(steps: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Draw a bar of milliseconds per step, split into kinds of work."""
    drawing, axes = figure(13, 1.9 + 0.85 * len(steps))
    totals = [sum(parts.values()) for parts in steps.values()]
    for place, (parts, total) in enumerate(zip(steps.values(), totals, strict=True)):
        left = 0.0
        for (kind, colour), hatch in zip(KIND_COLOURS.items(), HATCHES, strict=False):
            ms = parts.get(kind, 0.0)
            style = {"color": colour, "edgecolor": "white", "hatch": hatch, "height": 0.6}
            axes.barh(place, ms, left=left, **style)
            if ms > 0.07 * max(totals):
                ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
                text = {"ha": "center", "va": "center", "fontsize": 13, "bbox": ground}
                axes.text(left + ms / 2, place, f"{ms / total:.0%}", **text)
            left += ms
        axes.text(left, place, f" {digits(left)} ms", va="center", fontsize=14)
    axes.set_yticks(range(len(steps)), list(steps))
    axes.set_ylim(len(steps) - 0.45, -0.55)
    axes.set_xlim(0, 1.14 * max(totals))
    axes.grid(False, axis="y")
    handles = [
        Patch(facecolor=colour, edgecolor="white", hatch=hatch, label=kind)
        for (kind, colour), hatch in zip(KIND_COLOURS.items(), HATCHES, strict=False)
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.3), ncols=len(KINDS))
    label(axes, title, "time [ms]", "")
    return drawing


def memory_by_kind(
    predicted: Mapping[str, Mapping[str, float]], peaks: Mapping[str, float], title: str
) -> Figure:
    """Plot predicted MiB stacked by kind, with a black line at each measured peak."""
    drawing, axes = figure(13, 2.6 + 0.8 * len(predicted))
    kinds = [  # a share below 1 % everywhere would be invisible
        kind
        for kind in next(iter(predicted.values()))
        if any(parts[kind] > 0.01 * sum(parts.values()) for parts in predicted.values())
    ]
    colours = {kind: PALETTE[n % len(PALETTE)] for n, kind in enumerate(kinds)}
    hatches = dict(zip(kinds, HATCHES, strict=False))
    widest = 0.0
    for place, (name, parts) in enumerate(predicted.items()):
        left = 0.0
        for kind in kinds:
            width = parts[kind] / 2**20
            style = {"edgecolor": "white", "hatch": hatches[kind], "height": 0.6}
            axes.barh(place, width, left=left, color=colours[kind], **style)
            left += width
        widest = max(widest, left)
        if name in peaks:
            peak = peaks[name] / 2**20
            widest = max(widest, peak)
            axes.vlines(peak, place - 0.4, place + 0.4, color="black", linewidth=4)
            axes.text(peak, place, f"  peak {digits(peak)}", va="center", fontsize=13)
    axes.set_yticks(range(len(predicted)), list(predicted))
    axes.set_ylim(len(predicted) - 0.4, -0.6)
    axes.set_xlim(0, 1.2 * widest)
    axes.grid(False, axis="y")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    handles = [
        Patch(facecolor=colours[kind], edgecolor="white", hatch=hatches[kind], label=kind)
        for kind in kinds
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.24), ncols=4)
    label(axes, title, "memory [MiB]", "")
    return drawing


def beside_others(times: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Plot the time of others relative to ours for each job, on a logarithmic axis."""
    peers = list(dict.fromkeys(peer for found in times.values() for peer in found))
    colours = dict(zip(peers, PALETTE, strict=False))
    drawing, axes = figure(13, 1.6 + 0.4 * sum(len(found) for found in times.values()))
    place, ticks = 0.0, []
    for found in times.values():
        ticks.append(place + (len(found) - 1) / 2)
        for peer, factor in found.items():
            axes.barh(place, factor - 1, 0.8, left=1, color=colours[peer], label=peer)
            beyond = {"ha": "left" if factor >= 1 else "right", "va": "center", "fontsize": 13}
            axes.text(factor, place, f" {factor:.3g} x ", **beyond)
            place += 1
        place += 0.8
    axes.axvline(1, color="black")
    axes.set_xscale("log")
    highest = max(factor for found in times.values() for factor in found.values())
    axes.set_xlim(0.4, 2 * highest)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(ticks, [textwrap.fill(name, 34) for name in times])
    axes.set_ylim(place - 1.2, -0.8)
    axes.grid(False, axis="y")
    handles = [Patch(facecolor=colours[peer], label=peer) for peer in peers]
    axes.legend(handles=handles, loc="lower right")
    label(axes, title, "time, in multiples of ours", "")
    return drawing
