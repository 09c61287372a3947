"""The figures of 03_einops draw what they are given: every cell, its number and its colour."""

import matplotlib
import pytest
import torch

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

from cs336_course.drawing import shapes
from cs336_course.drawing.shapes import WHITE, Panel


def cells(axes) -> list[Rectangle]:
    """The rectangles drawn in reading order of the drawing loop."""
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def words(axes) -> list[str]:
    """All the texts in the axes."""
    return [text.get_text() for text in axes.texts]


def test_grids_draw_each_element_once():
    for shape in ((4,), (2, 3), (2, 3, 4), (2, 2, 2, 3)):
        values = torch.arange(torch.tensor(shape).prod().item()).reshape(shape)
        drawing = shapes.grids(Panel("all", values, "a b c d"[: 2 * len(shape) - 1]))
        axes = drawing.axes[0]
        assert len(cells(axes)) == values.numel()
        assert {str(number) for number in range(values.numel())} <= set(words(axes))
        corners = {patch.get_xy() for patch in cells(axes)}
        assert len(corners) == values.numel()  # no cell over another


def test_grids_colour_by_group():
    values = torch.arange(4).reshape(2, 2)
    groups = torch.tensor([[0, 0], [1, WHITE]])
    axes = shapes.grids(Panel("colours", values, "row column", groups)).axes[0]
    faces = [patch.get_facecolor()[:3] for patch in cells(axes)]
    assert faces[0] == faces[1] != faces[2]
    assert faces[3] == (1.0, 1.0, 1.0)


def test_grids_place_rows_below_each_other():
    axes = shapes.grids(Panel("place", torch.arange(6).reshape(2, 3), "row column")).axes[0]
    assert [patch.get_xy() for patch in cells(axes)] == [
        (column, row) for row in range(2) for column in range(3)
    ]


def test_five_axes_are_refused():
    with pytest.raises(ValueError, match="4 at most"):
        shapes.grids(Panel("too many", torch.zeros(1, 1, 1, 1, 1), "a b c d e"))


def test_text_of_numbers():
    assert shapes.text_of(3.0) == "3"
    assert shapes.text_of(2.25) == "2.2"


def test_before_and_after_has_a_colour_for_each_first_index():
    drawing = shapes.before_and_after(torch.arange(16).view(4, 4), "(h a) w -> a h w", a=2)
    before, after = (
        {
            text.get_text(): patch.get_facecolor()
            for text, patch in zip(axes.texts, cells(axes), strict=False)
        }
        for axes in drawing.axes
    )
    assert all(before[str(n)] == after[str(n)] for n in range(16))
    assert before["0"] == before["8"] != before["4"] == before["12"]
    assert [axes.get_title("left") for axes in drawing.axes] == ["(h a) w", "-> a h w"]


def test_attention_maps_have_the_letters_and_leave_the_future_white():
    weights = torch.softmax(torch.zeros(2, 3, 3), -1).tril()
    drawing = shapes.attention_maps({"one": weights[0], "two": weights[1]}, "a b", columns=2)
    image = drawing.axes[0].images[0]
    colours = image.to_rgba(image.get_array())
    assert tuple(colours[0, 2][:3]) == (1.0, 1.0, 1.0)
    assert tuple(colours[2, 0][:3]) != (1.0, 1.0, 1.0)
    assert drawing.axes[1].get_xlabel() == "key"
    assert [tick.get_text() for tick in drawing.axes[1].get_xticklabels()] == ["a", "␣", "b"]


def test_letters_are_images_on_a_light_background():
    images = shapes.letters("ei", size=32)
    assert images.shape == (2, 32, 32, 3)
    assert 0 <= images.min() < 0.5 < images.max() <= 1
    assert images[:, 0, 0].min() >= 0.49  # a corner belongs to the background
    assert not torch.equal(images[0], images[1])


def test_pictures_have_their_pattern_and_shape():
    drawing = shapes.pictures({"h w c": torch.zeros(2, 3, 3), "w h c": torch.ones(3, 2, 3)})
    assert [axes.get_title("left") for axes in drawing.axes] == ["h w c", "w h c"]
    assert [axes.get_xlabel() for axes in drawing.axes] == ["2 x 3 x 3", "3 x 2 x 3"]


def test_pieces_are_drawn_apart_and_the_caption_is_the_true_shape():
    drawing = shapes.pictures({"row": torch.zeros(2, 6, 3)}, pieces={"row": 3})
    shown = drawing.axes[0].images[0].get_array()
    assert shown[0, :, 0].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert drawing.axes[0].get_xlabel() == "2 x 6 x 3"


def test_the_cover_marks_the_dimension_that_is_second_to_last():
    shapes.cover()
    marked = [text.get_text() for text in plt.gca().texts if text.get_fontweight() == "bold"]
    assert marked == ["seq", "head"]
