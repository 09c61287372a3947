"""What an exercise declares: its cases, what is observed, and the wrong ideas about it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from types import EllipsisType
from typing import Any

from cs336_course.engine.cases import Case
from cs336_course.engine.observe import Observer, function, observed
from cs336_course.engine.records import Record
from cs336_course.engine.relations import axes_in
from cs336_course.learner.study import shipped, solution

Edit = tuple[str, str]


@dataclass(frozen=True)
class Edits:
    """Several replacements in the text of the solution, which make one idea."""

    pairs: tuple[Edit, ...]


def edits(*pairs: Edit) -> Edits:
    """Return an idea that replaces several texts in the solution."""
    return Edits(pairs)


Idea = str | Edit | Edits | Any
"""An answer: its code, an edit of the solution's text (old, new), several edits, or the answer
itself."""


@dataclass(eq=False)
class Task:
    """A task for a learner.

    Attributes:
        notebook: Name of the notebook that has the task and its printed solution.
        name: Name of the exercise, as in the metadata of its cell.
        cases: Yields the inputs, the most readable first. Its module has the names that the
            solution and the ideas use.
        wrong: Maps a sentence for the learner to the wrong idea that it explains, or to a list of
            ideas. It begins in lower case, unless with a name.
        errors: Maps a sentence for the learner to a part of an error's message, and to an idea that
            raises this error. It explains the error whatever else is wrong.
        observe: Runs an answer on a case, and returns what is compared.
        answers: Names that the cell defines for the check. One name stands for the answer itself,
            several for a tuple.
        says: Maps the name of a fact to the sentence for an unknown difference in it.
        axes: Names of the result's axes, as in "batch head query key".
        smaller: A smaller question that leads to the answer, for the fourth wrong attempt.
        library: The part of GPT-2 that replaces a wrong answer.
        is_part: Whether the printed solution replaces a wrong answer.
        given: Further names for the solution and the ideas.
        may_seed: Whether the task is to seed the global generators.
        tolerance: Factor on the tolerance of floating-point numbers.
        is_quiz: Whether each case is a question of its own, so that an idea explains the first
            wrong case whatever the others are. `what` of a case names the question.
    """

    notebook: str
    name: str
    cases: Callable[[], Iterable[Case]]
    wrong: Mapping[str, Idea | list[Idea]]
    errors: Mapping[str, tuple[str, Idea]] = field(default_factory=dict)
    observe: Observer = field(default_factory=function)
    answers: tuple[str, ...] = ()
    says: Mapping[str, str] = field(default_factory=dict)
    axes: str = ""
    smaller: str = ""
    library: Any = None
    is_part: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)
    may_seed: bool = False
    tolerance: float = 1.0
    is_quiz: bool = False

    @cached_property
    def solution(self) -> str:
        """Code of the solution that the notebook prints."""
        return solution(shipped(self.notebook), self.name)

    @cached_property
    def expected(self) -> list[Record]:
        """Records of the solution."""
        return list(self.records(self.build(self.solution)))

    def records(self, answer: Any) -> Iterator[Record]:
        """Yield what an answer does in each case.

        Raises:
            NotImplementedError: If the answer is an untouched stub.
        """
        if isinstance(answer, EllipsisType):
            raise NotImplementedError
        record: Record = {}
        for case in self.cases():
            if record.get("raises", {}).get("type") != "EndlessError":  # other cases last as long
                record = observed(self.observe, answer, case, self.may_seed)
            yield record

    def idea_records(self, number: int) -> Iterator[Record]:
        """Yield the records of a wrong idea by its number. They are observed once, when needed."""
        seen, rest = self.observed.setdefault(
            number, ([], self.records(self.build(list(self.ideas())[number][1])))
        )
        yield from seen[:]
        for record in rest:
            seen.append(record)
            yield record

    def idea_record(self, number: int, place: int) -> Record:
        """Return the record of a wrong idea in a single case. It is observed once."""
        if (number, place) not in self.observed_apart:
            idea = self.build(list(self.ideas())[number][1])
            record = observed(self.observe, idea, self.case(place), self.may_seed)
            self.observed_apart[number, place] = record
        return self.observed_apart[number, place]

    @cached_property
    def observed_apart(self) -> dict[tuple[int, int], Record]:
        """What has been observed of a wrong idea in a single case."""
        return {}

    @cached_property
    def observed(self) -> dict[int, tuple[list[Record], Iterator[Record]]]:
        """What has been observed of each wrong idea, and the rest."""
        return {}

    def case(self, place: int) -> Case:
        """Return a case by its number."""
        return next(islice(self.cases(), place, None))

    @cached_property
    def result_axes(self) -> str:
        """Names of the result's axes, from the types of the printed solution."""
        return self.axes or " ".join(axes_in(self.solution)[1])

    def ideas(self) -> Iterator[tuple[str, Idea]]:
        """Yield each wrong idea with its sentence."""
        for sentence, found in self.wrong.items():
            for idea in found if isinstance(found, list) else [found]:
                yield sentence, idea

    def build(self, idea: Idea) -> Any:
        """Return the answer that an idea makes."""
        match idea:
            case str():
                return self.run(idea)
            case Edits():
                return self.run(self.edited(idea.pairs))
            case (str(), str()):
                return self.run(self.edited([idea]))
        return idea

    def edited(self, pairs: Iterable[Edit]) -> str:
        """Return the solution's code with replacements.

        Raises:
            ValueError: If a text isn't in the solution.
        """
        code = self.solution
        for old, new in pairs:
            if old not in code:
                raise ValueError(f"{self.name}: {old!r} isn't in the solution")
            code = code.replace(old, new)
        return code

    def run(self, code: str, **more: Any) -> Any:
        """Run code that defines an answer, and return the answer. The code may also use `more`."""
        module = self.cases.__globals__  # type: ignore[attr-defined]
        names = {**module, **self.given, **more, "__name__": "answer"}
        exec(compile(code, f"<{self.name}>", "exec", dont_inherit=True), names)
        found = [names[name] for name in self.answers or (self.name,)]
        return found[0] if len(found) == 1 else tuple(found)
