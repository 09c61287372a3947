"""The site: no link leads nowhere, nothing comes from elsewhere, and it can be read on a phone."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from accessibility import severe
from bs4 import BeautifulSoup
from playwright.sync_api import Locator, Page, expect

from cs336_course import widgets
from cs336_course.course import written
from cs336_lib.sampling import complete
from cs336_lib.training.checkpoint import load_shipped

ROOT = Path(__file__).parents[2]
NAMES = [page.name for page in written(ROOT / "notebooks")]
LOOKED_AT = (
    "index",
    "README",
    "docs/symptoms",
    "docs/measurements",
    "search",
    f"notebooks/{NAMES[0]}",
    f"notebooks/{NAMES[1]}",
)
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, BeautifulSoup]:
    """Every page, parsed."""
    found = (path for path in site.rglob("*.html") if "_static" not in path.parts)
    return {path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in found}


def test_every_internal_link_leads_somewhere(pages, site):
    ids = {page: {tag["id"] for tag in soup.find_all(id=True)} for page, soup in pages.items()}
    broken, count = [], 0
    for page, soup in pages.items():
        for link in soup.find_all("a", href=True):
            parts = urlsplit(link["href"])
            if parts.scheme or parts.netloc:
                continue
            count += 1
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            known = ids.get(target)
            if not target.is_file() or (known and parts.fragment and parts.fragment not in known):
                broken.append(f"{page.relative_to(site)}: {link['href']}")
    assert broken == []
    assert count > 500


def test_nothing_is_loaded_from_elsewhere(pages, site):
    for page, soup in pages.items():
        for name, attribute in LOADED.items():
            for tag in soup.find_all(name):
                source = tag.get(attribute, "")
                assert not source.startswith(("http:", "https:", "//")), f"{page}: {source}"
                if source and not source.startswith(("data:", "#")):
                    assert (page.parent / urlsplit(source).path).is_file(), f"{page}: {source}"
    styles = " ".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", styles)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_whole(name, pages, site):
    page = pages[site / "notebooks" / f"{name}.html"]
    cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
    solutions = [c for c in cells if "solution" in c.metadata.get("tags", [])]
    folded = [d for d in page.find_all("details") if d.summary.text.startswith("Solution")]
    assert len(folded) == len(solutions)
    assert not any(details.has_attr("open") for details in folded)
    asked = [c for c in cells if "prediction" in c.metadata.get("cs336", {})]
    assert len(page.select(".cs336-guess")) == len(asked)  # instead of their pictures
    outputs = [o for c in cells if c.cell_type == "code" and c not in asked for o in c.outputs]
    figures = sum("image/png" in output.get("data", {}) for output in outputs)
    pictures = page.select("div.cell_output img")
    assert len(pictures) == figures
    assert all(len(picture["alt"]) >= 40 for picture in pictures)
    for exercise in filter(None, (c.metadata.get("cs336", {}).get("exercise") for c in cells)):
        assert page.find(id="exercise-" + exercise.replace("_", "-")), exercise
    assert "For the instructor: " not in page.get_text()


@pytest.mark.parametrize("path", ["index", "notebooks/00_start_here"])
def test_the_first_bill_runs_without_a_kernel(path, site, page: Page):
    page.goto((site / f"{path}.html").as_uri())
    for bet in page.locator(".cs336-guess").all():  # which hides what it asks for
        bet.locator("button").first.click()
    root = page.locator(".cs336-explorer.cs336-first-bill").first
    assert not page.locator(".cell_output", has=root).locator("img").count()
    before = root.locator(".cs336-said").inner_text()
    root.locator("input[type=range]").first.press("ArrowLeft")
    expect(root.locator(".cs336-said")).not_to_have_text(before)
    expect(root.locator(".cs336-problem")).to_have_text("")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(scheme, site, page: Page):
    page.emulate_media(color_scheme=scheme)
    for name in LOOKED_AT:
        page.goto((site / f"{name}.html").as_uri())
        assert severe(page) == [], name


@pytest.mark.parametrize("width", [390, 1366, 1440])
def test_pages_fit_the_screen(width, pages, page: Page):
    page.set_viewport_size({"width": width, "height": 844})
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    aborted = "net::ERR_ABORTED"  # of a page that the test has left before all had come
    page.on("requestfailed", lambda r: r.failure == aborted or failed.append(r.url))
    for path in pages:
        page.goto(path.as_uri())
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{path.name} is {wide} pixels wide on a screen of {width}"
    assert failed == []


def writer(site: Path, page: Page, name: str, motion: str = "reduce") -> Locator:
    """Open a page with the box in which the model writes."""
    page.emulate_media(reduced_motion=motion)
    page.goto((site / f"{name}.html").as_uri())
    return page.locator(".cs336-writer")


@pytest.mark.parametrize("name", ["index", f"notebooks/{NAMES[0]}"])
def test_the_model_writes_without_a_kernel(name, site, page: Page):
    """What it draws first, Python has drawn for the picture that the notebook stores."""
    box = writer(site, page, name, "no-preference")
    expected = widgets.writer()
    paper, said = box.locator(".cs336-paper"), box.locator(".cs336-said")
    expect(said).to_contain_text("Writing")
    assert not page.locator(".cell_output", has=box).locator("img").count()
    expect(said).to_contain_text("the likeliest letter is")
    assert paper.inner_text() == expected.text + expected.written
    names = [bar.get_attribute("data-value") for bar in box.locator(".cs336-bars button").all()]
    assert names == [letter for letter, _ in expected.likeliest[: len(names)]]


def test_the_reader_can_write_with_the_model_by_keyboard(site, page: Page):
    box = writer(site, page, "index")
    model, letters = load_shipped()
    paper, said = box.locator(".cs336-paper"), box.locator(".cs336-said")
    expect(said).to_contain_text("the likeliest letter is")  # it waits for the reader
    line = box.get_by_label("your line")
    line.fill("To be, or not to ")
    expect(paper).to_have_text("To be, or not to ")
    expect(said).to_contain_text("After “·”")
    heat = box.get_by_label("temperature")
    heat.press("Home")
    expect(heat).to_have_attribute("aria-valuetext", "0")
    line.press("Enter")
    greedy = complete(model, letters, "To be, or not to ", 120, temperature=0)
    expect(box.get_by_role("button", name="Stop")).to_be_visible()
    expect(box.get_by_role("button", name="Continue")).to_be_visible()
    assert paper.inner_text() == greedy
    bars = box.locator(".cs336-bars button")
    bars.first.press("ArrowDown")
    second = bars.nth(1)
    expect(second).to_be_focused()
    letter = second.get_attribute("data-value")
    second.press("Enter")
    expect(said).to_contain_text("the likeliest letter is")
    assert paper.inner_text().strip() == (greedy + letter).strip()
    line.fill("3 witches")
    expect(box.locator(".cs336-problem")).to_contain_text("never seen “3”")
    line.fill("Three witches")
    expect(box.locator(".cs336-problem")).to_have_text("")
    expect(paper).to_have_text("Three witches")


def test_a_prediction_folds_the_answer_until_one_chooses(site, page):
    page.goto((site / "notebooks" / "04_compute.html").as_uri())
    card = page.locator(".cs336-guess").first
    right = card.get_attribute("data-answer")
    folded = page.locator(".cs336-folded")
    before = folded.count()
    assert before > 5
    wrong = card.locator(f'button.cs336-option:not([data-option="{right}"])').first
    wrong.focus()
    page.keyboard.press("Enter")
    expect(card.locator(".cs336-said")).to_contain_text(f"It is “{right}”.")
    assert folded.count() < before
    expect(card.locator(f'[data-option="{right}"] .cs336-mark')).to_have_text("✓")
    expect(wrong.locator(".cs336-mark")).to_have_text("✗")
    card.locator(f'[data-option="{right}"]').focus()
    page.keyboard.press("Enter")  # but the first guess counts
    expect(wrong).to_have_attribute("aria-pressed", "true")
    other = page.locator(".cs336-guess").nth(1)
    other.get_by_role("button", name="Show the answer").click()
    expect(other.locator(".cs336-said")).to_have_text("Choose, and the answer unfolds below.")
    assert severe(page, ".cs336-guess") == []
    card.scroll_into_view_if_needed()
    page.screenshot(path=site / "prediction.png")
