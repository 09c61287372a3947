"""Run answers in a process of its own, which an answer may end, change or keep forever."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

OPEN = "open\n"  # a line of a process that begins with a job
LOOK = 0.5  # seconds between two looks at a process
IDLE = 0.05  # a process that took a smaller share of a core since the last look is waiting
ERROR, TIME, MEMORY = "error", "time limit", "memory limit"  # verdicts, as those in `study`
NO_RESULT = "the process ended without a result"
NO_VERDICT = "the result is not one that a check gives"
RUN = "from cs336_course.one_file import worker; worker.serve()"

Verdict = tuple[str, str, str]  # the verdict, the diagnosis, and its figures


def core_seconds(pid: int) -> float:
    """Return the time that a process and its descendants have taken on all cores."""
    total = 0.0
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])  # its own, and those of ended children
    return total


class Patience:
    """A limit of the time that a process takes on all cores, and of the time that it waits.

    The clock of the wall also counts what other programs take, so a busy machine would make a
    right answer slow.

    Args:
        pid: The process.
        seconds: The limit.
        look: Seconds between two calls of `is_over`.
    """

    def __init__(self, pid: int, seconds: float, look: float = LOOK):
        self.pid, self.seconds, self.look = pid, seconds, look
        self.began = self.before = core_seconds(pid)
        self.waited = 0.0

    def is_over(self) -> bool:
        """Look at the process, and return whether it has exceeded the limit."""
        now = core_seconds(self.pid)
        self.waited += self.look if now - self.before < IDLE * self.look else 0
        self.before = now
        return now - self.began + self.waited > self.seconds


class Process:
    """A process that does one job of `worker` after the other, within a `with` block.

    It starts with the first job, and again after one that ended it. It is no fork, because the
    threads of a notebook's kernel don't survive one.

    Args:
        environment: Environment variables besides the path of modules (default: ours).
        folder: Working directory (default: ours).
    """

    def __init__(self, environment: Mapping[str, str] | None = None, folder: Path | None = None):
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self.environment = {**(environment or os.environ), "PYTHONPATH": paths}
        self.folder = folder
        self.running: subprocess.Popen[str] | None = None
        self.lines: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> subprocess.Popen[str]:
        """Start the process, and wait until it is ready.

        Raises:
            RuntimeError: If it ends instead.
        """
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            self.running = subprocess.Popen(
                [sys.executable, "-Ps", "-c", RUN],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for us, and the whole session ends with it
            )
            self.lines = queue.Queue()
            arguments = (self.running.stdout, self.lines)
            threading.Thread(target=pump, args=arguments, daemon=True).start()
            if not self.lines.get():
                self.stop()
                errors.seek(0)
                said = "".join(errors.read().strip().splitlines()[-1:])
                raise RuntimeError(f"the process that runs answers didn't start: {said}")
        return self.running

    def do(self, job: Mapping[str, Any], seconds: float) -> Verdict:
        """Do a job, and return its verdict.

        Args:
            job: The job, as `worker` reads it.
            seconds: Limit of its time, as `Patience` counts it.
        """
        running = self.running or self.start()
        assert running.stdin is not None
        with suppress(OSError):  # it has ended, which the next line says
            print(json.dumps(job), file=running.stdin, flush=True)
        line = self.lines.get()  # it has read the job, and what the course needs for it
        patience = Patience(running.pid, seconds)
        while line == OPEN:
            try:
                line = self.lines.get(timeout=LOOK)
            except queue.Empty:
                if patience.is_over():
                    self.stop()
                    return TIME, "", ""
        verdict, said, figures, goes_on = json.loads(line or json.dumps([ERROR, NO_RESULT, "", 0]))
        if not goes_on:
            self.stop()
        return verdict, said, figures

    def stop(self) -> None:
        """End the process, and those that it has started."""
        if self.running is not None:
            end_all(self.running.pid)
            self.running.kill()
            self.running.wait()
            with suppress(OSError):  # a job may still be in the buffer
                self.running.stdin.close()  # type: ignore[union-attr]
        self.running = None


def end_all(pid: int) -> None:
    """End a process, its descendants, and all others in its group."""
    with suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                process.kill()
    with suppress(AttributeError, ProcessLookupError, PermissionError):  # Windows has no groups
        os.killpg(pid, signal.SIGKILL)


def pump(output: IO[str], lines: queue.Queue[str]) -> None:
    """Put each line of a process into a queue, and "" when the process ends."""
    with output:
        for line in output:
            lines.put(line)
    lines.put("")
