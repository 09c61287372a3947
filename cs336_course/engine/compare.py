"""Compare what two answers did, and find the first difference."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cs336_course.engine.records import Record

# Relative and absolute tolerance, for sums in another order
TOLERANCES = {
    torch.float64: (1e-7, 1e-9),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (2e-2, 2e-2),
}
EXACT = 0.0, 0.0
NUMBERS = 1e-6, 1e-12


@dataclass(frozen=True)
class Difference:
    """The first fact in which two records differ.

    Attributes:
        fact: Name of the fact, such as "result".
        kind: What is different: raises, none, type, length, shape, dtype, device, nan or value.
        got: What was observed, in words.
        want: What should have been observed, in words.
        place: Where in a tensor the first wrong number stands, as in " at [0, 1]".
    """

    fact: str
    kind: str
    got: str
    want: str
    place: str = ""


Found = tuple[str, ...]  # kind, got, want, and the place of a number in a tensor


def difference(got: Record, want: Record, tolerance: float = 1.0) -> Difference | None:
    """Return the first difference of two records, or None if they agree.

    Args:
        got: What an answer did.
        want: What the solution does.
        tolerance: Factor on the tolerance of floating-point numbers.
    """
    if "raises" in got or "raises" in want:
        found, wanted = (one.get("raises", {}).get("type", "") for one in (got, want))
        is_alike = ("raises" in got) == ("raises" in want) and found == wanted
        return None if is_alike else Difference("raises", "raises", found, wanted)
    for fact, right in want.items():
        if fact not in got:
            return Difference(fact, "none", "None", kind_of(right))
        if found := differs(got[fact], right, tolerance):
            return Difference(fact, *found)
    for fact, more in got.items():
        if fact not in want:
            return Difference(fact, "value", str(more), "")
    return None


def differs(got: Any, want: Any, tolerance: float) -> Found | None:
    """Return how two plain values differ, or None."""
    if got is None or want is None:
        return None if got is want else ("none", kind_of(got), kind_of(want))
    if isinstance(want, Tensor) and isinstance(got, Tensor):
        return tensors_differ(got, want, tolerance)
    if isinstance(got, Tensor) and isinstance(want, list) and got.ndim > 1:
        got = list(got)  # a tensor unpacks to its parts
    if isinstance(got, Tensor) and is_number(want) and got.numel() == 1 and not got.is_meta:
        got = got.item()
    if is_number(got) and is_number(want):
        return numbers_differ(got, want, tolerance)
    if type(got) is not type(want):
        return "type", kind_of(got), kind_of(want)
    if isinstance(want, list):
        return lists_differ(got, want, tolerance)
    if isinstance(want, dict):
        if got.keys() != want.keys():
            return "value", ", ".join(sorted(got)), ", ".join(sorted(want))
        pairs = ((got[key], right) for key, right in want.items())
        return next((found for pair in pairs if (found := differs(*pair, tolerance))), None)
    return None if got == want else ("value", str(got), str(want))


def lists_differ(got: list[Any], want: list[Any], tolerance: float) -> Found | None:
    """Return how two lists differ, or None."""
    if len(got) != len(want):
        return "length", str(len(got)), str(len(want))
    pairs = zip(got, want, strict=True)
    return next((found for pair in pairs if (found := differs(*pair, tolerance))), None)


def is_number(value: Any) -> bool:
    """Return whether a plain value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def kind_of(value: Any) -> str:
    """Return a plain value's type in a learner's words."""
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return "a tensor"
    if is_number(value):
        return "a number"
    if isinstance(value, str) and value.startswith("<"):
        return value.strip("<>")
    return {bool: "a bool", str: "text", list: "a list or tuple", dict: "a dict"}[type(value)]


def numbers_differ(got: float, want: float, tolerance: float) -> Found | None:
    """Return how two numbers differ, or None. Whole numbers have to be exact."""
    exact = isinstance(want, int) and abs(want) < 2**53
    got, want = as_float(got), as_float(want)
    if math.isnan(got) or math.isnan(want):
        both = math.isnan(got) and math.isnan(want)
        return None if both else ("nan", str(got), shown(want))
    relative, absolute = EXACT if exact else NUMBERS
    if math.isclose(got, want, rel_tol=tolerance * relative, abs_tol=tolerance * absolute):
        return None
    return "value", shown(got), shown(want)


def as_float(number: float) -> float:
    """Return a number as a float. A whole number beyond the largest float is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def tensors_differ(got: Tensor, want: Tensor, tolerance: float) -> Found | None:
    """Return how two tensors differ, or None."""
    if got.shape != want.shape:
        return "shape", str(tuple(got.shape)), str(tuple(want.shape))
    if got.device != want.device:
        return "device", str(got.device), str(want.device)
    if want.is_meta:
        return None
    is_comparable = got.dtype == want.dtype or (
        got.is_floating_point() and want.is_floating_point()
    )
    if is_comparable and (found := values_differ(got, want, tolerance)):
        return found
    if got.dtype != want.dtype:
        return "dtype", *(str(x.dtype).removeprefix("torch.") for x in (got, want))
    return None


def values_differ(got: Tensor, want: Tensor, tolerance: float) -> Found | None:
    """Return how the numbers of two tensors of one shape differ, or None."""
    both = (TOLERANCES.get(dtype, EXACT) for dtype in (got.dtype, want.dtype))
    relative, absolute = max(both)  # that of the coarser dtype
    same = torch.isclose(
        got.to(want.dtype), want, tolerance * relative, tolerance * absolute, equal_nan=True
    )
    if same.all():
        return None
    place = (~same).nonzero()[0].tolist()
    mine, right = (shown(x[tuple(place)].item()) for x in (got, want))
    kind = "nan" if (got.isnan() & ~want.isnan()).any() else "value"
    return kind, mine, right, f" at {place}" if place else ""


def shown(value: float) -> str:
    """Format a whole number with all digits, and any other number with six."""
    is_whole = abs(value) < 1e15 and float(value).is_integer()
    return f"{value:,.0f}" if is_whole else f"{value:,.6g}"
