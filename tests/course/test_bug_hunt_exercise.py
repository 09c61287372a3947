"""Notebook 06c's exercise: what is said about an accusation, and the list of suspects."""

import re
from pathlib import Path

import nbformat
import pytest

from cs336_course.engine.judge import diagnose
from cs336_course.pages.bug_hunt import bug_hunt
from cs336_course.pages.bug_hunt.exercises import INNOCENT
from cs336_course.pages.bug_hunt.exercises import bug_hunt as exercise

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "side_trips/bug_hunt.ipynb"


def found(answer):
    """The diagnosis of an answer."""
    return diagnose(exercise, list(exercise.records(answer)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"G": "no_zero_grad"}, "G: it isn't no_zero_grad: its gradient doesn't pile up"),
        ({"J": "loss_not_divided"}, "in step 0 isn't four times its twin's, so that line is right"),
        ({"E": "targets_not_shifted"}, "E: it isn't targets_not_shifted: the targets in its"),
        ({"C": "a gremlin"}, "C: it isn't one of"),
        ({"J": ...}, "J: it has no answer yet"),
    ],
)
def test_a_wrong_accusation_is_told_what_speaks_against_it(changes, said):
    assert said in found(bug_hunt.CASES | changes).said


def test_the_first_difference_is_named_from_the_third_attempt_on():
    diagnosis = found(bug_hunt.CASES | {"H": "replayed_data"})
    assert "step 9" not in diagnosis.said
    assert "first differs from its twin's in step 9" in diagnosis.figures


def test_an_untouched_answer_is_not_attempted():
    with pytest.raises(NotImplementedError):
        found(dict.fromkeys("ABCDEFGHIJ", ...))


def test_the_notebook_lists_every_suspect_as_the_module_does():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    task = next(cell.source for cell in cells if "Ten bugs" in cell.source)
    listed = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", task, re.M))
    assert listed == {name: what for name, (what, _) in bug_hunt.SUSPECTS.items()}
    assert set(INNOCENT) == set(listed)
