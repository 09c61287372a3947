"""Figures of the page on AdaGrad: step sizes, valleys of rates, and paths."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from cs336_course.drawing.optimizers import LOOKS, look, surface_panel
from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    BROWN,
    GREEN,
    GREY,
    RED,
    figure,
    ink,
    label,
    label_ends,
    show_cover,
)
from cs336_course.shared import loss_surfaces

# What SGD learns at a rate of 1.3, for six orders of the lines. The page computes it.
LEARNED = {
    "I": (3908, (2.1, 1.9, 3.7, 0.8, 1.9, 6.7)),
    "gentleman": (40, (7.5, 8.5, 6.9, 6.2, 7.2, 7.4)),
    "treasure": (13, (2.8, 2.2, 2.6, 2.4, 3.3, 2.8)),
}


def cover_rare_words() -> None:
    """Draw words as boxes of letters, and how many letters a model has counted in each."""
    _, axes = figure(10, 3.2)
    for row, (word, (seen, answers)) in enumerate(LEARNED.items()):
        for place, letter in enumerate(word):
            face = {"facecolor": "#E3F1FA", "edgecolor": BLACK}
            axes.add_patch(Rectangle((place, -row - 0.3), 1, 0.6, **face))
            spot = {"ha": "center", "va": "center", "fontsize": 22}
            axes.text(place + 0.5, -row - 0.02, letter, **spot)
        below = [answers[:place].count(answer) for place, answer in enumerate(answers)]
        heights = [-row - 0.42 - 0.13 * again for again in below]
        axes.plot(answers, heights, "^", color=RED, ms=11, label=word)
        axes.plot([len(word)] * 2, [-row - 0.36, -row + 0.36], color=GREEN, lw=6)
        axes.text(-0.25, -row, f"read {seen:,} times", fontsize=17, ha="right", va="center")
    axes.grid(False)
    axes.set(xlim=(-3, 10), ylim=(-2.78, 0.45), yticks=[], xticks=range(10))
    axes.spines["left"].set_visible(False)
    axes.text(1.2, 0, "green: the right answer", fontsize=17, color=ink(GREEN), va="center")
    title = "How many letters? Each triangle is a model's answer, after one training"
    label(axes, title, "letters", "")
    show_cover()


def step_sizes(curves: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Plot the length of each step on log-log axes, in units of the learning rate."""
    fig, axes = figure(10, 4.8)
    for position, (name, values) in enumerate(curves.items()):
        axes.loglog(range(1, len(values) + 1), values, label=name, **look(name, position))
    axes.minorticks_off()
    axes.set_yticks([0.2, 0.5, 1, 2], ["0.2", "0.5", "1", "2"])
    label(axes, title, "step", "step length [lr]")
    label_ends(axes)
    return fig


def error_by_frequency(
    seen: Sequence[float], errors: Mapping[str, Sequence[float]], title: str
) -> Figure:
    """Plot the relative error of a word's weights against the frequency of the word."""
    fig, axes = figure(10, 4.8)
    for position, (name, values) in enumerate(errors.items()):
        style = {**look(name, position), "linestyle": "", "marker": LOOKS[name]["marker"]}
        axes.semilogx(seen, values, label=name, alpha=0.8, markersize=5, **style)
    axes.axhline(1, color=BLACK, linestyle=":", linewidth=1.5)
    axes.text(300, 1.03, "not learned at all", ha="center", va="bottom")
    axes.set_ylim(-0.05, 1.5)
    label(axes, title, "how often the word occurs", "error / length of the word")
    for handle in axes.legend(loc="upper center", ncols=2, markerscale=1.8).legend_handles:
        handle.set_alpha(1)
    return fig


