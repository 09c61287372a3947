"""The figures of notebook 09 draw what they are given; what is missing leaves a gap, no error."""

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from cs336_lib.classroom.ladder import Row
from cs336_lib.classroom.plots import gpt2_speed as plots
from cs336_lib.classroom.step_profile import Span

NAMES = ["fp32", "TF32", "bf16"]
ROWS = [
    Row("fp32", 100.0, 10_000.0, 0.4, 2.0, 6.0),
    Row("TF32", 50.0, 20_000.0, None, None, 6.0, note="no effect on this device"),
    Row("bf16", note="left out: 3.0x fp32's time (tiny model)"),
]


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def words(drawing: Figure) -> list[str]:
    """All the texts in the axes."""
    drawing.canvas.draw()
    return [text.get_text() for axes in drawing.axes for text in axes.texts]


def test_so_far_shows_climbed_rungs_on_both_sides():
    drawing = plots.so_far(NAMES, ROWS[:1], {"fp32": 807.3, "TF32": 539.3}, "here")
    left, right = drawing.axes
    assert [bar.get_width() for bar in left.patches] == [100]
    assert [bar.get_width() for bar in right.patches] == [807.3]
    assert [text.get_text() for text in left.get_yticklabels()] == NAMES
    assert left.get_title(loc="left") == "Here: here"


def test_so_far_says_why_a_rung_is_missing():
    found = words(plots.so_far(NAMES, ROWS, {}, "here"))
    assert "left out:\n3.0x fp32's time (tiny model)" in found
    assert " no effect on this device" in found


def test_the_figure_has_one_size_however_far_one_has_climbed():
    sizes = {
        tuple(plots.so_far(NAMES, rows, {"fp32": 1.0}, "here").get_size_inches())
        for rows in (ROWS[:1], ROWS)
    }
    assert len(sizes) == 1


def test_whole_ladder_has_a_panel_for_each_quantity():
    drawing = plots.whole_ladder(NAMES, ROWS, "title")
    widths = [[bar.get_width() for bar in axes.patches] for axes in drawing.axes]
    assert widths == [[100, 50], [10, 20], [40], [2048]]
    assert {"100", "50", "2,048", "40"} <= set(words(drawing))


def test_a_device_that_tells_no_memory_has_an_empty_panel():
    drawing = plots.whole_ladder(NAMES, [Row("fp32", 1.0, 1.0)], "title")
    assert [len(axes.patches) for axes in drawing.axes] == [1, 1, 0, 0]
    drawing.canvas.draw()


def test_speedups_mark_the_last_value():
    drawing = plots.speedups(NAMES, {"a": {"fp32": 1, "bf16": 4.0}, "b": {"fp32": 1}})
    assert list(drawing.axes[0].lines[0].get_xdata()) == [0, 2]
    assert {"4x", "1x"} <= set(words(drawing))


def test_timeline_has_a_box_for_each_operator():
    spans = [Span("mm", "matmul", "forward", 0, 2), Span("add", "optimizer", "update", 3, 1)]
    boxes = plots.step_timeline(spans, "title").axes[0].patches
    assert [(box.get_x(), box.get_width()) for box in boxes] == [(0, 2), (3, 1)]
    assert boxes[0].get_facecolor() != boxes[1].get_facecolor()


def test_time_by_kind_shows_shares_and_the_sum():
    drawing = plots.time_by_kind({"step": {"matmul": 75.0, "attention": 25.0}}, "title")
    assert {"75%", "25%", " 100 ms"} <= set(words(drawing))


def test_memory_by_kind_draws_peaks_where_there_are_some():
    predicted = {
        name: {"weights": 2**20, "output": 2.0**21, "token ids": 8.0} for name in ("a", "b")
    }
    drawing = plots.memory_by_kind(predicted, {"a": 2.0**22}, "title")
    assert [bar.get_width() for bar in drawing.axes[0].patches] == [1, 2, 1, 2]
    assert words(drawing) == ["  peak 4"]
    legend = [text.get_text() for text in drawing.axes[0].get_legend().get_texts()]
    assert legend == ["weights", "output"]


def test_beside_others_counts_from_one_in_both_directions():
    drawing = plots.beside_others({"step": {"a": 2.0, "b": 0.5}, "text": {"b": 7.21}}, "title")
    widths = [bar.get_width() for bar in drawing.axes[0].patches]
    assert widths == pytest.approx([1, -0.5, 6.21])
    assert words(drawing) == [" 2 x ", " 0.5 x ", " 7.21 x "]
    names = [text.get_text() for text in drawing.axes[0].get_yticklabels()]
    assert names == ["step", "text"]


def test_digits():
    assert [plots.digits(v) for v in (0.0743, 55.31, 2250)] == ["0.0743", "55.3", "2,250"]
