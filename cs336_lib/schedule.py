"""Compute the learning rate and batch size of each step."""

import math

import torch

from cs336_lib.config import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """Return the learning rate of a step.

    The rate has a linear warm-up and then a cosine or linear decay. Step 0 has learning_rate /
    warmup_steps, and step warmup_steps - 1 has the peak. The last step, max_steps - 1, has exactly
    min_learning_rate unless it is the peak.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    peak_step = max(config.warmup_steps - 1, 0)
    progress = min(1.0, (step - peak_step) / max(1, config.max_steps - 1 - peak_step))
    left = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.min_learning_rate + left * (config.learning_rate - config.min_learning_rate)


def batch_windows(step: int, config: TrainConfig) -> int:
    """Return the number of sequences in a step's batch over all devices.

    The batch may grow during the first steps.
    """
    if step >= config.batch_growth_steps:
        return config.batch_windows
    first = config.initial_batch_tokens // config.block_size
    return first + (config.batch_windows - first) * step // config.batch_growth_steps


def windows_before(step: int, config: TrainConfig) -> int:
    """Return the number of sequences in all earlier steps, which is where the batch starts."""
    growing = min(step, config.batch_growth_steps)
    return (step - growing) * config.batch_windows + sum(
        batch_windows(earlier, config) for earlier in range(growing)
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = value
