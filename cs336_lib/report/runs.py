"""Read runs, compare them in a table, and judge them by runs that we know.

A run of the recipe that ships is judged by recorded runs of the same recipe: a few telling numbers
are read off its metrics and weights, and where they are off, likely causes are named. A GPT-2 124M
is put beside the published curve of llm.c.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cs336_lib import formatting, schedule
from cs336_lib.config import CHANGEABLE, GPTConfig, TrainConfig, UserError, from_json
from cs336_lib.data.corpus import DATA
from cs336_lib.formatting import digits, duration, short
from cs336_lib.hugging_face import read_tensors
from cs336_lib.io import inside, read_json
from cs336_lib.training import checkpoint, run_folder
from cs336_lib.training.metrics import check_rows, read_metrics

# Losses are comparable only between runs in which these agree.
OF_THE_TASK = ("train_data", "val_data", "tokenizer", "eval_tokens", "block_size")

NONE = "-"

LOG = "log.jsonl"  # of train_gpt2.py


@dataclass(frozen=True)
class Run:
    """Name, config and metrics of a run folder."""

    name: str
    config: TrainConfig
    rows: list[dict[str, Any]]


def read_run(folder: Path) -> Run:
    """Read the config and metrics of a finished or unfinished run, also one of train_gpt2.py.

    Numbers and samples of the wrong type are removed from the rows.

    Raises:
        FileNotFoundError: If the folder, config.json or metrics.jsonl doesn't exist.
        ValueError: If a file is corrupt or contains no finished step.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such run folder; `cs336 train` makes one")
    path, metrics = (inside(folder, name) for name in (run_folder.CONFIG, run_folder.METRICS))
    written = read_json(path)
    if (folder / LOG).exists():
        metrics = folder / LOG
        config, rows = of_one_file(folder, written)
    else:
        config = from_json(TrainConfig, written, path)
        if not metrics.exists():
            raise FileNotFoundError(f"{metrics}: no such file")
        rows = read_metrics(metrics)
        check_rows(folder, rows)
    if not rows:
        raise UserError(f"{metrics}: no step is finished yet")
    for row in rows:
        if not isinstance(row.get("sample"), str):
            row.pop("sample", None)
    return Run(str(folder), config, rows)


def of_one_file(folder: Path, written: dict[str, Any]) -> tuple[TrainConfig, list[dict[str, Any]]]:
    """Read a run of train_gpt2.py, which uses other names and logs no tokens.

    Raises `UserError` if its files are malformed.
    """
    known = {field.name for field in dataclasses.fields(TrainConfig)} - {"compile"}
    fields = {name: value for name, value in written.items() if name in known}
    is_gpt2 = written.get("vocab_size") == GPTConfig().vocab_size
    fields |= {"tokenizer": "gpt2" if is_gpt2 else "char", "train_data": written.get("data", "")}
    config = from_json(TrainConfig, fields, folder / run_folder.CONFIG)

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        seconds, tokens = row["seconds"], config.batch_tokens
        speed = {"step_ms": 1000 * seconds, "tokens_per_sec": tokens / seconds}
        return row | speed | {"tokens": (row["step"] + 1) * tokens, "train_loss": row["loss"]}

    return config, read_metrics(inside(folder, LOG), convert)


