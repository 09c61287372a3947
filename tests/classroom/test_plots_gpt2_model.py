"""The figures of 07_gpt2_model draw what they are given."""

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from cs336_lib.classroom.plots import gpt2_model as plots


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def words(axes) -> list[str]:
    """All the texts in the axes."""
    return [text.get_text() for text in axes.texts]


def test_shares_add_up_to_a_hundred():
    models = {"a": {"x": 1, "y": 3}, "b": {"x": 2, "y": 2}}
    axes = plots.parameter_share(models, "title").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [25, 75, 50, 50]
    assert words(axes) == ["25 %", "75 %", "50 %", "50 %"]


def test_position_curves_draw_the_columns_asked_for():
    table = np.arange(12.0).reshape(4, 3)
    drawing = plots.position_curves({"t": table}, {"t": [2, 0]}, "title")
    lines = drawing.axes[0].lines
    assert [line.get_ydata().tolist() for line in lines] == [[2, 5, 8, 11], [0, 3, 6, 9]]
    assert [line.get_label() for line in lines] == ["dim 2", "dim 0"]


def test_similarities_share_one_scale():
    drawing = plots.position_similarity({"a": np.eye(3), "b": -np.eye(3)}, "title")
    images = [axes.images[0] for axes in drawing.axes[:2]]
    assert [image.get_clim() for image in images] == [(-1, 1), (-1, 1)]
    assert np.array_equal(images[1].get_array(), -np.eye(3))


def test_activations_have_a_panel_for_slopes():
    x = np.linspace(-1, 1, 5)
    left, right = plots.activations(x, {"f": x**2}, {"f": 2 * x}, "title").axes
    assert np.array_equal(left.lines[0].get_ydata(), x**2)
    assert np.array_equal(right.lines[0].get_ydata(), 2 * x)


def test_a_map_for_each_head():
    for heads, panels in ((1, 1), (3, 3), (4, 6)):
        patterns = np.tile(np.tril(np.ones((3, 3))), (heads, 1, 1))
        drawing = plots.attention_heads(patterns, "a \n", "title")
        maps = [axes for axes in drawing.axes if axes.images]
        assert len(drawing.axes) == panels + 1  # and the colour bar
        assert len(maps) == heads
        assert [tick.get_text() for tick in maps[0].get_xticklabels()] == ["a", "·", "↵"]


def test_head_scores_write_each_number():
    scores = np.array([[0.1, 0.9], [0.25, 1.0]])
    axes = plots.head_scores(scores, "title", "weight").axes[0]
    assert words(axes) == ["0.10", "0.90", "0.25", "1.00"]


def test_depth_starts_at_the_embeddings():
    axes = plots.by_depth({"one": [1, 2, 3]}, "title", "block", "variance").axes[0]
    assert axes.lines[0].get_xdata().tolist() == [0, 1, 2]
    assert axes.get_legend() is None  # a single curve needs none


def test_stream_marks_guessing():
    sizes = {"attention": [1, 2], "MLP": [3, 4]}
    left, right = plots.stream(sizes, [5, 3, 2], 4.1, "title").axes
    assert [bar.get_height() for bar in left.patches] == [1, 2, 3, 4]
    assert right.lines[0].get_ydata().tolist() == [5, 3, 2]
    assert right.lines[1].get_ydata()[0] == 4.1


def test_what_cannot_be_drawn_gets_a_cross():
    panels = {"all": [0.5, 0.5], "cut": [1.0, 0.0]}
    everything, cut = plots.next_token(panels, ["a", " "], "title").axes
    assert words(everything) == []
    assert words(cut) == ["×"]
    assert cut.texts[0].get_position()[0] == 1


def test_token_times_are_smoothed_by_medians():
    times = [1.0] * 10 + [100.0] + [1.0] * 10  # a hiccup of the machine
    axes = plots.token_times({"cache": times}, 1, "title").axes[0]
    raw, smooth = axes.lines
    assert max(raw.get_ydata()) == 100
    assert max(smooth.get_ydata()) == 1
    assert smooth.get_xdata()[0] == 1
