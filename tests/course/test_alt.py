"""A figure's alternative text says what is drawn, and IPython stores it with the picture."""

import base64
import io

import matplotlib
import nbformat
import numpy as np
import pytest
from cases import for_each
from nbformat.v4 import new_code_cell, new_notebook
from PIL import Image

matplotlib.use("Agg")


from cs336_course import widgets
from cs336_course.drawing import alt
from cs336_course.drawing.style import figure, label
from tools import notebooks, publish


def test_no_text_is_longer_than_one_listens():
    for panels in (5, 20):
        drawn, all_axes = figure(nrows=panels, squeeze=False)
        for axes in all_axes.flat:
            axes.plot([1, 2], [3, 4], label="a series")
            label(axes, "A panel with a long title", "a quantity [unit]", "another quantity [unit]")
        text = alt.describe(drawn)
        assert 300 < len(text) <= alt.LONGEST
        assert text.count("A panel with a long title") == 5 or text.endswith(" ...")
        assert text.count("axis:") < 2 * panels


HARD_TO_DESCRIBE = {
    "nothing": lambda axes: None,
    "an empty line": lambda axes: axes.plot([], []),
    "a line of NaN": lambda axes: axes.plot([np.nan], [np.nan]),
    "dates": lambda axes: axes.plot(np.array(["2024-01-01"], "M8[D]"), [1]),
    "a line over words": lambda axes: axes.plot([0, 1], ["a", "b"]),
    "no bars": lambda axes: axes.bar([], []),
    "a bar of NaN": lambda axes: axes.bar([0], [np.nan]),
    "a colour image": lambda axes: axes.imshow(np.zeros((2, 2, 3))),
    "a masked image": lambda axes: axes.imshow(np.ma.masked_all((2, 2))),
    "a mesh": lambda axes: axes.pcolormesh(np.eye(3)),
    "a histogram": lambda axes: axes.hist([1, 2, 2]),
    "error bars": lambda axes: axes.errorbar([0, 1], [1, 2], yerr=0.1),
    "a filled area": lambda axes: axes.fill_between([0, 1], [1, 2]),
    "a pie": lambda axes: axes.pie([1, 2], labels=["a", "b"]),
    "no axes": lambda axes: axes.remove(),
}


def test_nothing_that_can_be_drawn_stops_it():
    def describe(draw):
        drawn, axes = figure()
        draw(axes)
        assert isinstance(alt.describe(drawn), str)

    for_each({name: (draw,) for name, draw in HARD_TO_DESCRIBE.items()}, describe)


CELLS = (
    "from cs336_course.drawing.style import plt, figure, label",
    "_, axes = figure()\naxes.plot([1, 3])\nlabel(axes, 'Shown', 'x', 'y')\nplt.show()",
    "drawn, axes = figure()\naxes.plot([1, 4])\nplt.close()\ndrawn",
    "%config InlineBackend.figure_formats = ['png']\nplt.plot([1, 5])\nplt.show()",
    "from cs336_course import widgets\nwidgets.float_bits()",
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A notebook whose pictures are shown in every way, as `make notebooks` stores it."""
    path = tmp_path_factory.mktemp("notebook") / "a.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(source) for source in CELLS]), path)
    notebooks.run(path)
    return nbformat.read(path, as_version=4)


def texts(notebook) -> list[str]:
    """The alternative texts of a notebook's pictures."""
    outputs = [o for cell in notebook.cells for o in cell.outputs if "image/png" in o.data]
    return [output.metadata["image/png"]["alt"] for output in outputs]


def test_every_way_to_show_a_picture_stores_its_text_and_few_colours(stored):
    shown, last, configured, explorer = texts(stored)
    assert shown.startswith("Shown. X axis: x, ")
    assert shown.endswith("A line from 1 to 3.")
    assert last == "A line from 1 to 4."
    assert configured == "A line from 1 to 5."
    widget = widgets.float_bits()
    assert explorer == f"The explorer {widget.title}: {widget.said}"
    for output in (o for cell in stored.cells for o in cell.outputs if "image/png" in o.data):
        picture = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"])))
        assert picture.width // 2 == output.metadata["image/png"]["width"] >= 400
        assert picture.mode == "P"


def test_slides_and_site_carry_the_texts(stored, monkeypatch):
    from pathlib import Path

    from bs4 import BeautifulSoup

    monkeypatch.chdir(Path(__file__).parents[2])
    page, _ = publish.exporter().from_notebook_node(stored, {"title": "a"})
    pictures = BeautifulSoup(page, "html.parser").find_all("img")
    assert [picture["alt"] for picture in pictures] == texts(stored)
    assert all(picture["src"].startswith("data:image/png;base64,") for picture in pictures)
    assert all(int(picture["width"]) >= 400 for picture in pictures)
    told = [
        cell.metadata["mystnb"]["image"]["alt"]
        for cell in publish.with_alt_texts(nbformat.from_dict(stored)).cells[1:]
    ]
    assert told == texts(stored)
