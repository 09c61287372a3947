"""Check parts of the assembled file for `answers`, in a process that an answer may change."""

import importlib
import sys
from functools import partial
from types import ModuleType
from typing import Any

from cs336_course.engine.judge import complaint
from cs336_course.engine.observe import raised
from cs336_course.one_file import worker
from cs336_course.one_file.answers import ENDED, UNTOUCHED


def run(before: str, code: str, exercise: Any, arguments: list[str]) -> tuple[str, str]:
    """Run a part and its check, and return what the answer did, or a reason why it isn't right."""
    module = ModuleType("train_gpt2")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    worker.seed()
    try:
        text = f"{before}\n\n\n{code}\n"
        exec(compile(text, "train_gpt2.py", "exec", dont_inherit=True), module.__dict__)
        answers = [eval(argument, module.__dict__) for argument in arguments]
        return worker.observed(exercise, answers) if exercise else ("", "")
    except BaseException as error:  # the learner's own code may raise anything
        return "", said(error, exercise is not None)


def judged(exercise: Any, found: Any) -> str:
    """Return why a part isn't right or "", from what `run` returns."""
    if found is None:
        return ENDED
    try:
        kind, text = found
        if kind != worker.OBSERVED:
            return str(text)
        diagnosis, got = worker.judged(exercise, text)
    except worker.BAD:
        return "your code changed what its check writes"
    errors = [record.get("raises", {}) for record in got if diagnosis]
    names = [error["message"] for error in errors if error.get("type") == "NameError"]
    return import_it(names[0]) if names else diagnosis.said if diagnosis else ""


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


def opened(job: worker.Job) -> Any:
    """Return the functions of a job, as `worker.serve` needs them."""
    exercise: Any = None
    if job["check"]:
        exercise = getattr(importlib.import_module(job["checks"]), job["check"])
    work = partial(run, job["before"], job["code"], exercise, job["arguments"])
    return work, partial(judged, exercise)


def main(**settings: Any) -> None:
    """Check the parts that stdin names."""
    worker.serve(opened, **settings)
