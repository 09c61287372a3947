"""Run learners' answers for `cs336 grade`, each in a forked process with limits and no network.

`main` reads jobs from stdin and writes one result per line to stdout. It is started once, because
importing PyTorch takes longer than most checks.
"""

import ast
import builtins
import contextlib
import functools
import importlib
import io
import json
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

import cs336_lib
from cs336_course.checks import report
from cs336_course.engine import Exercise, records, state
from cs336_course.engine.judge import diagnose
from cs336_course.grading import cell_slice, isolation, process_tree
from cs336_course.grading.tampering import (
    Snapshot,
    accepts_anything,
    classes,
    own_comparison,
    own_results,
)
from cs336_course.learner import study
from cs336_lib.system.hardware import is_out_of_memory

TIME, MEMORY, ERROR, TAMPERED = "time limit", "memory limit", "error", "tampered"
OBSERVED = "observed"  # the records of an answer, which the server judges
OUT_OF_MEMORY = "MemoryError", "OutOfMemoryError"
RECORDS = 50 * 2**20  # bytes of the records of an answer
# Checks import these on first use, and they replace functions of PyTorch and Python.
LATE = ("torch._dynamo", "torch.testing._internal.distributed.multi_threaded_pg")
SAID = 1000  # characters of a diagnosis
SIZE, NONCE = 12, 64  # characters of a job's length and nonce
MEASURE_EVERY = 0.1  # seconds
PROCESSES = 256  # of an answer
VERDICTS = {study.PASSED, study.WRONG, study.OPEN, TIME, MEMORY, ERROR, TAMPERED, OBSERVED}

Verdict = tuple[str, str]  # the verdict, and the diagnosis or ""


@dataclass(frozen=True)
class Task:
    """An exercise of the course.

    Attributes:
        check: The exercise, or a check that raises an error for a wrong answer.
        call: Call of the check in the course's notebook.
        stub: Code of the course's cell.
        namespace: Names that the course's notebook defines before the exercise.
        given: Statements that define them, in the form of `ast.dump`.
        parts: Names that the course defines if the learner's answer is wrong, by exercise.
    """

    check: Any
    call: ast.Call
    stub: str
    namespace: Mapping[str, Any]
    given: frozenset[str]
    parts: Mapping[str, frozenset[str]]

    @property
    def has_result(self) -> bool:
        """Whether the answer is a value, or a function that returns one."""
        nodes = [node for node in ast.parse(self.stub).body if isinstance(node, ast.FunctionDef)]
        results = [ast.unparse(node.returns) for node in nodes if node.returns]
        return not results or any(result != "None" for result in results)


