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
from cs336_course.widgets import layout, number, pattern, writing
from cs336_course.widgets.widget import STYLE
from cs336_lib.sampling import encode, generate
from cs336_lib.training.checkpoint import load_shipped
from tools import browser_explorers as in_browser

ROOT = Path(__file__).parents[2]
PARTS = ("said", "html", "values", "problem")
SYNTAX = "not valid Python yet"  # what follows are CPython's words
EINOPS = "Error while processing"  # what follows are einops' words
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
            if part == "problem" and SYNTAX in ours:
                ours, theirs = SYNTAX, theirs[: len(SYNTAX)]
            if part == "problem" and ours.startswith(EINOPS):
                ours, theirs = "a problem", theirs and "a problem"
            if ours != theirs:
                found.append(f"{change}: {part}\n  Python:  {ours}\n  browser: {theirs}")
    return found


NUMBERS = """
0 -0.0 1 0.1 -3e-5 1e9 65504 65519.99 65520 65536 448 464 465 57344 6.5 5 3.4028235e38
3.4028236e38 1e-45 7e-46 1.4e-45 1e-40 5e-324 2e-324 2.2250738585072014e-308 2.225e-308 1e308
1e400 -1e400 inf -Infinity NaN 1e16 1e15 123456789012345680 1e22 1e23 1e-4 1e-5 0.00012345 2.5 0.5
1.5 1_000 .5 5. 1e5 99999.5 999999999.5 0.0009765625 0.25 1.0009765625 1.00048828125 1.001953125
33554433 abc 1e 0x10 1__0 it's "a" 1,5 +7 -nan"""


def test_float_bits_are_those_of_python(tab):
    draw = random.Random(0)
    changes = [("number", f" {word}") for word in NUMBERS.split()]
    for name, fmt in number.FORMATS.items():
        changes.append(("format", name))
        changes += [("number", word) for word in NUMBERS.split()]
        codes = [draw.getrandbits(fmt.bits) for _ in range(30)]
        changes += [("code", str(code)) for code in [0, 1, fmt.max_code, fmt.max_code + 1, *codes]]
    changes += [
        ("number", repr(draw.uniform(1, 10) * 10 ** draw.randint(-320, 308))) for _ in range(100)
    ]
    assert differences(tab, "float_bits", changes) == []


@pytest.mark.parametrize("name", ["training_budget", "first_bill", "einsum_steps"])
def test_the_answers_to_all_options_are_those_of_python(name, tab):
    draw = random.Random(0)
    controls = {c["name"]: c["options"] for c in getattr(widgets, name)().controls}
    changes = [(control, one) for control, options in controls.items() for one in options]
    draws = (draw.choice(list(controls)) for _ in range(600))
    changes += [(control, draw.choice(controls[control])) for control in draws]
    assert differences(tab, name, changes) == []


PATTERNS = """
a b -> b a | (a b) c -> a (b c) | a (b c) -> b (a c) | a (b c) -> b a c | a b c -> c b a | a -> a
(a b) (c d) -> (a c) (b d) | (a b) (c d) -> (b d) a c | a b -> a 1 b | a b -> (a b) | a b -> a
a -> a b | a b -> a b n | a b -> (a n) b | a b -> b (n a) | a b -> n a b c | a b -> | a b c d -> d c
a b -> () | a 1 -> a | a b -> a () b | (a b) c -> c | a b c -> a c | a b c -> (c a) | a _b -> _b a
a b_ -> b_ a | a b -> a B | a a -> a | a b -> a b ( | a (b (c)) -> a | a ) b -> b | a-b -> b
2 b -> b | a b -> b 2 | a b | a -> b -> c | -> | a b -> a <i>b | x1 y2 -> y2 x1
head_1 seq -> seq head_1 | ((a b) -> a b | a b -> (b a) 1 1 1 | a b -> a b c d e"""
SHAPES = ("3 8", "4 4", "2 3 4", "6", "2 2 2 3", "(4, 6)", "8 8", "9 9", "2 x", "", "0 3", "3 1")
SIZES = ("", "a=2", "b=2", "a=2, b=2", "n=2", "n = 3", "a=2 c=2", "c=1, n=40", "a=0", "a", "z=3")


def test_patterns_are_those_of_einops(tab):
    draw = random.Random(0)
    patterns = [part.strip() for part in PATTERNS.replace("\n", "|").split("|") if part.strip()]
    options = {
        "operation": list(pattern.OPERATIONS),
        "pattern": patterns,
        "shape": SHAPES,
        "sizes": (*SIZES, *[""] * len(SIZES)),  # most patterns need none
    }
    changes = [("shape", "4 4"), ("sizes", "")]
    for operation in ("rearrange", "repeat", "reduce sum"):
        changes += [("operation", operation), *(("pattern", words) for words in patterns)]
    drawn, mover = 0, widgets.einops_pattern()
    for _ in range(6000):
        wanted = {name: draw.choice(words) for name, words in options.items()}
        try:
            moved = mover.moved(wanted)
        except ValueError:
            if draw.random() > 0.02:
                continue
            changes += wanted.items()
        else:
            drawn += 1
            sides = [("before", moved.before), ("after", moved.after)]
            chosen = [
                ("chosen", f"{side} {draw.randrange(tensor.numel())}")
                for side, tensor in sides
                if tensor.numel()
            ]
            changes += [*wanted.items(), *chosen]
    assert drawn > 100
    assert differences(tab, "einops_pattern", changes) == []


