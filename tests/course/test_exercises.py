"""Every exercise: the solution passes, ideas get their own sentence, and others' errors none."""

import builtins
import importlib
import importlib.util
import json
import pkgutil

import pytest
from torch import nn

from cs336_course import pages
from cs336_course.engine import Exercise, records
from cs336_course.engine.judge import diagnose


def named(folder, name):
    """A module of a package, or None."""
    found = importlib.util.find_spec(f"{folder}.{name}")
    return importlib.import_module(f"{folder}.{name}") if found else None


ROOMS = [module.name for module in pkgutil.iter_modules(pages.__path__)]
DECLARED = {room: named(f"{pages.__name__}.{room}", "exercises") for room in ROOMS}
ALL = [
    pytest.param(found, named("answers", room), id=name)
    for room, module in DECLARED.items()
    for name, found in (vars(module) if module else {}).items()
    if isinstance(found, Exercise)
]
every_exercise = pytest.mark.parametrize(("exercise", "answers"), ALL)


def said(exercise, answer):
    """What a learner is told about an answer, or "" if it is right."""
    found = diagnose(exercise, list(exercise.records(answer)))
    return found.said if found else ""


@every_exercise
def test_right_answers_pass(exercise, answers):
    right = getattr(answers, "RIGHT", {}).get(exercise.name, [])
    for answer in (exercise.solution, *right):
        assert said(exercise, exercise.build(answer)) == "", answer
    raised = [record["raises"] for record in exercise.expected if "raises" in record]
    assert not raised  # else every answer that raises the same error would pass
    sent = json.dumps(records.encode(exercise.expected))  # as grading sends them
    assert diagnose(exercise, records.decode(json.loads(sent))) is None


@every_exercise
def test_wrong_answers_are_refused_and_ideas_get_their_own_sentence(exercise, answers):
    told = [*exercise.ideas(), *((s, idea) for s, (_, idea) in exercise.errors.items())]
    for sentence, idea in told:
        assert said(exercise, exercise.build(idea)) == sentence, idea
    for answer in getattr(answers, "REFUSED", {}).get(exercise.name, []):
        assert said(exercise, exercise.build(answer)), answer


@every_exercise
def test_an_unrelated_error_is_never_told_an_ideas_sentence(exercise, answers):
    solution = exercise.build(exercise.solution)
    raised = {
        record["raises"]["type"]
        for number, _ in enumerate(exercise.ideas())
        for record in exercise.idea_records(number)
        if "raises" in record
    }
    for kind in raised & vars(builtins).keys():
        found = diagnose(exercise, list(exercise.records(raises(solution, kind))))
        assert not found.is_named, f"{kind} is told {found.said!r}"


def raises(solution, kind):
    """An answer like the solution that raises an error of a type, with a message of its own."""
    if isinstance(solution, tuple):
        return tuple(raises(one, kind) for one in solution)

    def answer(*_, **__):
        raise getattr(builtins, kind)("unrelated to the task")

    if isinstance(solution, type) and issubclass(solution, nn.Module):
        return type(solution.__name__, (nn.Module,), {"__init__": answer})
    return answer
