"""Run exercise checks, and print "not attempted yet", a diagnosis or "passed"."""

import functools
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from cs336_lib.classroom import study


class DiagnosisError(Exception):
    """Error for a wrong answer. The message tells the learner what to fix."""


def expect(condition: object, diagnosis: str) -> None:
    """Fail the check with `diagnosis` unless `condition` is true."""
    if not bool(condition):
        raise DiagnosisError(diagnosis)


def by_hand(module: ModuleType, *names: str) -> AbstractContextManager:
    """Fail the check if a function in `names` of `module` is called within this block."""
    short = module.__name__.removeprefix("torch.")

    def refusal(name: str) -> mock.Mock:
        diagnosis = f"{short}.{name} does all the work here; write it by hand."
        return mock.Mock(side_effect=DiagnosisError(diagnosis))

    return mock.patch.multiple(module, **{name: refusal(name) for name in names})


def complaint(error: Exception, check: Callable[..., None]) -> str:
    """Format an error, including whether the learner's code or the check raised it."""
    what = f"{type(error).__name__}: {error}"
    if traceback.extract_tb(error.__traceback__)[-1].filename != check.__code__.co_filename:
        return f"your code raised {what}"
    return (
        f"your code cannot be used as the task says ({what}). "
        "Does it take those arguments, and does every branch return a value?"
    )


def judge(check: Callable[..., None], answers: tuple[object, ...]) -> bool:
    """Run a check, print its one-line verdict, and return whether the answer is correct."""
    name = check.__name__
    try:
        if any(answer is ... for answer in answers):
            raise NotImplementedError
        check(*answers)
    except DiagnosisError as diagnosis:
        verdict, said = study.WRONG, str(diagnosis)
        print(f"{name}: not right yet. {said}")
    except Exception as error:  # the learner's own code may raise anything
        if isinstance(error, NotImplementedError) and not str(error):
            print(f"{name}: not attempted yet")  # only a stub's error has no message
            return False
        verdict, said = study.WRONG, complaint(error, check)
        print(f"{name}: {said}")
    else:
        verdict, said = study.PASSED, ""
        print(f"{name}: passed")
    study.record(Path.cwd(), name, verdict, said)
    return verdict == study.PASSED


def exercise(check: Callable[..., None]) -> Callable[..., None]:
    """Convert a function that raises errors into a check that prints a one-line verdict.

    The argument of the check is the learner's answer, which is a function or a value. A stub that
    raises NotImplementedError or is `...` counts as not attempted. The check never raises an error,
    so a notebook with unsolved exercises runs to the end. In a learner's copy of the notebooks, the
    verdict is also recorded for `cs336 check`.
    """

    @functools.wraps(check)
    def report(*answers: object) -> None:
        judge(check, answers)

    return report


def part(library: Any) -> Callable[[Callable[..., None]], Callable[..., Any]]:
    """Decorate the check of a part of GPT-2, so that it also returns a correct part.

    The check prints a verdict in the same way as `exercise`. It returns the learner's part if the
    check passes, and otherwise the equivalent part `library`.

    Example:
        >>> MLP = checks.mlp(MLP)
    """

    def decorate(check: Callable[..., None]) -> Callable[..., Any]:
        @functools.wraps(check)
        def report(answer: Any, *others: object) -> Any:
            return answer if judge(check, (answer, *others)) else library

        return report

    return decorate
