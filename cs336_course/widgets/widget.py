"""Base class of the explorers.

An explorer implements `view`, which renders its values as HTML. `explorer.js` displays the HTML and
sends changed values back to Python. All logic is in Python, so tests can call it directly. GitHub
and other pages without widgets show a PNG of the same view.
"""

import html
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import anywidget
import matplotlib.pyplot as plt
import traitlets
from matplotlib.figure import Figure

from cs336_course.drawing import alt, shown
from cs336_lib.config import UserError
from cs336_lib.report import palette

HERE = Path(__file__).parent
STYLE = palette.CSS + shown.DARK + (HERE / "explorer.css").read_text(encoding="utf-8")

Values = Mapping[str, str]


class View(NamedTuple):
    """Output of an explorer. It has a sentence for screen readers and an HTML picture."""

    said: str
    html: str


def text(name: str, label: str) -> dict[str, Any]:
    """Return a text field."""
    return {"kind": "text", "name": name, "label": label}


def choice(name: str, label: str, options: Sequence[str]) -> dict[str, Any]:
    """Return a drop-down list."""
    return {"kind": "choice", "name": name, "label": label, "options": list(options)}


def slider(name: str, label: str, options: Sequence[str]) -> dict[str, Any]:
    """Return a slider that selects an item of a list."""
    return {"kind": "slider", "name": name, "label": label, "options": list(options)}


def script(name: str) -> str:
    """Return a file of this folder without its export, to be joined with others."""
    return re.sub(r"\nexport default .*", "", (HERE / name).read_text(encoding="utf-8"))


class Pictured(anywidget.AnyWidget):
    """Widget with a title, a sentence that says what it shows, and a static picture of that."""

    _css = STYLE
    title = traitlets.Unicode().tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)

    def still(self) -> Figure:
        """Draw what the widget shows now."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{self.title} (run this cell in JupyterLab to use it)"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        words = f"The explorer {self.title}: {self.said}"  # the same as the widget's own sentence
        drawn = self.still()
        picture, described = shown.bundle(drawn, alt.cut(words), bbox_inches=None)
        plt.close(drawn)  # or the notebook would show it again
        return data | picture, metadata | described


class Explorer(Pictured):
    """Widget with controls, a sentence and a picture. Subclasses implement `view`.

    On the page, the element has the classes `.cs336-explorer.cs336-KIND` and the role group. It
    contains these elements:

    - `.cs336-said` for the sentence (role status)
    - `.cs336-picture`
    - `.cs336-presets` with a button for each preset, if there are any
    - `.cs336-controls`, in which each control has a name and a label
    - `.cs336-problem` for error messages (role alert)
    """

    _esm = HERE / "explorer.js"
    kind = traitlets.Unicode().tag(sync=True)
    controls = traitlets.List().tag(sync=True)
    presets = traitlets.Dict().tag(sync=True)
    values = traitlets.Dict().tag(sync=True)
    html = traitlets.Unicode().tag(sync=True)
    problem = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        kind: str,
        title: str,
        controls: list[dict[str, Any]],
        values: Values,
        presets: Mapping[str, Values] | None = None,
    ):
        settled = self.settle(dict(values), set(values))
        said, picture = self.view(settled)
        super().__init__(
            kind=kind,
            title=title,
            controls=controls,
            presets=presets or {},
            values=settled,
            said=said,
            html=picture,
        )
        self.on_msg(self.receive)

    def settle(self, values: dict[str, str], changed: set[str]) -> dict[str, str]:
        """Return `values`. A subclass can adjust values that depend on those in `changed`."""
        return values

    def view(self, values: Values) -> View:
        """Return the sentence and the picture for these values.

        Raises:
            UserError: If the values are invalid. The page shows the message and keeps the previous
                view.
        """
        raise NotImplementedError

    def figure(self, values: Values) -> Figure:
        """Draw the same view as a static picture."""
        raise NotImplementedError

    def receive(self, _: object, message: dict[str, str], __: object) -> None:
        """Process a message from the page, and confirm it so that the page can send the next."""
        try:
            self.answer(message)
        finally:
            self.send("done")

    def answer(self, changes: Values) -> None:
        """Change some values and update the view."""
        wanted = {**self.values, **changes}
        try:
            settled = self.settle(wanted, set(changes))
            said, picture = self.view(settled)
        except UserError as error:
            self.values, self.problem = wanted, str(error)
            return
        with self.hold_sync():
            self.values, self.said, self.html, self.problem = settled, said, picture, ""

    def still(self) -> Figure:
        """Draw the view of the current values."""
        return self.figure(self.values)


def tag(name: str, content: str = "", **attributes: object) -> str:
    """Return an HTML element as text.

    The argument `class_` becomes the attribute class, and `data_name` becomes data-name. Attributes
    with the value `None` are omitted.
    """
    spelled = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{spelled}>{content}</{name}>"


def table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return an HTML table. The first cell of each row is a heading."""
    lines = [tag("tr", "".join(tag("th", cell, scope="col") for cell in head))] if head else []
    for first, *rest in rows:
        cells = "".join(tag("td", cell) for cell in rest)
        lines.append(tag("tr", tag("th", first, scope="row") + cells))
    return tag("table", "".join(lines))


def button(words: str, key: str, name: str, value: object, **attributes: object) -> str:
    """Return a button that sets the value of a control. Its key is also what it is called."""
    given = {"aria_label": key, **attributes}
    return tag("button", words, data_key=key, data_name=name, data_value=value, **given)


def chosen_cell(is_chosen: bool) -> str:
    """Return the classes of a cell of a grid."""
    return "cs336-cell" + (" cs336-chosen" if is_chosen else "")


def swatch(colour: str, words: str) -> str:
    """Return words behind a small area of a colour, as in a legend."""
    return tag("span", class_="cs336-swatch", style=f"background: {colour}") + words


def track(parts: Mapping[str, float], colours: Mapping[str, str], limit: float, name: str) -> str:
    """Return a bar of the parts, with a stroke at the limit if there is one."""
    scale = 100 / max(sum(parts.values()), limit)
    pieces = "".join(
        tag("span", style=f"width: {scale * size:.2f}%; background: {colours[kind]}", title=kind)
        for kind, size in parts.items()
        if size
    )
    if limit:
        pieces += tag("span", class_="cs336-limit", style=f"left: {scale * limit:.2f}%")
    return tag("div", pieces, class_="cs336-track", role="img", aria_label=name)


def code(words: str) -> str:
    """Return plain text in a monospaced font, with HTML escaped."""
    return tag("code", html.escape(words))


def cells(
    shape: Sequence[int],
    cell: Callable[[tuple[int, ...]], str],
    group: str,
) -> str:
    """Draw a tensor as a grid of `cell(index)`. The last two axes are rows and columns.

    Other axes add blocks, with their indices as captions. Arrow keys move through all blocks.
    """
    columns = shape[-1] if shape else 1
    blocks = []
    for outer in product(*(range(size) for size in shape[:-2])):
        inner = [range(size) for size in shape[-2:]]
        body = "".join(cell((*outer, *index)) for index in product(*inner))
        style = f"grid-template-columns: repeat({max(1, columns)}, auto)"
        grid = tag("div", body, class_="cs336-cells", style=style)
        words = ", ".join(map(str, outer))
        caption = tag("div", words, class_="cs336-faint") if outer else ""
        blocks.append(tag("div", caption + grid, class_="cs336-block"))
    return tag("div", "".join(blocks), class_="cs336-row", data_arrows=columns, data_group=group)
