"""Which operators an answer runs, and how much each of them makes or combines."""

import math
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Position of a matmul's first matrix among the arguments, by operator
MATMULS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "addmv": 1, "baddbmm": 1}
REDUCTIONS = {"_softmax", "amax", "logsumexp", "max.dim", "sum.dim_IntList"}


class Operators(TorchDispatchMode):
    """Record the operators that run within the block.

    Attributes:
        calls: Number of operators.
        has_fused: Whether one of them computes the whole attention.
        largest: Number of elements of the largest result.
        terms: Largest number of values that a matmul, sum, maximum or softmax combines.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_fused = False
        self.calls = self.largest = self.terms = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, and record it with its sizes."""
        self.calls += 1
        made = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::")
        tensors = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.largest = max(self.largest, *tensors, 0)
        if "scaled_dot_product" in name:
            self.has_fused = True
            self.terms = max(self.terms, args[1].size(-2))
        elif name in MATMULS:
            self.terms = max(self.terms, args[MATMULS[name]].size(-1))
        elif name in REDUCTIONS and len(args) > 1:
            axes = [args[1]] if isinstance(args[1], int) else args[1]
            axes = axes or range(args[0].dim())  # no axes are all axes
            self.terms = max(self.terms, math.prod(args[0].size(axis) for axis in axes))
        return made
