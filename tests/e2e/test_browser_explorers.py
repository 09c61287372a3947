"""Explorers without a kernel: JavaScript answers exactly what Python answers."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from cs336_course import widgets
from cs336_course.widgets import layout, number
from tools import browser_explorers as in_browser

ROOT = Path(__file__).parents[2]
PARTS = ("said", "html", "values", "problem")
SYNTAX = "not valid Python yet"  # what follows are CPython's words
ASK = """([state, changes]) => {
  const model = cs336.pageModel(state);
  return changes.map(([name, value]) => {
    model.send({name, value});
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
        widget.answer(*change)
        for part, theirs in zip(PARTS, answer, strict=True):
            ours: Any = getattr(widget, part)
            if part == "problem" and SYNTAX in ours:
                ours, theirs = SYNTAX, theirs[: len(SYNTAX)]
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


def test_the_budget_is_that_of_python(tab):
    draw = random.Random(0)
    controls = {c["name"]: c["options"] for c in widgets.training_budget().controls}
    changes = [(name, option) for name, options in controls.items() for option in options]
    draws = (draw.choice(list(controls)) for _ in range(600))
    changes += [(name, draw.choice(controls[name])) for name in draws]
    assert differences(tab, "training_budget", changes) == []


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
