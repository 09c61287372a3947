"""Recorded and published runs of recipes, in pairs, and what their differences are worth."""

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cs336_course.pages.recipe_of_today.recipe_of_today import SIZES, Rates
from cs336_lib.data.corpus import DATA

T_95 = 2.776  # a |t| above it has p < 0.05 with five differences
LEVEL = 0.05
FULL_SCALE_STD = 0.0013  # of the final loss between seeds, as modded-nanogpt's rules assume
LOGS = "https://github.com/KellerJordan/modded-nanogpt/tree/master/records/"


@dataclass(frozen=True)
class Pair:
    """A change that was tried on a recipe, with the same seeds before and after.

    Attributes:
        change: Short name of the change.
        base: Short names of the changes that the recipe has without it.
        rates: Peak rates with the change.
        before: Losses without the change [nats per letter], one per seed.
        after: Losses with it, one per seed.
        kept: Whether the recipe kept it.
    """

    change: str
    base: tuple[str, ...]
    rates: Rates
    before: Sequence[float]
    after: Sequence[float]
    kept: bool

    @property
    def differences(self) -> list[float]:
        """Loss with the change minus loss without it, by seed; negative is better."""
        return [after - before for before, after in zip(self.before, self.after, strict=True)]

    @property
    def mean(self) -> float:
        """Mean of the differences."""
        return sum(self.differences) / len(self.differences)

    @property
    def half_width(self) -> float:
        """Half the width of the mean's 95 % interval, by the t-test's assumption."""
        return T_95 * statistics.stdev(self.differences) / len(self.differences) ** 0.5

    @property
    def p(self) -> float:
        """The p-value of a paired t-test."""
        return paired_p_value(self.differences)

    @property
    def passes(self) -> bool:
        """Whether the rule keeps the change. Simpler norms stay unless it says that they hurt."""
        is_sure, helps = self.p < LEVEL, self.mean < 0
        return helps or not is_sure if self.change == "bare" else helps and is_sure


@dataclass(frozen=True)
class Published:
    """A published run to a loss of 3.28 on FineWeb, in steps of 524,288 tokens.

    Attributes:
        name: What distinguishes the recipe from the one before.
        steps: Number of steps.
        seeds: Number of runs of which `loss` is the mean.
        loss: Validation loss in nats per token.
        source: Log or table, below `LOGS`.
    """

    name: str
    steps: int
    seeds: int
    loss: float
    source: str


# Each row of the first list adds its change to the row before it.
LADDER = [
    Published("GPT-2's recipe, in llm.c", 19_560, 1, 3.2722, "track_1_short/2024-10-13_llmc"),
    Published("rate tripled, RoPE", 9_536, 1, 3.2760, "track_1_short/2024-06-06_AdamW"),
    Published("Muon", 6_200, 1, 3.2785, "track_1_short/2024-10-10_Muon"),
    Published("ReLU², QK-norm, zeros", 5_100, 1, 3.2741, "track_1_short/2024-10-14_ModernArch"),
    Published("own head, from zero", 4_578, 1, 3.2762, "track_1_short/2024-11-03_UntieEmbed"),
]
# One architecture with all of this; only the optimizer's settings differ.
TRACK_3 = [
    Published("AdamW, 'likely undertuned'", 5_625, 1, 3.2790, "track_3_optimization, result 2"),
    Published("Muon, first try", 3_600, 1, 3.2777, "track_3_optimization, result 1"),
    Published("Muon, tuned", 3_250, 10, 3.2787, "track_3_optimization, result 36"),
    Published("with SOAP and averages", 2_690, 8, 3.2783, "track_3_optimization, result 46"),
]
# Final losses of the ten logs of result 36: one recipe, ten seeds.
TEN_SEEDS = [3.27722, 3.27941, 3.27699, 3.28091, 3.27822, 3.28034, 3.27873, 3.27932, 3.27720]
TEN_SEEDS += [3.27825]


def recorded() -> dict[str, Any]:
    """Return the runs that data/make_today_runs.py has recorded."""
    return json.loads((DATA / "today_runs.json").read_text(encoding="utf-8"))


def losses(
    runs: dict[str, Any],
    size: str,
    changes: Sequence[str],
    steps: int | None = None,
    first_seed: int = 0,
) -> list[float]:
    """Return the final losses of a recipe from five seeds.

    Args:
        runs: As `recorded` returns them.
        size: Name of the size.
        changes: Short names of the recipe's changes, in their order.
        steps: Number of steps, if it isn't the size's own.
        first_seed: First of the five seeds.
    """
    return [row["loss"] for row in five(runs, size, changes, steps, first_seed)]


def five(
    runs: dict[str, Any],
    size: str,
    changes: Sequence[str],
    steps: int | None = None,
    first_seed: int = 0,
) -> list[dict[str, Any]]:
    """Return the rows of a recipe's runs from five seeds."""
    steps, seeds = steps or SIZES[size].steps, range(first_seed, first_seed + 5)
    rows = [row for row in rows_of(runs, size, changes) if row["steps"] == steps]
    return sorted((row for row in rows if row["seed"] in seeds), key=lambda row: row["seed"])


def tenths(runs: dict[str, Any], size: str, changes: Sequence[str]) -> list[list[float]]:
    """Return the mean training losses of each tenth of the full-length runs, one row per seed."""
    return [row["tenths"] for row in five(runs, size, changes)]


