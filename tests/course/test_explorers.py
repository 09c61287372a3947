"""Explorers: the logic behind each, what a click or a key changes, and the picture that stays."""

import base64
import re

import einops
import pytest
import torch
from cases import for_each

from cs336_course import widgets
from cs336_course.widgets import layout, letters
from cs336_lib.data.tokenizer import CharTokenizer
from cs336_lib.model import GPT
from cs336_lib.training.checkpoint import load_shipped

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
MAKERS = {
    "float-bits": widgets.float_bits,
    "strides": widgets.strides,
    "einops": widgets.einops_pattern,
    "einsum": widgets.einsum_steps,
    "first-bill": widgets.first_bill,
    "model-bill": widgets.model_bill,
    "optimizer-race": widgets.optimizer_race,
    "attention": lambda: widgets.attention_and_sampling(*load_shipped()),
}


def turn(widget, **values: str) -> None:
    """Send what the page sends when a control is used."""
    for name, value in values.items():
        widget._handle_custom_msg({name: value}, [])


def buttons(widget) -> dict[str, tuple[str, str]]:
    """(data-name, data-value) of each button in the picture, by its accessible name."""
    found = {}
    for words in re.findall(r"<button ([^>]*)>", widget.html):
        attributes = dict(re.findall(r'([\w-]+)="([^"]*)"', words))
        found[attributes["aria-label"]] = attributes["data-name"], attributes["data-value"]
    return found


def click(widget, label: str) -> None:
    """Do what the page does when a button is clicked."""
    name, value = buttons(widget)[label]
    turn(widget, **{name: value})


@pytest.fixture(scope="module")
def explorers() -> dict[str, tuple]:
    """Return one explorer of each kind, as a case for `for_each`."""
    return {kind: (make(),) for kind, make in MAKERS.items()}


def test_a_cell_shows_the_widget_and_a_picture_that_is_the_same_in_every_run(explorers):
    def show_twice(widget):
        # Two new ones, because another test may have turned this one.
        first, second = (MAKERS[widget.kind]()._repr_mimebundle_()[0] for _ in range(2))
        assert set(first) == {WIDGET_VIEW, "image/png", "text/plain"}
        assert base64.b64decode(first["image/png"]).startswith(b"\x89PNG")
        assert first["text/plain"] == f"{widget.title} (run this cell in JupyterLab to use it)"
        assert first.pop(WIDGET_VIEW) != second.pop(WIDGET_VIEW)  # the model id
        assert first == second

    for_each(explorers, show_twice)


def test_every_choice_has_a_view(explorers):
    def choose(widget):
        for control in widget.controls:
            before = widget.values[control["name"]]
            for option in control.get("options", ()):
                turn(widget, **{control["name"]: option})
                may = widget.kind in ("einops", "model-bill")  # not everything divides
                assert not widget.problem or may, (option, widget.problem)
            turn(widget, **{control["name"]: before})

    for_each(explorers, choose)


def test_every_preset_has_a_view_and_stays_pressed(explorers):
    def press(widget):
        before = widget.values
        assert len(widget.presets) >= 3
        for name, preset in widget.presets.items():
            widget._handle_custom_msg(preset, [])
            assert not widget.problem, name
            assert preset.items() <= widget.values.items(), name
            for control in widget.controls:
                value = widget.values[control["name"]]
                assert value in control.get("options", [value]), name
        widget._handle_custom_msg(before, [])

    for_each(explorers, press)


def test_every_button_has_a_name_of_its_own_and_works():
    def press(make):
        widget = make()
        labels = re.findall(r'<button [^>]*aria-label="([^"]*)"', widget.html)
        assert len(labels) == widget.html.count("<button ") == len(set(labels))
        for label in labels[:60]:
            if not label.startswith(("append", "start")):  # these change which buttons there are
                click(widget, label)
                assert not widget.problem, label

    for_each({kind: (make,) for kind, make in MAKERS.items()}, press)


def test_the_page_is_told_when_it_may_send_again(monkeypatch):
    widget = widgets.float_bits(1.0)
    sent = []
    monkeypatch.setattr(widget, "send", sent.append)
    turn(widget, number="2", format="fp16")
    turn(widget, number="no number")
    assert sent == ["done"] * 3


# Float bits.


def test_a_bit_flips_and_the_number_follows():
    widget = widgets.float_bits(1.0)
    click(widget, "bit 31: sign bit 0")
    assert widget.values["number"] == "-1.0"
    assert widget.said == "fp32 stores -1.0"
    click(widget, "bit 23: exponent bit 0")
    assert widget.values["number"] == "-0.5"
    click(widget, "bit 22: mantissa bit 22")
    assert widget.values["number"] == "-0.75"
    assert 'aria-pressed="true"' in widget.html


def test_nonsense_is_explained_and_the_last_view_stays():
    widget = widgets.float_bits(1.0)
    before = widget.html
    turn(widget, number="one")
    assert widget.problem == "'one' is not a number; try 0.1, -3e-5 or inf"
    assert widget.html == before
    turn(widget, number="2")
    assert widget.problem == ""
    assert widget.said == "fp32 stores 2.0"


