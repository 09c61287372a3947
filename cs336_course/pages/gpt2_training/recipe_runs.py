"""Small runs on the letters of the plays, which compare choices of a training recipe."""

import json
import math
from collections.abc import Callable
from typing import Any

import torch

from cs336_course.shared.letter_gpt import letters
from cs336_lib.config import GPTConfig
from cs336_lib.data.corpus import DATA
from cs336_lib.model import GPT

BLOCK, ROWS = 32, 8
HELD_OUT = 400_000  # letters at the end of the plays, for the loss at the end of a run

Rates = Callable[[int], float]
"""The rate of a step, as a share of the peak."""


def schedules(steps: int, warmup: int) -> dict[str, Rates]:
    """Return schedules with a linear warm-up, as functions of the step.

    Args:
        steps: Number of steps.
        warmup: Steps of the warm-up.
    """

    def after(fall: Callable[[float], float]) -> Rates:
        return lambda step: (
            (step + 1) / warmup if step < warmup else fall((step - warmup) / (steps - 1 - warmup))
        )

    def cosine(lowest: float) -> Callable[[float], float]:
        return lambda t: lowest + (1 - lowest) * (1 + math.cos(math.pi * t)) / 2

    return {
        "constant": after(lambda t: 1.0),
        "half a cosine, to a tenth": after(cosine(0.1)),
        "half a cosine, to 0": after(cosine(0.0)),
        "a straight line, to 0": after(lambda t: 1 - t),
    }


def held_out_loss(
    rates: Rates, seed: int, steps: int, peak: float, grad_clip: float = 1.0
) -> tuple[float, float]:
    """Train a GPT of one block with AdamW, and return its loss and the share of clipped steps.

    Args:
        rates: The schedule.
        seed: Seed of the weights and of the batches.
        steps: Number of steps.
        peak: Highest learning rate.
        grad_clip: Largest norm of the gradient.

    Returns:
        The loss on held-out plays [nats per letter], and the share of steps whose norm was above 1.
    """
    ids, size = letters()
    torch.manual_seed(seed)
    model = GPT(GPTConfig(block_size=BLOCK, vocab_size=size, n_layer=1, n_head=2, n_embd=48))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    generator = torch.Generator().manual_seed(seed)
    columns, clipped = torch.arange(BLOCK + 1), 0
    for step in range(steps):
        starts = torch.randint(len(ids) - HELD_OUT - BLOCK, (ROWS, 1), generator=generator)
        rows = ids[starts + columns]
        model(rows[:, :-1], rows[:, 1:]).backward()
        clipped += int(torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip) > 1)
        optimizer.param_groups[0]["lr"] = peak * rates(step)
        optimizer.step()
        optimizer.zero_grad()
    rows = ids[torch.arange(len(ids) - HELD_OUT, len(ids) - BLOCK, 200)[:, None] + columns]
    with torch.no_grad():
        return model(rows[:, :-1], rows[:, 1:]).item(), clipped / steps


def recorded() -> dict[str, Any]:
    """Return the runs that data/make_recipe_runs.py has recorded."""
    return json.loads((DATA / "recipe_runs.json").read_text(encoding="utf-8"))


def by_schedule(
    runs: dict[str, Any], clipping: bool = True, value: str = "loss"
) -> dict[str, dict[float, list[float]]]:
    """Return a value of recorded runs by schedule and by peak, one per seed.

    Args:
        runs: As `recorded` returns them.
        clipping: Whether to return the runs with clipping, or those without.
        value: Name of the value, "loss" or "clipped".
    """
    found: dict[str, dict[float, list[float]]] = {}
    for row in runs["runs"]:
        if row["clipping"] == clipping:
            found.setdefault(row["schedule"], {}).setdefault(row["peak"], []).append(row[value])
    return found


def one_line(by_peak: dict[float, list[float]], form: str = ".2f") -> str:
    """Return the values of the seeds for each peak, on one line."""
    return "   ".join(
        f"peak {peak}: {' '.join(format(x, form) for x in found)}"
        for peak, found in by_peak.items()
    )