@functools.cache
def tasks(path: Path) -> dict[str, Task]:
    """Read the exercises of a notebook of the course, and run the cells that they build on.

    Untouched parts become the library's. `assemble.module` reads the working directory.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    # Magics and shell commands become calls of `get_ipython()`, which do nothing.
    namespace: dict[str, Any] = {"__name__": "__main__", "get_ipython": mock.MagicMock}
    namespace["display"] = print
    given: set[str] = set()
    parts: dict[str, frozenset[str]] = {}
    found: dict[str, Task] = {}
    for number, cell in enumerate(cells):
        source, marks = "".join(cell["source"]), cell["metadata"].get("cs336", {})
        nodes = ast.parse(source).body
        if name := marks.get("exercise"):
            call = cell_slice.check_call(nodes[-1])
            assert call is not None, f"{path}: {name} doesn't end with its check"
            check = getattr(namespace["checks"], name)
            if "part" in marks:
                parts[name] = frozenset(cell_slice.names_in(call.args))
            found[name] = Task(check, call, source, dict(namespace), frozenset(given), dict(parts))
        if number == 0 or "part" in marks or source.startswith("mine = assemble.module("):
            with contextlib.redirect_stdout(io.StringIO()):
                exec(source, namespace)
            given |= {ast.dump(node) for node in nodes if "exercise" not in marks}
    return found


def grade(job: Mapping[str, Any], task: Task, snapshot: Snapshot) -> Verdict:
    """Run an answer and its check, and return the verdict and the diagnosis."""
    known = classes()
    changed = snapshot.changed  # the answer can replace the name, but not this method
    passed = {job["exercise"], *job["passed"]}
    withheld = {name for part, names in task.parts.items() if part not in passed for name in names}
    namespace = dict(task.namespace)
    modules = {name for name, value in namespace.items() if isinstance(value, ModuleType)}
    course = cell_slice.Course(task.given, withheld, modules, {*namespace, *dir(builtins)})
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    try:
        code = cell_slice.answer(job["sources"], job["at"], task.call, course)
        for node in code.setup:
            with contextlib.suppress(Exception):  # in a notebook, later cells run all the same
                run(node, namespace)
        for node in code.body:
            run(node, namespace)
        answers = [eval(ast.unparse(node), namespace) for node in code.arguments]
    except BaseException as error:
        return failed(error)
    if isinstance(task.check, Exercise):
        return observed(task.check, answers)
    if name := changed():
        return TAMPERED, f"the code replaces {name}"
    check = task.check.__wrapped__
    verdict = judge(check, answers)
    if verdict[0] == study.PASSED:
        if method := own_comparison([*code.setup, *code.body]):
            verdict = TAMPERED, f"the code defines {method}, which can make a comparison true"
        elif method := own_results(check, answers, known):
            verdict = TAMPERED, f"a result has the method {method}, which can make it look right"
        elif accepts_anything(check, answers, task.has_result):
            verdict = TAMPERED, "after this answer, the check also accepts wrong ones"
    if name := changed():
        return TAMPERED, f"the answer replaces {name}"
    return verdict


def observed(exercise: Exercise, answers: list[Any]) -> Verdict:
    """Return the records of an answer as JSON, for a process that the answer can't reach."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            state.set_back(exercise.name)
        found = list(exercise.records(*answers))
    except BaseException as error:
        return failed(error)
    if any(record.get("raises", {}).get("type") in OUT_OF_MEMORY for record in found):
        return MEMORY, ""
    return OBSERVED, json.dumps(records.encode(found))


def judge_records(exercise: Exercise, text: str) -> Verdict:
    """Return the verdict on records, which an answer may have written itself."""
    try:
        got = records.decode(json.loads(text))
        if not isinstance(got, list) or not all(isinstance(one, dict) for one in got):
            raise ValueError
        found = diagnose(exercise, got)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError):
        return ERROR, "the result is not one that a check gives"
    if found is None:
        return study.PASSED, ""
    return study.WRONG, f"{found.said} {found.figures}"[:SAID]


def run(node: ast.stmt, namespace: dict[str, Any]) -> None:
    """Execute a statement of a learner."""
    exec(compile(ast.Module([node], []), "<answer>", "exec", dont_inherit=True), namespace)


def judge(check: Callable[..., None], answers: list[Any]) -> Verdict:
    """Run a check, and return its verdict as `report.judge` does."""
    try:
        if any(answer is ... for answer in answers):
            raise NotImplementedError
        check(*answers)
    except report.DiagnosisError as diagnosis:
        return study.WRONG, f"{diagnosis} {diagnosis.figures}"
    except Exception as error:
        if isinstance(error, NotImplementedError) or is_out_of_memory(error):
            return failed(error)
        return study.WRONG, report.complaint(error)
    except BaseException as error:
        return failed(error)
    return study.PASSED, ""


def failed(error: BaseException) -> Verdict:
    """Return the verdict on an answer whose code raises an error."""
    if isinstance(error, NotImplementedError) and not str(error):
        return study.OPEN, ""  # the stub's error
    if isinstance(error, (MemoryError, RuntimeError)) and is_out_of_memory(error):
        return MEMORY, ""
    return ERROR, f"{type(error).__name__}: {error}"


