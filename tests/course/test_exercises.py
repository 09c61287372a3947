"""Every exercise: the solution passes, and each wrong idea is told its own sentence."""

import importlib
import json
import pkgutil

import pytest

from cs336_course import exercises
from cs336_course.engine import Exercise, records
from cs336_course.engine.judge import diagnose

ALL = [
    exercise
    for module in pkgutil.iter_modules(exercises.__path__)
    for exercise in vars(importlib.import_module(f"{exercises.__name__}.{module.name}")).values()
    if isinstance(exercise, Exercise)
]


def said(exercise, answer):
    """What a learner is told about an answer, or "" if it is right."""
    found = diagnose(exercise, list(exercise.records(answer)))
    return found.said if found else ""


def each(kind):
    """Pairs of an exercise and the number of each of its answers of one kind."""
    of = {
        "wrong": lambda e: list(e.ideas()),
        "errors": lambda e: [(said, idea) for said, (_, idea) in e.errors.items()],
        "refused": lambda e: e.refused,
        "right": lambda e: e.right,
    }
    return [
        pytest.param(exercise, found, id=f"{exercise.name}-{number}")
        for exercise in ALL
        for number, found in enumerate(of[kind](exercise))
    ]


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_the_printed_solution_is_right(exercise):
    assert said(exercise, exercise.build(exercise.solution)) == ""
    raised = [record["raises"] for record in exercise.expected if "raises" in record]
    assert not raised  # else every answer that raises the same error would pass
    sent = json.dumps(records.encode(exercise.expected))  # as grading sends them
    assert diagnose(exercise, records.decode(json.loads(sent))) is None


@pytest.mark.parametrize(("exercise", "idea"), each("wrong"))
def test_a_wrong_idea_is_told_its_own_sentence(exercise, idea):
    sentence, answer = idea
    assert said(exercise, exercise.build(answer)) == sentence


@pytest.mark.parametrize(("exercise", "idea"), each("errors"))
def test_an_error_is_explained_by_its_own_sentence(exercise, idea):
    sentence, answer = idea
    assert said(exercise, exercise.build(answer)) == sentence


@pytest.mark.parametrize(("exercise", "idea"), each("refused"))
def test_other_wrong_ideas_are_refused(exercise, idea):
    assert said(exercise, exercise.build(idea))


@pytest.mark.parametrize(("exercise", "idea"), each("right"))
def test_other_right_answers_pass(exercise, idea):
    assert said(exercise, exercise.build(idea)) == ""
