"""Checks of notebook 06's sections on checkpoints and exact resume."""

import copy
import io
import pickle
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn

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


@exercise
def missing_pieces(answer: Mapping[str, str]) -> None:
    """Check which piece was missing from the checkpoint in each of the attempts A to F."""
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


class SmallRun:
    """A small run with dropout, AdamW, a schedule and data, all of which a checkpoint must hold."""

    def __init__(self, seed: int):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: 1 / (1 + s))
        self.data = torch.Generator().manual_seed(seed)

    def advance(self, steps: int) -> list[float]:
        """Train for some steps and return the loss of each."""
        losses = []
        for _ in range(steps):
            x = torch.randn(16, 4, generator=self.data)
            loss = F.mse_loss(self.model(x), x.sum(1, keepdim=True))
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def same_tensors(a: Mapping, b: Mapping) -> bool:
    """Return whether two optimizer states hold the same tensors."""
    return a.keys() == b.keys() and all(torch.equal(a[i][k], b[i][k]) for i in a for k in a[i])


@exercise
def resume(snapshot: Callable[..., dict], restore: Callable[..., int]) -> None:
    """Check `snapshot(model, optimizer, scheduler, step, data)` and `restore(state, ..., data)`."""
    with torch.random.fork_rng(devices=[]):
        run = SmallRun(seed=1)
        run.advance(6)
        state = snapshot(run.model, run.optimizer, run.scheduler, 6, run.data)
        expect(isinstance(state, dict), "snapshot must return a dict.")
        random_then = torch.get_rng_state()
        data_then = run.data.get_state()
        saved = copy.deepcopy([run.model.state_dict(), run.optimizer.state_dict()["state"]])
        file = io.BytesIO()
        try:
            torch.save(state, file)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            expect(
                False,
                f"torch.save cannot write your dict, because it holds an object ({error}). Keep "
                "state_dicts, tensors and numbers (scheduler.state_dict(), data.get_state()).",
            )
        expected = run.advance(6)

        file.seek(0)
        try:
            state = torch.load(file, weights_only=True)
        except pickle.UnpicklingError:
            expect(
                False,
                "torch.load(weights_only=True) refuses your dict: it holds an object. Keep "
                "state_dicts, tensors and numbers (optimizer.state_dict(), data.get_state()).",
            )
        other = SmallRun(seed=2)
        step = restore(state, other.model, other.optimizer, other.scheduler, other.data)
        weights = other.model.state_dict()
        expect(
            all(torch.equal(weights[name], saved[0][name]) for name in weights),
            "the weights are not the saved ones; loading a file doesn't change the model, but "
            "model.load_state_dict does.",
        )
        expect(
            same_tensors(other.optimizer.state_dict()["state"], saved[1]),
            "the optimizer's running means are not the saved ones; save its state_dict and load it "
            "with load_state_dict.",
        )
        expect(
            other.scheduler.last_epoch == 6,
            f"the schedule is at step {other.scheduler.last_epoch}, not 6; it has a "
            "state_dict too.",
        )
        expect(
            torch.equal(other.data.get_state(), data_then),
            "the data starts again from the beginning; save data.get_state() and restore it with "
            "data.set_state().",
        )
        expect(
            torch.equal(torch.get_rng_state(), random_then),
            "dropout will draw other numbers; save torch.get_rng_state() and call "
            "torch.set_rng_state() last.",
        )
        expect(step is not None, "restore returns None; it must return the step.")
        expect(step == 6, f"restore must return the step, 6; yours returns {step}.")
        expect(other.advance(6) == expected, "the losses after the resume are not bit-identical.")
