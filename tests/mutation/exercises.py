"""Read the exercises of a notebook, and run a check on any answer to one of them."""

import ast
import contextlib
import io
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import torch

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SECONDS = 20  # a mutant that takes longer is refused


@dataclass(frozen=True)
class Exercise:
    """An exercise with the names that its notebook defines before it.

    Attributes:
        name: Name of the check.
        module: Module of the check, such as "shapes".
        solution: Code of the printed solution.
        check: Last line of the cell, which calls the check.
        namespace: Names that the solution may use.
    """

    name: str
    module: str
    solution: str
    check: str
    namespace: dict[str, Any]

    @property
    def answers(self) -> list[str]:
        """Names of the answers that the check receives."""
        call = ast.parse(self.check).body[0].value  # type: ignore[attr-defined]
        nodes = (node for argument in call.args for node in ast.walk(argument))
        return [node.id for node in nodes if isinstance(node, ast.Name)]


def exercises(path: Path) -> list[Exercise]:
    """Read the exercises of a notebook that have a printed solution."""
    cells = nbformat.read(path, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(code[0].source, namespace)
    module = namespace["checks"].__name__.rsplit(".", 1)[1] if "checks" in namespace else ""
    found = []
    for number, cell in enumerate(cells):
        marks = cell.metadata.get("cs336", {})
        if "exercise" in marks:
            later = cells[number + 1 : number + 4]
            text = next(c.source for c in later if "solution" in c.metadata.get("tags", []))
            (solution,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
            check = cell.source.strip().splitlines()[-1]
            found.append(Exercise(marks["exercise"], module, solution, check, dict(namespace)))
        if "part" in marks or cell.source.startswith("mine = assemble.module("):
            with contextlib.chdir(NOTEBOOKS), contextlib.redirect_stdout(io.StringIO()):
                exec(cell.source, namespace)  # an untouched part becomes the library's
    return found


def expired(*_: object) -> None:
    """Stop a mutant that doesn't end."""
    raise TimeoutError


def verdict(exercise: Exercise, code: str, setup: dict[str, Any] | None = None) -> str:
    """Run an answer and its check, and return the line that the check prints.

    Args:
        exercise: The exercise.
        code: Code that defines the answer.
        setup: More names that the code may use.

    Returns:
        The verdict, or the error that defining the answer raises.
    """
    torch.manual_seed(0)
    namespace = {**exercise.namespace, **(setup or {})}
    printed = io.StringIO()
    previous = signal.signal(signal.SIGALRM, expired)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            exec(code, namespace)
            exec(exercise.check, namespace)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    lines = [line for line in printed.getvalue().splitlines() if line.startswith(exercise.name)]
    return lines[-1] if lines else "no verdict"


def passes(exercise: Exercise, said: str) -> bool:
    """Return whether the check accepted the answer."""
    return said == f"{exercise.name}: passed"
