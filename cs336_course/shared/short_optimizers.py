"""Short implementations of optimizers from SGD to AdamW and Muon.

The optimizers have the same arguments and state names as in torch, so tests can compare both
implementations. The code is simple, and the fused optimizers in torch are faster.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

Parameters = Iterable[nn.Parameter] | Iterable[dict[str, Any]]


class Rule(torch.optim.Optimizer):
    """Base class of the optimizers, which handles closures and parameter groups.

    A subclass implements `update`, which updates one parameter from its gradient, its state
    (initially empty) and the settings of its group. Parameters without a gradient are skipped.
    """

    def __init__(self, params: Parameters, **defaults: Any):
        if defaults["lr"] < 0:
            raise ValueError(f"lr is {defaults['lr']}; it must be at least 0")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update every parameter that has a gradient. If a closure is given, return its loss."""
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

    As in torch, the velocity is a weighted sum of gradients and not an average. If the gradient is
    constant, the velocity converges to grad / (1 - momentum).
    """

    def __init__(self, params: Parameters, lr: float = 1e-3, momentum: float = 0.9):
        super().__init__(params, lr=lr, momentum=momentum)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Update the velocity, and move `p` along it."""
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        velocity = state["momentum_buffer"]
        velocity *= group["momentum"]
        velocity += grad
        p -= group["lr"] * velocity


class AdaGrad(Rule):
    """AdaGrad (Duchi et al. 2011).

    The learning rate of each weight depends on the sum of its squared gradients.
    """

    def __init__(self, params: Parameters, lr: float = 1e-2, eps: float = 1e-10):
        super().__init__(params, lr=lr, eps=eps)

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Add the squared gradient to a sum, and divide the step by the root of this sum."""
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
        """Update the running mean of squared gradients, and divide the step by its root."""
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
        """Update the two running means and the step count, and move `p`."""
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
        """Apply weight decay directly to `p`, so that it doesn't affect the running means."""
        p *= 1 - group["lr"] * group["weight_decay"]
        p -= group["lr"] * adam_direction(grad, state, group)


def adam_direction(grad: Tensor, state: dict, group: dict) -> Tensor:
    """Update `state`, and return Adam's step before multiplication by the learning rate.

    The entries of the step are usually between -1 and 1.
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

    Muon updates only matrices. The factor 0.2 sqrt(max(rows, columns)) scales each step to an RMS
    of about 0.2, which is typical for AdamW. Muon and AdamW can then use the same learning rate
    (Liu et al. 2025). torch calls this option adjust_lr_fn="match_rms_adamw".

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
            if p.dim() != 2:
                raise ValueError(f"Muon takes matrices; a parameter has shape {tuple(p.shape)}")

    def update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """Update the momentum, and move `p` by the orthogonalized momentum."""
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
    """Bring all singular values close to 1 by Newton-Schulz iteration.

    The iteration uses only matrix products and doesn't change the singular vectors. Five iterations
    of Jordan's quintic polynomial map all singular values above 0.003 of the norm to values between
    0.68 and 1.21. This is accurate enough for Muon.
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
