"""Run learners' answers for `cs336 grade`, each in a forked process with limits and no network.

`main` reads one job per line from stdin and writes one result per line to stdout. It is started
once, because importing PyTorch takes longer than most checks.
"""

import ast
import builtins
import contextlib
import ctypes
import functools
import importlib
import io
import json
import os
import random
import resource
import secrets
import signal
import socket
import struct
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

from cs336_lib.classroom import cell_slice, study
from cs336_lib.classroom.checks import report
from cs336_lib.classroom.tampering import Snapshot, accepts_anything, own_comparison
from cs336_lib.hardware import is_out_of_memory

TIME, MEMORY, ERROR, TAMPERED = "time limit", "memory limit", "error", "tampered"
# Checks import these on first use, and they replace functions of PyTorch and Python.
LATE = ("torch._dynamo", "torch.testing._internal.distributed.multi_threaded_pg")
SAID = 1000  # characters of a diagnosis
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # Linux's CLONE_NEWUSER and CLONE_NEWNET
SET_FLAGS, UP = 0x8914, 1  # Linux's SIOCSIFFLAGS and IFF_UP
END_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG
HERE = ("localhost", "127.0.0.1", "::1", "")

Verdict = tuple[str, str]  # the verdict, and the diagnosis or ""


@dataclass(frozen=True)
class Task:
    """An exercise of the course.

    Attributes:
        check: The check, which raises an error for a wrong answer.
        call: Call of the check in the course's notebook.
        stub: Code of the course's cell.
        namespace: Names that the course's notebook defines before the exercise.
        given: Statements that define them, in the form of `ast.dump`.
        parts: Names that the course defines if the learner's answer is wrong, by exercise.
    """

    check: Callable[..., None]
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
            check = getattr(namespace["checks"], name).__wrapped__
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
    if name := changed():
        return TAMPERED, f"the code replaces {name}"
    verdict = judge(task.check, answers)
    if verdict[0] == study.PASSED:
        if method := own_comparison([*code.setup, *code.body]):
            verdict = TAMPERED, f"the code defines {method}, which can make a comparison true"
        elif accepts_anything(task.check, answers, task.has_result):
            verdict = TAMPERED, "after this answer, the check also accepts wrong ones"
    if name := changed():
        return TAMPERED, f"the answer replaces {name}"
    return verdict


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


def offline() -> bool:
    """Cut this process off from the network, and return whether the system enforces it.

    On Linux, a new network namespace has only a loopback device. Elsewhere, or if the system
    doesn't allow it, Python refuses connections to other machines, but other programs don't.
    """
    user, group = os.getuid(), os.getgid()
    unshare = getattr(ctypes.CDLL(None, use_errno=True), "unshare", None)
    if unshare is None or unshare(NEW_USER | NEW_NETWORK):
        sys.addaudithook(refuse_connections)
        return False
    with contextlib.suppress(OSError):  # keep the name of the user
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with contextlib.suppress(OSError), socket.socket() as any_socket:
        import fcntl

        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", UP))
    return True


def refuse_connections(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse connections to other machines, as a hook of `sys.addaudithook`."""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        if isinstance(address, tuple) and address[0] not in HERE:
            raise PermissionError("answers are graded without a network")
    if event in ("socket.getaddrinfo", "socket.gethostbyname") and arguments[0] not in HERE:
        raise PermissionError("answers are graded without a network")


def limit_memory(gigabytes: float) -> None:
    """Limit the memory that this process may still allocate. Only Linux enforces this."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        have = int(statm.read_text().split()[0]) * resource.getpagesize()
        limit = have + int(gigabytes * 1e9)
        with contextlib.suppress(ValueError):  # a lower limit is in force
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def child(job: Mapping[str, Any], task: Task, snapshot: Snapshot, pipe: int, token: str) -> None:
    """Grade an answer in a forked process, write the result to a pipe, and end."""
    os.setsid()  # so that programs that it starts can be ended with it
    if prctl := getattr(ctypes.CDLL(None), "prctl", None):
        prctl(END_WITH_PARENT, signal.SIGKILL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.dup2(pipe, 3)
    os.closerange(4, 1024)
    here = Path(job["folder"])
    os.chdir(here)
    sys.path.append(str(here))  # at the end, so that no file replaces a module
    os.environ |= {"HOME": str(here.parent), "TMPDIR": str(here.parent)}
    tempfile.tempdir = None  # a value that it has already read from TMPDIR
    limit_memory(job["memory_gb"])
    verdict, said = grade(job, task, snapshot)
    os.write(3, f"{token}{json.dumps([verdict, said[:SAID]])}".encode())
    os._exit(0)


def supervise(job: Mapping[str, Any], task: Task, snapshot: Snapshot) -> Verdict:
    """Grade an answer in a forked process, and end it at the time limit."""
    reading, writing = os.pipe()
    token = secrets.token_hex()  # a result without it was not written by `child`
    process = os.fork()
    if process == 0:
        try:
            child(job, task, snapshot, writing, token)
        finally:
            os._exit(1)
    os.close(writing)
    deadline, status = time.monotonic() + job["seconds"], None
    try:
        while status is None and time.monotonic() < deadline:
            done, code = os.waitpid(process, os.WNOHANG)
            status = code if done else None
            time.sleep(0 if done else 0.005)
    finally:  # also after Ctrl-C
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)
    if status is None:
        os.waitpid(process, 0)
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb") as file:
        written = (file.read() or b"").decode(errors="replace")
    if status is None:
        return TIME, ""
    if status != 0 or not written.startswith(token):
        return ERROR, "the process ended without a result"
    verdict, said = json.loads(written.removeprefix(token))
    return verdict, said


def settle() -> None:
    """Make PyTorch replace the functions that it replaces on first use, before a snapshot."""
    for name in LATE:
        importlib.import_module(name)
    torch.compile(torch.nn.Identity(), backend="eager")(torch.ones(1))


def main() -> None:
    """Grade the jobs on stdin. The working directory has the course's notebooks."""
    is_enforced = offline()
    torch.set_num_threads(1)  # other threads wouldn't exist in a forked process
    settle()
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else is written to the results
    course = {path.stem: tasks(path) for path in study.originals(Path.cwd())}
    snapshot = Snapshot()
    print(json.dumps(is_enforced), file=results, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        verdict = supervise(job, course[job["notebook"]][job["exercise"]], snapshot)
        print(json.dumps(verdict), file=results, flush=True)
