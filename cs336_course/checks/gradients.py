"""Compare the gradients of an answer with those of a right one."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cs336_course.checks.parts import expect_gradients
from cs336_course.checks.report import expect

LOST = "the numbers are right, but the gradient is lost"
DETACHED = (
    f"{LOST}, so no weight before it could learn. Is something detached, computed under no_grad, "
    "or turned into Python's numbers or a new tensor?"
)
ERRORS = {
    "numpy()": f"{LOST}, because NumPy doesn't record operations. Use torch's functions.",
    "out=...": f"{LOST}, because a function with out=... isn't recorded. Use what it returns.",
}


def with_gradient(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of the inputs; those of floating-point numbers require a gradient."""
    copies = {name: x.detach().clone() for name, x in inputs.items()}
    return {name: x.requires_grad_(x.is_floating_point()) for name, x in copies.items()}


def expect_same_gradients(
    answer: Callable[..., Any],
    right: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    *others: Any,
) -> None:
    """Fail unless gradients flow through an answer whose values are known to be right.

    Args:
        answer: The learner's function.
        right: A right function, which returns as many tensors.
        inputs: Tensors by name, in the order of the arguments.
        others: Arguments that follow the tensors.
    """
    mine, theirs = with_gradient(inputs), with_gradient(inputs)
    with torch.enable_grad():
        try:
            got = answer(*mine.values(), *others)
        except RuntimeError as error:
            for words, diagnosis in ERRORS.items():
                expect(words not in str(error), diagnosis)
            raise
        want = right(*theirs.values(), *others)
        several = isinstance(want, tuple | list)
        found, wanted = (list(each) if several else [each] for each in (got, want))
        expect(all(isinstance(x, Tensor) and x.requires_grad for x in found), DETACHED)
        got, want = (torch.cat([x.flatten() for x in each]) for each in (found, wanted))
    pairs = {name: (x, theirs[name]) for name, x in mine.items() if x.requires_grad}
    expect_gradients(pairs, got.to(want.dtype), want)
