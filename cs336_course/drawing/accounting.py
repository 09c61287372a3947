"""Figures on training cost, such as rooflines, utilization, training days and memory."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    CHARCOAL,
    FILLS,
    RUST,
    figure,
    label,
)

DARK = (BLUE, RUST, CHARCOAL)  # white text is legible on these


def digits(value: float) -> str:
    """Format a number with three significant digits, such as 0.0743, 989 or 2,250."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def stacked(
    totals: Mapping[str, Mapping[str, float]], title: str, unit: str, limit: float | None = None
) -> Figure:
    """Draw a stacked horizontal bar for each name, with the total at its end.

    Args:
        totals: Sizes of the parts, by name of the bar and kind of part.
        title: Title of the figure.
        unit: Axis label, including the unit.
        limit: Position of a vertical line, for example the memory of a device.
    """
    fig, axes = figure(12.5, 0.75 * len(totals) + 2.2)
    kinds = list(dict.fromkeys(kind for parts in totals.values() for kind in parts))
    names = list(totals)[::-1]
    left = np.zeros(len(names))
    longest = max(max(sum(parts.values()) for parts in totals.values()), limit or 0)
    for number, kind in enumerate(kinds):
        widths = np.array([totals[name].get(kind, 0.0) for name in names])
        colour = FILLS[number % len(FILLS)]
        axes.barh(names, widths, left=left, height=0.66, color=colour, label=kind)
        for place, (start, width) in enumerate(zip(left, widths, strict=True)):
            if len(kinds) > 1 and width > 0.05 * longest:  # wide enough for its number
                ink = "white" if colour in DARK else "black"
                middle = start + width / 2
                axes.text(middle, place, digits(width), color=ink, ha="center", va="center")
        left += widths
    for place, total in enumerate(left):
        axes.text(total, place, f"  {digits(total)}", va="center", fontweight="bold")
    if limit is not None:
        axes.axvline(limit, color=BLACK, ls="--", lw=2, label=f"{digits(limit)}: one device")
    axes.set_xlim(0, longest * 1.12)
    axes.grid(False, axis="y")
    if len(kinds) > 1 or limit is not None:
        columns = min(len(kinds) + (limit is not None), 5)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16 - 0.2 / len(totals)), ncols=columns)
    label(axes, title, unit, "")
    return fig
