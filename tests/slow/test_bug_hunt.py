"""Every case equals its twin until its wrong line acts, and only the right repair mends it."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest

from cs336_course.pages.bug_hunt import bug_hunt, hunted_script
from cs336_course.pages.bug_hunt.bug_hunt import CASES, SUSPECTS

matplotlib.use("Agg")

FIRST = {"A": 0, "B": 7, "C": 8, "D": 1, "E": 0, "F": 1, "G": 0, "H": 9, "I": 0, "J": 1}


def test_each_suspect_has_one_line_and_at_most_one_case():
    code = Path(hunted_script.__file__).read_text()
    assert [bug for bug, (_, (right, _)) in SUSPECTS.items() if code.count(right) != 1] == []
    assert len(set(CASES.values())) == len(CASES) == 10
    assert set(CASES.values()) < set(SUSPECTS)
    assert list(CASES.values()) != [bug for bug in SUSPECTS if bug in CASES.values()]  # shuffled


@pytest.mark.parametrize("case", CASES)
def test_a_case_equals_its_twin_until_its_line_acts(case):
    apart = bug_hunt.record(case).apart(bug_hunt.run())
    assert int(np.flatnonzero(apart)[0]) == FIRST[case]


def test_the_right_repair_gives_the_twin_and_a_wrong_one_changes_nothing(capsys):
    accused = {"A": "last_piece_only", "G": "no_zero_grad", "B": ...}
    repaired = bug_hunt.trial(accused)
    assert list(repaired) == ["A", "G"]
    assert not repaired["A"].apart(bug_hunt.run()).any()
    assert not repaired["G"].apart(bug_hunt.record("G")).any()
    said = capsys.readouterr().out
    assert "A with last_piece_only repaired, and its twin: the same run" in said
    assert "    -             self.optimizer.zero_grad()" in said
    assert said.count("zero_grad") == 2  # in A's difference and G's name; a wrong one has none
    assert "G with no_zero_grad repaired, and its twin: 96 of 96 steps differ" in said
