"""The parts of a learner's file that a page gives, for the exercises that call them."""

import json
from collections.abc import Mapping
from typing import Any

from cs336_course.engine.task import SHIPPED


def run(notebook: str, *parts: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """Run the cells of a notebook that give these parts, and return all names.

    Args:
        notebook: Name of the notebook.
        parts: Names of the parts.
        names: What the cells use.
    """
    text = (SHIPPED / f"{notebook}.ipynb").read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    code = {
        cell["metadata"].get("cs336", {}).get("part"): "".join(cell["source"]) for cell in cells
    }
    found = dict(names)
    exec("\n\n".join(code[part] for part in parts), found)
    return found
