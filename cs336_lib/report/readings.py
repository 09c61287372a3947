"""Read a few telling numbers off the metrics and the weights of a run."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cs336_lib.hugging_face import read_tensors
from cs336_lib.training import checkpoint

# A reading within this share of the reference's mean is never off, however equal the reference's
# runs are. Another CPU or precision moves a small run by less than half of it.
NEAR = {
    "start": 0.03,
    "early": 0.03,
    "late": 0.03,
    "scatter": 0.15,
    "waves": 0.25,
    "first_norm": 0.4,
    "norm": 0.15,
    "gap": math.inf,  # is compared by its own rule
    "gain": 0.05,
    "size": 0.05,
}
SPREADS = 6.0  # a reading is off beyond so many standard deviations of the reference's runs
FEWEST = 60  # steps that have a curve

Curve = Mapping[str, Sequence[float]]


def curve_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the losses and gradient norms of a run, step by step, and its validation losses.

    A skipped step repeats the numbers of the step before. An unknown number is NaN.
    """
    curve: dict[str, list[float]] = {"train_loss": [], "grad_norm": [], "val_loss": []}
    for row in rows:
        for name in ("train_loss", "grad_norm"):
            value = row.get(name)
            before = curve[name][-1] if curve[name] else math.nan
            curve[name].append(value if isinstance(value, (int, float)) else before)
        curve["val_loss"].append(row.get("val_loss", math.nan))
    return curve


def curve_readings(curve: Curve, steps: int) -> dict[str, float]:
    """Read the numbers of the first `steps` steps of a curve.

    Returns:
        The loss of the first step, of the first tenth and of the last tenth, in nats per token.
        `scatter` is the standard deviation of a step's loss around its neighbours, and `waves` is
        the variance around a parabola divided by the square of `scatter`. It is about 1 if each
        step's batch is drawn by itself, and larger if neighbouring batches are alike (von Neumann
        1941). Both are of the second half, as `norm`, the median of the gradient norm. `gap` is
        the validation loss minus the training loss at the end.
    """
    losses, norms, measured = (
        np.array(curve[name][:steps], float) for name in ("train_loss", "grad_norm", "val_loss")
    )
    tenth, half = max(1, steps // 10), losses[steps // 2 :]
    time = np.arange(len(half))
    around = half - np.polyval(np.polyfit(time, half, 2), time)
    scatter = math.sqrt(np.mean(np.diff(half) ** 2) / 2)
    late = losses[-tenth:].mean()
    found = {
        "start": losses[0],
        "early": losses[:tenth].mean(),
        "late": late,
        "scatter": scatter,
        "waves": around.var() / max(scatter, 1e-9) ** 2,
        "first_norm": norms[0],
        "norm": np.median(norms[steps // 2 :]),
        "gap": measured[-1] - late,
    }
    return {name: float(value) for name, value in found.items()}


def weight_readings(run_dir: Path, steps: int) -> dict[str, float]:
    """Read the weights that a run had after `steps` steps, or return {} without that checkpoint.

    Returns:
        The mean gain of the norms, the mean root mean square of the matrices in the blocks, and the
        share of weights that bf16 can hold.
    """
    valid = checkpoint.newest_valid(run_dir / "checkpoints", (checkpoint.MODEL, checkpoint.STATE))
    if valid is None or checkpoint.step_of(valid) != steps:
        return {}
    named = read_tensors(valid / checkpoint.MODEL)
    inside = [p for name, p in named.items() if ".h." in name and p.dim() == 2]
    gains = [p for name, p in named.items() if ".ln_" in name and name.endswith("weight")]
    every = torch.cat([p.flatten() for p in named.values()])
    return {
        "gain": torch.cat(gains).mean().item(),
        "size": float(np.mean([p.square().mean().sqrt().item() for p in inside])),
        "in_bf16": (every == every.bfloat16()).float().mean().item(),
    }
