"""Explorers without a kernel: JavaScript answers exactly what Python answers."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
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


def differences(tab: Page, name: str, changes: list[tuple[str, str]]) -> list[str]:
    """Send the same changes to an explorer in Python and in the page, and compare the answers."""
    widget = getattr(widgets, name)()
    state = json.loads(json.dumps(in_browser.state(name, widget)))
    found = []
    for change, answer in zip(changes, tab.evaluate(ASK, [state, changes]), strict=True):
        widget.answer(dict([change]))
        for part, theirs in zip(PARTS, answer, strict=True):
            ours: Any = getattr(widget, part)
            if ours != theirs:
                found.append(f"{change}: {part}\n  Python:  {ours}\n  browser: {theirs}")
    return found


@pytest.mark.parametrize("name", ["training_budget", "first_bill"])
def test_the_answers_to_all_options_are_those_of_python(name, tab):
    draw = random.Random(0)
    controls = {c["name"]: c["options"] for c in getattr(widgets, name)().controls}
    changes = [(control, one) for control, options in controls.items() for one in options]
    draws = (draw.choice(list(controls)) for _ in range(600))
    changes += [(control, draw.choice(controls[control])) for control in draws]
    assert differences(tab, name, changes) == []


MADE = {
    "first-bill": "widgets.first_bill()",
    "training-budget": "widgets.training_budget()",
    "training-budget-2": "widgets.training_budget()",
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
    presses = 0
    for name in MADE:
        buttons = page.locator(f"#{name} .cs336-presets button[aria-pressed]")
        for button in buttons.all():
            button.press("Enter")
            expect(button).to_have_attribute("aria-pressed", "true")
            expect(button).to_be_focused()
            expect(page.locator(f"#{name} .cs336-problem")).to_have_text("")
            presses += 1
    assert presses > 8
    page.locator("#training-budget").get_by_role("button", name="fits a gaming GPU").click()
    assert words(page, "training-budget").endswith("12 GB on each device of 24 GB: fits")
    devices = page.locator("#training-budget").get_by_label("devices", exact=True)
    expect(devices).to_have_attribute("aria-valuetext", "1")


def test_a_link_carries_the_state(opened):
    page = opened()
    page.locator("#training-budget-2").get_by_role("button", name="GPT-2 on 8 A100s").click()
    page.locator("#training-budget-2").get_by_label("devices", exact=True).press("ArrowRight")
    page.locator("#training-budget-2").get_by_role("button", name="Copy link").click()
    expect(page.locator("#training-budget-2 .cs336-share")).to_contain_text("Copied.")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    again = opened(link[link.index("?") :])
    assert words(again, "training-budget-2") == words(page, "training-budget-2")
    assert words(again, "training-budget") == words(opened(), "training-budget")
    expect(again.locator("#training-budget-2")).to_be_in_viewport()
    values = again.locator("#training-budget-2 .cs336-controls output").all_inner_texts()
    assert values == ["124M", "10B", "16", "40 %", "$2"]


LOAD = """() => new Promise(done => {
  cs336.receive = words => done(cs336.bytes = Uint8Array.from(atob(words), c => c.charCodeAt(0)));
})"""
READ = """([scales, config, tokens]) => {
  const model = new cs336.Gpt(cs336.bytes, scales, config);
  return tokens.map(token => Array.from(cs336.softmax(model.read(token))));
}"""
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


def test_the_model_expects_the_letters_that_pytorch_expects(tab, speaker):
    model, letters = load_shipped()
    text = (ROOT / "data" / "shakespeare.txt").read_text()
    worst = 0.0
    for start in (1_000, 400_000, 1_000_000):
        ids = encode(letters, text[start : start + model.config.block_size])
        with torch.no_grad():
            ours = model(ids[None])[0].softmax(-1)
        theirs = torch.tensor(tab.evaluate(READ, [*speaker, ids.tolist()]))
        worst = max(worst, float((ours - theirs).abs().max()))
    assert worst < 1e-3
    assert worst > 1e-6, "16 bits can't be this exact, so something else was compared"


def test_the_model_writes_what_pytorch_writes(tab, speaker):
    """300 letters are more than its context holds, so that the context has to move."""
    model, letters = load_shipped()
    prompts = [encode(letters, prompt) for prompt in PROMPTS]
    theirs = tab.evaluate(GREEDY, [*speaker, [ids.tolist() for ids in prompts], 300])
    for ids, text in zip(prompts, theirs, strict=True):
        ours = generate(model, ids[None], 300, temperature=0)[0].tolist()
        assert letters.decode(text) == letters.decode(ours)
