"""Run the checks on every mutant of the printed solutions, and count those that are refused."""

import importlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .exercises import Exercise, exercises, passes, verdict
from .mutants import Mutant, first_order, rewritten, wrapped

# The check runs training in processes of its own, so it judges only some first-order mutants.
SAMPLE = {"training_script": 30}


@dataclass(frozen=True)
class Score:
    """Numbers of one exercise for one kind of mutants.

    Attributes:
        exercise: Name of the check.
        kind: "first-order" or "ideas".
        mutants: Number of mutants.
        right: Names of the mutants that pass and are right.
        missed: Names of the mutants that pass and are wrong.
        stale: Names of mutants that are listed as right and don't pass.
    """

    exercise: str
    kind: str
    mutants: int
    right: tuple[str, ...]
    missed: tuple[str, ...]
    stale: tuple[str, ...]

    @property
    def wrong(self) -> int:
        """Number of mutants that should be refused."""
        return self.mutants - len(self.right)


def by_hand(exercise: Exercise, table: dict[str, str | list[tuple[str, str]]]) -> Iterable[Mutant]:
    """Yield the ideas that are written for one exercise."""
    for name, change in table.items():
        code = exercise.solution
        for old, new in [] if isinstance(change, str) else change:
            if old not in code:
                raise ValueError(f"{exercise.name}: {old!r} isn't in the solution")
            code = code.replace(old, new)
        yield Mutant(name, change if isinstance(change, str) else code, {})


def survivors(exercise: Exercise, mutants: Iterable[Mutant]) -> tuple[int, list[str]]:
    """Return the number of mutants, and the names of those that pass.

    An idea about tensors that meets no tensor isn't a mutant, and isn't counted.
    """
    count, names = 0, []
    for mutant in mutants:
        said = verdict(exercise, mutant.code, mutant.setup)
        applied = getattr(mutant.setup.get("_wrap"), "applied", True)
        count += applied
        if applied and passes(exercise, said):
            names.append(mutant.name)
    return count, names


def survey(path: Path, only: Sequence[str] = ()) -> list[Score]:
    """Judge every mutant of a notebook's solutions.

    Args:
        path: The notebook.
        only: Exercises to judge (default: all).
    """
    torch.set_num_threads(1)
    scores = []
    for exercise in exercises(path):
        if only and exercise.name not in only:
            continue
        table = importlib.import_module(f".tables.{exercise.module}", __package__)
        said = verdict(exercise, exercise.solution)
        if not passes(exercise, said):
            raise ValueError(f"{path.stem}: the solution doesn't pass: {said}")
        accepted = table.RIGHT.get(exercise.name, {})
        every = first = first_order(exercise.solution)
        if exercise.name in SAMPLE:
            first = random.Random(0).sample(every, SAMPLE[exercise.name])
        skipped = {mutant.name for mutant in every if mutant not in first}
        ideas = [
            *by_hand(exercise, table.IDEAS.get(exercise.name, {})),
            *rewritten(exercise.solution),
            *wrapped(exercise.solution, exercise.answers, exercise.namespace),
        ]
        results = {
            kind: survivors(exercise, mutants)
            for kind, mutants in {"first-order": first, "ideas": ideas}.items()
        }
        passed = {name for _, names in results.values() for name in names}
        stale = tuple(name for name in accepted if name not in passed | skipped)
        for kind, (count, names) in results.items():
            right = tuple(name for name in names if name in accepted)
            missed = tuple(name for name in names if name not in accepted)
            scores.append(Score(exercise.name, kind, count, right, missed, stale))
    return scores


def share(scores: Iterable[Score], kind: str) -> float:
    """Return the share of wrong mutants that the checks refuse."""
    chosen = [score for score in scores if score.kind == kind]
    wrong = sum(score.wrong for score in chosen)
    return 1 - sum(len(score.missed) for score in chosen) / max(1, wrong)


def table(scores: Sequence[Score]) -> str:
    """Format a row for each exercise, and the mutants that are wrong and pass."""
    lines = [f"{'exercise':<24}{'first-order':>14}{'right':>7}{'ideas':>14}{'right':>7}"]
    for one, two in zip(scores[::2], scores[1::2], strict=True):
        row = [f"{one.exercise:<24}"]
        for score in (one, two):
            refused = f"{score.wrong - len(score.missed)} of {score.wrong}"
            row.append(f"{refused:>14}{len(score.right):>7}")
        lines.append("".join(row))
        lines += [f"    passes: {name}" for name in (*one.missed, *two.missed)]
        lines += [f"    is refused, though listed as right: {name}" for name in one.stale]
    for kind in ("first-order", "ideas"):
        lines.append(f"{kind}: {share(scores, kind):.1%} refused")
    return "\n".join(lines)
