"""Grade a class's notebooks: run every answer, and write the verdicts to a CSV file."""

import csv
import io
import json
import os
import secrets
import select
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copyfile
from typing import Any

from cs336_course.grading import cell_slice, isolation, process_tree
from cs336_course.grading.container import INSIDE, Container
from cs336_course.learner import study
from cs336_lib import __version__
from cs336_lib.config import UserError
from cs336_lib.io import temporary_path, write_atomic, writing

MISSING, ERROR = "missing", "error"
NOTEBOOK_BYTES = 100 * 2**20
FOLDER_BYTES, FILES = 200 * 10**6, 10_000  # of a learner, without notebooks
START, GRACE = 300, 30  # seconds to start, and to end an answer after its time limit
LINE = 2**16  # bytes; a result is shorter
COURSE = study.SHIPPED
UNPROTECTED = (
    "This system can't cut answers off from the network or from other processes; "
    "see docs/presenting.md."
)
NAMES = 5  # of files that are left out
RUN = "from cs336_course.grading import graded_run; graded_run.main()"


@dataclass(frozen=True)
class Result:
    """The verdict on an exercise of a learner.

    Attributes:
        notebook: Name of the notebook, such as "03_einops".
        exercise: Name of the check.
        verdict: The verdict.
        said: The check's diagnosis, or what else went wrong.
    """

    notebook: str
    exercise: str
    verdict: str
    said: str = ""

    @property
    def column(self) -> str:
        """Title of the exercise's column, such as "03 head_scores"."""
        return f"{self.notebook.partition('_')[0]} {self.exercise}"


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


def copy_files(folder: Path, to: Path) -> list[str]:
    """Copy a learner's files other than notebooks, and return the names of those left out.

    A file is left out if it can't be read, or if more than `FOLDER_BYTES` or `FILES` would be
    copied. The holes of sparse files count.
    """
    left, files, left_out = FOLDER_BYTES, FILES, []
    to.mkdir()
    to.chmod(0o755)  # another account reads it in a container
    for root, folders, names in os.walk(folder):
        here = to / Path(root).relative_to(folder)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links = [name for name in folders if Path(root, name).is_symlink()]
        for name in sorted({*folders, *names}):
            path = Path(root, name)
            if name.startswith(".") or path.suffix == ".ipynb":
                continue
            try:
                status = path.lstat()
                size = status.st_size if stat.S_ISREG(status.st_mode) else 0
                if size > left or files == 0:
                    raise UserError("too large")
                copy_one(path, here / name, status.st_mode)
                left, files = left - size, files - 1
            except (OSError, UserError):
                left_out.append(str(path.relative_to(folder)))
        folders[:] = [name for name in folders if name not in links and (here / name).is_dir()]
    return left_out


def copy_one(path: Path, to: Path, mode: int) -> None:
    """Copy a file or link, or make a folder.

    Raises:
        UserError: If it is something else.
        OSError: If it can't be read or written.
    """
    if stat.S_ISLNK(mode):
        to.symlink_to(path.readlink())
        return
    if stat.S_ISDIR(mode):
        to.mkdir()
    elif stat.S_ISREG(mode):
        copyfile(path, to, follow_symlinks=False)
    else:
        raise UserError("not a file")
    to.chmod(0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o644)


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


def learners(folder: Path) -> list[Path]:
    """Return the learners' folders in order of their names.

    Raises:
        UserError: If there is no such folder, or no learner in it.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    found = sorted(path for path in folder.iterdir() if path.is_dir() and is_visible(path))
    example = "a folder with a folder for each learner expected, as in FOLDER/ada/03_einops.ipynb"
    if not found:
        raise UserError(f"{folder}: {example}")
    if not any(has_one(path) for path in found):
        raise UserError(f"{folder}: no notebooks; {example}")
    return found


def has_one(folder: Path) -> bool:
    """Return whether a learner's folder has a notebook, or can't be read."""
    try:
        return next(notebooks(folder), None) is not None
    except (OSError, RecursionError):
        return True


def is_visible(path: Path) -> bool:
    """Return whether a path isn't one of the folders that systems add, such as .git."""
    return not path.name.startswith((".", "__MACOSX"))


