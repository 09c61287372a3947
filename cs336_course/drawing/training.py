"""What figures of training runs share: curves of losses, and an axis that has a place for 0."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import Stroke

from cs336_course.drawing.style import (
    GREY,
    LINES,
    figure,
    label,
)

DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))  # distinct without colour, too


def lines(axes: Axes, curves: Mapping[str, Sequence[float]], first: int = 0) -> None:
    """Plot each curve against the step, with a different colour and dash pattern per curve."""
    for (name, values), colour, dashes in zip(
        curves.items(), cycle(LINES), cycle(DASHES), strict=False
    ):
        steps = range(first, first + len(values))
        axes.plot(steps, values, color=colour, linestyle=dashes, label=name)


def loss_curves(
    curves: Mapping[str, Sequence[float]],
    title: str,
    levels: Mapping[str, float] | None = None,
    y_label: str = "loss [nats/token]",
    y_scale: str = "linear",
    wide: str = "",
) -> Figure:
    """Plot losses by step, with named horizontal lines such as the loss of a uniform guess.

    The curve named `wide` is drawn as a tube, in which another curve can lie.
    """
    drawing, axes = figure(10, 4.6)
    lines(axes, curves)
    for line in axes.get_lines():
        if line.get_label() == wide:
            line.set(linewidth=10, path_effects=[Stroke(), Stroke(linewidth=7, foreground="white")])
    axes.set_yscale(y_scale)
    for name, level in (levels or {}).items():
        axes.axhline(level, color=GREY, linestyle=":", linewidth=2)
        place = {"xytext": (0, 6), "textcoords": "offset points", "ha": "right", "size": 13}
        axes.annotate(name, (1, level), xycoords=("axes fraction", "data"), **place)
    label(axes, title, "step", y_label)
    if len(curves) > 1:
        axes.legend()
    return drawing


def with_zero(axes: Axes, smallest: float, largest: float) -> None:
    """Make the y axis logarithmic from `smallest` on, and linear from there down to 0."""
    axes.set_yscale("symlog", linthresh=smallest, linscale=0.6)
    powers = range(round(math.log10(smallest)), math.floor(math.log10(largest)) + 1, 2)
    axes.set_yticks([0.0, *(10.0**power for power in powers)])
    axes.set_ylim(-smallest / 3, largest)
