"""Explore einops patterns and the new position of each element.

If einops rejects a pattern, the explorer shows the error message.
"""

import html
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import einops
import torch
from jaxtyping import Bool
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from torch import Tensor

from cs336_course.drawing import shapes as plots
from cs336_course.widgets.widget import (
    Explorer,
    Values,
    View,
    button,
    cells,
    choice,
    chosen_cell,
    tag,
    text,
)
from cs336_lib.config import UserError

MOST_ELEMENTS, MOST_AXES = 64, 4
OPERATIONS = {
    "rearrange": einops.rearrange,
    "repeat": einops.repeat,
    "reduce sum": partial(einops.reduce, reduction="sum"),
    "reduce mean": partial(einops.reduce, reduction="mean"),
    "reduce max": partial(einops.reduce, reduction="max"),
}
PRESETS = {  # operation, pattern, shape and sizes
    "split heads": ("rearrange", "seq (head dim) -> head seq dim", "3 8", "head=2"),
    "merge heads": ("rearrange", "head seq dim -> seq (head dim)", "2 3 4", ""),
    "transpose": ("rearrange", "row column -> column row", "3 4", ""),
    "max pooling": ("reduce max", "(h a) (w b) -> h w", "4 4", "a=2, b=2"),
    "repeat": ("repeat", "row column -> row (column n)", "2 3", "n=2"),
}


class Moved(NamedTuple):
    """A tensor before and after an einops operation.

    `routes[i, j]` is true if element j of the result depends on element i of the input.
    """

    before: Tensor
    after: Tensor
    routes: Bool[Tensor, "before after"]


def read_shape(words: str) -> tuple[int, ...]:
    """Parse `2 3 4` into (2, 3, 4).

    Raises:
        UserError: If the text isn't a list of sizes, or the tensor is too large to draw.
    """
    parts = re.split(r"[\s,]+", words.strip("()[] "))
    good = all(part.isdecimal() and int(part) > 0 for part in parts)
    if not good or len(parts) > MOST_AXES:
        raise UserError(f"shape {words!r} is not a list of 1 to {MOST_AXES} sizes; try 2 3 4")
    shape = tuple(int(part) for part in parts)
    if (elements := math.prod(shape)) > MOST_ELEMENTS:
        raise UserError(f"shape {words!r} has {elements} elements; use at most {MOST_ELEMENTS}")
    return shape


def read_sizes(words: str) -> dict[str, int]:
    """Parse `head=2, dim=4` into a dict, which is empty for an empty text.

    Raises:
        UserError: If the text isn't a list of name=size.
    """
    parts = [part for part in re.split(r"[\s,]+", re.sub(r"\s*=\s*", "=", words)) if part]
    if not all(re.fullmatch(r"[a-z_]\w*=[1-9]\d*", part) for part in parts):
        raise UserError(
            f"sizes {words!r} are not of the form name=size; try head=2, or leave it empty"
        )
    return {name: int(size) for name, size in (part.split("=") for part in parts)}


def move(operation: str, pattern: str, shape: Sequence[int], sizes: Mapping[str, int]) -> Moved:
    """Apply an einops operation to a tensor of 0, 1, 2, ..., and trace each element.

    Raises:
        UserError: If einops rejects the pattern, or the result is too large to draw.
    """
    if pattern.count("->") != 1:
        raise UserError("a pattern has one arrow, as in axes before -> axes after")
    elements = math.prod(shape)
    before = torch.arange(elements, dtype=torch.float32).view(*shape)
    try:
        after = OPERATIONS[operation](before, pattern, **sizes)
        # Set one element to 1 and all others to 0. The nonzero results are those that use it.
        follow = "reduce sum" if operation.startswith("reduce") else operation
        alone = torch.eye(elements).view(elements, *shape)
        arrived = [OPERATIONS[follow](x, pattern, **sizes).flatten() for x in alone]
    except (einops.EinopsError, TypeError) as error:
        raise UserError(str(error).strip()) from None
    if after.numel() > 2 * MOST_ELEMENTS or after.dim() > MOST_AXES:
        raise UserError(
            f"the result has shape {tuple(after.shape)}; it can be drawn with at most "
            f"{2 * MOST_ELEMENTS} elements in {MOST_AXES} axes"
        )
    return Moved(before, after, torch.stack(arrived) != 0)


def axis_names(side: str, dims: int) -> list[str]:
    """Return the axis names of one side of a pattern. A parenthesized group is one name.

    If the pattern has an ellipsis, the axes are numbered instead.
    """
    names = re.findall(r"\([^)]*\)|[^\s()]+", side)
    return names if len(names) == dims else [f"axis {axis}" for axis in range(dims)]


