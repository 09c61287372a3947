"""Fork processes from one that has PyTorch loaded, and wait for moments in their life.

Run as a script, it runs another one that is killed at a call of a function:
`python forked.py os.replace 3 SCRIPT FLAGS`.
"""

import itertools
import json
import multiprocessing
import os
import pkgutil
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
# The optimizers import the compiler.
CONTEXT.set_forkserver_preload(["cs336_lib.cli", "cs336_lib.training.loop", "torch._dynamo"])


def rows(run_dir: Path) -> list[dict]:
    """Return the metrics of a run without what is measured by the clock."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    timed = {"step_ms", "tokens_per_sec", "mfu"}
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]


def rows_written(run_dir: Path) -> int:
    """Return how many steps a run has logged."""
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait(is_running: Callable[[], bool], until: Callable[[], bool]) -> None:
    """Look every half millisecond for a moment in the life of a process."""
    while not until():
        assert is_running() or until(), "it ended before that moment"
        time.sleep(0.0005)


def signal_at(name: str, call: int, number: int = signal.SIGKILL) -> None:
    """Let this process get a signal at a call of a function, the first of which is number 0."""
    module, _, attribute = name.rpartition(".")
    owner, calls = pkgutil.resolve_name(module), itertools.count()
    function = getattr(owner, attribute)

    def signalled(*arguments: object, **named: object) -> object:
        if next(calls) == call:
            os.kill(os.getpid(), number)
        return function(*arguments, **named)

    setattr(owner, attribute, signalled)


if __name__ == "__main__":
    _, function, call, *sys.argv = sys.argv
    signal_at(function, int(call))
    runpy.run_path(sys.argv[0], run_name="__main__")
