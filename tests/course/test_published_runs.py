"""The stated MFU of published runs predicts their stated time, as docs/published_runs.md shows."""

import re
from pathlib import Path

import pytest

from cs336_course.demos import published_runs
from cs336_lib.accounting import count_parameters
from tools.published_tables import run_table

RUNS = published_runs.runs()
PAGE = Path(__file__).parents[2] / "docs" / "published_runs.md"


@pytest.mark.parametrize("name", RUNS)
def test_predicted_time_is_the_stated_one_or_has_a_reason(name):
    run = RUNS[name]
    assert run.source
    fits = run.ratio is not None and run.ratio == pytest.approx(1, abs=0.05)
    assert fits != bool(run.reason), f"{name}: ratio {run.ratio}"


def test_most_runs_fit():
    assert sum(not run.reason for run in RUNS.values()) == 13
    ratios = [run.ratio for run in RUNS.values() if not run.reason]
    assert max(abs(ratio - 1) for ratio in ratios) < 0.025


def test_the_page_has_every_run_as_computed():
    text = PAGE.read_text()
    assert run_table() in text
    for run in RUNS.values():
        assert run.reason in text
        assert run.title in text


def test_sizes_of_models_that_are_not_in_the_list():
    sizes = {"gpt3-175b": 174.6e9, "palm-540b": 540.35e9, "mt-nlg-530b-2240": 530e9}
    for name, size in (sizes | {"megatron-1t": 1008e9, "llama2-70b": 68.98e9}).items():
        assert count_parameters(RUNS[name].architecture) == pytest.approx(size, rel=2e-3), name


def test_no_figure_without_a_source():
    assert all(
        re.search(r"20\d\d|README|scripts|docs|benchmarks|LEADERBOARD", r.source)
        for r in RUNS.values()
    )
