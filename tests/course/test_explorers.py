"""Explorers: the logic behind each, what a click or a key changes, and the picture that stays."""

import base64
import re

import pytest
from cases import for_each

from cs336_course import widgets
from cs336_course.widgets import layout
from cs336_lib.training.checkpoint import load_shipped

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
MAKERS = {
    "float-bits": widgets.float_bits,
    "strides": widgets.strides,
    "first-bill": widgets.first_bill,
    "model-bill": widgets.model_bill,
    "sampling": lambda: widgets.sampling(*load_shipped()),
}


SHOWN = MAKERS | {"writer": widgets.writer}


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


def test_a_cell_shows_the_widget_and_a_picture_that_is_the_same_in_every_run():
    def show_twice(make):
        (first, described), (second, _) = (make()._repr_mimebundle_() for _ in range(2))
        assert set(first) == {WIDGET_VIEW, "image/png", "text/plain"}
        assert base64.b64decode(first["image/png"]).startswith(b"\x89PNG")
        widget = make()
        assert first["text/plain"] == f"{widget.title} (run this cell in JupyterLab to use it)"
        assert widget.said[:100] in described["image/png"]["alt"]
        assert first.pop(WIDGET_VIEW) != second.pop(WIDGET_VIEW)  # the model id
        assert first == second

    for_each({kind: (make,) for kind, make in SHOWN.items()}, show_twice)


def test_every_choice_has_a_view(explorers):
    def choose(widget):
        for control in widget.controls:
            before = widget.values[control["name"]]
            for option in control.get("options", ()):
                turn(widget, **{control["name"]: option})
                may = widget.kind == "model-bill"  # not everything divides
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
        ("x.T[", "SyntaxError: "),
        ("y.T", "NameError: name 'y' is not defined"),
        ("x[9]", "IndexError: index 9 is out of bounds"),
        ("x.view", "the result is not a tensor"),
        ("x[:0]", "(0, 4) cannot be drawn"),
        ("x.unsqueeze(0).unsqueeze(0)", "(1, 1, 3, 4) cannot be drawn"),
    ]

    def refuse(expression, problem):
        with pytest.raises(ValueError, match=re.escape(problem)):
            layout.evaluate(expression, layout.numbers((3, 4)))

    for_each({case[0]: case for case in cases}, refuse)


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


# Sampling.


def test_what_the_model_cannot_read_is_explained():
    widget = widgets.sampling(*load_shipped(), words="abba")
    turn(widget, text="§")
    assert "'§'" in widget.problem
    turn(widget, text="a" * 500, top_k="2")
    assert widget.said.startswith("2 of 62 tokens can be drawn next")
