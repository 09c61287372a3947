"""Exercise of the errata on settings that a training function ignores."""

from collections.abc import Iterator
from typing import Any

import torch

from cs336_course.engine import Case, Exercise, function
from cs336_course.engine.records import Record

NOTEBOOK = "side_trips/errata"


def listens(layers: int, lr: float, decay: float) -> float:
    """Use all settings."""
    return layers * lr + decay + torch.rand(()).item()


def hard_coded(layers: int, lr: float, decay: float) -> float:
    """Ignore the depth and the learning rate."""
    return 2 * 0.01 + decay + torch.rand(()).item()


def hardly(layers: int, lr: float, decay: float) -> float:
    """Use all settings, but the weight decay has a small effect."""
    return layers * lr + 1e-6 * decay + torch.rand(()).item()


def product(batch: int, lr: float, seed: int) -> float:
    """Use the product of two settings, and ignore the seed."""
    return batch * lr + torch.rand(()).item()


def draws(dropout: float, width: int) -> float:
    """Use the width by drawing so many numbers, and ignore the dropout."""
    return torch.rand(width).sum().item()


def deaf(steps: int, lr: float) -> float:
    """Ignore everything."""
    return torch.rand(()).item()


def sweeps() -> Iterator[Case]:
    """Yield a training function, its settings, and another value for each of them."""
    usual = {"layers": 2, "lr": 0.1, "decay": 0.5}
    others = {"layers": 3, "lr": 0.2, "decay": 0.25}
    yield Case("", train=hard_coded, settings=usual, others=others)
    yield Case("", train=listens, settings=usual, others=others)
    yield Case("a setting with a small effect", train=hardly, settings=usual, others=others)
    yield Case(
        "two settings whose product counts",
        train=product,
        settings={"batch": 8, "lr": 0.5, "seed": 1},
        others={"batch": 4, "lr": 1.0, "seed": 2},
    )
    yield Case(
        "a setting that hides another",
        train=product,
        settings={"batch": 8, "lr": 0.5, "seed": 1},
        others={"batch": 0, "lr": 1.0, "seed": 2},
    )
    yield Case(
        "a function that draws more numbers",
        train=draws,
        settings={"dropout": 0.1, "width": 3},
        others={"dropout": 0.0, "width": 4},
    )
    yield Case("", train=deaf, settings={"steps": 10, "lr": 0.1}, others={"lr": 0.3, "steps": 20})


def see_runs(answer: Any, case: Case) -> Record:
    """Observe the result, and whether each run has another one that draws the same numbers."""
    states: list[bytes] = []

    def train(**settings: Any) -> float:
        states.append(torch.get_rng_state().numpy().tobytes())
        return case.inputs["train"](**settings)

    record = function()(answer, Case(case.what, **case.inputs | {"train": train}))
    return {"fair": len(states) < 2 or all(states.count(one) > 1 for one in states), **record}


ONE = "result(**{name: others[name]}) == usual"

ignored = Exercise(
    NOTEBOOK,
    "ignored",
    sweeps,
    observe=see_runs,
    may_seed=True,
    is_part=True,
    says={
        "fair": "`train` draws random numbers, so two runs differ even with the same settings. Let "
        "every run begin with the same seed.",
    },
    smaller="A run ends at 3.35. You change only the learning rate, and it ends at 3.35 again. "
    "What do you conclude if both runs had the same seed, and what if they hadn't?",
    wrong={
        "those are the settings that have an effect. The ones without are wanted.": (
            "== usual",
            "!= usual",
        ),
        "you change all settings at once. Then one that works hides those that don't.": (
            ONE,
            "result(**others) == usual",
        ),
        "you keep the changes of the settings before. Change one at a time, because two changes "
        "can cancel each other.": (
            "    return [name for name in settings if result(**{name: others[name]}) == usual]",
            "    found, now = [], {}\n"
            "    for name in settings:\n"
            "        now[name] = others[name]\n"
            "        if result(**now) == usual:\n"
            "            found.append(name)\n"
            "    return found",
        ),
        "you compare with the run before, and not with the usual settings.": (
            "    return [name for name in settings if result(**{name: others[name]}) == usual]",
            "    found = []\n"
            "    for name in settings:\n"
            "        now = result(**{name: others[name]})\n"
            "        if now == usual:\n"
            "            found.append(name)\n"
            "        usual = now\n"
            "    return found",
        ),
        "the names are wanted in the order of `settings`.": ("in settings if", "in others if"),
        "a small effect is an effect. With the same seed, compare exactly.": (
            ONE,
            "abs(result(**{name: others[name]}) - usual) < 1e-3",
        ),
        "you leave a setting out instead of changing it.": (
            "train(**(settings | changed))",
            "train(**{name: settings[name] for name in settings if name not in changed})",
        ),
    },
)
