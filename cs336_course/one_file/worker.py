"""Run answers for `processes.Process`: those of a learner's notebook, and parts of a file.

Each runs in a fork, where the system has them, because importing PyTorch takes longer than most
jobs. The fork only observes what an answer does, and the process that forked it judges the records.
Only Linux forks safely: elsewhere, a fork may hang in the libraries of the system, so the process
ends after one job.
"""

import ast
import asyncio
import builtins
import contextlib
import functools
import importlib
import io
import json
import os
import random
import re
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from IPython.core.compilerop import CachingCompiler

from cs336_course.course import PAGES
from cs336_course.engine import Exercise, records, state
from cs336_course.engine.judge import diagnose
from cs336_course.learner import study
from cs336_course.one_file import cell_slice
from cs336_course.one_file.processes import ERROR, MEMORY, NO_RESULT, NO_VERDICT, OPEN, Verdict
from cs336_lib.system.hardware import is_out_of_memory

OBSERVED = "observed"  # what an answer did follows, for `judged`
WRITTEN = 50 * 2**20  # bytes that a job may write
SAID = 1000  # characters of a diagnosis
BAD = ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError
BAD_RESULT = ERROR, NO_VERDICT, ""
OUT_OF_MEMORY = "MemoryError", "OutOfMemoryError"

Job = Mapping[str, Any]


@dataclass(frozen=True)
class CourseCell:
    """The cell of an exercise in the course's notebook.

    Attributes:
        exercise: The exercise.
        call: Call of the check in the course's notebook.
        namespace: Names that the course's notebook defines before the exercise.
        given: Statements that define them, in the form of `ast.dump`.
        parts: Names that the course defines if the learner's answer is wrong, by exercise.
    """

    exercise: Exercise
    call: ast.Call
    namespace: Mapping[str, Any]
    given: frozenset[str]
    parts: Mapping[str, set[str]]


@functools.cache
def course_cells(page: str) -> dict[str, CourseCell]:
    """Read the exercises of a notebook by name, and run the cells that they build on.

    Untouched parts become the library's. `assemble.module` reads the working directory.
    """
    # Magics and shell commands become calls of `get_ipython()`, which do nothing.
    namespace: dict[str, Any] = {"__name__": "__main__", "get_ipython": mock.MagicMock}
    namespace["display"] = print
    given: set[str] = set()
    parts: dict[str, set[str]] = {}
    found: dict[str, CourseCell] = {}
    cells = [cell for cell in study.shipped(page) if cell["cell_type"] == "code"]
    last = max((n for n, cell in enumerate(cells) if "exercise" in study.marks_of(cell)), default=0)
    for number, cell in enumerate(cells[: last + 1]):
        source, marks = cell["source"], study.marks_of(cell)
        nodes = ast.parse(source).body
        if name := marks.get("exercise"):
            call = cell_slice.check_call(nodes[-1])
            assert call is not None, f"{page}: {name} doesn't end with its check"
            exercise = getattr(namespace["checks"], name)
            if "part" in marks:
                parts[name] = cell_slice.names_in(call.args)
            found[name] = CourseCell(exercise, call, dict(namespace), frozenset(given), dict(parts))
        if number == 0 or "part" in marks or source.startswith("mine = assemble.module("):
            with contextlib.redirect_stdout(io.StringIO()):
                exec(source, namespace)
            given |= {ast.dump(node) for node in nodes if "exercise" not in marks}
    return found


def course_cell(job: Job) -> CourseCell:
    """Return the course's cell of an answer in a notebook."""
    return course_cells(job["page"])[job["exercise"]]


def exercise_of(job: Job) -> Any:
    """Return the exercise of a job, or `None` if the code only has to run."""
    if "page" in job:
        return course_cell(job).exercise
    return job["check"] and getattr(importlib.import_module(job["checks"]), job["check"])


def run(job: Job, exercise: Any) -> tuple[str, str]:
    """Run an answer, and return what it did, or why there is nothing."""
    for start in (torch.manual_seed, random.seed, np.random.seed):
        start(0)  # any answer starts from the same random numbers
    try:
        answers = in_notebook(job) if "page" in job else in_file(job)
        if not exercise:
            return study.PASSED, ""
        with contextlib.redirect_stdout(io.StringIO()):
            state.set_back(exercise.name)
        return OBSERVED, json.dumps(records.encode(list(exercise.records(*answers))))
    except BaseException as error:  # the learner's own code may raise anything
        if isinstance(error, NotImplementedError) and not str(error):
            return study.OPEN, ""  # the stub's error
        if isinstance(error, (MemoryError, RuntimeError)) and is_out_of_memory(error):
            return MEMORY, ""
        return ERROR, f"{type(error).__name__}: {error}"


def in_file(job: Job) -> list[Any]:
    """Run a part of a file after the code above it, and return what its check receives."""
    module = ModuleType("train_gpt2")
    cell_slice.run_file(f"{job['before']}\n\n\n{job['code']}\n", module)
    return [eval(argument, module.__dict__) for argument in job["arguments"]]


