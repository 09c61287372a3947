"""Figures of the page on the training loop: how a run dies, its gradients, and its repair."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cs336_course.drawing.charts import curves
from cs336_course.drawing.style import (
    BLUE,
    GREEN,
    GREY,
    RED,
    figure,
    ink,
    label,
    show_cover,
)
from cs336_course.pages.training_loop import story


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
