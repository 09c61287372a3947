"""Explore an einsum step by step, one product and one addition at a time."""

import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from torch import Tensor

from cs336_course.drawing import shapes as plots
from cs336_course.drawing.shapes import IN, OUT, WHITE, Panel
from cs336_course.widgets.widget import (
    Explorer,
    Values,
    View,
    button,
    cells,
    choice,
    chosen_cell,
    slider,
    tag,
)

SIZES = {"i": 2, "j": 2, "k": 3}
PATTERNS = (
    "i k, k j -> i j",
    "i k, j k -> i j",
    "i k, i j -> k j",
    "i k, k j -> j",
    "i k, k j -> i k j",
    "i k, k i ->",
)
PRESETS = {  # the matrices are called a and b
    "a @ b": {"pattern": "i k, k j -> i j"},
    "a @ b.T": {"pattern": "i k, j k -> i j"},
    "a.T @ b": {"pattern": "i k, i j -> k j"},
}
MOST_STEPS = 12
Index = tuple[int, ...]


class Step(NamedTuple):
    """One multiplication: a cell of each input, and the cell of the result that it adds to."""

    names: dict[str, int]
    left: Index
    right: Index
    out: Index


class Sides(NamedTuple):
    """The dimension names of both inputs and of the result."""

    left: list[str]
    right: list[str]
    out: list[str]


def sides(pattern: str) -> Sides:
    """Split a pattern of two inputs into its names."""
    left, right, out = (part.split() for part in re.split(r",|->", pattern))
    return Sides(left, right, out)


def steps(pattern: str) -> list[Step]:
    """Return every multiplication of a pattern. Names that aren't kept vary fastest."""
    left, right, out = sides(pattern)
    order = out + [name for name in dict.fromkeys(left + right) if name not in out]
    found = []
    for index in product(*(range(SIZES[name]) for name in order)):
        at = dict(zip(order, index, strict=True))
        found.append(Step(at, *(tuple(at[name] for name in side) for side in (left, right, out))))
    return found


def inputs(pattern: str) -> tuple[Tensor, Tensor]:
    """Return small whole numbers in the shapes of both inputs."""
    left, right, _ = sides(pattern)
    shapes = [[SIZES[name] for name in side] for side in (left, right)]
    first = torch.arange(1.0, 7.0)[: torch.Size(shapes[0]).numel()].view(shapes[0])
    second = torch.tensor([2.0, 1, 0, 3, 1, 2])[: torch.Size(shapes[1]).numel()].view(shapes[1])
    return first, second


class Moment(NamedTuple):
    """The tensors after a number of steps, and what each cell of the result has received."""

    left: Tensor
    right: Tensor
    result: Tensor
    terms: dict[Index, list[str]]
    last: Step | None


def moment(pattern: str, count: int) -> Moment:
    """Multiply and add for the first `count` steps."""
    left, right = inputs(pattern)
    result = torch.zeros([SIZES[name] for name in sides(pattern).out])
    terms: dict[Index, list[str]] = {}
    done = steps(pattern)[:count]
    for step in done:
        a, b = left[step.left], right[step.right]
        result[step.out] += a * b
        terms.setdefault(step.out, []).append(f"{a:.0f} × {b:.0f}")
    return Moment(left, right, result, terms, done[-1] if done else None)


def place(name: str, index: Sequence[int]) -> str:
    """Write an element as in `result[0, 1]`."""
    return f"{name}[{', '.join(map(str, index))}]" if index else name


class EinsumSteps(Explorer):
    """Step through an einsum, and see which cells are multiplied and where they add up.

    It has the controls `pattern` and `step`, and the buttons `step back`, `step on` and
    `result [i, j]`, which goes to the step that completes the cell. Current cells have the class
    `.cs336-chosen`.
    """

    def __init__(self, pattern: str = "i k, k j -> i j", step: int = 9):
        controls = [
            choice("pattern", "pattern", PATTERNS),
            slider("step", "step", [str(number) for number in range(MOST_STEPS + 1)]),
        ]
        values = {"pattern": pattern, "step": str(step)}
        super().__init__("einsum", "einsum, step by step", controls, values, PRESETS)

    def settle(self, values: dict[str, str], changed: set[str]) -> dict[str, str]:
        """Start again with a new pattern, and stay within its steps."""
        if changed == {"pattern"}:
            return {**values, "step": "0"}
        last = len(steps(values["pattern"]))
        return {**values, "step": str(min(int(values["step"]), last))}

    def view(self, values: Values) -> View:
        """Draw both inputs and the result, and mark the cells of the current step."""
        pattern, count = values["pattern"], int(values["step"])
        now, total = moment(pattern, count), len(steps(pattern))
        said = f"{total} multiplications; step on to see the first"
        if now.last:
            at = ", ".join(f"{name}={value}" for name, value in now.last.names.items())
            sums = " + ".join(now.terms[now.last.out])
            value = f"{now.result[now.last.out]:.0f}"
            said = (
                f"step {count} of {total}, {at}: {place('result', now.last.out)} = {sums} = {value}"
            )
        moves = "".join(
            button(words, f"step {words}", "step", min(max(0, count + change), total))
            for words, change in (("back", -1), ("on", 1))
        )
        panels = [
            tag("div", tag("div", f"{name}: {' '.join(axes) or 'a scalar'}") + grid)
            for name, axes, grid in zip(
                ("left", "right", "result"), sides(pattern), self.grids(pattern, now), strict=True
            )
        ]
        row = tag("div", "".join(panels), class_="cs336-row", style="gap: 30px")
        return View(said, row + tag("div", moves, class_="cs336-row"))

    def grids(self, pattern: str, now: Moment) -> list[str]:
        """Return the grids of both inputs and of the result."""
        found = []
        current = {"left": now.last.left, "right": now.last.right} if now.last else {}
        for name, tensor, axes in zip(("left", "right"), now[:2], sides(pattern), strict=False):

            def cell(index: Index, name: str = name, tensor: Tensor = tensor) -> str:
                chosen = current.get(name) == index
                face = plots.face_of(IN if chosen else WHITE)
                return tag(
                    "div",
                    f"{tensor[index]:.0f}",
                    class_=chosen_cell(chosen),
                    style=f"background: {to_hex(face)}",
                )

            found.append(cells(tensor.shape, cell, name, axes))
        ends = {step.out: number for number, step in enumerate(steps(pattern), start=1)}

        def output(index: Index) -> str:
            chosen = now.last is not None and now.last.out == index
            words = f"{now.result[index]:.0f}" if index in now.terms else "·"
            return button(
                words,
                f"result [{', '.join(map(str, index))}]",
                "step",
                ends[index],
                class_=chosen_cell(chosen),
                style=f"background: {to_hex(plots.face_of(OUT if chosen else WHITE))}",
            )

        return [*found, cells(now.result.shape, output, "result", sides(pattern).out)]

    def figure(self, values: Values) -> Figure:
        """Draw the current step as coloured cells."""
        pattern = values["pattern"]
        now = moment(pattern, int(values["step"]))
        return plots.grids(*panels_of(pattern, now))


def panels_of(pattern: str, now: Moment) -> list[Panel]:
    """Return a moment as panels, with the cells of the last step marked."""
    marked = [torch.full(tensor.shape, WHITE) for tensor in now[:3]]
    if now.last:
        marked[0][now.last.left] = marked[1][now.last.right] = IN
        marked[2][now.last.out] = OUT
    names = [" ".join(axes) or "scalar" for axes in sides(pattern)]
    titles = ("left", "right", "result")
    return [Panel(*panel) for panel in zip(titles, now[:3], names, marked, strict=True)]