EXPRESSIONS = """
x | x.T | x[1:] | x[:, ::2] | x.view(2, 6) | x.flatten() | x.contiguous() | x.T.contiguous()
x.T.flatten() | x.T.view(12) | x.T.reshape(12) | x.view(7) | x.view(5, -1) | x.view(-1, -1)
x.view(-1, 6).T[::2] | x.view([3, 2, 2]) | x.view((2, 2, 3)).permute(2, 0, 1) | x.view(2, 2, 3).T
x.view(2, 2, 3).mT | x.view(2, 2, 3).t() | x[0].T | x[0].mT | x[5] | x[-1] | x[-4] | x[0, 0]
x[0, 0, 0] | x[0, 0][0] | x[::0] | x[::-1] | x[..., 1] | x[1, ...] | x[None, :, 1] | x[:, None]
x[...] | x[7:] | x[-2:, -3:-1] | x[1:][0] | x[(1, 2)] | x.transpose(0, 1) | x.transpose(0, 2)
x.transpose(dim0=0, dim1=-1) | x.swapaxes(0, 1) | x.movedim(0, 1) | x.movedim((0, 1), (1, 0))
x.movedim((0, 1), (1,)) | x.permute(1, 0) | x.permute(0) | x.permute(0, 0) | x.permute((1, 0))
x.expand(3, 4) | x.expand(2, 4) | x.expand(4) | x[0].expand(3, 4) | x[:, :1].expand(-1, 4)
x[0].expand(2, -1) | x[0].expand(-1, 2, 4) | x[0].expand(3, 4).clone() | x[0, 0].expand(2, 3)
x.unsqueeze(0) | x.unsqueeze(-1) | x.unsqueeze(2).squeeze() | x.unsqueeze(4) | x[:1].squeeze(0)
x[:1].squeeze(1) | x.squeeze(5) | x.select(1, 2) | x.select(0, 9) | x.narrow(1, 1, 2)
x.narrow(0, 2, 5) | x.narrow(0, -1, 1) | x.narrow(0, 0, -1) | x.diagonal() | x.diagonal(1)
x.diagonal(-1) | x.diagonal(0, 1, 0) | x.diagonal(0, 0, 0) | x.diagonal(5) | x.diagonal(offset=2)
x.unfold(1, 2, 1) | x.unfold(0, 2, 1) | x.unfold(0, 5, 1) | x.unfold(1, 2, 0)
x[0].unfold(0, 3, 1) | x.as_strided((2, 3), (1, 2)) | x.as_strided((4, 4), (4, 1))
x.as_strided((2,), (-1,)) | x.as_strided((2, 2), (1,)) | x.as_strided((3, 3), (0, 1), 2)
x[1:].as_strided((2, 2), (1, 1)) | x.clone() | x.T.clone() | x[:, ::2].clone()
x[:, ::2].T.clone() | x.T[1:].clone() | x.flip(0) | x.flip(0, 1) | x.T.flip(-1) | x.T[1:].flip(0)
x.flip(0, 0) | x.roll(1) | x.roll(-5) | x.roll(1, 0) | x.T.roll(1, 0) | x.T.roll(1)
x.roll((1, 2), (0, 1)) | x.roll((1, 1), (0,)) | x.repeat(2, 2) | x.repeat(1, 2, 1) | x.repeat(2)
x.repeat(1, -1) | x.repeat(3, 3) | x.unflatten(1, (2, 2)) | x.unflatten(0, (3, -1))
x.unflatten(0, (2, 2)) | x.flatten(1, 0) | x.flatten(0, 1) | x.view(2, 2, 3).flatten(1)
x[0, 0].flatten() | x.view(2, 2, 3).mT.flatten(0, 1) | x.view(1, 12).T.view(12) | x[:1].T.view(4)
x.view(3, 1, 4).permute(2, 1, 0).reshape(12) | x.T() | x.t | x.sum() | x + 1 | y.T | x.reshape(0)
x.view(2, 2, 3)[:, 1] | x.view(1, 3, 2, 2) | x. | x[ | x.view( | x[] | x[0
x.view(2, 6)[:, 1:5].reshape(2, 2, 2) | x.view(2, 2, 3)[0].t() | x['a'] | x.view(12)[::5] | (x)
(x.T)[0] | x, x | - x | - x[:, ::2]
x.view(3, 1, 4)[:, :, ::2].view(3, 2) | x.view(3, 1, 4)[:, :, 0].view(3)"""

