"""Parameter groups, AdamW and Muon."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cs336_lib.config import TrainConfig


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Decay matrices and embeddings; leave biases and norms, which only shift and scale."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019) or Muon, fused on devices that have such a form."""
    devices = {p.device.type for p in model.parameters()}
    groups = parameter_groups(model, config.weight_decay)
    if config.optimizer == "muon":
        matrices, vectors = groups
        inside = [p for name, p in model.named_parameters() if ".h." in name and p.dim() == 2]
        outside = [p for p in matrices["params"] if all(p is not q for q in inside)]
        orthogonal = {**matrices, "params": inside, "muon_momentum": config.momentum}
        groups = [orthogonal, {**matrices, "params": outside}]
        groups.append(vectors)
    kind = Muon if config.optimizer == "muon" else torch.optim.AdamW
    return kind(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=1e-8,
        fused=devices <= {"cuda", "cpu", "mps"},
    )


class Muon(torch.optim.AdamW):
    """AdamW, but groups with `muon_momentum` step along it, orthogonalised (Jordan et al. 2024).

    A step is scaled to the size that AdamW's would have, 0.2 per entry (Liu et al. 2025, eq. 4),
    so that one learning rate and one weight decay serve both. torch.optim.Muon takes one matrix
    after the other, and in bf16 only; here equal shapes go together, in bf16 where that is fast.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update all parameters; those of Muon first, whose gradients AdamW then does not see."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if "muon_momentum" in group:
                self.step_matrices(group)
        super().step()
        return loss

    def step_matrices(self, group: dict) -> None:
        """Nesterov momentum, orthogonalised, for all matrices of equal size at once."""
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        broken = getattr(self, "found_inf", None)
        broken = torch.zeros((), device=parameters[0].device) if broken is None else broken
        for p in parameters:
            if not self.state[p]:
                self.state[p] = {
                    "step": torch.zeros((), device=p.device),
                    "exp_avg": torch.zeros_like(p),
                }
        momenta = [self.state[p]["exp_avg"] for p in parameters]
        # A gradient that isn't finite must change nothing, and the host doesn't wait to see it.
        gradients = [
            torch.where(broken > 0, m, p.grad) for m, p in zip(momenta, parameters, strict=True)
        ]
        torch._foreach_lerp_(momenta, gradients, 1 - group["muon_momentum"])
        ahead = torch._foreach_lerp(gradients, momenta, group["muon_momentum"])
        decay = 1 - group["lr"] * group["weight_decay"]
        torch._foreach_mul_(parameters, torch.where(broken > 0, 1.0, decay))
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for p, direction in zip(parameters, ahead, strict=True):
            for pair in zip(wide_matrices(p), wide_matrices(direction), strict=True):
                by_shape.setdefault(pair[0].shape, []).append(pair)
        for shape, pairs in by_shape.items():
            matrices, directions = zip(*pairs, strict=True)
            updates = (orthogonalised(torch.stack(directions)) * (1 - broken)).unbind()
            torch._foreach_add_(matrices, updates, alpha=-group["lr"] * 0.2 * math.sqrt(shape[1]))
        for p in parameters:
            self.state[p]["step"] += 1 - broken
            p.grad = None


def wide_matrices(p: Tensor) -> list[Tensor]:
    """Views of the matrices that a parameter holds (c_attn's are three: q, k, v), tall ones turned.

    Each is orthogonal for itself; and the smaller square is the cheaper one.
    """
    parts = p.chunk(3) if p.size(0) == 3 * p.size(1) else (p,)
    return [part.mT if part.size(0) > part.size(1) else part for part in parts]


def orthogonalised(
    matrices: Float[Tensor, "count rows columns"], steps: int = 5
) -> Float[Tensor, "count rows columns"]:
    """Bring all singular values near 1 by Newton-Schulz iteration, without computing them.

    The quintic's coefficients are Jordan et al.'s: steepest at 0, so that small values grow fast,
    and within about 0.7 to 1.2 afterwards.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16() if matrices.device.type == "cuda" else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)
