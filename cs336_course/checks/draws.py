"""Draw the inputs of the checks, which are the same in every run."""

import random
from collections.abc import Iterator
from types import SimpleNamespace

import torch
from torch import Tensor


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return standard normal numbers on the CPU. Every call returns the same numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sizes(count: int, seed: int = 0, **bounds: tuple[int, int]) -> Iterator[SimpleNamespace]:
    """Draw sizes from their bounds, for cases that an answer can't know in advance.

    Example:
        >>> for case in sizes(3, batch=(1, 4), seq=(2, 9)):
        ...     x = normal(case.batch, case.seq)
    """
    drawn = random.Random(seed)
    for _ in range(count):
        yield SimpleNamespace(**{name: drawn.randint(*bound) for name, bound in bounds.items()})
