"""Format the verdicts on a class: a line per learner, and two CSV files."""

import csv
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cs336_course.course import Page
from cs336_course.learner import study
from cs336_lib.config import UserError
from cs336_lib.io import writing

MISSING = "missing"
NAMES = 5  # of files that are left out


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


class Tables:
    """The two CSV files, within a `with` block. They get their rows one by one.

    Args:
        out: File for the verdicts, with a row per learner and a column per exercise. The file next
            to it has a row per answer with a diagnosis.

    Raises:
        UserError: If `out` isn't the name of a new CSV file.
        OSError: If it can't be written.
    """

    def __init__(self, out: Path):
        if out.suffix != ".csv":
            raise UserError(f"--out is {out}; a name that ends with .csv expected")
        self.details = out.with_name(f"{out.stem}_diagnoses.csv")
        for path in (out, self.details):
            if path.exists():
                raise UserError(f"{path} exists; move it, or choose another name with --out")
        self.files = ExitStack()
        with writing(out):
            self.table = self.files.enter_context(new(out))
            self.diagnoses = self.files.enter_context(new(self.details))
        write(self.diagnoses, ["learner", "notebook", "exercise", "verdict", "diagnosis"])

    def __enter__(self) -> "Tables":
        return self

    def __exit__(self, *error: object) -> None:
        self.files.close()

    def add_diagnosis(self, name: str, result: Result) -> None:
        """Write the diagnosis of an answer of a learner, if it has one."""
        if result.said:
            row = [name, result.page, result.exercise, result.verdict, result.said]
            write(self.diagnoses, row)

    def add_row(self, name: str, results: Sequence[Result]) -> None:
        """Write the verdicts on a learner's answers."""
        if self.table.tell() == 0:
            write(self.table, ["learner", "passed", *(result.column for result in results)])
        passed = str(count(results)[study.PASSED])
        write(self.table, [name, passed, *(result.verdict for result in results)])


def new(path: Path) -> IO[str]:
    """Create a file that doesn't exist."""
    return open(path, "x", encoding="utf-8")


def write(file: IO[str], row: Sequence[str]) -> None:
    """Write a row that is safe in a spreadsheet, where "=" begins a formula."""
    cells = [printable(cell) for cell in row]
    safe = [f"'{cell}" if cell[:1] in "=+-@" and cell else cell for cell in cells]
    csv.writer(file, lineterminator="\n").writerow(safe)
    file.flush()


def count(results: Sequence[Result]) -> Counter[str]:
    """Count the exercises of a learner by verdict."""
    return Counter(result.verdict for result in results)


def line(name: str, results: Sequence[Result], width: int) -> str:
    """Format a learner's results in one line."""
    found = count(results)
    text = f"{name:<{width}}  {found.pop(study.PASSED, 0)} of {len(results)} passed"
    return ", ".join([text, *(f"{number} {verdict}" for verdict, number in found.items())])


def printable(text: str) -> str:
    """Return text on one line, with escaped control characters, which could change a terminal."""
    shown = (c if c.isprintable() or c.isspace() else repr(c)[1:-1] for c in text)
    return " ".join("".join(shown).encode(errors="backslashreplace").decode().split())


def shortened(names: Sequence[str]) -> str:
    """Format the first names of a list, and how many more it has."""
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more
