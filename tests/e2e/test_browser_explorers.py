"""Explorers without a kernel: JavaScript answers exactly what Python answers."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from cs336_course import widgets
from cs336_course.widgets import writing
from cs336_course.widgets.widget import STYLE
from cs336_lib.sampling import encode, generate
from cs336_lib.training.checkpoint import load_shipped
from tools import browser_explorers as in_browser

ROOT = Path(__file__).parents[2]
PARTS = ("said", "html", "values", "problem")
ASK = """([state, changes]) => {
  const model = cs336.pageModel(state);
  return changes.map(([name, value]) => {
    model.send({[name]: value});
    return ["said", "html", "values", "problem"].map(part => model.get(part));
  });
}"""


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Page:
    """A page with the explorers' script and nothing else."""
    page = browser.new_context(offline=True).new_page()
    page.add_script_tag(content=in_browser.script(ROOT / "docs" / "explorers"))
    return page


def differences(tab: Page, changes: list[tuple[str, str]]) -> list[str]:
    """Send the same changes to the bill in Python and in the page, and compare the answers."""
    widget = widgets.first_bill()
    state = json.loads(json.dumps(in_browser.state(widget)))
    found = []
    for change, answer in zip(changes, tab.evaluate(ASK, [state, changes]), strict=True):
        widget.answer(dict([change]))
        for part, theirs in zip(PARTS, answer, strict=True):
            ours: Any = getattr(widget, part)
            if ours != theirs:
                found.append(f"{change}: {part}\n  Python:  {ours}\n  browser: {theirs}")
    return found


def test_the_answers_to_all_options_are_those_of_python(tab):
    draw = random.Random(0)
    controls = {c["name"]: c["options"] for c in widgets.first_bill().controls}
    changes = [(control, one) for control, options in controls.items() for one in options]
    draws = (draw.choice(list(controls)) for _ in range(600))
    changes += [(control, draw.choice(controls[control])) for control in draws]
    assert differences(tab, changes) == []


MADE = {
    "first-bill": "widgets.first_bill()",
    "first-bill-2": "widgets.first_bill()",
    "writer": "widgets.writer()",
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with all explorers that need no kernel, opened as a file."""
    folder = tmp_path_factory.mktemp("page")
    script = in_browser.script(ROOT / "docs" / "explorers")
    (folder / "explorers.js").write_text(script, encoding="utf-8")
    (folder / "weights.js").write_text(in_browser.weights(), encoding="utf-8")
    (folder / "page.html").write_text(
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><script src="explorers.js"></script>'
        f"<style>{STYLE}</style>{''.join(map(in_browser.element, MADE.values()))}</html>",
        encoding="utf-8",
    )
    return (folder / "page.html").as_uri()


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Callable[[str], Page]]:
    """Open the page with a query and a fragment."""
    context = browser.new_context(offline=True, reduced_motion="reduce")
    context.grant_permissions(["clipboard-read", "clipboard-write"])

    def open_page(rest: str = "") -> Page:
        page = context.new_page()
        page.goto(address + rest)
        return page

    yield open_page
    context.close()


def words(page: Page, name: str) -> str:
    """The sentence of an explorer."""
    return page.locator(f"#{name} .cs336-said").inner_text()


def test_a_preset_is_one_press(opened):
    page = opened()
    for name in MADE:
        for button in page.locator(f"#{name} .cs336-presets button[aria-pressed]").all():
            button.press("Enter")
            expect(button).to_have_attribute("aria-pressed", "true")
            expect(button).to_be_focused()
            expect(page.locator(f"#{name} .cs336-problem")).to_have_text("")


def test_a_link_carries_the_state(opened):
    page = opened()
    second = page.locator("#first-bill-2")
    second.get_by_role("button", name="Llama 3.1 405B").click()
    second.get_by_label("GPUs", exact=True).press("ArrowLeft")
    second.get_by_role("button", name="Copy link").click()
    expect(second.locator(".cs336-share")).to_contain_text("Copied.")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    again = opened(link[link.index("?") :])
    assert words(again, "first-bill-2") == words(page, "first-bill-2")
    assert words(again, "first-bill") == words(opened(), "first-bill")
    expect(again.locator("#first-bill-2")).to_be_in_viewport()


LOAD = """() => new Promise(done => {
  cs336.receive = words => done(cs336.bytes = Uint8Array.from(atob(words), c => c.charCodeAt(0)));
})"""
GREEDY = """([scales, config, prompts, count]) => {
  const model = new cs336.Gpt(cs336.bytes, scales, config);  // one for all: its cache is kept
  return prompts.map(prompt => {
    const text = [...prompt];
    while (text.length < prompt.length + count) {
      const logits = model.unread(text).map(token => model.read(token)).at(-1);
      text.push(logits.indexOf(Math.max(...logits)));
    }
    return text;
  });
}"""
PROMPTS = ("What is the price of", "What is the matter", "\n\nROMEO:\nI", "Q")


@pytest.fixture(scope="module")
def speaker(tab: Page) -> list[Any]:
    """The weights in the page, and what its model needs beside them."""
    tab.evaluate(f"window.arrived = ({LOAD})(), undefined")
    tab.add_script_tag(content=in_browser.weights())
    tab.evaluate("window.arrived.then(() => undefined)")
    model, _ = load_shipped()
    _, scales = writing.packed(model)
    return [scales, writing.Writer.sizes(model)]


def test_the_model_writes_what_pytorch_writes(tab, speaker):
    """300 letters are more than its context holds, so that the context has to move."""
    model, letters = load_shipped()
    prompts = [encode(letters, prompt) for prompt in PROMPTS]
    theirs = tab.evaluate(GREEDY, [*speaker, [ids.tolist() for ids in prompts], 300])
    for ids, text in zip(prompts, theirs, strict=True):
        ours = generate(model, ids[None], 300, temperature=0)[0].tolist()
        assert letters.decode(text) == letters.decode(ours)
