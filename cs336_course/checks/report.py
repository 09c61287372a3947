"""Run exercise checks, and print "not attempted yet", a diagnosis or "passed"."""

import functools
import hashlib
import math
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from decimal import Decimal
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from IPython.core.getipython import get_ipython
from torch import Tensor

import cs336_course
import cs336_lib
from cs336_course.checks import surroundings
from cs336_course.learner import study

# Names of code that look like words, at the beginning of a diagnosis
NAMES = {"eps", "idx", "mask", "params", "qkv", "wpe", "wte"}

# Folders of code that isn't a learner's, wherever they are installed
OTHERS = [Path(package.__path__[0]) for package in (cs336_course, cs336_lib, torch)]

# Wrong attempts after which a learner is told more
HINT_AFTER, FIGURES_AFTER, SMALLER_AFTER = 2, 3, 4
# A name that doesn't exist says nothing about what the learner has understood.
TYPOS = (NameError, AttributeError, ImportError)


class DiagnosisError(Exception):
    """Error for a wrong answer.

    Args:
        message: Tells the learner what to fix.
        figures: Compares the learner's number with the right one. It is shown from the third
            attempt on.
    """

    def __init__(self, message: str, figures: str = ""):
        super().__init__(message)
        self.figures = figures


def expect(condition: object, diagnosis: str) -> None:
    """Fail the check with `diagnosis` unless `condition` is true."""
    if not bool(condition):
        raise DiagnosisError(diagnosis)


def expect_number(
    got: object, want: float, case: str, mistakes: Mapping[str, float], rel_tol: float = 1e-6
) -> None:
    """Fail the check unless `got` is the number `want`.

    Args:
        got: The learner's answer.
        want: The right answer.
        case: The inputs, as in "two layers of width 8".
        mistakes: Maps a diagnosis to the number that a known mistake gives.
        rel_tol: Relative tolerance.
    """
    expect(
        got is not None, f"your function returns None for {case}; is the `return` missing there?"
    )
    if isinstance(got, (Tensor, np.ndarray)) and math.prod(got.shape) == 1:
        got = got.item()
    is_number = isinstance(got, (Real, Decimal)) and not isinstance(got, bool)
    if not is_number:
        raise DiagnosisError(f"a number is expected, not {type(got).__name__}.")
    number = float(got)  # type: ignore[arg-type]
    if math.isclose(number, want, rel_tol=rel_tol):
        return
    for diagnosis, wrong in mistakes.items():
        expect(not math.isclose(number, wrong, rel_tol=rel_tol), diagnosis)
    figures = f"You get {shown(number)}, and {shown(want)} is right."
    is_single = abs(want) > 2**32 and number == np.float32(number)
    is_rounded = is_single and math.isclose(number, want, rel_tol=1e-6)
    how = "right to six digits, but not exact" if is_rounded else "off"
    why = " Is it rounded, as in float32? Python's own integers are exact." if is_rounded else ""
    raise DiagnosisError(f"the number is {how} for {case}.{why}", figures)


def shown(value: float) -> str:
    """Format a whole number with all digits, and any other number with six."""
    is_whole = abs(value) < 1e15 and float(value).is_integer()
    return f"{value:,.0f}" if is_whole else f"{value:,.6g}"


def by_hand(module: ModuleType, *names: str) -> AbstractContextManager:
    """Fail the check if a function in `names` of `module` is called within this block."""
    short = module.__name__.removeprefix("torch.")

    def refusal(name: str) -> mock.Mock:
        diagnosis = f"{short}.{name} does all the work here; write it by hand."
        return mock.Mock(side_effect=DiagnosisError(diagnosis))

    return mock.patch.multiple(module, **{name: refusal(name) for name in names})


def is_learners(filename: str) -> bool:
    """Return whether code is neither the course's nor Python's nor an installed package's."""
    others = [*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), *OTHERS]
    return not any(Path(filename).is_relative_to(folder) for folder in others)


def complaint(error: Exception) -> str:
    """Format an error, including whether the learner's code raised it, or called what did.

    A check may intercept the functions that an answer calls, so its own code may be the last.
    """
    what = f"{type(error).__name__}: {error}"
    if any(is_learners(frame.filename) for frame in traceback.extract_tb(error.__traceback__)):
        return f"your code raised {what}"
    return (
        f"your code cannot be used as the task says ({what}). "
        "Does it take those arguments, and does every branch return a value?"
    )


