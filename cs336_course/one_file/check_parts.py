"""Check parts of the assembled file for `answers`, in a process that an answer may end or change.

`main` reads one job per line from stdin and writes one result per line to stdout. On Linux each job
runs in a fork, because importing PyTorch takes longer than most checks. Elsewhere a fork may hang
in the system's own libraries, so the process ends after one job.
"""

import importlib
import json
import os
import random
import sys
from types import ModuleType
from typing import Any

import numpy as np
import torch

from cs336_course.engine.judge import complaint, diagnose
from cs336_course.engine.observe import raised
from cs336_course.one_file.answers import ENDED, UNTOUCHED


def reason(before: str, code: str, checks: str, check: str, arguments: list[str]) -> str:
    """Run a part and its check, and return the reason for a failure or "".

    Args:
        before: Code of the file above the part.
        code: Code of the part.
        checks: Module of the exercise.
        check: Name of the exercise, or "" if the part only has to run.
        arguments: What the check receives.
    """
    module = ModuleType("train_gpt2")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    exercise: Any = getattr(importlib.import_module(checks), check) if check else None
    try:
        text = f"{before}\n\n\n{code}\n"
        exec(compile(text, "train_gpt2.py", "exec", dont_inherit=True), module.__dict__)
        answers = [eval(argument, module.__dict__) for argument in arguments]
        records = list(exercise.records(*answers)) if exercise else []
    except BaseException as error:  # the learner's own code may raise anything
        return said(error, bool(check))
    found = diagnose(exercise, records) if exercise else None
    for record in records if found else []:
        error = record.get("raises", {})
        if error.get("type") == "NameError":
            return import_it(error["message"])
    return found.said if found else ""


def said(error: BaseException, has_check: bool) -> str:
    """Return what a learner is told about an error of the code."""
    if isinstance(error, NotImplementedError) and not str(error):
        return UNTOUCHED  # the stub's error
    if isinstance(error, NameError):
        return import_it(str(error))
    if isinstance(error, SyntaxError) or not isinstance(error, Exception) or not has_check:
        return f"your code raised {type(error).__name__}: {error}".rstrip(": ")
    return complaint(raised(error))


def import_it(message: str) -> str:
    """Return what to do about a name that the file doesn't have."""
    return f"{message} in train_gpt2.py; import it in the cell"


def forked(job: dict[str, Any]) -> str:
    """Return the reason for a failure or "", from a fork, so that this process stays as it is."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            with os.fdopen(writing, "w", encoding="utf-8") as result:
                json.dump(reason(**job), result)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as result:
        found = result.read()
    os.waitpid(process, 0)
    return json.loads(found) if found else ENDED


def main(can_fork: bool = sys.platform == "linux") -> None:
    """Check the jobs on stdin, or only the first one if they can't run in forks."""
    jobs, results = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)  # an answer neither reads the jobs nor prints among the results
    os.dup2(nowhere, 1)
    print(json.dumps("ready"), file=results, flush=True)
    for line in jobs:
        job = json.loads(line)
        found = forked(job) if can_fork else reason(**job)
        print(json.dumps([found, can_fork]), file=results, flush=True)
        if not can_fork:
            break
