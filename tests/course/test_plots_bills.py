"""The figures of notebook 10b draw what they are given."""

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from cs336_course.figures import bills as plots


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


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


def test_ratios_are_sorted_and_named():
    (axes,) = plots.ratios({"late": 1.02, "early": 0.7}, "ratios").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["early", "late"]
    assert list(axes.lines[1].get_xdata()) == [0.7, 1.02]


def test_simulated_steps_are_counted():
    (axes,) = plots.simulated({"fitted": [(0.3, 0.4)], "judged": [(0.5, 0.5), (0.2, 0.3)]}).axes
    assert axes.get_title(loc="left") == "MFU of 3 published steps"
    assert [list(line.get_xdata()) for line in axes.lines[1:]] == [[0.3], [0.5, 0.2]]
