"""Grade a class's notebooks: run every answer, and write the verdicts to a CSV file."""

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cs336_course.grading import container, report
from cs336_course.grading.answers import Limits, graded, process_in
from cs336_course.grading.submissions import copy_files, learners, unknown
from cs336_lib.config import UserError


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
    names = {learner: report.on_one_line(learner.name) for learner in found}
    width, details = max(map(len, names.values())), report.diagnoses_beside(out)
    with (
        ending_on_signals(),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary,
        process_in(Path(temporary)) as process,
        open(out, "x", encoding="utf-8") as verdicts,
        open(details, "x", encoding="utf-8") as diagnoses,
    ):
        report.write(diagnoses, report.DIAGNOSES)
        try:
            if image:
                container.try_out(image, Path(temporary), limits)
            else:
                process.start()
        except (OSError, RuntimeError) as error:
            raise UserError(f"cannot run answers: {report.on_one_line(str(error))}") from None
        yield f"grading {len(found)} learner{'s' if len(found) > 1 else ''}"
        for learner, name in names.items():
            os.makedirs(temporary, exist_ok=True)  # an answer may have removed it
            work = Path(tempfile.mkdtemp(dir=temporary)) / "work"
            left_out = copy_files(learner, work)
            results = []
            inside = container.graded(image, work, limits) if image else None
            for result in inside or graded(learner, work, process, limits):
                results.append(result)
                if result.said:
                    row = [name, result.page, result.exercise, result.verdict, result.said]
                    report.write(diagnoses, row)
            report.write_verdicts(verdicts, name, results)
            # Python itself fails to remove thousands of nested folders.
            with suppress(OSError):
                subprocess.run(["rm", "-rf", work.parent], stderr=subprocess.DEVNULL)
            yield report.line(name, results, width)
            if left_out:
                yield f"{name}: files not copied: {report.shortened(left_out)}"
            if others := unknown(learner):
                yield f"{name}: not notebooks of the course: {report.shortened(others)}"
    yield f"verdicts in {out}, diagnoses in {details}"


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
