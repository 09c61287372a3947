"""Mutants of the printed solutions are refused (`python -m tests.mutation` prints them)."""

import multiprocessing
import pkgutil
import re
from concurrent.futures import ProcessPoolExecutor

import pytest
from mutation.survey import Score, by_module, share, table

from cs336_course import exercises


@pytest.fixture(scope="module")
def scores() -> list[Score]:
    """The scores of all exercises, from two processes."""
    modules = [module.name for module in pkgutil.iter_modules(exercises.__path__)]
    names = [name.removeprefix("n") for name in modules if re.match(r"n\d", name)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        return [score for found in pool.map(by_module, names) for score in found]


def test_first_order_mutants_are_refused(scores):
    assert sum(score.wrong for score in scores if score.kind == "first-order") > 1_200
    assert share(scores, "first-order") >= 0.99, table(scores)


def test_plausible_ideas_are_refused(scores):
    assert share(scores, "ideas") >= 0.95, table(scores)


def test_every_mutant_that_is_listed_as_right_passes(scores):
    assert not [name for score in scores for name in score.stale]
