"""The stated MFU of published runs predicts their stated time, or an entry says why not."""

import pytest

from cs336_course.shared import published_runs
from tools.published_tables import predicted_time

RUNS = published_runs.runs()


@pytest.mark.parametrize("name", RUNS)
def test_predicted_time_is_the_stated_one_or_has_a_reason(name):
    run = RUNS[name]
    assert run.source
    ratio = predicted_time(run)
    fits = ratio is not None and ratio == pytest.approx(1, abs=0.05)
    assert fits != bool(run.reason), f"{name}: ratio {ratio}"
