"""The learning rate and the batch size of every step."""

import math

import torch

from cs336_lib.config import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then half a cosine or a straight line, for steps 0 to max_steps - 1.

    Step 0 gets learning_rate / warmup_steps, step warmup_steps - 1 the peak, and the last step
    min_learning_rate exactly: unless the peak is in the last step, with warmup_steps == max_steps
    or a single step.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    peak_step = max(config.warmup_steps - 1, 0)
    progress = min(1.0, (step - peak_step) / max(1, config.max_steps - 1 - peak_step))
    left = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.min_learning_rate + left * (config.learning_rate - config.min_learning_rate)


def batch_windows(step: int, config: TrainConfig) -> int:
    """Sequences in a step's batch over all devices; it may grow over the first steps."""
    if step >= config.batch_growth_steps:
        return config.batch_windows
    first = config.initial_batch_tokens // config.block_size
    return first + (config.batch_windows - first) * step // config.batch_growth_steps


def windows_before(step: int, config: TrainConfig) -> int:
    """Sequences that all steps before this one have read: where its batch begins."""
    growing = min(step, config.batch_growth_steps)
    return (step - growing) * config.batch_windows + sum(
        batch_windows(earlier, config) for earlier in range(growing)
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Give every parameter group this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = value
