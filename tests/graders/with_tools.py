"""Grade right and wrong answers with nbgrader and otter-grader (`make test-graders`)."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from cs336_course.grading import graders
from cs336_course.learner import assemble

ROOT = Path(__file__).parents[2]
# Answers that are numbers and functions, parts of GPT-2, and parts that need other notebooks
STEMS = ("01_dtypes", "07_gpt2_model", "10_gpt2_scale")
FIRST = {"01_dtypes": "decode_by_hand", "07_gpt2_model": "embed", "10_gpt2_scale": "micro_batches"}
Answer = Callable[[str, str, str], str]  # the cell from an exercise's name, its cell and solution


def right(name: str, cell: str, solution: str) -> str:
    return "\n".join([solution, cell.strip().rsplit("\n", 1)[1]])


def wrong(name: str, cell: str, solution: str) -> str:
    stub = "raise NotImplementedError()" if "raise Not" in cell else "..."
    return cell.replace(stub, "return 0" if "def " in cell else "answer = 0")


def untouched(name: str, cell: str, solution: str) -> str:
    return cell


def only_first(name: str, cell: str, solution: str) -> str:
    return (right if name in FIRST.values() else wrong)(name, cell, solution)


def noisy(name: str, cell: str, solution: str) -> str:
    """Warn in each function, which nbgrader would take for an error."""
    loud = (
        "import warnings\n    warnings.warn('loud')\n    print('x', file=__import__('sys').stderr)"
    )
    code = right(name, cell, solution)
    return code.replace('"""\n', f'"""\n    {loud}\n', 1) if "class " not in code else code


def quitting(name: str, cell: str, solution: str) -> str:
    """End Python in the first exercise, and solve the others."""
    if name in FIRST.values():
        return wrong(name, cell, solution).replace("return 0", "raise SystemExit")
    return right(name, cell, solution)


LEARNERS: dict[str, Answer] = {
    "right": right,
    "wrong": wrong,
    "untouched": untouched,
    "only_first": only_first,
    "noisy": noisy,
    "quitting": quitting,
}


def run(folder: Path, *command: str) -> str:
    """Run a command of one of the tools, and return what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def course(folder: Path, stem: str) -> Path:
    """Write a notebook of the course without the lecture, which takes a minute to run."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{stem}.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    needed = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        or cell is code[0]
        or {"exercise", "part"} & cell.metadata.get("cs336", {}).keys()
        or cell.source.startswith("mine = assemble.module(")
    ]
    path = folder / f"{stem}.ipynb"
    nbformat.write(nbformat.NotebookNode(notebook | {"cells": needed}), path)
    return path


def hand_in(released: Path, target: Path, answer: Answer) -> Path:
    """Fill in a released notebook as a learner would."""
    notebook = nbformat.read(released, as_version=4)
    originals = nbformat.read(ROOT / "notebooks" / released.name, as_version=4).cells
    for cell in notebook.cells:
        if name := cell.metadata.get("cs336", {}).get("exercise"):
            assert "SOLUTION" not in cell.source
            cell.source = answer(name, cell.source, assemble.solution(originals, name))
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)
    return target


def edit(path: Path, change: Callable[[list], list]) -> None:
    """Change the cells of a notebook."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = change(notebook.cells)
    nbformat.write(notebook, path)


def without_code(cells: list) -> list:
    """Empty the tests of nbgrader."""
    for cell in cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            cell.source = "pass"
    return cells


def without_checks(cells: list) -> list:
    """Remove the cells in which otter-grader checks an answer."""
    return [cell for cell in cells if "grader.check(" not in cell.source]


def expected(stem: str, possible: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return the points of each learner by exercise."""
    none, first = dict.fromkeys(possible, 0.0), FIRST[stem]
    users = {"gpt": 0.0} if stem == "07_gpt2_model" else {}  # it calls the function that quits
    return {
        "right": possible,
        "wrong": none,
        "untouched": none,
        "only_first": none | {first: possible[first]},
        "noisy": possible,
        "quitting": possible | {first: 0.0} | users,
    }


@pytest.mark.parametrize("stem", STEMS)
def test_nbgrader(tmp_path, stem):
    source = graders.nbgrader(course(tmp_path, stem), tmp_path)
    cells = nbformat.read(source, as_version=4).cells
    marks = [cell.metadata["nbgrader"] for cell in cells if "nbgrader" in cell.metadata]
    possible = {m["grade_id"]: float(m["points"]) for m in marks if m["grade"]}
    possible = {name.removeprefix("points-"): most for name, most in possible.items()}
    run(tmp_path, "nbgrader", "generate_assignment", stem)
    released = tmp_path / "release" / stem / f"{stem}.ipynb"
    for learner, answer in LEARNERS.items():
        hand_in(released, tmp_path / "submitted" / learner / stem / f"{stem}.ipynb", answer)
    cheat = tmp_path / "submitted" / "cheat" / stem / f"{stem}.ipynb"
    hand_in(released, cheat, wrong)
    edit(cheat, without_code)
    run(tmp_path, "nbgrader", "autograde", stem)
    run(tmp_path, "nbgrader", "export")
    with open(tmp_path / "grades.csv") as file:
        totals = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}

    from nbgrader.api import Gradebook

    wanted = expected(stem, possible) | {"cheat": dict.fromkeys(possible, 0.0)}
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as book:
        got = {
            learner: {
                grade.name.removeprefix("points-"): grade.score
                for grade in book.find_submission_notebook(stem, stem, learner).grades
            }
            for learner in wanted
        }
    assert got == wanted
    assert totals == {learner: sum(scores.values()) for learner, scores in wanted.items()}


@pytest.mark.parametrize("stem", STEMS[:2])  # one notebook at a time takes longer
def test_otter(tmp_path, stem):
    source = graders.otter(course(tmp_path, stem), tmp_path / "otter")
    said = run(tmp_path, "otter", "assign", "-v", str(source), "dist")
    assert "All autograder tests passed" in said, said
    (autograder,) = (tmp_path / "dist" / "autograder").glob("*.zip")
    released = tmp_path / "dist" / "student" / source.name
    got, possible = {}, {}
    for learner, answer in (LEARNERS | {"cheat": wrong}).items():
        handed_in = hand_in(released, tmp_path / learner / source.name, answer)
        if learner == "cheat":
            edit(handed_in, without_checks)
        out = tmp_path / learner
        run(tmp_path, "otter", "run", "-a", str(autograder), "-o", str(out), str(handed_in))
        tests = json.loads((out / "results.json").read_text())["tests"]
        tests = [test for test in tests if test["name"] != "Public Tests"]
        got[learner] = {test["name"]: test["score"] for test in tests}
        possible = {test["name"]: test["max_score"] for test in tests}
    assert got == expected(stem, possible) | {"cheat": dict.fromkeys(possible, 0.0)}
