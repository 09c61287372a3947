"""Format the verdicts on a class: a line per learner, and the rows of two CSV files."""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cs336_course.course import Page
from cs336_course.learner import study
from cs336_lib.config import UserError
from cs336_lib.io import printable

MISSING = "missing"
NAMES = 5  # of files that are left out
DIAGNOSES = ("learner", "notebook", "exercise", "verdict", "diagnosis")


@dataclass(frozen=True)
class Result:
    """The verdict on an exercise of a learner.

    Attributes:
        page: Name of the notebook, such as "03_einops" or "side_trips/low_bits".
        exercise: Name of the check.
        verdict: The verdict.
        said: The check's diagnosis, or what else went wrong.
    """

    page: str
    exercise: str
    verdict: str
    said: str = ""

    @property
    def column(self) -> str:
        """Title of the exercise's column, such as "03 head_scores"."""
        return f"{Page(self.page, '').key} {self.exercise}"


def diagnoses_beside(out: Path) -> Path:
    """Return the name of the file for the diagnoses beside that for the verdicts.

    Raises:
        UserError: If `out` isn't the name of a new CSV file.
    """
    if out.suffix != ".csv":
        raise UserError(f"--out is {out}; a name that ends with .csv expected")
    details = out.with_name(f"{out.stem}_diagnoses.csv")
    for path in (out, details):
        if path.exists():
            raise UserError(f"{path} exists; move it, or choose another name with --out")
    return details


def write(file: IO[str], row: Sequence[str]) -> None:
    """Write a row that is safe in a spreadsheet, where "=" begins a formula."""
    cells = [on_one_line(cell) for cell in row]
    safe = [f"'{cell}" if cell[:1] in "=+-@" and cell else cell for cell in cells]
    csv.writer(file, lineterminator="\n").writerow(safe)
    file.flush()


def write_verdicts(file: IO[str], name: str, results: Sequence[Result]) -> None:
    """Write the verdicts on a learner's answers, below the titles of the columns."""
    if file.tell() == 0:
        write(file, ["learner", "passed", *(result.column for result in results)])
    verdicts = [result.verdict for result in results]
    write(file, [name, str(verdicts.count(study.PASSED)), *verdicts])


def line(name: str, results: Sequence[Result], width: int) -> str:
    """Format a learner's results in one line."""
    found = Counter(result.verdict for result in results)
    text = f"{name:<{width}}  {found.pop(study.PASSED, 0)} of {len(results)} passed"
    return ", ".join([text, *(f"{number} {verdict}" for verdict, number in found.items())])


def on_one_line(text: str) -> str:
    """Return text on one line, with escaped control characters, which could change a terminal."""
    return printable(" ".join(text.split()))


def shortened(names: Sequence[str]) -> str:
    """Format the first names of a list, and how many more it has."""
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return on_one_line(", ".join(names[:NAMES]) + more)
