"""The figures of notebooks 04 and 04b draw what they are given, and nothing is left unlabelled."""

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from cs336_course.drawing import accounting as plots


def words(drawing: Figure) -> list[str]:
    """All the texts in the axes and the legends."""
    drawing.canvas.draw()
    found = [text.get_text() for axes in drawing.axes for text in axes.texts]
    legends = [axes.get_legend() for axes in drawing.axes if axes.get_legend()]
    return found + [text.get_text() for legend in legends for text in legend.get_texts()]


def test_rooflines_bend_at_the_ridge():
    roof = plots.Roof("chip", 100.0, 10.0)
    drawing = plots.rooflines([(roof, {"ReLU": (0.5, 4.0), "matmul": (50.0, 90.0)}, "measured")])
    axes = drawing.axes[0]
    roofline = axes.lines[0]
    assert max(roofline.get_ydata()) == 100
    assert min(roofline.get_ydata()) == pytest.approx(0.05 * 10)
    assert "ridge at 10 FLOP/B" in axes.get_title(loc="left")
    points = [tuple(float(v[0]) for v in line.get_data()) for line in axes.lines[-2:]]
    assert points == [(0.5, 4.0), (50.0, 90.0)]
    assert {"ReLU", "matmul", "memory-bound", "compute-bound"} <= set(words(drawing))


def test_a_roof_may_have_a_lower_one():
    roof = plots.Roof("chip", 100.0, 10.0, vector=20.0)
    drawing = plots.rooflines([(roof, {"ReLU": (0.5, 4.0)}, "at best")])
    lower = drawing.axes[0].lines[1]
    assert set(lower.get_ydata()) == {20.0}
    assert min(lower.get_xdata()) == pytest.approx(2, rel=0.1)
    assert "vector units" in words(drawing)


def test_peak_bars_show_the_share():
    drawing = plots.peak_bars({"matmul": 0.812, "step": 0.3})
    assert {"81.2%", "30.0%"} <= set(words(drawing))
    assert drawing.axes[0].get_title(loc="left") == "Share of this machine's measured peak"


def test_stacked_adds_up():
    totals = {"first": {"a": 1.0, "b": 2.0}, "second": {"b": 1234.0}}
    for limit in (None, 10.0):
        drawing = plots.stacked(totals, "title", "GB", limit)
        widths = [bar.get_width() for bar in drawing.axes[0].patches]
        assert sum(widths) == 1237
        assert {"  3", "  1,234", "a", "b"} <= set(words(drawing))
    assert plots.stacked({"x": {"only": 1.0}}, "title", "GB").axes[0].get_legend() is None


def test_narrow_parts_have_no_number_of_their_own():
    drawing = plots.stacked({"first": {"a": 1.0, "b": 99.0}}, "title", "GB")
    assert {"99", "  100"} <= set(words(drawing))
    assert "1" not in words(drawing)


def test_largest_models_are_the_memory_over_the_bytes():
    drawing = plots.largest_models({"AdamW": 16, "LoRA": 2.5}, 640e9, goal=70e9)
    axes = drawing.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [256, 40]
    assert {"40B at 16 bytes", "256B at 2.5 bytes", " 70B, as in 04"} <= set(words(drawing))
    first, second = (bar.get_facecolor() for bar in axes.patches)
    assert first != second  # only one of them holds 70B


def test_a_waterfall_ends_at_the_goal():
    factors = {"sure": 1.5, "guessed": 2.0}
    drawing = plots.waterfall(("napkin", 1e6), factors, ["sure"], goal=6e6)
    napkin, sure, guessed, rest = drawing.axes[0].patches[:4]
    assert [bar.get_x() for bar in (sure, guessed, rest)] == [1, 1.5, 3]
    assert [bar.get_width() for bar in (sure, guessed, rest)] == pytest.approx([0.5, 1.5, 3])
    assert napkin.get_x() + napkin.get_width() == 1
    assert drawing.axes[0].get_xscale() == "log"
    assert sure.get_facecolor() != guessed.get_facecolor() != rest.get_facecolor()
    ticks = [tick.get_text() for tick in drawing.axes[0].get_yticklabels()]
    assert "not explained: x 2.00" in ticks


def test_lines_go_through_their_values():
    shares = plots.share_lines([512, 1024], {"small": [0.1, 0.2]}, "title", "tokens")
    assert list(shares.axes[0].lines[0].get_ydata()) == [0.1, 0.2]


def test_memory_timeline_is_in_megabytes():
    drawing = plots.memory_timeline([1e6, 3e6, 2e6], {"forward": (0, 1), "backward": (1, 2)})
    assert list(drawing.axes[0].lines[0].get_ydata()) == [1, 3, 2]
    assert {"forward", "backward"} <= set(words(drawing))


def test_checkpointing_has_points_and_curves():
    drawing = plots.checkpointing({4: {1: 4.0, 2: 3.0}}, {4: [5.0, 4.0, 4.3, 5.0]})
    curve, points = drawing.axes[0].lines
    assert list(curve.get_ydata()) == [5.0, 4.0, 4.3, 5.0]
    assert list(points.get_xdata()) == [1, 2]


def test_digits():
    assert [plots.digits(v) for v in (0.0743, 53.33, 989.5, 2250)] == [
        "0.0743",
        "53.3",
        "990",
        "2,250",
    ]


def test_one_gpu_starts_730_years_earlier():
    plots.cover_compute()
    assert "It starts in 1294" in [text.get_text() for text in plt.gca().texts]


def test_the_rest_of_the_first_step_does_not_fit():
    plots.cover_memory()
    *known, rest = [bar.get_bbox() for bar in plt.gca().patches]
    assert known[-1].x1 == pytest.approx(rest.x0)
    assert rest.x0 < 80 < rest.x1
