"""Exercises of the bug hunt: the bugs of six runs, and a ninth test."""

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

# What is true of every case that doesn't have the bug, and can be seen by a request
INNOCENT = {
    "targets_not_shifted": "the targets in its batches are the next letters",
    "future_not_masked": "only one prediction moves if the last letter is changed",
    "replayed_data": "after its first resume, it reads the same batch as its twin",
    "optimizer_not_restored": "its AdamW has counted every step since the first",
    "dropout_in_evaluation": "two evaluations of one checkpoint give the same loss",
    "loss_not_divided": "its gradient in step 0 isn't four times its twin's",
    "last_piece_only": "its gradient in step 0 isn't smaller than its twin's",
    "no_zero_grad": "its gradient doesn't pile up over the first steps, beside its twin's",
    "schedule_per_piece": "its learning rates are those of its twin",
    "schedule_off_by_one": "its learning rate in step 0 isn't 0",
    "decay_on_norms": "in step 0, its norm gains move as far as its twin's",
    "weights_too_large": "its initial weights are as large as its twin's",
}


def why_not_that_bug(letter: str, name: str) -> Record:
    """Return what can be seen of a case that speaks against a bug."""
    if hunt.has_bug(letter, name):
        return {}
    first = int(np.flatnonzero(hunt.record(letter).apart(hunt.run()))[0])
    return {
        "said": f"it isn't {name}: {INNOCENT[name]}, so that line is right.",
        "figures": f"{letter}'s log first differs from its twin's in step {first}. What has acted "
        "until then, and what hasn't?",
    }


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
