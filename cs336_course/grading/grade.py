"""Grade a class's notebooks: run every answer, and write the verdicts to a CSV file."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cs336_course.grading.report import (
    ERROR,
    MISSING,
    Result,
    diagnoses,
    line,
    printable,
    shortened,
    table,
)
from cs336_course.grading.runner import Limits, runner
from cs336_course.grading.submissions import find, learners, read
from cs336_course.learner import study
from cs336_course.one_file import cell_slice
from cs336_lib.config import UserError
from cs336_lib.io import temporary_path, write_atomic, writing

COURSE = study.SHIPPED

UNPROTECTED = (
    "This system can't cut answers off from the network or from other processes; "
    "see docs/presenting.md."
)


def check_out(out: Path) -> Path:
    """Check that the CSV files can be written, and return the path of the diagnoses.

    Raises:
        UserError: If `out` isn't the name of a new CSV file.
        OSError: If it can't be written.
    """
    if out.suffix != ".csv":
        raise UserError(f"--out is {out}; a name that ends with .csv expected")
    details = out.with_name(f"{out.stem}_diagnoses.csv")
    for path in (out, details):
        if path.exists():
            raise UserError(f"{path} exists; move it, or choose another name with --out")
        with writing(path):
            temporary_path(path).touch()
            temporary_path(path).unlink()
    return details


def grade(folder: Path, out: Path, limits: Limits, image: str = "") -> Iterator[str]:
    """Grade a class, write two CSV files, and yield a line per learner as it is graded.

    The files are replaced after each learner, so an interrupted run keeps what it has graded.

    Args:
        folder: Folder with a folder for each learner.
        out: File for the verdicts. The diagnoses are written next to it.
        limits: Limits of each answer.
        image: The course's image, to run the answers in containers, or "".

    Raises:
        UserError: If the folder has no learners, or `out` isn't the name of a new CSV file.
    """
    if not hasattr(os, "fork"):
        raise UserError("cs336 grade needs Linux, macOS or WSL")
    details = check_out(out)
    found = learners(folder)
    originals = study.originals(COURSE)
    width = max(len(printable(path.name)) for path in found)
    grades: dict[str, list[Result]] = {}
    with runner(COURSE, limits, image) as process:
        yield f"grading {len(found)} learner{'s' if len(found) > 1 else ''}"
        if not image and not (process.is_offline and process.has_own_processes):
            yield UNPROTECTED
        for learner in found:
            with process.learner(learner):
                grades[learner.name] = [
                    result
                    for original in originals
                    for result in grade_notebook(original, learner, limits, process.run)
                ]
            write_atomic(details, diagnoses(grades))
            write_atomic(out, table(grades))
            name = printable(learner.name)
            yield line(name, grades[learner.name], width)
            if process.left_out:
                yield f"{name}: files not copied: {printable(shortened(process.left_out))}"
    yield f"verdicts in {out}, diagnoses in {details}"


def grade_notebook(
    course: Path, folder: Path, limits: Limits, run: Callable[[Mapping[str, Any]], tuple[str, str]]
) -> Iterator[Result]:
    """Grade a learner's copy of one notebook.

    Args:
        course: The course's notebook.
        folder: Folder of the learner.
        limits: Limits of each answer.
        run: Runs a job of `answer_process`, and returns the verdict and the diagnosis.
    """
    stem = course.stem
    stubs = {name: source for source, name in read(course) if name}
    try:
        path = find(folder, course)
        if path is None:
            yield from (Result(stem, name, MISSING) for name in stubs)
            return
        cells = read(path)
    except (OSError, UserError, RecursionError, MemoryError) as error:
        yield from (Result(stem, name, ERROR, str(error)) for name in stubs)
        return
    passed: list[str] = []
    for name, stub in stubs.items():
        at = cell_slice.locate(cells, name, stub)
        if at is None or cells[at][0].split() == stub.split():
            yield Result(stem, name, study.OPEN)
            continue
        job = {"notebook": stem, "exercise": name, "at": at, "passed": passed}
        job |= {"sources": [source for source, _ in cells], "folder": str(path.parent)}
        job |= {"seconds": limits.seconds, "memory_gb": limits.memory_gb}
        verdict, said = run(job)
        if verdict == study.PASSED:
            passed.append(name)
        yield Result(stem, name, verdict, said)
