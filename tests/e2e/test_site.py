"""The site: no link leads nowhere, nothing comes from elsewhere, and it can be read on a phone."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from accessibility import severe
from bs4 import BeautifulSoup
from playwright.sync_api import Locator, Page, expect

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
LOOKED_AT = (
    "index",
    "README",
    "docs/symptoms",
    "docs/measurements",
    "search",
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


def test_the_start_page_shows_the_course_and_reaches_everything(pages, site):
    start = pages[site / "index.html"]
    assert "What training a language model costs" in start.h1.text
    path = start.find(id="your-path").find_all("li")
    assert [item.a["href"] for item in path] == [f"notebooks/{name}.html" for name in NAMES]
    links = {link["href"] for link in start.find_all("a", href=True)}
    opened = [link for link in links if link.startswith(("https://colab", "https://codespaces"))]
    assert len(opened) == 2
    assert "make lab" in start.find("pre").text
    assert {f"notebooks/{name}.html" for name in NAMES} <= links
    documents = {f"docs/{path.stem}.html" for path in (ROOT / "docs").glob("*.md")}
    assert documents <= links


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_whole(name, pages, site):
    page = pages[site / "notebooks" / f"{name}.html"]
    cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
    solutions = [c for c in cells if "solution" in c.metadata.get("tags", [])]
    folded = [d for d in page.find_all("details") if d.summary.text.startswith("Solution")]
    assert len(folded) == len(solutions)
    assert not any(details.has_attr("open") for details in folded)
    outputs = [o for c in cells if c.cell_type == "code" for o in c.outputs]
    figures = sum("image/png" in output.get("data", {}) for output in outputs)
    pictures = page.select("div.cell_output img")
    assert len(pictures) == figures
    assert all(len(picture["alt"]) >= 40 for picture in pictures)
    assert bool(page.select("div.cell_output pre")) == bool(outputs)


def test_an_exercise_is_linked_by_its_name(pages, site):
    count = 0
    for name in NAMES:
        page = pages[site / "notebooks" / f"{name}.html"]
        for cell in nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells:
            if exercise := cell.metadata.get("cs336", {}).get("exercise"):
                anchor = page.find(id="exercise-" + exercise.replace("_", "-"))
                assert "exercise" in anchor.get_text()[:40].lower(), exercise
                count += 1
    link = pages[site / "notebooks" / "01_dtypes.html"].find(id="exercise-decode-by-hand")
    assert link.h3.a["href"] == "#exercise-decode-by-hand"
    assert count > 40


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("index", "training-budget"),
        ("notebooks/01_dtypes", "float-bits"),
        ("notebooks/02_strides_and_views", "strides"),
        ("notebooks/04b_memory", "training-budget"),
    ],
)
def test_an_explorer_runs_without_a_kernel(path, kind, site, page: Page):
    page.goto((site / f"{path}.html").as_uri())
    root = page.locator(f".cs336-{kind}")
    expect(root).to_have_count(1)
    assert not page.locator(".cell_output", has=root).locator("img").count()
    before = root.locator(".cs336-said").inner_text()
    if kind == "training-budget":
        root.get_by_label("devices").press("ArrowLeft")
    else:
        root.locator("[data-arrows] button").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
    expect(root.locator(".cs336-said")).not_to_have_text(before)
    expect(root.locator(".cs336-problem")).to_have_text("")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(scheme, site, page: Page):
    page.emulate_media(color_scheme=scheme)
    for name in LOOKED_AT:
        page.goto((site / f"{name}.html").as_uri())
        assert severe(page) == [], name


@pytest.mark.parametrize("width", [390, 1440])
def test_pages_fit_the_screen(width, pages, page: Page):
    page.set_viewport_size({"width": width, "height": 844})
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("requestfailed", lambda request: failed.append(request.url))
    for path in pages:
        page.goto(path.as_uri())
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{path.name} is {wide} pixels wide on a screen of {width}"
    assert failed == []


def right_edge(part: Locator) -> float:
    """The largest horizontal coordinate of a part of the page."""
    box = part.bounding_box()
    return box["x"] + box["width"]


def test_figures_and_controls_are_readable_on_a_phone(site, page: Page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto((site / "notebooks" / "04b_memory.html").as_uri())
    figure = page.locator("div.cell_output img.wide").first
    expect(figure).to_have_css("width", "640px")
    figure.locator("..").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.activeElement.scrollLeft > 0")
    page.goto((site / "notebooks" / "02_strides_and_views.html").as_uri())
    explorer = page.locator(".cs336-strides")
    assert right_edge(explorer.locator("input")) <= right_edge(explorer) <= 390


def test_an_error_message_is_found(site, page: Page):
    page.goto((site / "search.html").as_uri() + "?q=all+checkpoints+are+corrupt")
    expect(page.locator("#search-results a[href*='docs/symptoms.html']").first).to_be_visible()


def test_maths_is_set(site, page: Page):
    page.goto((site / "notebooks" / "01_dtypes.html").as_uri())
    page.wait_for_selector("mjx-container")
    assert page.locator("mjx-container").count() >= 2
    assert "$$" not in page.locator("article").inner_text()
    font = page.evaluate("document.fonts.ready.then(f => [...f].map(x => x.family + x.status))")
    assert any("MJX" in name and name.endswith("loaded") for name in font)
