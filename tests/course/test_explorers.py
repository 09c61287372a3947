"""Explorers: the logic behind each, what a click or a key changes, and the picture that stays."""

import base64
import math
import re

import einops
import pytest
import torch
from cases import for_each

from cs336_course import widgets
from cs336_course.shared import loss_surfaces, number_formats, strided_storage
from cs336_course.widgets import budget, einsum, layout, letters, number, pattern, race
from cs336_lib.data.tokenizer import CharTokenizer
from cs336_lib.model import GPT
from cs336_lib.training.checkpoint import load_shipped

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
MAKERS = {
    "float-bits": widgets.float_bits,
    "strides": widgets.strides,
    "einops": widgets.einops_pattern,
    "einsum": widgets.einsum_steps,
    "training-budget": widgets.training_budget,
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


def test_every_explorer_knows_its_kind(explorers):
    assert [widget.kind for (widget,) in explorers.values()] == list(MAKERS)


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


def test_controls_can_be_named_and_hold_their_values(explorers):
    def look(widget):
        assert widget.said
        assert widget.html
        assert not widget.problem
        for control in widget.controls:
            assert control["label"]
            assert widget.values[control["name"]] in control.get("options", widget.values.values())

    for_each(explorers, look)


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


def test_presets_are_what_they_are_called():
    budgets, bills = widgets.training_budget(), widgets.model_bill()
    budgets.answer(budgets.presets["fits a gaming GPU"])
    assert budgets.said.endswith("12 GB on each device of 24 GB: fits")
    bills.answer(bills.presets["DeepSeek-V3"])
    assert ": fits; " in bills.said
    bits = widgets.float_bits()
    bits.answer(bits.presets["fp16’s largest"])
    assert int(bits.values["code"]) == number_formats.FP16.max_code
    bits.answer(bits.presets["fp32’s smallest"])
    assert bits.values["code"] == "1"
    races = widgets.optimizer_race()
    for name, ran_away in (("SGD just holds on", False), ("SGD runs away", True)):
        races.answer(races.presets[name])
        end = race.heights(race.COURSES["ravine"], races.paths(races.values))["SGD"]
        assert (end > 40) == ran_away, end


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


def test_a_typed_number_is_rounded_to_the_format():
    widget = widgets.float_bits(0.1, "bf16")
    assert widget.said == "bf16 stores 0.10009765625"
    turn(widget, format="fp16")
    assert widget.said == "fp16 stores 0.0999755859375"
    turn(widget, number="1e9")
    assert widget.said == "fp16 stores inf"


def test_the_table_has_every_format_and_stays_narrow():
    shown = widgets.float_bits(0.1).html
    assert all(f">{name}</th>" in shown for name in number.FORMATS)
    patterns = re.findall(r">([01] [01 …]+)<", shown)
    assert max(map(len, patterns)) == number.MOST_BITS


def test_nonsense_is_explained_and_the_last_view_stays():
    widget = widgets.float_bits(1.0)
    before = widget.html
    turn(widget, number="one")
    assert widget.problem == "'one' is not a number; try 0.1, -3e-5 or inf"
    assert widget.html == before
    turn(widget, number="2")
    assert widget.problem == ""
    assert widget.said == "fp32 stores 2.0"


def test_worked_formulas():
    cases = [
        ("fp32", 0.15625, "2^(124 - 127) × (1 + 2097152/2^23)"),
        ("fp16", -6e-8, "subnormal, no implicit one: -2^-14 × 1/2^10"),
        ("fp16", math.inf, "this code means infinity"),
        ("fp8 E4M3", math.nan, "this code means NaN"),
        ("bf16", -0.0, "all fields but the sign are 0: -0"),
    ]
    for name, value, formula in cases:
        form = number.FORMATS[name]
        assert number.worked(form, form.encode(value)) == formula


def test_formulas_are_true():
    form = number_formats.E5M2
    for code in range(form.max_code + 1):
        words = number.worked(form, code).removeprefix("subnormal, no implicit one: ")
        if not words.startswith("all"):
            assert eval(words.replace("^", "**").replace("×", "*")) == form.decode(code)


def test_what_other_formats_make_of_it():
    assert number.rounded(number_formats.FP16, 0.5) == ("0 01110 0000000000", "0.5", "0")
    assert number.rounded(number_formats.BF16, 0.1)[1:] == ("0.100097656", "9.8e-04")
    assert number.rounded(number_formats.E4M3, 1e9)[1:] == ("nan", "lost")
    assert number.rounded(number_formats.E2M1, math.nan) == ("-", "has no NaN", "-")


# Strides.


def test_an_element_leads_to_its_slot():
    widget = widgets.strides((3, 4), "x.T")
    click(widget, "element [3, 1]")
    assert widget.said == "[3, 1]: offset 0 + 3·1 + 1·4 = slot 7"
    chosen = re.findall(r'<div class="cs336-cell cs336-slot cs336-chosen[^>]*>(\d+)<', widget.html)
    assert chosen == ["70"]


def test_views_are_chained_by_buttons():
    widget = widgets.strides((3, 4), "x")
    click(widget, "append [1:]")
    click(widget, "append [:, ::2]")
    assert widget.values["expression"] == "x[1:][:, ::2]"
    assert widget.said == "[0, 0]: offset 4 + 0·4 + 0·2 = slot 4"
    assert widget.html.count("cs336-unseen") == 8
    click(widget, "start again")
    assert widget.values["expression"] == "x"


def test_a_copy_is_called_a_copy():
    widget = widgets.strides((3, 4), "x.T")
    assert "a view" in widget.html
    turn(widget, expression="x.T.flatten()")
    assert "a copy" in widget.html


def test_pytorch_says_why_a_view_is_impossible():
    widget = widgets.strides((3, 4), "x.T")
    click(widget, "append .view(2, 6)")
    assert widget.problem.startswith("PyTorch: view size is not compatible")


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


def test_elements_are_what_the_slots_hold():
    def click_every_element(expression):
        widget = widgets.strides((3, 4), expression)
        shown = layout.evaluate(expression, layout.numbers((3, 4)))
        labels = [label for label in buttons(widget) if label.startswith("element")]
        assert len(labels) == shown.numel()
        for label, value in zip(labels, shown.flatten().tolist(), strict=True):
            click(widget, label)
            slot = int(widget.said.split()[-1])
            assert strided_storage.storage_values(shown)[slot] == value
        assert widget._repr_mimebundle_()[0]["image/png"]

    views = ["x", "x[0]", "x[1, 2]", "x.view(2, 3, 2)", "x.unfold(1, 2, 1)", "x.mT[:, [0]]"]
    for_each({view: (view,) for view in views}, click_every_element)


# einops.


def test_routes_follow_every_element():
    moved = pattern.move("rearrange", "a (b c) -> b (c a)", (2, 6), {"c": 2})
    assert torch.equal(moved.after, einops.rearrange(moved.before, "a (b c) -> b (c a)", c=2))
    sources = moved.routes.int().argmax(0)
    assert (moved.routes.sum(0) == 1).all()
    assert torch.equal(moved.before.flatten()[sources], moved.after.flatten())


def test_reduce_gathers_and_repeat_spreads():
    reduced = pattern.move("reduce max", "(h a) w -> h w", (4, 3), {"a": 2})
    assert (reduced.routes.sum(0) == 2).all()
    assert (reduced.routes.sum(1) == 1).all()
    assert torch.equal(reduced.after, torch.tensor([[3.0, 4, 5], [9, 10, 11]]))
    repeated = pattern.move("repeat", "w -> w n", (3,), {"n": 4})
    assert (repeated.routes.sum(1) == 4).all()


def test_the_chosen_element_is_marked_on_both_sides():
    widget = widgets.einops_pattern()
    click(widget, "before [1, 5]")
    assert widget.said == "(3, 8) -> (2, 3, 4); the chosen element goes to 1 place"
    marked = re.findall(r'cs336-chosen"[^>]*aria-label="([^"]*)"', widget.html)
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


def test_a_bad_shape_is_refused():
    for words in ("", "2 x", "2 3 4 5 6", "0 3", "9 9", "-1 2"):
        with pytest.raises(ValueError, match=r"try 2 3 4|use at most 64"):
            pattern.read_shape(words)


def test_sizes_are_read_as_people_write_them():
    assert pattern.read_sizes("head = 2, dim=4") == {"head": 2, "dim": 4}
    assert pattern.read_sizes("  ") == {}
    for words in ("head two", "head=0"):
        with pytest.raises(ValueError, match="try head=2"):
            pattern.read_sizes(words)


def test_colours_follow_the_first_axis_of_the_result():
    before, after = pattern.colours(pattern.move("rearrange", "a b -> b a", (2, 3), {}))
    assert before.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert after.tolist() == [[0, 0], [1, 1], [2, 2]]
    before, after = pattern.colours(pattern.move("reduce sum", "a b ->", (2, 3), {}))
    assert before.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert after.tolist() == 0
    before, _ = pattern.colours(pattern.move("repeat", "a -> n a", (2,), {"n": 3}))
    assert before.tolist() == [-1, -1]  # each goes to three groups


def test_typed_words_are_no_html():
    widget = widgets.einops_pattern("a b -> b a", "2 2", "")
    turn(widget, pattern="a <img> -> b a")
    assert "<img" not in widget.html


# einsum, step by step.


def test_after_the_last_step_the_result_is_that_of_einsum():
    for words in einsum.PATTERNS:
        now = einsum.moment(words, einsum.MOST_STEPS)
        assert torch.equal(now.result, einops.einsum(now.left, now.right, words)), words
        assert len(einsum.steps(words)) <= einsum.MOST_STEPS


def test_a_step_marks_what_it_multiplies_and_says_where_it_adds():
    widget = widgets.einsum_steps(step=8)
    said = "step 8 of 12, i=1, j=0, k=1: result[1, 0] = 4 × 2 + 5 × 0 = 8"
    assert widget.said == said
    assert re.findall(r'cs336-chosen"[^>]*>([^<]+)<', widget.html) == ["5", "0", "8"]
    click(widget, "step on")
    assert widget.said.endswith("result[1, 0] = 4 × 2 + 5 × 0 + 6 × 1 = 14")
    click(widget, "step back")
    assert widget.said == said


def test_a_cell_of_the_result_leads_to_its_last_step():
    widget = widgets.einsum_steps(step=0)
    assert widget.said == "12 multiplications; step on to see the first"
    click(widget, "result [1, 1]")
    assert widget.values["step"] == "12"
    turn(widget, pattern="i k, k i ->")
    assert widget.values["step"] == "0"
    turn(widget, step="12")
    assert widget.values["step"] == "6"
    assert "result = " in widget.said


# Training budget.


def test_the_budget_is_the_notebooks_napkin():
    found = budget.budget(70e9, 15e12, 1024, "h100", 0.5, "adamw", "mixed", 0, 2.0)
    assert round(found.seconds / 86_400, 1) == 143.9
    assert found.total == pytest.approx(16 * 70e9)
    assert not found.fits
    assert found.dollars == pytest.approx(found.seconds / 3600 * 1024 * 2)


def test_sharding_divides_what_its_stage_says():
    for stage in range(4):
        found = budget.budget(1e9, 1e9, 4, "a100", 0.4, "adamw", "mixed", stage, 1.0)
        per = budget.accounting.bytes_per_parameter("adamw", "mixed")
        assert found.total == pytest.approx(1e9 * per.sharded(4, stage))


def test_turning_a_knob_changes_the_answer():
    widget = widgets.training_budget()
    assert widget.said.startswith("143.9 days, $7.074M; 1,120 GB on each device of 80 GB")
    turn(widget, sharded="+ weights (ZeRO-3)", devices="2,048")
    assert widget.said.startswith("72.0 days, $7.074M;")
    assert widget.said.endswith(": fits")


# Bill of a model.


def test_the_bill_of_llama_is_near_the_published_one():
    # 15T of the 15.6T tokens; 41% MFU (Llama team 2024, table 4) is 71 days for all of them.
    found = widgets.model_bill().bill(widgets.model_bill().values)
    assert found.seconds / 86_400 == pytest.approx(71.3 * 15 / 15.6, rel=0.15)
    assert found.fits
    assert found.step.seconds == pytest.approx(sum(found.seconds_by_part.values()))


def test_the_bill_names_the_bottleneck():
    widget = widgets.model_bill()
    assert widget.said.endswith("goes to waiting for sums (tensor) (19% of a step)")
    turn(widget, schedule="1F1B")
    assert "pipeline bubble" in widget.said
    turn(widget, batch="8,192")
    turn(widget, cluster="H800, InfiniBand NDR", devices="2,048", tensor="1", recompute="all")
    turn(widget, model="DeepSeek-V3")
    assert "waiting for experts" in widget.said


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
    assert "12 query heads can't be split over tp 8; the nearest layout is" in widget.problem
    assert widget.html == before
    turn(widget, tensor="4", pipeline="1", batch="4,096")
    assert widget.problem == ""
    assert widget.html != before


# Optimizer race.


def test_the_race_is_what_descend_gives():
    for course in race.COURSES.values():
        paths = race.race(course, 0.03, 0.7, 20)
        for rule, make in race.rules(0.03, 0.7).items():
            alone = loss_surfaces.descend(course.surface, course.start, make, 20)
            torch.testing.assert_close(paths[rule], alone)


def test_sgd_runs_away_past_two_over_the_curvature():
    course = race.COURSES["ravine"]
    assert race.heights(course, race.race(course, 0.038, 0.9, 100))["SGD"] < 1
    assert race.heights(course, race.race(course, 0.06, 0.9, 100))["SGD"] > 1e6
    widget = widgets.optimizer_race(rate="0.06", steps="100")
    assert "ran away" in widget.html
    assert "nan" not in widget.html


def test_the_momentum_control_is_adams_beta1_too():
    course = race.COURSES["saddle"]
    slow, fast = (race.race(course, 0.1, momentum, 5) for momentum in (0.0, 0.99))
    moved = {rule for rule in slow if not torch.equal(slow[rule], fast[rule])}
    assert moved == {"Momentum", "Adam"}


def test_without_momentum_momentum_is_sgd():
    paths = race.race(race.COURSES["saddle"], 0.1, 0.0, 30)
    torch.testing.assert_close(paths["Momentum"], paths["SGD"])


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


def test_the_knobs_cut_and_sharpen(tiny):
    widget = widgets.attention_and_sampling(*tiny, words="abba")
    total = tiny[0].config.vocab_size
    assert f"{total} of {total} tokens can be drawn next" in widget.said
    turn(widget, top_k="3")
    assert f"3 of {total} tokens" in widget.said
    assert "cut off" in widget.html
    turn(widget, top_k="off", temperature="0.1")
    assert float(widget.said.rstrip("%").split()[-1]) > 10


def test_the_chosen_head_stands_large(tiny):
    widget = widgets.attention_and_sampling(*tiny, words="abba")
    before = widget.html
    click(widget, "head 1")
    assert widget.said.startswith("head 1 of layer 0")
    assert widget.html != before


def test_the_model_reads_each_text_once(tiny, monkeypatch):
    widget = widgets.attention_and_sampling(*tiny, words="abba")
    monkeypatch.setattr(letters, "read", lambda *_: pytest.fail("read again"))
    turn(widget, temperature="2", layer="1")
    assert not widget.problem


def test_what_the_model_cannot_read_is_explained(tiny):
    model, tokenizer = tiny
    widget = widgets.attention_and_sampling(model, tokenizer, words="abba")
    for words, problem in (("", "empty"), ("a" * 33, "33 tokens; use at most 32"), ("Z", "'Z'")):
        turn(widget, text=words)
        assert problem in widget.problem
