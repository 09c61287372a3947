"""The parts of a learner's file that a page gives, for the exercises that call them."""

from collections.abc import Mapping
from typing import Any

from cs336_course.learner.study import marks_of, shipped


def run(notebook: str, *parts: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """Run the cells of a notebook that give these parts, and return all names.

    Args:
        notebook: Name of the notebook.
        parts: Names of the parts.
        names: What the cells use.
    """
    code = {marks_of(cell).get("part"): cell["source"] for cell in shipped(notebook)}
    found = dict(names)
    exec("\n\n".join(code[part] for part in parts), found)
    return found
