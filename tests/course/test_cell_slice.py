"""A slice has what an answer needs, and its text is as the learner wrote it."""

import ast

import pytest

from cs336_course.one_file import cell_slice
from cs336_lib.config import UserError

CALL = ast.parse("checks.f(f)").body[0].value  # type: ignore[attr-defined]


def text(*cells: str, given: str = "") -> str:
    """The text of an answer in the last cell with an f. `given` names what the file has."""
    course = cell_slice.Course((), given.split(), ["len", *given.split()])
    return sliced(cells, course).text(CALL)


def sliced(cells, course) -> cell_slice.Slice:
    """The slice of an answer in the last cell with an f."""
    at = [i for i, source in enumerate(cells) if "f" in source][-1]
    return cell_slice.answer(cells, at, CALL, course)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["# mine\n\nf = 1  # one\n\n# check it\nchecks.f(f)\n# passed"], "# mine\n\nf = 1  # one"),
        (["a = 1; f = a; print(f)"], "a = 1\nf = a"),
        (["f = (1,\n     2); print(f)"], "f = (1, 2)"),
        (["f = 1\r\nx = 2\r\nchecks.f(f)"], "f = 1"),
        (["a = 1\nb = 2\n\n# both\nf = a\n"], "a = 1\n\n# both\nf = a"),
        (["import os\na = 1\nb = 2", "f = a"], "a = 1\n\n\nf = a"),
        (["f = lambda: a", "a = 1"], "a = 1\n\n\nf = lambda: a"),
        (["from os import *", "f = 1"], "f = 1"),
        (["from os import *\nf = 1"], "f = 1"),
        (["f = 1\nchecks.f(f)\nf = 2"], "f = 1"),
        (["%%capture\n%%time\nf = 1"], "f = 1"),
        (["f = 1\n%matplotlib inline\nfiles = !ls\nf?"], "f = 1"),
        (["checks.f(len)"], "f = len"),
        (["def g():\n    pass\n\n\nx = checks.f(answer=g)"], "def g():\n    pass\n\n\nf = g"),
        (["if True:\n    f = checks.f(f)\nf = 2"], "f = 2"),
        (
            ['@len\n# why\ndef f():\n    """a\n    b"""\n'],
            '@len\n# why\ndef f():\n    """a\n    b"""',
        ),
    ],
)
def test_a_text_has_what_an_answer_needs(cells, expected):
    assert text(*cells) == expected


def test_what_the_file_has_is_not_taken_again():
    block = "class Block:\n    def __init__(self):\n        self.a = 1"
    assert text(block, "def f():\n    return Block()", given="Block") == (
        "def f():\n    return Block()"
    )


@pytest.mark.parametrize("cells", [["# f"], ["g = 1  # no f"], ["%%bash\nf"], ["f = checks.f(f)"]])
def test_an_answer_that_is_not_there_is_named(cells):
    with pytest.raises(LookupError, match=r"^f$"):
        text(*cells)


@pytest.mark.parametrize(
    ("cells", "setup"),
    [
        (["x = 1\ny = 2\nprint(x)", "f = x"], "x = 1"),
        (["a = 1\nb = a\na = 2", "f = b"], "a = 1; b = a; a = 2"),
        (
            ["a = 1\ndef g():\n    return a\na = 2", "def f():\n    return g()"],
            "a = 1; def g():\n    return a; a = 2",
        ),
        (["t = {}\nt['x'] = 1\nt2 = {}", "f = t"], "t = {}; t['x'] = 1"),
        (["x = slow()", "def f(x):\n    return [x for x in x]"], ""),
        (["x = = 1", "%%bash\nx = 1", "%%time\nx = 2", "f = x"], "x = 2"),
        (["from os import *", "f = 1"], "from os import *"),
        (["i = 1\nx = [i for i in 'ab']", "f = i"], "i = 1"),
        (["i = slow()", "f = [i for i in 'ab']"], ""),
        (["i = slow()", "class C:\n    i = 1\n    j = i\n\nf = C"], ""),
        (["z = 3", "f = a", "a = 1"], "a = 1"),
        (["z = 3", "f = len(z)", "len = 1"], "z = 3"),
        (["f = 3", "checks.f(f)"], "f = 3"),
    ],
)
def test_a_setup_has_what_an_answer_needs(cells, setup):
    found = sliced(cells, cell_slice.Course((), (), ("len",)))
    assert "; ".join(ast.unparse(one.node) for one in found.setup) == setup


def test_a_file_that_is_no_notebook_is_named(tmp_path):
    path = tmp_path / "03_einops.ipynb"
    for cells in ("3", "null", "[3]", '[{"source": "x"}]', '[{"cell_type": "code", "source": 3}]'):
        path.write_text(f'{{"cells": {cells}}}')
        with pytest.raises(UserError, match=r"03_einops\.ipynb: not a notebook"):
            cell_slice.read_code(path)
    path.write_text('{"cells": [{"cell_type": "code", "source": ["x"], "metadata": {"cs336": 3}}]}')
    assert cell_slice.read_code(path) == [("x", "")]
