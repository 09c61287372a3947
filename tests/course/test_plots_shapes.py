"""Tensors as grids of cells: every element once, in its place and its colour."""

import pytest
import torch

from cs336_course.drawing import shapes
from cs336_course.drawing.shapes import WHITE, Panel


def test_grids_draw_each_element_once_and_rows_below_each_other():
    for shape in ((4,), (2, 3), (2, 3, 4), (2, 2, 2, 3)):
        values = torch.arange(torch.tensor(shape).prod().item()).reshape(shape)
        axes = shapes.grids(Panel("all", values, "a b c d"[: 2 * len(shape) - 1])).axes[0]
        assert {str(number) for number in range(values.numel())} <= {
            text.get_text() for text in axes.texts
        }
        corners = [cell.get_xy() for cell in axes.patches]
        assert len(set(corners)) == len(corners) == values.numel()  # no cell over another
        if shape == (2, 3):
            assert corners == [(column, row) for row in range(2) for column in range(3)]


def test_grids_colour_by_group():
    groups = torch.tensor([[0, 0], [1, WHITE]])
    axes = shapes.grids(Panel("colours", torch.arange(4).view(2, 2), "row column", groups)).axes[0]
    faces = [cell.get_facecolor()[:3] for cell in axes.patches]
    assert faces[0] == faces[1] != faces[2]
    assert faces[3] == (1.0, 1.0, 1.0)


def test_five_axes_are_refused():
    with pytest.raises(ValueError, match="4 at most"):
        shapes.grids(Panel("too many", torch.zeros(1, 1, 1, 1, 1), "a b c d e"))


def test_text_of_numbers():
    assert shapes.text_of(3.0) == "3"
    assert shapes.text_of(2.25) == "2.2"
