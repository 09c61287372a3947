"""Figures of training runs, such as losses, norms, schedules and dtypes."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Stroke

from cs336_course.drawing.style import (
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
    label_ends,
    show_cover,
)
from cs336_course.pages.reproducible_runs import same_run

DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))  # distinct without colour, too
DTYPE_COLOURS = {"float32": SKY, "bfloat16": ORANGE, "float16": "#F5C77E", "int64": "#DDDDDD"}


def lines(axes: Axes, curves: Mapping[str, Sequence[float]], first: int = 0) -> None:
    """Plot each curve against the step, with a different colour and dash pattern per curve."""
    for (name, values), colour, dashes in zip(
        curves.items(), cycle(LINES), cycle(DASHES), strict=False
    ):
        steps = range(first, first + len(values))
        axes.plot(steps, values, color=colour, linestyle=dashes, label=name)


def cover_resumed() -> None:
    """Draw a resumed run's loss over that of one that never stopped, and the bits that differ."""
    straight, resumed, bits = same_run.looks_fine(stop=20, end=40, weights=60)
    _, (left, right) = figure(10, 3.2, ncols=2, width_ratios=(1, 1.25))
    left.plot(straight, color=GREY, lw=8)
    left.text(9, 3.55, "never\nstopped", size=15, color=ink(GREY))
    left.plot(range(20, 40), resumed, color=RED)
    left.axvline(20, color="black", ls=":", lw=2)
    left.text(21, 4.05, "2:00 am,\nkilled and\nresumed", size=15, va="top", color=ink(RED))
    label(left, "The loss looks fine", "step", "loss [nats/token]")
    right.imshow(np.where(bits[..., None], (213, 94, 0), (229, 229, 229)), aspect="auto")
    right.set_yticks((0, 4.5, 20), ("sign", "exponent", "mantissa"))
    right.set_xticks([])
    right.grid(visible=False)
    label(right, "The bits that changed are red", "60 of the weights, 32 bits each", "")
    show_cover()


def loss_curves(
    curves: Mapping[str, Sequence[float]],
    title: str,
    levels: Mapping[str, float] | None = None,
    y_label: str = "loss [nats/token]",
    y_scale: str = "linear",
    wide: str = "",
) -> Figure:
    """Plot losses by step, with named horizontal lines such as the loss of a uniform guess.

    The curve named `wide` is drawn as a tube, in which another curve can lie.
    """
    drawing, axes = figure(10, 4.6)
    lines(axes, curves)
    for line in axes.get_lines():
        if line.get_label() == wide:
            line.set(linewidth=10, path_effects=[Stroke(), Stroke(linewidth=7, foreground="white")])
    axes.set_yscale(y_scale)
    for name, level in (levels or {}).items():
        axes.axhline(level, color=GREY, linestyle=":", linewidth=2)
        place = {"xytext": (0, 6), "textcoords": "offset points", "ha": "right", "size": 13}
        axes.annotate(name, (1, level), xycoords=("axes fraction", "data"), **place)
    label(axes, title, "step", y_label)
    if len(curves) > 1:
        axes.legend()
    return drawing


def seeded_sweep(
    rates: Sequence[float], losses: Sequence[Sequence[float]], chosen: float, title: str
) -> Figure:
    """Plot each seed's final loss for each learning rate, their means, and a chosen rate.

    Rates at which a seed ended in NaN have no mean. Above them stands how many seeds died.
    """
    drawing, axes = figure(10, 4.4)
    means = [float(np.mean(row)) for row in losses]
    for rate, row in zip(rates, losses, strict=True):
        axes.plot([rate] * len(row), row, "o", color=GREY, markersize=6)
        if died := int(np.isnan(row).sum()):
            where = {"xycoords": ("data", "axes fraction"), "ha": "center", "size": 14}
            axes.annotate(f"{died} of {len(row)}\ndied", (rate, 0.8), color=ink(RED), **where)
    axes.semilogx(rates, means, color=BLUE, marker="o")
    for rate, mean in zip(rates, means, strict=True):
        if math.isnan(mean):
            continue
        note = {"xytext": (0, 12), "textcoords": "offset points", "ha": "center", "size": 14}
        axes.annotate(f"{mean:.2f}", (rate, mean), **note)
    axes.axvline(chosen, color=RED, linestyle=":", linewidth=2)
    axes.update_datalim([(rate, np.nanmin(means)) for rate in rates])  # so that each is in sight
    axes.margins(x=0.08, y=0.25)
    label(axes, title, "learning rate (log scale)", "loss at the end [nats/token]")
    return drawing


