"""Exercise checks for notebook 06b on checkpoints, crash-safe training and bugs."""

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cs336_lib.classroom import bug_hunt as hunt
from cs336_lib.classroom.checks.report import exercise, expect

PIECES = {
    "A": "weights",
    "B": "optimizer",
    "C": "torch rng",
    "D": "data position",
    "E": "schedule",
    "F": "step",
}
CONFUSED = {
    ("B", "weights"): "with other weights the first loss would differ",
    ("B", "schedule"): "only the first learning rate is off in B; without the schedule, all are",
    ("C", "data position"): "the batch is the same in C",
    ("C", "weights"): "a model that lost its weights would be back at ln(V)",
    ("D", "torch rng"): "dropout doesn't change the batch; batches have a separate generator",
    ("E", "optimizer"): "the first update is right in E, so AdamW's state was there",
    ("E", "step"): "the run ended where it should in E",
    ("F", "schedule"): "the learning rates are right in F",
}


@exercise("")
def missing_pieces(answer: Mapping[str, str]) -> None:
    """Check the answer to which state was missing from the checkpoint in attempts A to F."""
    if all(value is ... for value in answer.values()):
        raise NotImplementedError
    for letter, piece in PIECES.items():
        given = answer.get(letter, ...)
        expect(given is not ..., f"{letter} has no answer yet.")
        expect(
            given in PIECES.values(),
            f"{letter}: {given!r} is not one of {', '.join(PIECES.values())}.",
        )
        hint = CONFUSED.get((letter, given), "look at the first thing that differs, in time")
        expect(given == piece, f"{letter} is not {given!r}: {hint}.")


STEPS, WARMUP, PEAK, LOWEST = 24, 4, 1e-2, 1e-3
WINDOWS, PIECE, LENGTH, CLIP = 8, 2, 32, 1.0
EVALUATED, SAVED, CUT_AT = 8, 5, 13
VOCAB = 64  # ids below 32 are for training, the others are held out
Script = Callable[[Path, nn.Module, np.ndarray, np.ndarray], Sequence[Mapping[str, float]]]


class PowerCutError(BaseException):
    """Simulated power cut. It isn't an `Exception`, so `except Exception` doesn't catch it."""


def rate(step: int) -> float:
    """Return the expected learning rate of a step."""
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    progress = (step - WARMUP + 1) / (STEPS - WARMUP)
    return LOWEST + (PEAK - LOWEST) * (1 + math.cos(math.pi * progress)) / 2


def make_model(seed: int) -> nn.Sequential:
    """Create a small model with dropout. Its initial gradients exceed the clipping limit."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Embedding(VOCAB, 16), nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, VOCAB)
    )
    nn.init.normal_(model[-1].weight, std=1.0)
    return model


def make_tokens() -> tuple[np.ndarray, np.ndarray]:
    """Create training and held-out tokens. Half of all tokens follow from the previous token."""
    chance = np.random.default_rng(0)

    def text(size: int) -> np.ndarray:
        ids = chance.integers(0, 32, size)
        follows = chance.random(size) < 0.5
        for place in range(1, size):
            if follows[place]:
                ids[place] = (5 * ids[place - 1] + 3) % 32
        return ids.astype(np.uint16)

    return text(4000), text(1000) + np.uint16(32)


@dataclass
class Forward:
    """Observations from one forward pass."""

    x: Tensor
    training: bool
    with_graph: bool
    autocast: torch.dtype | None
    cleared: bool
    """Whether no gradient was left from before."""
    logits: Tensor
    target: Tensor | None = None
    """The tokens that the gradient of the logits points at."""
    weight: float = 0.0
    """How much each token's loss counts in the gradient."""


@dataclass
class Update:
    """Observations before one optimizer step."""

    rate: float
    norm: float
    in_autocast: bool
    weights: list[Tensor]


