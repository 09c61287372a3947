"""Figures of the page on the training loop: how a run dies, its gradients, and its repair."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cs336_course.drawing.charts import curves
from cs336_course.drawing.style import (
    BLUE,
    BROWN,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SKY,
    figure,
    ink,
    label,
    show_cover,
)
from cs336_course.drawing.training import loss_curves
from cs336_course.pages.training_loop import story

__all__ = ["loss_curves"]

DTYPE_COLOURS = {"float32": SKY, "bfloat16": ORANGE, "float16": "#F5C77E", "int64": "#DDDDDD"}


def cover() -> None:
    """Draw the whole life of the run of 06, beside its last log rows."""
    losses = story.staged()[1].losses
    end = int(np.isfinite(losses).sum())
    _, axes = figure(10, 3.2)
    means = losses[: end // 50 * 50].reshape(-1, 50).mean(1)
    axes.plot(25 + 50 * np.arange(len(means)), means, color=BLUE)
    axes.axvline(end, color=RED, lw=4)
    axes.set(xlim=(0, 1.48 * end), ylim=(2.2, 4.2), xticks=range(0, end, 3000))
    for row, step in enumerate(range(end - 4, end + 2)):
        row_text, is_dead = f"step {step:,}  {losses[step]:.2f}", not np.isfinite(losses[step])
        style = {"color": ink(RED), "weight": "bold"} if is_dead else {}
        style |= {"family": "monospace", "size": 17, "va": "top"}
        axes.text(1.04 * end, 4.0 - 0.31 * row, row_text, **style)
    axes.grid(visible=False)
    label(axes, "9,000 healthy steps, and then one that isn't", "step", "loss [nats/token]")
    show_cover()


def death(losses: np.ndarray, grad_norms: np.ndarray, last: int, title: str) -> Figure:
    """Plot a run that ends in NaN, with enlarged panels for its last steps.

    Args:
        losses: Loss of each step. Losses after the failure are NaN.
        grad_norms: Gradient norm of each step. The norm at the failure is infinite.
        last: Number of finite steps in the enlarged panels.
        title: Title of the figure.
    """
    drawing, (whole, near, norms) = figure(13, 4.4, ncols=3, width_ratios=[1.3, 1, 1])
    end = int(np.isfinite(losses).sum())  # the number of steps with a loss
    block = max(1, end // 90)
    means = losses[: end // block * block].reshape(-1, block).mean(1)
    whole.plot(block * np.arange(len(means)), means, color=BLUE)
    whole.axvline(end, color=RED, linestyle=":", linewidth=2)
    label(whole, f"the whole run, means of {block}", "step", "loss [nats/token]")
    whole.locator_params(axis="x", nbins=4)
    steps = np.arange(end - last, end)
    near.plot(steps, losses[steps], color=BLUE, marker="o", markersize=5)
    mark_death(near, end, losses[end - 1], "nan")
    label(near, "the last losses", "step", "")
    norms.plot(steps, grad_norms[steps], color=BROWN, marker="o", markersize=5)
    mark_death(norms, end - 1, np.nanmax(grad_norms[steps[:-1]]), "inf")
    norms.set_ylim(0, 1.15 * np.nanmax(grad_norms[steps[:-1]]))
    label(norms, "the last gradient norms", "step", "")
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing


def mark_death(axes: Axes, step: int, height: float, value: str) -> None:
    """Mark the first step with a non-finite value, and write the value next to the mark."""
    note = {"xytext": (12, 0), "textcoords": "offset points", "va": "center"}
    axes.annotate(value, (step, height), **note, color=ink(RED), size=16, fontweight="bold")
    axes.plot(step, height, marker="x", color=RED, markersize=14, markeredgewidth=4)
    axes.ticklabel_format(useOffset=False)
    axes.locator_params(axis="x", nbins=3)
    axes.margins(x=0.16)  # room for the value


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
    ends = {}
    for name, losses in runs.items():
        finite = np.asarray(losses)[: int(np.isfinite(losses).sum())][-last:]
        ends[name] = (range(-len(finite), 0), finite)
    y = "loss [nats/token] (log scale)"
    return curves(title, "steps before the first nan", y, ends, log="y", dots=True, size=(10, 4.4))


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
    curves("", "step", "loss [nats/token]", losses, names="", axes=bottom)
    for axes in (top, bottom):
        axes.axvspan(bad_step - 0.5, bad_step + 0.5, color=ORANGE, alpha=0.4)
    label(top, title, "", "gradient norm\nbefore clipping (log)")
    bottom.legend(loc="upper left")
    return drawing


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
