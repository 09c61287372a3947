"""Figures of a model that speaks: what it writes, and how that depends on the sampler."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from cs336_course.drawing.gpt2_model import DASHES, MARKERS, visible
from cs336_course.drawing.style import BLUE, GREEN, RED, figure, ink, label, show_cover
from cs336_course.pages.gpt2_speaks import story

Point = tuple[str, float, float]  # its setting, x and y
SIDES: Mapping[str, dict[str, Any]] = {  # where the settings stand beside their points
    "temperature": {"xytext": (8, -14), "ha": "left"},
    "top-k": {"xytext": (-6, 8), "ha": "right"},
    "top-p": {"xytext": (-8, -17), "ha": "right"},
}


def cover() -> None:
    """Draw what a model writes before and after a careless reload, and how sure it is."""
    _, panels = figure(10, 3.2, nrows=2)
    written = story.before_and_after("My lord, ", 38)
    titles = "A model writes …", "… and after its file was reloaded, without any error"
    for axes, title, (text, chances), colour in zip(
        panels, titles, written, (BLUE, RED), strict=True
    ):
        axes.bar(range(len(text) - len(chances), len(text)), chances, color=colour, width=0.9)
        axes.set_xticks(range(len(text)), map(visible, text), family="monospace", size=19)
        axes.tick_params(axis="x", length=0)
        axes.grid(visible=False)
        axes.set(xlim=(-0.7, len(text) - 0.3), ylim=(0, 1), yticks=(0, 1))
        label(axes, title, "", "certainty")
    show_cover()


def samplers(families: Mapping[str, Sequence[Point]], real: tuple[float, float]) -> Figure:
    """Plot how many words of a text are made up against how many are distinct.

    Args:
        families: Points by knob (temperature, top-k and top-p), each with its setting and the two
            shares in percent.
        real: The two shares of real text.
    """
    drawing, axes = figure(11, 5.6)
    looks = zip(families.items(), (BLUE, RED, GREEN), DASHES, MARKERS, strict=False)
    for (name, points), colour, dashes, marker in looks:
        settings, x, y = zip(*points, strict=True)
        axes.plot(x, y, color=colour, ls=dashes, marker=marker, label=name)
        side = {"textcoords": "offset points", "size": 13, "color": ink(colour), "zorder": 4}
        side |= SIDES[name] | {"path_effects": [withStroke(linewidth=3, foreground="white")]}
        for setting, *place in zip(settings, x, y, strict=True):
            axes.annotate(setting, place, **side)
    axes.scatter(*real, color="black", marker="*", s=320, zorder=3, label="real text")
    axes.margins(x=0.08, y=0.1)
    axes.set_ylim(bottom=-0.9)
    axes.legend(loc="upper left")
    title = "Each knob trades repetition for accidents"
    label(axes, title, "distinct words, of all words [%]", "made-up words, of all words [%]")
    return drawing


def next_token(panels: Mapping[str, Sequence[float]], names: Sequence[str], title: str) -> Figure:
    """Plot the same tokens' probabilities under several settings, with cut tokens marked."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    drawing, grid = figure(
        4.4 * columns, 3.1 * rows + 0.5, nrows=rows, ncols=columns, squeeze=False, sharey=True
    )
    for axes, (caption, values) in zip(grid.flat, panels.items(), strict=False):
        places = np.arange(len(values))
        axes.bar(places, values, color=BLUE)
        for place, value in zip(places, values, strict=True):
            if value == 0:
                middle = {"ha": "center", "va": "bottom", "size": 20, "color": ink(RED)}
                axes.text(place, 0.01, "×", **middle)
        axes.set_xticks(places, [visible(name) for name in names], family="monospace")
        axes.set_title(caption, loc="left", fontsize=15, fontweight="bold")
        axes.grid(axis="x", visible=False)
    for axes in grid[:, 0]:
        axes.set_ylabel("probability")
    for axes in grid[-1]:
        axes.set_xlabel("next token")
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing
