"""Every notebook keeps the course's conventions.

Each test applies one rule to all notebooks and lists everything that breaks it.
"""

import re
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from cs336_course.drawing.alt import LONGEST
from tools.notebooks import normalise

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
NAMES = [path.relative_to(ROOT / "notebooks").with_suffix("").as_posix() for path in PATHS]
NOTEBOOKS = {
    name: nbformat.read(path, as_version=4) for name, path in zip(NAMES, PATHS, strict=True)
}
SETUP = 'if find_spec("cs336_lib") is None:  # as in Colab, whose PyTorch stays\n'
SLIDES = {"slide", "subslide", "fragment", "skip", "notes", "-"}
TAGS = {"imports", "given", "cover", "exercise", "hint", "solution"}
TAGS |= {"nbval-ignore-output", "raises-exception", "measures"}


def assert_kept(rule: Callable[[NotebookNode], Iterator[str]]) -> None:
    """Apply a rule, which yields what breaks it, to every notebook."""
    broken = [f"{name}: {what}" for name, notebook in NOTEBOOKS.items() for what in rule(notebook)]
    assert not broken, "\n".join(["", *broken])


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", []))


def start(cell: NotebookNode) -> str:
    """Return the beginning of a cell, by which to find it."""
    return f"{cell.source[:80]!r}"


def test_form():
    def rule(notebook):
        if not nbformat.validator.isvalid(notebook):
            yield "is not a valid notebook"
        ids = [cell.id for cell in notebook.cells]
        if len(ids) != len(set(ids)):
            yield "two cells have the same id"

    assert_kept(rule)


def test_cells_have_known_tags_and_slide_types():
    def rule(notebook):
        for cell in notebook.cells:
            slide = cell.metadata.get("slideshow", {}).get("slide_type")
            if slide not in SLIDES:
                yield f"slide type {slide}: {start(cell)}"
            if not tags(cell) <= TAGS:
                yield f"tags {tags(cell) - TAGS}: {start(cell)}"
            # 00 tells learners to skip these.
            if slide == "notes" and not cell.source.startswith("For the instructor: "):
                yield f"a note without its opening: {start(cell)}"

    assert_kept(rule)


def opening(notebook):
    """Return the Markdown before the first section: the hook, the goals, the time."""
    before = takewhile(lambda cell: not cell.source.startswith("## "), notebook.cells)
    return "\n".join(cell.source for cell in before if cell.cell_type == "markdown")


def test_opening():
    def rule(notebook):
        for promise in ("After this you can", "minutes", "Needs"):
            if promise.lower() not in opening(notebook).lower():
                yield f"the cells before the first section lack {promise!r}"
        imports = [cell for cell in notebook.cells if "imports" in tags(cell)]
        if imports != code_cells(notebook)[:1]:
            yield "the first code cell alone must have the tag imports"
        if SETUP not in imports[0].source:
            yield "the imports don't begin with the installation, as in 00"
        second = code_cells(notebook)[1]
        if tags(second) != {"cover"} or not any("image/png" in o.data for o in second.outputs):
            yield "the second code cell must be the cover, and show a picture"

    assert_kept(rule)


def test_outputs_are_stored_in_normal_form():
    def rule(notebook):
        if normalise(nbformat.from_dict(notebook)) != notebook:
            yield "run `make notebooks`"
        for cell in code_cells(notebook):
            if any(output.output_type == "error" for output in cell.outputs):
                yield f"stores an error: {start(cell)}"

    assert_kept(rule)


def test_every_picture_has_an_alternative_text():
    def rule(notebook):
        for cell in code_cells(notebook):
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    text = output.metadata.get("image/png", {}).get("alt", "")
                    if not 40 <= len(text) <= LONGEST:
                        yield f"run `make notebooks`; title and label the figure: {start(cell)}"

    assert_kept(rule)


def test_cells_that_are_not_compared_assert_what_holds_everywhere():
    def rule(notebook):
        for cell in code_cells(notebook):
            is_free = tags(cell) & {"nbval-ignore-output", "raises-exception"}
            if is_free and "assert" not in cell.source:
                yield f"asserts nothing: {start(cell)}"

    assert_kept(rule)


def test_links_lead_somewhere():
    for name, notebook in NOTEBOOKS.items():
        folder = (ROOT / "notebooks" / name).parent
        for cell in notebook.cells:
            for target in re.findall(r"\]\(([^)#]+?\.(?:ipynb|md))\)", cell.source):
                assert target.startswith("http") or (folder / target).exists(), (name, target)
            # This works in JupyterLab, and breaks the site and the slides.
            assert "](#" not in cell.source, f"{name}: a link within the notebook: {start(cell)}"


def test_a_notebook_imports_its_own_room_and_no_other():
    for name, notebook in NOTEBOOKS.items():
        room = name.partition("/")[2] or name.partition("_")[2]
        code = "\n".join(cell.source for cell in code_cells(notebook))
        entered = set(re.findall(r"cs336_course\.pages(?:\.| import )(\w+)", code))
        assert entered <= {room}, name


def exercises(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    """Yield the index and the stub cell of every exercise."""
    for number, cell in enumerate(notebook.cells):
        if "exercise" in tags(cell) or "exercise" in cell.metadata.get("cs336", {}):
            yield number, cell


def test_harder_exercises_have_a_hint_before_the_solution():
    def rule(notebook):
        for number, stub in exercises(notebook):
            difficulty = next(
                found[0]
                for cell in reversed(notebook.cells[:number])
                if (found := re.search("[●○]{3}", cell.source))
            )
            hint, solution = (tags(cell) for cell in notebook.cells[number + 1 : number + 3])
            if difficulty != "●○○" and not ("hint" in hint and "solution" in solution):
                yield f"{difficulty} without hint and solution after it: {start(stub)}"

    assert_kept(rule)


def test_stubs_say_that_they_are_not_attempted():
    named: set[str] = set()  # a name is also a link on the site

    def rule(notebook):
        for _, stub in exercises(notebook):
            name = stub.metadata.get("cs336", {}).get("exercise")
            if "exercise" not in tags(stub) or name is None:
                yield f"needs the tag and a name: {start(stub)}"
                continue
            if name in named:
                yield f"{name}: another exercise has this name"
            named.add(name)
            last_line = stub.source.strip().splitlines()[-1]
            if not re.match(rf"([\w, ]+ = )?checks\.{name}\(", last_line):
                yield f"{name}: does not end with its check"
            if "".join(o.get("text", "") for o in stub.outputs) != f"{name}: not attempted yet\n":
                yield f"{name}: does not store that it was not attempted"

    assert_kept(rule)
