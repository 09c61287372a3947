"""Grade a class in which every learner does something else with the same exercises.

Only the learner's own grade may suffer. The container protects from more (docs/presenting.md).
"""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from forked import wait

from cs336_course.grading import grade, report, runner, submissions
from cs336_course.one_file import assemble

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
DTYPES, EINOPS, MODEL = STEMS = ("01_dtypes", "03_einops", "07_gpt2_model")
SECONDS = 3


def course(stem: str) -> dict[str, Any]:
    """A notebook of the course."""
    return json.loads(next(NOTEBOOKS.rglob(f"{stem}.ipynb")).read_text())


def named(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    """The cell of an exercise."""
    cells = notebook["cells"]
    return next(c for c in cells if c["metadata"].get("cs336", {}).get("exercise") == name)


def solutions(stem: str) -> dict[str, str]:
    """The code of every exercise with the printed solution."""
    cells, found = course(stem)["cells"], {}
    for cell in cells:
        if name := cell["metadata"].get("cs336", {}).get("exercise"):
            code = assemble.solution(cells, name)
            found[name] = code + "\n" + "".join(cell["source"]).strip().splitlines()[-1]
    return found


def hand_in(path: Path, answers: Mapping[str, str], more: str = "") -> None:
    """Write a learner's notebook, with the code of `more` in a cell after the imports."""
    notebook = course(next(stem for stem in STEMS if path.stem.startswith(stem)))
    for name, code in answers.items():
        named(notebook, name)["source"] = code
    if more:
        cell = {"cell_type": "code", "metadata": {}, "source": more, "outputs": []}
        notebook["cells"].insert(2, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook))


WRONG = "def head_scores(q, k):\n    return q\nchecks.head_scores(head_scores)"
NUMBER = "answer = 5.5\nchecks.decode_by_hand(answer)"
RIGHT = solutions(EINOPS)["head_scores"]

# Answers to `head_scores` in notebook 03, the verdict on them, and a part of the diagnosis
ANSWERS = {
    "wrong": (WRONG, "not right yet", "shape"),
    "raises": (WRONG.replace("return q", "return q.nothing"), "not right yet", "AttributeError"),
    "syntax": ("def head_scores(q, k:\nchecks.head_scores(head_scores)", "error", "SyntaxError"),
    "undefined": ("nothing_here\n" + WRONG, "error", "nothing_here"),
    "another_name": (
        RIGHT.replace("def head_scores", "def mine").replace("(head_scores)", "(mine)"),
        "passed",
        "",
    ),
    "magics": (
        "%time x = 3\n!rm -rf /nowhere\nfiles = !ls\n%matplotlib inline\n" + RIGHT,
        "passed",
        "",
    ),
    "cell_magic": ("%%time\n" + RIGHT, "passed", ""),
    "loop_in_check": (WRONG.replace("return q", "while True: pass"), "time limit", ""),
    "memory_in_check": (
        WRONG.replace("return q", "return bytearray(4 * 10**9)"),
        "memory limit",
        "",
    ),
    "exit_in_check": (WRONG.replace("return q", "raise SystemExit(0)"), "error", "SystemExit"),
    "ends": ("import os\nos._exit(0)\n" + WRONG, "error", "without a result"),
    "kills": ("import os\nos.kill(os.getppid(), 9)\n" + WRONG, "error", "ended the process"),
    "own_checks": ("class checks:\n    head_scores = print\n" + WRONG, "not right yet", ""),
    "writes": (
        "import os, json\nfor file in range(256):\n    try:\n"
        '        os.write(file, b\'["passed", ""]\\n\')\n    except OSError:\n        pass\n'
        + "os._exit(0)\n"
        + WRONG,
        "error",
        "not one that a check gives",
    ),
    "patches_comparison": (
        "from cs336_course.engine import compare, judge\n"
        "compare.difference = judge.difference = lambda *_: None\n"
        "judge.diagnose = lambda *_: None\n" + WRONG,
        "not right yet",
        "",
    ),
    "patches_cases": ("checks.head_scores.cases = lambda: []\n" + WRONG, "not right yet", "ended"),
    "patches_torch": (
        "torch.allclose = torch.equal = torch.testing.assert_close = lambda *a, **k: True\n"
        + WRONG,
        "not right yet",
        "",
    ),
    "writes_a_verdict": (
        "import json, os\n"
        "def head_scores(q, k):\n"
        "    os.write(3, json.dumps(['passed', '']).encode())\n"
        "    os._exit(0)\n"
        "checks.head_scores(head_scores)",
        "error",
        "not one that a check gives",
    ),
    "equals_anything": (
        "class Yes(torch.Tensor):\n    __eq__ = lambda *_: True\n"
        "def head_scores(q, k):\n    return q.as_subclass(Yes)\n"
        "checks.head_scores(head_scores)",
        "not right yet",
        "",
    ),
    "default_dtype": ("torch.set_default_dtype(torch.float64)\n" + RIGHT, "passed", ""),
    "compiles": (
        "torch.compile(torch.sin, backend='eager')(torch.ones(3))\n" + RIGHT,
        "passed",
        "",
    ),
    "environment": (
        "import os, pathlib\nassert 'SECRET' not in os.environ\n"
        "assert str(pathlib.Path.home()).startswith(os.environ['TMPDIR'])\n" + RIGHT,
        "passed",
        "",
    ),
    "folder": ("open('mine.txt', 'w').write('x')\nfrom helper import one\n" + RIGHT, "passed", ""),
    "later_cell": (RIGHT, "passed", ""),
}


