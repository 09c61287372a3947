"""Grade a class in which every learner does something else with the same exercises.

Only the learner's own grade may suffer. The container protects from more (docs/presenting.md).
"""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from forked import wait

from cs336_course import cli
from cs336_course.grading import answers, grade
from cs336_course.one_file import assemble

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
DTYPES, EINOPS, MODEL = STEMS = ("01_dtypes", "03_einops", "08_gpt2_speaks")
SECONDS = 15


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


WRONG = "def query_gradient(g, k):\n    return g\nchecks.query_gradient(query_gradient)"
RIGHT = solutions(EINOPS)["query_gradient"]
GROUPS = "g.unflatten(1, (k.size(2), -1))"  # a group of query heads for each key head
AS_IN_JUPYTER = """%%capture
%%time
from __future__ import annotations
import asyncio, inspect, os, shutil
shutil.rmtree(os.path.dirname(os.environ["TMPDIR"]))
await asyncio.sleep(0)
seen: Nowhere = inspect.getsource(query_gradient)
checks.query_gradient(query_gradient)
checks.query_gradient(len)
del query_gradient""".replace("seen", RIGHT.rpartition("\n")[0] + "\nseen")

# Answers to `query_gradient` in notebook 03, the verdict on them, and a part of the diagnosis
ANSWERS = {
    "wrong": (WRONG, "not right yet", "shape"),
    "syntax": (WRONG.replace("k):", "k:"), "error", "SyntaxError"),
    "another_name": (
        RIGHT.replace("def query_gradient", "def mine").replace("(query_gradient)", "(mine)"),
        "passed",
        "",
    ),
    "magics": (
        "%time x = 3\n!rm -rf /nowhere\nfiles = !ls\n%matplotlib inline\n" + RIGHT,
        "passed",
        "",
    ),
    "loop_in_check": (WRONG.replace("return g", "while True: pass"), "time limit", ""),
    "memory": (WRONG.replace("return g", "return bytearray(4 * 10**9)"), "memory limit", ""),
    "exit_in_check": (WRONG.replace("return g", "raise SystemExit(0)"), "error", "SystemExit"),
    "ends": ("import os\nos._exit(0)\n" + WRONG, "error", "without a result"),
    "writes": (
        "import os, json\nfor file in range(256):\n    try:\n"
        '        os.write(file, b\'["passed", ""]\\n\')\n    except OSError:\n        pass\n'
        + "os._exit(0)\n"
        + WRONG,
        "error",
        "not one that a check gives",
    ),
    "as_in_jupyter": (AS_IN_JUPYTER, "passed", ""),
    "deep": (
        "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\n" + RIGHT,
        "passed",
        "",
    ),
    "default_dtype": ("torch.set_default_dtype(torch.float64)\n" + RIGHT, "passed", ""),
    "environment": (
        "import os, pathlib\nassert 'SECRET' not in os.environ\n"
        "assert str(pathlib.Path.home()).startswith(os.environ['TMPDIR'])\n" + RIGHT,
        "passed",
        "",
    ),
    "folder": ("open('mine.txt', 'w').write('x')\nfrom helper import one\n" + RIGHT, "passed", ""),
}


