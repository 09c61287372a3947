"""What a power cut may leave of a checkpoint, by the order of calls, and repeated runs."""

import pytest
import torch

from cs336_course.pages.reproducible_runs import same_run
from cs336_course.pages.reproducible_runs.power_cut import (
    FILE,
    FOLDER,
    RENAME,
    SYNC,
    WAYS,
    WRITE,
    Disk,
    after,
    during,
)


@pytest.mark.parametrize(
    ("calls", "while_saving", "later"),
    [
        ([("write", FILE)], ["new", "old", "torn"], ["new", "old", "torn"]),
        ([WRITE], ["old"], ["old"]),
        ([WRITE, SYNC], ["old"], ["old"]),
        ([WRITE, RENAME], ["new", "old", "torn"], ["new", "old", "torn"]),
        ([WRITE, RENAME, ("fsync", FILE)], ["new", "old", "torn"], ["new", "old"]),
        ([WRITE, SYNC, RENAME], ["new", "old"], ["new", "old"]),
        ([WRITE, SYNC, RENAME, ("fsync", FOLDER)], ["new", "old"], ["new"]),
        (
            [("remove", FILE), WRITE, SYNC, RENAME],
            ["absent", "new", "old"],
            ["absent", "new", "old"],
        ),
    ],
)
def test_what_is_left(calls, while_saving, later):
    assert (during(calls), after(calls)) == (while_saving, later)


def test_only_the_ways_with_fsync_never_leave_a_torn_file():
    assert [name for name, calls in WAYS.items() if "torn" not in during(calls)] == list(WAYS)[3:]


def test_unknown_calls_are_refused():
    with pytest.raises(ValueError, match="no call 'hope'"):
        Disk().call("hope", FILE)


def test_only_torchs_seed_repeats_torchs_draws():
    repeats = same_run.repeated_draws(torch.device("cpu"))
    assert repeats["random.seed"] == ["random"]
    assert repeats["torch.manual_seed"] == ["torch, CPU", "torch, device"]


def test_adamw_remembers_that_a_gradient_alternates():
    assert same_run.adamw_step([1.0]) == pytest.approx(1.0)
    assert same_run.adamw_step([1.0, -1.0] * 100 + [1.0]) == pytest.approx(0.1 / 1.9, rel=0.01)
