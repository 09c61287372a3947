"""SGD to AdamW and Muon, each a `torch.optim.Optimizer` whose rule can be read at a glance.

They take the same arguments as torch's own and keep the same state under the same names, so the
tests can hold them against each other. Simplicity comes first: torch's fused forms are faster.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cs336_lib.config import require

Parameters = Iterable[nn.Parameter] | Iterable[dict[str, Any]]


class Rule(torch.optim.Optimizer):
    """What all share: the closure, the groups, the skipping of parameters without a gradient.

    A subclass says in `update` how one parameter moves, given its gradient, its own state (empty
    at first) and the settings of its group.
    """

    takes_sparse = False

    def __init__(self, params: Parameters, **defaults: Any):
        require(defaults["lr"] >= 0, f"lr is {defaults['lr']}; it must be at least 0")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Move every parameter that has a gradient; return the closure's loss, if there is one.

        Raises:
            ValueError: a gradient is sparse and this rule needs all of it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    require(
                        self.takes_sparse or not p.grad.is_sparse,
                        f"{type(self).__name__} takes no sparse gradients; AdaGrad does",
                    )
                    self.update(p, p.grad, self.state[p], group)
        return loss

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Change `p` and `state` in place."""
        raise NotImplementedError(f"{type(self).__name__} has no rule yet")


class SGD(Rule):
    """Down the slope: p -= lr * grad. `weight_decay` is an L2 penalty, added to the gradient."""

    def __init__(self, params: Parameters, lr: float = 1e-3, weight_decay: float = 0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """No memory of earlier steps."""
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * p
        p -= group["lr"] * grad


class Momentum(Rule):
    """SGD with a velocity (Polyak 1964): under a constant gradient it grows to grad/(1-momentum).

    Like torch's it sums the gradients with fading weights; it is no average of them.
    """

    def __init__(self, params: Parameters, lr: float = 1e-3, momentum: float = 0.9):
        super().__init__(params, lr=lr, momentum=momentum)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """One tensor of state: the velocity."""
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        velocity = state["momentum_buffer"]
        velocity *= group["momentum"]
        velocity += grad
        p -= group["lr"] * velocity


class AdaGrad(Rule):
    """A step size for each weight, from the sum of its squared gradients (Duchi et al. 2011)."""

    takes_sparse = True

    def __init__(self, params: Parameters, lr: float = 1e-2, eps: float = 1e-10):
        super().__init__(params, lr=lr, eps=eps)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """One tensor of state: the sum, which only grows."""
        if not state:
            state["sum"] = torch.zeros_like(p)
        total = state["sum"]
        if grad.is_sparse:  # an embedding's: only the rows that were looked up have moved
            grad = grad.coalesce()
            rows, grad = grad.indices()[0], grad.values()
            total[rows] += grad * grad
            p[rows] -= group["lr"] * grad / (total[rows].sqrt() + group["eps"])
        else:
            total += grad * grad
            p -= group["lr"] * grad / (total.sqrt() + group["eps"])


class RMSProp(Rule):
    """AdaGrad that forgets: a running mean where AdaGrad has a sum (Tieleman and Hinton 2012)."""

    def __init__(
        self, params: Parameters, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8
    ):
        super().__init__(params, lr=lr, alpha=alpha, eps=eps)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """One tensor of state: the running mean of squared gradients."""
        if not state:
            state["square_avg"] = torch.zeros_like(p)
        mean_square = state["square_avg"]
        mean_square *= group["alpha"]
        mean_square += (1 - group["alpha"]) * grad * grad
        p -= group["lr"] * grad / (mean_square.sqrt() + group["eps"])


class Adam(Rule):
    """RMSProp with a running mean of the gradient, both corrected for their start at zero.

    Kingma and Ba 2015. `weight_decay` is an L2 penalty, added to the gradient: see AdamW.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Two tensors of state and a count of steps."""
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * p
        p -= group["lr"] * adam_direction(grad, state, group)


class AdamW(Adam):
    """Adam whose weight decay shrinks the weights directly (Loshchilov and Hutter 2019)."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ):
        super().__init__(params, lr, betas, eps, weight_decay)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """The decay never enters the running means."""
        p *= 1 - group["lr"] * group["weight_decay"]
        p -= group["lr"] * adam_direction(grad, state, group)


def adam_direction(grad: Tensor, state: dict, group: dict) -> Tensor:
    """Adam's step before the learning rate, each entry roughly in [-1, 1]; updates `state`."""
    if not state:
        state["step"] = 0
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(grad), torch.zeros_like(grad)
    beta1, beta2 = group["betas"]
    mean, mean_square = state["exp_avg"], state["exp_avg_sq"]
    state["step"] += 1
    mean *= beta1
    mean += (1 - beta1) * grad
    mean_square *= beta2
    mean_square += (1 - beta2) * grad * grad
    # After t steps from zero, the weights in a running mean add up to 1 - beta**t only.
    unbiased_mean = mean / (1 - beta1 ** state["step"])
    unbiased_square = mean_square / (1 - beta2 ** state["step"])
    return unbiased_mean / (unbiased_square.sqrt() + group["eps"])


class Muon(Rule):
    """Momentum whose singular values are all made about 1 (Jordan et al. 2024), for matrices only.

    The factor 0.2 sqrt(max(rows, columns)) gives the step an RMS of about 0.2, which is AdamW's, so
    that both can use one learning rate (Liu et al. 2025): torch's adjust_lr_fn="match_rms_adamw".

    Raises:
        ValueError: a parameter is not a matrix.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
    ):
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        for p in (p for group in self.param_groups for p in group["params"]):
            require(p.dim() == 2, f"Muon takes matrices; a parameter has shape {tuple(p.shape)}")

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """One tensor of state: the running mean of gradients."""
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        mean = state["momentum_buffer"]
        mean.lerp_(grad, 1 - group["momentum"])
        ahead = grad.lerp(mean, group["momentum"])  # Nesterov: where the mean is going to be
        p *= 1 - group["lr"] * group["weight_decay"]
        p -= group["lr"] * 0.2 * max(p.shape) ** 0.5 * orthogonalise(ahead)


def orthogonalise(
    matrix: Float[Tensor, "rows columns"], steps: int = 5
) -> Float[Tensor, "rows columns"]:
    """Push all singular values towards 1 and keep the singular vectors, by Newton-Schulz.

    Jordan's quintic: five rounds bring whatever is above 0.003 of the norm to between 0.68 and
    1.21, with matrix products only; the values need not be exactly 1.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / matrix.norm().clamp(min=1e-7)  # now no singular value is above 1
    if tall := x.size(0) > x.size(1):  # the Gram matrix is then the smaller one
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all tensors the optimizer keeps, counters (one number each) left out."""
    tensors = [t for state in optimizer.state.values() for t in state.values()]
    return sum(t.numel() * t.element_size() for t in tensors if torch.is_tensor(t) and t.dim() > 0)
