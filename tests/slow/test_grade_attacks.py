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

from tests.slow.test_grade import DTYPES, EINOPS, RIGHT, WRONG, hand_in, solutions

ROOT = Path(__file__).parents[2]
SECONDS = 3
NO_NAMESPACES = (
    "from cs336_course.grading import answer_process, isolation\n"
    "isolation.unshare = lambda flags: False\nanswer_process.main()"
)
GRADE = """
import signal, sys
from pathlib import Path
from cs336_course.grading import grade, runner
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
without = sys.argv[1]
runner.RUN = without or runner.RUN
runner.GRACE = 4
for line in grade.grade(Path("class"), Path("grades.csv"), runner.Limits({seconds}, {memory})):
    print(line, flush=True)
"""

STOPS = "import os\nos.kill(os.getppid(), 19)\n" + WRONG
FORGES = """
import os
line = b'\\n["passed", ""]\\n["passed", ""]\\n[["x"], 5]\\n'
pids, pid = [], os.getppid()
for _ in range(2):
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


def graded(
    folder: Path, without: str = "", memory: float = 2, seconds: float = SECONDS
) -> dict[str, str]:
    """Grade the class in a folder in time, and return the verdicts on `head_scores`."""
    script = GRADE.replace("{seconds}", str(seconds)).replace("{memory}", str(memory))
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
    assert {name: found[name] for name in "bce"} == {
        "b": "passed",
        "c": "not right yet",
        "e": "passed",
    }
    # What a forger writes into its own pipes may make it wait in vain, which is its own loss.
    assert found["a"] in {"not right yet", "time limit"}
    assert found["d"] in {"passed", "time limit"}


@pytest.mark.parametrize("without", ["", NO_NAMESPACES], ids=["namespaces", "none"])
def test_nothing_outlives_an_answer(tmp_path, without):
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    make(tmp_path, a=LEAVES.replace("MARK", mark) + RIGHT, b=RIGHT)
    assert graded(tmp_path, without) == {"a": "passed", "b": "passed"}
    assert running(mark) == []


@pytest.mark.parametrize("without", ["", NO_NAMESPACES], ids=["namespaces", "none"])
def test_the_memory_limit_counts_all_processes_of_an_answer(tmp_path, without):
    make(tmp_path, a=FOUR + RIGHT, b=RIGHT)
    assert graded(tmp_path, without, memory=1, seconds=20) == {"a": "memory limit", "b": "passed"}


class Slow:
    """A class of four, whose third learner's answer takes long."""

    def __init__(self, folder: Path):
        make(folder, a=RIGHT, b=WRONG, c="import time\ntime.sleep(60)\n" + RIGHT, d=RIGHT)
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
    first = "from pathlib import Path\nPath('x').touch()\n" + solutions(DTYPES)["decode_by_hand"]
    folder = tmp_path / "class" / "a"
    hand_in(folder / f"{DTYPES}.ipynb", {"decode_by_hand": first})
    hand_in(folder / f"{EINOPS}.ipynb", {"head_scores": "open('x')\n" + RIGHT})
    assert graded(tmp_path) == {"a": "passed"}
    assert not (folder / "x").exists()


LIES = """
import sys
def look(self):
    return float(sys._getframe(1).f_locals["want"])
answer = type("Lie", (float,), {NAME: look})(5.5)
checks.decode_by_hand(answer)
"""


@pytest.mark.parametrize("name", ["'__float__'", "'__flo' + 'at__'"])
def test_a_number_that_becomes_what_the_caller_wants(tmp_path, name):
    hand_in(
        tmp_path / "class" / "a" / f"{DTYPES}.ipynb", {"decode_by_hand": LIES.replace("NAME", name)}
    )
    graded(tmp_path)
    with open(tmp_path / "grades.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["01 decode_by_hand"] == "not right yet"


FAKE = """#!{python}
import json, os, subprocess, sys
words = sys.argv[1:]
with open({log!r}, "a") as file:
    print(json.dumps([os.path.basename(sys.argv[0]), *words]), file=file)
if words[0] == "rm":
    sys.exit()
source = words[words.index("--volume") + 1].split(":")[0]
settings = [words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--env"]
settings = dict(settings) | {{"TMPDIR": {folder!r}, "PYTHONPATH": {root!r}}}
mount = "from cs336_course.grading import answer_process as g; copy = g.writable; "
mount += f"g.writable = lambda root: copy({{{{'/answers': {{source!r}}}}}}[root]); "
at = words.index("course") + 1
sys.exit(subprocess.call([sys.executable, *words[at:-1], mount + words[-1]], env=settings))
"""


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_answers_run_in_a_container_for_each_learner(tmp_path, engine):
    helped = "from helper import one\nopen('mine.txt', 'w').write('x')\n" + RIGHT
    make(tmp_path, a=helped, b=WRONG, c="import os\nos._exit(0)\n" + RIGHT, d=RIGHT)
    (tmp_path / "class" / "a" / "helper.py").write_text("one = 1\n")
    for name in ("bin", "inside"):
        (tmp_path / name).mkdir()
    log, program = tmp_path / "log.jsonl", tmp_path / "bin" / engine
    values = {"python": sys.executable, "log": str(log), "root": str(ROOT)}
    program.write_text(FAKE.format(**values, folder=str(tmp_path / "inside")))
    program.chmod(0o755)
    command = [sys.executable, "-m", "cs336_course", "grade", "class", "--container", "course"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": str(tmp_path / "bin")}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    wanted = {"a": "passed", "b": "not right yet", "c": "error", "d": "passed"}
    assert verdicts(tmp_path) == wanted
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    runs = [call for call in calls if call[1] == "run"]
    removed = [call[-1] for call in calls if call[1:3] == ["rm", "--force"]]
    assert {call[0] for call in calls} == {engine}
    assert len(runs) == 1 + len(wanted)
    assert [call[call.index("--name") + 1] for call in runs] == removed


def test_a_container_that_does_not_start_is_one_line(tmp_path):
    make(tmp_path, a=RIGHT)
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'No such image: course' >&2\nexit 125\n")
    program.chmod(0o755)
    command = [sys.executable, "-m", "cs336_course", "grade", "class", "--container", "course"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": str(tmp_path / "bin")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
    )
    said = "cs336: cannot run answers: No such image: course\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
