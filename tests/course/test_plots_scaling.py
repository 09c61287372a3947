"""Test the figures of scaling laws."""

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from cs336_course.pages.what_a_model_costs import pictures as plots
from cs336_course.pages.what_a_model_costs import scaling_laws


def test_the_curves_pass_through_the_lowest_points():
    runs = scaling_laws.runs()
    optima = scaling_laws.isoflop(runs)
    left, right = plots.isoflop(runs, optima, "Each budget has a best size").axes
    stars = left.lines[-1]
    assert list(stars.get_ydata()) == pytest.approx([o.loss for o in optima])
    for curve, optimum in zip(left.lines[::2], optima, strict=False):
        assert min(curve.get_ydata()) == pytest.approx(optimum.loss, abs=1e-3)
    points = [line for line in right.lines if len(line.get_xdata()) == 1]
    assert [line.get_ydata()[0] for line in points] == [o.parameters for o in optima]
    assert right.get_legend().get_texts()[0].get_text() == "exponent 0.50"


def test_the_cover_has_a_box_for_each_model_and_their_areas_are_near(monkeypatch):
    monkeypatch.setattr(plots, "show_cover", lambda: None)
    plots.cover()
    boxes = plt.gcf().axes[0].patches
    runs = [run for run in scaling_laws.runs() if run.budget == 3e11]
    assert [(box.get_width(), box.get_height()) for box in boxes] == [
        (run.parameters, run.tokens) for run in runs
    ]
    areas = [run.parameters * run.tokens for run in runs]
    assert max(areas) < 1.2 * min(areas)
    ends = [box.get_x() + box.get_width() for box in boxes]
    assert all(end < box.get_x() for end, box in zip(ends, boxes[1:], strict=False))
