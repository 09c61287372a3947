"""The disk without power, the hints of the quiz, and what a power cut leaves of a save."""

import os

import pytest

from cs336_course.engine.judge import diagnose
from cs336_course.pages.reproducible_runs import exercises
from cs336_course.pages.reproducible_runs.saving import Saving
from cs336_course.pages.reproducible_runs.story import (
    FILE,
    FOLDER,
    RENAME,
    SYNC,
    WRITE,
    Disk,
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


def test_unknown_calls_are_refused():
    with pytest.raises(ValueError, match="no call 'hope'"):
        Disk().call("hope", FILE)


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


def test_every_moment_of_a_save_is_seen(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    saving = Saving(tmp_path)
    with saving.watching({}):
        (tmp_path / "b").write_bytes(b"new!")
        os.replace(tmp_path / "b", tmp_path / "a")
    assert list(saving.after_power_cut()) == [
        ("torn", {"a": b"old", "b": b"ne"}),
        ("lost", {"a": b"new!"}),
        ("overtaken", {"a": b"ne"}),
    ]


def test_bytes_that_are_on_the_disk_cannot_be_overtaken(tmp_path):
    saving = Saving(tmp_path)
    with saving.watching({}):
        with (tmp_path / "b").open("wb") as file:
            file.write(b"new!")
            file.flush()
            os.fsync(file.fileno())
        (tmp_path / "b").rename(tmp_path / "a")
    assert "overtaken" not in dict(saving.after_power_cut())
