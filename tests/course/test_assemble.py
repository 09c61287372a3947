"""The one-file trainer is assembled from the learner's cells, and else from solutions."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from cs336_course.course import page_of
from cs336_course.one_file import assemble, processes
from cs336_course.one_file.recipes import Recipe
from cs336_lib.config import UserError

COURSE = Path(__file__).parents[2] / "notebooks"
IMPORTS = "import toy_checks as checks"
CHECK = "\n\n\nbytes_of = checks.bytes_of(bytes_of)"
STUB = "def bytes_of(n, bits):\n    raise NotImplementedError" + CHECK
SOLUTION = (
    "<details>\n\n```python\ndef bytes_of(n, bits):\n    return n * bits / 8\n```\n\n</details>"
)
MINE = "def bytes_of(n, bits):\n    return bits * n / 8"
GIVEN = "def one():\n    return 1"
MARKS = {"exercise": "bytes_of", "part": "bytes_of"}


def cell(source: str, kind: str = "code", tags=(), **marks: str) -> dict:
    metadata = {"tags": list(tags), "cs336": marks}
    return {"cell_type": kind, "source": source.splitlines(keepends=True), "metadata": metadata}


def notebooks(folder: Path, answer: str = STUB, later: str = STUB, given: str = GIVEN) -> Path:
    """Write pages 07 to 11, with an exercise and a given part in 07, and the former in 10."""
    folder.mkdir(exist_ok=True)
    for number in ("07", "08", "09", "10", "11"):
        cells = [cell(IMPORTS)]
        if number == "07":
            cells.append(cell(given, part="one"))
            cells.append(cell(answer, tags=["exercise"], **MARKS))
            cells.append(cell(SOLUTION, kind="markdown", tags=["solution"]))
        if number == "10":
            cells.append(cell(later, tags=["exercise"], **MARKS))
            cells.append(cell(SOLUTION.replace("n * bits", "bits * n"), "markdown", ["solution"]))
        (folder / f"{page_of(number).name}.ipynb").write_text(json.dumps({"cells": cells}))
    return folder


@pytest.fixture(scope="module")
def kept() -> Iterator[processes.Process]:
    """A process that outlives its blocks, because starting it takes seconds."""
    with processes.Process() as process:
        yield process


@pytest.fixture(autouse=True)
def process(kept, monkeypatch) -> None:
    monkeypatch.setattr(assemble, "Process", lambda: nullcontext(kept))


@pytest.fixture
def toy(tmp_path, monkeypatch) -> Path:
    """The learner's folder, in a course whose notebooks are toys."""
    monkeypatch.setattr(assemble.study, "SHIPPED", notebooks(tmp_path / "course"))
    monkeypatch.setattr(assemble.Notebook, "checks", "toy_checks")
    outline = {"Model": "embed", "Toys": "one bytes_of mine", "Loop": "train"}
    recipe = Recipe("train_gpt2.py", "07 08 09 10 11", outline)
    monkeypatch.setattr(assemble, "TRAIN_GPT2", recipe)
    return tmp_path / "mine"


@pytest.mark.parametrize(
    ("answer", "missing", "code"),
    [
        (STUB, "not attempted yet", "return n * bits / 8"),
        (MINE + CHECK, "", "return bits * n / 8"),
        (MINE.replace(" / 8", "") + CHECK, "that is bits", "return n * bits / 8"),
        (MINE.replace("bits * n", "mul(n, bits)") + CHECK, "import it by name", "return n"),
        ("one = 8\n" + MINE.replace("8", "one") + CHECK, "has a `one`; give yours", "return n"),
        ("def bytes_of(n:" + CHECK, "was never closed", "return n * bits / 8"),
        ("bytes_of = ..." + CHECK, "not attempted yet", "return n * bits / 8"),
        ("bytes_of = 1 / 0" + CHECK, "ZeroDivisionError: division by zero", "return n * bits / 8"),
    ],
)
def test_a_part_is_the_learners_if_it_passes(toy, answer, missing, code):
    one, two = assemble.parts(notebooks(toy, answer), "07")
    assert (one.given, two.notebook) == (True, "07")
    assert missing in two.missing
    assert two.is_mine == (missing == "")
    assert code in two.code
    assert "checks." not in two.code


def test_a_part_that_is_right_only_alone_is_not_used(toy, monkeypatch):
    """In the file, `bytes_of` stands above `one`, which this answer calls when it is defined."""
    recipe = Recipe("train_gpt2.py", "07 08 09 10 11", {"Toys": "bytes_of one"})
    monkeypatch.setattr(assemble, "TRAIN_GPT2", recipe)
    answer = "EIGHTH = one() / 8\n" + MINE.replace("/ 8", "* EIGHTH") + CHECK
    (part,) = (one for one in assemble.parts(notebooks(toy, answer), "07") if not one.given)
    assert part.missing.startswith("right alone, but in the whole file, name 'one' is not defined")
    assert "EIGHTH" not in part.code