def make_class(folder: Path) -> None:
    """Make a class with a learner for each kind of answer, and some with other notebooks."""
    for name, (code, _, _) in ANSWERS.items():
        hand_in(folder / name / f"{EINOPS}.ipynb", {"head_scores": code})
    (folder / "folder" / "helper.py").write_text("one = 1\n")
    hand_in(folder / "solved" / f"{DTYPES}.ipynb", solutions(DTYPES))
    hand_in(folder / "solved" / "week 2" / f"{EINOPS} (1).ipynb", solutions(EINOPS))

    untouched = course(EINOPS)
    text = {"output_type": "stream", "name": "stdout", "text": "head_scores: passed\n"}
    named(untouched, "head_scores")["outputs"] = [text]
    (folder / "untouched").mkdir()
    (folder / "untouched" / f"{EINOPS}-2.ipynb").write_text(json.dumps(untouched))

    stripped = course(EINOPS)
    named(stripped, "head_scores")["source"] = RIGHT.splitlines(keepends=True)
    for cell in stripped["cells"]:
        cell["metadata"] = {}
    (folder / "stripped").mkdir()
    (folder / "stripped" / f"{EINOPS}.ipynb").write_text(json.dumps(stripped))

    one_wrong = solutions(EINOPS) | {"head_scores": WRONG}
    hand_in(folder / "one_wrong" / f"{EINOPS}.ipynb", one_wrong)
    helper = "from torch import einsum as summed\nx = 1 / 0\nPLAN = 'bqhd,bkhd->bhqk'\n"
    helper += "def dots(x, y):\n    return summed(PLAN, x, y)"
    helped = "def head_scores(q, k):\n    return dots(q, k)\nchecks.head_scores(head_scores)"
    hand_in(folder / "helped" / f"{EINOPS}.ipynb", {"head_scores": helped}, helper)
    moved = RIGHT.rsplit("\n", 1)
    hand_in(folder / "moved" / f"{EINOPS}.ipynb", {"head_scores": moved[1]}, moved[0])

    parts = solutions(MODEL)
    wrong = "def attention(q, k, v):\n    return q\nattention = checks.attention(attention)"
    hand_in(folder / "wrong_part" / f"{MODEL}.ipynb", parts | {"attention": wrong})
    own = parts["attention"].replace("v: Tensor)", "v: Tensor, own=0)")
    used = re.sub(r"\battention\((.*)\)", r"attention(\1, 1)", parts["causal_self_attention"])
    more = re.sub(r"\n+init_weights = ", "\n    return 3\n\ninit_weights = ", parts["init_weights"])
    own_parts = {"attention": own, "causal_self_attention": used, "init_weights": more}
    hand_in(folder / "own_part" / f"{MODEL}.ipynb", own_parts)

    (folder / "=1+1").mkdir()
    (folder / "broken").mkdir()
    (folder / "broken" / f"{EINOPS}.ipynb").write_text("[" * 100_000)
    (folder / ".git").mkdir()


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> dict[str, Any]:
    """The rows of both CSV files by learner, and what the command prints."""
    folder = tmp_path_factory.mktemp("class")
    make_class(folder / "class")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SECRET", "token")
        limits = runner.Limits(SECONDS, 2)
        printed = list(grade.grade(folder / "class", folder / "grades.csv", limits))
    after = {path: path.read_bytes() for path in (folder / "class").rglob("*") if path.is_file()}
    with open(folder / "grades.csv") as file:
        verdicts = {row["learner"]: row for row in csv.DictReader(file)}
    with open(folder / "grades_diagnoses.csv") as file:
        said = {(row["learner"], row["exercise"]): row for row in csv.DictReader(file)}
    return {"verdicts": verdicts, "said": said, "printed": printed, "same": before == after}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer(graded, name):
    _, verdict, diagnosis = ANSWERS[name]
    said = graded["said"].get((name, "head_scores"), {"diagnosis": ""})["diagnosis"]
    assert (graded["verdicts"][name]["03 head_scores"], diagnosis) == (verdict, diagnosis), said
    assert diagnosis in said


