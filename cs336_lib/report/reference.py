"""Judge a run by recorded runs of the same recipe, and name likely causes where it is off."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs336_lib import schedule
from cs336_lib.config import CHANGEABLE, TrainConfig
from cs336_lib.data.corpus import DATA
from cs336_lib.formatting import digits
from cs336_lib.io import read_json
from cs336_lib.report.compare import Run
from cs336_lib.report.published import beside, is_gpt2
from cs336_lib.report.readings import (
    FEWEST,
    NEAR,
    SPREADS,
    curve_of,
    curve_readings,
    weight_readings,
)

RECORDED = DATA / "reference_runs.json"

# Losses of another text or shape aren't comparable.
TASK = ("train_data", "tokenizer", "init_from", "n_layer", "n_head", "n_embd", "block_size")
# Rates that differ by less don't show in a curve. A schedule without warm-up decays a bit earlier.
SAME_RATE = 0.05
# They change a curve hardly or by chance only, so they aren't part of a recipe.
HARMLESS = (*CHANGEABLE, "seed", "precision", "tf32", "deterministic")


@dataclass(frozen=True)
class Seen:
    """A run's readings beside those of the reference's runs."""

    run: Run
    readings: dict[str, float]
    reference: list[dict[str, float]]

    def mean(self, name: str) -> float:
        """Return the mean of a reading over the reference's runs."""
        return statistics.fmean(one[name] for one in self.reference)

    def ratio(self, name: str) -> float:
        """Return a reading divided by the reference's mean, or 1 if the run doesn't have it."""
        return self.readings[name] / self.mean(name) if name in self.readings else 1.0

    def is_off(self, name: str) -> bool:
        """Return whether a reading is outside of what chance and another CPU explain."""
        if name not in self.readings or NEAR[name] == math.inf:
            return False
        spread = statistics.stdev(one[name] for one in self.reference)
        near = max(NEAR[name] * abs(self.mean(name)), SPREADS * spread)
        return abs(self.readings[name] - self.mean(name)) > near

    def beside(self, name: str) -> str:
        """Format a reading and the reference's range."""
        known = [one[name] for one in self.reference]
        reference = f"reference {digits(min(known))} to {digits(max(known))}"
        return f"{digits(self.readings[name])} ({reference})"


def rate_differs(seen: Seen, steps: range) -> str:
    """Compare the logged rates of some steps with the ones of the config."""
    for row in seen.run.rows:
        rate = row.get("lr")
        if row["step"] not in steps or not isinstance(rate, (int, float)):
            continue
        expected = schedule.learning_rate(row["step"], seen.run.config)
        if not math.isclose(rate, expected, rel_tol=SAME_RATE, abs_tol=1e-12):
            found = f"{digits(rate)} where the config gives {digits(expected)}"
            return f"the logged rate of step {row['step']} is {found}"
    return ""


def no_warmup(seen: Seen) -> str:
    """Return evidence that the rate is as configured, but not in the warm-up."""
    end = seen.run.config.warmup_steps
    rest = rate_differs(seen, range(end, seen.run.config.max_steps))
    return "" if rest else rate_differs(seen, range(end))


def other_schedule(seen: Seen) -> str:
    """Return evidence that the rate isn't the configured one, even after the warm-up."""
    return rate_differs(seen, range(seen.run.config.warmup_steps, seen.run.config.max_steps))


def bf16_weights(seen: Seen) -> str:
    """Return evidence that weights are stored in 16 bits. Of fp32 weights, 1 in 65,536 fits."""
    share = seen.readings.get("in_bf16", 0.0)
    return f"{share:.0%} of the checkpoint's weights are numbers of bf16" if share > 0.5 else ""


def undivided_sum(seen: Seen) -> str:
    """Return evidence that the gradient is a multiple, at the same loss.

    The first step's gradient depends on the initial weights and the batch alone.
    """
    ratio = seen.ratio("first_norm")
    if not seen.is_off("first_norm") or ratio < 1 or seen.is_off("start"):
        return ""
    norm = seen.beside("first_norm")
    return f"the first gradient has norm {norm}, {ratio:.1f} times as much, at the usual loss"


