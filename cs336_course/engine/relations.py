"""Say how a wrong result relates to the right one: the mistakes that every exercise shares.

An answer may be the right result, changed (transposed, scaled, summed), or the right function of
changed inputs (a mask inverted, two arguments swapped, an argument ignored). Both are tried here,
so an exercise lists only the ideas that are its own. A relation has to hold in every case.
"""

import ast
import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from cs336_course.engine.cases import Case
from cs336_course.engine.compare import as_float
from cs336_course.engine.records import Record, plain

Sizes = Mapping[str, float]
"""The sizes of the inputs' named axes, and the inputs that are numbers."""
Change = Callable[[Tensor, Sizes], Tensor]
Inputs = dict[str, Any]
Alter = Callable[[Inputs], Inputs]

POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "the sign is wrong.": torch.neg,
    "negative numbers are missing; keep them.": torch.relu,
    "that is the size without the sign.": torch.abs,
    "that is the square of the right result.": torch.square,
    "that is the square root of the right result.": torch.sqrt,
    "that is exp of the right result.": torch.exp,
    "that is the logarithm of the right result.": torch.log,
    "that is one over the right result.": torch.reciprocal,
    "the fractions are dropped; keep them.": torch.floor,
    "your numbers are rounded to whole ones.": torch.round,
    "axes of size 1 have to stay.": torch.squeeze,
}
SHORT = (8, 64, 128, 256, 512, 1024, 2048)  # lengths that code may have been written for
MOST_AXES = 4  # the orders of five are too many