def of(graded: dict[str, Any], name: str, number: str) -> list[str]:
    """The verdicts of a learner in a notebook."""
    return [v for column, v in graded["verdicts"][name].items() if column.startswith(number)]


def expected(head_scores: str, others: str) -> list[str]:
    """The verdicts on the exercises of notebook 03, in its order."""
    return [head_scores if name == "head_scores" else others for name in solutions(EINOPS)]


def test_solved_notebooks_pass(graded):
    count = len(solutions(DTYPES)) + len(solutions(EINOPS))
    assert of(graded, "solved", "01 ") + of(graded, "solved", "03 ") == ["passed"] * count
    assert graded["verdicts"]["solved"]["passed"] == str(count)
    assert set(of(graded, "solved", "02 ")) == {"missing"}


def test_stored_outputs_do_not_count(graded):
    assert of(graded, "untouched", "03 ") == expected("not attempted", "not attempted")


def test_answers_are_found_without_metadata_and_in_other_cells(graded):
    for name in ("stripped", "helped", "moved"):
        assert of(graded, name, "03 ") == expected("passed", "not attempted"), graded["said"]


def test_an_exercise_does_not_affect_another(graded):
    assert of(graded, "one_wrong", "03 ") == expected("not right yet", "passed")
    for name, (_, verdict, _) in ANSWERS.items():
        assert of(graded, name, "03 ") == expected(verdict, "not attempted")


def test_a_wrong_part_is_replaced_and_a_right_one_is_used(graded):
    wrong = of(graded, "wrong_part", "07 ")
    assert [verdict for verdict in wrong if verdict != "passed"] == ["not right yet"]
    own = graded["verdicts"]["own_part"]
    for name in ("attention", "causal_self_attention", "init_weights"):
        assert own[f"07 {name}"] == "passed", graded["said"]


def test_bad_folders_are_rows(graded):
    assert set(of(graded, "'=1+1", "0")) == {"missing"}
    assert of(graded, "broken", "03 ") == expected("error", "error")
    said = graded["said"]["broken", "head_scores"]["diagnosis"]
    assert said.endswith(f"{EINOPS}.ipynb: not a notebook")
    assert ".git" not in graded["verdicts"]


def test_nothing_is_written_into_the_folder(graded):
    assert graded["same"]


def refused(tmp_path: Path, folder: str, *arguments: str) -> str:
    """The one line that the command prints about bad input."""
    command = [sys.executable, "-m", "cs336_course", "grade", folder, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


def test_bad_input_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOKS.parent))
    (tmp_path / "empty").mkdir()
    (tmp_path / "no_notebooks" / "ada").mkdir(parents=True)
    hand_in(tmp_path / "class" / "ada" / f"{EINOPS}.ipynb", {})
    (tmp_path / "old.csv").write_text("")
    assert "no such folder" in refused(tmp_path, "nowhere")
    assert "a folder for each learner" in refused(tmp_path, "empty")
    assert "no notebooks" in refused(tmp_path, "no_notebooks")
    assert "exists" in refused(tmp_path, "class", "--out", "old.csv")
    assert "seconds" in refused(tmp_path, "class", "--seconds", "0")
    assert "memory_gb" in refused(tmp_path, "class", "--memory-gb", "nan")


def test_a_name_cannot_change_the_terminal_or_be_a_formula():
    assert report.printable("a\x1b[2J\n b\u202ec") == "a\\x1b[2J b\\u202ec"
    file = io.StringIO()
    report.write(file, ["=1", "-1", "Zoë, A.", ""])
    assert file.getvalue() == "'=1,'-1,\"Zoë, A.\",\n"


