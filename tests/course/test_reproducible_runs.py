"""The disk without power, the hints of the quiz, and what a power cut leaves of a save."""

import pytest

from cs336_course.engine.judge import diagnose
from cs336_course.pages.reproducible_runs import exercises
from cs336_course.pages.reproducible_runs.story import (
    FILE,
    FOLDER,
    RENAME,
    SYNC,
    WRITE,
    after,
    during,
)


@pytest.mark.parametrize(
    ("calls", "while_saving", "later"),
    [
        ([WRITE], ["old"], ["old"]),
        ([WRITE, SYNC], ["old"], ["old"]),
        ([WRITE, RENAME, ("fsync", FILE)], ["new", "old", "torn"], ["new", "old"]),
        ([WRITE, SYNC, RENAME, ("fsync", FOLDER)], ["new", "old"], ["new"]),
        (
            [("remove", FILE), WRITE, SYNC, RENAME],
            ["absent", "new", "old"],
            ["absent", "new", "old"],
        ),
    ],
)
def test_what_a_power_cut_leaves(calls, while_saving, later):
    assert (during(calls), after(calls)) == (while_saving, later)


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