def test_a_later_part_replaces_an_earlier_one_unless_only_that_is_the_learners(toy):
    def both(*cells: str) -> assemble.Part:
        return assemble.parts(notebooks(toy, *cells))[1]

    other = MINE.replace("bits * n", "n * bits * 1") + CHECK
    wrong = MINE.replace(" / 8", "") + CHECK
    assert "bits * n" in both(STUB, STUB).code
    assert "bits * n" in both(MINE + CHECK, STUB).code
    assert both(MINE + CHECK, STUB).is_mine
    assert "n * bits * 1" in both(MINE + CHECK, other).code
    assert both(MINE + CHECK, wrong).is_mine
    said = assemble.progress(folder=toy)
    assert "yours of notebook 07 instead of a later one: bytes_of (that is" in said


def test_solutions_are_marked_among_the_learners_parts(toy):
    stub = assemble.parts(notebooks(toy))
    assert "From the solutions" not in assemble.text(stub)
    mixed = [*stub, assemble.Part("mine", "08", "x = 1", given=False)]
    assert "# From the solutions of notebook 10.\ndef bytes_of" in assemble.text(mixed)


def test_parts_stand_in_sections_and_bring_what_they_use():
    loop = assemble.Part("train", "08", "def train():\n    return math.pi", given=True)
    model = assemble.Part("embed", "07", "def embed(config):\n    return config.n_embd", given=True)
    said = assemble.text([loop, model])
    banners = [line.strip("# =") for line in said.splitlines() if line.startswith("# ==")]
    assert banners == ["Model", "Loop"]
    assert said.index("def embed") < said.index("def train")
    assert "import math\n" in said
    assert "import json" not in said
    assert "torchrun" not in said
    assert "    n_embd: int = 768" in said
    assert "n_layer" not in said
    compile(said, "train_gpt2.py", "exec")


def test_a_module_has_the_parts_up_to_a_notebook(toy):
    made = assemble.module("09", notebooks(toy, MINE + CHECK))
    assert made.bytes_of(made.one(), 8) == 1
    assert made.Config().n_layer == 12


@pytest.mark.parametrize("until", ["7", "00", "model_of_today"])
def test_a_notebook_without_parts_is_refused(toy, until):
    with pytest.raises(UserError, match=f"until is '{until}'; for train_gpt2.py, one of 07, 08"):
        assemble.module(until, notebooks(toy))


def test_a_file_is_not_overwritten_by_accident(toy):
    out = notebooks(toy) / "file.py"
    assemble.write(out, toy)
    text = out.read_text()
    with pytest.raises(FileExistsError, match="--overwrite"):
        assemble.write(out, toy)
    assemble.write(out, toy, overwrite=True)
    assert out.read_text() == text
    compile(text, "file.py", "exec")


