"""The figures of 07_gpt2_model draw what they are given."""

import matplotlib
import numpy as np

matplotlib.use("Agg")


from cs336_course.drawing import gpt2_model as plots


def words(axes) -> list[str]:
    """All the texts in the axes."""
    return [text.get_text() for text in axes.texts]


def test_shares_add_up_to_a_hundred():
    models = {"a": {"x": 1, "y": 3}, "b": {"x": 2, "y": 2}}
    axes = plots.parameter_share(models, "title").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [25, 75, 50, 50]
    assert words(axes) == ["25 %", "75 %", "50 %", "50 %"]


def test_positions_show_the_strongest_direction_above_the_similarities():
    ramp = np.outer([3.0, 1.0, -1.0, -3.0], [0.6, 0.8])
    drawing = plots.positions({"ramp": ramp, "other": -ramp}, "title")
    lines = [axes.lines[0].get_ydata() for axes in drawing.axes[:2]]
    assert np.allclose(lines, [[1, 1 / 3, -1 / 3, -1]] * 2)
    images = [axes.images[0] for axes in drawing.axes if axes.images][:2]
    assert [image.get_clim() for image in images] == [(-1, 1), (-1, 1)]
    assert np.allclose(images[0].get_array()[0], [1, 1, -1, -1])


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


def test_trace_hides_the_future_and_adds_up_the_past():
    q, k, v = np.array([[0.0], [4.0]]), np.array([[0.0], [1.0]]), np.array([[10.0], [0.0]])
    drawing = plots.attention_trace(["a", "b"], q, k, v, "title")
    *_, scores, weights, output = drawing.axes
    assert words(scores) == ["0", "0", "4"]
    assert words(weights) == ["1.00", "0.02", "0.98"]
    assert words(output) == ["10.0", "0.2"]


def test_the_seen_past_is_compared_with_counting():
    (axes,) = plots.seen_past({1: 2.5, 2: 2.0}, 2.4, "title").axes
    assert list(axes.lines[0].get_ydata()) == [2.5, 2.0]
    assert axes.lines[1].get_ydata()[0] == 2.4
    assert words(axes) == ["2.50", "2.00"]


def test_shares_are_drawn_by_depth():
    (axes,) = plots.share_left([3, 6], {"one": [0.5, 0.4], "two": [0.4, 0.1]}, "title").axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[3, 6], [3, 6]]
    assert words(axes) == ["0.4", "0.1"]


def test_variance_starts_at_the_embeddings():
    left, right = plots.stream_variance(
        {"one": [1, 2, 3]}, [6, 12], {"one": [4, 5], "two": [6, 7]}, "title"
    ).axes
    assert list(left.lines[0].get_xdata()) == [0, 1, 2]
    assert [list(line.get_xdata()) for line in right.lines] == [[6, 12], [6, 12]]
    assert [list(line.get_ydata()) for line in right.lines] == [[4, 5], [6, 7]]


def test_what_cannot_be_drawn_gets_a_cross():
    panels = {"all": [0.5, 0.5], "cut": [1.0, 0.0]}
    everything, cut = plots.next_token(panels, ["a", " "], "title").axes
    assert words(everything) == []
    assert words(cut) == ["×"]
    assert cut.texts[0].get_position()[0] == 1
