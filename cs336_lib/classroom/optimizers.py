"""SGD to AdamW and Muon, each a short `torch.optim.Optimizer` whose rule is easy to read.

They take the same arguments as torch's optimizers and keep the same state under the same names, so
the tests can compare the two. They aim for simplicity, and torch's fused versions are faster.
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

    A subclass implements `update`, which moves one parameter given its gradient, its own state
    (empty at first) and the settings of its group.
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
        """Change `p` and `state` in place."""
        raise NotImplementedError(f"{type(self).__name__} has no rule yet")


class SGD(Rule):
    """Gradient descent, p -= lr * grad, where `weight_decay` adds an L2 penalty to the gradient."""

    def __init__(self, params: Parameters, lr: float = 1e-3, weight_decay: float = 0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Take a step that depends on the current gradient only."""
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * p
        p -= group["lr"] * grad


class Momentum(Rule):
    """SGD with a velocity (Polyak 1964), which reaches grad/(1-momentum) under a constant gradient.

    As in torch, the velocity is a sum of gradients with decaying weights, not an average.
    """

    def __init__(self, params: Parameters, lr: float = 1e-3, momentum: float = 0.9):
        super().__init__(params, lr=lr, momentum=momentum)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Keep one tensor of state, the velocity."""
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        velocity = state["momentum_buffer"]
        velocity *= group["momentum"]
        velocity += grad
        p -= group["lr"] * velocity


class AdaGrad(Rule):
    """A learning rate per weight, from the sum of its squared gradients (Duchi et al. 2011)."""

    def __init__(self, params: Parameters, lr: float = 1e-2, eps: float = 1e-10):
        super().__init__(params, lr=lr, eps=eps)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Keep one tensor of state, the sum of squared gradients, which only grows."""
        if not state:
            state["sum"] = torch.zeros_like(p)
        total = state["sum"]
        total += grad * grad
        p -= group["lr"] * grad / (total.sqrt() + group["eps"])


class RMSProp(Rule):
    """AdaGrad with a running mean in place of the sum, so it forgets (Tieleman and Hinton 2012)."""

    def __init__(
        self, params: Parameters, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8
    ):
        super().__init__(params, lr=lr, alpha=alpha, eps=eps)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Keep one tensor of state, the running mean of squared gradients."""
        if not state:
            state["square_avg"] = torch.zeros_like(p)
        mean_square = state["square_avg"]
        mean_square *= group["alpha"]
        mean_square += (1 - group["alpha"]) * grad * grad
        p -= group["lr"] * grad / (mean_square.sqrt() + group["eps"])


class Adam(Rule):
    """RMSProp with a running mean of the gradient and bias correction (Kingma and Ba 2015).

    Bias correction makes up for running means that start at zero. As an L2 penalty, `weight_decay`
    is added to the gradient, unlike in AdamW.
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
        """Keep two tensors of state and a count of steps."""
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
        """Apply the decay to the weights directly, so that it never enters the running means."""
        p *= 1 - group["lr"] * group["weight_decay"]
        p -= group["lr"] * adam_direction(grad, state, group)


def adam_direction(grad: Tensor, state: dict, group: dict) -> Tensor:
    """Update `state` and return Adam's step before the learning rate.

    The entries of the step are roughly in [-1, 1].
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

    It takes only matrices. The factor 0.2 sqrt(max(rows, columns)) gives the step an RMS of about
    0.2, as AdamW has, so both can use one learning rate (Liu et al. 2025). In torch this is
    adjust_lr_fn="match_rms_adamw".

    Raises:
        ValueError: A parameter is not a matrix.
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
        """Keep one tensor of state, the running mean of gradients."""
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
    """Push all singular values towards 1 by Newton-Schulz iteration, and keep the singular vectors.

    Five rounds of Jordan's quintic bring every singular value above 0.003 of the norm to between
    0.68 and 1.21, using only matrix products. The values need not be exactly 1.
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
    """Return the bytes of all tensors in the optimizer's state, without counters of one number."""
    tensors = [t for state in optimizer.state.values() for t in state.values()]
    return sum(t.numel() * t.element_size() for t in tensors if torch.is_tensor(t) and t.dim() > 0)