def before_nan(runs: Mapping[str, Sequence[float]], last: int, title: str) -> Figure:
    """Plot the last finite losses of runs that died, aligned at their first NaN."""
    drawing, axes = figure(10, 4.4)
    for (name, losses), colour, dashes in zip(runs.items(), LINES, DASHES, strict=False):
        finite = np.asarray(losses)[: int(np.isfinite(losses).sum())][-last:]
        steps = np.arange(-len(finite), 0)
        axes.semilogy(steps, finite, color=colour, linestyle=dashes, marker="o", label=name)
    label(axes, title, "steps before the first nan", "loss [nats/token] (log scale)")
    label_ends(axes)
    return drawing


def magnitudes(
    gradients: Mapping[str, Sequence[float]], scale: float, limit: float, title: str
) -> Figure:
    """Draw histograms of scaled gradients by power of two, and mark fp16's largest number.

    Zeros have no place on the axis and aren't drawn.
    """
    drawing, panels = figure(11, 1.2 + 1.9 * len(gradients), nrows=len(gradients), sharex=True)
    edges = 2.0 ** np.arange(-8, 21)
    for axes, (name, sizes) in zip(np.atleast_1d(panels), gradients.items(), strict=True):
        scaled = np.asarray(sizes) * scale
        counts, _ = np.histogram(scaled[scaled > 0], edges)
        share = 100 * counts / len(scaled)
        colours = [RED if edge >= limit / 1.01 else SKY for edge in edges[:-1]]
        axes.bar(edges[:-1], share, np.diff(edges), align="edge", color=colours)
        axes.axvline(limit, color=RED, linestyle="--", linewidth=2)
        note = {"xytext": (8, -16), "textcoords": "offset points", "ha": "left", "size": 14}
        largest = f"largest {scaled.max():,.0f}"
        axes.annotate(largest, (limit, 1), xycoords=("data", "axes fraction"), **note)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_ylim(0.01, 100)
        label(axes, name, "", "share [%]")
    np.atleast_1d(panels)[-1].set_xlabel(f"size of a gradient times {scale:,.0f}")
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing


def repaired(
    dead: Sequence[float],
    losses: Sequence[float],
    scales: Sequence[float],
    first: int,
    block: int,
    title: str,
) -> Figure:
    """Plot means of a repaired run's losses over the run that died, and the loss scale below."""
    drawing, (top, bottom) = figure(11, 6.0, nrows=2, sharex=True, height_ratios=[2, 1])
    whole = len(losses) // block * block
    means = np.asarray(losses)[:whole].reshape(-1, block).mean(1)
    middles = first + block * (np.arange(len(means)) + 0.5)
    alive = np.asarray(dead)[: int(np.isfinite(dead).sum())]
    top.plot(middles, means, color=GREEN, label=f"repaired, means of {block} steps")
    top.plot(first + np.arange(len(alive)), alive, color=GREY, lw=1, label="the run that died")
    top.plot(first + len(alive) - 1, alive[-1], "x", color=RED, markersize=14, markeredgewidth=4)
    label(top, title, "", "loss [nats/token]")
    top.legend()
    bottom.step(first + np.arange(len(scales)), scales, color=BLUE, where="post")
    bottom.set_ylim(0, 1.2 * max(scales))
    label(bottom, "", "step", "loss scale")
    return drawing


