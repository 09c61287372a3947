"""An exercise, as a notebook calls it: it shows the verdict on an answer and records it."""

import hashlib
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython

from cs336_course.engine import card, state
from cs336_course.engine.card import Card
from cs336_course.engine.judge import Diagnosis, diagnose, sentence
from cs336_course.engine.task import Task
from cs336_course.learner import study

# Wrong attempts after which a learner is told more
HINT_AFTER, SMALLER_AFTER = 2, 4


class Exercise(Task):
    """A task for a learner. Calling it with an answer shows the verdict."""

    def __call__(self, answer: Any) -> Any:
        """Show "not attempted yet", a diagnosis or "passed". The check never raises an error.

        Returns:
            For a part of GPT-2: the answer, or the library's or the solution's part if the answer
            isn't right.
        """
        is_right = report(self, answer)
        if self.is_part:
            return answer if is_right else self.build(self.solution)
        if self.library is not None:
            return answer if is_right else self.library
        return None


def report(exercise: Task, answer: Any) -> bool:
    """Show the verdict on an answer, record it, and return whether it is right."""
    name, folder = exercise.name, study.here()
    state.set_back(name)
    try:
        found = diagnose(exercise, list(exercise.records(answer)))
    except NotImplementedError:
        print(f"{name}: not attempted yet")
        return False
    if found is None:
        study.record(folder, name, study.PASSED, cell=cell())
        card.show(Card(name, card.PASSED, f"{name}: passed", more=study.what_next(folder, name)))
        return True
    study.record(folder, name, study.TYPO if found.is_typo else study.WRONG, found.said, cell())
    card.show(wrong(exercise, folder, found))
    return False


def wrong(exercise: Exercise, folder: Path, found: Diagnosis) -> Card:
    """Return the card of a wrong answer, which the folder's record already has."""
    name, said = exercise.name, sentence(found.said)
    if found.is_typo:
        more = ["A wrong name doesn't count as an attempt."]
        return Card(name, card.TYPO, f"{name}: {found.said}", said, more)
    attempt, has_hint = study.wrong_attempts(folder, name), study.has_hint(folder, name)
    help_ = growing_help(attempt, has_hint, exercise.smaller)
    more = [line for line in (found.figures, help_) if line]
    if found.said.startswith("your code raised"):
        return Card(name, card.ERROR, f"{name}: {found.said}", said, more)
    return Card(name, card.WRONG, f"{name}: not right yet. {said}", said, more)


def cell() -> str:
    """Return a checksum of the cell that is running, or "" outside a notebook."""
    shell = get_ipython()
    # the learner may have a variable In of their own
    source = "".join(shell.history_manager.input_hist_parsed[-1:]) if shell else ""
    return hashlib.sha256(source.encode()).hexdigest()[:16] if source else ""


def growing_help(attempt: int, has_hint: bool, smaller: str) -> str:
    """Return what a learner is told beyond the diagnosis. It grows with each wrong attempt."""
    said = []
    if smaller and attempt >= SMALLER_AFTER:
        said.append(f"A smaller question first: {smaller}")
    elif has_hint and attempt >= HINT_AFTER:
        said.append("There is a hint below this cell.")
    return f"Attempt {attempt}. {' '.join(said)}" if said else ""