def cell() -> str:
    """Return a checksum of the cell that is running, or "" outside a notebook."""
    shell = get_ipython()
    source = shell.user_ns["In"][-1] if shell else ""
    return hashlib.sha256(source.encode()).hexdigest()[:16] if source else ""


def growing_help(attempt: int, has_hint: bool, figures: str, smaller: str) -> str:
    """Return what a learner is told beyond the diagnosis. It grows with each wrong attempt."""
    said = []
    if figures and attempt >= FIGURES_AFTER:
        said.append(figures)
    if attempt >= SMALLER_AFTER:
        said.append(f"A smaller question first: {smaller}")
    elif has_hint and attempt >= HINT_AFTER:
        said.append("There is a hint below this cell.")
    return f"Attempt {attempt}. {' '.join(said)}" if said else ""


def sentence(said: str) -> str:
    """Begin a diagnosis with a capital, unless it begins with a name such as `m` or `F.softmax`."""
    word = said.split(" ")[0].rstrip(",;:")
    is_name = len(word) < 2 or not word.replace("'", "").isalpha() or word in NAMES
    return said if is_name and word != "a" else said[:1].upper() + said[1:]


def judge(check: Callable[..., None], answers: tuple[object, ...], smaller: str) -> bool:
    """Run a check, print its verdict, and return whether the answer is correct."""
    name, folder, figures = check.__name__, study.here(), ""
    try:
        if any(answer is ... for answer in answers):
            raise NotImplementedError
        check(*answers)
    except DiagnosisError as diagnosis:
        said, figures = str(diagnosis), diagnosis.figures
        print(f"{name}: not right yet. {sentence(said)}")
    except Exception as error:  # the learner's own code may raise anything
        if isinstance(error, NotImplementedError) and not str(error):
            print(f"{name}: not attempted yet")  # only a stub's error has no message
            return False
        said = complaint(error)
        print(f"{name}: {said}")
        if isinstance(error, TYPOS):
            study.record(folder, name, study.TYPO, said, cell())
            return False
    else:
        print(f"{name}: passed")
        study.record(folder, name, study.PASSED, cell=cell())
        return True
    study.record(folder, name, study.WRONG, said, cell())
    attempt = study.wrong_attempts(folder, name)
    if more := growing_help(attempt, study.has_hint(folder, name), figures, smaller):
        print(more)
    return False


def exercise(
    smaller: str, may_seed: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function that raises errors, so that it prints a verdict instead.

    The argument of the check is the learner's answer, which is a function or a value. A stub that
    raises NotImplementedError or is `...` counts as not attempted. The check never raises an error,
    so a notebook with unsolved exercises runs to the end. In a learner's copy of the notebooks, the
    verdict is also recorded for `cs336 check`, and the help grows with the attempts. An answer must
    leave what all code shares as it was (see `surroundings`).

    Args:
        smaller: A smaller question that leads to the answer, for the fourth wrong attempt.
        may_seed: Whether the task is to seed the global generators.
    """

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        watched = surroundings.watched(check, expect, may_seed)

        @functools.wraps(watched)
        def report(*answers: object) -> None:
            judge(watched, answers, smaller)

        report.smaller = smaller  # type: ignore[attr-defined]
        return report

    return decorate


def part(library: Any, smaller: str) -> Callable[[Callable[..., None]], Callable[..., Any]]:
    """Decorate the check of a part of GPT-2, so that it also returns a correct part.

    The check prints a verdict in the same way as `exercise`. It returns the learner's part if the
    check passes, and otherwise the equivalent part `library`.

    Args:
        library: The part that replaces a wrong answer.
        smaller: A smaller question that leads to the answer, for the fourth wrong attempt.

    Example:
        >>> MLP = checks.mlp(MLP)
    """

    def decorate(check: Callable[..., None]) -> Callable[..., Any]:
        watched = surroundings.watched(check, expect)

        @functools.wraps(watched)
        def report(answer: Any, *others: object) -> Any:
            return answer if judge(watched, (answer, *others), smaller) else library

        report.smaller = smaller  # type: ignore[attr-defined]
        return report

    return decorate
