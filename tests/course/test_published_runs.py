"""The stated MFU of published runs predicts their stated time, as docs/published_runs.md shows."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from cs336_course.shared import published_runs
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


def test_a_paper_does_not_help_to_guess_its_own_mfu(monkeypatch):
    def step(paper: str, mfu: float) -> SimpleNamespace:
        return SimpleNamespace(paper=paper, mfu=mfu)

    known = {"a": step("one", 0.4), "b": step("one", 0.5), "c": step("two", 0.2)}
    monkeypatch.setattr(published_runs, "steps", lambda: known)
    assert published_runs.one_mfu() == pytest.approx({"a": 0.5, "b": 0.4, "c": 2.25})


def test_stacks_are_sorted_by_their_median_and_count_their_papers(monkeypatch):
    known = {
        name: SimpleNamespace(stack=stack, paper=paper, held_out=held_out)
        for name, stack, paper, held_out in (
            ("a", "slow", "one", False),
            ("b", "fast", "two", False),
            ("c", "fast", "three", True),
        )
    }
    monkeypatch.setattr(published_runs, "steps", lambda: known)
    monkeypatch.setattr(published_runs, "left_out", lambda: {"a": 1.2, "b": 0.9, "c": 1.0})
    assert list(published_runs.by_stack().items()) == [
        ("fast, 2 papers", [(0.9, False), (1.0, True)]),
        ("slow, 1 paper", [(1.2, False)]),
    ]
