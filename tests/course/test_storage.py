"""The slot formula, the view rule and the drawings, against torch itself."""

import matplotlib.pyplot as plt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from cs336_course.drawing import storage as plots
from cs336_course.shared import strided_storage
from cs336_course.shared.strided_storage import torch_views, view_cases


@pytest.fixture
def x():
    return torch.arange(24.0).view(2, 3, 4)


def awkward_views(x):
    return [
        *(x, x[1], x[:, 2], x[..., ::2], x.transpose(0, 2), x[1, 1:, 3], x[:, None]),
        *(x[:, :1].expand(2, 5, 4), x[1, 2, 3], x[:0], x.as_strided((4, 3), (1, 1), 5)),
    ]


def test_same_storage_follows_views_and_not_copies(x):
    assert all(strided_storage.same_storage(x, view) for view in awkward_views(x))
    assert not strided_storage.same_storage(x, x.clone())
    assert not strided_storage.same_storage(x, x.transpose(0, 1).contiguous())


def test_storage_values_shows_what_a_view_hides_and_shares_it(x):
    flat = strided_storage.storage_values(x[1, 1:, 3])
    assert flat.tolist() == list(range(24))
    flat[0] = 99
    assert x[0, 0, 0] == 99


def test_storage_values_keeps_the_dtype():
    assert strided_storage.storage_values(torch.ones(3, dtype=torch.int16)[1:]).dtype == torch.int16


def test_slots_and_slot_find_every_element(x):
    flat = strided_storage.storage_values(x)
    for view in awkward_views(x):
        numbers = strided_storage.slots(view)
        assert numbers.shape == view.shape
        assert torch.equal(flat[numbers], view)
        for index in torch.ones(view.shape).nonzero().tolist():
            where = strided_storage.slot(index, view.stride(), view.storage_offset())
            assert where == numbers[tuple(index)]


def test_slot_refuses_an_index_of_the_wrong_length():
    with pytest.raises(ValueError, match="longer"):
        strided_storage.slot((1,), (4, 1))


@given(st.lists(st.integers(1, 5), max_size=4))
def test_row_major_strides_are_those_of_a_fresh_tensor(shape):
    assert strided_storage.row_major_strides(shape) == torch.empty(shape).stride()


def test_is_row_major_agrees_with_is_contiguous(x):
    odd = [torch.zeros(3).as_strided((3, 1), (1, 77)), torch.zeros(0, 3).T, torch.zeros(())]
    for view in [*awkward_views(x), *odd]:
        assert strided_storage.is_row_major(view.shape, view.stride()) == view.is_contiguous()


def test_merge_dimensions():
    assert strided_storage.merge_dimensions((2, 3, 4), (12, 4, 1)) == [(24, 1)]
    assert strided_storage.merge_dimensions((4, 3), (6, 2)) == [(12, 2)]
    assert strided_storage.merge_dimensions((4, 4), (6, 1)) == [(4, 6), (4, 1)]
    assert strided_storage.merge_dimensions((2, 1, 3), (3, 7, 1)) == [(6, 1)]
    assert (
        strided_storage.merge_dimensions((1, 1), (5, 5))
        == strided_storage.merge_dimensions((), ())
        == []
    )


def test_view_cases_hold_enough_of_both_kinds():
    verdicts = [torch_views(*case) for case in view_cases()]
    assert len(verdicts) == 200
    assert 50 < sum(verdicts) < 150


def test_view_cases_hold_strides_of_zero_and_sizes_of_one():
    repeated = [case for case in view_cases() if 0 in case[1]]
    assert len(repeated) >= 20
    assert 5 <= sum(torch_views(*case) for case in repeated) <= len(repeated) - 5
    assert sum(1 in shape for shape, _, _ in view_cases()) >= 20


def test_allocated_bytes_counts_results_and_not_views():
    x = torch.ones(64, 32)
    assert strided_storage.allocated_bytes(lambda: x.T) == 0
    assert strided_storage.allocated_bytes(lambda: x.T + x.T) == 64 * 32 * 4
    assert strided_storage.allocated_bytes(lambda: x.T.contiguous()) >= 64 * 32 * 4


def test_outcome_counts_the_copy_or_names_the_error():
    y = torch.ones(4, 6).T
    assert strided_storage.outcome(lambda y: y.view(24), y) == "raises a RuntimeError"
    assert strided_storage.outcome(lambda y: y.reshape(24), y) == "runs, and copies 96 bytes"
    assert strided_storage.outcome(lambda y: y.T.view(24), y) == "runs, and copies 0 bytes"


def test_a_view_is_saved_with_its_whole_storage():
    x = torch.zeros(10_000)
    assert strided_storage.saved_bytes(x[:1]) > 40_000 > strided_storage.saved_bytes(x[:1].clone())


def test_error_of_refuses_work_that_succeeds():
    assert strided_storage.error_of(lambda: torch.ones(2).view(3)).startswith("RuntimeError: ")
    with pytest.raises(AssertionError, match="expected to fail"):
        strided_storage.error_of(lambda: 1)


def test_one_thread_gives_the_threads_back_even_after_an_error():
    def fail_inside():
        with strided_storage.one_thread():
            assert torch.get_num_threads() == 1
            raise ValueError("stop")

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="stop"):
            fail_inside()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


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


def test_a_layout_names_the_step_of_each_dimension():
    x = torch.arange(6.0).view(2, 3)
    drawing = plots.memory_layout(
        strided_storage.storage_values(x), strided_storage.slots(x), "layout"
    )
    words = {text.get_text() for text in drawing.axes[0].texts}
    plt.close(drawing)
    assert {"one row down (dim 0): +3 slots", "one column right (dim 1): +1 slot"} <= words


def test_the_figures_draw():
    x = torch.arange(6.0).view(2, 3)
    flat = strided_storage.storage_values(x)
    for view in (x, x.T, x[:1], x[:, :1].expand(2, 3), x[1:, 1:]):
        plots.memory_layout(flat, strided_storage.slots(view), "layout")
    plots.view_gallery(
        flat, {"row": strided_storage.slots(x[0]), "x.T": strided_storage.slots(x.T)}, "gallery"
    )
    bars = plots.step_bars([1, 16], [0.1, 2.0], 16)
    assert bars.axes[0].get_ylabel() == "time per number [ns]"
    bars = plots.time_bars({"one": 1.0, "other": 2.0}, "times")
    assert bars.axes[0].get_xlabel() == "time [ms]"
    assert [text.get_text() for text in bars.axes[0].texts] == [
        "1 ms, the fastest",
        "2 ms, 2 times as long",
    ]
    bars = plots.width_bars({1000: (0.3, 0.7), 1024: (0.3, 6.4)}, "widths")
    assert [text.get_text() for text in bars.axes[0].texts] == ["0.3", "0.3", "0.7", "6.4"]
    square = torch.ones(3, 3, dtype=torch.bool)
    drawn = plots.masks({"tril": square.tril(), "triu": square.triu()}, "True", "False")
    assert len(drawn.axes) == 2
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()


def test_the_cover_counts_the_sets_that_a_column_uses():
    plots.cover()
    counted = [axes.get_xlabel() for axes in plt.gcf().axes]
    assert counted == ["32 of 2,048 sets hold the column", "1,024 of 2,048 sets hold the column"]
