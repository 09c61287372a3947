"""Export the notebooks for nbgrader and otter-grader. tests/graders runs these tools."""

import ast
import re
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

from cs336_course.checks import dtypes, gpt2_model, gpt2_scale
from cs336_course.checks.points import award
from cs336_course.grading import graders
from cs336_course.learner import assemble

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PATHS = [p for p in sorted(NOTEBOOKS.glob("*.ipynb")) if p.stem != "11_errata"]
REGION = r"(?ms)^( *)# BEGIN SOLUTION\n.*?# END SOLUTION"
KEYS = {"schema_version", "grade", "solution", "locked", "task", "grade_id"}


def exercises(cells: list) -> dict[str, nbformat.NotebookNode]:
    """The cells of the exercises by name."""
    named = {cell.metadata.get("cs336", {}).get("exercise"): cell for cell in cells}
    return {name: cell for name, cell in named.items() if name}


def read(path: Path) -> list[nbformat.NotebookNode]:
    """The cells of a valid notebook."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook.cells


def no_solution_is_printed(cells: list) -> bool:
    return "<summary>Solution" not in "".join(cell.source for cell in cells)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_nbgrader_has_an_answer_and_a_locked_test_for_each_exercise(tmp_path, path):
    target = graders.nbgrader(path, tmp_path)
    assert target == tmp_path / "source" / path.stem / path.name
    cells, course = read(target), exercises(read(path))
    assert exercises(cells).keys() == course.keys()
    assert no_solution_is_printed(cells)
    marked = [cell for cell in cells if "nbgrader" in cell.metadata]
    ids = [cell.metadata.nbgrader.grade_id for cell in marked]
    assert ids == [i for name in course for i in (name, f"points-{name}")]
    for cell in marked:
        marks = cell.metadata.nbgrader
        assert marks.keys() == KEYS | ({"points"} if marks.grade else set())
        assert re.fullmatch(r"[\w-]+", marks.grade_id)
        assert (marks.solution, marks.locked) == (not marks.grade, marks.grade)
        assert not marks.grade or marks.points in (1, 2, 3)
        assert not cell.outputs
        assert "raises-exception" in cell.metadata.tags


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_student_gets_the_stub_and_the_instructor_the_solution(tmp_path, path):
    cells = read(graders.nbgrader(path, tmp_path))
    for name, cell in exercises(cells).items():
        stub = exercises(read(path))[name].source
        solution = assemble.solution(read(path), name)
        assert len(re.findall(REGION, cell.source)) == 1
        assert solution.strip().splitlines()[-1] in cell.source
        ast.parse(cell.source)
        student = re.sub(REGION, r"\1raise NotImplementedError", cell.source)
        if "def " not in stub:  # there, the answer's `...` stays above
            student = student.replace("raise NotImplementedError\n", "")
        assert ast.dump(ast.parse(student)) == ast.dump(ast.parse(stub)), name
        ast.parse(re.sub(REGION, r"\1...", cell.source))  # what otter-grader puts there


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_otter_has_a_question_for_each_exercise(tmp_path, path):
    cells = read(graders.otter(path, tmp_path))
    assert no_solution_is_printed(cells)
    settings = yaml.safe_load(cells[0].source)
    assert settings["tests"] == {"ok_format": False}
    raw = [cell.source for cell in cells if cell.cell_type == "raw"][1:]
    questions = [yaml.safe_load(text) for text in raw if text.startswith("# BEGIN QUESTION")]
    assert [question["name"] for question in questions] == list(exercises(read(path)))
    assert {question["points"] for question in questions} <= {1, 2, 3}
    order = [f"# {edge} {block}" for edge, block in BLOCKS]
    assert [text.partition("\n")[0] for text in raw] == order * len(questions)


BLOCKS = [
    ("BEGIN", "QUESTION"),
    ("BEGIN", "SOLUTION"),
    ("END", "SOLUTION"),
    ("BEGIN", "TESTS"),
    ("END", "TESTS"),
    ("END", "QUESTION"),
]


def truncated(code: int) -> int:
    print("loud", file=sys.stderr)
    return code >> 16


def test_the_message_of_a_wrong_answer_is_the_diagnosis(capsys):
    with pytest.raises(AssertionError, match=r"^to_bf16: not right yet\. "):
        award(dtypes.to_bf16, truncated)
    award(dtypes.decode_by_hand, -11.0)
    printed = capsys.readouterr()
    assert printed == ("decode_by_hand: passed\n", "")


def test_code_that_ends_python_gets_no_points():
    with pytest.raises(AssertionError, match="ends Python"):
        award(dtypes.to_bf16, exit)


@pytest.mark.parametrize(
    ("check", "answer"),
    [(gpt2_model.embed, None), (gpt2_model.gpt, None), (gpt2_scale.data_parallel, (None, None))],
)
def test_the_librarys_part_gets_no_points(check, answer):
    replaced = check(answer)  # as the learner's cell does
    assert replaced != answer
    with pytest.raises(AssertionError, match="not right yet"):
        award(check, replaced)
