"""Figures for notebook 03 that show the elements of tensors as coloured cells."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from cs336_course.drawing.style import BLUE, FILLS, GREY, LINES, RED, figure, ink, label, show_cover

GAP = 0.7  # between two blocks, in cells
WIDEST = 12.5  # inches that fit on a slide
CELL_FONT = 14
WHITE = -1  # the group of a cell that stays white
IN, OUT = 0, 1  # the groups of cells that a step reads and writes
CENTRED = {"ha": "center", "va": "center"}


class Panel(NamedTuple):
    """A tensor to draw as cells. The last two axes are the rows and columns of a block.

    `axes` contains the axis names as in an einops pattern. `groups` has the same shape as `values`,
    and contains a colour number or WHITE for each cell. If `groups` is `None`, all cells are white.
    """

    title: str
    values: Tensor
    axes: str
    groups: Tensor | None = None


def cover() -> None:
    """Draw which dimensions one line of attention swaps, for two orders of the dimensions."""
    _, axes = figure(10, 3.2)
    spot = {"ha": "center", "va": "center"}
    code = "scores = q @ k.transpose(-2, -1)"
    axes.text(3, 2.72, code, fontsize=25, family="monospace", **spot)
    orders = {"the author's": "batch head seq dim", "yours": "batch seq head dim"}
    for row, (whose, order) in enumerate(orders.items()):
        bottom = 1.05 - 1.05 * row
        axes.text(-0.1, bottom + 0.42, whose, fontsize=19, ha="right", va="center")
        for place, name in enumerate(order.split()):
            fill = face_of(1) if place > 1 else "white"
            axes.add_patch(Rectangle((1.5 * place, bottom), 1.4, 0.84, facecolor=fill))
            weight, colour = ("bold", ink(RED)) if place == 2 else ("normal", "black")
            axes.text(
                1.5 * place + 0.7,
                bottom + 0.42,
                name,
                fontsize=22,
                color=colour,
                fontweight=weight,
                **spot,
            )
    for place, index in ((2, "-2"), (3, "-1")):
        axes.text(1.5 * place + 0.7, 2.12, index, fontsize=20, family="monospace", **spot)
    axes.set(xlim=(-1.9, 6.9), ylim=(-0.05, 3.05))
    axes.axis("off")
    label(axes, "One line of attention, and two orders of the dimensions", "", "")
    show_cover()


def face_of(group: int) -> tuple[float, float, float]:
    """Return the colour of a group. It is light, so that black digits are readable."""
    if group == WHITE:
        return (1.0, 1.0, 1.0)
    red, green, blue = (0.5 * part + 0.5 for part in to_rgb(FILLS[group % len(FILLS)]))
    return red, green, blue


def array(tensor: Tensor) -> NDArray:
    """Convert a tensor to a NumPy array on the CPU."""
    return tensor.detach().cpu().numpy()


def text_of(value: float) -> str:
    """Format a whole number without decimals, and any other number with one decimal."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"


def as_blocks(values: NDArray) -> NDArray:
    """Reshape an array to the four axes (block row, block column, row, column).

    Axes of size 1 are inserted in front if the array has fewer than four axes.

    Raises:
        ValueError: If there are more than four axes.
    """
    if values.ndim > 4:
        raise ValueError(f"a tensor of {values.ndim} axes cannot be drawn; use 4 at most")
    return values.reshape((1,) * (4 - values.ndim) + values.shape)


