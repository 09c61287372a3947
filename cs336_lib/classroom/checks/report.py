"""How an exercise answers its learner: not attempted yet, a diagnosis, or passed."""

import functools
from collections.abc import Callable
from pathlib import Path

from cs336_lib.classroom import study


class DiagnosisError(Exception):
    """What is wrong with an answer, in one sentence a learner can act on."""


def expect(condition: object, diagnosis: str) -> None:
    """Fail the check with `diagnosis` unless `condition` holds."""
    if not bool(condition):
        raise DiagnosisError(diagnosis)


def exercise(check: Callable[..., None]) -> Callable[..., None]:
    """Turn a function that raises into one that prints its verdict in one line.

    The check gets the learner's answer: a function whose stub raises NotImplementedError, or a
    value whose stub is `...`. It never raises, so a notebook with untouched stubs runs to its end.
    In a learner's own copy of the notebooks the verdict is also noted, for `cs336 check`.
    """

    @functools.wraps(check)
    def report(*answers: object) -> None:
        name = check.__name__
        try:
            if any(answer is ... for answer in answers):
                raise NotImplementedError
            check(*answers)
        except NotImplementedError:
            print(f"{name}: not attempted yet")
            return
        except DiagnosisError as diagnosis:
            verdict, said = study.WRONG, str(diagnosis)
            print(f"{name}: not right yet. {said}")
        except Exception as error:  # the learner's own code may raise anything
            verdict, said = study.WRONG, f"your code raised {type(error).__name__}: {error}"
            print(f"{name}: {said}")
        else:
            verdict, said = study.PASSED, ""
            print(f"{name}: passed")
        study.record(Path.cwd(), name, verdict, said)

    return report
