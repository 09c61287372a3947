"""Ask another process whether parts of the assembled file are right."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any

UNTOUCHED = "not attempted yet"
ENDED = "your code ended Python"
RUN = "from cs336_course.one_file import check_parts; check_parts.main()"
SECONDS = 120  # for a part and its check
START_SECONDS = 600  # for importing PyTorch, perhaps from a cold disk

# Results of earlier jobs, because a notebook asks for the same parts several times
known: dict[str, str] = {}


@dataclass
class Process:
    """A process that checks parts, within a `with` block.

    It starts when the first part is checked. It starts again after a part that took too long, and
    after every part where it can't run each in a fork. The process itself is no fork, because the
    threads of a notebook's kernel don't survive one.
    """

    running: subprocess.Popen[str] | None = None
    lines: queue.Queue[str] = field(default_factory=queue.Queue)

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> subprocess.Popen[str]:
        """Start the process, and wait until it is ready.

        Raises:
            RuntimeError: If it doesn't start.
        """
        paths = [path or os.getcwd() for path in sys.path]
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            self.running = subprocess.Popen(
                [sys.executable, "-c", RUN],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # so that a part's own processes can be ended with it
            )
            self.lines = queue.Queue()
            arguments = (self.running.stdout, self.lines)
            threading.Thread(target=pump, args=arguments, daemon=True).start()
            if not self.next_line(START_SECONDS):
                self.stop()
                errors.seek(0)
                last = "".join(errors.read().strip().splitlines()[-1:])
                raise RuntimeError(f"the process that checks your code didn't start: {last}")
        return self.running

    def next_line(self, seconds: float) -> str | None:
        """Return the next line, "" if the process ended, or `None` if it takes too long."""
        try:
            return self.lines.get(timeout=seconds)
        except queue.Empty:
            return None

    def reason(self, **job: Any) -> str:
        """Return why a part isn't right or "", as `check_parts.reason` does."""
        key = json.dumps(job)
        if key in known:
            return known[key]
        running = self.running or self.start()
        assert running.stdin is not None
        with suppress(OSError):  # it has ended, which the next line says
            print(key, file=running.stdin, flush=True)
        line = self.next_line(SECONDS)
        if not line:
            self.stop()
            return ENDED if line == "" else f"your code took more than {SECONDS:g} seconds"
        known[key], goes_on = json.loads(line)
        if not goes_on:
            self.stop()
        return known[key]

    def stop(self) -> None:
        """End the process."""
        if self.running is not None:
            with suppress(AttributeError, ProcessLookupError):  # Windows has no groups
                os.killpg(self.running.pid, signal.SIGKILL)
            self.running.kill()
            self.running.wait()
            with suppress(OSError):  # a job may still be in the buffer
                self.running.stdin.close()  # type: ignore[union-attr]
        self.running = None


def pump(output: IO[str], lines: queue.Queue[str]) -> None:
    """Put each line of a process into a queue, and "" when the process ends."""
    with output:
        for line in output:
            lines.put(line)
    lines.put("")