def extent(panel: Panel) -> tuple[float, float]:
    """Return the width and height of a panel in cells, including space for labels."""
    block_rows, block_columns, rows, columns = as_blocks(array(panel.values)).shape
    names = panel.axes.split()
    margin = 1.0 if len(names) > 1 else 0.0
    width = block_columns * columns + (block_columns - 1) * GAP + margin
    height = block_rows * (rows + (GAP if len(names) > 2 else 0)) + (block_rows - 1) * GAP + 1.0
    return width, height


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw the cells of a panel, with the indices of its blocks and the names of its axes."""
    values = as_blocks(array(panel.values))
    groups = None if panel.groups is None else as_blocks(array(panel.groups))
    block_rows, block_columns, rows, columns = values.shape
    names = panel.axes.split()
    tall = GAP if len(names) > 2 else 0  # space above each block for its index
    for at in product(range(block_rows), range(block_columns), range(rows), range(columns)):
        x = at[1] * (columns + GAP) + at[3]
        y = at[0] * (rows + GAP + tall) + tall + at[2]
        face = face_of(WHITE if groups is None else int(groups[at]))
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=face, edgecolor="black", linewidth=1))
        word = text_of(values[at])
        axes.text(x + 0.5, y + 0.52, word, ha="center", va="center", fontsize=CELL_FONT)
    if len(names) > 2:
        for i, j in product(range(block_rows), range(block_columns)):
            index = f"{names[-3]} {j}" if len(names) == 3 else f"({i}, {j})"
            x, y = j * (columns + GAP) + columns / 2, i * (rows + GAP + tall) + tall - 0.15
            axes.text(x, y, index, ha="center", va="bottom", fontsize=CELL_FONT)
    width, height = extent(panel)
    margin = 1.0 if len(names) > 1 else 0.0
    axes.text(columns / 2, height - 0.45, names[-1], ha="center", va="center", color=BLUE)
    if margin:
        middle = tall + rows / 2
        turn = 90 if len(names[-2]) > 2 else 0
        axes.text(-0.5, middle, names[-2], ha="center", va="center", color=BLUE, rotation=turn)
    axes.set(xlim=(-margin - 0.05, width - margin + 0.05), ylim=(height, -0.05), aspect="equal")
    axes.set_title(panel.title, loc="left", fontweight="bold", fontsize=16)
    axes.axis("off")


def grids(*panels: Panel) -> Figure:
    """Draw tensors side by side with cells of equal size.

    For example, draw a tensor before and after a rearrangement. Each element keeps its number and
    colour. A third axis is drawn as blocks next to each other, and a fourth axis as blocks below
    each other. Labels show the axis names of the blocks.
    """
    sizes = [extent(panel) for panel in panels]
    # A title may be wider than a few cells. A letter takes about 0.24 cells of 0.5 inches.
    widths = [
        max(width, 0.24 * len(panel.title)) for (width, _), panel in zip(sizes, panels, strict=True)
    ]
    height = max(height for _, height in sizes)
    space = 1.2 * (len(panels) - 1)
    cell = min(0.5, WIDEST / (sum(widths) + space))
    drawing, row = figure(
        cell * (sum(widths) + space) + 0.2,
        cell * height + 0.6,
        ncols=len(panels),
        width_ratios=widths,
        squeeze=False,
    )
    for axes, panel in zip(row[0], panels, strict=True):
        draw_panel(axes, panel)
        axes.set_anchor("NW")
    drawing.get_layout_engine().set(wspace=0.6 / len(panels))
    return drawing


def before_and_after(values: Tensor, *patterns: str, **sizes: int) -> Figure:
    """Draw a tensor before and after each pattern, in colours of the result's first dimension."""
    panels = []
    for pattern in patterns:
        order = rearrange(torch.arange(values.numel()).view(values.shape), pattern, **sizes)
        after = torch.arange(len(order)).repeat_interleave(order[0].numel())
        before = torch.empty_like(after)
        before[order.flatten()] = after
        sides = [side.strip() for side in pattern.split("->")]
        axes = [re.sub(r"(?<=\w) (?=[^()]*\))", "·", side) for side in sides]
        panels += [
            Panel(sides[0], values, axes[0], before.view(values.shape)),
            Panel(
                f"-> {sides[1]}",
                rearrange(values, pattern, **sizes),
                axes[1],
                after.view(order.shape),
            ),
        ]
    return grids(*panels)


def letters(word: str, size: int = 48) -> Tensor:
    """Render each letter of a word as an image, in its own colour on a light background.

    Args:
        word: The letters.
        size: Height and width of an image in pixels.

    Returns:
        Images with values from 0 to 1, shape (letter, height, width, channel), 3 channels.
    """
    images = []
    for i, letter in enumerate(word):
        drawing = Figure(figsize=(1, 1), dpi=size, facecolor=face_of(i))
        canvas = FigureCanvasAgg(drawing)
        dark = tuple(0.6 * part for part in to_rgb(FILLS[i % len(FILLS)]))
        drawing.text(0.5, 0.52, letter, fontsize=60, weight="bold", color=dark, **CENTRED)
        canvas.draw()
        images.append(np.asarray(canvas.buffer_rgba())[..., :3] / 255)
    return torch.from_numpy(np.stack(images)).float()


