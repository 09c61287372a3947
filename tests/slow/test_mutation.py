"""Mutants of three printed solutions are refused (`python -m tests.mutation` judges all)."""

import random

from mutation.survey import exercises, share, survey, table


def test_mutants_of_three_solutions_are_refused():
    chosen = random.Random(0).sample(exercises(), 3)
    scores = [score for exercise in chosen for score in survey(exercise)]
    print(table(scores))
    assert sum(score.wrong for score in scores) > 20
    assert share(scores, "first-order") >= 0.9
    assert share(scores, "ideas") >= 0.9
    assert not [name for score in scores for name in score.stale]
