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
from cs336_lib.sampling import complete
from cs336_lib.training.checkpoint import load_shipped

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "notebooks").rglob("*.ipynb"))
LOOKED_AT = (
    "index",
    "README",
    "docs/symptoms",
    "docs/measurements",
    "search",
    f"notebooks/{NAMES[0]}",
    f"notebooks/{NAMES[1]}",
)
FILTER = "figure => getComputedStyle(figure).filter"
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
    assert all(re.search(r"\d minutes.*You’ll ", item.text) for item in path)
    links = {link["href"] for link in start.find_all("a", href=True)}
    opened = [link for link in links if link.startswith(("https://colab", "https://codespaces"))]
    has_owner = "Open in Colab" in (ROOT / "README.md").read_text()
    assert len(opened) == (2 if has_owner else 0)
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
    asked = [c for c in cells if "prediction" in c.metadata.get("cs336", {})]
    assert len(page.select(".cs336-guess")) == len(asked)  # instead of their pictures
    outputs = [o for c in cells if c.cell_type == "code" and c not in asked for o in c.outputs]
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
        ("notebooks/side_trips/memory", "training-budget"),
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


@pytest.mark.parametrize(("scheme", "blend"), [("light", "normal"), ("dark", "screen")])
def test_figures_follow_the_theme(scheme, blend, site, page: Page):
    page.emulate_media(color_scheme=scheme)
    for path, figure in (("index", ".cards img"), (f"notebooks/{NAMES[0]}", "div.cell_output img")):
        page.goto((site / f"{path}.html").as_uri())
        expect(page.locator(figure).first).to_have_css("mix-blend-mode", blend)
        assert (page.locator(figure).first.evaluate(FILTER) == "none") == (scheme == "light")


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


def right_edge(part: Locator) -> float:
    """The largest horizontal coordinate of a part of the page."""
    box = part.bounding_box()
    return box["x"] + box["width"]


def test_figures_and_controls_are_readable_on_a_phone(site, page: Page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto((site / "notebooks" / "side_trips/memory.html").as_uri())
    figure = page.locator("div.cell_output img.wide").nth(1)  # the first is the cover
    expect(figure).to_be_hidden()  # it answers a prediction
    page.locator("button.cs336-skip").first.click()
    expect(figure).to_have_css("width", "640px")
    figure.locator("..").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.activeElement.scrollLeft > 0")
    page.goto((site / "notebooks" / "02_strides_and_views.html").as_uri())
    explorer = page.locator(".cs336-strides")
    assert right_edge(explorer.locator("input")) <= right_edge(explorer) <= 390


def test_every_card_shows_a_figure(site, page: Page):
    page.goto((site / "index.html").as_uri())
    pictures = page.locator(".cards img")
    expect(pictures).to_have_count(len(NAMES))
    for picture in pictures.all():
        picture.scroll_into_view_if_needed()
        expect(picture).not_to_have_js_property("naturalWidth", 0)
    covers = [path.read_bytes() for path in (site / "_static" / "covers").glob("*.webp")]
    assert len(set(covers)) == len(NAMES)
    assert max(map(len, covers)) < 60_000


def test_a_notebook_opens_with_its_question_and_its_picture(site, page: Page):
    page.set_viewport_size({"width": 1366, "height": 768})
    for name in NAMES:
        page.goto((site / "notebooks" / f"{name}.html").as_uri())
        first = page.locator("article div.cell").first
        expect(first.locator("pre")).to_have_count(0)  # the call that draws it is hidden
        picture = first.locator("img, .cs336-explorer").first
        box = picture.bounding_box()
        assert box["y"] + box["height"] < 768, f"{name}'s cover is below the first screen"


def test_every_page_has_an_icon(pages):
    for page, soup in pages.items():
        icon = soup.find("link", rel="icon")["href"]
        assert (page.parent / urlsplit(icon).path).is_file()


def test_a_line_of_text_has_about_75_characters(site, page: Page):
    page.set_viewport_size({"width": 1920, "height": 1080})
    page.goto((site / "notebooks" / f"{NAMES[0]}.html").as_uri())
    paragraphs = page.locator("article section > p")
    lengths = paragraphs.evaluate_all("""all => all.map(p => {
      const lines = Math.round(p.clientHeight / parseFloat(getComputedStyle(p).lineHeight));
      return lines > 3 && !p.querySelector(".math") ? p.textContent.length / lines : 0;
    }).filter(Boolean)""")
    assert len(lengths) > 5
    assert 65 < max(lengths) < 85, lengths  # the last line of a paragraph is shorter


def test_the_bits_of_a_number_break_at_bytes_on_a_phone(site, page: Page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto((site / "notebooks" / "01_dtypes.html").as_uri())
    explorer = page.locator(".cs336-float-bits")
    explorer.get_by_label("format").select_option("fp32")
    bits = explorer.locator(".cs336-bits button")
    expect(bits).to_have_count(32)
    boxes = [bit.bounding_box() for bit in bits.all()]
    rows = [round(box["y"]) for box in boxes]
    assert [rows.count(row) for row in sorted(set(rows))] == [8, 8, 8, 8]
    assert max(box["x"] + box["width"] for box in boxes) <= right_edge(explorer) <= 390


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


# Clicks the button when the first letter has come. A click from outside may come too late.
STOP = """(paper, button) => new Promise(done => new MutationObserver((_, observer) => {
  if (paper.innerText.length > 24) { observer.disconnect(); button.click(); done(); }
}).observe(paper, {childList: true, characterData: true, subtree: true}))"""


def test_the_reader_can_stop_the_model(site, page: Page):
    box = writer(site, page, "index")
    paper = box.locator(".cs336-paper")
    box.get_by_role("button", name="Start over").click()
    expect(paper).to_have_text("What is the price of")
    box.get_by_role("button", name="Continue").click()
    paper.evaluate(STOP, box.get_by_role("button", name="Stop").element_handle())
    written = paper.inner_text()
    page.wait_for_timeout(1000)
    assert paper.inner_text() == written
    assert len(written) < 140


def test_a_page_says_when_the_weights_are_missing(site, page: Page, tmp_path):
    page.route("**/weights.js", lambda route: route.abort())
    box = writer(site, page, "index")
    box.get_by_role("button", name="Continue").click()
    expect(box.locator(".cs336-problem")).to_contain_text("weights.js is missing")


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


def test_a_prediction_folds_the_answer_until_one_chooses(site, page):
    page.goto((site / "notebooks" / "05_adagrad.html").as_uri())
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


def test_no_note_for_teachers_stands_on_the_site(pages):
    for path, soup in pages.items():
        if path.parent.name == "notebooks":
            assert "For the instructor: " not in soup.get_text(), path.name
