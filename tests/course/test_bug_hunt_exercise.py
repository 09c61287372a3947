"""What a wrong accusation costs, and the list of suspects."""

import re
from pathlib import Path

import nbformat
import pytest

from cs336_course.engine.judge import diagnose
from cs336_course.pages.bug_hunt import story
from cs336_course.pages.bug_hunt.exercises import bug_hunt as exercise

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "side_trips/bug_hunt.ipynb"


def found(answer):
    """The diagnosis of an answer."""
    return diagnose(exercise, list(exercise.records(answer)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"D": "last_piece_only"}, "D: it isn't last_piece_only. That costs you 3 requests"),
        ({"C": "a gremlin"}, "C: it isn't one of"),
        ({"E": ...}, "E: it has no answer yet"),
    ],
)
def test_a_wrong_accusation_goes_on_the_bill(changes, said):
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    solution = next(cell.source for cell in cells if "\nanswer = {" in cell.source)
    right = dict(re.findall(r'"([A-E])": "(\w+)"', solution))
    story.REQUESTS.clear()
    assert said in found(right | changes).said
    assert sum(story.REQUESTS.values()) == (story.WRONG if "D" in changes else 0)
    assert not set(right.values()) & set(story.CASES.values())  # a look at them tells nothing


def test_the_notebook_lists_every_suspect_as_the_module_does():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    task = next(cell.source for cell in cells if "Five bugs" in cell.source)
    listed = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", task, re.M))
    assert listed == {name: what for name, (what, _) in story.SUSPECTS.items()}