def spike(
    norms: Sequence[float],
    losses: Mapping[str, Sequence[float]],
    limit: float,
    bad_step: int,
    title: str,
) -> Figure:
    """Plot gradient norms and the clipping limit above losses, and shade the step of the spike."""
    drawing, (top, bottom) = figure(10, 6.4, nrows=2, sharex=True)
    top.semilogy(norms, color=BLUE)
    top.axhline(limit, color=RED, linestyle="--", linewidth=2)
    note = {"xytext": (2, 5), "textcoords": "offset points", "size": 13, "color": ink(RED)}
    top.annotate(f"limit {limit:g}", (0, limit), **note)
    note = {"xytext": (10, -4), "textcoords": "offset points", "size": 14}
    top.annotate(f"{norms[bad_step]:.1f}", (bad_step, norms[bad_step]), **note)
    lines(bottom, losses)
    for axes in (top, bottom):
        axes.axvspan(bad_step - 0.5, bad_step + 0.5, color=ORANGE, alpha=0.4)
    label(top, title, "", "gradient norm\nbefore clipping (log)")
    label(bottom, "", "step", "loss [nats/token]")
    bottom.legend(loc="upper left")
    return drawing


def schedule(rates: Sequence[float], warmup_steps: int, title: str) -> Figure:
    """Plot the learning rate of each step, shade the warm-up, and label the end points."""
    drawing, axes = figure(10, 4.4)
    axes.plot(rates, color=BLUE, marker="o", markersize=5)
    axes.axvspan(-0.5, warmup_steps - 0.5, color=SKY, alpha=0.25)
    peak = warmup_steps - 1
    last = len(rates) - 1
    notes = {
        0: (14, -5, "left", f"first step: {rates[0]:g}"),
        peak: (4, 14, "left", f"end of warm-up, step {peak}: {rates[peak]:g}"),
        last: (0, -24, "right", f"last step, {last}: {rates[last]:g}"),
    }
    for step, (dx, dy, side, text) in notes.items():
        place = {"xytext": (dx, dy), "textcoords": "offset points", "ha": side, "size": 14}
        axes.annotate(text, (step, rates[step]), **place)
    axes.margins(y=0.2)
    label(axes, title, "step", "learning rate")
    return drawing


def window_map(
    draws: Mapping[str, Sequence[int]], tokens: int, block_size: int, title: str
) -> Figure:
    """Draw the windows of each sampling method as bars, and count how often a token is read.

    Args:
        draws: Start positions of the windows in reading order, by caption.
        tokens: Number of tokens in the file.
        block_size: Tokens per window.
        title: Title of the figure.
    """
    drawing, panels = figure(
        13, 5.8, nrows=2, ncols=len(draws), height_ratios=[3, 1.5], squeeze=False, sharex=True
    )
    for column, (caption, starts) in enumerate(draws.items()):
        upper, lower = panels[:, column]
        visits = np.zeros(tokens, dtype=int)
        for number, start in enumerate(starts):
            upper.add_patch(Rectangle((start, number), block_size, 0.8, facecolor=BLUE))
            visits[start : start + block_size] += 1
        upper.set(xlim=(0, tokens), ylim=(len(starts) + 0.2, -0.4))
        label(upper, caption, "", "window number" if column == 0 else "")
        lower.bar(range(tokens), visits, width=1.0, color=GREEN, lw=0, align="edge")
        lower.fill_between(range(tokens), 5, where=visits == 0, step="post", color=RED, alpha=0.35)
        lower.set_ylim(0, 5)
        lower.set_yticks([0, 1, 2, 3, 4])
        never = int((visits == 0).sum())
        lower.text(0.99, 0.8, f"never read: {never} of {tokens}", **corner(lower))
        label(lower, "", "position in the file [tokens]", "times read" if column == 0 else "")
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing


def corner(axes: Axes) -> dict:
    """Return keyword arguments that place text in the upper right corner of the axes."""
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
    return {"transform": axes.transAxes, "ha": "right", "size": 13, "bbox": ground}


