"""Test that docs/presenting.md has the course's minutes and the notebooks' questions."""

import re
from pathlib import Path

import nbformat

from cs336_course.drawing.course import COURSE

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "presenting.md").read_text()
ROW = r"^\| (\d\d\w?) \| (.+?) \| (\d+) \| (\d+) \|"
ROWS = {row[0]: row for row in re.findall(ROW, TEXT, re.M)}
PARTS = {part.split()[0]: part for part in re.split(r"^### ", TEXT, flags=re.M)[1:]}


def prose(name: str) -> list[str]:
    """Return the Markdown cells of a notebook, each on one line."""
    cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
    return [" ".join(cell.source.split()) for cell in cells if cell.cell_type == "markdown"]


def test_minutes_are_those_of_the_notebooks():
    for lecture in COURSE:
        cells = prose(lecture.name)
        _, _, minutes, exercises = ROWS[lecture.number]
        tasks = [cell for cell in cells if cell.startswith("### Exercise")]
        assert int(minutes) == lecture.minutes, lecture.name
        (plan,) = re.findall(r"\*\*Minutes:\*\* .*?\*\*Needs", " ".join(cells[:4]))
        assert plan.startswith(f"**Minutes:** {minutes}, of which "), plan
        assert exercises in re.findall(r"\d+", plan), plan
        # The rest of the time is for reading and running.
        assert int(exercises) <= 0.6 * lecture.minutes, lecture.name
        asked = sum(int(re.search(r"(\d+) min", task)[1]) for task in tasks)
        assert int(exercises) == asked, lecture.name


def test_questions_are_those_of_the_notebooks():
    missing = []
    for lecture in COURSE:
        cells = prose(lecture.name)
        questions = re.findall(r'^- "(.+?)"', PARTS[lecture.number], flags=re.M)
        assert questions, lecture.name
        for question in questions:
            if not any(question in cell for cell in cells):
                missing.append(f"{lecture.name}: {question}")
    assert not missing, "\n".join(missing)