def pictures(images: dict[str, Tensor], pieces: Mapping[str, int] | None = None) -> Figure:
    """Draw images [height, width, channel] in a row, with the pattern above and the shape below.

    All images are drawn with the same pixel size. `pieces` has the width of the pieces of a picture
    by its name, which are drawn two pixels apart.
    """
    sizes = [image.shape[:2] for image in images.values()]
    pixel = min(2.6 / max(h for h, _ in sizes), WIDEST / sum(w for _, w in sizes))  # in inches
    # A letter of a title takes 0.14 inches.
    widths = [max(w * pixel, 0.14 * len(name)) for (_, w), name in zip(sizes, images, strict=True)]
    drawing, row = figure(
        sum(widths) + 0.3 * len(widths),
        max(h for h, _ in sizes) * pixel + 1.1,
        ncols=len(images),
        width_ratios=widths,
        squeeze=False,
    )
    for axes, (name, image) in zip(row[0], images.items(), strict=True):
        shown = array(image).clip(0, 1)
        if width := (pieces or {}).get(name):
            shown = np.insert(shown, np.repeat(range(width, image.shape[1], width), 2), 1.0, axis=1)
        axes.imshow(shown, interpolation="nearest")
        axes.set(xticks=[], yticks=[], xlabel=" x ".join(map(str, image.shape)), anchor="NW")
        axes.set_title(name, loc="left", family="monospace", fontsize=16, fontweight="bold")
        axes.grid(visible=False)
    return drawing


def attention_maps(maps: Mapping[str, Tensor], text: str, columns: int = 3) -> Figure:
    """Draw attention weights [query, key] of a text as maps with its letters along both sides.

    Exact zeros are white. The colours follow the root of the weight, so small ones differ, too.
    """
    rows = -(-len(maps) // columns)
    width = 13 if rows == 1 else 10.5  # so that two rows fit on a slide
    height = 0.6 + width / columns * rows
    drawing, grid = figure(width, height, nrows=rows, ncols=columns, squeeze=False)
    colours = plt.get_cmap("cividis").with_extremes(under="white")
    names = [letter if letter.strip() else "␣" for letter in text]
    size = min(14, 0.75 * 72 * width / (columns * len(text)))  # in points, 72 to an inch
    for place, (axes, (title, weights)) in enumerate(zip(grid.flat, maps.items(), strict=False)):
        image = axes.imshow(array(weights), cmap=colours, norm=PowerNorm(0.5, 1e-9, 1))
        axes.set_xticks(range(len(names)), names, family="monospace", fontsize=size)
        axes.set_yticks(range(len(names)), names, family="monospace", fontsize=size)
        axes.grid(visible=False)
        last, first = place >= len(maps) - columns, place % columns == 0
        label(axes, title, "key" if last else "", "query" if first else "")
    drawing.colorbar(image, ax=list(grid.flat), label="attention weight", shrink=0.75)
    return drawing


def loss_curves(runs: Mapping[str, Sequence[Sequence[float]]], every: int, table: float) -> Figure:
    """Plot losses of several seeds per way, every so many steps, beside the loss of a table."""
    drawing, ax = figure(10, 4.4)
    for colour, style, (way, losses) in zip(LINES, ("-", "--"), runs.items(), strict=False):
        for seed, values in enumerate(losses):
            steps = range(0, every * len(values), every)
            name = f"{way}, {len(losses)} seeds" if seed == 0 else None
            ax.plot(steps, values, style, color=colour, linewidth=1.8, label=name)
    ax.axhline(table, color=GREY, linestyle=":")
    ax.text(0, table - 0.03, f"table of letter pairs, {table:.2f}", va="top", color=ink(GREY))
    ax.set_ylim(
        min(table, *(min(values) for losses in runs.values() for values in losses)) - 0.2, 3.6
    )
    label(ax, "The small model, right and wrong", "training step", "held-out loss [nats]")
    ax.legend()
    return drawing


def call_cost(elements: Sequence[int], microseconds: dict[str, Sequence[float]]) -> Figure:
    """Plot the time per call against the tensor size on log-log axes, with one line per method."""
    drawing, ax = figure(10, 4.6)
    for marker, (name, times) in zip("osD^v", microseconds.items(), strict=False):
        ax.loglog(elements, times, marker=marker, label=name)
    label(ax, "Time of one call", "elements in the tensor", "time per call [µs]")
    ax.legend()
    return drawing
