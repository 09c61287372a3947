"""Inspect the storage of a tensor and the strides of its views."""

import io
import math
import random
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

Shape = tuple[int, ...]


class Run(NamedTuple):
    """Merged adjacent dimensions, with `size` elements at a distance of `step` slots."""

    size: int
    step: int


def same_storage(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors share a storage. Their offsets can differ."""
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def storage_values(x: Tensor) -> Shaped[Tensor, " slots"]:
    """Return the whole storage of `x` as a flat tensor with the same dtype.

    The result shares memory with `x`.
    """
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())


def slot(index: Sequence[int], stride: Sequence[int], offset: int = 0) -> int:
    """Return the storage slot of the element at `index`.

    The slot is the offset plus the sum of index times stride over all dimensions.
    """
    return offset + sum(i * step for i, step in zip(index, stride, strict=True))


def slots(x: Tensor) -> Int[Tensor, "..."]:
    """Return the storage slot of every element of `x`, with the same shape as `x`."""
    numbers = torch.full(x.shape, x.storage_offset(), dtype=torch.long)
    for dim, (size, step) in enumerate(zip(x.shape, x.stride(), strict=True)):
        along = [1] * x.dim()
        along[dim] = size
        numbers += step * torch.arange(size).view(along)
    return numbers


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a row-major tensor, which are products of the sizes to the right."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def is_row_major(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether a tensor is contiguous. Strides of dimensions with size 1 are ignored."""
    expected = zip(shape, stride, row_major_strides(shape), strict=True)
    return 0 in shape or all(size == 1 or have == want for size, have, want in expected)


def merge_dimensions(shape: Sequence[int], stride: Sequence[int]) -> list[Run]:
    """Merge adjacent dimensions whose elements are equally spaced in the storage.

    Dimensions d and d + 1 are merged if `stride[d] == stride[d + 1] * shape[d + 1]`. Dimensions of
    size 1 are omitted.
    """
    runs: list[Run] = []
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size == 1:
            continue
        if runs and step == runs[0].step * runs[0].size:
            runs[0] = Run(size * runs[0].size, runs[0].step)
        else:
            runs.insert(0, Run(size, step))
    return runs


def torch_views(shape: Shape, stride: Shape, new_shape: Shape) -> bool:
    """Return whether `view(new_shape)` works in PyTorch for a tensor with this shape and stride."""
    length = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    try:
        torch.zeros(length).as_strided(shape, stride).view(new_shape)
    except RuntimeError:
        return False
    return True


def view_cases(count: int = 200) -> list[tuple[Shape, Shape, Shape]]:
    """Return test cases of (shape, stride, new_shape). Every call returns the same cases.

    Some cases are chosen by hand, and the rest are generated from a fixed seed.
    """
    cases: list[tuple[Shape, Shape, Shape]] = [
        ((2, 3), (3, 1), (7,)),
        ((6,), (1,), (3,)),
        ((4, 6), (6, 1), (4, 3)),
        ((2, 3), (3, 1), (3, 2)),
        ((3, 2), (1, 3), (6,)),
        ((3, 2), (1, 3), (3, 2, 1)),
        ((4, 4), (6, 1), (4, 2, 2)),
        ((4, 4), (6, 1), (16,)),
        ((2, 3, 2), (12, 4, 2), (6, 2)),
        ((2, 1, 3), (3, 7, 1), (6,)),
        ((5, 4), (0, 1), (5, 2, 2)),
    ]
    draw = random.Random(0)
    while len(cases) < count:
        full = torch.empty([draw.choice((1, 2, 3, 4)) for _ in range(3)], device="meta")
        view = full.permute(draw.sample(range(3), 3))[..., :: draw.choice((1, 2))]
        repeats = [draw.choice((1, 1, 2, 3)) if size == 1 else size for size in view.shape]
        view = view.expand(repeats)  # an expanded dimension of size 1 has stride 0
        sizes = [size for size in view.shape for size in ((2, size // 2) if size == 4 else (size,))]
        draw.shuffle(sizes)
        cut = draw.randrange(1, len(sizes) + 1)
        new_shape = (math.prod(sizes[:cut]), *sizes[cut:])
        cases.append((tuple(view.shape), view.stride(), new_shape))
    return cases


def allocated_bytes(work: Callable[[], object]) -> int:
    """Measure the bytes of CPU memory that `work()` allocates with torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        result = work()
    del result  # kept until here, so that freeing it is not recorded
    return sum(max(0, event.self_cpu_memory_usage) for event in recording.events())


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one CPU thread within this block, so that timings reflect memory access."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def saved_bytes(x: Tensor) -> int:
    """Return the size of the file that torch.save writes."""
    file = io.BytesIO()
    torch.save(x, file)
    return file.tell()


def error_of(work: Callable[[], object]) -> str:
    """Return the message of the error that `work()` raises, wrapped for a slide."""
    try:
        work()
    except (RuntimeError, TypeError, ValueError) as error:
        return textwrap.fill(f"{type(error).__name__}: {error}", 88)
    raise AssertionError("this was expected to fail")


def outcome(line: Callable[[Tensor], Tensor], y: Tensor) -> str:
    """Return whether a line of code runs on `y`, and how many bytes it copies."""
    try:
        return f"runs, and copies {allocated_bytes(lambda: line(y))} bytes"
    except RuntimeError as error:
        return f"raises a {type(error).__name__}"
