"""Explore strides and the storage slot of each element of a view."""

import html
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from cs336_course.drawing import storage as plots
from cs336_course.shared import strided_storage
from cs336_course.widgets.widget import (
    Explorer,
    Values,
    View,
    button,
    cells,
    chosen_cell,
    code,
    table,
    tag,
    text,
)
from cs336_lib.config import UserError

MOST_ELEMENTS, MOST_DIMS = 48, 3
STEPS = (".T", "[1:]", "[:, ::2]", ".view(2, 6)", ".flatten()", ".contiguous()")
EXAMPLES = {
    "transpose": "x.T",
    "every other column": "x[:, ::2]",
    "one row, three times": "x[0].expand(3, 4)",
    "diagonal": "x.diagonal()",
    "sliding windows": "x.unfold(1, 2, 1)",
}


def numbers(shape: Sequence[int]) -> Tensor:
    """Create an fp32 tensor. Each value is ten times its slot number."""
    return (10.0 * torch.arange(torch.Size(shape).numel())).view(*shape)


def evaluate(expression: str, x: Tensor) -> Tensor:
    """Evaluate an expression of the reader's in their own kernel, such as `x.T[1:, ::2]`.

    Raises:
        UserError: If it raises an error, or its result can't be drawn.
    """
    try:
        result = eval(expression.strip(), {"torch": torch, "x": x})
    except Exception as error:  # the reader may type anything, and hasn't finished typing
        message = str(error).splitlines() or [""]
        raise UserError(f"{type(error).__name__}: {message[0]}") from None
    if not isinstance(result, Tensor):
        raise UserError("the result is not a tensor; are parentheses missing?")
    if not 0 < result.numel() <= MOST_ELEMENTS or result.dim() > MOST_DIMS:
        raise UserError(
            f"{tuple(result.shape)} cannot be drawn; make it 1 to {MOST_ELEMENTS} elements in at "
            f"most {MOST_DIMS} dimensions"
        )
    return result


def index_of(words: str) -> tuple[int, ...]:
    """Parse `1,2` into (1, 2), and an empty text into ()."""
    return tuple(int(part) for part in words.split(",") if part)


def words_of(index: Sequence[int]) -> str:
    """Format (1, 2) as `1,2`."""
    return ",".join(map(str, index))


def slot_formula(view: Tensor, index: Sequence[int]) -> str:
    """Format the calculation of a slot, the offset plus the sum of index times stride."""
    terms = [f"{i}·{step}" for i, step in zip(index, view.stride(), strict=True)]
    place = strided_storage.slots(view)[tuple(index)].item()
    return " + ".join([f"offset {view.storage_offset()}", *terms]) + f" = slot {place}"


class Strides(Explorer):
    """Slice, transpose and view a tensor, and see where each element is stored.

    It has the control `expression` and the buttons `element [i, j]`, `append .T` (and others) and
    `start again`. Slots have the class `.cs336-slot`, and the selected slot has the class
    `.cs336-chosen`.
    """

    def __init__(self, shape: Sequence[int] = (3, 4), expression: str = "x.T"):
        self.shape = shape
        values = {"expression": expression, "element": ""}
        count = numbers(shape).numel()
        title = f"Strides: x = (10 * torch.arange({count}.)).view{tuple(shape)}"
        presets = {name: {"expression": example} for name, example in EXAMPLES.items()}
        super().__init__("strides", title, [text("expression", "a view of x")], values, presets)

    def settle(self, values: dict[str, str], changed: set[str]) -> dict[str, str]:
        """Select the first element of a new view."""
        if "expression" not in changed:
            return values
        view = evaluate(values["expression"], numbers(self.shape))
        return {**values, "element": words_of([0] * view.dim())}

    def view(self, values: Values) -> View:
        """Render the elements of the view, the storage, and the formula for slots."""
        x = numbers(self.shape)  # a new one, because the expression may change it
        shown = evaluate(values["expression"], x)
        chosen = index_of(values["element"])
        flat, slots = strided_storage.storage_values(shown), strided_storage.slots(shown)
        seen, place = set(slots.flatten().tolist()), int(slots[chosen])

        def element(index: tuple[int, ...]) -> str:
            where = words_of(index)
            return button(
                f"{shown[index].item():g}",
                f"element [{where.replace(',', ', ')}]",
                "element",
                where,
                class_=chosen_cell(index == chosen),
                style=self.paint(int(slots[index]), flat),
                data_hover="",
            )

        boxes = []
        for number, value in enumerate(flat.tolist()):
            unseen = number not in seen
            box = tag(
                "div",
                f"{value:g}",
                class_=f"{chosen_cell(number == place)} cs336-slot" + " cs336-unseen" * unseen,
                style=None if unseen else self.paint(number, flat),
            )
            boxes.append(tag("div", box + tag("div", str(number), class_="cs336-faint")))
        same = strided_storage.same_storage(shown, x)
        facts = [
            ("shape", code(str(tuple(shown.shape)))),
            ("stride", code(str(shown.stride()))),
            ("storage_offset", code(str(shown.storage_offset()))),
            ("is_contiguous", code(str(shown.is_contiguous()))),
            ("storage", "x's own: a view" if same else "a new one: a copy"),
        ]
        appended = [(f"append {step}", values["expression"] + step, step) for step in STEPS]
        buttons = "".join(
            button(code(shown_as), name, "expression", expression)
            for name, expression, shown_as in [*appended, ("start again", "x", "x")]
        )
        grid = cells(shown.shape, element, "elements")
        # The storage comes first, so that it stays in place when the view's height changes.
        row = tag("div", "".join(boxes), class_="cs336-row cs336-storage", style="gap: 4px 2px")
        columns = tag("div", grid + table(facts), class_="cs336-row")
        said = f"[{values['element'].replace(',', ', ')}]: {slot_formula(shown, chosen)}"
        label = tag("div", "storage, slot by slot", class_="cs336-faint")
        wanted = tag("div", html.escape(values["expression"]), class_="cs336-faint")
        choices = tag("div", buttons, class_="cs336-row", style="gap: 6px")
        return View(said, label + row + wanted + columns + choices)

    def paint(self, slot: int, flat: Tensor) -> str:
        """Return the CSS style of a cell that reads `slot`. The text is black."""
        part = round(55 * slot / max(1, len(flat) - 1))
        return f"background: color-mix(in srgb, var(--cs336-sky) {35 + part}%, white)"

    def figure(self, values: Values) -> Figure:
        """Draw a 2-D view with its strides, and other views as a plain grid."""
        shown = evaluate(values["expression"], numbers(self.shape))
        flat, slots = strided_storage.storage_values(shown), strided_storage.slots(shown)
        facts = f"shape {tuple(shown.shape)}, stride {shown.stride()}"
        title = f"{values['expression']}: {facts}, offset {shown.storage_offset()}"
        if shown.dim() == 2:
            return plots.memory_layout(flat, slots, title)
        rows = slots.reshape(-1, shown.size(-1) if shown.dim() else 1)
        return plots.view_gallery(flat, {values["expression"]: rows}, title)