def sees_targets(seen: Seen) -> str:
    """Return evidence that the loss is lower than a model of this size can reach."""
    low = seen.ratio("late") < 0.6
    return f"the training loss ends at {seen.beside('late')}" if low else ""


def repeated_data(seen: Seen) -> str:
    """Return evidence that the run knows its training text by heart, but not the validation text.

    Chance moves the gap by a few standard deviations of the reference's gaps. A tenth of the loss
    is far more, whatever the preset.
    """
    gaps = [one["gap"] for one in seen.reference]
    gap = seen.readings["gap"]
    if not gap > max(gaps) + 0.1 * seen.mean("late"):  # NaN without a validation at the end
        return ""
    return f"the validation loss lies above the training loss by {seen.beside('gap')}"


def not_shuffled(seen: Seen) -> str:
    """Return evidence that neighbouring batches are alike.

    The losses of a run with too high a rate wander, too, but its weights are too large.
    """
    if not seen.is_off("waves") or seen.ratio("waves") < 1 or seen.ratio("size") > 1.2:
        return ""
    return (
        "the losses of neighbouring steps move together: their variance is "
        f"{seen.beside('waves')} times what differences from step to step suggest"
    )


def small_batch(seen: Seen) -> str:
    """Return evidence that a step averages over fewer sequences than it should.

    The scatter of a mean grows with the square root of what it averages over.
    """
    ratio = seen.ratio("scatter")
    if not seen.is_off("scatter") or ratio < 1:
        return ""
    return (
        f"a step's loss scatters by {seen.beside('scatter')}, as if the batch had about "
        f"{ratio**-2:.0%} of its sequences"
    )


def decay_on_norms(seen: Seen) -> str:
    """Return evidence that the norms' gains shrank and the matrices' weights didn't."""
    if not seen.is_off("gain") or seen.ratio("gain") > 0.85 or seen.ratio("size") > 1.2:
        return ""
    return f"the mean gain of the norms is {seen.beside('gain')}, and matrices didn't shrink"


def rate_too_high(seen: Seen) -> str:
    """Return evidence that weights grew too large. Their size follows the length of updates."""
    if not seen.is_off("size") or seen.ratio("size") < 1.1 or seen.ratio("late") < 1:
        return ""
    return f"the matrices' weights have a root mean square of {seen.beside('size')}"


def rate_too_low(seen: Seen) -> str:
    """Return evidence that weights stayed small, where gradients are larger."""
    if not seen.is_off("late") or seen.ratio("late") < 1:
        return ""
    if seen.is_off("size") and seen.ratio("size") < 0.9:
        return f"the matrices' weights have a root mean square of {seen.beside('size')}"
    if "size" not in seen.readings and seen.is_off("norm") and seen.ratio("norm") > 1.5:
        return f"the gradient norm stays at {seen.beside('norm')}"
    return ""


def wrong_shift(seen: Seen) -> str:
    """Return evidence that the task is harder, while the training is as usual."""
    if not seen.is_off("late") or seen.ratio("late") < 1.1 or seen.ratio("norm") > 1:
        return ""
    if seen.ratio("size") > 1.1:
        return ""
    if "size" not in seen.readings:
        look = "and without its last checkpoint, too high a rate looks the same"
    else:
        look = "although the weights have about the usual size"
    return f"the training loss ends at {seen.beside('late')}, {look}"


@dataclass(frozen=True)
class Cause:
    """A likely cause, what shows it, and what to look at in the code."""

    name: str
    evidence: Callable[[Seen], str]
    advice: str


# These need no reference, because a run contradicts itself.
CERTAIN = (
    Cause("no warm-up", no_warmup, "the rate's first steps"),
    Cause("other schedule", other_schedule, "the step and the config that the schedule gets"),
    Cause("16-bit weights", bf16_weights, "that weights stay in fp32 and only matmuls are bf16"),
)
# Next comes what only one cause can do, and last what remains. The first that shows is the name of
# a run's trouble, and the others are what else was seen.
CAUSES = (
    *CERTAIN,
    Cause(
        "undivided sum", undivided_sum, "that each micro-batch's loss is divided by their number"
    ),
    Cause("repeated data", repeated_data, "that the loader goes on to the next shard"),
    Cause("targets are inputs", sees_targets, "the targets' shift, and the causal mask"),
    Cause("not shuffled", not_shuffled, "the order of the windows"),
    Cause("small batch", small_batch, "that ranks read different windows, and their number"),
    Cause("decay on norms", decay_on_norms, "the parameter groups of the optimizer"),
    Cause("rate too high", rate_too_high, "what scales the update after the schedule"),
    Cause("rate too low", rate_too_low, "what scales the update after the schedule"),
    Cause("wrong shift", wrong_shift, "that targets are the next tokens"),
)


