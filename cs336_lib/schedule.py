"""Compute the learning rate and batch size of each step."""

import math

import numpy as np
import torch

from cs336_lib.config import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """Return the learning rate of a step.

    The rate increases linearly during the warm-up and then follows a cosine or linear decay. It is
    learning_rate / warmup_steps at step 0 and learning_rate at step warmup_steps - 1. It decays to
    exactly min_learning_rate at the last step, max_steps - 1. If the warm-up lasts for the entire
    run, there is no decay.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    peak_step = max(config.warmup_steps - 1, 0)
    progress = min(1.0, (step - peak_step) / max(1, config.max_steps - 1 - peak_step))
    left = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.min_learning_rate + left * (config.learning_rate - config.min_learning_rate)


def batch_windows(step: int, config: TrainConfig) -> int:
    """Return the number of sequences in the batch of a step, over all devices.

    The number grows linearly during the first batch_growth_steps steps.
    """
    if step >= config.batch_growth_steps:
        return config.batch_windows
    first = config.initial_batch_tokens // config.block_size
    return first + (config.batch_windows - first) * step // config.batch_growth_steps


def windows_before(step: int, config: TrainConfig) -> int:
    """Return the total number of sequences in all steps before `step`."""
    growing = min(step, config.batch_growth_steps)
    total = (step - growing) * config.batch_windows
    if growing > 0:  # the sum of `batch_windows`
        first = config.initial_batch_tokens // config.block_size
        grown = np.arange(growing) * (config.batch_windows - first) // config.batch_growth_steps
        total += growing * first + int(grown.sum())
    return total


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = value
