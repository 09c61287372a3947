"""Answers that attack `cs336 grade`: only their own learner's grade may suffer."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.slow.test_grade import DTYPES, EINOPS, NUMBER, RIGHT, WRONG, hand_in

ROOT = Path(__file__).parents[2]
SECONDS = 3
NO_NAMESPACES = (
    "from cs336_lib.classroom import graded_run, isolation\n"
    "isolation.unshare = lambda flags: False\ngraded_run.main()"
)
GRADE = """
import sys
from pathlib import Path
from cs336_lib.classroom import grade
without = sys.argv[1]
grade.RUN = without or grade.RUN
grade.GRACE = 4
for line in grade.grade(Path("class"), Path("grades.csv"), grade.Limits({seconds}, {memory})):
    print(line, flush=True)
"""

STOPS = "import os\nos.kill(os.getppid(), 19)\n" + WRONG
FORGES = """
import os
line = b'\\n["passed", ""]\\n["passed", ""]\\n[["x"], 5]\\n'
pids, pid = [], os.getppid()
for _ in range(3):
    pids.append(pid)
    try:
        status = open(f"/proc/{pid}/status").read()
    except OSError:
        break
    pid = int(status.split("PPid:")[1].split()[0])
for pid in pids:
    try:
        found = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        continue
    for fd in found:
        try:
            if "pipe" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                os.write(os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK), line)
        except OSError:
            pass
"""
LEAVES = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; 'MARK'; time.sleep(300)"],
                 start_new_session=True)
"""
FOUR = """
import subprocess, sys
fill = "import time; held = bytearray(b'x') * 400_000_000; time.sleep(300)"
started = [subprocess.Popen([sys.executable, "-c", fill]) for _ in range(4)]
started[0].wait()
"""


def graded(folder: Path, without: str = "", memory: float = 2) -> dict[str, str]:
    """Grade the class in a folder in time, and return the verdicts on `head_scores`."""
    script = GRADE.replace("{seconds}", str(SECONDS)).replace("{memory}", str(memory))
    subprocess.run(
        [sys.executable, "-c", script, without],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=120,
    )
    return verdicts(folder)


def verdicts(folder: Path) -> dict[str, str]:
    """The verdicts on `head_scores`."""
    with open(folder / "grades.csv") as file:
        return {row["learner"]: row["03 head_scores"] for row in csv.DictReader(file)}


def make(folder: Path, **answers: str) -> None:
    """Make a class whose learners answer only `head_scores`."""
    for name, code in answers.items():
        hand_in(folder / "class" / name / f"{EINOPS}.ipynb", {"head_scores": code})


def running(mark: str) -> list[str]:
    """The processes whose command has a mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path.parent.name] if mark.encode() in path.read_bytes() else []
        except OSError:
            continue
    return found


@pytest.mark.parametrize("without", ["", NO_NAMESPACES], ids=["namespaces", "none"])
def test_a_stopped_process_does_not_stop_the_others(tmp_path, without):
    make(tmp_path, a=STOPS, b=RIGHT)
    found = graded(tmp_path, without)
    assert found == {"a": "error" if without else "not right yet", "b": "passed"}


@pytest.mark.parametrize("without", ["", NO_NAMESPACES], ids=["namespaces", "none"])
def test_a_forged_result_is_refused_and_shifts_no_other(tmp_path, without):
    make(tmp_path, a=FORGES + WRONG, b=RIGHT, c=WRONG, d=FORGES + RIGHT, e=RIGHT)
    found = graded(tmp_path, without)
    wrong = "not right yet"
    assert found == {"a": wrong, "b": "passed", "c": wrong, "d": "passed", "e": "passed"}


@pytest.mark.parametrize("without", ["", NO_NAMESPACES], ids=["namespaces", "none"])
def test_nothing_outlives_an_answer(tmp_path, without):
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    make(tmp_path, a=LEAVES.replace("MARK", mark) + RIGHT, b=RIGHT)
    assert graded(tmp_path, without) == {"a": "passed", "b": "passed"}
    assert running(mark) == []


@pytest.mark.parametrize("without", ["", NO_NAMESPACES], ids=["namespaces", "none"])
def test_the_memory_limit_counts_all_processes_of_an_answer(tmp_path, without):
    make(tmp_path, a=FOUR + RIGHT, b=RIGHT)
    assert graded(tmp_path, without, memory=1) == {"a": "memory limit", "b": "passed"}


class Slow:
    """A class of four, whose third learner's answer takes long."""

    def __init__(self, folder: Path):
        make(folder, a=RIGHT, b=WRONG, c="import time\ntime.sleep(60)\n" + RIGHT, d=RIGHT)
        for name in ("a", "b"):
            hand_in(folder / "class" / name / f"{DTYPES}.ipynb", {"decode_by_hand": NUMBER})
        (folder / "tmp").mkdir()
        self.folder = folder
        script = GRADE.replace("{seconds}", "100").replace("{memory}", "2")
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, ""],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")},
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self, number: int) -> int:
        """Send a signal after two learners, and return the exit status."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("b "):
                time.sleep(1)
                self.process.send_signal(number)
                break
        status = self.process.wait(timeout=30)
        self.process.stdout.close()
        return status


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_the_grades_and_removes_its_files(tmp_path, number):
    assert Slow(tmp_path).end(number) != 0
    assert verdicts(tmp_path) == {"a": "passed", "b": "not right yet"}
    with open(tmp_path / "grades_diagnoses.csv") as file:
        assert [row["learner"] for row in csv.DictReader(file)] == ["b"]
    assert list((tmp_path / "tmp").iterdir()) == []
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"class", "tmp", "grades.csv", "grades_diagnoses.csv"}


def test_a_large_sparse_file_is_not_copied(tmp_path):
    listing = "import os\nassert os.listdir('.') == ['helper.py'], os.listdir('.')\n"
    make(tmp_path, a=listing + RIGHT)
    folder = tmp_path / "class" / "a"
    (folder / "helper.py").write_text("one = 1\n")
    with open(folder / "big.bin", "wb") as file:
        file.truncate(200 * 10**9)
    os.mkfifo(folder / "pipe")
    assert graded(tmp_path) == {"a": "passed"}


def test_the_folder_is_copied_once(tmp_path):
    both = {"decode_by_hand": "from pathlib import Path\nPath('x').touch()\n" + NUMBER}
    folder = tmp_path / "class" / "a"
    hand_in(folder / f"{DTYPES}.ipynb", both)
    hand_in(folder / f"{EINOPS}.ipynb", {"head_scores": "open('x')\n" + RIGHT})
    make(tmp_path, b=RIGHT)
    assert graded(tmp_path) == {"a": "passed", "b": "passed"}
    assert json.loads((folder / f"{EINOPS}.ipynb").read_text())
