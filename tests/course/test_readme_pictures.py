"""README shows a picture drawn from its recorded run, and small ones from the notebooks."""

import re
import xml.etree.ElementTree as ET

import pytest
from PIL import Image

from cs336_course.drawing.course import COURSE
from tools import learning_picture, thumbnails

NOTEBOOKS = sorted(thumbnails.NOTEBOOKS.glob("*.ipynb"))
README = learning_picture.PICTURE.parents[1] / "README.md"


def test_the_moving_picture_shows_its_run():
    run = learning_picture.recorded()
    assert learning_picture.PICTURE.read_text() == learning_picture.draw(run)
    assert learning_picture.PICTURE.stat().st_size < 1.5e6
    assert list(map(int, run["texts"])) == list(learning_picture.SHOWN)
    assert len(run["losses"]) == learning_picture.RUN.max_steps
    shown = [learning_picture.loss_at(run["losses"], step) for step in learning_picture.SHOWN]
    assert shown == sorted(shown, reverse=True)
    millions = re.search(r"A GPT with ([\d.]+) million", README.read_text())[1]
    assert millions == f"{run['parameters'] / 1e6:.1f}"


def test_the_moving_picture_is_a_picture_for_everyone():
    root = ET.parse(learning_picture.PICTURE).getroot()
    name = "{http://www.w3.org/2000/svg}"
    assert "loss falls" in root.find(f"{name}title").text
    steps = [each.get("class") for each in root.iter(f"{name}g")]
    assert steps == ["step"] * (len(steps) - 1) + ["step last"]  # what a still picture shows
    style = root.find(f"{name}style").text
    assert style.index("prefers-reduced-motion: no-preference") < style.index("animation")
    assert "http" not in style


def test_a_line_of_text_fits_into_the_picture():
    text = "ROMEO:\n" + "long " * 90 + "\n\n" + "x" * 120
    lines = learning_picture.lines(text)
    assert len(lines) == learning_picture.LINES
    assert max(map(len, lines)) <= learning_picture.COLUMNS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_the_thumbnail_of_its_figure(path):
    number = path.stem.partition("_")[0]
    with Image.open(thumbnails.FOLDER / f"{number}.png") as picture:
        said = "run `python -m tools.thumbnails`"
        assert picture.text["Description"] == thumbnails.chosen(path)[0], said
        assert picture.size == thumbnails.SIZE
    assert f"| {number} | ![](docs/thumbnails/{number}.png) | " in README.read_text()


def test_thumbnails_are_small_and_there_are_no_others():
    files = sorted(thumbnails.FOLDER.iterdir())
    assert [file.stem for file in files] == [path.stem.partition("_")[0] for path in NOTEBOOKS]
    assert sum(file.stat().st_size for file in files) < 600_000


def test_a_thumbnail_is_no_card_of_a_prediction():
    for path in NOTEBOOKS:
        assert not thumbnails.chosen(path)[0].startswith(thumbnails.PREDICTION)


def test_the_readme_states_the_hours_of_the_course():
    hours = int(re.search(r"about (\d+) hours", README.read_text())[1])
    assert abs(hours - sum(lecture.minutes for lecture in COURSE) / 60) < 1
