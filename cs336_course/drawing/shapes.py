"""Draw the elements of tensors as coloured cells."""

from itertools import product
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from cs336_course.drawing.style import BLUE, FILLS, figure

GAP = 0.7  # between two blocks, in cells
WIDEST = 12.5  # inches that fit on a slide
CELL_FONT = 14


class Panel(NamedTuple):
    """A tensor to draw as cells. The last two axes are the rows and columns of a block.

    `axes` contains the axis names as in an einops pattern. `groups` has the same shape as `values`,
    and contains a colour number for each cell.
    """

    title: str
    values: Tensor
    axes: str
    groups: Tensor


def face_of(group: int) -> tuple[float, float, float]:
    """Return the colour of a group. It is light, so that black digits are readable."""
    red, green, blue = (0.5 * part + 0.5 for part in to_rgb(FILLS[group % len(FILLS)]))
    return red, green, blue


def array(tensor: Tensor) -> NDArray:
    """Convert a tensor to a NumPy array on the CPU."""
    return tensor.detach().cpu().numpy()


def as_blocks(values: NDArray) -> NDArray:
    """Reshape an array to the four axes (block row, block column, row, column).

    Axes of size 1 are inserted in front if the array has fewer than four axes.
    """
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
    groups = as_blocks(array(panel.groups))
    block_rows, block_columns, rows, columns = values.shape
    names = panel.axes.split()
    tall = GAP if len(names) > 2 else 0  # space above each block for its index
    for at in product(range(block_rows), range(block_columns), range(rows), range(columns)):
        x = at[1] * (columns + GAP) + at[3]
        y = at[0] * (rows + GAP + tall) + tall + at[2]
        face = face_of(int(groups[at]))
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=face, edgecolor="black", linewidth=1))
        word = f"{values[at]:g}"
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
