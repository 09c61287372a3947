"""Run learners' answers for `cs336 grade`, each in a forked process with limits and no network.

`main` reads jobs from stdin and writes one result per line to stdout. It is started once, because
importing PyTorch takes longer than most checks. A forked process only observes what an answer does.
The records that it writes are judged by the process that forked it, which no answer can reach.
"""

import ast
import builtins
import contextlib
import functools
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import cs336_lib
from cs336_course.engine import Exercise, records, state
from cs336_course.engine.judge import diagnose
from cs336_course.grading import isolation, process_tree
from cs336_course.grading.course_cells import CourseCell, course_cells
from cs336_course.learner import study
from cs336_course.one_file import cell_slice
from cs336_lib.system.hardware import is_out_of_memory

TIME, MEMORY, ERROR = "time limit", "memory limit", "error"
OBSERVED = "observed"  # the records of an answer follow
OUT_OF_MEMORY = "MemoryError", "OutOfMemoryError"
RECORDS = 50 * 2**20  # bytes of the records of an answer
SAID = 1000  # characters of a diagnosis
SIZE, NONCE = 12, 64  # characters of a job's length and nonce
MEASURE_EVERY = 0.1  # seconds
PROCESSES = 256  # of an answer
NO_RESULT = ERROR, "the process ended without a result"
BAD_RESULT = ERROR, "the result is not one that a check gives"

BAD = ValueError, TypeError, LookupError, AttributeError

Verdict = tuple[str, str]  # the verdict, and the diagnosis or ""


# In the process of an answer


def observed(job: Mapping[str, Any], cell: CourseCell) -> Verdict:
    """Run an answer, and return `OBSERVED` with its records as JSON, or why there are none."""
    passed = {job["exercise"], *job["passed"]}
    withheld = {name for part, names in cell.parts.items() if part not in passed for name in names}
    namespace = dict(cell.namespace)
    modules = {name for name, value in namespace.items() if isinstance(value, ModuleType)}
    course = cell_slice.Course(cell.given, withheld, modules, {*namespace, *dir(builtins)})
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    try:
        code = cell_slice.answer(job["sources"], job["at"], cell.call, course)
        for node in code.setup:
            with contextlib.suppress(Exception):  # in a notebook, later cells run all the same
                run(node, namespace)
        for node in code.body:
            run(node, namespace)
        answers = [eval(ast.unparse(node), namespace) for node in code.arguments]
        with contextlib.redirect_stdout(io.StringIO()):
            state.set_back(cell.exercise.name)
        found = list(cell.exercise.records(*answers))
    except BaseException as error:
        return failed(error)
    if any(record.get("raises", {}).get("type") in OUT_OF_MEMORY for record in found):
        return MEMORY, ""
    return OBSERVED, json.dumps(records.encode(found))


def run(node: ast.stmt, namespace: dict[str, Any]) -> None:
    """Execute a statement of a learner."""
    exec(compile(ast.Module([node], []), "<answer>", "exec", dont_inherit=True), namespace)


def failed(error: BaseException) -> Verdict:
    """Return the verdict on an answer whose code raises an error."""
    if isinstance(error, NotImplementedError) and not str(error):
        return study.OPEN, ""  # the stub's error
    if isinstance(error, (MemoryError, RuntimeError)) and is_out_of_memory(error):
        return MEMORY, ""
    return ERROR, f"{type(error).__name__}: {error}"


def child(job: Mapping[str, Any], cell: CourseCell) -> None:
    """Run an answer in a forked process, write what `observed` returns to the file 3, and end."""
    isolation.end_with_parent()
    isolation.hide(False)  # so that the memory of this process can be measured
    here = Path(job["root"], job["below"])
    here.mkdir(parents=True, exist_ok=True)  # another answer of this learner may have removed it
    os.chdir(here)
    sys.path.append(str(here))  # at the end, so that no file replaces a module
    home = Path(job["root"]).parent
    os.environ |= {"HOME": str(home), "TMPDIR": str(home)}
    tempfile.tempdir = None  # a value that it has already read from TMPDIR
    isolation.limit_memory(job["memory_gb"])
    result = observed(job, cell)
    with os.fdopen(3, "w", encoding="utf-8") as file:
        json.dump(result, file)
    os._exit(0)


def contain(job: Mapping[str, Any], cell: CourseCell, start: int, result: int) -> None:
    """Run `child` in a namespace of processes, if the system allows it, and end as it does.

    The namespace ends with its first process, and all other processes in it end, too.
    """
    isolation.end_with_parent()
    if os.read(start, 1) != b"!":
        os._exit(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.dup2(result, 3)
    os.closerange(4, 1024)
    if isolation.own_processes():
        if first := os.fork():
            os._exit(min(abs(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])), 1))
        isolation.end_with_parent()
        isolation.show_own_processes()
        if process := os.fork():
            ended = None
            while ended != process:
                ended, status = os.wait()  # also for those whose parent has ended
            os._exit(min(abs(os.waitstatus_to_exitcode(status)), 1))
    child(job, cell)


