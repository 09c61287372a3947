"""The checks refuse mutants of the printed solutions (`python -m tests.mutation` prints them)."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
from mutation.exercises import NOTEBOOKS
from mutation.survey import Score, share, survey, table


@pytest.fixture(scope="module")
def scores() -> list[Score]:
    """The scores of all notebooks, from two processes."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        return [
            score
            for found in pool.map(survey, sorted(NOTEBOOKS.glob("*.ipynb")))
            for score in found
        ]


def test_first_order_mutants_are_refused(scores):
    print(table(scores))
    assert sum(score.mutants for score in scores) > 1500
    assert share(scores, "first-order") >= 0.99, table(scores)


def test_plausible_ideas_are_refused(scores):
    assert share(scores, "ideas") >= 0.95, table(scores)


def test_every_mutant_that_is_listed_as_right_passes(scores):
    assert not [name for score in scores for name in score.stale]