def notebooks(folder: Path) -> Iterator[Path]:
    """Yield the notebooks in a learner's folder and its subfolders."""
    for path in sorted(folder.rglob("*.ipynb")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not path.is_symlink() and all(is_visible(Path(p)) for p in parts):
            yield path


def is_edited(path: Path, course: Path) -> bool:
    """Return whether the code of a learner's copy differs from the course's notebook."""
    try:
        return read(path) != read(course)
    except (OSError, UserError):
        return True


def find(folder: Path, course: Path) -> Path | None:
    """Return a learner's copy of the course's notebook, whose name begins like its, or None.

    Among several copies, such as "03_einops (1).ipynb", the one that was changed last is used.
    A copy without edits is used only if there is no other, because pulling makes newer ones.
    """
    stem = course.stem
    after = len(stem)
    names = [p for p in notebooks(folder) if p.stem.startswith(stem)]
    found = [path for path in names if not path.stem[after : after + 1].isalpha()]

    def rank(path: Path) -> tuple[bool, float, bool]:
        return is_edited(path, course), path.stat().st_mtime, path.stem == stem

    return max(found, key=rank, default=None)


def read(path: Path) -> list[tuple[str, str]]:
    """Return the code cells of an untrusted notebook, as `cell_slice.code_cells` does.

    Raises:
        UserError: If the file isn't a notebook, or is too large.
    """
    if path.stat().st_size > NOTEBOOK_BYTES:
        raise UserError(f"{path.name} is not a notebook")
    try:
        return cell_slice.code_cells(json.loads(path.read_bytes()))
    except (ValueError, RecursionError):  # not JSON, or not a notebook
        raise UserError(f"{path.name} is not a notebook") from None


def grade_notebook(
    course: Path, folder: Path, limits: Limits, run: Callable[[Mapping[str, Any]], tuple[str, str]]
) -> Iterator[Result]:
    """Grade a learner's copy of one notebook.

    Args:
        course: The course's notebook.
        folder: Folder of the learner.
        limits: Limits of each answer.
        run: Runs a job of `graded_run`, and returns the verdict and the diagnosis.
    """
    stem = course.stem
    stubs = {name: source for source, name in read(course) if name}
    try:
        path = find(folder, course)
        if path is None:
            yield from (Result(stem, name, MISSING) for name in stubs)
            return
        cells = read(path)
    except (OSError, UserError, RecursionError, MemoryError) as error:
        yield from (Result(stem, name, ERROR, str(error)) for name in stubs)
        return
    passed: list[str] = []
    for name, stub in stubs.items():
        at = cell_slice.locate(cells, name, stub)
        if at is None or cells[at][0].split() == stub.split():
            yield Result(stem, name, study.OPEN)
            continue
        job = {"notebook": stem, "exercise": name, "at": at, "passed": passed}
        job |= {"sources": [source for source, _ in cells], "folder": str(path.parent)}
        job |= {"seconds": limits.seconds, "memory_gb": limits.memory_gb}
        verdict, said = run(job)
        if verdict == study.PASSED:
            passed.append(name)
        yield Result(stem, name, verdict, said)


def count(results: Sequence[Result]) -> int:
    """Return the number of exercises that a learner has passed."""
    return sum(result.verdict == study.PASSED for result in results)


def line(name: str, results: Sequence[Result], width: int) -> str:
    """Format a learner's results in one line."""
    tally: dict[str, int] = {}
    for result in results:
        tally[result.verdict] = tally.get(result.verdict, 0) + 1
    others = [f"{number} {verdict}" for verdict, number in tally.items() if verdict != study.PASSED]
    text = f"{name:<{width}}  {count(results)} of {len(results)} passed"
    return ", ".join([text, *others])


def table(grades: Mapping[str, Sequence[Result]]) -> str:
    """Format the verdicts as CSV, with a row per learner and a column per exercise."""
    first = next(iter(grades.values()))
    rows = [["learner", "passed", *(result.column for result in first)]]
    for name, results in grades.items():
        rows.append([name, str(count(results)), *(result.verdict for result in results)])
    return to_csv(rows)


def diagnoses(grades: Mapping[str, Sequence[Result]]) -> str:
    """Format the diagnoses as CSV, with a row per answer that has one."""
    rows = [["learner", "notebook", "exercise", "verdict", "diagnosis"]]
    for name, results in grades.items():
        said = [result for result in results if result.said]
        rows += [[name, r.notebook, r.exercise, r.verdict, r.said] for r in said]
    return to_csv(rows)


def to_csv(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as CSV that is safe in a spreadsheet, where "=" begins a formula."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for row in rows:
        cells = [printable(cell) for cell in row]
        writer.writerow([f"'{cell}" if cell[:1] in "=+-@" and cell else cell for cell in cells])
    return file.getvalue()


def printable(text: str) -> str:
    """Return text on one line, with escaped control characters, which could change a terminal."""
    shown = (c if c.isprintable() or c.isspace() else repr(c)[1:-1] for c in text)
    return " ".join("".join(shown).encode(errors="backslashreplace").decode().split())


def check_out(out: Path) -> Path:
    """Check that the CSV files can be written, and return the path of the diagnoses.

    Raises:
        UserError: If `out` isn't the name of a new CSV file.
        OSError: If it can't be written.
    """
    if out.suffix != ".csv":
        raise UserError(f"--out is {out}; a name that ends with .csv expected")
    details = out.with_name(f"{out.stem}_diagnoses.csv")
    for path in (out, details):
        if path.exists():
            raise UserError(f"{path} exists; move it, or choose another name with --out")
        with writing(path):
            temporary_path(path).touch()
            temporary_path(path).unlink()
    return details


def grade(folder: Path, out: Path, limits: Limits, image: str = "") -> Iterator[str]:
    """Grade a class, write two CSV files, and yield a line per learner as it is graded.

    The files are replaced after each learner, so an interrupted run keeps what it has graded.

    Args:
        folder: Folder with a folder for each learner.
        out: File for the verdicts. The diagnoses are written next to it.
        limits: Limits of each answer.
        image: The course's image, to run the answers in containers, or "".

    Raises:
        UserError: If the folder has no learners, or `out` isn't the name of a new CSV file.
    """
    if not hasattr(os, "fork"):
        raise UserError("cs336 grade needs Linux, macOS or WSL")
    details = check_out(out)
    found = learners(folder)
    originals = study.originals(COURSE)
    width = max(len(printable(path.name)) for path in found)
    grades: dict[str, list[Result]] = {}
    with runner(COURSE, limits, image) as process:
        yield f"grading {len(found)} learner{'s' if len(found) > 1 else ''}"
        if not image and not (process.is_offline and process.has_own_processes):
            yield UNPROTECTED
        for learner in found:
            with process.learner(learner):
                grades[learner.name] = [
                    result
                    for original in originals
                    for result in grade_notebook(original, learner, limits, process.run)
                ]
            write_atomic(details, diagnoses(grades))
            write_atomic(out, table(grades))
            name = printable(learner.name)
            yield line(name, grades[learner.name], width)
            if process.left_out:
                yield f"{name}: files not copied: {printable(shortened(process.left_out))}"
    yield f"verdicts in {out}, diagnoses in {details}"


def shortened(names: Sequence[str]) -> str:
    """Format the first names of a list, and how many more it has."""
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more
