"""Quizzes in which each letter gets a name: their observer, and ideas that exchange names."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cs336_course.engine import Case, edits
from cs336_course.engine.observe import Observer
from cs336_course.engine.records import Record
from cs336_course.engine.task import Edits


def named_letters(names: Sequence[str], why: Callable[[str, str], Record]) -> Observer:
    """Return the observer of a dict that gives a name to each letter.

    Capitals and spaces around a name don't matter.

    Args:
        names: What may be given.
        why: Returns what to tell a learner about a wrong name, from the letter and the name, and
            nothing about the right one.
    """

    def observe(answer: Any, case: Case) -> Record:
        if not isinstance(answer, Mapping):
            return {"form": False}
        if all(given is ... for given in answer.values()):
            raise NotImplementedError
        given = answer.get(case.what, ...)
        name = str(given).strip().lower()
        record: Record = {"form": True, "answered": given is not ..., "known": name in names}
        if not all(record.values()):
            return record
        said = why(case.what, name)  # the record doesn't have the right name, which a card may show
        return record | {"right": not said} | said

    return observe


def says(names: Iterable[str]) -> dict[str, str]:
    """Return what is said about answers of another form."""
    return {
        "form": "keep the form {'A': ...} of the answer.",
        "answered": "it has no answer yet.",
        "known": f"it isn't one of {', '.join(names)}.",
    }


def swapped(one: str, other: str) -> Edits:
    """Return the idea that exchanges two names."""
    return edits((f'"{one}"', '"?"'), (f'"{other}"', f'"{one}"'), ('"?"', f'"{other}"'))
