"""The figures of notebook 09 draw what they are given; what is missing leaves a gap, no error."""

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from cs336_course.pages.gpt2_speed import pictures as plots
from cs336_course.pages.gpt2_speed.profiled_step import Span
from cs336_course.pages.gpt2_speed.speed_ladder import Row

NAMES = ["fp32", "TF32", "bf16"]
ROWS = [
    Row("fp32", 100.0, 10_000.0, 0.4, 2.0, 6.0),
    Row("TF32", 50.0, 20_000.0, None, None, 6.0, note="no effect on this device"),
    Row("bf16", note="left out: 3.0x fp32's time (tiny model)"),
]


def words(drawing: Figure) -> list[str]:
    """All the texts in the axes."""
    drawing.canvas.draw()
    return [text.get_text() for axes in drawing.axes for text in axes.texts]


def test_whole_ladder_stands_beside_the_a6000():
    drawing = plots.whole_ladder(NAMES, ROWS, {"fp32": 807.3, "TF32": 539.3}, "here")
    widths = [[bar.get_width() for bar in axes.patches] for axes in drawing.axes]
    assert widths == [[100, 50], [2048], [807.3, 539.3]]
    assert {"100", "50", "2,048", "807", "left out", "no effect"} <= set(words(drawing))
    assert drawing.axes[0].get_title(loc="left") == "Here: here"


def test_a_device_that_tells_no_memory_has_an_empty_panel():
    drawing = plots.whole_ladder(NAMES, [Row("fp32", 1.0, 1.0)], {}, "here")
    assert [len(axes.patches) for axes in drawing.axes] == [1, 0, 0]
    drawing.canvas.draw()


def test_a_rung_that_is_not_kept_is_pale():
    rows = [Row("fp32", 100.0, None, None, 2.0), Row("TF32", 50.0, note="not kept above")]
    here, memory, _ = plots.whole_ladder(NAMES, rows, {}, "here").axes
    assert [bar.get_alpha() or bar.get_facecolor()[3] for bar in here.patches] == [1, 0.25]
    assert len(memory.patches) == 1


def test_rate_sweep_marks_the_lowest_loss():
    axes = plots.rate_sweep({"a": {0.01: 2.0, 0.1: 3.0}, "b": {0.01: 4.0, 0.1: 1.0}}, "t").axes[0]
    dots = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert dots == [[[0.01, 2.0]], [[0.1, 1.0]]]


def test_timeline_has_a_box_for_each_operator():
    spans = [Span("mm", "matmul", "forward", 0, 2), Span("add", "optimizer", "update", 3, 1)]
    boxes = plots.step_timeline(spans, "title").axes[0].patches
    assert [(box.get_x(), box.get_width()) for box in boxes] == [(0, 2), (3, 1)]
    assert boxes[0].get_facecolor() != boxes[1].get_facecolor()


def test_time_by_kind_shows_shares_and_the_sum():
    drawing = plots.time_by_kind({"step": {"matmul": 75.0, "attention": 25.0}}, "title")
    assert {"75%", "25%", " 100 ms"} <= set(words(drawing))


def test_memory_by_kind_draws_kinds_that_are_visible_and_the_sum():
    ways = {name: {"weights": 1e9, "output": 2e9, "token ids": 8.0} for name in ("a", "b")}
    drawing = plots.memory_by_kind(ways, "title")
    assert [bar.get_width() for bar in drawing.axes[0].patches] == [1, 2, 1, 2]
    assert words(drawing) == [" 3 GB", " 3 GB"]
    legend = [text.get_text() for text in drawing.axes[0].get_legend().get_texts()]
    assert legend == ["weights", "output"]


def test_the_scoreboard_names_each_line_without_overlap():
    drawing = plots.scoreboard({"a": [4.0, 3.0], "b": [4.0, 3.0], "c": [4.0, 2.0]}, "title")
    heights = {text.get_text(): text.get_position()[1] for text in drawing.axes[0].texts}
    assert set(heights) == {"a", "b", "c"}
    assert abs(heights["a"] - heights["b"]) > 0.04


def test_smoothed():
    assert plots.smoothed([4.0, 2.0, 0.0], 2) == [4.0, 3.0, 1.0]


def test_beside_others_counts_from_one_in_both_directions():
    drawing = plots.beside_others({"step": {"a": 2.0, "b": 0.5}, "text": {"b": 7.21}}, "title")
    widths = [bar.get_width() for bar in drawing.axes[0].patches]
    assert widths == pytest.approx([1, -0.5, 6.21])
    assert words(drawing) == [" 2 x ", " 0.5 x ", " 7.21 x "]
    names = [text.get_text() for text in drawing.axes[0].get_yticklabels()]
    assert names == ["step", "text"]


def test_digits():
    assert [plots.digits(v) for v in (0.0743, 55.31, 2250)] == ["0.0743", "55.3", "2,250"]


def test_the_cover_shows_the_milliseconds_between_the_two_steps(monkeypatch):
    monkeypatch.setattr(plots, "show_cover", lambda: None)
    plots.cover()
    (axes,) = plt.gcf().axes
    slow, fast, gone = (bar.get_width() for bar in axes.patches)
    assert (slow, fast) == (807.30, 151.45)
    assert fast + gone == pytest.approx(slow)
    assert any("656 ms" in text for text in words(plt.gcf()))