@dataclass(frozen=True)
class Verdict:
    """A judgement in a line, and the lines that give its reasons."""

    line: str
    reasons: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([self.line, *(f"  {reason}" for reason in self.reasons)])


def recipe_of(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that decide a curve, apart from chance."""
    fields = dataclasses.asdict(config).items()
    return {name: value for name, value in fields if name not in HARMLESS}


def judge(run: Run) -> Verdict:
    """Judge a run by published curves if it trains GPT-2 124M, and else by runs that we recorded.

    The run may be unfinished. One of another text or shape isn't judged.
    """
    if is_gpt2(run):
        line, *reasons = beside(run)
        return Verdict(line, reasons)
    return by_recorded(run)


def by_recorded(run: Run) -> Verdict:
    """Judge a run by the runs that ship with the package.

    Settings that differ come first, because they explain a different curve.
    """
    content = read_json(RECORDED)
    recorded, recipe, steps = content["recipe"], recipe_of(run.config), len(run.rows)
    differing = [name for name in recipe if recipe[name] != recorded.get(name)]
    if other := [name for name in TASK if name in differing]:
        return Verdict(f"no reference: no recorded run has this {' and '.join(other)}")
    if steps < FEWEST:
        return Verdict(f"no reference: {steps} steps are too few; at least {FEWEST} expected")
    readings = curve_readings(curve_of(run.rows), steps)
    reference = [curve_readings(one, steps) for one in content["runs"]]
    if steps == run.config.max_steps:
        readings |= weight_readings(Path(run.name), steps)
    if not differing:
        if steps == run.config.max_steps:
            reference = [
                r | one["weights"] for r, one in zip(reference, content["runs"], strict=True)
            ]
        return explain(Seen(run, readings, reference))
    seen = Seen(run, readings, reference)
    reasons = [describe(name, recipe[name], recorded.get(name)) for name in differing]
    reasons += [f"also off: {cause.name}, {said}" for cause, said in causes(seen, CERTAIN)]
    reasons.append(f"training loss {seen.beside('late')} over the last tenth of {steps:,} steps")
    return Verdict(f"off: other settings ({', '.join(differing)})", reasons)


def causes(seen: Seen, possible: Sequence[Cause] = CAUSES) -> list[tuple[Cause, str]]:
    """Return the causes that show, each with its evidence."""
    return [(cause, said) for cause in possible if (said := cause.evidence(seen))]


def describe(name: str, ours: object, theirs: object) -> str:
    """Describe a setting that differs."""
    share = ""
    if isinstance(ours, (int, float)) and isinstance(theirs, (int, float)) and theirs:
        share = f", {ours / theirs:.0%} of it" if not isinstance(theirs, bool) else ""
    return f"{name} is {ours!r}, and the reference's is {theirs!r}{share}"


def explain(seen: Seen) -> Verdict:
    """Name the causes that the readings show, or that there are none."""
    if found := causes(seen):
        first, evidence = found[0]
        reasons = [f"evidence: {evidence}", f"check {first.advice}"]
        reasons += [f"also seen: {said} ({cause.name}?)" for cause, said in found[1:]]
        return Verdict(f"off: {first.name}", reasons)
    names = [name for name in NEAR if name in seen.readings]
    if off := [name for name in names if seen.is_off(name)]:
        reasons = [f"{name} {seen.beside(name)}" for name in off]
        return Verdict("off, and the cause isn't one that we know", reasons)
    loss = f"training loss {seen.beside('late')} over the last tenth"
    unread = "" if "size" in seen.readings else "; no weights of its last step were read"
    return Verdict(f"normal: {loss}, and {len(names) - 2} other readings agree{unread}")
