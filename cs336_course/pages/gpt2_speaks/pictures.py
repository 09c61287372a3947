"""Figures of a model that speaks: what it writes, and how that depends on the sampler."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from cs336_course.drawing.charts import curves
from cs336_course.drawing.gpt2_model import visible
from cs336_course.drawing.style import BLUE, RED, figure, ink, label, show_cover
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
    drawing = curves(
        "Each knob trades repetition for accidents",
        "distinct words, of all words [%]",
        "made-up words, of all words [%]",
        {name: tuple(zip(*points, strict=True))[1:] for name, points in families.items()},
        marks={"real text": real},
        names="legend",
        dots=True,
        size=(11, 5.6),
    )
    for (name, points), line in zip(families.items(), drawing.axes[0].lines, strict=False):
        for setting, *place in points:
            note = SIDES[name] | {"textcoords": "offset points", "color": ink(line.get_color())}
            halo = [withStroke(linewidth=3, foreground="white")]
            drawing.axes[0].annotate(setting, place, size=13, path_effects=halo, zorder=4, **note)
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
