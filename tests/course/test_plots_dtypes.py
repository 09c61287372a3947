"""The figures of 01_dtypes draw the limits and numbers of the formats that they are given."""

import matplotlib
import pytest
import torch

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from cs336_course.drawing import dtypes
from cs336_course.shared import number_formats


def words(figure) -> list[str]:
    """Return all the texts in the figure's axes."""
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_bit_pattern_says_what_each_set_bit_is_worth():
    shown = words(dtypes.bit_pattern(number_formats.FP16, number_formats.FP16.encode(-0.375)))
    assert [w for w in shown if w in ("8", "4", "2", "1/2", "1/4")] == ["8", "4", "1/2"]
    assert "exponent field 13\n13 - 15 = -2" in shown
    assert shown[-1] == r"$(-1)^{1} \times 2^{-2} \times 1.5 = -0.375$"


def test_ranges_end_at_the_limits_of_the_format():
    figure = dtypes.ranges([number_formats.FP16], marks=(1e-8,))
    subnormal, normal = (bar.get_bbox() for bar in figure.axes[0].patches[:2])
    assert (subnormal.x0, subnormal.x1) == pytest.approx((2**-24, 2**-14))
    assert (normal.x0, normal.x1) == pytest.approx((2**-14, 65504))
    assert words(figure)[0] == "1,024"
    assert words(figure)[-1] == "$10^{-8}$"


def test_a_sum_that_stops_is_labelled_with_where():
    figure = dtypes.running_sums({"short": [1, 2, 2, 2], "long": [1, 2, 3, 4]})
    assert words(figure) == ["short stops at 2", "long is exact"]


def test_a_number_line_has_a_stroke_for_each_value_in_its_window():
    figure = dtypes.number_lines([number_formats.E2M1, number_formats.INT4], 0, 4, "title")
    strokes = [len(lines.get_segments()) for lines in figure.axes[0].collections[1::2]]
    assert strokes == [5, 7]  # int4 has 0 to 4, and fp4 has 0.5 and 1.5 as well


def test_gaps_are_drawn_within_the_range_of_the_format():
    line = dtypes.gaps([number_formats.E4M3]).axes[0].lines[0]
    assert line.get_xdata()[0] >= number_formats.E4M3.smallest_subnormal
    assert line.get_xdata()[-1] <= number_formats.E4M3.max
    assert set(line.get_ydata()) == {2.0**power for power in range(-9, 6)}


def test_a_dot_marks_the_gap_at_a_value_that_the_format_holds():
    lines = dtypes.gaps([number_formats.BF16, number_formats.E2M1], at=256.0).axes[0].lines
    dots = [line for line in lines if line.get_marker() == "o"]
    assert [(dot.get_xdata()[0], dot.get_ydata()[0]) for dot in dots] == [(256, 2)]


def test_lost_updates_mark_what_is_below_half_a_gap():
    axes = dtypes.lost_updates({"run": [3.0, 1.0]}, half_gap=2.0).axes[0]
    assert axes.lines[1].get_ydata()[0] == 2.0
    assert axes.patches[0].get_bbox().y1 == 2.0


def test_training_curves_are_means_of_20_steps_and_name_their_floors():
    axes = dtypes.training({"run": [float(n) for n in range(30)]}, "title", {"floor": 2.0}).axes[0]
    assert axes.lines[0].get_xdata()[0] == 20
    assert axes.lines[0].get_ydata()[0] == pytest.approx(9.5)
    assert axes.lines[1].get_ydata()[0] == 2.0
    assert axes.texts[0].get_text() == "floor"


def test_runs_are_drawn_above_the_first_one():
    (line,) = dtypes.above({"first": [1.0] * 30, "second": [1.5] * 30}, "title").axes[0].lines
    assert set(line.get_ydata().round(9)) == {0.5}


def test_marked_steps_say_what_share_they_move():
    axes = dtypes.moved_by([1e-6, 1e-4], [0.0, 0.5], {"mark": 1e-4}).axes[0]
    assert axes.texts[0].get_text() == "mark: 50 %"


def test_losses_are_drawn_above_the_exact_one_by_bits():
    axes = dtypes.loss_by_bits({"q": (4.5, 1.6)}, 1.5, "title").axes[0]
    assert axes.lines[0].get_xdata()[0] == 4.5
    assert axes.lines[0].get_ydata()[0] == pytest.approx(0.1)
    assert axes.texts[0].get_text() == "q"


def test_stairs_have_a_line_for_each_format():
    x = torch.tensor([0.0, 1.0])
    axes = dtypes.stairs(x, {"fp4": x, "int4": x}).axes[0]
    assert [line.get_label() for line in axes.lines[1:]] == ["fp4", "int4"]


def test_the_cover_says_which_formats_stop():
    dtypes.cover()
    axes = plt.gca()
    assert words(plt.gcf()) == ["fp32 arrives", "bf16 stops here", "fp16 stops here"]
    ends = [line.get_xdata()[-1] for line in axes.lines if len(line.get_xdata()) > 1]
    assert ends[0] > ends[1] > ends[2]


def test_the_cover_of_low_bits_shows_what_each_model_writes():
    dtypes.cover_low_bits()
    bits, texts = words(plt.gcf())[::2], words(plt.gcf())[1::2]
    assert bits == ["32 bits", "4 bits", "2 bits"]
    assert all(text.startswith("JULIET:\n") for text in texts)
    assert len(set(texts)) == 3