def test_without_a_folder_the_course_has_what_is_missing(toy, monkeypatch):
    """Test a folder with one notebook, which has no solutions, as in Colab or a handout."""
    toy.mkdir()
    cells = [cell(IMPORTS), cell(STUB, tags=["exercise"], **MARKS)]
    (toy / "07_gpt2_model.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.chdir(toy)
    made = assemble.module("09")
    assert made.bytes_of(2, 8) == 2
    assert made.one() == 1
    said = assemble.progress("10")
    assert "given, because your notebook has no cell for one: one" in said
    assert "from the solutions, because this folder has no notebook 10: bytes_of" in said


def test_a_missing_notebook_is_named(toy):
    toy.mkdir()
    with pytest.raises(FileNotFoundError, match="no notebook 07"):
        assemble.parts(toy)
    (toy / "07_gpt2_model.ipynb").write_text("[1, 2")
    with pytest.raises(ValueError, match=r"07_gpt2_model\.ipynb: not a notebook"):
        assemble.parts(toy)


@pytest.mark.parametrize(
    ("given", "row", "value"),
    [
        (GIVEN.replace("1", "2"), "given, and changed in your notebook: one", 2),
        ("def one(:", "given, because yours isn't right yet: one (your code raised SyntaxError", 1),
        ("", "given, because your notebook has no cell for one: one", 1),
    ],
)
def test_a_given_part_may_be_changed(toy, given, row, value):
    notebooks(toy, given=given)
    assert row in assemble.progress("07", toy)
    assert assemble.module("07", toy).one() == value


# --- cells of a learner, in a copy of notebook 07

NAME = "causal_self_attention"
Edit = Callable[[str, str], str]  # makes a cell from the code and the line with the check


def solve(folder: Path, names: tuple[str, ...], edits: dict[str, Edit]) -> list[dict]:
    """Write notebook 07 with the solutions of some exercises, and return its cells."""
    notebook = json.loads((COURSE / "07_gpt2_model.ipynb").read_text())
    cells = notebook["cells"]
    for one in cells:
        name = one["metadata"].get("cs336", {}).get("exercise")
        if name in names:
            code = assemble.solution(cells, name).rstrip()
            check = "".join(one["source"]).splitlines()[-1]
            edit = edits.get(name, lambda code, check: f"{code}\n\n\n{check}")
            one["source"] = edit(code, check).splitlines(keepends=True)
    save(folder, cells)
    return cells


def save(folder: Path, cells: list[dict], name: str = "07_gpt2_model") -> None:
    (folder / f"{name}.ipynb").write_text(json.dumps({"cells": cells}))


def find(cells: list[dict], exercise: str = NAME) -> int:
    marks = [one["metadata"].get("cs336", {}).get("exercise") for one in cells]
    return marks.index(exercise)


def part(folder: Path, name: str = NAME) -> assemble.Part:
    (found,) = (one for one in assemble.parts(folder, "07") if one.name == name)
    return found


EDITS: dict[str, Edit] = {
    "tried": lambda code, check: (
        f"!ls\n{code}\n        # raise NotImplementedError\nx = torch.ones(4)\nprint(x)\n"
        f"torch.set_default_dtype(torch.float64)\n{check}\n{check}\n"
        "files = !ls\nimport sys; sys.exit(0)"
    ),
    "not checked": lambda code, check: code,
    "another name": lambda code, check: (
        code.replace("class CausalSelfAttention", "class Mine")
        + "\n\n\n"
        + check.replace("(CausalSelfAttention)", "(Mine)")
    ),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_right_answer_is_kept(tmp_path, edit):
    solve(tmp_path, (NAME,), {NAME: edit})
    found = part(tmp_path)
    assert (found.missing, found.is_mine) == ("", True)
    assert not any(word in found.code for word in ("checks", "print", "ls", "%%", "exit", "set_"))
    before = torch.get_default_dtype(), torch.is_grad_enabled()
    made = assemble.module("07", tmp_path)
    attention = made.CausalSelfAttention(made.Config(n_embd=4, n_head=2))
    assert attention(torch.ones(1, 1, 4)).shape == (1, 1, 4)
    assert before == (torch.get_default_dtype(), torch.is_grad_enabled())


@pytest.mark.parametrize("of", ["the cell", "all cells, without the word"])
def test_a_part_without_metadata_is_found(tmp_path, of):
    cells = solve(tmp_path, (NAME,), {})
    for one in [cells[find(cells)]] if of == "the cell" else cells:
        one["metadata"] = {}
        if "word" in of:
            del one["metadata"]
    save(tmp_path, cells)
    found = assemble.parts(tmp_path, "07")
    assert len(found) == 7
    assert [one.name for one in found if one.is_mine] == [NAME]


def test_a_copy_does_not_win(tmp_path):
    cells = solve(tmp_path, (NAME,), {})
    wrong = {NAME: lambda code, check: f"{code.replace('(q, k, v)', '(q, v, k)')}\n\n\n{check}"}
    save(tmp_path, solve(tmp_path, (NAME,), wrong), "07_gpt2_model-Copy1")
    save(tmp_path, cells)
    os.utime(tmp_path / "07_gpt2_model.ipynb", (1, 1))
    assert part(tmp_path).is_mine
    row = "notebook 07 is 07_gpt2_model.ipynb; not read: 07_gpt2_model-Copy1.ipynb"
    assert row in assemble.progress("07", tmp_path)
    (tmp_path / "07_gpt2_model.ipynb").unlink()  # then the copy is what there is
    save(tmp_path, json.loads((COURSE / "07_gpt2_model.ipynb").read_text())["cells"], "07_other")
    assert not part(tmp_path).is_mine
    row = "notebook 07 is 07_gpt2_model-Copy1.ipynb; not read: 07_other.ipynb"
    assert row in assemble.progress("07", tmp_path)


def line_in_forward(line: str) -> Edit:
    """Return an edit that adds a line to the class's forward."""
    begin = "    def forward(self, x: Tensor) -> Tensor:\n"
    return lambda code, check: f"{code.replace(begin, f'{begin}        {line}' + chr(10))}\n{check}"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("torch.set_grad_enabled(False); torch.set_default_dtype(torch.float64)", None),
        ("F.gelu = torch.relu", None),
        ("import sys; sys.exit(0)", "your code raised SystemExit: 0"),
        ("import os; os._exit(0)", "your code ended Python"),
        ("while True: pass", "your code took more than 10 seconds"),
    ],
)
def test_an_answer_disturbs_no_other(tmp_path, monkeypatch, line, reason):
    if "while" in line:
        monkeypatch.setattr(assemble, "SECONDS", 10)
    solve(tmp_path, (NAME, "init_weights"), {NAME: line_in_forward(line)})
    found = {one.name: one for one in assemble.parts(tmp_path, "07")}
    assert found["init_weights"].missing == ""
    if reason is not None:
        assert found[NAME].missing == reason
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (True, torch.float32)


def test_without_forks_each_part_has_its_own_process(monkeypatch):
    monkeypatch.setattr(processes, "RUN", processes.RUN.replace("()", "(can_fork=False)"))
    job = {"before": "", "checks": "", "check": "", "arguments": []}
    sets = "import torch; torch.set_default_dtype(torch.float64)"
    reads = "import torch; assert torch.ones(1).dtype == torch.float32"
    with processes.Process() as process:
        assert "ZeroDivisionError" in assemble.reason(process, code="x = 2 / 0", **job)
        assert process.running is None
        assert [assemble.reason(process, code=code, **job) for code in (sets, reads)] == ["", ""]
