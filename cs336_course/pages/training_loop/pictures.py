"""Figures of the page on the training loop: how a run dies, its gradients, and its repair."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cs336_course.drawing.charts import curves
from cs336_course.drawing.style import (
    BLUE,
    BROWN,
    GREEN,
    GREY,
    RED,
    figure,
    ink,
    label,
    show_cover,
)
from cs336_course.drawing.training import loss_curves
from cs336_course.pages.training_loop import story

__all__ = ["loss_curves"]


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


def before_nan(runs: Mapping[str, Sequence[float]], last: int, title: str) -> Figure:
    """Plot the last finite losses of runs that died, aligned at their first NaN."""
    ends = {}
    for name, losses in runs.items():
        finite = np.asarray(losses)[: int(np.isfinite(losses).sum())][-last:]
        ends[name] = (range(-len(finite), 0), finite)
    y = "loss [nats/token] (log scale)"
    return curves(title, "steps before the first nan", y, ends, log="y", dots=True, size=(10, 4.4))


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


def below_ceiling(title: str, x: str, lines: Mapping[str, Any], **settings: Any) -> Figure:
    """Plot scaled gradients, and the largest number of fp16. The settings are those of `curves`."""
    ticks = range(0, 250_000, 50_000)
    shown = {"yticks": ticks, "yticklabels": [f"{tick:,}" for tick in ticks], **settings}
    levels = {"fp16 ends at 65,504": 65_504}
    return curves(title, x, "gradient, scaled", lines, levels=levels, size=(10, 4.2), **shown)
