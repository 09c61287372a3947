"""Run learners' answers for `cs336 grade`, each in a forked process with limits.

The forked process only observes what an answer does. The records that it writes are judged by the
process that forked it.
"""

import ast
import builtins
import contextlib
import io
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cs336_course.engine import Exercise, state
from cs336_course.grading.course_cells import CourseCell, course_cells
from cs336_course.grading.report import ERROR
from cs336_course.learner import study
from cs336_course.one_file import cell_slice, worker
from cs336_lib.system.hardware import is_out_of_memory

MEMORY = "memory limit"
OUT_OF_MEMORY = "MemoryError", "OutOfMemoryError"
SAID = 1000  # characters of a diagnosis
NO_RESULT = ERROR, "the process ended without a result"
BAD_RESULT = ERROR, "the result is not one that a check gives"

Verdict = tuple[str, str]  # the verdict, and the diagnosis or ""


def run(job: worker.Job, cell: CourseCell) -> Verdict:
    """Run an answer in the learner's folder, and return what it did, or why there is nothing."""
    here = Path(job["root"], job["below"])
    here.mkdir(parents=True, exist_ok=True)  # another answer of this learner may have removed it
    os.chdir(here)
    sys.path.append(str(here))  # at the end, so that no file replaces a module
    home = str(Path(job["root"]).parent)
    os.environ |= {"HOME": home, "TMPDIR": home}
    tempfile.tempdir = None  # a value that it has already read from TMPDIR
    limit(job["seconds"], job["memory_gb"])
    worker.seed()
    try:
        answers = answers_of(job, cell)
        with contextlib.redirect_stdout(io.StringIO()):
            state.set_back(cell.exercise.name)
        return worker.observed(cell.exercise, answers)
    except BaseException as error:  # the learner's own code may raise anything
        return failed(error)


def limit(seconds: float, gigabytes: float) -> None:
    """Limit the memory that this process may still allocate, which only Linux enforces.

    The limit of its time on a core is for answers whose grading was killed. It isn't reached before
    `processes.Patience` ends the answer.
    """
    import resource  # Windows doesn't have it, and the command says so

    statm = Path("/proc/self/statm")
    if statm.exists():
        have = int(statm.read_text().split()[0]) * resource.getpagesize()
        most = have + int(gigabytes * 1e9)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    most = int(2 * seconds) + 60
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answers_of(job: worker.Job, cell: CourseCell) -> list[Any]:
    """Run the cell of an answer after what it needs, and return what its check receives."""
    passed = {job["exercise"], *job["passed"]}
    withheld = {name for part, names in cell.parts.items() if part not in passed for name in names}
    namespace = dict(cell.namespace)
    modules = {name for name, value in namespace.items() if isinstance(value, ModuleType)}
    course = cell_slice.Course(cell.given, withheld, modules, {*namespace, *dir(builtins)})
    found = cell_slice.answer(job["sources"], job["at"], cell.call, course)
    for node in found.setup:
        with contextlib.suppress(Exception):  # in a notebook, later cells run all the same
            execute(node, namespace)
    for statement in found.own:
        execute(statement.node, namespace)
    return [eval(ast.unparse(node), namespace) for node in found.arguments]


def execute(node: ast.stmt, namespace: dict[str, Any]) -> None:
    """Execute a statement of a learner."""
    exec(compile(ast.Module([node], []), "<answer>", "exec", dont_inherit=True), namespace)


def failed(error: BaseException) -> Verdict:
    """Return the verdict on an answer whose code raises an error."""
    if isinstance(error, NotImplementedError) and not str(error):
        return study.OPEN, ""  # the stub's error
    if isinstance(error, (MemoryError, RuntimeError)) and is_out_of_memory(error):
        return MEMORY, ""
    return ERROR, f"{type(error).__name__}: {error}"


def judged(exercise: Exercise, found: Any) -> Verdict:
    """Return the verdict on what an answer's process wrote, which may be anything."""
    if found is None:
        return NO_RESULT
    try:
        kind, text = found
        if kind in (study.OPEN, MEMORY, ERROR):
            return kind, str(text)[:SAID]
        if kind != worker.OBSERVED:
            return BAD_RESULT
        diagnosis, got = worker.judged(exercise, text)
    except worker.BAD:
        return BAD_RESULT
    if any(record.get("raises", {}).get("type") in OUT_OF_MEMORY for record in got):
        return MEMORY, ""
    if diagnosis is None:
        return study.PASSED, ""
    return study.WRONG, f"{diagnosis.said} {diagnosis.figures}"[:SAID]


def opened(job: worker.Job) -> Any:
    """Return the functions of a job, as `worker.serve` needs them."""
    cell = course_cells(study.SHIPPED / f"{job['page']}.ipynb")[job["exercise"]]
    return partial(run, job, cell), partial(judged, cell.exercise)


def main() -> None:
    """Grade the answers that stdin names. The working directory is the course's folder."""
    torch.set_num_threads(1)  # other threads wouldn't exist in a forked process
    worker.serve(opened)
