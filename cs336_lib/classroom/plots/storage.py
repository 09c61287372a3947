"""Figures of a strided tensor in memory, with its storage as a row of cells and views as grids."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from torch import Tensor

from cs336_lib.classroom.plots.style import BLACK, BLUE, GREY, ORANGE, RED, SKY, figure, label

SMALL, LARGE = 13, 16


def shade(slot: int, length: int) -> tuple[str | tuple[float, ...], str]:
    """Return a colour for a slot, from pale to dark, and a text colour that is legible on it."""
    part = slot / max(1, length - 1)
    pale, dark = to_rgb("#E3F1FA"), to_rgb(BLUE)
    colour = tuple(a + part * (b - a) for a, b in zip(pale, dark, strict=True))
    return colour, "white" if part > 0.6 else "black"


def cell(axes: Axes, x: float, y: float, value: float, slot: int, length: int, seen: bool) -> None:
    """Draw one square with its value, hatched if the view does not read it."""
    colour, ink = shade(slot, length) if seen else ("white", GREY)
    hatch = None if seen else "///"
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="#BBBBBB", hatch=hatch))
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor="none", edgecolor="black", linewidth=1.2))
    text = axes.text(x + 0.5, y + 0.5, f"{value:g}", size=LARGE, color=ink, ha="center")
    text.set(va="center")
    if not seen:
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})


def storage_row(axes: Axes, values: Tensor, seen: set[int]) -> None:
    """Draw the storage with one cell per slot and the slot's number underneath."""
    for slot, value in enumerate(values.tolist()):
        cell(axes, slot, 0, value, slot, len(values), slot in seen)
        number = axes.text(slot + 0.5, -0.12, str(slot), size=SMALL, color="#444444", ha="center")
        number.set(va="top")
    axes.text(-0.3, 0.5, "storage", size=SMALL, ha="right", va="center", fontweight="bold")
    axes.text(-0.3, -0.12, "slot", size=SMALL, ha="right", va="top", color="#444444")
    axes.set(xlim=(-2.4, len(values) + 0.3), aspect="equal")
    axes.axis("off")


def steps(axes: Axes, stops: Sequence[int], colour: str, above: bool) -> None:
    """Draw arrows from slot to slot, above the row of cells or below the slot numbers."""
    y, bend = (1.04, -0.42) if above else (-0.6, 0.42)
    for start, end in pairwise(stops):
        if start != end:
            arrow = FancyArrowPatch(
                (start + 0.5, y),
                (end + 0.5, y),
                connectionstyle=f"arc3,rad={bend if end > start else -bend}",
                arrowstyle="-|>",
                mutation_scale=16,
                color=colour,
                linewidth=2.2,
            )
            axes.add_patch(arrow)


def grid(axes: Axes, values: Tensor, slots: Tensor) -> None:
    """Draw a view as rows and columns, with each cell coloured by the slot that it reads."""
    rows = slots if slots.dim() == 2 else slots[None]
    for i, row in enumerate(rows.tolist()):
        for j, slot in enumerate(row):
            cell(axes, j, -i - 1, values[slot].item(), slot, len(values), True)
    axes.set(xlim=(-0.1, rows.size(1) + 0.1), ylim=(-rows.size(0) - 0.1, 0.1), aspect="equal")
    axes.axis("off")


