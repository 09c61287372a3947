"""Every notebook keeps the course's conventions, and every printed solution passes its check."""

import ast
import contextlib
import io
import re
import statistics
from pathlib import Path

import nbformat
import pytest

from cs336_lib.classroom.plots.alt import LONGEST
from cs336_lib.classroom.plots.course import COURSE

ROOT = Path(__file__).parents[1]


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SLIDES = {"slide", "subslide", "fragment", "skip", "notes", "-"}
TAGS = {"imports", "exercise", "hint", "solution", "nbval-ignore-output", "raises-exception"}


def read(path: Path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell) -> set[str]:
    return set(cell.metadata.get("tags", []))


def counted_lines(source: str) -> int:
    """Lines of a cell outside class definitions, blank ones left out."""
    inside: set[int] = set()
    for node in ast.parse(re.sub(r"^[%!].*$", "pass", source, flags=re.M)).body:
        if isinstance(node, ast.ClassDef):
            inside |= set(range(node.lineno, node.end_lineno + 1))
    lines = source.splitlines()
    return sum(1 for n, line in enumerate(lines, start=1) if line.strip() and n not in inside)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return read(request.param)


def test_the_course_starts_where_make_lab_opens_it():
    assert NOTEBOOKS[0].name == "00_start_here.ipynb"


def test_form(notebook):
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    ids = [cell.id for cell in notebook.cells]
    assert len(ids) == len(set(ids))
    for cell in notebook.cells:
        assert cell.metadata.get("slideshow", {}).get("slide_type") in SLIDES, cell.source[:80]
        assert tags(cell) <= TAGS, tags(cell) - TAGS
        if cell.metadata["slideshow"]["slide_type"] == "notes":  # 00 tells learners to skip these
            assert cell.source.startswith("For the instructor: ")


def test_opening(notebook):
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    titles = {f"# {lecture.number} · {' '.join(lecture.title.split())}" for lecture in COURSE}
    assert first.source.splitlines()[0] in titles, first.source[:60]
    for promise in ("After this you can", "minutes", "Needs"):
        assert promise.lower() in first.source.lower(), promise
    imports = [cell for cell in notebook.cells if "imports" in tags(cell)]
    assert imports == code_cells(notebook)[:1]


def test_closing(notebook):
    headings = [cell.source for cell in notebook.cells[-4:] if cell.cell_type == "markdown"]
    assert any(text.startswith("## Summary") for text in headings)
    assert any("## What to read next" in text for text in headings)


def test_cells_are_small(notebook):
    cells = code_cells(notebook)[1:]  # the first one imports, a line per name
    sizes = {cell.id: counted_lines(cell.source) for cell in cells}
    assert statistics.median(sizes.values()) <= 6
    assert {cell: size for cell, size in sizes.items() if size > 25} == {}


def test_outputs_are_stored_in_normal_form(notebook):
    from cs336_lib.classroom.notebooks import normalise

    assert normalise(nbformat.from_dict(notebook)) == notebook, "run `make notebooks`"
    for cell in code_cells(notebook):
        for output in cell.outputs:
            assert output.output_type != "error", cell.source[:80]


def test_every_picture_has_an_alternative_text(notebook):
    pictures = [o for cell in code_cells(notebook) for o in cell.outputs if is_picture(o)]
    texts = [o.metadata.get("image/png", {}).get("alt", "") for o in pictures]
    too_short = [text for text in texts if len(text) < 40]
    assert not too_short, "run `make notebooks`; title and label the figures"
    assert max(map(len, texts)) <= LONGEST


def is_picture(output) -> bool:
    return "image/png" in output.get("data", {})


def test_at_most_a_fifth_depends_on_the_machine(notebook):
    cells = code_cells(notebook)
    ignored = [cell for cell in cells if "nbval-ignore-output" in tags(cell)]
    assert len(ignored) <= len(cells) / 5
    for cell in (*ignored, *(cell for cell in cells if "raises-exception" in tags(cell))):
        assert "assert" in cell.source, f"asserts nothing: {cell.source[:80]}"


def shows_a_figure(cell) -> bool:
    """Whether nbval compares a figure in the cell's output that its source doesn't spell out."""
    if "nbval-ignore-output" in cell.metadata.get("tags", []):
        return False
    texts = (str(o.get("text") or o.get("data", {}).get("text/plain", "")) for o in cell.outputs)
    figures = re.findall(r"\d[\d.,]*", " ".join(texts))
    return any(figure not in cell.source for figure in figures)


def test_claims_assert_or_show_something(notebook):
    for cell in notebook.cells:
        proves = cell.metadata.get("cs336", {}).get("proves", [])
        assert len(proves) <= 3
        if proves:
            assert cell.cell_type == "code"
            assert "assert" in cell.source or shows_a_figure(cell)


def test_links_lead_somewhere(notebook):
    for cell in notebook.cells:
        for target in re.findall(r"\]\(([^)#]+?\.(?:ipynb|md))\)", cell.source):
            if not target.startswith("http"):
                assert (ROOT / "notebooks" / target).exists(), target


def test_prose_speaks_of_the_course_alone(notebook):
    for cell in notebook.cells:
        assert not re.search(r"/work/|\.\./shared|/root/|/home/", cell.source), cell.source[:80]


def exercises() -> list:
    """(notebook, index of the stub cell) of every exercise."""
    found = []
    for path in NOTEBOOKS:
        for number, cell in enumerate(read(path).cells):
            if "exercise" in tags(cell) or "exercise" in cell.metadata.get("cs336", {}):
                name = cell.metadata.get("cs336", {}).get("exercise", "unnamed")
                found.append(pytest.param(path, number, id=f"{path.stem}-{name}"))
    return found


@pytest.mark.parametrize(("path", "number"), exercises())
def test_harder_exercises_have_a_hint_before_the_solution(path, number):
    cells = read(path).cells
    difficulty = next(
        found[0]
        for cell in reversed(cells[:number])
        if (found := re.search("[●○]{3}", cell.source))
    )
    following = [tags(cell) for cell in cells[number + 1 : number + 3]]
    assert difficulty == "●○○" or ("hint" in following[0] and "solution" in following[1])


@pytest.mark.parametrize(("path", "number"), exercises())
def test_printed_solution_passes_and_stub_says_so(path, number):
    notebook = read(path)
    stub = notebook.cells[number]
    name = stub.metadata.cs336.exercise
    assert "exercise" in tags(stub)
    check = stub.source.strip().splitlines()[-1]
    assert check.startswith(f"checks.{name}("), check
    assert "".join(o.get("text", "") for o in stub.outputs) == f"{name}: not attempted yet\n"

    following = notebook.cells[number + 1 : number + 4]
    solution = next(cell.source for cell in following if "solution" in tags(cell))
    assert "<details>" in solution
    blocks = re.findall(r"```python\n(.*?)```", solution, flags=re.S)
    assert len(blocks) == 1, "one code block, the whole solution"
    namespace: dict = {"__name__": "__main__"}
    exec(code_cells(notebook)[0].source, namespace)
    exec(blocks[0], namespace)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(check, namespace)
    assert printed.getvalue() == f"{name}: passed\n"
