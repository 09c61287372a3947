"""Figures of strided tensors, with the storage as a row of cells and views as grids."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from torch import Tensor

from cs336_course.drawing.style import BLACK, GREY, RED, SKY, figure, ink

SMALL, LARGE = 14, 17


def shade(slot: int, length: int) -> tuple[float, ...]:
    """Return the colour of a slot. Later slots are darker, and black digits are legible on all."""
    part = slot / max(1, length - 1)
    return tuple(a + part * (b - a) for a, b in zip(to_rgb("#E3F1FA"), to_rgb(SKY), strict=True))


def cell(axes: Axes, x: float, y: float, value: float, slot: int, length: int, seen: bool) -> None:
    """Draw a slot as a square with its value. Slots that the view doesn't read are hatched."""
    colour, ink = (shade(slot, length), BLACK) if seen else ("white", GREY)
    hatch = None if seen else "///"
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor=GREY, hatch=hatch))
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor="none", edgecolor="black", linewidth=1.2))
    text = axes.text(x + 0.5, y + 0.5, f"{value:g}", size=LARGE, color=ink, ha="center")
    text.set(va="center")
    if not seen:
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})


def storage_row(axes: Axes, values: Tensor, seen: set[int]) -> None:
    """Draw the storage with one cell per slot, and slot numbers below the cells."""
    for slot, value in enumerate(values.tolist()):
        cell(axes, slot, 0, value, slot, len(values), slot in seen)
        number = axes.text(slot + 0.5, -0.12, str(slot), size=SMALL, color="#444444", ha="center")
        number.set(va="top")
    axes.text(-0.3, 0.5, "storage", size=SMALL, ha="right", va="center", fontweight="bold")
    axes.text(-0.3, -0.12, "slot", size=SMALL, ha="right", va="top", color="#444444")
    axes.set(xlim=(-2.4, len(values) + 0.3), aspect="equal")
    axes.axis("off")


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str,
    bend: float = 0,
) -> None:
    """Draw an arrow between two points, as an arc if `bend` is not 0."""
    shape = {"connectionstyle": f"arc3,rad={bend}", "arrowstyle": "-|>", "mutation_scale": 20}
    axes.add_patch(FancyArrowPatch(start, end, color=colour, linewidth=2.6, **shape))


def steps(axes: Axes, stops: Sequence[int], colour: str, above: bool) -> None:
    """Draw arrows between consecutive slots, above the cells or below the slot numbers."""
    y, bend = (1.04, -0.42) if above else (-0.6, 0.42)
    for start, end in pairwise(stops):
        if start != end:
            side = bend if end > start else -bend
            arrow(axes, (start + 0.5, y), (end + 0.5, y), colour, side)


def grid(axes: Axes, values: Tensor, slots: Tensor, top: float = 0) -> None:
    """Draw a view as rows and columns. The colour of a cell shows its storage slot."""
    rows = slots if slots.dim() == 2 else slots[None]
    for i, row in enumerate(rows.tolist()):
        for j, slot in enumerate(row):
            cell(axes, j, top - i - 1, values[slot].item(), slot, len(values), True)
    axes.set(xlim=(-0.1, rows.size(1) + 0.1), ylim=(-rows.size(0) - 0.1, 0.1), aspect="equal")
    axes.axis("off")


def moves(stops: Sequence[int]) -> str:
    """Format the steps between slots, such as "+1 slot", "+4 slots", or "+1, +3" if they differ."""
    each = [end - start for start, end in pairwise(stops)] or [0]
    if len(set(each)) > 1:
        return ", ".join(f"{step:+d}" for step in each)
    return f"{each[0]:+d} slot" + ("" if abs(each[0]) == 1 else "s")


def memory_layout(values: Tensor, slots: Tensor, title: str) -> Figure:
    """Draw a 2-D view below its storage, with the stride of each dimension.

    An element has the same colour in the view and in the storage. The arrows of a dimension also
    have the same colour in both drawings.

    Args:
        values: The entire storage as a flat tensor.
        slots: Slot of each element of the view.
        title: Title of the figure.
    """
    down, across = slots[:, 0].tolist(), slots[0].tolist()
    rows, columns = slots.shape
    reach = max((abs(b - a) for a, b in pairwise(down)), default=0)
    below = max((abs(b - a) for a, b in pairwise(across)), default=0)
    highest = 1.2 + 0.22 * max(3, reach)
    top = min(-1.7, -1.3 - 0.22 * below)  # the view starts below the arcs under the storage
    lowest, width = top - max(rows, 2.2) - 0.2, max(len(values) + 0.3, columns + 10) + 2.4
    inches = min(0.72, 13 / width)  # of one cell
    drawing, axes = figure(width * inches, (highest - lowest) * inches + 0.5)
    grid(axes, values, slots, top)
    storage_row(axes, values, set(slots.flatten().tolist()))
    steps(axes, down, RED, above=True)
    steps(axes, across, BLACK, above=False)
    right = columns + 0.7
    for y, stops, colour, words in (
        (top - 0.5, across, BLACK, "one column right (dim 1)"),
        (top - 1.6, down, RED, "one row down (dim 0)"),
    ):
        text = axes.text(right, y, f"{words}: {moves(stops)}", size=LARGE, color=ink(colour))
        text.set(va="center", fontweight="bold")
    if columns > 1:
        arrow(axes, (0.1, top + 0.25), (1.9, top + 0.25), BLACK)
    if rows > 1:
        arrow(axes, (-0.3, top - 0.1), (-0.3, top - 1.9), RED)
    axes.set(xlim=(-2.4, width - 2.4), ylim=(lowest, highest))
    axes.set_title(title, loc="left", fontweight="bold")
    return drawing


def view_gallery(values: Tensor, views: Mapping[str, Tensor], title: str) -> Figure:
    """Draw several views of one storage side by side.

    Args:
        values: The entire storage as a flat tensor.
        views: Slots of each one- or two-dimensional view, by caption.
        title: Title of the figure.
    """
    drawing = plt.figure(figsize=(13, 5.6))
    upper, lower = drawing.subfigures(2, 1, height_ratios=[1, 2])
    top = upper.subplots()
    storage_row(top, values, set(range(len(values))))
    top.set_ylim(-0.6, 1.1)
    widths = [max(2.6, view.size(-1) + 0.2) for view in views.values()]
    panels = lower.subplots(1, len(views), width_ratios=widths, squeeze=False)
    tallest = max(view.size(0) if view.dim() == 2 else 1 for view in views.values())
    for axes, (caption, view) in zip(panels[0], views.items(), strict=True):
        grid(axes, values, view)
        columns = view.size(-1)
        margin = max(0.0, 2.6 - columns) / 2
        axes.set(xlim=(-0.1 - margin, columns + 0.1 + margin), ylim=(-tallest - 0.1, 0.1))
        axes.set_title(caption, fontsize=SMALL + 1)
        axes.set_anchor("N")
    upper.suptitle(title, fontsize=17, fontweight="bold")
    return drawing