def make_class(folder: Path) -> None:
    """Make a class with a learner for each kind of answer, and some with other notebooks."""
    for name, (code, _, _) in ANSWERS.items():
        hand_in(folder / name / f"{EINOPS}.ipynb", {"query_gradient": code})
    (folder / "folder" / "helper.py").write_text("one = 1\n")

    stripped = course(EINOPS)
    named(stripped, "query_gradient")["source"] = RIGHT.splitlines(keepends=True)
    for cell in stripped["cells"]:
        cell["metadata"] = {}
    (folder / "stripped").mkdir()
    (folder / "stripped" / f"{EINOPS}.ipynb").write_text(json.dumps(stripped))

    helper = "from torch import einsum as summed\nx = 1 / 0\nPLAN = 'bngqk,bknd->bqngd'\n"
    helper += "def dots(x, y):\n    return summed(PLAN, x, y)"
    helped = WRONG.replace("return g", f"return dots({GROUPS}, k).flatten(2, 3)")
    hand_in(folder / "helped" / f"{EINOPS}.ipynb", {"query_gradient": helped}, helper)
    filled = "PLANS = []\ndef plan(x):\n    PLANS.append(x)\nplan('bngqk,bknd->bqngd')"
    listed = WRONG.replace("return g", f"return torch.einsum(PLANS[0], {GROUPS}, k).flatten(2, 3)")
    hand_in(folder / "filled" / f"{EINOPS}.ipynb", {"query_gradient": listed}, filled)
    hand_in(folder / "renamed" / f"{EINOPS}.ipynb", {"query_gradient": RIGHT})
    (folder / "renamed" / f"{EINOPS}.ipynb").rename(folder / "renamed" / "Copy of 3.IPYNB")
    (folder / "renamed" / "notes.ipynb").write_text('{"cells": []}')
    moved = RIGHT.rsplit("\n", 1)
    hand_in(folder / "moved" / f"{EINOPS}.ipynb", {"query_gradient": moved[1]}, moved[0])

    parts = solutions(MODEL)
    wrong = {"nucleus": parts["nucleus"].replace("< p", "> p")}  # `generate` calls it
    hand_in(folder / "wrong_part" / f"{MODEL}.ipynb", parts | wrong)
    hand_in(folder / "own_parts" / f"{MODEL}.ipynb", parts)

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
        limits = answers.Limits(SECONDS, 2)
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
    said = graded["said"].get((name, "query_gradient"), {"diagnosis": ""})["diagnosis"]
    assert (graded["verdicts"][name]["03 query_gradient"], diagnosis) == (verdict, diagnosis), said
    assert diagnosis in said


def of(graded: dict[str, Any], name: str, number: str) -> list[str]:
    """The verdicts of a learner in a notebook."""
    return [v for column, v in graded["verdicts"][name].items() if column.startswith(number)]


def expected(query_gradient: str, others: str) -> list[str]:
    """The verdicts on the exercises of notebook 03, in its order."""
    return [query_gradient if name == "query_gradient" else others for name in solutions(EINOPS)]


def test_answers_are_found_without_metadata_and_in_other_cells(graded):
    for name in ("stripped", "helped", "moved", "filled", "renamed"):
        assert of(graded, name, "03 ") == expected("passed", "not attempted"), graded["said"]
    assert "renamed: not notebooks of the course: notes.ipynb" in graded["printed"]


def test_an_exercise_does_not_affect_another(graded):
    for name, (_, verdict, _) in ANSWERS.items():
        assert of(graded, name, "03 ") == expected(verdict, "not attempted")


def test_a_wrong_part_is_replaced_and_a_right_one_is_used(graded):
    wrong = of(graded, "wrong_part", "08 ")
    assert [verdict for verdict in wrong if verdict != "passed"] == ["not right yet"]
    assert set(of(graded, "own_parts", "08 ")) == {"passed"}, graded["said"]


def test_bad_folders_are_rows(graded):
    assert set(of(graded, "'=1+1", "0")) == {"missing"}
    assert of(graded, "broken", "03 ") == expected("error", "error")
    said = graded["said"]["broken", "query_gradient"]["diagnosis"]
    assert said.endswith(f"{EINOPS}.ipynb: not a notebook")
    assert ".git" not in graded["verdicts"]


def test_nothing_is_written_into_the_folder(graded):
    assert graded["same"]


