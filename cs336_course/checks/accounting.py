"""Compare an answer's numbers with those of known mistakes, for the checks of notebook 10b."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from cs336_course.checks.report import DiagnosisError, expect, expect_number

T = TypeVar("T")
Mistakes = dict[str, float]
COUNTS = 1e-12  # the relative tolerance of whole numbers, which float32 would round


class Found(NamedTuple):
    """An answer's number for a case.

    Attributes:
        got: The learner's number.
        want: The right number.
        case: The inputs, as in "batch 8 and widths (4, 3)".
        mistakes: Maps a diagnosis to the number that a known mistake gives for this case.
    """

    got: object
    want: float
    case: str
    mistakes: Mistakes


def is_number(got: object, want: float, rel_tol: float) -> bool:
    """Return whether `got` is the number `want`."""
    try:
        expect_number(got, want, "", {}, rel_tol)
    except DiagnosisError:
        return False
    return True


def expect_numbers(found: Sequence[Found], rel_tol: float = 1e-6) -> None:
    """Fail the check at the first wrong number.

    Two mistakes may give the same number by chance, so a mistake is named only if it gives the
    learner's number in every case that lists it.
    """
    excluded = {
        diagnosis
        for one in found
        for diagnosis, wrong in one.mistakes.items()
        if not is_number(one.got, wrong, rel_tol)
    }
    for got, want, case, mistakes in found:
        fitting = {key: wrong for key, wrong in mistakes.items() if key not in excluded}
        expect_number(got, want, case, fitting, rel_tol)


def gather(answers: Iterable[T]) -> tuple[list[T], Exception | None]:
    """Return the answers for all cases up to the first that raises an error, and that error."""
    got: list[T] = []
    try:
        for answer in answers:
            got.append(answer)
    except Exception as error:  # the learner's own code may raise anything
        return got, error
    return got, None


def items(got: object, count: int, wish: str) -> list:
    """Return the items of a tuple, list or array, and fail with `wish` unless there are `count`."""
    expect(isinstance(got, tuple | list | np.ndarray | Tensor), wish)
    found = list(got)  # type: ignore[call-overload]
    expect(len(found) == count, wish)
    return found