@dataclass
class Witness:
    """Observer of a training run that can simulate a power cut at a step or during a save."""

    model: nn.Module
    cut_step: int | None = None
    cut_save: int | None = None
    steps: list[list[Forward]] = field(default_factory=lambda: [[]])
    updates: list[Update] = field(default_factory=list)
    evaluations: list[tuple[int, Forward]] = field(default_factory=list)
    saves: int = 0

    def forward(self, model: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        """Record a forward pass, and register a hook that records the gradient of its logits."""
        seen = Forward(
            x=inputs[0].detach().clone(),
            training=model.training,
            with_graph=torch.is_grad_enabled(),
            autocast=torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None,
            cleared=all(p.grad is None or not p.grad.any() for p in model.parameters()),
            logits=logits.detach().clone(),
        )
        if (seen.x >= 32).any():
            self.evaluations.append((len(self.updates), seen))
            return
        self.steps[-1].append(seen)
        if logits.requires_grad:
            logits.register_hook(lambda gradient: note_gradient(seen, gradient))

    def before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Record an optimizer step, or simulate a power cut before it."""
        parameters = list(self.model.parameters())
        if all(p is not q for p in parameters for g in optimizer.param_groups for q in g["params"]):
            return
        if len(self.updates) == self.cut_step:
            raise PowerCutError
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = torch.stack([g.norm() for g in gradients]).norm().item() if gradients else 0.0
        weights = [p.detach().clone() for p in parameters]
        lowered = torch.is_autocast_enabled("cpu")
        self.updates.append(Update(optimizer.param_groups[0]["lr"], norm, lowered, weights))
        self.steps.append([])

    def save(self, original: Callable[..., None], content: Any, file: Any, **others: Any) -> None:
        """Save a file, or write half of it and simulate a power cut."""
        self.saves += 1
        original(content, file, **others)
        if self.saves == self.cut_save and isinstance(file, (str, os.PathLike)):
            path = Path(file)
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            raise PowerCutError

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe forward passes, optimizer steps and saves within this block."""
        original = torch.save
        handles = [
            self.model.register_forward_hook(self.forward),
            register_optimizer_step_pre_hook(self.before_update),
        ]
        try:
            with mock.patch.object(torch, "save", lambda *a, **k: self.save(original, *a, **k)):
                yield
        finally:
            for handle in handles:
                handle.remove()


def note_gradient(seen: Forward, gradient: Tensor) -> None:
    """Infer the targets and loss weights from the gradient of the logits.

    The gradient of cross-entropy is weight * (softmax - one-hot), which is negative only at the
    target.
    """
    rows = gradient.detach().float().flatten(0, -2)
    chances = seen.logits.float().flatten(0, -2).softmax(-1)
    target = rows.argmin(-1)
    seen.target = target.reshape(seen.x.shape)
    there = rows.gather(1, target[:, None]) / (chances.gather(1, target[:, None]) - 1)
    seen.weight = there.median().item()


@exercise("")
def training_script(train: Script) -> None:
    """Check `train(folder, model, tokens, held_out)`, a complete run that survives a power cut."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        torch.set_num_threads(1)
        try:
            straight = Witness(make_model(seed=1))
            rows = watched(train, straight, Path(folder) / "straight")
            expect_rows(rows)
            expect_training(straight, rows)
            expect_evaluation(straight, rows)
            expect_resume(train, straight, rows, Path(folder) / "cut")
            expect_whole_files(train, straight, Path(folder) / "torn")
        finally:
            torch.set_num_threads(threads)


def watched(train: Script, witness: Witness, folder: Path) -> Sequence[Mapping[str, float]]:
    """Run the learner's training script in `folder`, observed by a `Witness`."""
    folder.mkdir(exist_ok=True)
    with witness.watching():
        return train(folder, witness.model, *make_tokens())


def expect_rows(rows: Any) -> None:
    """Fail unless `rows` contains one row per step."""
    expect(rows is not None, "your function returns None; return the list of rows.")
    expect(
        len(rows) == STEPS,
        f"your run returns {len(rows)} rows, but it has {STEPS} steps: one row per step.",
    )
    for name in ("step", "loss", "lr", "grad_norm"):
        missing = [place for place, row in enumerate(rows) if name not in row]
        expect(not missing, f"row {missing[:1]} has no {name!r}.")
    expect(
        [row["step"] for row in rows] == list(range(STEPS)),
        f"the rows' steps must be 0 to {STEPS - 1}, in order.",
    )


def expect_training(seen: Witness, rows: Sequence[Mapping[str, float]]) -> None:
    """Fail unless batches, accumulation, autocast, schedule and clipping are as specified."""
    expect(
        len(seen.updates) == STEPS,
        f"the optimizer made {len(seen.updates)} steps instead of {STEPS}.",
    )
    for number, pieces in enumerate(seen.steps[:STEPS]):
        shapes = [tuple(piece.x.shape) for piece in pieces]
        expect(
            shapes == [(PIECE, LENGTH)] * (WINDOWS // PIECE),
            f"step {number} must go through {WINDOWS // PIECE} micro-batches of shape "
            f"({PIECE}, {LENGTH}); yours have the shapes {shapes}.",
        )
        for piece in pieces:
            expect_piece(number, piece)
        expect(
            pieces[0].cleared,
            f"step {number} begins with old gradients: call zero_grad after every step.",
        )
    firsts = [pieces[0].x for pieces in seen.steps[:STEPS]]
    expect(
        not any(torch.equal(firsts[0], x) for x in firsts[1:]),
        "a later step reads the batch of step 0 again.",
    )
    for number, (update, row) in enumerate(zip(seen.updates, rows, strict=True)):
        expect(
            math.isclose(update.rate, rate(number), rel_tol=1e-6),
            f"step {number} has learning rate {update.rate:.6f} instead of {rate(number):.6f}.",
        )
        expect(
            not update.in_autocast,
            "autocast is still on at optimizer.step(), so the next forward pass may read old "
            "bf16 copies of the weights; close the `with` after the loss.",
        )
        expect(
            update.norm < CLIP * 1.001,
            f"at step {number} the gradient has norm {update.norm:.3f}: clip it to {CLIP} between "
            "the last backward and the optimizer's step.",
        )
        expect(
            math.isclose(row["lr"], update.rate, rel_tol=1e-6),
            f"row {number} logs another learning rate than the optimizer used.",
        )
    expect(
        max(row["grad_norm"] for row in rows) > CLIP * 1.01,
        "every logged norm is at most 1: log the norm before clipping.",
    )


def expect_piece(number: int, piece: Forward) -> None:
    """Fail unless a micro-batch runs in training mode and bf16, with the correct loss weight."""
    expect(
        piece.training,
        f"step {number} trains in eval mode; call model.train() after an evaluation.",
    )
    expect(
        piece.autocast is torch.bfloat16,
        f"step {number}'s forward pass isn't in bf16: torch.autocast('cpu', torch.bfloat16).",
    )
    expect(piece.target is not None, f"no gradient came back to the logits of step {number}.")
    after = piece.x[:, 1:]
    expect(
        torch.equal(piece.target[:, :-1], after),
        "the targets are the inputs; the model must predict the next token."
        if torch.equal(piece.target, piece.x)
        else "the targets aren't the tokens that come right after the inputs.",
    )
    share = piece.weight * WINDOWS * LENGTH
    expect(
        math.isclose(share, 1.0, rel_tol=0.05),
        f"a token counts {share:.2f} times what it should: the gradient must be that of the mean "
        f"over all {WINDOWS} windows, so divide each micro-batch's mean loss by "
        f"{WINDOWS // PIECE}.",
    )


def expect_evaluation(seen: Witness, rows: Sequence[Mapping[str, float]]) -> None:
    """Fail unless evaluation runs at the expected steps, without dropout and without autograd."""
    wanted = list(range(EVALUATED, STEPS + 1, EVALUATED))
    found = sorted({after for after, _ in seen.evaluations})
    expect(
        found == wanted,
        f"held-out tokens must be read after {wanted} steps; yours are read after {found}.",
    )
    for _, forward in seen.evaluations:
        expect(not forward.training, "the evaluation runs with dropout; call model.eval() first.")
        expect(not forward.with_graph, "the evaluation keeps a graph; use torch.no_grad().")
    logged = [row["step"] + 1 for row in rows if "val_loss" in row]
    expect(logged == wanted, f"val_loss must be in the rows of steps {[n - 1 for n in wanted]}.")
    windows = torch.cat([f.x for after, f in seen.evaluations if after == wanted[0]])
    for after in wanted[1:]:
        again = torch.cat([f.x for number, f in seen.evaluations if number == after])
        expect(torch.equal(again, windows), "each evaluation must read the same windows.")


def expect_resume(
    train: Script, straight: Witness, rows: Sequence[Mapping[str, float]], folder: Path
) -> None:
    """Fail unless an interrupted and resumed run is identical to an uninterrupted run."""
    cut = Witness(make_model(seed=1), cut_step=CUT_AT)
    try:
        watched(train, cut, folder)
    except PowerCutError:
        pass
    else:
        expect(False, "the power was cut and your run went on: don't catch every exception.")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    expect(files, f"the folder is empty after {CUT_AT} steps: save a checkpoint every {SAVED}.")
    expect_no_pickle(files)
    resumed = Witness(make_model(seed=2))
    torch.manual_seed(12345)  # another process has drawn other numbers
    later = watched(train, resumed, folder)
    start = later[0]["step"]
    saved = CUT_AT // SAVED * SAVED
    expect(
        start == saved,
        f"cut off in step {CUT_AT}, your run resumes at step {start} instead of {saved}: the last "
        f"checkpoint was due after {saved} steps.",
    )
    compare(straight, resumed, start)
    for before, after in zip(rows[start:], later, strict=True):
        expect(
            dict(before) == dict(after),
            f"the rows of step {before['step']} differ: {dict(before)} and {dict(after)}.",
        )
    for a, b in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        expect(torch.equal(a, b), "the final weights differ.")


def expect_no_pickle(files: Sequence[Path]) -> None:
    """Fail unless all torch.save files can be loaded with `weights_only=True`."""
    for path in files:
        if path.suffix in (".pt", ".pth"):
            try:
                torch.load(path, weights_only=True)
            except Exception as error:
                expect(False, f"{path.name} doesn't load with weights_only=True ({error}).")


def compare(straight: Witness, resumed: Witness, start: int) -> None:
    """Fail with the first difference between a resumed run and an uninterrupted run."""
    first, again = straight.steps[start], resumed.steps[0]
    expect(
        all(map(torch.equal, straight.updates[start].weights, resumed.updates[0].weights)),
        "the weights after the resume aren't those of the checkpoint.",
    )
    expect(
        all(torch.equal(a.x, b.x) for a, b in zip(first, again, strict=True)),
        f"step {start} reads another batch after the resume: save the data position, or compute "
        "the batch from the step alone.",
    )
    expect(
        all(torch.equal(a.logits, b.logits) for a, b in zip(first, again, strict=True)),
        f"the batch and the weights of step {start} are right, but dropout draws other numbers: "
        "save torch.get_rng_state(), or seed the generator from the step.",
    )
    for offset, update in enumerate(resumed.updates[1:], start=1):
        want = straight.updates[start + offset]
        expect(
            all(map(torch.equal, want.weights, update.weights)),
            f"step {start + offset - 1} has the right gradient but makes another update: the "
            "optimizer's state isn't that of the checkpoint.",
        )


def expect_whole_files(train: Script, straight: Witness, folder: Path) -> None:
    """Fail if the previous checkpoint is lost when the power is cut during a save."""
    torn = Witness(make_model(seed=1), cut_save=2)
    try:
        watched(train, torn, folder)
    except PowerCutError:
        pass
    else:
        return  # it doesn't use torch.save, or not with a path
    resumed = Witness(make_model(seed=2))
    try:
        watched(train, resumed, folder)
    except Exception as error:
        expect(
            False,
            "the power was cut while a checkpoint was being written, and your run can't resume "
            f"({type(error).__name__}). Save under another name, then os.replace it.",
        )
    final = zip(straight.model.parameters(), resumed.model.parameters(), strict=True)
    expect(
        all(torch.equal(a, b) for a, b in final),
        "after a power cut during a save, the resumed run ends with other weights.",
    )


@exercise("")
def bug_hunt(answer: Mapping[str, str]) -> None:
    """Check the learner's diagnosis for each of the ten cases, A to J."""
    if all(given is ... for given in answer.values()):
        raise NotImplementedError
    for letter, bug in hunt.CASES.items():
        given = answer.get(letter, ...)
        expect(given is not ..., f"{letter} has no answer yet.")
        expect(given in hunt.BUGS, f"{letter}: {given!r} isn't one of {', '.join(hunt.BUGS)}.")
        number = hunt.SIGNATURES[bug]
        here, healthy = (run.numbers()[number] for run in (hunt.case(letter), hunt.run()))
        expect(
            given == bug,
            f"{letter} isn't {given}. Look at its {number!r}, which is {here:.4g} here and "
            f"{healthy:.4g} in a healthy run.",
        )