def colours(moved: Moved) -> tuple[Tensor, Tensor]:
    """Return the colour group of each element before and after the operation.

    The group is the index along the result's first axis, as in `shapes.before_and_after`. Elements
    that go to several groups are WHITE.
    """
    first = moved.after.size(0) if moved.after.dim() else 1
    group = torch.arange(first).repeat_interleave(moved.after.numel() // first)
    highest = torch.where(moved.routes, group, -1).amax(1)
    lowest = torch.where(moved.routes, group, first).amin(1)
    before = torch.where(highest == lowest, highest, plots.WHITE)
    return before.view(moved.before.shape), group.view(moved.after.shape)


class EinopsPattern(Explorer):
    """Type a pattern, and see where it moves the elements of a tensor.

    It has the controls `operation`, `pattern`, `shape` and `sizes`, and the buttons `before [i, j]`
    and `after [i, j]`. The selected element and its counterparts have the class `.cs336-chosen`.
    """

    def __init__(
        self,
        pattern: str = "seq (head dim) -> head seq dim",
        shape: str = "3 8",
        sizes: str = "head=2",
        operation: str = "rearrange",
    ):
        controls = [
            choice("operation", "operation", list(OPERATIONS)),
            text("pattern", "pattern"),
            text("shape", "shape"),
            text("sizes", "sizes"),
        ]
        values = {"operation": operation, "pattern": pattern, "shape": shape, "sizes": sizes}
        presets = {name: dict(zip(values, preset, strict=True)) for name, preset in PRESETS.items()}
        super().__init__("einops", "einops patterns", controls, {**values, "chosen": ""}, presets)

    def settle(self, values: dict[str, str], changed: set[str]) -> dict[str, str]:
        """Clear the selection if a value other than the selection has changed."""
        return values if changed == {"chosen"} else {**values, "chosen": ""}

    def moved(self, values: Values) -> Moved:
        """Apply the pattern in the controls, and trace each element."""
        shape, sizes = read_shape(values["shape"]), read_sizes(values["sizes"])
        return move(values["operation"], values["pattern"], shape, sizes)

    def view(self, values: Values) -> View:
        """Draw both tensors as grids, and mark the selected element and its counterparts."""
        moved = self.moved(values)
        marked = {"before": set[int](), "after": set[int]()}
        said = f"{tuple(moved.before.shape)} -> {tuple(moved.after.shape)}"
        if values["chosen"]:
            side, number = values["chosen"].split()
            ways = moved.routes if side == "before" else moved.routes.T
            marked[side] = {int(number)}
            other = "after" if side == "before" else "before"
            marked[other] = set(ways[int(number)].nonzero().flatten().tolist())
            word = "place" if len(marked[other]) == 1 else "places"
            verb = "goes to" if side == "before" else "is made of"
            said += f"; the chosen element {verb} {len(marked[other])} {word}"
        left, _, right = values["pattern"].partition("->")
        panels = []
        for side, tensor, group, names in zip(
            *(("before", "after"), moved[:2], colours(moved), (left, right)), strict=True
        ):
            axes = axis_names(names, tensor.dim())
            title = tag("div", html.escape(f"{side}: {' '.join(axes)}"))
            grid = self.grid(side, tensor, group, axes, marked[side])
            panels.append(tag("div", title + grid, class_=f"cs336-{side}"))
        return View(said, tag("div", "".join(panels), class_="cs336-row", style="gap: 30px"))

    def grid(
        self, side: str, tensor: Tensor, group: Tensor, axes: Sequence[str], marked: set[int]
    ) -> str:
        """Draw the elements of a tensor as a grid of buttons."""
        order = torch.arange(tensor.numel()).view(tensor.shape)

        def cell(index: tuple[int, ...]) -> str:
            number = int(order[index])
            return button(
                plots.text_of(tensor[index].item()),
                f"{side} [{', '.join(map(str, index))}]",
                "chosen",
                f"{side} {number}",
                class_=chosen_cell(number in marked),
                style=f"background: {to_hex(plots.face_of(int(group[index])))}",
                data_hover="",
            )

        return cells(tensor.shape, cell, side, axes)

    def figure(self, values: Values) -> Figure:
        """Draw both tensors as coloured cells."""
        moved = self.moved(values)
        left, _, right = values["pattern"].partition("->")
        panels = []
        for tensor, group, names in zip(moved[:2], colours(moved), (left, right), strict=True):
            title = " × ".join(map(str, tensor.shape)) or "()"
            words = " ".join(re.sub(r"\s+", ",", name) for name in axis_names(names, tensor.dim()))
            panels.append(plots.Panel(title, tensor, words or "scalar", group))
        return plots.grids(*panels)
