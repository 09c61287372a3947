"""Figures of a model that speaks: what it writes, and how that depends on the sampler."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from cs336_course.drawing.charts import curves
from cs336_course.drawing.gpt2_model import visible
from cs336_course.drawing.style import BLACK, BLUE, RED, figure, ink, label, show_cover
from cs336_course.pages.gpt2_speaks import story

Point = tuple[str, float, float, float, float]  # its setting, x, y, and standard errors of y and x
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


def samplers(families: Mapping[str, Sequence[Point]], real: Point) -> Figure:
    """Plot how many words of a text are made up against how many are distinct.

    Args:
        families: Points by knob (temperature, top-k and top-p), with standard errors.
        real: The point of real text.
    """
    drawing = curves(
        "Each knob trades repetition for accidents",
        "distinct words, of all words [%]",
        "made-up words, of all words [%]",
        {name: tuple(zip(*points, strict=True))[1:3] for name, points in families.items()},
        marks={"real text": real[1:3]},
        names="legend",
        dots=True,
        size=(11, 5.6),
    )
    (axes,) = drawing.axes
    _, x, y, dy, dx = real
    axes.errorbar(x, y, yerr=dy, xerr=dx, color=BLACK, capsize=4)
    for (name, points), line in zip(families.items(), axes.lines, strict=False):
        _, xs, ys, dys, dxs = zip(*points, strict=True)
        axes.errorbar(xs, ys, yerr=dys, xerr=dxs, fmt="none", ecolor=line.get_color(), capsize=4)
        for setting, x, y, *_ in points:
            note = SIDES[name] | {"textcoords": "offset points", "color": ink(line.get_color())}
            halo = [withStroke(linewidth=3, foreground="white")]
            axes.annotate(setting, (x, y), size=13, path_effects=halo, zorder=4, **note)
    return drawing


def strips(rows: Mapping[str, Mapping[str, float]], p: float, mark: str) -> Figure:
    """Lay the tokens of each row end to end, the likeliest first, with a line at p.

    Args:
        rows: Probabilities of tokens, by what stands before them.
        p: Tokens that begin left of it are kept.
        mark: Token of the last row with an arrow, or "" for no arrow.
    """
    drawing, axes = figure(11, 0.9 + 0.85 * len(rows))
    for place, chances in enumerate(rows.values()):
        seen = ((token, chance) for token, chance in chances.items() if chance > 5e-4)
        ordered = sorted(seen, key=lambda one: -one[1])
        widths = np.array([chance for _, chance in ordered])
        begins = widths.cumsum() - widths
        colours = np.where(begins < p, BLUE, "lightgrey")
        axes.barh(np.full(len(widths), place), widths, 0.62, begins, color=colours)
        for (token, width), begin in zip(ordered, begins, strict=True):
            style: dict[str, Any] = {"ha": "center", "va": "center", "family": "monospace"}
            if width > 0.024:
                colour = "white" if begin < p else "black"
                axes.text(begin + width / 2, place, visible(token), color=colour, **style)
            if token == mark and place == len(rows) - 1:
                arrow = {"arrowprops": {"arrowstyle": "->"}, "va": "top", **style}
                axes.annotate(token, (begin, place + 0.31), (begin, place + 0.85), **arrow)
    axes.axvline(p, color=RED, linestyle="--")
    axes.set(xlim=(0, 1), ylim=(len(rows) - 0.05, -0.5), yticks=range(len(rows)))
    axes.set_yticklabels([visible(name) for name in rows])
    axes.grid(visible=False)
    title = f"What begins left of the line at p = {p:g} stays"
    label(axes, title, "probability, likeliest token first", "")
    return drawing
