"""Figures of the side trip on recipes: losses, differences, and lengths of a step."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    GREY,
    RED,
    figure,
    ink,
    label,
    label_ends,
    show_cover,
)
from cs336_course.pages.recipe_of_today import story
from cs336_course.pages.recipe_of_today.story import BASE, CHANGES, SETTINGS


def cover() -> None:
    """Draw the training losses of the old and the new recipe, with a thin line for each seed."""
    runs = story.recorded()
    letters = SETTINGS[BASE].steps * SETTINGS[BASE].batch
    _, axes = figure(10, 3.2)
    for changes, colour, dashes, name in (
        ((), RED, "--", "GPT-2's recipe"),
        (CHANGES, BLUE, "-", "the recipe of today"),
    ):
        seeds = [row["tenths"] for row in story.eight(runs, BASE, changes)]
        seen = (np.arange(len(seeds[0])) + 0.5) / len(seeds[0]) * letters / 1000
        for values in seeds:
            axes.plot(seen, values, color=colour, ls=dashes, lw=1.5)
        height = 2.85 if colour == RED else 2.33
        axes.text(39, height, name, color=ink(colour), va="center", fontsize=17, fontweight="bold")
    axes.text(39, 2.6, "which change did it?", va="center", fontsize=15)
    axes.set(xlim=(0, 54), xticks=range(0, 40, 10), ylim=(2.2, 3.9), yticks=(2.5, 3, 3.5))
    title = "Two recipes read the same letters, eight runs each"
    label(axes, title, "letters seen [thousands]", "training loss [nats]")
    show_cover()


def differences(pairs: Mapping[str, story.Pair]) -> Figure:
    """Plot each seed's loss with a change minus its loss without, in a row for each change."""
    drawing, axes = figure(12, 5.4)
    axes.axvline(0, color=BLACK, lw=1)
    for row, pair in enumerate(pairs.values()):
        colour = {"helps": BLUE, "hurts": RED}.get(pair.verdict, GREY)
        seeds = [units / 1e4 for units in pair.units]
        axes.plot(seeds, [row] * len(seeds), "o", color=colour, ms=12, mew=2, mfc="none")
    axes.set_yticks(range(len(pairs)), pairs)
    axes.invert_yaxis()
    label(axes, "Left of the line, a seed is better with it", "difference of the loss [nats]", "")
    return drawing


def singular_values(values: Mapping[str, Sequence[float]]) -> Figure:
    """Plot the singular values of the step of each optimizer."""
    drawing, axes = figure(12, 5.4)
    for (name, row), colour in zip(values.items(), (GREY, RED, BLACK), strict=True):
        axes.semilogy(range(1, len(row) + 1), row, color=colour, label=name)
    axes.set_xticks(range(0, 97, 24))
    title = "How far one step goes in each direction of a matrix"
    axes.set_xlim(0, 140)
    label(axes, title, "direction, from the longest step to the shortest", "length [RMS of all]")
    label_ends(axes, 17)
    return drawing
