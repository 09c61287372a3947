"""What all explorers share: a widget whose controls and picture are made in Python.

An explorer says in `view` what its values look like, as HTML; `explorer.js` shows that and sends
values back. So all logic is Python that a test can call, and one small script serves them all.
Where no widget can run (GitHub, a web page, a notebook just opened) a PNG of the same stands.
"""

import base64
import html
import io
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import anywidget
import matplotlib.pyplot as plt
import traitlets
from matplotlib.figure import Figure

from cs336_lib.classroom.plots import alt

HERE = Path(__file__).parent

Values = Mapping[str, str]


class View(NamedTuple):
    """What is to be seen: one sentence, which a screen reader hears, and the picture in HTML."""

    said: str
    html: str


def text(name: str, label: str) -> dict[str, Any]:
    """A control to type into."""
    return {"kind": "text", "name": name, "label": label}


def choice(name: str, label: str, options: Sequence[str]) -> dict[str, Any]:
    """A control to choose from a list."""
    return {"kind": "choice", "name": name, "label": label, "options": list(options)}


def slider(name: str, label: str, options: Sequence[str]) -> dict[str, Any]:
    """A control to slide along a list."""
    return {"kind": "slider", "name": name, "label": label, "options": list(options)}


class Explorer(anywidget.AnyWidget):
    """A widget of controls, a sentence and a picture; subclasses say what the values mean.

    In the page it is `.cs336-explorer.cs336-KIND` (role group, labelled with the title), with
    `.cs336-controls` (each control has its name and its label), `.cs336-problem` (role alert),
    `.cs336-said` (role status) and `.cs336-picture`.
    """

    _esm = HERE / "explorer.js"
    _css = HERE / "explorer.css"
    kind = traitlets.Unicode().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    controls = traitlets.List().tag(sync=True)
    values = traitlets.Dict().tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)
    html = traitlets.Unicode().tag(sync=True)
    problem = traitlets.Unicode().tag(sync=True)

    def __init__(self, kind: str, title: str, controls: list[dict[str, Any]], values: Values):
        settled = self.settle(dict(values), set(values))
        said, picture = self.view(settled)
        super().__init__(
            kind=kind, title=title, controls=controls, values=settled, said=said, html=picture
        )
        self.on_msg(self.receive)

    def settle(self, values: dict[str, str], changed: set[str]) -> dict[str, str]:
        """The values made to agree with those that `changed`; as they are, unless overridden."""
        return values

    def view(self, values: Values) -> View:
        """What these values look like.

        Raises:
            ValueError: they make no sense; the message is shown, and the last good view stays.
        """
        raise NotImplementedError

    def figure(self, values: Values) -> Figure:
        """The same as a still picture."""
        raise NotImplementedError

    def receive(self, _: object, message: dict[str, str], __: object) -> None:
        """Do what the page sent, then tell it that it may send again."""
        try:
            self.answer(**message)
        finally:
            self.send("done")

    def answer(self, name: str, value: str) -> None:
        """Do what the page asks for: the value `name` is to be `value`."""
        wanted = {**self.values, name: value}
        try:
            settled = self.settle(wanted, {name})
            said, picture = self.view(settled)
        except ValueError as error:
            self.values, self.problem = wanted, str(error)
            return
        with self.hold_sync():
            self.values, self.said, self.html, self.problem = settled, said, picture, ""

    def __repr__(self) -> str:
        return f"{self.title} (run this cell in JupyterLab to use it)"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        drawn = self.figure(self.values)
        data["image/png"] = base64.b64encode(png(drawn)).decode()
        words = f"The explorer {self.title}: {self.said}"  # which the widget tells screen readers
        return data, {**metadata, "image/png": {"alt": alt.cut(words)}}


def png(drawn: Figure) -> bytes:
    """A figure as PNG; it is closed, so that the notebook does not show it once more."""
    file = io.BytesIO()
    drawn.savefig(file, format="png")
    plt.close(drawn)
    return file.getvalue()


def tag(name: str, content: str = "", **attributes: object) -> str:
    """An HTML element around HTML; `class_` is class, `data_name` is data-name, None drops out."""
    spelled = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{spelled}>{content}</{name}>"


def table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Rows of HTML cells, the first of each row as its heading."""
    lines = [tag("tr", "".join(tag("th", cell, scope="col") for cell in head))] if head else []
    for first, *rest in rows:
        cells = "".join(tag("td", cell) for cell in rest)
        lines.append(tag("tr", tag("th", first, scope="row") + cells))
    return tag("table", "".join(lines))


def code(words: str) -> str:
    """Plain text in the typewriter font, escaped."""
    return tag("code", html.escape(words))


def cells(
    shape: Sequence[int],
    cell: Callable[[tuple[int, ...]], str],
    group: str,
    names: Sequence[str] = (),
) -> str:
    """A tensor as a grid of `cell(index)`: the last two axes as rows and columns of a block.

    More axes make more blocks, captioned with their indices; arrow keys walk through them all.
    """
    columns = shape[-1] if shape else 1
    blocks = []
    for outer in product(*(range(size) for size in shape[:-2])):
        inner = [range(size) for size in shape[-2:]]
        body = "".join(cell((*outer, *index)) for index in product(*inner))
        style = f"grid-template-columns: repeat({max(1, columns)}, auto)"
        grid = tag("div", body, class_="cs336-cells", style=style)
        words = ", ".join(
            f"{names[axis]} {i}" if axis < len(names) else str(i) for axis, i in enumerate(outer)
        )
        caption = tag("div", html.escape(words), class_="cs336-faint") if outer else ""
        blocks.append(tag("div", caption + grid, class_="cs336-block"))
    return tag("div", "".join(blocks), class_="cs336-row", data_arrows=columns, data_group=group)