def valleys(
    rates: Sequence[float],
    shares: Mapping[float, Sequence[float]],
    bars: Mapping[float, tuple[float, float]],
) -> Figure:
    """Plot the share of the error that a step leaves, by momentum, and a bar in each valley.

    A bar spans nine times its learning rate, as the ravine's curvatures do, at the given height.
    """
    fig, axes = figure(10, 4.8)
    for (mu, values), colour in zip(shares.items(), (GREY, BROWN, BLUE), strict=True):
        lr, height = bars[mu]
        axes.semilogx(rates, values, color=colour)
        bar = {"lw": 9, "solid_capstyle": "butt"}
        axes.plot([lr, 9 * lr], [height, height], color=colour, **bar)
        name = f"μ = {mu}" if mu else "SGD, μ = 0"
        lowest = ((1 - mu**0.5) ** 2 * 0.94, mu**0.5)
        axes.text(*lowest, name, color=ink(colour), ha="right", va="bottom", fontsize=15)
    axes.set(ylim=(0, 1.2), xlim=(0.02, 4))
    axes.set_xticks([0.02, 0.09, 0.25, 1, 2.25, 4], ["0.02", "0.09", "0.25", "1", "2.25", "4"])
    axes.minorticks_off()
    label(axes, "How deep does the bar sink?", "lr times curvature", "share left by a step")
    return fig


def in_the_ravine(
    surface: loss_surfaces.Surface, paths: Mapping[str, Float[Tensor, "points 2"]]
) -> Figure:
    """Draw the paths of several rules on the contours of one ravine, a panel for each."""
    fig, row = figure(15, 4.3, ncols=len(paths), sharey=True)
    x, y = torch.linspace(-0.6, 1.2, 91), torch.linspace(-1.5, 1.5, 121)
    height = surface(torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)) ** 0.5
    for number, (axes, (name, path)) in enumerate(zip(row, paths.items(), strict=True)):
        axes.contour(x, y, height, levels=10, colors=GREY, alpha=0.8, linewidths=0.5)
        colour = BROWN if name.startswith("momentum") else BLACK
        axes.plot(*path.T, color=colour, marker="o", markersize=6, linewidth=1.6)
        axes.plot(0, 0, "+", color=BLACK, markersize=17, markeredgewidth=2.5)
        axes.set(xlim=(-0.6, 1.2), ylim=(-1.5, 1.5))
        axes.grid(False)
        label(axes, name, "weight 1, flat", "weight 2, steep" if number == 0 else "")
    return fig


# Each surface with its minima, the window to draw, and the number of steps to draw.
FRAMES = {
    "ravine": (loss_surfaces.ravine, [(0, 0)], (-4.6, 1.2, -1.9, 2.1), 100),
    "saddle": (loss_surfaces.saddle, [(0, 1), (0, -1)], (-1.9, 1.8, -1.4, 1.9), 60),
    "noisy bowl": (loss_surfaces.bowl, [(0, 0)], (-2.0, 0.9, -1.0, 1.9), 120),
}


def trajectories(paths: Mapping[str, Mapping[str, Float[Tensor, "points 2"]]]) -> Figure:
    """Draw the first steps of every optimizer on every surface.

    The upper row shows optimizers with one learning rate for all weights. The lower row shows
    optimizers with a step size per weight.

    Args:
        paths: Paths by surface (a key of FRAMES) and optimizer.
    """
    fig, rows = figure(15, 8.2, nrows=2, ncols=len(paths), sharex="col", sharey="col")
    handles: dict[str, Any] = {}
    one_rate = ("SGD", "Momentum")
    for row, axes_row in enumerate(rows):
        for axes, (case, found) in zip(axes_row, paths.items(), strict=True):
            surface, minima, window, drawn = FRAMES[case]
            shown = {n: p[: drawn + 1] for n, p in found.items() if (n in one_rate) == (row == 0)}
            surface_panel(axes, surface, shown, window, minima)
            title = f"{case}: {'one rate' if row == 0 else 'a rate per weight'}"
            first = axes is axes_row[0]
            label(axes, title, "weight 1" if row == 1 else "", "weight 2" if first else "")
            lines, names = axes.get_legend_handles_labels()
            handles |= dict(zip(names, lines, strict=True))
    fig.legend(handles.values(), handles, loc="outside lower center", ncols=6, fontsize=17)
    return fig
