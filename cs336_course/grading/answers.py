"""Find the answers in a learner's notebooks, and run them."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs336_course.grading.report import MISSING, Result
from cs336_course.grading.submissions import notebooks
from cs336_course.learner import study
from cs336_course.one_file import cell_slice
from cs336_course.one_file.processes import ERROR, Process, Verdict
from cs336_lib.config import UserError

KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CS336_CPU_BF16")  # variables of ours


@dataclass(frozen=True)
class Limits:
    """Limits of an answer.

    Attributes:
        seconds: Time in seconds, of a core or of waiting, including the check.
        memory_gb: Memory in GB, in addition to what PyTorch takes.
    """

    seconds: float = 120
    memory_gb: float = 8

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < 1e6:
                raise UserError(f"{name} is {value}; a number above 0 expected")


def process_in(home: Path) -> Process:
    """Return a process that runs answers, with few variables, because others may hold secrets."""
    variables = {name: os.environ[name] for name in KEPT if name in os.environ}
    variables |= {"HOME": str(home), "TMPDIR": str(home), "MPLBACKEND": "agg"}
    # Every answer runs on the CPU, and threads wouldn't exist in a forked process.
    variables |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return Process(variables, study.SHIPPED)


def graded(folder: Path, work: Path, process: Process, limits: Limits) -> Iterator[Result]:
    """Yield the verdict on each exercise of the course.

    Args:
        folder: Folder of the learner.
        work: Copy of the learner's files, which the answers read and write.
        process: Runs the answers.
        limits: Limits of each answer.
    """
    for course in study.originals(study.SHIPPED):
        page = study.name_of(course, study.SHIPPED)
        marked = [(study.marks_of(c).get("exercise"), c["source"]) for c in study.shipped(page)]
        stubs = {name: source for name, source in marked if name}
        try:
            path = cell_slice.newest_copy(notebooks(folder), course)
            cells = cell_slice.read_code(path) if path else []
        except (OSError, UserError, RecursionError, MemoryError) as error:
            yield from (Result(page, name, ERROR, str(error)) for name in stubs)
            continue
        passed: list[str] = []
        for name, stub in stubs.items():
            at = cell_slice.locate(cells, name, stub)
            if path is None:
                yield Result(page, name, MISSING)
                continue
            if at is None or cells[at][0].split() == stub.split():
                yield Result(page, name, study.OPEN)
                continue
            job = {"page": page, "exercise": name, "at": at, "passed": passed, **vars(limits)}
            job |= {"root": str(work), "below": str(path.parent.relative_to(folder))}
            job["sources"] = [one for one, _ in cells]
            work.mkdir(parents=True, exist_ok=True)  # another answer may have removed it
            found = verdict_on(job, process, cell_slice.attempts(cells[at][0], name))
            if found[0] == study.PASSED:
                passed.append(name)
            yield Result(page, name, found[0], " ".join(found[1:]).strip())


def verdict_on(job: Mapping[str, Any], process: Process, attempts: range) -> Verdict:
    """Return the verdict of the first attempt that passes, or else of the first one."""
    found = []
    for attempt in attempts:
        try:
            found.append(process.do({**job, "attempt": attempt}, job["seconds"]))
        except (OSError, RuntimeError) as error:
            return ERROR, str(error), ""
        if found[-1][0] not in (study.WRONG, ERROR):
            break
    return found[-1] if found[-1][0] == study.PASSED else found[0]
