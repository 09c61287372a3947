"""Give points for exercises in nbgrader and otter-grader."""

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

from cs336_course.checks import report

PACKAGES = ("cs336_course.", "cs336_lib.")


def award(check: Callable[..., None], *answers: object) -> None:
    """Print the verdict of an exercise's check, and raise an error unless the answer is right.

    A wrong part of GPT-2 has already been replaced by the library's, which gets no points. Messages
    on stderr are dropped, because nbgrader gives no points to a cell that writes to stderr.

    Args:
        check: The check, such as `checks.head_scores`.
        answers: What the learner's cell passes to the check.

    Raises:
        AssertionError: If the answer is wrong or missing. The message is the verdict.
    """
    name, said = check.__name__, io.StringIO()
    assert not is_from_library(answers), f"{name}: not right yet. See the verdict in your cell."
    with redirect_stdout(said), redirect_stderr(io.StringIO()):
        try:
            right = report.judge(check.__wrapped__, answers, check.smaller)  # type: ignore[attr-defined]
        except SystemExit:  # it would end otter-grader's run of the whole notebook
            raise AssertionError(f"{name}: your code ends Python.") from None
    assert right, said.getvalue().strip()
    print(said.getvalue().strip())


def is_from_library(answer: object) -> bool:
    """Return whether an answer is a function or class of ours, or contains one."""
    if isinstance(answer, tuple):
        return any(is_from_library(part) for part in answer)
    return callable(answer) and str(getattr(answer, "__module__", "")).startswith(PACKAGES)