# Strides.


def test_an_element_leads_to_its_slot():
    widget = widgets.strides((3, 4), "x.T")
    click(widget, "element [3, 1]")
    assert widget.said == "[3, 1]: offset 0 + 3·1 + 1·4 = slot 7"
    chosen = re.findall(r'<div class="cs336-cell cs336-chosen cs336-slot[^>]*>(\d+)<', widget.html)
    assert chosen == ["70"]


def test_what_is_no_view_of_x_is_refused():
    cases = [
        ("x.T[", "not valid Python yet"),
        ("y.T", "'y' is unknown; the tensor is called x"),
        ("__import__('os').system('true')", ".system is not among"),
        ("x.__class__", ".__class__ is not among"),
        ("x.tolist()", ".tolist is not among"),
        ("[i for i in x]", "use only indexing and view methods"),
        ("x[9]", "PyTorch: index 9 is out of bounds"),
        ("x.view", "the result is not a tensor"),
        ("x[:0]", "(0, 4) cannot be drawn"),
        ("x.unsqueeze(0).unsqueeze(0)", "(1, 1, 3, 4) cannot be drawn"),
    ]

    def refuse(expression, problem):
        with pytest.raises(ValueError, match=re.escape(problem)):
            layout.evaluate(expression, layout.numbers((3, 4)))

    for_each({case[0]: case for case in cases}, refuse)


# einops.


def test_the_chosen_element_is_marked_on_both_sides():
    widget = widgets.einops_pattern()
    click(widget, "before [1, 5]")
    assert widget.said == "(3, 8) -> (2, 3, 4); the chosen element goes to 1 place"
    marked = re.findall(r'aria-label="([^"]*)"[^>]*class="[^"]*cs336-chosen', widget.html)
    assert marked == ["before [1, 5]", "after [1, 1, 1]"]
    turn(widget, operation="reduce sum", pattern="seq (head dim) -> seq head")
    click(widget, "after [0, 1]")
    assert widget.said.endswith("the chosen element is made of 4 places")


def test_einops_own_error_is_shown():
    widget = widgets.einops_pattern()
    turn(widget, pattern="seq (head dim) -> head seq d")
    assert "Identifiers only on one side" in widget.problem
    turn(widget, pattern="seq dim")
    assert widget.problem == "a pattern has one arrow, as in axes before -> axes after"
    turn(widget, pattern="seq dim -> dim seq", sizes="")
    assert widget.problem == ""
    assert widget.said == "(3, 8) -> (8, 3)"


# einsum, step by step.


# Training budget.


# Bill of a model.


def test_a_layout_that_does_not_fit_is_explained_and_the_view_stays():
    widget = widgets.model_bill()
    before = widget.html
    turn(widget, devices="64")
    assert (
        widget.problem
        == "8 x 16 devices hold one copy of the model, and you have 64; use more devices"
    )
    turn(widget, devices="16,384", batch="8")
    assert widget.problem.startswith("128 copies of the model can't share 8 sequences; take 128")
    turn(widget, batch="2,048", model="GPT-2 124M")
    assert "12 query heads can't be split over tp 8" in widget.problem
    assert widget.html == before
    turn(widget, tensor="4", pipeline="1", batch="4,096")
    assert widget.problem == ""
    assert widget.html != before


# Optimizer race.


# Attention and sampling.


@pytest.fixture
def tiny(tiny_config):
    alphabet = "".join(map(chr, range(97, 97 + 26))) + "ABCDEFGHIJKLMNOPQRSTUV \n"
    return GPT(tiny_config).eval(), CharTokenizer(alphabet)


def test_attention_weights_are_those_the_model_uses(tiny):
    model, tokenizer = tiny
    ids = torch.tensor(tokenizer.encode("abba cd").astype("int64"))
    weights, logits = letters.read(model, ids)
    assert weights.shape == (2, 2, 7, 7)
    assert weights.triu(1).max() == 0
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 7))
    block = model.transformer.h[0]
    seen = {}
    handle = block.attn.c_proj.register_forward_pre_hook(lambda _, x: seen.update(mixed=x[0]))
    with torch.no_grad():
        plain = model(ids[None])
        x = model.transformer.wte(ids[None]) + model.transformer.wpe(torch.arange(7))
        v = block.attn.c_attn(block.ln_1(x)).chunk(3, -1)[2]
    handle.remove()
    torch.testing.assert_close(logits, plain[0, -1])
    v = einops.rearrange(v[0], "seq (head dim) -> head seq dim", head=2)
    mixed = einops.rearrange(weights[0] @ v, "head seq dim -> seq (head dim)")
    torch.testing.assert_close(mixed, seen["mixed"][0], atol=1e-5, rtol=1e-4)


def test_what_the_model_cannot_read_is_explained(tiny):
    model, tokenizer = tiny
    widget = widgets.attention_and_sampling(model, tokenizer, words="abba")
    for words, problem in (("", "empty"), ("a" * 33, "33 tokens; use at most 32"), ("Z", "'Z'")):
        turn(widget, text=words)
        assert problem in widget.problem
