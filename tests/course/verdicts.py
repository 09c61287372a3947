"""Run an exercise's check on a table of answers, and report every unexpected verdict at once."""

import contextlib
import io
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import torch

PASSED, UNTOUCHED = "passed", "not attempted yet"


def stub(*_: Any, **__: Any) -> Any:
    """An exercise's function as the notebook hands it out."""
    raise NotImplementedError


def verdict(check: Callable[..., None], *answers: Any) -> str:
    """Return the line that the check prints about the answers."""
    torch.manual_seed(0)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        check(*answers)
    return printed.getvalue().strip()


def is_expected(check: Callable[..., None], said: str, expected: str) -> bool:
    """Whether the line is this verdict, or a wrong answer's with this text in its diagnosis."""
    verdicts = {text: f"{check.__name__}: {text}" for text in (PASSED, UNTOUCHED)}
    if expected in verdicts:
        return said == verdicts[expected]
    is_diagnosis = said.startswith(f"{check.__name__}: ") and said not in verdicts.values()
    return is_diagnosis and expected.lower() in said.lower()  # a diagnosis begins with a capital


def assert_verdicts(
    check: Callable[..., None],
    cases: Mapping[str, Any] | Iterable[tuple[Any, str]],
) -> None:
    """Compare the check's verdict on every answer with the expected one.

    Args:
        check: The exercise's check.
        cases: Either {expected: answer} or pairs (answer, expected), where `expected` is "passed",
            "not attempted yet" or a part of the diagnosis.
    """
    if isinstance(cases, Mapping):
        cases = [(answer, expected) for expected, answer in cases.items()]
    judged = [(verdict(check, answer), expected) for answer, expected in cases]
    different = [
        f"expected: {expected}\n     got: {said}"
        for said, expected in judged
        if not is_expected(check, said, expected)
    ]
    assert judged
    assert not different, "\n".join(["", *different])


def assert_untouched(checks: ModuleType, names: Iterable[str], **stubs: Any) -> None:
    """Every check must call an untouched stub "not attempted yet".

    Args:
        checks: The notebook's checks.
        names: The names of all its exercises.
        stubs: The answers of exercises whose stub is not a function that raises.
    """
    different = []
    for name in names:
        said = verdict(getattr(checks, name), stubs.get(name, stub))
        if said != f"{name}: {UNTOUCHED}":
            different.append(said or name)
    assert not different, different
