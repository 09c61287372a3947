from pathlib import Path

import nbformat
from cases import for_each
from PIL import Image

from cs336_course.drawing.course import COURSE, lectures

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def test_the_map_says_what_the_notebooks_say():
    def compare(lecture):
        path = NOTEBOOKS / f"{lecture.name}.ipynb"
        if not path.exists():
            return  # drawn dotted on the map
        cells = nbformat.read(path, as_version=4).cells
        assert cells[0].source.startswith(f"# {lecture.number} · ")
        assert any(f"**Minutes:** {lecture.minutes}, " in cell.source for cell in cells[:5])

    for_each({lecture.name: (lecture,) for lecture in COURSE}, compare)


def test_the_readme_shows_this_map():
    with Image.open(NOTEBOOKS.parent / "docs" / "course_map.png") as picture:
        assert picture.text["Description"] == lectures(), "run `make notebooks`"


def test_every_notebook_is_on_the_map():
    assert {path.stem for path in NOTEBOOKS.rglob("*.ipynb")} <= {each.name for each in COURSE}


def test_everything_builds_on_something_earlier():
    numbers = [lecture.number for lecture in COURSE]
    for lecture in COURSE:
        assert all(numbers.index(n) < numbers.index(lecture.number) for n in lecture.builds_on)


def test_the_readme_has_the_same_table():
    readme = (NOTEBOOKS.parent / "README.md").read_text()
    for lecture in COURSE:
        row = next(line for line in readme.splitlines() if line.startswith(f"| {lecture.number} "))
        assert row.endswith(f"| {lecture.minutes} |")
        written = (NOTEBOOKS / f"{lecture.name}.ipynb").exists()
        assert (f"](notebooks/{lecture.name}.ipynb)" in row) == written
