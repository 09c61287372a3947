"""Figures on the memory of a training step."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    GREEN,
    MINT,
    ORANGE,
    RED,
    SKY,
    figure,
    ink,
    label,
    show_cover,
)
from cs336_lib.accounting import count_parameters
from cs336_lib.bill.models import model as published


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
    axes.barh(0, 48, left=left, height=0.6, **rest)  # ends outside, as far as one knows
    spot = {"ha": "center", "va": "center", "fontsize": 40}
    box = {"facecolor": "white", "edgecolor": "none"}
    axes.text(96, 0, "?", color=ink(RED), bbox=box, **spot)
    axes.axvline(80, color=BLACK, lw=4)
    axes.text(79, 0.5, "an H100 ends here", fontsize=19, ha="right", va="center")
    axes.grid(False)
    axes.set(xlim=(0, 112), ylim=(-0.4, 0.7), yticks=[])
    label(axes, "The first step of Llama 3 8B", "memory [GB]", "")
    show_cover()


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
    axes.set(ylim=(0, top), xlim=(0, -(-len(values) // 50) * 50))  # CPUs run some more or fewer
    axes.grid(False, axis="x")
    label(axes, "Memory through one training step", "operators run so far", "alive [MB]")
    return fig


def compare_steps(timelines: Mapping[str, Sequence[int]]) -> Figure:
    """Plot the memory (in MB) of forward and backward, run in several ways, and mark the peaks."""
    fig, row = figure(12, 4, ncols=len(timelines), sharey=True)
    for axes, (name, live) in zip(row, timelines.items(), strict=True):
        values = (np.array(live) - live[0]) / 1e6
        worst = int(values.argmax())
        axes.plot(values, color=BLACK, lw=1.5)
        axes.plot(worst, values[worst], "o", color=RED)
        spot = {"ha": "left", "va": "bottom", "fontsize": 15, "color": ink(RED)}
        axes.text(worst, values[worst] + 0.4, f"{values[worst]:.1f}", **spot)
        axes.grid(False, axis="x")
        label(axes, name, "operators run so far", "")
    row[0].set(ylabel="alive [MB]", ylim=(0, row[0].get_ylim()[1] * 1.1))
    return fig
