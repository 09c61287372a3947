import re
from pathlib import Path

import nbformat
import pytest

from cs336_course.course import written
from tools import landing, publish

ROOT = Path(__file__).parents[2]
FOLDER = Path("notebooks")
NOTEBOOKS = [ROOT / page.path(FOLDER) for page in written(ROOT / FOLDER)]


@pytest.fixture
def course(monkeypatch):
    """In the folder of the course, as make is."""
    monkeypatch.chdir(ROOT)


def test_a_handout_has_everything_but_solutions_and_outputs(tmp_path, course):
    publish.handout([path.relative_to(ROOT) for path in NOTEBOOKS], tmp_path)
    solutions = 0
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        left = nbformat.read(tmp_path / path.relative_to(ROOT), as_version=4)
        nbformat.validate(left)
        gone = [c for c in cells if c.id not in {kept.id for kept in left.cells}]
        assert gone == [c for c in cells if "solution" in c.metadata.get("tags", [])]
        solutions += len(gone)
        shown = [c for c in left.cells if c.get("outputs")]
        assert all("cover" in c.metadata.get("tags", []) for c in shown)
        assert "<summary>Solution" not in "".join(c.source for c in left.cells)
        assert [c.id for c in left.cells if "hint" in c.metadata.get("tags", [])] == [
            c.id for c in cells if "hint" in c.metadata.get("tags", [])
        ]
    assert solutions  # otherwise nothing was left out
    assert "*.ipynb merge=notebook\n" in (tmp_path / ".gitattributes").read_text()


def test_a_link_from_a_handout_leads_somewhere(tmp_path, course):
    publish.handout([path.relative_to(ROOT) for path in NOTEBOOKS], tmp_path)
    for path in (tmp_path / "notebooks").rglob("*.ipynb"):
        text = "".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
        for link in re.findall(r"\]\((?!https?:)([\w./]+\.\w+)\)", text):
            assert (path.parent / link).exists(), link


def test_the_site_is_laid_out_as_the_repository_is(tmp_path, course):
    notebooks = [path.relative_to(ROOT) for path in NOTEBOOKS]
    publish.lay_out(notebooks, tmp_path)
    index = (tmp_path / "index.md").read_text()
    toctrees = index.split("{toctree}", 1)[1]
    listed = re.findall(r"^(?:.* <)?([\w/]+)>?$", toctrees, flags=re.M)
    names = [path.with_suffix("").as_posix() for path in notebooks]
    assert sorted(names) == sorted(listed[: len(names)])
    for name in listed:
        assert list(tmp_path.glob(f"{name}.*")), name
    for target in re.findall(r"\]\(([^)#:]+)\)", index):
        assert (tmp_path / target).exists(), target
    assert ">GPT-2: $21<" in index


def test_two_prices_on_a_line_are_no_maths():
    """JupyterLab and the decks would set "$21 to $28" as a formula."""
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                assert not re.search(r"\$\d[^$\n]*\$\d", cell.source), f"{path.stem} {cell.id}"


def test_the_landing_page_has_the_price_that_notebook_00_prints():
    stored = (ROOT / "notebooks" / "00_start_here.ipynb").read_text(encoding="utf-8")
    assert f"of the peak, ${landing.GPT2}\\n" in stored
