"""The stated MFU of published runs predicts their stated time, as docs/published_runs.md shows."""

from pathlib import Path

import pytest

from cs336_course.shared import published_runs
from tools.published_tables import run_table

RUNS = published_runs.runs()
PAGE = Path(__file__).parents[2] / "docs" / "published_runs.md"


@pytest.mark.parametrize("name", RUNS)
def test_predicted_time_is_the_stated_one_or_has_a_reason(name):
    run = RUNS[name]
    assert run.source
    fits = run.ratio is not None and run.ratio == pytest.approx(1, abs=0.05)
    assert fits != bool(run.reason), f"{name}: ratio {run.ratio}"


def test_the_page_has_every_run_as_computed():
    text = PAGE.read_text()
    assert run_table() in text
    for run in RUNS.values():
        assert run.reason in text
        assert run.title in text
