"""Exercises of the bug hunt: the bugs of five runs, and a ninth test."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from cs336_course.engine import Case, Exercise
from cs336_course.engine.records import Record
from cs336_course.pages.bug_hunt import story as hunt
from cs336_course.pages.bug_hunt.script_tests import UNSEEN
from cs336_course.shared.named_letters import named_letters, says

NOTEBOOK = "side_trips/bug_hunt"


def why_not_that_bug(letter: str, name: str) -> Record:
    """Return what is said about a wrong accusation, which goes on the bill."""
    if hunt.accuse(letter, name):
        return {}
    return {"said": f"it isn't {name}. That costs you {hunt.WRONG} requests."}


def hunted() -> Iterator[Case]:
    """Yield the cases."""
    yield from map(Case, hunt.CASES)


bug_hunt = Exercise(
    NOTEBOOK,
    "bug_hunt",
    hunted,
    observe=named_letters(list(hunt.SUSPECTS), why_not_that_bug),
    answers=("answer",),
    is_quiz=True,
    smaller="Take one case. Which is the first step whose row differs from its twin's, and which "
    "number of that row differs?",
    says=says(hunt.SUSPECTS),
    wrong={},
)


# ninth_test

OTHER_WINDOWS = (
    "torch.randint(len(text) - LENGTH, (count,), generator=generator)",
    "torch.randperm(len(text) - LENGTH, generator=generator)[:count]",
)
HEALTHY = {"": (), "a healthy script that draws its windows in another way": (OTHER_WINDOWS,)}


def scripts() -> Iterator[Case]:
    """Yield scripts, of which the first ones are healthy."""
    for what, edits in HEALTHY.items():
        yield Case(what, edits=edits)
    for bug, edit in UNSEEN.items():
        for data in (2, 3, 5):  # with 5, the first batch has no held-out letter by chance
            other = ("DATA, MASKS = 0", f"DATA, MASKS = {data}")
            yield Case(f"a script that {bug}", edits=(edit, other))


def see_verdict(answer: Any, case: Case) -> Record:
    """Observe whether a test accepts a script."""
    verdict = answer(hunt.edited_script(*case.inputs["edits"]))
    if isinstance(verdict, torch.Tensor | np.bool_):
        verdict = bool(verdict)
    if not isinstance(verdict, bool):
        return {"said": f"your test must return True or False, not {type(verdict).__name__}."}
    is_healthy = case.what in HEALTHY
    record: Record = {"accepts": verdict}
    if verdict != is_healthy:
        kind = "a script that keeps" if is_healthy else "a script that breaks"
        verb = "refuses" if is_healthy else "accepts"
        record["said"] = f"your test {verb} {kind} the promise."
    return record


ninth_test = Exercise(
    NOTEBOOK,
    "ninth_test",
    scripts,
    observe=see_verdict,
    answers=("reads_everything",),
    given={"torch": torch, "np": np},
    may_seed=True,
    smaller="Which text would you choose, if you could, so that a batch tells you where it was cut "
    "out?",
    wrong={},
)