def in_notebook(job: Job) -> list[Any]:
    """Run the cell of an answer after what it needs, and return what its check receives."""
    enter(Path(job["root"]), job["below"])
    limit(job["seconds"], job["memory_gb"])
    cell = course_cell(job)
    passed = {job["exercise"], *job["passed"]}
    withheld = {name for part, names in cell.parts.items() if part not in passed for name in names}
    namespace = dict(cell.namespace)
    course = cell_slice.Course(cell.given, withheld, {*namespace, *dir(builtins)})
    for source in job["sources"]:  # helpers that the notebook writes and imports
        if written := re.match(r"\s*%%(?:write)?file +(\S+)\n", source):
            with contextlib.suppress(OSError):
                Path(written[1]).write_text(source[written.end() :], encoding="utf-8")
    found = cell_slice.answer(job["sources"], job["at"], cell.call, course, job["attempt"])
    compiler = CachingCompiler()
    for statement in found.setup:
        with contextlib.suppress(Exception):  # in a notebook, later cells run all the same
            execute(statement, namespace, compiler)
    for statement in found.own:
        execute(statement, namespace, compiler)
    return [eval(ast.unparse(node), namespace) for node in found.arguments]


def execute(
    statement: cell_slice.Statement, namespace: dict[str, Any], compiler: CachingCompiler
) -> None:
    """Execute a statement of a learner, with IPython's compiler, which knows functions' source."""
    with compiler.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
        module = ast.Module([statement.node], [])
        waiting = eval(compiler(module, compiler.cache(statement.cell), "exec"), namespace)
    if waiting is not None:
        asyncio.run(waiting)


def enter(root: Path, below: str) -> None:
    """Work in the folder of a notebook in the copy of a learner's files."""
    here = root / below
    here.mkdir(parents=True, exist_ok=True)  # another answer of this learner may have removed it
    os.chdir(here)
    sys.path.append(str(here))  # at the end, so that no file replaces a module
    os.environ |= {"HOME": str(root.parent), "TMPDIR": str(root.parent)}
    tempfile.tempdir = None  # a value that it has already read from TMPDIR


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


def judged(exercise: Any, found: Any) -> Verdict:
    """Return the verdict on what an answer's process wrote, which may be anything."""
    if found is None:
        return ERROR, NO_RESULT, ""
    try:
        kind, text = found
        if kind in (study.OPEN, MEMORY, ERROR) or (kind == study.PASSED and not exercise):
            return kind, str(text)[:SAID], ""
        if kind != OBSERVED:
            return BAD_RESULT
        got = records.decode(json.loads(text))
        if not isinstance(got, list) or not all(isinstance(one, dict) for one in got):
            return BAD_RESULT
        diagnosis = diagnose(exercise, got)
    except BAD:
        return BAD_RESULT
    if any(record.get("raises", {}).get("type") in OUT_OF_MEMORY for record in got):
        return MEMORY, "", ""
    if diagnosis is None:
        return study.PASSED, "", ""
    return study.WRONG, diagnosis.said[:SAID], diagnosis.figures[:SAID]


def forked(job: Job, exercise: Any) -> Any:
    """Return what `run` does from a fork, so that this process stays as it is, or `None`."""
    with tempfile.TemporaryFile() as written:  # a pipe would have to be read while it is written
        process = os.fork()
        if process == 0:
            try:
                torch.set_num_threads(1)  # the other threads don't exist here
                os.setsid()  # so that what the answer starts can be ended with it
                os.dup2(written.fileno(), 3)
                os.closerange(4, 1024)
                result = json.dumps(run(job, exercise))
                with os.fdopen(3, "w", encoding="utf-8") as file:
                    file.write(result)
            finally:
                os._exit(0)
        os.waitpid(process, 0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)
        written.seek(0)
        text = written.read(WRITTEN + 1)
    if not text or len(text) > WRITTEN:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return "nothing that a check gives"


def serve(can_fork: bool = sys.platform == "linux") -> None:
    """Do the jobs on stdin, one per line, and write a verdict per line to stdout.

    The first line only says that the process is ready. Before each verdict comes the line `OPEN`.
    The verdict stands beside whether the process goes on, which it does only if it can fork.
    """
    jobs, results = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for page in PAGES:
        study.shipped(page.name)  # before an answer can overwrite the solutions
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)  # an answer neither reads the jobs nor prints among the results
    os.dup2(nowhere, 1)
    print("ready", file=results, flush=True)
    for line in jobs:
        job = json.loads(line)
        exercise = exercise_of(job)
        print(OPEN, end="", file=results, flush=True)
        found = forked(job, exercise) if can_fork else run(job, exercise)
        print(json.dumps([*judged(exercise, found), can_fork]), file=results, flush=True)
        if not can_fork:
            break
