"""Give points to every solution in the notebooks that are exported for nbgrader."""

from pathlib import Path

import nbformat
import pytest

from cs336_course.grading import graded_run, graders
from cs336_course.learner import study

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PATHS = [p for p in sorted(NOTEBOOKS.glob("*.ipynb")) if study.describe(p)["exercises"]]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_solutions_get_their_points_and_stubs_do_not(tmp_path, path, monkeypatch):
    monkeypatch.chdir(NOTEBOOKS)
    cells = nbformat.read(graders.nbgrader(path, tmp_path), as_version=4).cells
    tests = {c.metadata.nbgrader.grade_id: c for c in cells if "nbgrader" in c.metadata}
    for name, task in graded_run.tasks(path).items():
        test = tests[f"points-{name}"].source
        for code, is_right in ((tests[name].source, True), (task.stub, False)):
            namespace = dict(task.namespace)
            exec(code, namespace)
            if is_right:
                exec(test, namespace)
            else:
                with pytest.raises(AssertionError, match=f"{name}: not "):
                    exec(test, namespace)
