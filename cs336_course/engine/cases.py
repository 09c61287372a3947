"""The inputs of exercises, which are the same in every run."""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

# Settings of the observer of modules, which mean nothing to a learner
SETTINGS = {"gradients", "on_other_device"}


class Case:
    """Inputs on which an answer is observed.

    Args:
        what: Describes the inputs, as in "a single query". It is empty for the first case, in which
            a learner meets the typical mistakes.
        inputs: The arguments of the answer by name, in their order.

    Example:
        >>> Case("one head", q=normal(2, 3, 1, 4), k=normal(2, 5, 1, 4, seed=1))
    """

    def __init__(self, what: str = "", /, **inputs: Any):
        self.what, self.inputs = what, inputs

    def described(self) -> str:
        """Return the inputs in words, with the shapes of tensors and the values of numbers."""
        shown = []
        for name, value in self.inputs.items():
            if name in SETTINGS and not isinstance(value, Tensor):
                continue
            if isinstance(value, Tensor):
                shown.append(f"{name} {tuple(value.shape)}")
            elif isinstance(value, dict) and not value:
                continue
            elif (
                isinstance(value, int | float | str | tuple | list | dict) and len(str(value)) < 40
            ):
                shown.append(f"{name}={value}")
        inputs = ", ".join(shown)
        return f"{self.what} ({inputs})" if self.what and inputs else self.what or inputs


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return standard normal numbers on the CPU. Every call returns the same numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sizes(count: int, seed: int = 0, **bounds: tuple[int, int]) -> Iterator[SimpleNamespace]:
    """Draw sizes from their bounds.

    Example:
        >>> for size in sizes(3, batch=(1, 4), seq=(2, 9)):
        ...     x = normal(size.batch, size.seq)
    """
    drawn = random.Random(seed)
    for _ in range(count):
        yield SimpleNamespace(**{name: drawn.randint(*bound) for name, bound in bounds.items()})
