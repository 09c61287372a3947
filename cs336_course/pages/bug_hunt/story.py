"""Investigate five small training runs, of which each has one wrong line, by requests for evidence.

All runs are of `hunted_script` with the same seed, so they equal the healthy run, their twin, bit
for bit until the wrong line has acted for the first time. No run crashes. Every request is counted,
as in a real investigation, where each costs somebody's time.
"""

import dataclasses
import difflib
import functools
import hashlib
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cs336_course.pages.bug_hunt import hunted_script
from cs336_course.pages.bug_hunt.hunted_script import LENGTH, SAVED_EVERY, STEPS
from cs336_lib.config import UserError
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.tokenizer import CharTokenizer
from cs336_lib.system import hardware

BACKWARD = "            (loss / PIECES).backward()\n"
RESTORED = 'self.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))'
SUSPECTS = {
    "targets_not_shifted": (
        "the targets are the inputs, not the next tokens",
        ("rows[:, :-1], rows[:, 1:]", "rows[:, :-1], rows[:, :-1]"),
    ),
    "future_not_masked": (
        "attention also sees the tokens that come later",
        ("is_causal=True", "is_causal=False"),
    ),
    "replayed_data": (
        "every resume reads the batches from the first one again",
        ('self.batches = saved["batches"]', "self.batches = 0"),
    ),
    "optimizer_not_restored": (
        "every resume begins with an empty optimizer state",
        (RESTORED, "pass"),
    ),
    "dropout_in_evaluation": (
        "the validation loss is measured without `model.eval()`",
        ("self.model.eval()", "self.model.train()"),
    ),
    "loss_not_divided": (
        "the loss isn't divided by the number of micro-batches",
        (BACKWARD, "            loss.backward()\n"),
    ),
    "last_piece_only": (
        "`zero_grad` stands inside the loop over micro-batches",
        (BACKWARD, f"            self.optimizer.zero_grad()\n{BACKWARD}"),
    ),
    "no_zero_grad": (
        "gradients of earlier steps aren't cleared, until a resume begins with a new model",
        ("        self.optimizer.zero_grad()\n", ""),
    ),
    "schedule_per_piece": (
        "the schedule advances with every micro-batch, not with every step",
        ("self.scheduled += 1", "self.scheduled += PIECES"),
    ),
    "schedule_off_by_one": (
        "the schedule is one step late, so the first step has rate 0",
        ("rate(self.scheduled)", "rate(self.scheduled - 1)"),
    ),
    "decay_on_norms": (
        "the gains of the layer norms are decayed like matrices",
        ('"weight_decay": 0.0', '"weight_decay": DECAY'),
    ),
    "weights_too_large": (
        "the initial weights have a standard deviation of 1",
        ("STD = 32, 2, 0.2, 0.1", "STD = 32, 2, 0.2, 1.0"),
    ),
}
"""For each bug what it is, and the right line with the wrong one. Seven of them have no case."""
HASHES = ("d21a2db0", "5dfe4fae", "6d21a3ab", "b5b2c44a", "0985e674")
CASES = dict(zip("ABCDE", HASHES, strict=True))
"""For each case a hash of its letter and its bug, so that a look at it doesn't spoil the hunt."""
HEALTHY, TWIN = "healthy", "twin"
WARM_UP = "schedule_off_by_one"  # the case that the notebook solves
PARTS = {
    "embeddings": ("tokens", "positions"),
    "attention": ("qkv", "merge"),
    "MLP": ("up", "down"),
    "norm gains": ("norms",),
}
ROWS = 8  # steps per request
WRONG = 3  # requests that a wrong accusation costs


@dataclasses.dataclass(frozen=True)
class Record:
    """Everything that a run has left behind."""

    loss: list[float]
    grad_norm: list[float]
    rate: list[float]
    val_loss: list[float]
    """Before the first step and after every 8 steps."""
    batches: list[tuple[Tensor, Tensor]]
    """The first window of each step, and its targets."""
    checkpoints: list[dict[str, Any]]
    """Before the first step and after every 8 steps."""
    script: Any

    def end(self) -> float:
        """Return the mean loss of the last 16 steps."""
        return float(np.mean(self.loss[-16:]))

    def apart(self, twin: "Record") -> np.ndarray:
        """Return how far each step's logged numbers are from the twin's.

        It is the largest relative difference of loss, gradient norm and learning rate, and of the
        validation loss where there is one. It is 0 if all of them are equal.
        """
        found = [
            relative(getattr(self, n), getattr(twin, n)) for n in ("loss", "grad_norm", "rate")
        ]
        largest = np.max(found, axis=0)
        measured = np.arange(SAVED_EVERY - 1, STEPS, SAVED_EVERY)
        largest[measured] = np.maximum(
            largest[measured], relative(self.val_loss, twin.val_loss)[1:]
        )
        return largest


