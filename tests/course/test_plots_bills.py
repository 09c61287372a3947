"""The figures of notebooks 10b and 10d draw what they are given."""

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.colors import to_hex

from cs336_course.drawing import bills as plots
from cs336_course.pages.thousands_of_gpus import capstone
from cs336_lib.bill.traffic import Layout
from cs336_lib.report import palette


def test_a_bill_has_a_bar_for_each_part_and_the_limit():
    drawing = plots.bill(
        "a run", {"matmuls": 3.0, "bubble": 1.0, "tiny": 1e-9}, {"all": 50.0}, 80.0
    )
    above, below = drawing.axes
    assert [bar.get_width() for bar in above.patches] == [
        3.0,
        1.0,
    ]  # what can't be seen is left out
    assert [text.get_text() for text in above.get_legend().get_texts()] == ["matmuls 3", "bubble 1"]
    assert list(below.lines[0].get_xdata()) == [80.0, 80.0]
    assert below.get_xlim()[1] > 80


def test_squares_are_divided_as_a_step_is():
    parts = {"work": 30, "none of it": 0, "waiting": 34}
    (axes,) = plots.squares({"draft": parts}).axes
    assert axes.get_title(loc="left") == "draft: 64 GPUs do the work of 30"
    colours = [to_hex(patch.get_facecolor()).upper() for patch in axes.patches]
    assert colours[:64] == [palette.FILLS[0]] * 30 + [palette.FILLS[2]] * 34
    assert colours[64:] == [palette.FILLS[0], palette.FILLS[2]]  # the names beside them
    assert [text.get_text() for text in axes.texts] == ["30 work", "34 waiting"]


def test_the_squares_of_the_draft_and_of_a_plan_are_all_gpus():
    draft = capstone.workload(Layout(dp=64, tp=8, zero=3, micro_batches=8), "none")
    plan = capstone.workload(Layout(dp=256, tp=2, zero=3, micro_batches=2), "selective")
    for work, working, again in ((draft, 133, 0), (plan, 223, 72)):
        found = capstone.squares(work)
        assert sum(found.values()) == capstone.GPUS
        assert next(iter(found.values())) == working
        assert found["computing again"] == again


@pytest.mark.parametrize("count", [1, 2])
def test_two_hops_of_each_ring_take_a_card(count):
    drawn = plots.rings(count).axes
    assert [axes.get_title(loc="left") for axes in drawn] == [
        "ring 0→1→2→3→0",
        "ring 1→0→3→2→1",
    ][:count]
    for axes in drawn:
        hops = [text.arrow_patch for text in axes.texts if getattr(text, "arrow_patch", None)]
        assert len(hops) == 4
        assert sum(hop.get_linewidth() == 4 for hop in hops) == 2


def test_tokens_hide_the_weights_and_not_the_sums():
    draft = capstone.workload(Layout(dp=64, tp=8, zero=3, micro_batches=8), "none")
    (axes,) = plots.waits(draft, capstone.CLUSTER, 3711).axes
    weights, tried, sums, _, rule = axes.lines
    assert weights.get_ydata()[0] > 4.6 > 0 == weights.get_ydata()[-1]
    assert list(tried.get_xdata()) == [1024, 2048, 4096]
    assert tried.get_ydata() == pytest.approx([4.64, 0.06, 0], abs=0.01)
    assert max(sums.get_ydata()) == pytest.approx(min(sums.get_ydata()))
    assert rule.get_xdata()[0] == 3711


def test_errors_have_a_row_for_each_stack():
    drawing = plots.errors({"one": [(0.9, False), (1.2, True)], "two": [(1.1, False)]}, (0.8, 1.25))
    (axes,) = drawing.axes
    assert axes.get_title(loc="left") == "3 published steps, each paper left out of the fit"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "two"]
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines[1:5]]
    assert drawn == [([0.9], [0]), ([1.2], [0]), ([1.1], [1]), ([], [])]
    told = {text.get_text().strip(): text.get_position()[0] for text in axes.texts}
    assert told == {"8 of 10 papers": 0.8, "★ kept as a test, never fitted": 1.25}


def test_a_layer_lights_the_experts_that_a_token_meets():
    (axes,) = plots.experts(64, 3).axes
    colours = [to_hex(patch.get_facecolor(), keep_alpha=False).upper() for patch in axes.patches]
    assert [colours.count(colour) for colour in (palette.BLUE, palette.ORANGE)] == [3, 1]
    assert len(colours) == 64 + 1
    assert len(axes.lines) == 3 + 1


def test_utilizations_have_a_row_for_each_stack_and_a_colour_for_each_gpu():
    stacks = {"one": [(0.3, "H100"), (0.5, "A100")], "two": [(0.4, "H100")]}
    (axes,) = plots.utilizations(stacks).axes
    assert axes.get_title(loc="left") == "MFU of 3 published steps, by program"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["A100", "H100"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines] == [
        ([0.5], [0]),
        ([0.3, 0.4], [0, 1]),
    ]


def test_a_plan_is_red_if_its_upper_end_breaks_the_budget():
    (axes,) = plots.plans({"safe": (1e6, 2e6, 3e6), "risky": (2e6, 3e6, 4e6)}, 3.5e6).axes
    safe, safe_dot, risky, risky_dot, budget = axes.lines
    assert list(safe.get_xdata()) == [1, 3]
    assert (safe_dot.get_xdata(), risky_dot.get_ydata()) == ([2], [1])
    assert (safe.get_color(), risky.get_color()) == (plots.BLUE, plots.RED)
    assert list(budget.get_xdata()) == [3.5, 3.5]
    assert [text.get_text().strip() for text in axes.texts] == ["$2.00M", "$3.00M", "budget $3.50M"]


def test_the_first_cover_shows_that_the_larger_model_took_less(monkeypatch):
    monkeypatch.setattr(plots, "show_cover", lambda: None)
    plots.cover()
    sizes, hours = ([bar.get_width() for bar in axes.patches] for axes in plt.gcf().axes)
    assert sizes == pytest.approx([405.9, 671.0], abs=0.1)
    assert hours == [30.84, 2.664]
    assert hours[1] < hours[0] / 10


def test_the_second_cover_colours_as_many_gpus_as_do_the_work(monkeypatch):
    monkeypatch.setattr(plots, "show_cover", lambda: None)
    plots.cover_gpus()
    left, right = plt.gcf().axes
    colours = [square.get_facecolor() for square in left.patches]
    working = colours.count(colours[0])
    assert len(colours) == 512
    assert left.get_title(loc="left") == f"512 GPUs do the work of {working}"
    budget, draft = (bar.get_height() for bar in right.patches)
    assert (budget, round(draft, 2)) == (0.9, 1.04)
