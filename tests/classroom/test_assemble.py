"""The one-file trainer is assembled from the learner's cells, and else from solutions."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cs336_lib.classroom import assemble
from cs336_lib.classroom.checks.report import expect, part

IMPORTS = "from cs336_lib.classroom.checks import toy as checks"
STUB = "def double(x):\n    raise NotImplementedError\n\n\ndouble = checks.double(double)"
SOLUTION = "<details>\n\n```python\ndef double(x):\n    return 2 * x\n```\n\n</details>"
MINE = "def double(x):\n    return x + x"
CHECK = "\n\n\ndouble = checks.double(double)"


@part(lambda x: 2 * x, "")
def double(answer):
    """Check `double(x)`."""
    expect(answer(3) == 6, "double(3) is not 6.")


@pytest.fixture(autouse=True)
def toy_checks(monkeypatch):
    module = ModuleType("toy")
    module.double = double  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cs336_lib.classroom.checks.toy", module)


def cell(source: str, kind: str = "code", tags=(), **marks: str) -> dict:
    metadata = {"tags": list(tags), "cs336": marks}
    return {"cell_type": kind, "source": source.splitlines(keepends=True), "metadata": metadata}


def course(folder: Path, double: str = STUB, later: str = "") -> Path:
    """Write notebooks 07 to 10, with an exercise and a given part in 07."""
    folder.mkdir(exist_ok=True)
    marks = {"exercise": "double", "part": "double"}
    for number in ("07", "08", "09", "10"):
        cells = [cell(IMPORTS)]
        if number == "07":
            cells.append(cell("def one():\n    return 1", part="one"))
            cells.append(cell(double, tags=["exercise"], **marks))
            cells.append(cell(SOLUTION, kind="markdown", tags=["solution"]))
        if number == "09" and later:
            cells.append(cell(later, tags=["exercise"], **marks))
            cells.append(cell(SOLUTION.replace("2 * x", "x * 2"), "markdown", ["solution"]))
        (folder / f"{number}_toy.ipynb").write_text(json.dumps({"cells": cells}))
    return folder


@pytest.mark.parametrize(
    ("double", "missing", "code"),
    [
        (STUB, "not attempted yet", "return 2 * x"),
        (MINE + CHECK, "", "return x + x"),
        (MINE.replace("x + x", "x") + CHECK, "double(3) is not 6.", "return 2 * x"),
        (MINE.replace("x + x", "add(x, x)") + CHECK, "import it in the cell", "return 2 * x"),
        ("def double(x:" + CHECK, "was never closed", "return 2 * x"),
    ],
)
def test_a_part_is_the_learners_if_it_passes(tmp_path, double, missing, code):
    one, two = assemble.parts(course(tmp_path, double))
    assert (one.given, two.notebook) == (True, "07")
    assert missing in two.missing
    assert two.is_mine == (missing == "")
    assert code in two.code
    assert "checks." not in two.code


def test_a_later_part_replaces_an_earlier_one_unless_only_that_is_the_learners(tmp_path):
    def double(*cells: str) -> assemble.Part:
        return assemble.parts(course(tmp_path, *cells))[1]

    other = MINE.replace("x + x", "sum((x, x))") + CHECK
    assert "x * 2" in double(STUB, STUB).code
    assert "x + x" in double(MINE + CHECK, STUB).code
    assert "sum" in double(MINE + CHECK, other).code


def test_solutions_are_marked_among_the_learners_parts(tmp_path):
    stub = course(tmp_path)
    assert "From the solutions" not in assemble.text(assemble.parts(stub))
    mixed = [*assemble.parts(stub), assemble.Part("mine", "08", "x = 1", given=False)]
    assert "# From the solutions of notebook 07.\ndef double" in assemble.text(mixed)


def test_a_module_has_the_parts_up_to_a_notebook(tmp_path):
    made = assemble.module("08", course(tmp_path, MINE + CHECK))
    assert made.double(made.one()) == 2
    assert made.Config().n_layer == 12


def test_a_file_is_not_overwritten_by_accident(tmp_path):
    course(tmp_path)
    out = tmp_path / "file.py"
    assemble.write(out, tmp_path)
    text = out.read_text()
    with pytest.raises(FileExistsError, match="--overwrite"):
        assemble.write(out, tmp_path)
    assemble.write(out, tmp_path, overwrite=True)
    assert out.read_text() == text
    compile(text, "file.py", "exec")


def test_without_a_folder_the_course_has_what_is_missing(tmp_path, monkeypatch):
    """Test a folder with one notebook, which has no solutions, as in Colab or a handout."""
    monkeypatch.setattr(assemble.study, "SHIPPED", course(tmp_path / "course"))
    marks = {"exercise": "double", "part": "double"}
    cells = [cell(IMPORTS), cell(STUB, tags=["exercise"], **marks)]
    (tmp_path / "07_toy.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.chdir(tmp_path)
    made = assemble.module("08")
    assert made.double(2) == 4
    assert not hasattr(made, "one")  # from the notebook in this folder


def test_a_missing_notebook_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no notebook 07"):
        assemble.parts(tmp_path)


@pytest.mark.parametrize(
    ("double", "row"),
    [
        (MINE + CHECK, "yours: double"),
        (STUB, "from the solutions: double"),
        (MINE.replace("x + x", "x") + CHECK, "isn't right yet: double (double(3) is not 6.)"),
    ],
)
def test_progress_says_whose_parts_they_are(tmp_path, double, row):
    said = assemble.progress("07", course(tmp_path, double))
    assert row in said
    assert "2 parts" in said
    assert "given: one" in said