def relative(values: list[float], reference: list[float]) -> np.ndarray:
    """Return the relative differences of values from those of a reference."""
    return np.abs(np.subtract(values, reference)) / np.abs(reference)


@functools.cache
def corpus() -> tuple[Tensor, CharTokenizer]:
    """Return the plays as character ids, and their tokenizer."""
    text = shakespeare()
    tokenizer = CharTokenizer(text)
    return torch.from_numpy(tokenizer.encode(text).astype(np.int64)), tokenizer


@functools.cache
def edited_script(*edits: tuple[str, str]) -> types.ModuleType:
    """Return the script with some of its lines replaced.

    Args:
        edits: Texts of the script, each with another text.

    Raises:
        ValueError: If a text isn't in the script exactly once.
    """
    code = Path(hunted_script.__file__).read_text(encoding="utf-8")
    for old, new in edits:
        if code.count(old) != 1:
            raise ValueError(f"the script has {code.count(old)} times {old!r}")
        code = code.replace(old, new)
    module = types.ModuleType("hunted_script_edited")
    exec(compile(code, hunted_script.__file__, "exec"), module.__dict__)
    return module


def script_with(bug: str) -> types.ModuleType:
    """Return the script with a bug's line, or as it should be.

    Raises:
        UserError: If the bug is unknown.
    """
    if bug == HEALTHY:
        return edited_script()
    if bug not in SUSPECTS:
        raise UserError(f"there is no bug {bug!r}; the suspects are {', '.join(SUSPECTS)}")
    return edited_script(SUSPECTS[bug][1])


def diff(bug: str) -> str:
    """Return what repairing a bug changes in the script, by lines."""
    right, wrong = (Path(hunted_script.__file__).read_text(encoding="utf-8"),) * 2
    wrong = wrong.replace(*SUSPECTS[bug][1])
    lines = difflib.ndiff(wrong.splitlines(), right.splitlines())
    return "\n".join(f"    {line}" for line in lines if line.startswith(("-", "+")))


@functools.cache
def run(bug: str = HEALTHY, seed: int = 0) -> Record:
    """Train with one wrong line, or with none, and return all records."""
    return run_of(script_with(bug), seed)


def run_of(module: types.ModuleType, seed: int = 0) -> Record:
    """Train a script for all of its steps, which stops and resumes after every 8, and record it.

    The state of torch's global random generator isn't changed.
    """
    ids, tokenizer = corpus()
    with torch.random.fork_rng(devices=[]), hardware.threads_for(0):
        torch.manual_seed(0)
        script = module.Script(ids, tokenizer.vocab_size, seed)
        rows, batches = [], []
        val_loss, checkpoints = [script.evaluate()], [script.checkpoint()]
        for step in range(module.STEPS):
            x, y = script.batch()  # the one that the step is going to read
            batches.append((x[0], y[0]))
            rows.append(script.step(step))
            if (step + 1) % SAVED_EVERY == 0:
                val_loss.append(script.evaluate())
                checkpoints.append(script.checkpoint())
                script.resume(checkpoints[-1])
    loss, grad_norm, rate = (list(column) for column in zip(*rows, strict=True))
    return Record(loss, grad_norm, rate, val_loss, batches, checkpoints, script)


def final_loss(model_of: Record, weights_of: Record, batches: range) -> float:
    """Return the mean loss on some batches, of one run's final weights in another run's model."""
    script = loaded(model_of, STEPS, weights_of)
    script.model.eval()
    total = 0.0
    for number in batches:
        script.batches = number
        total += script.loss(*script.batch()).item()
    return total / len(batches)


