"""Slots, runs and the drawing of a storage, against torch itself."""

import torch

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