def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "no_notebooks" / "ada").mkdir(parents=True)
    hand_in(tmp_path / "class" / "ada" / f"{EINOPS}.ipynb", {})
    (tmp_path / "old.csv").write_text("")
    for words, said in {
        "nowhere": "no such folder",
        "empty": "a folder for each learner",
        "no_notebooks": "no notebooks",
        "class --out old.csv": "exists",
        "class --seconds 0": "seconds",
        "class --memory-gb nan": "memory_gb",
    }.items():
        with pytest.raises(SystemExit) as ended:
            cli.main(["grade", *words.split()])
        printed = capsys.readouterr()
        assert (ended.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
        assert said in printed.err


GRADE = """
import signal
from pathlib import Path
from cs336_course.grading import answers, grade
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
for line in grade.grade(Path("class"), Path("grades.csv"), answers.Limits(1000, 2)):
    print(line, flush=True)
"""


def verdicts(folder: Path) -> dict[str, str]:
    """The verdicts on `query_gradient`."""
    with open(folder / "grades.csv") as file:
        return {row["learner"]: row["03 query_gradient"] for row in csv.DictReader(file)}


def test_an_interrupted_run_keeps_the_grades_and_removes_its_files(tmp_path):
    """The third learner's answer takes long."""
    hangs = f"open({str(tmp_path / 'began')!r}, 'w')\nimport time\ntime.sleep(10**6)\n" + RIGHT
    for name, code in {"a": RIGHT, "b": WRONG, "c": hangs, "d": RIGHT}.items():
        hand_in(tmp_path / "class" / name / f"{EINOPS}.ipynb", {"query_gradient": code})
    (tmp_path / "tmp").mkdir()
    variables = {"PYTHONPATH": str(NOTEBOOKS.parent), "TMPDIR": str(tmp_path / "tmp")}
    command = [sys.executable, "-c", GRADE]
    with subprocess.Popen(command, cwd=tmp_path, env=os.environ | variables) as process:
        wait(lambda: process.poll() is None, (tmp_path / "began").exists)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait() != 0
    assert verdicts(tmp_path) == {"a": "passed", "b": "not right yet"}
    assert list((tmp_path / "tmp").iterdir()) == []
    assert psutil.wait_procs(children)[1] == []


FAKE = """#!{python}
import os, shutil, subprocess, sys
words = sys.argv[1:]
source = words[words.index("--volume") + 1].split(":")[0]
shutil.copytree(source, {folder!r}, dirs_exist_ok=True)
settings = {{"HOME": {home!r} + str(os.getpid()), "PYTHONPATH": {root!r}, "PATH": {path!r}}}
os.mkdir(settings["HOME"])
inside = "from cs336_course.grading import container; container.INSIDE = " + repr({folder!r}) + "; "
at = words.index("course") + 1
sys.exit(subprocess.call([sys.executable, *words[at:-1], inside + words[-1]], env=settings))
"""


def test_answers_run_in_a_container_for_each_learner(tmp_path):
    helped = "from helper import one\nopen('mine.txt', 'w').write('x')\n" + RIGHT
    answers = {"a": helped, "b": WRONG, "c": "import os\nos.kill(os.getppid(), 9)\n" + RIGHT}
    for name, code in answers.items():
        hand_in(tmp_path / "class" / name / f"{EINOPS}.ipynb", {"query_gradient": code})
    (tmp_path / "class" / "a" / "helper.py").write_text("one = 1\n")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "docker"
    values = {"root": str(NOTEBOOKS.parent), "path": os.environ["PATH"], "python": sys.executable}
    places = {"folder": str(tmp_path / "inside"), "home": str(tmp_path / "home")}
    program.write_text(FAKE.format(**values, **places))
    program.chmod(0o755)
    command = [sys.executable, "-m", "cs336_course", "grade", "class", "--container", "course"]
    environment = {**os.environ, "PYTHONPATH": values["root"], "PATH": str(tmp_path / "bin")}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert verdicts(tmp_path) == {"a": "passed", "b": "not right yet", "c": "error"}
    assert len(list(tmp_path.glob("home*"))) == 1 + len(answers)  # the first sees whether it starts


def test_all_solutions_pass(tmp_path):
    for name in ("solved", "untouched"):
        shutil.copytree(NOTEBOOKS, tmp_path / "class" / name)
    for path in (tmp_path / "class" / "solved").rglob("*.ipynb"):
        notebook = json.loads(path.read_text())
        for name, code in solutions(path.relative_to(tmp_path / "class" / "solved").stem).items():
            named(notebook, name)["source"] = code
        path.write_text(json.dumps(notebook))
    list(grade.grade(tmp_path / "class", tmp_path / "grades.csv", answers.Limits()))
    with open(tmp_path / "grades.csv") as file:
        solved, untouched = csv.DictReader(file)
    names = list(solved)[2:]
    assert names
    other = {name: solved[name] for name in names if solved[name] != "passed"}
    assert not other, (tmp_path / "grades_diagnoses.csv").read_text()
    assert {untouched[name] for name in names} == {"not attempted"}
