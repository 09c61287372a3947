"""Test the figures of scaling laws."""

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from cs336_course.demos import scaling_laws
from cs336_course.figures.scaling import isoflop


def test_the_curves_pass_through_the_lowest_points():
    runs = scaling_laws.runs()
    optima = scaling_laws.isoflop(runs)
    left, right = isoflop(runs, optima, "Each budget has a best size").axes
    stars = left.lines[-1]
    assert list(stars.get_ydata()) == pytest.approx([o.loss for o in optima])
    for curve, optimum in zip(left.lines[::2], optima, strict=False):
        assert min(curve.get_ydata()) == pytest.approx(optimum.loss, abs=1e-3)
    points = [line for line in right.lines if len(line.get_xdata()) == 1]
    assert [line.get_ydata()[0] for line in points] == [o.parameters for o in optima]
    assert right.get_legend().get_texts()[0].get_text() == "exponent 0.50"
    plt.close("all")
