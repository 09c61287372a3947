"""The charts that most figures are: named lines over numbers, and bars of named numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cs336_course.drawing.style import BLACK, BLUE, LINES, figure, label, label_ends

DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))  # distinct without colour, too
Line = Sequence[float] | tuple[Sequence[float], Sequence[float]]  # heights, or (places, heights)


def curves(
    title: str,
    x: str,
    y: str,
    lines: Mapping[str, Line],
    *,
    first: int = 0,
    log: str = "",
    smooth: int = 1,
    levels: Mapping[str, float] | None = None,
    marks: Mapping[str, tuple[float, float]] | None = None,
    names: str = "ends",
    dots: bool = False,
    size: tuple[float, float] = (10, 4.6),
    axes: Axes | None = None,
    **settings: Any,
) -> Figure:
    """Draw one line per name, and return the figure.

    Args:
        title: Stands above the axes.
        x: What the horizontal axis shows, with its unit.
        y: What the vertical axis shows, with its unit.
        lines: The heights by name, or tuples of places and heights.
        first: Place of the first height of a line without places.
        log: The axes that are logarithmic, such as "xy".
        smooth: Number of points that each point is the mean of.
        levels: Heights of dashed lines across the axes, by name.
        marks: Points by name.
        names: "ends" writes each name beside its line, "legend" lists them, and "" leaves them out.
        dots: Whether to mark the points of the lines.
        size: Size of the figure in inches.
        axes: Axes to draw on, one panel of a figure, instead of a new figure.
        settings: What `Axes.set` takes, such as `ylim` and `xticks`.
    """
    if axes is None:
        _, axes = figure(*size)
    for number, (name, line) in enumerate(lines.items()):
        places, heights = line if isinstance(line, tuple) else (None, line)
        if places is None:
            places = range(first, first + len(heights))
        if smooth > 1:
            heights = np.convolve(heights, np.ones(smooth) / smooth, mode="valid")
        style = {"color": LINES[number % len(LINES)], "linestyle": DASHES[number % len(DASHES)]}
        axes.plot(places[smooth - 1 :], heights, label=name, marker="o" if dots else "", **style)
    for name, point in (marks or {}).items():
        axes.plot(*point, "o", color=BLACK, markersize=10)
        axes.annotate(name, point, xytext=(12, -16), textcoords="offset points")
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    axes.set(**settings)
    draw_levels(axes, levels or {})
    label(axes, title, x, y)
    if names == "ends":
        label_ends(axes)
    elif names == "legend":
        axes.legend()
    return axes.get_figure(root=True)


def draw_levels(axes: Axes, levels: Mapping[str, float]) -> None:
    """Draw dashed horizontal lines, with the name of each above its right end."""
    for name, level in levels.items():
        axes.axhline(level, color=BLACK, linestyle="--", linewidth=1.5)
        place = {"xytext": (-4, 4), "textcoords": "offset points", "ha": "right", "va": "bottom"}
        axes.annotate(name, (1, level), xycoords=("axes fraction", "data"), **place)


def bars(
    title: str,
    unit: str,
    values: Mapping[str, float],
    *,
    texts: Sequence[str] | str = "{:,.3g}",
    colours: Mapping[str, str] | None = None,
    width: float = 10,
) -> Figure:
    """Draw a horizontal bar per name, with its value beside it, and return the figure.

    Args:
        title: Stands above the figure.
        unit: What the bars show, with its unit.
        values: Length of each bar by name, from the top to the bottom.
        texts: What stands beside the bars, or the format of the values.
        colours: Colours of some bars by name; the others are blue.
        width: Width of the figure in inches.
    """
    drawing, axes = figure(width, 0.6 * len(values) + 1.7)
    names = list(values)
    fills = [(colours or {}).get(name, BLUE) for name in names]
    drawn = axes.barh(names, list(values.values()), color=fills, height=0.65)
    if isinstance(texts, str):
        texts = [texts.format(value) for value in values.values()]
    axes.bar_label(drawn, texts, padding=5)
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.margins(x=0.15)
    axes.grid(False, axis="y")
    label(axes, title, unit, "")
    return drawing
