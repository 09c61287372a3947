"""Do the jobs that `processes.Process` sends. Each runs in a fork, where the system has them.

Importing PyTorch takes longer than most jobs. Only Linux forks safely: elsewhere, a fork may hang
in the libraries of the system, so the process ends after one job.
"""

import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

import cs336_lib
from cs336_course.engine import records
from cs336_course.engine.judge import Diagnosis, diagnose
from cs336_course.engine.task import Task
from cs336_course.one_file.processes import OPEN

OBSERVED = "observed"  # what an answer did follows, for `judged`
WRITTEN = 50 * 2**20  # bytes that a job may write
BAD = ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError

Job = Mapping[str, Any]
# Makes two functions of a job: what runs in the fork, and what judges the result outside of it.
Opened = Callable[[Job], tuple[Callable[[], Any], Callable[[Any], Any]]]


def observed(exercise: Task, answers: list[Any]) -> tuple[str, str]:
    """Check an answer, and return `OBSERVED` with what it did, as JSON."""
    return OBSERVED, json.dumps(records.encode(list(exercise.records(*answers))))


def judged(exercise: Task, text: str) -> tuple[Diagnosis | None, list[dict[str, Any]]]:
    """Judge what an answer did, and return the diagnosis and the records.

    Raises one of `BAD` if the text isn't what `observed` gives.
    """
    got = records.decode(json.loads(text))
    if not isinstance(got, list) or not all(isinstance(one, dict) for one in got):
        raise TypeError
    return diagnose(exercise, got), got


def seed() -> None:
    """Let an answer start from the same random numbers as any other."""
    for start in (torch.manual_seed, random.seed, np.random.seed):
        start(0)


def forked(work: Callable[[], Any]) -> Any:
    """Return the result of `work` from a fork, so that this process stays as it is, or `None`."""
    with tempfile.TemporaryFile() as written:  # a pipe would have to be read while it is written
        process = os.fork()
        if process == 0:
            try:
                torch.set_num_threads(1)  # the other threads don't exist here
                os.setsid()  # so that what the answer starts can be ended with it
                os.dup2(written.fileno(), 3)
                os.closerange(4, 1024)
                result = json.dumps(work())
                with os.fdopen(3, "w", encoding="utf-8") as file:
                    file.write(result)
            finally:
                os._exit(0)
        os.waitpid(process, 0)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)
        written.seek(0)
        text = written.read(WRITTEN + 1)
    if not text or len(text) > WRITTEN:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return "nothing that a check gives"


def serve(opened: Opened, can_fork: bool = sys.platform == "linux") -> None:
    """Do the jobs on stdin, one per line, and write a result per line to stdout.

    The first line has the version of the package. Before each result comes the line `OPEN`. The
    result stands beside whether the process goes on, which it does only if it can fork.
    """
    jobs, results = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)  # an answer neither reads the jobs nor prints among the results
    os.dup2(nowhere, 1)
    print(json.dumps(cs336_lib.__version__), file=results, flush=True)
    for line in jobs:
        work, judge = opened(json.loads(line))
        print(OPEN, end="", file=results, flush=True)
        result = judge(forked(work) if can_fork else work())
        print(json.dumps([result, can_fork]), file=results, flush=True)
        if not can_fork:
            break