def rates(runs: dict[str, Any], size: str, changes: Sequence[str]) -> Rates:
    """Return the peak rates of a recipe."""
    return rates_of(five(runs, size, changes)[0])


def sweep(runs: dict[str, Any], size: str, changes: Sequence[str]) -> dict[Rates, float]:
    """Return the mean losses of the tuning seeds, by the rates."""
    found: dict[Rates, list[float]] = {}
    for row in rows_of(runs, size, changes):
        if row["seed"] in runs["tuning_seeds"]:
            found.setdefault(rates_of(row), []).append(row["loss"])
    return {chosen: sum(values) / len(values) for chosen, values in found.items()}


def by_seed(runs: dict[str, Any], size: str, changes: Sequence[str], adamw: float) -> list[float]:
    """Return the losses of the tuning seeds at one rate of AdamW."""
    rows = (row for row in rows_of(runs, size, changes) if row["adamw"] == adamw)
    return [row["loss"] for row in rows if row["seed"] in runs["tuning_seeds"]]


def rates_of(row: dict[str, Any]) -> Rates:
    """Return the peak rates of a recorded run."""
    return Rates(row["adamw"], row["muon"], row["table"])


def rows_of(runs: dict[str, Any], size: str, changes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a recipe at a size."""
    wanted = size, list(changes)
    return [row for row in runs["runs"] if (row["size"], row["changes"]) == wanted]


def pairs(runs: dict[str, Any], size: str) -> list[Pair]:
    """Return the pairs of the path whose runs are recorded, in its order."""
    found = []
    for step in runs["path"]:
        base, first = tuple(step["base"]), step["first_seed"] if size == "small" else 0
        tried = (*base, step["change"])
        before, after = (losses(runs, size, c, first_seed=first) for c in (base, tried))
        if len(before) == len(after) == 5:
            chosen = rates(runs, size, tried)
            found.append(Pair(step["change"], base, chosen, before, after, step["kept"]))
    return found


def names(found: Sequence[Pair], long: Mapping[str, str]) -> list[str]:
    """Return a name for each pair, which also tells the two trials of a change apart."""
    tried, told = [pair.change for pair in found], []
    for place, change in enumerate(tried):
        trial = ("first", "second")[tried[:place].count(change)]
        told.append(long[change] + f", {trial} trial" * (tried.count(change) > 1))
    return told


def crossed(runs: dict[str, Any], size: str) -> dict[tuple[bool, float], list[float]]:
    """Return the losses of the recipes before and after QK-norm, each at both of their rates.

    Returns:
        Losses of the seeds 0 to 4, by whether the recipe has QK-norm and by AdamW's rate.
    """
    base = next(tuple(step["base"]) for step in runs["path"] if step["change"] == "qk_norm")
    found = {}
    for changes in (base, (*base, "qk_norm")):
        others = [row for row in runs["crossed"] if row["size"] == size]
        others = [row for row in others if row["changes"] == list(changes)]
        for rows in (five(runs, size, changes), sorted(others, key=lambda row: row["seed"])):
            place = "qk_norm" in changes, rows[0]["adamw"]
            found[place] = [row["loss"] for row in rows]
    return dict(sorted(found.items()))


def sides(corners: Mapping[tuple[bool, float], Sequence[float]]) -> dict[str, Pair]:
    """Return what the norm and the rate do alone, from what `crossed` returns."""
    low, high = sorted({rate for _, rate in corners})
    steps = {
        f"the norm, at rate {low}": ((False, low), (True, low)),
        f"the norm, at rate {high}": ((False, high), (True, high)),
        "the rate, without the norm": ((False, low), (False, high)),
        "the rate, with the norm": ((True, low), (True, high)),
        "both": ((False, low), (True, high)),
    }
    return {
        name: Pair(name, (), Rates(end[1]), corners[start], corners[end], kept=False)
        for name, (start, end) in steps.items()
    }


def recipe(runs: dict[str, Any]) -> tuple[str, ...]:
    """Return the changes that were kept."""
    return tuple(step["change"] for step in runs["path"] if step["kept"])


def paired_p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of a t-test on five differences, against a mean of 0.

    With four degrees of freedom, Student's distribution has a closed form (Student 1908). With
    x = t²/4 and s = sqrt(x / (1 + x)), a |t| as large or larger has the chance
    1 - s (3 - s²) / 2. Differences that are all 0 have a p-value of 1.

    Raises:
        ValueError: If there aren't five differences.
    """
    if len(differences) != 5:
        raise ValueError(f"{len(differences)} differences, but the formula is for 5")
    d = torch.tensor(differences, dtype=torch.float64)
    if not d.any():
        return 1.0
    x = 5 * d.mean() ** 2 / d.var() / 4
    s = (x / (1 + x)).sqrt()
    return (1 - s * (3 - s**2) / 2).item()


def told(p: float, digits: int = 4) -> str:
    """Return "p = 0.0123", or "p < 0.0001" for a p-value that would be rounded to 0."""
    return f"p = {p:.{digits}f}" if p >= 10**-digits else f"p < {10**-digits:.{digits}f}"


def wrong_sides(before: Sequence[float], after: Sequence[float]) -> tuple[int, int]:
    """Count the pairs of single runs whose difference has another sign than the mean's.

    Returns:
        The count, and the number of pairs of a run before with a run after.
    """
    mean = sum(after) - sum(before)
    found = [(b - a) * mean >= 0 for a, b in itertools.product(after, before)]
    return sum(found), len(found)
