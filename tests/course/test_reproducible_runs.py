"""The hints of the quiz on a checkpoint that lacks a piece."""

import pytest

from cs336_course.engine.judge import diagnose
from cs336_course.pages.reproducible_runs import exercises


@pytest.mark.parametrize(
    ("letter", "name", "said"),
    [
        ("A", "optimizer", "A's loss is off"),
        ("B", "schedule", "B: it isn't 'schedule': only the first learning rate is off in B"),
        ("F", "weights", "look at the first thing that differs"),
        ("A", 3, "A: it isn't one of weights"),
        ("D", ..., "D: it has no answer yet"),
    ],
)
def test_a_wrong_piece_gets_a_hint(letter, name, said):
    task = exercises.missing_pieces
    found = diagnose(task, list(task.records(exercises.PIECES | {letter: name})))
    assert said in found.said