MORE_STEPS = """[:, 1:]|[::2]|[0]|[None]|.unsqueeze(-1)|.clone()|.reshape(-1)|.flip(0)|.roll(1, -1)\
|.view(-1, 2)|.squeeze()|.unfold(0, 2, 1)|.repeat(1, 2)|.mT"""


def test_strides_are_those_of_pytorch(tab):
    draw = random.Random(0)
    expressions = [
        part.strip() for part in EXPRESSIONS.replace("\n", "|").split("|") if part.strip()
    ]
    pieces = [*layout.STEPS, *MORE_STEPS.split("|")]
    expressions += ["x" + "".join(draw.choices(pieces, k=draw.randint(2, 4))) for _ in range(300)]
    changes: list[tuple[str, str]] = []
    for expression in expressions:
        changes.append(("expression", expression))
        try:
            shape = layout.evaluate(expression, layout.numbers((3, 4))).shape
        except ValueError:
            continue
        changes.append(("element", layout.words_of([draw.randrange(size) for size in shape])))
    assert differences(tab, "strides", changes) == []


MADE = {
    "einops": "widgets.einops_pattern()",
    "einsum": "widgets.einsum_steps()",
    "first-bill": "widgets.first_bill()",
    "float-bits": "widgets.float_bits()",
    "strides": "widgets.strides()",
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
    assert presses > 20
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


def test_a_link_carries_typed_text(opened):
    page = opened()
    field = page.locator("#strides").get_by_label("a view of x")
    field.fill("x[1:].T & <b>")
    expect(page.locator("#strides .cs336-problem")).not_to_have_text("")
    field.fill("x.T[1:, ::2]")
    expect(page.locator("#strides .cs336-problem")).to_have_text("")
    page.locator("#strides").get_by_role("button", name="Copy link").click()
    again = opened(page.url[page.url.index("?") :])
    expect(again.locator("#strides").get_by_label("a view of x")).to_have_value("x.T[1:, ::2]")
    assert words(again, "strides") == words(page, "strides")
    page.locator("#writer").get_by_label("your line").fill("My kingdom for a")
    page.locator("#writer").get_by_label("temperature").press("Home")
    page.locator("#writer").get_by_role("button", name="Copy link").click()
    again = opened(page.url[page.url.index("?") :])
    expect(again.locator("#writer .cs336-paper")).to_have_text("My kingdom for a")
    expect(again.locator("#writer").get_by_label("temperature")).to_have_value("0")


@pytest.mark.parametrize(
    ("rest", "name"),
    [
        ("?expression=x.view(7)#strides", "strides"),
        ("?expression=%00&element=9,9&title=x#strides", "strides"),
        ("?parameters=9Q&devices=-1&constants=1#training-budget", "training-budget"),
        ("?number=abc&format=fp99#float-bits", "float-bits"),
        ("?step=99&pattern=i#einsum", "einsum"),
        ("?devices=8#training-budget-3", "training-budget"),
        ("?devices=8", "training-budget"),
    ],
)
def test_a_bad_link_is_ignored(rest, name, opened):
    page = opened(rest)
    assert words(page, name) == words(opened(), name)
    expect(page.locator(f"#{name} .cs336-problem")).to_have_text("")
    page.locator(f"#{name}").get_by_role("button", name="Copy link").click()
    assert "#" in page.url  # it works


def test_what_is_good_in_a_link_is_taken(opened):
    page = opened("?parameters=9Q&devices=8#training-budget")
    devices = page.locator("#training-budget").get_by_label("devices", exact=True)
    expect(devices).to_have_attribute("aria-valuetext", "8")
    parameters = page.locator("#training-budget").get_by_label("parameters", exact=True)
    expect(parameters).to_have_attribute("aria-valuetext", "70B")


def test_the_result_stands_above_the_controls_on_a_phone_too(opened):
    page = opened()
    for width in (390, 1366):
        page.set_viewport_size({"width": width, "height": 800})
        for name in MADE:
            root = page.locator(f"#{name} .cs336-explorer")
            shown = ".cs336-paper" if name == "writer" else ".cs336-picture"
            picture, controls = (
                root.locator(part).bounding_box() for part in (shown, ".cs336-controls")
            )
            assert picture["y"] + picture["height"] <= controls["y"], name
            assert root.evaluate("root => root.scrollWidth <= root.clientWidth"), (name, width)


def test_the_controls_stay_where_they_are(opened):
    page = opened()
    root = page.locator("#einops")
    below = root.locator(".cs336-controls")
    root.get_by_role("button", name="transpose").click()
    expect(root.locator(".cs336-said")).to_have_text("(3, 4) -> (4, 3)")
    before = below.bounding_box()["y"]
    root.get_by_role("button", name="repeat").click()  # its picture has two rows and not four
    expect(root.locator(".cs336-said")).to_have_text("(2, 3) -> (2, 6)")
    assert below.bounding_box()["y"] == before


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
