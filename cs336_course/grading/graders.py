"""Export the notebooks as assignments for nbgrader and otter-grader."""

import argparse
import ast
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_raw_cell

from cs336_course.grading import cell_slice
from cs336_course.learner import assemble, study

BUILD = Path("build")
STUB = "raise NotImplementedError"
BEGIN, END = "# BEGIN SOLUTION", "# END SOLUTION"  # both tools recognize these lines
IMPORT = "from cs336_course.checks.points import award"
CONTINUE = "raises-exception"  # the tag with which JupyterLab runs the cells below an error
SETTINGS = """\
# ASSIGNMENT CONFIG
generate: true
export_cell: false
tests:
  ok_format: false"""

Tool = Callable[[str, int, NotebookNode, ast.Call], list[NotebookNode]]


def assignment(notebook: NotebookNode, tool: Tool) -> NotebookNode:
    """Return a notebook with points for its exercises, and without the printed solutions.

    Args:
        notebook: A notebook of the course.
        tool: Makes the cells of an exercise from its name, points, code and call of the check.
    """
    cells, text = [], ""
    for cell in notebook.cells:
        name = cell.metadata.get("cs336", {}).get("exercise")
        if cell.source.startswith("### Exercise"):
            text = cell.source
        if name:
            call = cell_slice.check_call(ast.parse(cell.source).body[-1])
            assert call is not None, f"{name} doesn't end with its check"
            cell.source = with_solution(cell.source, assemble.solution(notebook.cells, name))
            cell.metadata.tags.append(CONTINUE)
            cell.outputs, cell.execution_count = [], None
            cells += tool(name, points(text), cell, call)
        elif "solution" not in cell.metadata.get("tags", []):
            cells.append(cell)
    return NotebookNode(notebook | {"cells": cells})


def points(text: str) -> int:
    """Return an exercise's points, which are the filled circles of its difficulty."""
    circles = re.search("[●○]{3}", text)
    assert circles is not None, f"no difficulty in {text!r}"
    return circles[0].count("●")


def with_solution(source: str, solution: str) -> str:
    """Return the code of an exercise's cell, with a marked solution.

    Both tools replace the marked lines in the students' version, and the lines above stay. These
    are the solution's, if it begins like the stub. Otherwise, the solution follows the stub.
    """
    code, call = source.strip().rsplit("\n", 1)
    stub, lines = code.rstrip().splitlines(), solution.strip().splitlines()
    indent = ""
    if stub[-1].strip() == STUB:
        *stub, last = stub
        indent = last.removesuffix(STUB)
        is_alike = lines[: len(stub)] == stub
        lines = lines[len(stub) :] if is_alike else [last, "", "", *lines]
    return "\n".join([*stub, indent + BEGIN, *lines, indent + END, "", "", call])


def for_nbgrader(name: str, points: int, cell: NotebookNode, call: ast.Call) -> list[NotebookNode]:
    """Return the cells of an exercise for nbgrader, which are the answer and a locked test."""
    blank = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
    cell.metadata["nbgrader"] = blank | {"grade_id": name, "solution": True}
    test = new_code_cell(f"{IMPORT}\n\n{award(call)}", id=f"points-{name}")
    test.metadata = NotebookNode(tags=[CONTINUE], slideshow={"slide_type": "skip"})
    test.metadata["nbgrader"] = blank | {
        "grade_id": f"points-{name}",
        "grade": True,
        "locked": True,
        "points": points,
    }
    return [cell, test]


def for_otter(name: str, points: int, cell: NotebookNode, call: ast.Call) -> list[NotebookNode]:
    """Return the cells of an exercise in the format of `otter assign`."""
    names = ", ".join(sorted(cell_slice.names_in([call])))
    test = f"def test({names}):\n    {IMPORT}\n\n    {award(call)}"
    return [
        new_raw_cell(f"# BEGIN QUESTION\nname: {name}\npoints: {points}"),
        new_raw_cell(BEGIN),
        cell,
        new_raw_cell(END),
        new_raw_cell("# BEGIN TESTS"),
        new_code_cell(test),
        new_raw_cell("# END TESTS"),
        new_raw_cell("# END QUESTION"),
    ]


def award(call: ast.Call) -> str:
    """Return the code that gives points for an exercise, from the call of its check."""
    return f"award({', '.join(map(ast.unparse, [call.func, *call.args]))})"


def nbgrader(path: Path, folder: Path) -> Path:
    """Export a notebook as the source of an nbgrader assignment, and return the new file."""
    target = folder / "source" / path.stem / path.name
    return write(assignment(nbformat.read(path, as_version=4), for_nbgrader), target)


def otter(path: Path, folder: Path) -> Path:
    """Export a notebook for `otter assign`, and return the new file."""
    notebook = assignment(nbformat.read(path, as_version=4), for_otter)
    notebook.cells.insert(0, new_raw_cell(SETTINGS))
    return write(notebook, folder / path.name)


def write(notebook: NotebookNode, target: Path) -> Path:
    """Write a notebook, and return its path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)
    return target


def main(arguments: Sequence[str] | None = None) -> None:
    """Export the notebooks that have exercises, to build/nbgrader or build/otter."""
    parser = argparse.ArgumentParser(prog="graders", description=__doc__)
    parser.add_argument("tool", choices=("nbgrader", "otter"))
    tool = parser.parse_args(arguments).tool
    export = {"nbgrader": nbgrader, "otter": otter}[tool]
    try:
        paths = study.originals(study.find_course())
        written = [
            export(path, BUILD / tool) for path in paths if study.describe(path)["exercises"]
        ]
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    print(f"{len(written)} assignments in {BUILD / tool}")


if __name__ == "__main__":
    main()