# In the process that judges


def watch(process: int, seconds: float, memory_gb: float) -> tuple[int | None, str]:
    """Wait for a process, and end it and its descendants at a limit.

    Returns:
        The exit status or `None`, and the limit that was exceeded or "".
    """
    started = measured = time.monotonic()
    limit = memory_gb * 1e9 + process_tree.resident(os.getpid())
    status, verdict = None, TIME
    try:
        while status is None and time.monotonic() < started + seconds:
            done, code = os.waitpid(process, os.WNOHANG)
            status = code if done else None
            time.sleep(0 if done else 0.005)
            if not done and time.monotonic() > measured + MEASURE_EVERY:
                found = process_tree.descendants(os.getpid())
                if process_tree.memory(found, limit) > limit or len(found) > PROCESSES:
                    verdict = MEMORY
                    break
                measured = time.monotonic()
    finally:  # also after Ctrl-C
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)
        process_tree.end_descendants(os.getpid())
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    return status, "" if status is not None else verdict


def supervise(job: Mapping[str, Any], cell: CourseCell, jobs: int) -> tuple[str, Verdict]:
    """Grade an answer, and return the job's nonce and the verdict.

    The nonce is read after the answer's process was forked, so that it isn't in its memory.
    """
    waiting, start = os.pipe()
    with tempfile.TemporaryFile() as result:  # a pipe would have to be read while it is written
        process = os.fork()
        if process == 0:
            try:
                os.setsid()  # so that programs that it starts can be ended with it
                os.close(start)
                contain(job, cell, waiting, result.fileno())
            finally:
                os._exit(1)
        os.close(waiting)
        nonce = exactly(jobs, NONCE).decode()
        with contextlib.suppress(BrokenPipeError):
            os.write(start, b"!")
        os.close(start)
        status, limit = watch(process, job["seconds"], job["memory_gb"])
        result.seek(0)
        written = result.read(RECORDS + 1)
    if limit:
        return nonce, (limit, "")
    if status != 0 or not written or len(written) > RECORDS:
        return nonce, NO_RESULT
    return nonce, judged(cell.exercise, written)


def judged(exercise: Exercise, written: bytes) -> Verdict:
    """Return the verdict on what an answer's process wrote, which may be anything."""
    try:
        kind, text = json.loads(written)
        if kind in (study.OPEN, MEMORY, ERROR):
            return kind, str(text)[:SAID]
        if kind != OBSERVED:
            return BAD_RESULT
        got = records.decode(json.loads(text))
        if not isinstance(got, list) or not all(isinstance(one, dict) for one in got):
            return BAD_RESULT
        found = diagnose(exercise, got)
    except (*BAD, ArithmeticError, RuntimeError, MemoryError):
        return BAD_RESULT
    if found is None:
        return study.PASSED, ""
    return study.WRONG, f"{found.said} {found.figures}"[:SAID]


def exactly(descriptor: int, size: int) -> bytes:
    """Read this many bytes and no more, or fewer at the end of the file."""
    pieces = []
    while size > 0 and (piece := os.read(descriptor, min(size, 2**20))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def discard(descriptor: int) -> None:
    """Discard what an answer has written into the pipe of the jobs, before the next one comes."""
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 2**20):
            pass
    os.set_blocking(descriptor, True)


@functools.cache
def writable(root: str) -> str:
    """Copy the files of a learner, which are read-only in a container, to a temporary folder."""
    to = Path(tempfile.mkdtemp()) / "work"
    return str(shutil.copytree(root, to, symlinks=True))


def main(folder: Path | None = None) -> None:
    """Grade the jobs on stdin.

    A job is its length in 12 digits, a JSON object, and a nonce, which the line with its result
    begins with. The first line says whether the system cuts answers off from the network and from
    other processes, and the version of the package.

    Args:
        folder: Folder of the course's notebooks, which becomes the working directory.
    """
    if folder is not None:
        os.chdir(folder)
    isolation.end_with_parent()
    isolation.adopt()
    is_offline = isolation.offline()
    isolation.hide()
    torch.set_num_threads(1)  # other threads wouldn't exist in a forked process
    results = os.dup(1)
    os.dup2(2, 1)  # nothing else is written to the results
    course = {path.stem: course_cells(path) for path in study.originals(Path.cwd())}
    ready = [is_offline, isolation.has_own_processes(), cs336_lib.__version__]
    os.write(results, f"{json.dumps(ready)}\n".encode())
    while size := exactly(0, SIZE):
        job = json.loads(exactly(0, int(size)))
        if job["is_copied"]:
            job["root"] = writable(job["root"])
        cell = course[job["notebook"]][job["exercise"]]
        nonce, (verdict, said) = supervise(job, cell, 0)
        discard(0)
        # An answer may have left an unfinished line in the pipe.
        os.write(results, f"\n{json.dumps([nonce, verdict, said])}\n".encode())
