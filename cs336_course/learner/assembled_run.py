"""Check parts of the assembled file for `answers`, in a process that an answer may end or change.

`main` reads one job per line from stdin and writes one result per line to stdout. It runs all jobs
one after another, because importing PyTorch takes longer than most checks.
"""

import importlib
import json
import os
import random
import sys
import threading
from types import ModuleType
from typing import Any

import numpy as np
import torch

from cs336_course.checks import report
from cs336_course.engine import Exercise
from cs336_course.engine.judge import diagnose
from cs336_course.grading.tampering import Snapshot
from cs336_course.learner.answers import UNTOUCHED


def reason(before: str, code: str, checks: str, check: str, arguments: list[str]) -> str:
    """Run a part and its check, and return the reason for a failure or "".

    Args:
        before: Code of the file above the part.
        code: Code of the part.
        checks: Module of the check.
        check: Name of the check, or "" if the part only has to run.
        arguments: What the check receives.
    """
    module = ModuleType("train_gpt2")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    function: Any = getattr(importlib.import_module(checks), check) if check else None
    try:
        text = f"{before}\n\n\n{code}\n"
        exec(compile(text, "train_gpt2.py", "exec", dont_inherit=True), module.__dict__)
        answers = [eval(argument, module.__dict__) for argument in arguments]
        if any(answer is ... for answer in answers):
            return UNTOUCHED
        if isinstance(function, Exercise):
            records = list(function.records(*answers))
            found = diagnose(function, records)
            for record in records if found else []:
                error = record.get("raises", {})
                if error.get("type") == "NameError":
                    return f"{error['message']} in train_gpt2.py; import it in the cell"
            return found.said if found else ""
        if function:
            function.__wrapped__(*answers)
    except BaseException as error:  # the learner's own code may raise anything
        return said(error, function)
    return ""


def said(error: BaseException, check: Any) -> str:
    """Return what a learner is told about an error of the code or of the check."""
    if isinstance(error, NotImplementedError) and not str(error):
        return UNTOUCHED  # the stub's error
    if isinstance(error, report.DiagnosisError):
        return str(error)
    if isinstance(error, NameError):
        return f"{error} in train_gpt2.py; import it in the cell"
    if isinstance(error, SyntaxError) or not isinstance(error, Exception) or not check:
        return f"your code raised {type(error).__name__}: {error}".rstrip(": ")
    return report.complaint(error)


def state() -> list[object]:
    """Return what an answer can change for the answers after it, except for replaced functions."""
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.distributed.is_available() and torch.distributed.is_initialized(),
        threading.active_count(),
        os.getcwd(),
        list(sys.path),
    ]


def main() -> None:
    """Check the jobs on stdin, and say after each whether the process is as before."""
    jobs, results = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)  # an answer neither reads the jobs nor prints among the results
    os.dup2(nowhere, 1)
    print(json.dumps("ready"), file=results, flush=True)
    importlib.import_module("torch._dynamo")  # replaces functions, and most checks import it
    snapshot = Snapshot()
    for line in jobs:
        job = json.loads(line)
        if job["checks"] not in sys.modules:
            importlib.import_module(job["checks"])
            snapshot = Snapshot()
        before, found = state(), reason(**job)
        is_clean = state() == before and not snapshot.changed()
        print(json.dumps([found, is_clean]), file=results, flush=True)