def axes_in(solution: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the names of the axes of each argument and of the result, from a solution's types."""
    function = ast.parse(solution).body[-1]
    if not isinstance(function, ast.FunctionDef):
        return {}, []
    arguments = {arg.arg: axes_of(arg.annotation) for arg in function.args.args}
    return arguments, axes_of(function.returns)


def axes_of(annotation: ast.expr | None) -> list[str]:
    """Return the names of the axes in a type such as Float[Tensor, "batch head dim"]."""
    text = ast.unparse(annotation) if annotation else ""
    found = re.search(r"\[Tensor, '([\w ]*)'\]", text)
    return found[1].split() if found else []


def related(
    got: Sequence[Record], want: Sequence[Record], cases: Sequence[Case], code: str, solution: Any
) -> str:
    """Return how an answer's results relate to the right ones in all cases, or "".

    Args:
        got: Records of the answer.
        want: Records of the solution.
        cases: The cases.
        code: Code of the solution, whose types name the axes.
        solution: The solution itself.
    """
    names, axes = axes_in(code)
    every = [
        Pair(as_tensor(mine.get("result")), as_tensor(right.get("result")), case, names)
        for mine, right, case in zip(got, want, cases, strict=True)
    ]
    wrong = next((pair for pair in every if not pair.is_close), None)
    if any(pair.mine is None or pair.right is None for pair in every) or wrong is None:
        return ""
    if not wrong.right.is_floating_point() or wrong.right.is_meta:
        return ""
    tried = [wrong, *(pair for pair in every if pair is not wrong)]  # most end at the first
    axes = axes if wrong.right.ndim == len(axes) <= MOST_AXES else []
    for said, change in changed_results(axes, wrong.sizes):
        if all(agrees(pair.mine, change, pair.right.double(), pair.sizes) for pair in tried):
            return said
    if isinstance(solution, FunctionType):
        for said, alter in changed_inputs(cases[0]):
            if all(agrees(pair.mine, called, solution, pair.case, alter) for pair in tried):
                return said
    return by_numbers(tried)


class Pair:
    """What an answer and the solution return in a case.

    Attributes:
        mine: The answer's result.
        right: The right result.
        case: The inputs.
        sizes: The sizes of the inputs' axes, and the inputs that are numbers.
        is_close: Whether both results are equal up to rounding.
    """

    def __init__(self, mine: Any, right: Any, case: Case, names: Mapping[str, Sequence[str]]):
        self.mine, self.right, self.case = mine, right, case
        self.sizes = sizes_of(case, names)
        self.is_close = mine is not None and right is not None and close(mine, right)


def sizes_of(case: Case, names: Mapping[str, Sequence[str]]) -> Sizes:
    """Return the sizes of all named axes of a case, and its numbers."""
    found: dict[str, float] = {}
    for name, value in case.inputs.items():
        if isinstance(value, Tensor) and len(names.get(name, ())) == value.ndim:
            found |= zip(names[name], value.shape, strict=True)
        elif type(value) in (int, float) and value > 0:
            found[name] = value
    return found


# The right result, changed


def changed_results(axes: Sequence[str], sizes: Sizes) -> Iterator[tuple[str, Change]]:
    """Yield sentences for a learner, each with how it changes a right result."""
    for said, change in POINTWISE.items():
        yield said, lambda right, _, change=change: change(right)
    yield from orders(axes)
    for n, axis in enumerate(axes):
        yield f"the {axis} axis is summed up; keep it.", lambda right, _, n=n: right.sum(n)
        yield f"you take the mean over {axis}; keep that axis.", lambda right, _, n=n: right.mean(n)
        yield f"only the first {axis} is there.", lambda right, _, n=n: right.select(n, 0)
        yield f"the order along {axis} is reversed.", lambda right, _, n=n: right.flip(n)
        for step in (1, -1):
            said = f"your numbers are shifted by one along {axis}."
            yield said, lambda right, _, n=n, step=step: right.roll(step, n)
    yield from scales(axes, sizes)
    if len(axes) > 1:
        yield "what is right of the diagonal is 0; keep it.", lambda right, _: right.tril()
        said = "what is right of the diagonal is -inf; keep it."
        yield said, lambda right, _: right.tril() + torch.full_like(right, -torch.inf).triu(1)


def orders(axes: Sequence[str]) -> Iterator[tuple[str, Change]]:
    """Yield every wrong order of the axes."""
    right_order = tuple(range(len(axes)))
    for order in permutations(right_order):
        if order != right_order:
            named = " ".join(axes[n] for n in order)
            said = f"your axes are in the order {named}; it should be {' '.join(axes)}."
            yield said, lambda right, _, order=order: right.permute(order)


def scales(axes: Sequence[str], sizes: Sizes) -> Iterator[tuple[str, Change]]:
    """Yield factors that are sizes or their roots, and a softmax over an axis, scaled or not."""
    powers = [(name, power) for name in sizes for power in (1, 0.5, -0.5, -1)]
    for name, power in powers:
        verb = "multiplied" if power > 0 else "divided"
        what = name if abs(power) == 1 else f"the root of {name}"
        said = f"your numbers are {verb} by {what}; the right ones aren't."
        yield said, lambda right, at, name=name, power=power: right * at[name] ** power
    for n, axis in enumerate(axes):
        for name, power in [("", 0), *powers]:
            said = f"you apply a softmax over {axis}; the task doesn't ask for one."

            def softmax(right: Tensor, at: Sizes, n: int = n, by: Any = (name, power)) -> Tensor:
                return (right * at.get(by[0], 1) ** by[1]).softmax(n)

            yield said, softmax


# The right function of changed inputs


def changed_inputs(first: Case) -> Iterator[tuple[str, Alter]]:
    """Yield sentences for a learner, each with how it changes the inputs of the right function."""
    for name, value in first.inputs.items():
        if type(value) is int:
            said = f"{name} has no effect; your code works for {name}={value} only."
            yield said, changed(name, lambda _, value=value: value)
        elif isinstance(value, Tensor):
            yield from changed_tensors(name, first)
    for length in SHORT:
        said = f"your code uses at most {length} of what it gets."
        yield said, lambda inputs, length=length: {n: cut(x, length) for n, x in inputs.items()}
    for dtype in (torch.float16, torch.bfloat16):
        said = "your numbers are rounded to 16 bits on the way; compute in the inputs' dtype."
        yield said, lambda inputs, dtype=dtype: {n: rounded(x, dtype) for n, x in inputs.items()}


def changed_tensors(name: str, first: Case) -> Iterator[tuple[str, Alter]]:
    """Yield what may be wrong with the use of an input that is a tensor."""
    value = first.inputs[name]
    if value.dtype == torch.bool:
        yield f"{name} has no effect.", changed(name, torch.ones_like)
        yield (
            f"you use {name} the other way round: True and False.",
            changed(name, torch.logical_not),
        )
    if value.ndim > 1:
        said = f"you use the first row of {name} for all rows."
        yield said, changed(name, lambda x: x[:1].expand_as(x))
        for n in range(value.ndim - 1):
            said = f"you reshape {name} where its axes must change places."
            yield said, changed(name, lambda x, n=n: reread(x, n))
    for other, theirs in first.inputs.items():
        if other == name or not isinstance(theirs, Tensor) or theirs.dtype != value.dtype:
            continue
        said = f"you use {other} where {name} belongs."
        yield said, lambda inputs, other=other: inputs | {name: inputs[other]}
        if other > name:
            said = f"{name} and {other} are swapped."
            yield said, lambda inputs, other=other: swapped(inputs, name, other)


def changed(name: str, change: Callable[[Any], Any]) -> Alter:
    """Return how to change one input."""
    return lambda inputs: inputs | {name: change(inputs[name])}


def swapped(inputs: Inputs, one: str, other: str) -> Inputs:
    """Return the inputs with two of them in each other's place."""
    return inputs | {one: inputs[other], other: inputs[one]}


def reread(x: Tensor, n: int) -> Tensor:
    """Read the elements as if axes n and n + 1 were stored in the other order."""
    shape = list(x.shape)
    shape[n], shape[n + 1] = shape[n + 1], shape[n]
    return x.reshape(shape).transpose(n, n + 1)


def cut(x: Any, length: int) -> Any:
    """Return at most `length` entries along the second axis of a tensor."""
    return x[:, :length] if isinstance(x, Tensor) and x.ndim > 1 else x


def rounded(x: Any, dtype: torch.dtype) -> Any:
    """Return a floating-point tensor with the values that another dtype has."""
    is_float = isinstance(x, Tensor) and x.is_floating_point()
    return x.to(dtype).to(x.dtype) if is_float else x


def called(solution: Callable[..., Any], case: Case, alter: Alter) -> Any:
    """Return what the solution returns for changed inputs."""
    return plain(solution(*alter(copy.deepcopy(case.inputs)).values()))


# Numbers


def by_numbers(pairs: Sequence[Pair]) -> str:
    """Return whether all numbers differ by one factor, or only by their places, or ""."""
    factor = ratio(pairs[0])
    if factor and all(close(p.mine, p.right * factor) for p in pairs):
        return f"your numbers are {factor:.4g} times the right ones."
    if all(same_numbers(p.mine, p.right) for p in pairs):
        return (
            "those are the right numbers in the wrong places. Do the axes stand where they belong "
            "before you reshape?"
        )
    return ""


def as_tensor(value: Any) -> Tensor | None:
    """Return a number or tensor of a record as a tensor, and None for anything else."""
    if isinstance(value, Tensor):
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return torch.tensor(as_float(value), dtype=torch.float64) if is_number else None


def agrees(mine: Tensor, make: Callable[..., Any], *args: Any) -> bool:
    """Return whether a result equals another one, which `make` may not be able to make."""
    try:
        found = as_tensor(make(*args))
    except Exception:  # a change may make no sense for a result, or for the solution
        return False
    return found is not None and close(mine, found)


def close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have equal shapes, and equal numbers up to their precision."""
    if one.shape != other.shape or one.is_meta or other.is_meta:
        return False
    is_short = min(one.element_size(), other.element_size()) < 4
    relative, absolute = (2e-2, 2e-2) if is_short else (1e-4, 1e-5 if one.ndim else 0.0)
    return torch.allclose(one.double(), other.double(), relative, absolute, equal_nan=True)


def ratio(pair: Pair) -> float | None:
    """Return the factor between an answer's result and the right one, or None."""
    if pair.mine.shape != pair.right.shape or not pair.right.any():
        return None
    place = pair.right.abs().argmax()
    found = (pair.mine.flatten()[place] / pair.right.flatten()[place]).item()
    return found if found not in (0, 1) and abs(found) < torch.inf else None


def same_numbers(mine: Tensor, right: Tensor) -> bool:
    """Return whether two tensors of one shape hold the same numbers, in any order."""
    if mine.shape != right.shape:
        return False
    mine, right = (x.flatten().double().sort()[0] for x in (mine, right))
    return close(mine, right)
