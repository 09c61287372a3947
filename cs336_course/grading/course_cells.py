"""Read the exercises of a notebook of the course, and what their answers may build on."""

import ast
import contextlib
import functools
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from cs336_course.engine import Exercise
from cs336_course.one_file import cell_slice


@dataclass(frozen=True)
class CourseCell:
    """The cell of an exercise in the course's notebook.

    Attributes:
        exercise: The exercise.
        call: Call of the check in the course's notebook.
        namespace: Names that the course's notebook defines before the exercise.
        given: Statements that define them, in the form of `ast.dump`.
        parts: Names that the course defines if the learner's answer is wrong, by exercise.
    """

    exercise: Exercise
    call: ast.Call
    namespace: Mapping[str, Any]
    given: frozenset[str]
    parts: Mapping[str, frozenset[str]]


@functools.cache
def course_cells(path: Path) -> dict[str, CourseCell]:
    """Read the exercises of a notebook by name, and run the cells that they build on.

    Untouched parts become the library's. `assemble.module` reads the working directory.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    # Magics and shell commands become calls of `get_ipython()`, which do nothing.
    namespace: dict[str, Any] = {"__name__": "__main__", "get_ipython": mock.MagicMock}
    namespace["display"] = print
    given: set[str] = set()
    parts: dict[str, frozenset[str]] = {}
    found: dict[str, CourseCell] = {}
    for number, cell in enumerate(cells):
        source, marks = "".join(cell["source"]), cell["metadata"].get("cs336", {})
        nodes = ast.parse(source).body
        if name := marks.get("exercise"):
            call = cell_slice.check_call(nodes[-1])
            assert call is not None, f"{path}: {name} doesn't end with its check"
            exercise = getattr(namespace["checks"], name)
            if "part" in marks:
                parts[name] = frozenset(cell_slice.names_in(call.args))
            found[name] = CourseCell(exercise, call, dict(namespace), frozenset(given), dict(parts))
        if number == 0 or "part" in marks or source.startswith("mine = assemble.module("):
            with contextlib.redirect_stdout(io.StringIO()):
                exec(source, namespace)
            given |= {ast.dump(node) for node in nodes if "exercise" not in marks}
    return found
