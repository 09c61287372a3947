"""Test that docs/presenting.md has the course's minutes and the notebooks' questions."""

import re
from pathlib import Path

import nbformat
import pytest

from cs336_lib.classroom.plots.course import COURSE

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "presenting.md").read_text()
ROWS = {row[0]: row for row in re.findall(r"^\| (\d\d) \| (.+?) \| (\d+) \| (\d+) \|", TEXT, re.M)}
PARTS = {part[:2]: part for part in re.split(r"^### ", TEXT, flags=re.M)[1:]}


def prose(name: str) -> list[str]:
    """Return the Markdown cells of a notebook, each on one line."""
    cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
    return [" ".join(cell.source.split()) for cell in cells if cell.cell_type == "markdown"]


@pytest.mark.parametrize("lecture", COURSE, ids=lambda lecture: lecture.name)
def test_minutes_and_questions_are_those_of_the_notebook(lecture):
    cells = prose(lecture.name)
    _, _, minutes, exercises = ROWS[lecture.number]
    tasks = [cell for cell in cells if cell.startswith("### Exercise")]
    assert int(minutes) == lecture.minutes
    first = re.findall(r"\d+", cells[0])
    assert minutes in first, cells[0]
    assert "exercises" not in cells[0] or exercises in first, cells[0]
    assert int(exercises) <= 0.6 * lecture.minutes  # the rest must be read and run
    assert int(exercises) == sum(int(re.search(r"(\d+) min", task)[1]) for task in tasks)
    questions = re.findall(r'^- "(.+?)"', PARTS[lecture.number], flags=re.M)
    assert questions
    for question in questions:
        assert any(question in cell for cell in cells), question
