"""Muon, which updates the matrices inside the blocks with orthogonalized momentum."""

import math
from inspect import unwrap

import torch
from jaxtyping import Float
from torch import Tensor


class Muon(torch.optim.AdamW):
    """AdamW that uses Muon's update for some groups (Jordan et al. 2024).

    Groups with a `muon_momentum` entry are updated with orthogonalized momentum. Each update is
    scaled to a root mean square of 0.2, which is typical for AdamW (Liu et al. 2025, eq. 4). Muon
    and AdamW can therefore share the learning rate and the weight decay. torch.optim.Muon processes
    one matrix at a time in bf16. This class batches matrices of equal shape, and uses bf16 only on
    CUDA.
    """

    # PyTorch decorates these methods so that importing the compiler, which takes a second, comes
    # with the first call. We don't compile them.
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)
    step_of_adamw = unwrap(torch.optim.AdamW.step)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # takes no closure
        """Update the Muon groups and clear their gradients, then run AdamW's step."""
        for group in self.param_groups:
            if "muon_momentum" in group:
                self.step_matrices(group)
        self.step_of_adamw()

    def step_matrices(self, group: dict) -> None:
        """Update a group with orthogonalized Nesterov momentum. Batch matrices of equal shape."""
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        broken = getattr(self, "found_inf", torch.zeros((), device=parameters[0].device))
        for p in parameters:
            if not self.state[p]:
                self.state[p] = {
                    "step": torch.zeros((), device=p.device),
                    "exp_avg": torch.zeros_like(p),
                }
        momenta = [self.state[p]["exp_avg"] for p in parameters]
        # Skip the update on the device if a gradient isn't finite, without waiting for the host.
        gradients = [
            torch.where(broken > 0, m, p.grad) for m, p in zip(momenta, parameters, strict=True)
        ]
        decay = torch.where(broken > 0, 1.0, 1 - group["lr"] * group["weight_decay"])
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for p, momentum, gradient in zip(parameters, momenta, gradients, strict=True):
            momentum.lerp_(gradient, 1 - group["muon_momentum"])
            ahead = gradient.lerp(momentum, group["muon_momentum"])
            p.mul_(decay)
            for pair in zip(wide_matrices(p), wide_matrices(ahead), strict=True):
                by_shape.setdefault(pair[0].shape, []).append(pair)
        for shape, pairs in by_shape.items():
            matrices, directions = zip(*pairs, strict=True)
            updates = (orthogonalized(torch.stack(directions)) * (1 - broken)).unbind()
            for matrix, update in zip(matrices, updates, strict=True):
                matrix.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(shape[1]))
        for p in parameters:
            self.state[p]["step"] += 1 - broken
            p.grad = None


def wide_matrices(p: Tensor) -> list[Tensor]:
    """Return views of the matrices in a parameter, and transpose tall matrices.

    The weight of c_attn is split into three matrices (q, k and v), which are orthogonalized
    separately. A wide matrix is cheaper to orthogonalize than a tall one, because `x @ x.mT` is
    smaller.
    """
    parts = p.chunk(3) if p.size(0) == 3 * p.size(1) else (p,)
    return [part.mT if part.size(0) > part.size(1) else part for part in parts]


def orthogonalized(
    matrices: Float[Tensor, "count rows columns"], steps: int = 5
) -> Float[Tensor, "count rows columns"]:
    """Bring all singular values close to 1 by Newton-Schulz iteration.

    The coefficients of the quintic polynomial are from Jordan et al. (2024). They make small
    singular values grow quickly. After five steps, singular values are between about 0.7 and 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16() if matrices.device.type == "cuda" else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)
