"""Slots, runs and the drawing of a storage, against torch itself."""

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from cs336_course.drawing import storage as plots
from cs336_course.shared import strided_storage


def awkward_views(x):
    return [
        *(x, x[1], x[:, 2], x[..., ::2], x.transpose(0, 2), x[1, 1:, 3], x[:, None]),
        *(x[:, :1].expand(2, 5, 4), x[1, 2, 3], x[:0], x.as_strided((4, 3), (1, 1), 5)),
    ]


def test_slots_find_every_element_of_a_view_in_the_storage_that_it_shares():
    x = torch.arange(24.0).view(2, 3, 4)
    for view in awkward_views(x):
        assert strided_storage.same_storage(x, view)
        assert torch.equal(strided_storage.storage_values(view)[strided_storage.slots(view)], view)
    assert not strided_storage.same_storage(x, x.clone())
    strided_storage.storage_values(x[1, 1:, 3])[0] = 99
    assert x[0, 0, 0] == 99


def test_merge_dimensions():
    assert strided_storage.merge_dimensions((2, 3, 4), (12, 4, 1)) == [(24, 1)]
    assert strided_storage.merge_dimensions((4, 4), (6, 1)) == [(4, 6), (4, 1)]
    assert strided_storage.merge_dimensions((2, 1, 3), (3, 7, 1)) == [(6, 1)]
    assert strided_storage.merge_dimensions((), ()) == []


def test_a_layout_keeps_the_arcs_under_the_storage_clear_of_the_view():
    x = torch.arange(12.0).view(3, 4).T
    drawing = plots.memory_layout(
        strided_storage.storage_values(x), strided_storage.slots(x), "layout"
    )
    drawing.canvas.draw()
    arrows = [p for p in drawing.axes[0].patches if isinstance(p, FancyArrowPatch)]
    black = [a.get_window_extent() for a in arrows if to_hex(a.get_edgecolor()) == "#000000"]
    *arcs, beside_the_view = sorted(black, key=lambda box: -box.y1)
    plt.close(drawing)
    assert len(arcs) == 2
    assert min(arc.y0 for arc in arcs) > beside_the_view.y1
