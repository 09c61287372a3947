"""How an exercise answers its learner: not attempted yet, a diagnosis, or passed."""

import functools
from collections.abc import Callable


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
        except DiagnosisError as diagnosis:
            print(f"{name}: not right yet. {diagnosis}")
        except Exception as error:  # the learner's own code may raise anything
            print(f"{name}: your code raised {type(error).__name__}: {error}")
        else:
            print(f"{name}: passed")

    return report
