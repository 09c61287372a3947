"""Faults to plant in a run, none of which any setting shows, and runs to plant them in."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from cs336_lib import optim, schedule
from cs336_lib.config import PRESETS, TrainConfig
from cs336_lib.data import loader
from cs336_lib.data.loader import Loader
from cs336_lib.training import job, loop

Fault = Callable[[pytest.MonkeyPatch], None]


def after_making(change: Callable[[torch.optim.Optimizer], None]) -> Fault:
    """Return a fault that changes the optimizer of a run."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        make = job.make_optimizer

        def changed(model: torch.nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
            optimizer = make(model, config)
            change(optimizer)
            return optimizer

        patch.setattr(job, "make_optimizer", changed)

    return plant


def times_rate(factor: float) -> Fault:
    """Return a fault that makes each update longer or shorter than the logged rate says."""

    def change(optimizer: torch.optim.Optimizer) -> None:
        step = optimizer.step

        def scaled() -> None:
            rates = [group["lr"] for group in optimizer.param_groups]
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            step()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

        optimizer.step = scaled  # type: ignore[method-assign]

    return after_making(change)


def bf16_weights(optimizer: torch.optim.Optimizer) -> None:
    """Round every weight to bf16 after each update."""
    step = optimizer.step

    def rounded() -> None:
        step()
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.copy_(parameter.bfloat16())

    optimizer.step = rounded  # type: ignore[method-assign]


def small_batch(patch: pytest.MonkeyPatch) -> None:
    """Repeat 40 % of the windows of a batch, as ranks do that all read the same data."""

    def batch(self: Loader, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        starts = self.starts(first, count)
        return self.windows(np.resize(starts[: max(1, round(0.4 * count))], count))

    patch.setattr(Loader, "batch", batch)


def decay_on_norms(patch: pytest.MonkeyPatch) -> None:
    """Decay biases and the gains of norms, too."""
    groups = optim.parameter_groups

    def decayed(model: torch.nn.Module, weight_decay: float) -> list[dict]:
        return [group | {"weight_decay": weight_decay} for group in groups(model, weight_decay)]

    patch.setattr(optim, "parameter_groups", decayed)


def targets(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Fault:
    """Return a fault in the targets, which it computes from inputs and right targets."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        windows = Loader.windows

        def changed(self: Loader, starts: object) -> tuple[torch.Tensor, torch.Tensor]:
            x, y = windows(self, starts)  # type: ignore[arg-type]
            return x, change(x, y)

        patch.setattr(Loader, "windows", changed)

    return plant


def unshuffled(patch: pytest.MonkeyPatch) -> None:
    """Read the text from its start to its end."""

    def in_order(first: int, count: int, tokens: int, block_size: int, seed: int) -> np.ndarray:
        return np.arange(first, first + count) * block_size % (tokens - block_size)

    patch.setattr(loader, "window_starts", in_order)


def repeated_shard(patch: pytest.MonkeyPatch) -> None:
    """Read only the first two hundredth of the text, again and again."""
    starts = Loader.starts

    def within(self: Loader, first: int, count: int) -> np.ndarray:
        return starts(self, first, count) % (len(self.stream) // 200)

    patch.setattr(Loader, "starts", within)


def no_warmup(patch: pytest.MonkeyPatch) -> None:
    """Start at the peak rate."""
    rate = schedule.learning_rate

    def without(step: int, config: TrainConfig) -> float:
        return rate(step, dataclasses.replace(config, warmup_steps=0))

    patch.setattr(schedule, "learning_rate", without)


def undivided_sum(patch: pytest.MonkeyPatch) -> None:
    """Add up the gradients of four micro-batches, and forget to divide by four."""
    backward = loop.backward

    def summed(run: job.Job, batches: job.Batches, windows: int) -> torch.Tensor:
        loss = backward(run, batches, windows)
        for parameter in run.model.parameters():
            parameter.grad *= 4
        return loss

    patch.setattr(loop, "backward", summed)


# Each fault by the name that the judge should give it first.
FAULTS: dict[str, Fault] = {
    "small batch": small_batch,
    "rate too high": times_rate(5),
    "rate too low": times_rate(0.2),
    "decay on norms": decay_on_norms,
    "wrong shift": targets(lambda x, y: torch.cat([y[:, 1:], y[:, -1:]], dim=1)),
    "targets are inputs": targets(lambda x, y: x),
    "not shuffled": unshuffled,
    "repeated data": repeated_shard,
    "16-bit weights": after_making(bf16_weights),
    "no warm-up": no_warmup,
    "undivided sum": undivided_sum,
}

# The same at another strength. They were planted after the rules were written.
MILDER: dict[tuple[str, str], Fault] = {
    ("rate too high", "3 times"): times_rate(3),
    ("rate too low", "a third"): times_rate(1 / 3),
    ("wrong shift", "by three"): targets(lambda x, y: torch.cat([y[:, 2:], y[:, -2:]], dim=1)),
}
SOUND = range(100, 110)  # seeds of sound runs. The reference has others.


def train(folder: Path, seed: int, fault: Fault | None = None, **changes: object) -> Path:
    """Train the small preset with a fault, and return its folder. A finished run is kept."""
    if not (folder / "metrics.jsonl").exists():
        recipe = PRESETS["shakespeare-char"][1]
        config = dataclasses.replace(recipe, run_dir=str(folder), seed=seed, **changes)
        with pytest.MonkeyPatch.context() as patch:
            if fault:
                fault(patch)
            loop.train(config)
    return folder