def child(job: Mapping[str, Any], task: Task, snapshot: Snapshot, token: str) -> None:
    """Grade an answer in a forked process, write the result to the pipe 3, and end."""
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
    verdict, said = grade(job, task, snapshot)
    said = said if verdict == OBSERVED else said[:SAID]
    with os.fdopen(3, "wb") as pipe:
        pipe.write(f"{token}{json.dumps([verdict, said])}".encode())
    os._exit(0)


def contain(
    job: Mapping[str, Any], task: Task, snapshot: Snapshot, token: str, start: int, pipe: int
) -> None:
    """Run `child` in a namespace of processes, if the system allows it, and end as it does.

    The namespace ends with its first process, and all other processes in it end, too.
    """
    isolation.end_with_parent()
    if os.read(start, 1) != b"!":
        os._exit(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.dup2(pipe, 3)
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
    child(job, task, snapshot, token)


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


def supervise(
    job: Mapping[str, Any], task: Task, snapshot: Snapshot, jobs: int
) -> tuple[str, Verdict]:
    """Grade an answer in another process, and return the job's nonce and the verdict.

    The nonce is read after that process was forked, so that it isn't in its memory.
    """
    waiting, start = os.pipe()
    token = secrets.token_hex()  # a result without it was not written by `child`
    with tempfile.TemporaryFile() as result:  # a pipe would have to be read while it is written
        process = os.fork()
        if process == 0:
            try:
                os.setsid()  # so that programs that it starts can be ended with it
                os.close(start)
                contain(job, task, snapshot, token, waiting, result.fileno())
            finally:
                os._exit(1)
        os.close(waiting)
        nonce = exactly(jobs, NONCE).decode()
        with contextlib.suppress(BrokenPipeError):
            os.write(start, b"!")
        os.close(start)
        status, limit = watch(process, job["seconds"], job["memory_gb"])
        result.seek(0)
        written = result.read(RECORDS + 1).decode(errors="replace")
    if limit:
        return nonce, (limit, "")
    if status != 0 or not written.startswith(token) or len(written) > RECORDS:
        return nonce, (ERROR, "the process ended without a result")
    return nonce, settled(task, *parse(written.removeprefix(token)))


def settled(task: Task, verdict: str, said: str) -> Verdict:
    """Return the verdict on what an answer's process wrote.

    The process of an exercise only observes, so a verdict from it that isn't an error is forged.
    """
    if not isinstance(task.check, Exercise):
        return verdict, said
    if verdict == OBSERVED:
        return judge_records(task.check, said)
    is_error = verdict in (study.OPEN, MEMORY, ERROR)
    return (verdict, said) if is_error else (ERROR, "the result is not one that a check gives")


def parse(text: str) -> Verdict:
    """Return the verdict and the diagnosis in a result that an answer may have written."""
    try:
        verdict, said = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        verdict, said = None, None
    if type(verdict) is str and verdict in VERDICTS and type(said) is str:
        return verdict, said if verdict == OBSERVED else said[:SAID]
    return ERROR, "the result is not one that a check gives"


def settle() -> None:
    """Make PyTorch replace the functions that it replaces on first use, before a snapshot."""
    for name in LATE:
        importlib.import_module(name)
    torch.compile(torch.nn.Identity(), backend="eager")(torch.ones(1))


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
    settle()
    results = os.dup(1)
    os.dup2(2, 1)  # nothing else is written to the results
    course = {path.stem: tasks(path) for path in study.originals(Path.cwd())}
    snapshot = Snapshot()
    ready = [is_offline, isolation.has_own_processes(), cs336_lib.__version__]
    os.write(results, f"{json.dumps(ready)}\n".encode())
    while size := exactly(0, SIZE):
        job = json.loads(exactly(0, int(size)))
        if job["is_copied"]:
            job["root"] = writable(job["root"])
        task = course[job["notebook"]][job["exercise"]]
        nonce, (verdict, said) = supervise(job, task, snapshot, 0)
        discard(0)
        # An answer may have left an unfinished line in the pipe.
        os.write(results, f"\n{json.dumps([nonce, verdict, said])}\n".encode())
