"""Who is decayed, how AdamW is built, and the learning rate of every step."""

import math

import torch
from torch import nn

from cs336_lib.config import TrainConfig


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Decay matrices and embeddings; leave biases and norms, which only shift and scale."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019), in its fused form on devices that have one."""
    devices = {p.device.type for p in model.parameters()}
    return torch.optim.AdamW(
        parameter_groups(model, config.weight_decay),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=1e-8,
        fused=devices <= {"cuda", "cpu", "mps"},
    )


def learning_rate(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then half a cosine, for steps 0 to max_steps - 1.

    Step 0 gets learning_rate / warmup_steps, step warmup_steps - 1 the peak, and the last step
    min_learning_rate exactly.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    peak_step = max(config.warmup_steps - 1, 0)
    progress = min(1.0, (step - peak_step) / max(1, config.max_steps - 1 - peak_step))
    span = config.learning_rate - config.min_learning_rate
    return config.min_learning_rate + 0.5 * span * (1 + math.cos(math.pi * progress))


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Give every parameter group this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = value
