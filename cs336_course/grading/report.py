"""Format the verdicts on a class: a line per learner, and two CSV files."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cs336_course.learner import study

MISSING, ERROR = "missing", "error"

NAMES = 5  # of files that are left out


@dataclass(frozen=True)
class Result:
    """The verdict on an exercise of a learner.

    Attributes:
        notebook: Name of the notebook, such as "03_einops".
        exercise: Name of the check.
        verdict: The verdict.
        said: The check's diagnosis, or what else went wrong.
    """

    notebook: str
    exercise: str
    verdict: str
    said: str = ""

    @property
    def column(self) -> str:
        """Title of the exercise's column, such as "03 head_scores"."""
        return f"{self.notebook.partition('_')[0]} {self.exercise}"


def count(results: Sequence[Result]) -> int:
    """Return the number of exercises that a learner has passed."""
    return sum(result.verdict == study.PASSED for result in results)


def line(name: str, results: Sequence[Result], width: int) -> str:
    """Format a learner's results in one line."""
    tally: dict[str, int] = {}
    for result in results:
        tally[result.verdict] = tally.get(result.verdict, 0) + 1
    others = [f"{number} {verdict}" for verdict, number in tally.items() if verdict != study.PASSED]
    text = f"{name:<{width}}  {count(results)} of {len(results)} passed"
    return ", ".join([text, *others])


def table(grades: Mapping[str, Sequence[Result]]) -> str:
    """Format the verdicts as CSV, with a row per learner and a column per exercise."""
    first = next(iter(grades.values()))
    rows = [["learner", "passed", *(result.column for result in first)]]
    for name, results in grades.items():
        rows.append([name, str(count(results)), *(result.verdict for result in results)])
    return to_csv(rows)


def diagnoses(grades: Mapping[str, Sequence[Result]]) -> str:
    """Format the diagnoses as CSV, with a row per answer that has one."""
    rows = [["learner", "notebook", "exercise", "verdict", "diagnosis"]]
    for name, results in grades.items():
        said = [result for result in results if result.said]
        rows += [[name, r.notebook, r.exercise, r.verdict, r.said] for r in said]
    return to_csv(rows)


def to_csv(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as CSV that is safe in a spreadsheet, where "=" begins a formula."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for row in rows:
        cells = [printable(cell) for cell in row]
        writer.writerow([f"'{cell}" if cell[:1] in "=+-@" and cell else cell for cell in cells])
    return file.getvalue()


def printable(text: str) -> str:
    """Return text on one line, with escaped control characters, which could change a terminal."""
    shown = (c if c.isprintable() or c.isspace() else repr(c)[1:-1] for c in text)
    return " ".join("".join(shown).encode(errors="backslashreplace").decode().split())


def shortened(names: Sequence[str]) -> str:
    """Format the first names of a list, and how many more it has."""
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more