def timeline(ways: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], title: str) -> Figure:
    """Draw the busy times of each worker in milliseconds, with one panel per method."""
    drawing, panels = figure(12, 1.5 + 1.7 * len(ways), nrows=len(ways), sharex=True, squeeze=False)
    for axes, (caption, lanes) in zip(panels[:, 0], ways.items(), strict=True):
        for height, spans in enumerate(lanes.values()):
            colour = (ORANGE, BLUE)[height % 2]
            for number, (begin, end) in enumerate(spans):
                axes.barh(height, end - begin, left=begin, color=colour)
                ink = "black" if height == 0 else "white"
                middle = {"ha": "center", "va": "center", "size": 13, "color": ink}
                axes.text((begin + end) / 2, height, str(number), **middle)
        axes.set_yticks(range(len(lanes)), lanes)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        label(axes, caption, "", "")
    panels[-1, 0].set_xlabel("time [ms]")
    panels[-1, 0].set_xlim(left=0)
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing


def divergence(
    losses: Mapping[str, Sequence[float]],
    straight: Sequence[float],
    first_step: int,
    smallest: float,
    title: str,
) -> Figure:
    """Plot the losses of resumed runs over those of a run that never stopped, and how far apart.

    There is one column per run. The axis of differences is logarithmic above `smallest` and linear
    below it, so that 0 has a place.
    """
    drawing, panels = figure(
        14, 6.2, nrows=2, ncols=len(losses), sharex=True, sharey="row", squeeze=False
    )
    for (top, bottom), (name, values) in zip(panels.T, losses.items(), strict=True):
        steps = range(first_step, first_step + len(values))
        apart = np.abs(np.subtract(values, straight))
        colour = RED if apart.any() else GREEN
        top.plot(steps, straight, color=GREY, linewidth=5)
        top.plot(steps, values, color=colour, linewidth=1.8)
        bottom.plot(steps, apart, color=colour, marker="o", markersize=4)
        with_zero(bottom, smallest, 5)
        top.set_title(name.replace(" ", "\n"), fontsize=14, fontweight="bold")
        bottom.set_xlabel("step")
    panels[0, 0].set_ylabel("loss [nats/token]\n(grey: never stopped)")
    panels[1, 0].set_ylabel("difference in loss\n[nats/token]")
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing


def with_zero(axes: Axes, smallest: float, largest: float) -> None:
    """Make the y axis logarithmic from `smallest` on, and linear from there down to 0."""
    axes.set_yscale("symlog", linthresh=smallest, linscale=0.6)
    powers = range(round(math.log10(smallest)), math.floor(math.log10(largest)) + 1, 2)
    axes.set_yticks([0.0, *(10.0**power for power in powers)])
    axes.set_ylim(-smallest / 3, largest)


def dtype_map(groups: Mapping[str, Sequence[tuple[str, str]]], title: str) -> Figure:
    """Draw the tensors of a training step as boxes coloured by dtype, with one row per stage.

    Args:
        groups: Pairs (tensor, dtype name) by stage.
        title: Title of the figure.
    """
    longest = max(len(row) for row in groups.values())
    drawing, axes = figure(13, 0.8 + 0.85 * len(groups))
    for height, (stage, row) in enumerate(groups.items()):
        axes.text(-0.1, height, stage, ha="right", va="center", size=14, fontweight="bold")
        for place, (name, dtype) in enumerate(row):
            colour = DTYPE_COLOURS.get(dtype, "white")
            axes.add_patch(Rectangle((place, height - 0.38), 0.94, 0.76, facecolor=colour))
            axes.text(place + 0.47, height - 0.13, name, ha="center", va="center", size=13)
            axes.text(place + 0.47, height + 0.18, dtype, ha="center", va="center", size=13)
    axes.set(xlim=(-1.3, longest), ylim=(len(groups) - 0.5, -0.5))
    axes.axis("off")
    axes.set_title(title, loc="left", fontweight="bold")
    return drawing
