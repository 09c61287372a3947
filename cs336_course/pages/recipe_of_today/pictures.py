"""Figures of the side trip on recipes: losses, paired differences, and lengths of a step."""

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
from cs336_course.pages.recipe_of_today.story import BLOCK, ROWS, SIZES, Pair


def cover() -> None:
    """Draw the training losses of the old and the new recipe, with a thin line for each seed."""
    runs = story.recorded()
    letters = SIZES["small"].steps * ROWS * BLOCK
    _, axes = figure(10, 3.2)
    for changes, colour, dashes, name in (
        ((), RED, "--", "GPT-2's recipe"),
        (story.recipe(runs), BLUE, "-", "the recipe of today"),
    ):
        seeds = story.tenths(runs, "small", changes)
        seen = (np.arange(len(seeds[0])) + 0.5) / len(seeds[0]) * letters / 1000
        for values in seeds:
            axes.plot(seen, values, color=colour, ls=dashes, lw=1.5)
        height = 2.75 if colour == RED else 2.0
        axes.text(78, height, name, color=ink(colour), va="center", fontsize=17, fontweight="bold")
    axes.annotate("", (75.5, 2.5), (75.5, 2.17), arrowprops={"arrowstyle": "<->", "lw": 1.5})
    axes.text(78, 2.37, "which change did it?", va="center", fontsize=15)
    axes.set(xlim=(0, 108), xticks=range(0, 80, 20), ylim=(1.85, 3.55), yticks=(2, 2.5, 3, 3.5))
    title = "Two recipes read the same letters, five runs each"
    label(axes, title, "letters seen [thousands]", "training loss [nats]")
    show_cover()


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


def forest(found: Mapping[str, Sequence[Pair]], names: Sequence[str], title: str) -> Figure:
    """Draw each change's differences by seed and their mean, and write the rule's verdict.

    Sizes share the axis, one above the other within a row.

    Args:
        found: Pairs by the name of the size.
        names: Names of the rows.
        title: The title of the figure.
    """
    drawing, axes = figure(11 + 1.5 * len(found), 1.6 + 0.56 * len(names))
    seen = [d for pairs in found.values() for pair in pairs for d in pair.differences]
    low, high = min(seen), max(seen)
    wide = high - low
    looks = zip(found.items(), (BLUE, RED), ("o", "s"), strict=False)
    for number, ((size, pairs), colour, marker) in enumerate(looks):
        shift = 0.36 * (number - (len(found) - 1) / 2)
        column = high + wide * (0.14 + 0.22 * number)
        text = {"color": ink(colour), "ha": "center", "va": "center"}
        axes.text(column, -0.95, size, **text)
        for place, pair in enumerate(pairs):
            dots = np.full(len(pair.differences), place + shift)
            axes.plot(pair.differences, dots, color=GREY, marker="|", ms=11, ls="")
            fill = colour if pair.passes else "none"
            look = {"marker": marker, "ms": 10, "mfc": fill, "mec": colour, "mew": 2, "ls": ""}
            axes.plot([pair.mean], [place + shift], color=colour, **look)
            told, weight = ("kept", "bold") if pair.passes else ("dropped", "normal")
            axes.text(column, place, told, weight=weight, **text)
    axes.axvline(0, color=BLACK, lw=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -1.4)
    axes.set_xlim(low - 0.03 * wide, high + wide * (0.08 + 0.22 * len(found)))
    axes.set_xticks(np.arange(-4, 2) * 0.05)
    label(axes, title, "difference [nats/letter]", "")
    return drawing
