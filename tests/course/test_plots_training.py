"""The figures of notebook 06."""

import matplotlib
import numpy as np

from cs336_course.drawing import training as plots
from cs336_course.pages.training_loop import pictures as logs

matplotlib.use("Agg")


def drawn(axes) -> list[list[float]]:
    """The y values of an axes' lines."""
    return [list(line.get_ydata()) for line in axes.get_lines()]


def test_every_figure_draws_what_it_is_given():
    curves = plots.loss_curves({"a": [3.0, 2.0], "b": [3.0, 1.0]}, "title", {"level": 2.5})
    assert [3.0, 1.0] in drawn(curves.axes[0])
    broad = plots.loss_curves({"a": [3.0, 2.0], "b": [3.0, 1.0]}, "title", wide="a").axes[0]
    assert broad.get_lines()[0].get_linewidth() > 2 * broad.get_lines()[1].get_linewidth()
    assert [2.5, 2.5] in drawn(curves.axes[0])
    assert curves.axes[0].get_yscale() == "linear"
    assert plots.loss_curves({"a": [1.0]}, "title", y_scale="log").axes[0].get_yscale() == "log"
    spike = plots.spike([0.1, 9.0], {"run": [3.0, 5.0]}, 1.0, 1, "title")
    assert [0.1, 9.0] in drawn(spike.axes[0])
    assert [3.0, 5.0] in drawn(spike.axes[1])
    schedule = plots.schedule([0.5, 1.0, 0.1], 2, "title")
    assert [0.5, 1.0, 0.1] in drawn(schedule.axes[0])
    spans = {"read": [(0.0, 1.0)], "compute": [(1.0, 2.0), (2.0, 3.0)]}
    timeline = plots.timeline({"way": spans}, "title")
    assert len(timeline.axes[0].patches) == 3
    types = plots.dtype_map({"forward": [("x", "float32"), ("y", "bfloat16")]}, "title")
    assert len(types.axes[0].patches) == 2


def test_a_sweep_draws_every_seed_and_their_mean():
    sweep = plots.seeded_sweep([0.1, 1.0], [[2.0, 4.0], [1.0, 1.5]], 0.1, "title").axes[0]
    assert [2.0, 4.0] in drawn(sweep)
    assert [3.0, 1.25] in drawn(sweep)
    assert [text.get_text() for text in sweep.texts] == ["3.00", "1.25"]
    deadly = plots.seeded_sweep([0.1, 1.0], [[2.0, 4.0], [np.nan, 1.5]], 0.1, "title").axes[0]
    assert [text.get_text() for text in deadly.texts] == ["1 of 2\ndied", "3.00"]
    assert deadly.get_xlim()[1] > 1.0


def test_deaths_are_aligned_at_their_first_nan():
    runs = {"long": [9.0, 8.0, 7.0, np.nan], "short": [1.0, np.nan, np.nan]}
    axes = plots.before_nan(runs, 2, "title").axes[0]
    assert drawn(axes) == [[8.0, 7.0], [1.0]]
    assert [list(line.get_xdata()) for line in axes.get_lines()] == [[-2, -1], [-1]]


def test_magnitudes_beyond_the_limit_have_another_colour():
    gradients = {"small": [0.0, 0.5, 0.5], "large": [0.25, 3.0, 0.25]}
    drawing = plots.magnitudes(gradients, 65_536, 65_504, "title")
    found = []
    for axes in drawing.axes:
        bars = [bar for bar in axes.patches if bar.get_height() > 0]
        found.append({bar.get_facecolor(): round(bar.get_height(), 1) for bar in bars})
    (small, large) = found
    assert list(small.values()) == [66.7]
    assert sorted(large.values()) == [33.3, 66.7]


def test_a_repaired_run_lies_over_the_dead_one():
    dead, scales = [2.0, 7.0, np.nan], [4.0, 4.0, 2.0, 2.0]
    top, bottom = plots.repaired(dead, [2.0, 4.0, 2.0, 2.0], scales, 10, 2, "title").axes
    assert [3.0, 2.0] in drawn(top)
    assert [2.0, 7.0] in drawn(top)
    assert list(top.get_lines()[-1].get_xdata()) == [11]
    assert scales in drawn(bottom)


def test_the_window_map_counts_what_was_never_read():
    drawing = plots.window_map({"twice": [0, 0], "both": [4, 0]}, 8, 4, "title")
    texts = [text.get_text() for axes in drawing.axes for text in axes.texts]
    assert texts == ["never read: 4 of 8", "never read: 0 of 8"]


def test_an_exact_resume_is_drawn_at_zero():
    losses = {"complete": [3.0, 2.0], "wrong": [3.0, 2.5]}
    drawing = plots.divergence(losses, [3.0, 2.0], 20, 1e-7, "title")
    assert [drawn(axes)[-1] for axes in drawing.axes[:2]] == [[3.0, 2.0], [3.0, 2.5]]
    assert [drawn(axes)[0] for axes in drawing.axes[2:]] == [[0.0, 0.0], [0.0, 0.5]]
    colours = {axes.get_lines()[0].get_color() for axes in drawing.axes[2:]}
    assert len(colours) == 2


def test_a_death_is_marked_at_its_step():
    losses, norms = np.full(30, 2.0), np.full(30, 0.5)
    losses[25:], norms[24:] = np.nan, np.inf
    drawing = logs.death(losses, norms, last=10, title="title")
    marks = [axes.get_lines()[-1].get_xdata()[0] for axes in drawing.axes]
    assert marks == [25, 25, 24]
    assert [text.get_text() for axes in drawing.axes for text in axes.texts] == ["nan", "inf"]
