"""Exercise of the page stride_costs on windows that overlap."""

from collections.abc import Iterator

import torch
from torch import Tensor

from cs336_course.engine import Case, Exercise, normal, sizes
from cs336_course.shared.strided_storage import observe_views

__all__ = ["Tensor"]  # the printed solution uses it
NOTEBOOK = "side_trips/stride_costs"


# im2col


def images() -> Iterator[Case]:
    """Yield images and window sizes.

    Most storages are longer than needed, so that wrong strides get a diagnosis and no index error.
    """
    yield Case("", image=torch.arange(240.0).view(40, 6)[:5], k=3)
    yield Case("a transposed image", image=torch.arange(60.0).view(12, 5)[:6].T, k=3)
    yield Case("a crop", image=torch.arange(80.0).view(8, 10)[2:7, 3:9], k=3)
    for size in sizes(4, k=(1, 4), below=(0, 4), right=(0, 4)):
        height, width = size.k + size.below, size.k + size.right
        yield Case("other sizes", image=normal(2 * height + 2, width)[:height], k=size.k)
    yield Case("every second row", image=normal(9, 14)[1:7:2, ::3], k=2)
    yield Case("an expanded row", image=normal(1, 6).expand(4, 6), k=2)
    yield Case("one window in each row", image=normal(6, 4)[:4], k=4)
    double = torch.arange(160.0).double().view(20, 8)[1:6, 2:7]
    yield Case("a crop in float64", image=double, k=2)


im2col = Exercise(
    NOTEBOOK,
    "im2col",
    images,
    observe=observe_views("image"),
    answers=("windows",),
    axes="(rows, columns, k, k)",
    smaller="Which pixels are result[0, 0, 0, 0] and result[1, 0, 0, 0], and how many slots apart "
    "are they?",
    says={
        "memory": "the windows are right, but they are a copy; as_strided (or Tensor.unfold) gives "
        "them as a view.",
    },
    wrong={
        "the last two dimensions belong to the pixels of a window; yours are the windows.": (
            ("right))", "right)).permute(2, 3, 0, 1)")
        ),
        "your windows are tiles that jump by k; the next window should start one pixel further.": [
            ("(down, right, down, right)", "(down * k, right * k, down, right)"),
            lambda image, k: image.unfold(0, k, k).unfold(1, k, k),
        ],
        "rows and columns are swapped: a step down in the image goes with dimensions 0 and 2, a "
        "step right with 1 and 3.": ("(down, right, down, right)", "(right, down, right, down)"),
        "each window is transposed; a step in dimension 2 goes down in the image.": (
            ("(down, right, down, right)", "(down, right, right, down)")
        ),
        "right for a fresh image, wrong for a view of one, whose strides aren't (width, 1); read "
        "image.stride().": ("down, right = image.stride()", "down, right = width, 1"),
        "your strides count bytes, as in NumPy; torch counts elements.": (
            ("image.stride()", "(image.element_size() * step for step in image.stride())")
        ),
        "wrong for a crop: its first pixel is not in slot 0. as_strided's storage_offset counts "
        "elements from the storage's start; leave it out to keep the image's own.": [
            ("right))", "right), 0)"),
            ("right))", "right), (image.data_ptr() - image.untyped_storage().data_ptr()) // 4)"),
        ],
        "the windows are a view for a fresh image, but a copy for a transpose or a crop: something "
        "copies the image first. Leave out contiguous, reshape and clone, and read "
        "image.stride().": ("height, width", "image = image.contiguous()\n    height, width"),
        "the values are right, but the gradient of image isn't: the windows reach beyond the slice "
        "that you call as_strided on, and autograd doesn't see that; call it on the whole image.": [
            ("image.as_strided", "image[:k, :k].as_strided"),
            ("image.as_strided", "image[0].as_strided"),
        ],
    },
)
