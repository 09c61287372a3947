"""Grade a class's notebooks: run every answer, and write the verdicts to a CSV file."""

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

from cs336_lib.classroom import cell_slice, study
from cs336_lib.config import require
from cs336_lib.io import temporary_path, write_atomic, writing

MISSING, ERROR = "missing", "error"
NOTEBOOK_BYTES = 100 * 2**20
COURSE = study.SHIPPED
RUN = "from cs336_lib.classroom import graded_run; graded_run.main()"


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
            require(0 < value < 1e6, f"{name} is {value}; a number above 0 expected")


@dataclass
class Runner:
    """A process that runs answers. It is started again if an answer ends it.

    Attributes:
        course: Folder of the course's notebooks.
        home: Temporary folder, which is the home of the process.
        is_offline: Whether the system cuts the process off from the network.
    """

    course: Path
    home: Path
    is_offline: bool = False
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def start(self) -> subprocess.Popen[str]:
        """Start the process with few environment variables, because they may hold secrets."""
        kept = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CS336_CPU_BF16")
        environment = {name: os.environ[name] for name in kept if name in os.environ} | {
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).parents[2]), *filter(None, sys.path)]
            ),
            "MPLBACKEND": "agg",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",  # every answer runs on the CPU
        }
        errors = self.home / "errors.txt"
        with open(errors, "w") as file:
            process = subprocess.Popen(
                [sys.executable, "-Ps", "-c", RUN],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                cwd=self.course,
                env=environment,
            )
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            raise RuntimeError(f"cannot run answers: {errors.read_text()[-500:]}")
        self.is_offline = json.loads(ready)
        return process

    def run(self, job: Mapping[str, Any]) -> tuple[str, str]:
        """Run a job, and return the verdict and the diagnosis."""
        if self.process is None:
            self.process = self.start()
        with tempfile.TemporaryDirectory(dir=self.home, ignore_cleanup_errors=True) as folder:
            here = Path(folder) / "work"
            with suppress(OSError):  # a file that can't be read isn't copied
                unneeded = ignore_patterns("*.ipynb", ".*")
                copytree(job["folder"], here, symlinks=True, ignore=unneeded)
            try:
                print(json.dumps({**job, "folder": str(here)}), file=self.process.stdin, flush=True)
                verdict, said = json.loads(self.process.stdout.readline())
            except (OSError, ValueError):
                self.stop()
                return ERROR, "the code ended the process that runs it"
        return verdict, said

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.process = None


@contextmanager
def runner(course: Path) -> Iterator[Runner]:
    """Run answers within this block, in a temporary folder that is removed at the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        made = Runner(course, Path(home))
        made.process = made.start()
        try:
            yield made
        finally:
            made.stop()


def learners(folder: Path) -> list[Path]:
    """Return the learners' folders in order of their names.

    Raises:
        ValueError: If there is no such folder, or no learner in it.
    """
    require(folder.is_dir(), f"{folder}: no such folder")
    found = sorted(path for path in folder.iterdir() if path.is_dir() and is_visible(path))
    example = "a folder with a folder for each learner expected, as in FOLDER/ada/03_einops.ipynb"
    require(bool(found), f"{folder}: {example}")
    has_notebook = any(next(notebooks(path), None) for path in found)
    require(has_notebook, f"{folder}: no notebooks; {example}")
    return found


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
    except ValueError:
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
        ValueError: If the file isn't a notebook.
    """
    try:
        require(path.stat().st_size <= NOTEBOOK_BYTES, "more than 100 MiB")
        return cell_slice.code_cells(json.loads(path.read_bytes()))
    except (ValueError, RecursionError):
        raise ValueError(f"{path.name} is not a notebook") from None


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
    path = find(folder, course)
    if path is None:
        yield from (Result(stem, name, MISSING) for name in stubs)
        return
    try:
        cells = read(path)
    except ValueError as error:
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
        ValueError: If `out` isn't the name of a new CSV file.
        OSError: If it can't be written.
    """
    require(out.suffix == ".csv", f"--out is {out}; a name that ends with .csv expected")
    details = out.with_name(f"{out.stem}_diagnoses.csv")
    for path in (out, details):
        require(not path.exists(), f"{path} exists; move it, or choose another name with --out")
        with writing(path):
            temporary_path(path).touch()
            temporary_path(path).unlink()
    return details


def grade(folder: Path, out: Path, limits: Limits) -> Iterator[str]:
    """Grade a class, write two CSV files, and yield a line per learner as it is graded.

    Args:
        folder: Folder with a folder for each learner.
        out: File for the verdicts. The diagnoses are written next to it.
        limits: Limits of each answer.

    Raises:
        ValueError: If the folder has no learners, or `out` isn't the name of a new CSV file.
    """
    require(hasattr(os, "fork"), "cs336 grade needs Linux, macOS or WSL")
    details = check_out(out)
    found = learners(folder)
    originals = study.originals(COURSE)
    width = max(len(printable(path.name)) for path in found)
    grades: dict[str, list[Result]] = {}
    yield f"grading {len(found)} learner{'s' if len(found) > 1 else ''}"
    with runner(COURSE) as process:
        if not process.is_offline:
            yield "This system can't cut answers off from the network; see docs/presenting.md."
        for learner in found:
            results = [
                result
                for original in originals
                for result in grade_notebook(original, learner, limits, process.run)
            ]
            grades[learner.name] = results
            yield line(printable(learner.name), results, width)
    write_atomic(details, diagnoses(grades))
    write_atomic(out, table(grades))
    yield f"verdicts in {out}, diagnoses in {details}"
