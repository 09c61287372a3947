"""Inspect the storage of a tensor and the strides of its views."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from cs336_course.engine import Case, function
from cs336_course.engine.observe import Observer
from cs336_course.engine.records import Record


def same_storage(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors share a storage. Their offsets can differ."""
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def storage_values(x: Tensor) -> Shaped[Tensor, " slots"]:
    """Return the whole storage of `x` as a flat tensor with the same dtype.

    The result shares memory with `x`.
    """
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())


def slots(x: Tensor) -> Int[Tensor, "..."]:
    """Return the storage slot of every element of `x`, with the same shape as `x`."""
    numbers = torch.full(x.shape, x.storage_offset(), dtype=torch.long)
    for dim, (size, step) in enumerate(zip(x.shape, x.stride(), strict=True)):
        along = [1] * x.dim()
        along[dim] = size
        numbers += step * torch.arange(size).view(along)
    return numbers


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


def observe_views(name: str) -> Observer:
    """Return the observer of a function whose results are views of the input `name`."""
    observe = function(grad=name)

    def observe_memory(answer: Callable[..., Any], case: Case) -> Record:
        record = observe(answer, case)
        x = case.inputs[name]
        result = answer(*case.inputs.values())
        results = result if isinstance(result, tuple | list) else [result]
        record["memory"] = all(shares_memory(y, x) for y in results if isinstance(y, Tensor))
        return record

    return observe_memory


def shares_memory(view: Tensor, x: Tensor) -> bool:
    """Return whether `view` begins in the memory of `x`, even if NumPy made it."""
    storage = x.untyped_storage()
    return 0 <= view.data_ptr() - storage.data_ptr() < storage.nbytes()
