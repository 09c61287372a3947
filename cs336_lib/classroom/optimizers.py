"""Short implementations of optimizers from SGD to AdamW and Muon.

They take the same arguments as torch's optimizers, and use the same names for their state, so tests
can compare the two. They are written for simplicity. torch's fused versions are faster.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cs336_lib.config import require

Parameters = Iterable[nn.Parameter] | Iterable[dict[str, Any]]


class Rule(torch.optim.Optimizer):
    """Base class that handles closures and groups, and skips parameters without a gradient.

    A subclass implements `update`, which updates one parameter from its gradient, its own state
    (initially empty) and the settings of its group.
    """

    def __init__(self, params: Parameters, **defaults: Any):
        require(defaults["lr"] >= 0, f"lr is {defaults['lr']}; it must be at least 0")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update every parameter that has a gradient, and return the closure's loss if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, self.state[p], group)
        return loss

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Update `p` and `state` in place."""
        raise NotImplementedError(f"{type(self).__name__} has no rule yet")


class SGD(Rule):
    """Gradient descent, p -= lr * grad.

    `weight_decay` adds an L2 penalty to the gradient.
    """

    def __init__(self, params: Parameters, lr: float = 1e-3, weight_decay: float = 0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Take a step that depends only on the current gradient."""
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * p
        p -= group["lr"] * grad


class Momentum(Rule):
    """SGD with momentum (Polyak 1964).

    The velocity is a sum of gradients with decaying weights, as in torch, not an average. Under a
    constant gradient, it reaches grad / (1 - momentum).
    """

    def __init__(self, params: Parameters, lr: float = 1e-3, momentum: float = 0.9):
        super().__init__(params, lr=lr, momentum=momentum)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Keep the velocity as state."""
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        velocity = state["momentum_buffer"]
        velocity *= group["momentum"]
        velocity += grad
        p -= group["lr"] * velocity


class AdaGrad(Rule):
    """AdaGrad, with a learning rate per weight (Duchi et al. 2011).

    Each learning rate depends on the sum of the weight's squared gradients.
    """

    def __init__(self, params: Parameters, lr: float = 1e-2, eps: float = 1e-10):
        super().__init__(params, lr=lr, eps=eps)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Keep the sum of squared gradients as state. It never decreases."""
        if not state:
            state["sum"] = torch.zeros_like(p)
        total = state["sum"]
        total += grad * grad
        p -= group["lr"] * grad / (total.sqrt() + group["eps"])


class RMSProp(Rule):
    """AdaGrad with a running mean instead of the sum (Tieleman and Hinton 2012)."""

    def __init__(
        self, params: Parameters, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8
    ):
        super().__init__(params, lr=lr, alpha=alpha, eps=eps)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Keep the running mean of squared gradients as state."""
        if not state:
            state["square_avg"] = torch.zeros_like(p)
        mean_square = state["square_avg"]
        mean_square *= group["alpha"]
        mean_square += (1 - group["alpha"]) * grad * grad
        p -= group["lr"] * grad / (mean_square.sqrt() + group["eps"])


class Adam(Rule):
    """RMSProp with a running mean of the gradient and bias correction (Kingma and Ba 2015).

    Bias correction is needed because the running means start at zero. `weight_decay` is an L2
    penalty that is added to the gradient, unlike in AdamW.
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
        """Keep two running means and a step count as state."""
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * p
        p -= group["lr"] * adam_direction(grad, state, group)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

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
        """Apply weight decay directly to the weights, so that it never enters the running means."""
        p *= 1 - group["lr"] * group["weight_decay"]
        p -= group["lr"] * adam_direction(grad, state, group)


def adam_direction(grad: Tensor, state: dict, group: dict) -> Tensor:
    """Update `state` and return Adam's step before the learning rate.

    The entries of the step are roughly between -1 and 1.
    """
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
    # After t steps from zero, the weights of a running mean add up to only 1 - beta**t.
    unbiased_mean = mean / (1 - beta1 ** state["step"])
    unbiased_square = mean_square / (1 - beta2 ** state["step"])
    return unbiased_mean / (unbiased_square.sqrt() + group["eps"])


class Muon(Rule):
    """Momentum, orthogonalized so that its singular values are close to 1 (Jordan et al. 2024).

    Muon updates only matrices. The factor 0.2 sqrt(max(rows, columns)) gives each step an RMS of
    about 0.2, as in AdamW. Both can then use the same learning rate (Liu et al. 2025). In torch,
    this is adjust_lr_fn="match_rms_adamw".

    Raises:
        ValueError: If a parameter isn't a matrix.
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
        """Keep the running mean of gradients as state."""
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        mean = state["momentum_buffer"]
        mean.lerp_(grad, 1 - group["momentum"])
        ahead = grad.lerp(mean, group["momentum"])  # Nesterov looks ahead to the next mean
        p *= 1 - group["lr"] * group["weight_decay"]
        p -= group["lr"] * 0.2 * max(p.shape) ** 0.5 * orthogonalise(ahead)


def orthogonalise(
    matrix: Float[Tensor, "rows columns"], steps: int = 5
) -> Float[Tensor, "rows columns"]:
    """Push all singular values towards 1 by Newton-Schulz iteration.

    The singular vectors don't change. Five iterations of Jordan's quintic map all singular values
    above 0.003 of the norm to between 0.68 and 1.21, using only matrix products. The values don't
    need to be exactly 1.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / matrix.norm().clamp(min=1e-7)  # now all singular values are at most 1
    if tall := x.size(0) > x.size(1):  # transpose, because the other Gram matrix is smaller
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of all tensors in the optimizer's state, except scalar counters."""
    tensors = [t for state in optimizer.state.values() for t in state.values()]
    return sum(t.numel() * t.element_size() for t in tensors if torch.is_tensor(t) and t.dim() > 0)