def has_bug(case: str, bug: str) -> bool:
    """Return whether a case, or the one that the notebook solves, has a bug.

    Raises:
        UserError: If there is no such case.
    """
    cases = CASES | {"warm-up": WARM_UP, TWIN: HEALTHY}
    if case not in cases:
        raise UserError(f"there is no case {case!r}; there are {', '.join(cases)}")
    return cases[case] in (bug, hashlib.sha256(f"{case} {bug}".encode()).hexdigest()[:8])


def record(case: str) -> Record:
    """Return the records of a case from A to E, or of "warm-up"."""
    return run(next((bug for bug in SUSPECTS if has_bug(case, bug)), HEALTHY))


def repair(case: str, accused: str) -> Record:
    """Run a case again, with the line of the accused bug put right.

    If the case has another bug, then that line was right already, and nothing changes.

    Raises:
        UserError: If the bug or the case is unknown.
    """
    script_with(accused)
    return run_of(edited_script()) if accuse(case, accused) else record(case)


def trial(accused: Mapping[str, Any]) -> dict[str, Record]:
    """Repair each case as accused, and print how much of its log then equals its twin's.

    Args:
        accused: The bug of each case by its letter. Cases with ... are left out.
    """
    twin, repaired = run(), {}
    for case, bug in accused.items():
        if bug is ...:
            continue
        repaired[case] = repair(case, bug)
        differ = int(np.count_nonzero(repaired[case].apart(twin)))
        said = "the same run" if differ == 0 else f"{differ} of {STEPS} steps differ"
        print(f"{case} with {bug} repaired, and its twin: {said}")
        if differ == 0:
            print(diff(bug))
    if not repaired:
        print("no case is accused yet")
    return repaired


REQUESTS: dict[str, int] = {}
"""What has been asked about the cases, and what it cost. A cell that runs again asks no more."""


def accuse(case: str, bug: str) -> bool:
    """Return whether a case has a bug. A wrong accusation goes on the bill."""
    is_right = has_bug(case, bug)
    if not is_right and case in CASES:
        REQUESTS[f"{case}, accused of {bug}"] = WRONG
    return is_right


def request(case: str, kind: str, step: int) -> None:
    """Print evidence beside the twin's. Only evidence about the cases goes on the bill.

    Args:
        case: A letter from A to E, "warm-up" or "twin".
        kind: "rows", "rates" (8 steps from a step on), "batch" (of a step), "checkpoint",
            "evaluation" or "probe" (after 0, 8, 16, ... steps).
        step: The step.

    Raises:
        UserError: If there is no such evidence.
    """
    if kind not in EVIDENCE:
        raise UserError(f"there is no evidence {kind!r}; ask for {', '.join(EVIDENCE)}")
    has_bug(case, HEALTHY)  # or there is no such case
    text, asked = EVIDENCE[kind](case, step), f"{case}, {kind} {step}"
    if case in CASES:
        REQUESTS[asked] = 1
    print(f"{'request' if case in CASES else 'free'}: {asked}\n{text}")


def bill() -> None:
    """Print what the hunt has cost, and on which cases it went."""
    on = dict.fromkeys(sorted(asked[0] for asked in REQUESTS), 0)
    for asked, cost in REQUESTS.items():
        on[asked[0]] += cost
    spent = ", ".join(f"{case} {cost}" for case, cost in on.items())
    print(f"{sum(on.values())} requests{': ' if on else ''}{spent}")


# Evidence


def at(step: int, steps: int = STEPS) -> int:
    """Return a step, or raise a `UserError` if there is none."""
    if not 0 <= step < steps:
        raise UserError(f"there is no step {step}; the steps are 0 to {steps - 1}")
    return step


def saved_after(steps: int) -> int:
    """Return the number of the checkpoint after some steps, or raise a `UserError`."""
    if steps not in range(0, STEPS + 1, SAVED_EVERY):
        raise UserError(f"checkpoints are saved after 0, {SAVED_EVERY}, ..., {STEPS} steps")
    return steps // SAVED_EVERY


def side_by_side(rows: Mapping[Any, Iterable[tuple[float, float]]], head: str, digits: int) -> str:
    """Return pairs of a case's and its twin's numbers as a table, with * at unequal ones."""
    lines = [head]
    for name, pairs in rows.items():
        cells = "".join(
            f"{mine:12.{digits}f}{'*' if mine != twins else ' '}{twins:11.{digits}f}"
            for mine, twins in pairs
        )
        lines.append(f"{name!s:>10}{cells}")
    return "\n".join(lines)