def memory_layout(values: Tensor, slots: Tensor, title: str) -> Figure:
    """Draw a 2-D view beside the storage that it reads.

    Args:
        values: The whole storage, flat.
        slots: The slot of each element of the view.
        title: The title of the figure.
    """
    height = 3.0 + 0.5 * slots.size(0)
    drawing, (top, bottom) = figure(
        12, height, nrows=2, height_ratios=[2.5, 0.3 + 0.55 * slots.size(0)]
    )
    storage_row(top, values, set(slots.flatten().tolist()))
    down, across = slots[:, 0].tolist(), slots[0].tolist()
    reach = max((b - a for a, b in pairwise(down)), default=0)
    top.set_ylim(-1.6, 1.2 + 0.24 * max(3, reach))
    steps(top, down, RED, above=True)
    steps(top, across, BLACK, above=False)
    grid(bottom, values, slots)
    middle, right = -slots.size(0) / 2, slots.size(1) + 0.6
    step_down = down[1] - down[0] if len(down) > 1 else 0
    step_right = across[1] - across[0] if len(across) > 1 else 0
    bottom.text(
        *(right, middle + 0.5, f"one row down: {step_down:+d} slots (dim 0)"),
        **{"size": LARGE, "color": RED, "va": "center", "fontweight": "bold"},
    )
    bottom.text(
        *(right, middle - 0.5, f"one column right: {step_right:+d} slots (dim 1)"),
        **{"size": LARGE, "color": BLACK, "va": "center", "fontweight": "bold"},
    )
    bottom.set_xlim(-0.1, 14)
    top.set_title(title, loc="left", fontweight="bold")
    return drawing


def view_gallery(values: Tensor, views: Mapping[str, Tensor], title: str) -> Figure:
    """Draw several views of one storage side by side.

    Args:
        values: The whole storage, flat.
        views: The slots of each view (one or two dimensions), by caption.
        title: The title of the figure.
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


def step_bars(steps: Sequence[int], nanoseconds: Sequence[float], line: int) -> Figure:
    """Draw the time per number read against the stride, red from a cache line upwards."""
    drawing, axes = figure(10, 4.6)
    colours = [RED if step >= line else SKY for step in steps]
    bars = axes.bar([str(step) for step in steps], nanoseconds, color=colours, edgecolor="black")
    axes.bar_label(bars, fmt="%.2g", padding=3, fontsize=LARGE)
    axes.margins(y=0.15)
    label(axes, "The same sum, ever further apart", "stride [elements]", "time per number [ns]")
    axes.grid(axis="x", visible=False)
    key = [Rectangle((0, 0), 1, 1, facecolor=c, edgecolor="black") for c in (SKY, RED)]
    axes.legend(key, ["several numbers per cache line", "a cache line for every number"])
    return drawing


def time_bars(milliseconds: Mapping[str, float], title: str) -> Figure:
    """Draw one horizontal bar per method, with the fastest in blue."""
    drawing, axes = figure(11, 0.9 + 0.75 * len(milliseconds))
    names, times = list(milliseconds), list(milliseconds.values())
    colours = [BLUE if time == min(times) else ORANGE for time in times]
    bars = axes.barh(names, times, color=colours, edgecolor="black")
    axes.bar_label(bars, fmt="%.3g ms", padding=6, fontsize=LARGE)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.grid(axis="y", visible=False)
    label(axes, title, "time [ms]", "")
    return drawing


def masks(matrices: Mapping[str, Tensor], marked: str, blank: str) -> Figure:
    """Draw boolean matrices [query, key] side by side, with True cells filled."""
    drawing, panels = figure(4.6 * len(matrices), 4.6, ncols=len(matrices), squeeze=False)
    for axes, (caption, matrix) in zip(panels[0], matrices.items(), strict=True):
        axes.imshow(matrix.tolist(), cmap=ListedColormap(["white", BLUE]), vmin=0, vmax=1)
        rows, columns = matrix.shape
        axes.set_xticks(range(columns))
        axes.set_yticks(range(rows))
        axes.set_xticks([x - 0.5 for x in range(columns + 1)], minor=True)
        axes.set_yticks([y - 0.5 for y in range(rows + 1)], minor=True)
        axes.grid(which="major", visible=False)
        axes.grid(which="minor", color="black", alpha=1, linewidth=1)
        axes.tick_params(which="minor", length=0)
        axes.spines[:].set_visible(True)
        label(axes, caption, "key position", "query position")
    key = [Rectangle((0, 0), 1, 1, facecolor=c, edgecolor="black") for c in (BLUE, "white")]
    drawing.legend(key, [marked, blank], loc="outside lower center", ncols=2)
    return drawing
