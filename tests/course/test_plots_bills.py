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


def test_errors_have_a_row_for_each_stack():
    drawing = plots.errors({"one": [(0.9, False), (1.2, True)], "two": [(1.1, False)]}, (0.8, 1.25))
    (axes,) = drawing.axes
    assert axes.get_title(loc="left") == "3 published steps, against their simulation"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "two"]
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines[1:5]]
    assert drawn == [([0.9], [0]), ([1.2], [0]), ([1.1], [1]), ([], [])]