def test_the_newest_copy_is_graded(tmp_path):
    for age, name in enumerate(["03_einops.ipynb", "03_einops (1).ipynb", "03_einopsx.ipynb"]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    (tmp_path / ".ipynb_checkpoints").mkdir()
    shutil.copy(tmp_path / "03_einops.ipynb", tmp_path / ".ipynb_checkpoints")
    original = NOTEBOOKS / f"{EINOPS}.ipynb"
    assert submissions.find(tmp_path, original) == tmp_path / "03_einops (1).ipynb"
    assert submissions.find(tmp_path, NOTEBOOKS / f"{DTYPES}.ipynb") is None
    shutil.copyfile(original, tmp_path / "03_einops.ipynb")  # pulled again, and not edited
    assert submissions.find(tmp_path, original) == tmp_path / "03_einops (1).ipynb"
    (tmp_path / "03_einops (1).ipynb").unlink()
    assert submissions.find(tmp_path, original) == tmp_path / "03_einops.ipynb"


GRADE = """
import signal
from pathlib import Path
from cs336_course.grading import grade, runner
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
for line in grade.grade(Path("class"), Path("grades.csv"), runner.Limits(1000, 2)):
    print(line, flush=True)
"""


def verdicts(folder: Path) -> dict[str, str]:
    """The verdicts on `head_scores`."""
    with open(folder / "grades.csv") as file:
        return {row["learner"]: row["03 head_scores"] for row in csv.DictReader(file)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_the_grades_and_removes_its_files(tmp_path, number):
    """The third learner's answer takes long."""
    hangs = f"open({str(tmp_path / 'began')!r}, 'w')\nimport time\ntime.sleep(10**6)\n" + RIGHT
    for name, code in {"a": RIGHT, "b": WRONG, "c": hangs, "d": RIGHT}.items():
        hand_in(tmp_path / "class" / name / f"{EINOPS}.ipynb", {"head_scores": code})
    (tmp_path / "tmp").mkdir()
    variables = {"PYTHONPATH": str(NOTEBOOKS.parent), "TMPDIR": str(tmp_path / "tmp")}
    command = [sys.executable, "-c", GRADE]
    with subprocess.Popen(command, cwd=tmp_path, env=os.environ | variables) as process:
        wait(lambda: process.poll() is None, (tmp_path / "began").exists)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        assert process.wait() != 0
    assert verdicts(tmp_path) == {"a": "passed", "b": "not right yet"}
    with open(tmp_path / "grades_diagnoses.csv") as file:
        assert [row["learner"] for row in csv.DictReader(file)] == ["b"]
    assert list((tmp_path / "tmp").iterdir()) == []
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in children):
        time.sleep(0.01)


FAKE = """#!{python}
import os, shutil, subprocess, sys
words = sys.argv[1:]
source = words[words.index("--volume") + 1].split(":")[0]
shutil.copytree(source, {folder!r}, dirs_exist_ok=True)
settings = {{"HOME": {home!r} + str(os.getpid()), "PYTHONPATH": {root!r}, "PATH": {path!r}}}
os.mkdir(settings["HOME"])
inside = "from cs336_course.grading import runner; runner.INSIDE = " + repr({folder!r}) + "; "
at = words.index("course") + 1
sys.exit(subprocess.call([sys.executable, *words[at:-1], inside + words[-1]], env=settings))
"""


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_answers_run_in_a_container_for_each_learner(tmp_path, engine):
    helped = "from helper import one\nopen('mine.txt', 'w').write('x')\n" + RIGHT
    answers = {"a": helped, "b": WRONG, "c": "import os\nos.kill(os.getppid(), 9)\n" + RIGHT}
    for name, code in answers.items():
        hand_in(tmp_path / "class" / name / f"{EINOPS}.ipynb", {"head_scores": code})
    (tmp_path / "class" / "a" / "helper.py").write_text("one = 1\n")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / engine
    values = {"root": str(NOTEBOOKS.parent), "path": os.environ["PATH"], "python": sys.executable}
    places = {"folder": str(tmp_path / "inside"), "home": str(tmp_path / "home")}
    program.write_text(FAKE.format(**values, **places))
    program.chmod(0o755)
    command = [sys.executable, "-m", "cs336_course", "grade", "class", "--container", "course"]
    environment = {**os.environ, "PYTHONPATH": values["root"], "PATH": str(tmp_path / "bin")}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert verdicts(tmp_path) == {"a": "passed", "b": "not right yet", "c": "error"}
    assert len(list(tmp_path.glob("home*"))) == 1 + len(answers)  # the first sees whether it starts

    program.write_text("#!/bin/sh\necho 'No such image: course' >&2\nexit 125\n")
    done = subprocess.run(
        [*command, "--out", "other.csv"],
        cwd=tmp_path,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    said = "cs336: cannot run answers: No such image: course\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_all_solutions_pass(tmp_path):
    for name in ("solved", "untouched"):
        shutil.copytree(NOTEBOOKS, tmp_path / "class" / name)
    for path in (tmp_path / "class" / "solved").rglob("*.ipynb"):
        notebook = json.loads(path.read_text())
        for name, code in solutions(path.relative_to(tmp_path / "class" / "solved").stem).items():
            named(notebook, name)["source"] = code
        path.write_text(json.dumps(notebook))
    for line in grade.grade(tmp_path / "class", tmp_path / "grades.csv", runner.Limits()):
        print(line)
    with open(tmp_path / "grades.csv") as file:
        solved, untouched = csv.DictReader(file)
    names = list(solved)[2:]
    assert len(names) >= 50
    other = {name: solved[name] for name in names if solved[name] != "passed"}
    assert not other, (tmp_path / "grades_diagnoses.csv").read_text()
    assert {untouched[name] for name in names} == {"not attempted"}
