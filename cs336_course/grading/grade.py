"""Grade a class's notebooks: run every answer, and write the verdicts to a CSV file."""

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from cs336_course.grading.report import ERROR, MISSING, Result, Tables, line, printable, shortened
from cs336_course.grading.runner import Limits, Runner, runner
from cs336_course.grading.submissions import copy_files, find, learners, read
from cs336_course.learner import study
from cs336_course.one_file import cell_slice
from cs336_lib.config import UserError

COURSE = study.SHIPPED


def grade(folder: Path, out: Path, limits: Limits, image: str = "") -> Iterator[str]:
    """Grade a class, write two CSV files, and yield a line per learner as it is graded.

    The files get their rows as answers are judged, so an interrupted run keeps what it has graded.

    Args:
        folder: Folder with a folder for each learner.
        out: File for the verdicts. The diagnoses are written next to it.
        limits: Limits of each answer.
        image: The course's image, to run the answers in containers, or "".

    Raises:
        UserError: If the folder has no learners, `out` isn't the name of a new CSV file, or answers
            can't be run.
    """
    if not hasattr(os, "fork"):
        raise UserError("cs336 grade needs Linux, macOS or WSL")
    found = learners(folder)
    width = max(len(printable(path.name)) for path in found)
    with (
        ending_on_signals(),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary,
        runner(Path(temporary), limits, image) as shared,
        Tables(out) as tables,
    ):
        shared.start()
        yield f"grading {len(found)} learner{'s' if len(found) > 1 else ''}"
        for learner in found:
            home = Path(tempfile.mkdtemp(dir=temporary))
            left_out = copy_files(learner, home / "work")
            results = []
            with runner(home, limits, image) if image else nullcontext(shared) as answers:
                for original in study.originals(COURSE):
                    for result in grade_notebook(original, learner, answers, home / "work"):
                        tables.add_diagnosis(learner.name, result)
                        results.append(result)
            tables.add_row(learner.name, results)
            name = printable(learner.name)
            yield line(name, results, width)
            if left_out:
                yield f"{name}: files not copied: {printable(shortened(left_out))}"
    yield f"verdicts in {out}, diagnoses in {tables.details}"


def grade_notebook(course: Path, folder: Path, answers: Runner, work: Path) -> Iterator[Result]:
    """Grade a learner's copy of one notebook.

    Args:
        course: The course's notebook.
        folder: Folder of the learner.
        answers: Runs the answers.
        work: Copy of the learner's files, which the answers read and write.
    """
    page = course.relative_to(COURSE).with_suffix("").as_posix()
    stubs = {name: source for source, name in read(course) if name}
    try:
        path = find(folder, course)
        if path is None:
            yield from (Result(page, name, MISSING) for name in stubs)
            return
        cells = read(path)
    except (OSError, UserError, RecursionError, MemoryError) as error:
        yield from (Result(page, name, ERROR, str(error)) for name in stubs)
        return
    passed: list[str] = []
    for name, stub in stubs.items():
        at = cell_slice.locate(cells, name, stub)
        if at is None or cells[at][0].split() == stub.split():
            yield Result(page, name, study.OPEN)
            continue
        job = {"page": page, "exercise": name, "at": at, "passed": passed}
        job |= {"sources": [source for source, _ in cells]}
        verdict, said = answers.verdict(job, work, path.parent.relative_to(folder))
        if verdict == study.PASSED:
            passed.append(name)
        yield Result(page, name, verdict, said)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Clean up within this block when the process is asked to end, as after Ctrl-C."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