def outcome(run: Run) -> dict[str, str]:
    """Format a run's progress, losses (nats per token), speed and time for `table`."""
    losses = [row["train_loss"] for row in run.rows if row.get("train_loss") is not None]
    recent = losses[-max(1, len(losses) // 20) :]  # one batch is too noisy
    measured = [(row["val_loss"], row["step"] + 1) for row in run.rows if "val_loss" in row]
    best = min(measured, default=None)
    seconds = sum(row["step_ms"] for row in run.rows) / 1000
    found = {
        "steps": f"{run.rows[-1]['step'] + 1:,} of {run.config.max_steps:,}",
        "tokens": f"{run.rows[-1]['tokens']:,}",
        "training loss (last 5%)": f"{statistics.fmean(recent):.4f}" if recent else NONE,
        "validation loss, final": f"{measured[-1][0]:.4f}" if measured else NONE,
        "validation loss, best": f"{best[0]:.4f} (step {best[1]:,})" if best else NONE,
        "tokens/s (median)": f"{statistics.median(r['tokens_per_sec'] for r in run.rows):,.0f}",
        "time in steps": duration(seconds),
    }
    if scores := [row["hellaswag"] for row in run.rows if "hellaswag" in row]:
        found["HellaSwag, final"] = f"{scores[-1]:.4f}"
    if speeds := [row["mfu"] for row in run.rows if row.get("mfu") is not None]:
        found["MFU (median)"] = f"{statistics.median(speeds):.1%}"
    return found


def table(runs: Sequence[Run]) -> str:
    """Format a table that compares runs, with one column per run.

    The rows are the config fields that differ, followed by the results.
    """
    configs = [dataclasses.asdict(run.config) | {"run_dir": "", "resume": ""} for run in runs]
    fields = {name: [str(config[name]) or NONE for config in configs] for name in configs[0]}
    changed = {name: values for name, values in fields.items() if len(set(values)) > 1}
    outcomes = [outcome(run) for run in runs]
    names = dict.fromkeys(name for outcome in outcomes for name in outcome)
    results = {name: [outcome.get(name, NONE) for outcome in outcomes] for name in names}
    rows = {"": [run.name for run in runs], **changed, **results}
    lines = formatting.table([(name, *cells) for name, cells in rows.items()])
    lines.insert(1 + len(changed), "")
    if other := [name for name in OF_THE_TASK if name in changed]:
        lines += ["", f"Losses of different {' and '.join(other)} are not comparable."]
    return "\n".join(lines)


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

    def is_high(self, name: str) -> bool:
        """Return whether a reading is off, and above the reference's."""
        return self.is_off(name) and self.ratio(name) >= 1

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
    if not seen.is_high("first_norm") or seen.is_off("start"):
        return ""
    norm, ratio = seen.beside("first_norm"), seen.ratio("first_norm")
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
    if not seen.is_high("waves") or seen.ratio("size") > 1.2:
        return ""
    return (
        "the losses of neighbouring steps move together: their variance is "
        f"{seen.beside('waves')} times what differences from step to step suggest"
    )


def small_batch(seen: Seen) -> str:
    """Return evidence that a step averages over fewer sequences than it should.

    The scatter of a mean grows with the square root of what it averages over.
    """
    if not seen.is_high("scatter"):
        return ""
    share = f"{seen.ratio('scatter') ** -2:.0%} of its sequences"
    return f"a step's loss scatters by {seen.beside('scatter')}, as if the batch had about {share}"


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
    if not seen.is_high("late"):
        return ""
    if seen.is_off("size") and seen.ratio("size") < 0.9:
        return f"the matrices' weights have a root mean square of {seen.beside('size')}"
    if "size" not in seen.readings and seen.is_off("norm") and seen.ratio("norm") > 1.5:
        return f"the gradient norm stays at {seen.beside('norm')}"
    return ""


def wrong_shift(seen: Seen) -> str:
    """Return evidence that the task is harder, while the training is as usual."""
    is_harder = seen.is_off("late") and seen.ratio("late") >= 1.1
    if not is_harder or seen.ratio("norm") > 1 or seen.ratio("size") > 1.1:
        return ""
    look = "although the weights have about the usual size"
    if "size" not in seen.readings:
        look = "and without its last checkpoint, too high a rate looks the same"
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
    Cause("undivided sum", undivided_sum, "that micro-batches' losses are divided by their number"),
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
    """Judge a run by a published curve if it trains GPT-2 124M, and else by runs that we recorded.

    The run may be unfinished. One of another text or shape isn't judged.
    """
    return Verdict(beside(run)) if is_gpt2(run) else by_recorded(run)


def by_recorded(run: Run) -> Verdict:
    """Judge a run by the runs that ship with the package.

    Settings that differ come first, because they explain a different curve.
    """
    content = read_json(RECORDED)
    recorded, recipe = content["recipe"], recipe_of(run.config)
    # A longer run is read as far as the recorded ones go.
    steps = min(len(run.rows), *(len(one["train_loss"]) for one in content["runs"]))
    differing = [name for name in recipe if recipe[name] != recorded.get(name)]
    if other := [name for name in TASK if name in differing]:
        return Verdict(f"no reference: no recorded run has this {' and '.join(other)}")
    if steps < FEWEST:
        return Verdict(f"no reference: {steps} steps are too few; at least {FEWEST} expected")
    readings = curve_readings(curve_of(run.rows), steps)
    reference = [curve_readings(one, steps) for one in content["runs"]]
    if steps == run.config.max_steps:
        readings |= weight_readings(Path(run.name), steps)
        pairs = zip(reference, content["runs"], strict=True)
        reference = [read | one["weights"] for read, one in pairs]
    seen = Seen(run, readings, reference)
    if not differing:
        return explain(seen)
    reasons = [
        f"{name} is {recipe[name]!r}, and the reference's is {recorded.get(name)!r}"
        for name in differing
    ]
    reasons += [f"also off: {cause.name}, {said}" for cause, said in causes(seen, CERTAIN)]
    reasons.append(f"training loss {seen.beside('late')} over the last tenth of {steps:,} steps")
    return Verdict(f"off: other settings ({', '.join(differing)})", reasons)


def causes(seen: Seen, possible: Sequence[Cause] = CAUSES) -> list[tuple[Cause, str]]:
    """Return the causes that show, each with its evidence."""
    return [(cause, said) for cause in possible if (said := cause.evidence(seen))]


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


PUBLISHED = DATA / "published_curves.json"

# Losses on another text of the web are higher or lower at every step, but by less than this.
OTHER_TEXT = 0.4
# The offset to the curve of the same recipe shouldn't grow by more than this after the warm-up.
GROWTH = 0.1
SETTLED = 10**9  # tokens from which curves of different warm-ups run side by side


def is_gpt2(run: Run) -> bool:
    """Return whether a run trains GPT-2 124M in GPT-2's tokens."""
    shape = GPTConfig()
    wanted = (shape.n_layer, shape.n_head, shape.n_embd, shape.block_size, "gpt2")
    config = run.config
    ours = (config.n_layer, config.n_head, config.n_embd, config.block_size, config.tokenizer)
    return ours == wanted and not config.init_from


def beside(run: Run) -> str:
    """Judge by how far a run lies above the published curve, and whether it falls behind.

    Losses between two points of the curve are interpolated.
    """
    (same,) = (one for one in read_json(PUBLISHED)["curves"] if one["is_gpt2"])
    known, name = np.array(same["val_loss"]), same["name"]
    measured = [(row["tokens"], row["val_loss"]) for row in run.rows if "val_loss" in row]
    measured = [point for point in measured if SETTLED <= point[0] <= known[-1, 0]]
    if not measured:
        last = short(known[-1, 0])
        return f"no reference: no validation between {short(SETTLED)} and {last} tokens yet"
    tokens, losses = np.array(measured).T
    offsets = losses - np.interp(tokens, known[:, 0], known[:, 1])
    above, growth = offsets[-1], offsets[-1] - offsets[0]
    if abs(above) > OTHER_TEXT:
        return f"off: {above:+.2f} nats beside {name}, more than another text of the web explains"
    if growth > GROWTH:
        return f"off: it falls behind {name} by {growth:.2f} nats from its first row to its last"
    return f"normal: {above:+.2f} nats beside {name}, and {growth:+.2f} since the first row"
