"""Measure execution times with warm-up, synchronization and alternating runs."""

import time
from collections.abc import Callable, Mapping

import torch

from cs336_lib.system.hardware import synchronize

Functions = Mapping[str, Callable[[], object]]


def seconds_in_turns(
    ways: Functions, device: torch.device, *, rounds: int = 5, warmup: int = 1
) -> dict[str, list[float]]:
    """Measure the times of several functions in alternating runs.

    Each function runs once per round, so background load affects all functions equally. The first
    `warmup` rounds aren't measured. The device is synchronized before and after each call.

    Returns:
        Wall times in seconds by name, one per round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(warmup + rounds):
        for name, work in ways.items():
            synchronize(device)
            start = time.perf_counter()
            work()
            synchronize(device)
            seconds[name].append(time.perf_counter() - start)
    return {name: measured[warmup:] for name, measured in seconds.items()}


def best_seconds(ways: Functions, device: torch.device, *, rounds: int) -> dict[str, float]:
    """Return the shortest wall time of each function in seconds.

    Background load can only increase a time, so the shortest time is the most reliable. Use many
    rounds for short functions, so that at least one round is undisturbed.
    """
    measured = seconds_in_turns(ways, device, rounds=rounds)
    return {name: min(seconds) for name, seconds in measured.items()}
