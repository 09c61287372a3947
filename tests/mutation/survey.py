"""Judge mutants of the printed solutions, and count those that are refused."""

import contextlib
import importlib
import io
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cs336_course import pages
from cs336_course.engine import Exercise
from cs336_course.engine.judge import diagnose

from .equivalent import RIGHT
from .mutants import WRAPS, First, first_order, rewritten, wrap_answer


@dataclass(frozen=True)
class Score:
    """Numbers of one exercise for one kind of mutants.

    Attributes:
        exercise: Name of the exercise.
        kind: "first-order" or "ideas".
        wrong: Number of mutants that should be refused.
        missed: Names of the mutants that pass and are wrong.
        stale: Names of mutants that are listed as right and don't pass.
    """

    exercise: str
    kind: str
    wrong: int
    missed: tuple[str, ...]
    stale: tuple[str, ...]


def passes(exercise: Exercise, answer: Any) -> bool:
    """Return whether an answer is judged to be right."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return diagnose(exercise, list(exercise.records(answer)), explain=False) is None
    except Exception:
        return False


def built(exercise: Exercise, code: str, **names: Any) -> Any:
    """Return the answer that a mutant makes, or None if it doesn't run."""
    try:
        return exercise.run(code, **names)
    except Exception:
        return None


def first_order_answers(exercise: Exercise) -> Iterator[tuple[str, Any]]:
    """Yield the names and answers of mutants that differ from the solution in one place."""
    for mutant in first_order(exercise.solution):
        yield mutant.name, built(exercise, mutant.code)


def ideas(exercise: Exercise) -> Iterator[tuple[str, Any]]:
    """Yield the names and answers of misunderstandings that can be made of any solution."""
    for mutant in rewritten(exercise.solution):
        yield mutant.name, built(exercise, mutant.code, _first=First())
    solution = exercise.build(exercise.solution)
    if callable(solution):
        for name, wrap in WRAPS.items():
            yield name, (wrap_answer(solution, made := wrap()), made)


def survey(exercise: Exercise) -> Iterator[Score]:
    """Judge every mutant of a solution."""
    right = RIGHT.get(exercise.name, {})
    passed: set[str] = set()
    scores = []
    for kind, answers in {"first-order": first_order_answers, "ideas": ideas}.items():
        wrong, missed = 0, []
        for name, answer in answers(exercise):
            answer, wrap = answer if kind == "ideas" and name in WRAPS else (answer, None)
            is_passed = passes(exercise, answer)
            if not getattr(wrap, "applied", True):
                continue  # an idea about tensors that meets no tensor isn't a mutant
            passed |= {name} if is_passed else set()
            wrong += name not in right
            missed += [name] if is_passed and name not in right else []
        scores.append((kind, wrong, tuple(missed)))
    stale = tuple(name for name in right if name not in passed)
    for kind, wrong, missed in scores:
        yield Score(exercise.name, kind, wrong, missed, stale if kind == "ideas" else ())


def exercises(*rooms: str) -> list[Exercise]:
    """Return the exercises of some pages, such as "einops", or of all."""
    found = []
    for room in rooms or [one.name for one in pkgutil.iter_modules(pages.__path__)]:
        with contextlib.suppress(ModuleNotFoundError):  # a page without exercises
            module = importlib.import_module(f"cs336_course.pages.{room}.exercises")
            found += [one for one in vars(module).values() if isinstance(one, Exercise)]
    return found


def share(scores: Iterable[Score], kind: str) -> float:
    """Return the share of wrong mutants that are refused."""
    chosen = [score for score in scores if score.kind == kind]
    return 1 - sum(len(s.missed) for s in chosen) / max(1, sum(s.wrong for s in chosen))


def table(scores: list[Score]) -> str:
    """Format a line for each exercise, and the mutants that are wrong and pass."""
    lines = []
    for score in scores:
        refused = score.wrong - len(score.missed)
        lines.append(f"{score.exercise:<24}{score.kind:<12}{refused:>5} of {score.wrong:>4}")
        lines += [f"    passes: {name}" for name in score.missed]
        lines += [f"    is refused, though listed as right: {name}" for name in score.stale]
    for kind in ("first-order", "ideas"):
        lines.append(f"{kind}: {share(scores, kind):.1%} refused")
    return "\n".join(lines)