def rows(case: str, step: int) -> str:
    """Return eight rows of the log."""
    return logged(case, step, {"loss": "loss", "grad norm": "grad_norm"})


def rates(case: str, step: int) -> str:
    """Return the learning rates that the optimizer used in eight steps."""
    return logged(case, step, {"rate": "rate"})


def logged(case: str, step: int, columns: Mapping[str, str]) -> str:
    """Return eight rows of some numbers, by their headings and their names in a record."""
    mine, twin = record(case), run()
    steps = range(at(step), min(step + ROWS, STEPS))
    pairs = [zip(getattr(mine, n), getattr(twin, n), strict=True) for n in columns.values()]
    table = list(zip(*pairs, strict=True))
    head = f"{'step':>10}" + "".join(f"{heading:>12}{'twin':>12}" for heading in columns)
    return side_by_side({n: table[n] for n in steps}, head, 5)


def batch(case: str, step: int) -> str:
    """Return the first window of a step's batch as text, with its targets."""
    read = corpus()[1].decode
    lines = []
    for name, run_ in (("case", record(case)), ("twin", run())):
        for what, ids in zip(("inputs", "targets"), run_.batches[at(step)], strict=True):
            lines.append(f"{name} {what:8}{read(ids.tolist())!r}")
    return "\n".join(lines)


def checkpoint(case: str, steps: int) -> str:
    """Return statistics of a checkpoint's weights, and how many steps AdamW has counted."""
    mine, twin = (run_.checkpoints[saved_after(steps)] for run_ in (record(case), run()))
    found = {}
    for part, names in PARTS.items():
        weights = [
            torch.cat([w.flatten() for name, w in saved["model"].items() if name.startswith(names)])
            for saved in (mine, twin)
        ]
        means, stds = ([f(w).item() for w in weights] for f in (torch.mean, torch.std))
        found[part] = [(means[0], means[1]), (stds[0], stds[1])]
    head = f"{'part':>10}{'mean':>12}{'twin':>12}{'std':>12}{'twin':>12}"
    steps_counted = f"{counted(mine)} steps counted by AdamW, twin {counted(twin)}"
    return f"{side_by_side(found, head, 5)}\n{steps_counted}"


def counted(saved: dict[str, Any]) -> int:
    """Return the number of steps that AdamW has counted."""
    state = saved["optimizer"]["state"]
    return int(state[0]["step"]) if state else 0


def loaded(run_: Record, steps: int, of: Record | None = None) -> Any:
    """Return a run's script with a checkpoint in its model, perhaps that of another run."""
    saved = (of or run_).checkpoints[saved_after(steps)]
    run_.script.model.load_state_dict(saved["model"])
    return run_.script


def evaluation(case: str, steps: int) -> str:
    """Return what a checkpoint's validation loss is, by its own script and by ours."""
    lines = []
    for name, run_ in (("case", record(case)), ("twin", run())):
        script = loaded(run_, steps)
        with torch.random.fork_rng(devices=[]), torch.no_grad(), hardware.threads_for(0):
            torch.manual_seed(1)
            twice = [script.evaluate() for _ in range(2)]
            script.model.eval()
            ours = script.loss(*script.windows(script.held_out, 32, seed=0)).item()
            script.model.train()
            noisy = script.loss(*script.windows(script.held_out, 32, seed=0)).item()
        lines.append(
            f"{name}: by its script {twice[0]:.5f}, again {twice[1]:.5f}; "
            f"by us in eval mode {ours:.5f}, in train mode {noisy:.5f}"
        )
    return "\n".join(lines)


def probe(case: str, steps: int) -> str:
    """Return at how many positions the prediction moves if the last of 32 letters is changed."""
    ids = corpus()[0][:LENGTH].clone()[None]
    other = ids.clone()
    other[0, -1] += 1
    moved = []
    for run_ in (record(case), run()):
        model = loaded(run_, steps).model.eval()
        with torch.no_grad():
            differs = (model(ids) != model(other)).any(-1)
        model.train()
        moved.append(int(differs.sum()))
    return f"predictions that move with the last of {LENGTH} letters: {moved[0]}, twin {moved[1]}"


EVIDENCE: dict[str, Callable[[str, int], str]] = {
    f.__name__: f for f in (rows, rates, batch, checkpoint, evaluation, probe)
}
