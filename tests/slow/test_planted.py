"""Runs with planted faults get their names, and sound runs are normal."""

import pytest

from cs336_lib.report.runs import judge, read_run
from tests import planted


@pytest.mark.parametrize("name", planted.FAULTS)
def test_a_planted_fault_is_named_first(name, tmp_path):
    run = read_run(planted.train(tmp_path / "run", 20, planted.FAULTS[name]))
    assert judge(run).line == f"off: {name}"


@pytest.mark.parametrize("seed", planted.SOUND)
def test_a_sound_run_is_normal(seed, tmp_path):
    run = read_run(planted.train(tmp_path / "run", seed))
    assert judge(run).line.startswith("normal: ")
