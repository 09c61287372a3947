"""Every slide of every deck fits its screen, and a deck opens without a network."""

from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page

from cs336_course.course import written

ROOT = Path(__file__).parents[2]
PAGES = written(ROOT / "notebooks")

# Shows each slide with all its fragments and returns what leaves it, with the cell's id.
OVERFLOWS = """() => {
  const found = [];
  for (const slide of Reveal.getSlides()) {
    const {h, v} = Reveal.getIndices(slide);
    Reveal.slide(h, v);
    const screen = slide.getBoundingClientRect();
    for (const cell of slide.querySelectorAll(".jp-Cell")) {
      if (cell.closest("aside")) continue;
      const id = cell.id.replace("cell-id=", "");
      const below = cell.getBoundingClientRect().bottom - screen.bottom;
      let right = cell.getBoundingClientRect().right - screen.right;
      for (const part of cell.querySelectorAll("pre, table, img, p, mjx-container"))
        right = Math.max(right, part.getBoundingClientRect().right - screen.right,
                         part.scrollWidth - part.clientWidth);
      if (below > 1) found.push({h, v, id, side: "below", by: Math.round(below)});
      if (right > 1) found.push({h, v, id, side: "right", by: Math.round(right)});
    }
  }
  return found;
}"""


def open_deck(page: Page, path: Path) -> list[str]:
    """Load a deck and wait for its maths and slides; return what it asked of other places."""
    wanted: list[str] = []
    page.on("request", lambda request: wanted.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_function("window.Reveal && Reveal.isReady()")
    return [url for url in wanted if not url.startswith(("file:", "data:", "blob:"))]


@pytest.mark.parametrize("of", PAGES, ids=lambda of: of.key)
def test_every_slide_fits_its_screen(of, decks, page):
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("requestfailed", lambda request: failed.append(request.url))
    notebook = of.path(ROOT / "notebooks")
    assert open_deck(page, decks / f"{notebook.stem}.html") == []
    overflows = page.evaluate(OVERFLOWS)
    lines = [
        f"slide {o['h'] + 1}.{o['v'] + 1}, cell {o['id']}: {o['by']} px too far {o['side']}"
        for o in overflows
    ]
    assert not lines, "begin a subslide at or before these cells:\n" + "\n".join(lines)
    assert failed == []
    assert page.locator("section section, .slides > section:not(.stack)").count() > 5
    links = page.locator("a[href]").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    ours = [link.partition("#")[0] for link in links if not link.startswith(("http", "#"))]
    assert [link for link in ours if not (decks / link).exists()] == []
    cells = nbformat.read(notebook, as_version=4).cells
    asked = [cell for cell in cells if "prediction" in cell.metadata.get("cs336", {})]
    shown = [cell for cell in asked if cell.metadata.slideshow.slide_type != "skip"]
    assert page.locator(".options").count() == len(shown)
    assert "predict(" not in (page.locator(".slides").text_content() or "")
