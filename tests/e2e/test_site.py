"""The site: no link leads nowhere, nothing comes from elsewhere, and it can be read on a phone."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
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


def test_the_start_page_is_the_readme_and_reaches_everything(pages, site):
    start = pages[site / "index.html"]
    assert "What training a language model costs" in start.h1.text
    links = {link["href"] for link in start.find_all("a", href=True)}
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


def test_maths_is_set(site, page: Page):
    page.goto((site / "notebooks" / "01_dtypes.html").as_uri())
    page.wait_for_selector("mjx-container")
    assert page.locator("mjx-container").count() >= 2
    assert "$$" not in page.locator("article").inner_text()
    font = page.evaluate("document.fonts.ready.then(f => [...f].map(x => x.family + x.status))")
    assert any("MJX" in name and name.endswith("loaded") for name in font)
