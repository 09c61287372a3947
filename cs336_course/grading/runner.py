"""Start the process that runs answers, and send it jobs."""

import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cs336_course.grading import isolation, process_tree
from cs336_course.grading.container import INSIDE, Container
from cs336_course.grading.report import ERROR, printable
from cs336_course.grading.submissions import copy_files
from cs336_lib import __version__
from cs336_lib.config import UserError

START, GRACE = 300, 30  # seconds to start, and to end an answer after its time limit

LINE = 2**16  # bytes; a result is shorter

RUN = "from cs336_course.grading import answer_process; answer_process.main()"


@dataclass(frozen=True)
class Limits:
    """Limits of an answer.

    Attributes:
        seconds: Time in seconds, including the check.
        memory_gb: Memory in GB, in addition to what PyTorch takes.
    """

    seconds: float = 120
    memory_gb: float = 8

    def __post_init__(self) -> None:
        for name in ("seconds", "memory_gb"):
            value = getattr(self, name)
            if not 0 < value < 1e6:
                raise UserError(f"{name} is {value}; a number above 0 expected")


@dataclass
class Runner:
    """A process that runs answers. It is started again if an answer ends it.

    Nothing that it writes is believed unless it has the nonce of the job.

    Attributes:
        course: Folder of the course's notebooks.
        home: Temporary folder, with a folder for each learner, which is the home of its answers.
        limits: Limits of each answer.
        container: Command line and name of the container, or `None` for a process of this system.
        is_offline: Whether the system cuts the process off from the network.
        has_own_processes: Whether the system cuts answers off from other processes.
        left_out: Files of the learner that were not copied.
        process: The process, or `None` if it has to be started.
        buffer: What it has written after the last line that was read.
        folder: Folder of the learner.
        work: Folder with the copies of the learner's files.
        is_copied: Whether they have been copied.
    """

    course: Path
    home: Path
    limits: Limits
    container: Container | None = None
    is_offline: bool = False
    has_own_processes: bool = False
    left_out: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    buffer: bytes = field(default=b"", repr=False)
    folder: Path = Path()
    work: Path = Path()
    is_copied: bool = False

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process.

        Raises:
            UserError: If it ends, or says nothing for `START` seconds.
        """
        self.buffer = b""
        with tempfile.TemporaryFile(dir=self.home) as errors:  # without a name, so nobody opens it
            self.process = subprocess.Popen(
                self.container.command(self.work, self.limits.memory_gb)
                if self.container
                else [sys.executable, "-Ps", "-c", RUN],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.course,
                env=None if self.container else environment(self.home),
                start_new_session=True,  # Ctrl-C is for this process, which then ends the other
                bufsize=0,
            )
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
            try:
                ready = json.loads(self.receive(time.monotonic() + START) or b"")
                self.is_offline, self.has_own_processes, version = ready
            except (ValueError, TypeError):
                self.stop()
                errors.seek(0)
                said = printable(errors.read()[-500:].decode(errors="replace"))
                raise UserError(f"cannot run answers: {said or 'no answer'}") from None
        if version != __version__:
            self.stop()
            raise UserError(f"the image has cs336-lib {version}, and this is {__version__}")
        return self.process

    def receive(self, deadline: float) -> bytes | None:
        """Return the next line from the process, or `None` if there is none before the deadline."""
        assert self.process is not None
        assert self.process.stdout is not None
        pipe = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                return None
            with suppress(BlockingIOError):  # another process has read it
                if not (piece := os.read(pipe, LINE)):
                    return None
                self.buffer = self.buffer[-LINE:] + piece
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def send(self, text: str, deadline: float) -> None:
        """Write to the process.

        Raises:
            OSError: If it has ended, or doesn't read before the deadline.
        """
        assert self.process is not None
        assert self.process.stdin is not None
        pipe, data = self.process.stdin.fileno(), memoryview(text.encode())
        while data:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([], [pipe], [], left)[1]:
                raise TimeoutError
            with suppress(BlockingIOError):
                data = data[os.write(pipe, data[:LINE]) :]

    @contextmanager
    def learner(self, folder: Path) -> Iterator[None]:
        """Run a learner's answers within this block, in a copy of the learner's folder."""
        with tempfile.TemporaryDirectory(dir=self.home, ignore_cleanup_errors=True) as place:
            self.folder, self.work = folder, Path(place) / "work"
            self.left_out, self.is_copied = [], False
            try:
                yield
            finally:
                if self.container:  # what an answer leaves behind ends with the container
                    self.stop()

    def run(self, job: Mapping[str, Any]) -> tuple[str, str]:
        """Run a job, and return the verdict and the diagnosis."""
        folder = Path(job["folder"])
        try:
            if not self.is_copied:
                self.is_copied = True
                self.left_out = copy_files(self.folder, self.work)
            if self.process is None:
                self.start()
        except (OSError, UserError) as error:
            return ERROR, str(error)
        nonce = secrets.token_hex()
        root = INSIDE if self.container else str(self.work)
        where = {"root": root, "is_copied": self.container is not None}
        where["below"] = str(folder.relative_to(self.folder))
        text = json.dumps({**job, **where})
        deadline = time.monotonic() + job["seconds"] + GRACE
        try:
            self.send(f"{len(text):012d}{text}{nonce}", deadline)
            while (line := self.receive(deadline)) is not None:
                if result := verdict_of(line, nonce):
                    return result
        except OSError:
            pass
        is_running = self.process is not None and self.process.poll() is None
        self.stop()
        what = "stopped" if is_running else "ended"
        return ERROR, f"the code {what} the process that runs it"

    def stop(self) -> None:
        """End the process and its descendants."""
        if self.process is not None:
            process_tree.end_descendants(self.process.pid)
            if self.container:
                self.container.remove()
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                pipe.close()
        self.process = None


def environment(home: Path) -> dict[str, str]:
    """Return few environment variables for the process, because others may hold secrets."""
    kept = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CS336_CPU_BF16")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)]),
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",  # every answer runs on the CPU
    }


def verdict_of(line: bytes, nonce: str) -> tuple[str, str] | None:
    """Return the verdict and the diagnosis in a line, or `None` if it isn't this job's result."""
    try:
        found, verdict, said = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None
    is_ours = found == nonce and type(verdict) is str and type(said) is str
    return (verdict, said) if is_ours else None


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Clean up within this block when the process is asked to end, as after Ctrl-C."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def runner(course: Path, limits: Limits, image: str = "") -> Iterator[Runner]:
    """Run answers within this block, in a temporary folder that is removed at the end.

    Args:
        course: Folder of the course's notebooks.
        limits: Limits of each answer.
        image: The course's image for a container, or "".

    Raises:
        UserError: If answers can't be run.
    """
    container = Container(image) if image else None
    with ending_on_signals(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        made = Runner(course, Path(home), limits, container)
        made.work = Path(home)
        isolation.hide()
        try:
            made.start()
            if container:  # each learner gets a new one
                made.stop()
            yield made
        finally:
            made.stop()
            isolation.hide(False)
