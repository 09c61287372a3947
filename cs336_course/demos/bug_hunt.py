"""Run ten small training runs, each with one deliberate bug that is visible in its curves.

Every run trains the same tiny GPT for 96 steps of four micro-batches. It stops and resumes every 4
steps, like a preempted job. The bugs are common mistakes in training scripts. No run crashes, and
most losses fall as in a healthy run.
"""

import dataclasses
import functools
import math

import numpy as np
import torch
from torch import Tensor, nn

from cs336_lib.config import TrainConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.tokenizer import CharTokenizer
from cs336_lib.model import GPT
from cs336_lib.schedule import learning_rate, set_learning_rate
from cs336_lib.system import hardware

STEPS, RESUMED_EVERY, EVALUATED_EVERY, PIECES = 96, 4, 8, 4
CONFIG = TrainConfig(
    n_layer=1,
    n_head=2,
    n_embd=32,
    block_size=32,
    batch_tokens=PIECES * 32,
    dropout=0.2,
    max_steps=STEPS,
    warmup_steps=8,
    learning_rate=1e-2,
    min_learning_rate=1e-3,
    weight_decay=0.3,
)
BUGS = {
    "schedule_off_by_one": "the schedule is one step late, so the first step has rate 0",
    "schedule_per_piece": "the schedule advances with every micro-batch instead of every step",
    "no_zero_grad": "gradients of earlier steps are never cleared",
    "loss_not_divided": "the loss is not divided by the number of micro-batches",
    "replayed_data": "every resume begins with the first batch again",
    "optimizer_not_restored": "every resume begins with an empty optimizer state",
    "dropout_in_evaluation": "the validation loss is measured without model.eval()",
    "decay_on_norms": "the gains of the layer norms are decayed like matrices",
    "targets_not_shifted": "the targets are the inputs, not the next tokens",
    "weights_too_large": "the initial weights have std 1 instead of 0.02",
}
HEALTHY = "healthy"
SIGNATURES = {
    "schedule_off_by_one": "first rate / peak",
    "schedule_per_piece": "rate at half / peak",
    "no_zero_grad": "gradient norm",
    "loss_not_divided": "gradient norm",
    "replayed_data": "val - train",
    "optimizer_not_restored": "update after resume / others",
    "dropout_in_evaluation": "val, measured again",
    "decay_on_norms": "norm gain",
    "targets_not_shifted": "last loss",
    "weights_too_large": "first loss",
}
"""For each bug, the number of `Record.numbers` that gives it away."""
SHUFFLED = (7, 6, 3, 0, 8, 1, 4, 9, 2, 5)
CASES = {letter: list(BUGS)[bug] for letter, bug in zip("ABCDEFGHIJ", SHUFFLED, strict=True)}


@dataclasses.dataclass(frozen=True)
class Record:
    """Log of a run. Learners see only this log, not the code."""

    loss: list[float]
    grad_norm: list[float]
    rate: list[float]
    update: list[float]
    """The norm of each step's change of all weights."""
    val_loss: list[float]
    """Before the first step and after every 8 steps."""
    val_loss_again: float
    """The last measurement, repeated."""
    norm_gain: float
    """The mean gain of the layer norms at the end; they begin with 1."""

    def numbers(self) -> dict[str, float]:
        """Return summary metrics of the run for comparison with other runs."""
        peak, half = CONFIG.learning_rate, STEPS // 2
        last = float(np.mean(self.loss[-2 * EVALUATED_EVERY :]))
        updates = np.reshape(self.update[half:], (-1, RESUMED_EVERY))  # a row per resume
        return {
            "first loss": self.loss[0],
            "last loss": last,
            "first rate / peak": self.rate[0] / peak,
            "rate at half / peak": self.rate[half] / peak,
            "gradient norm": float(np.median(self.grad_norm[half:])),
            "val - train": self.val_loss[-1] - last,
            "val, measured again": abs(self.val_loss_again - self.val_loss[-1]),
            "norm gain": self.norm_gain,
            "update after resume / others": float(updates[:, 0].mean() / updates[:, 1:].mean()),
        }


@functools.cache
def corpus() -> tuple[Tensor, int]:
    """Return the plays as character ids, and the vocabulary size."""
    text = shakespeare()
    tokenizer = CharTokenizer(text)
    return torch.from_numpy(tokenizer.encode(text).astype(np.int64)), tokenizer.vocab_size


class Training:
    """A training run with at most one bug."""

    def __init__(self, bug: str, seed: int):
        self.bug, self.seed = bug, seed
        self.tokens, vocab = corpus()
        torch.manual_seed(seed)
        self.model = GPT(CONFIG.model_config(vocab))
        if bug == "weights_too_large":
            with torch.no_grad():
                for p in self.model.parameters():
                    p.mul_(50.0 if p.dim() > 1 else 1.0)
        self.optimizer = torch.optim.AdamW(self.groups(), betas=(0.9, 0.95))

    def groups(self) -> list[dict]:
        """Return two parameter groups, with and without weight decay."""
        parameters = list(self.model.parameters())
        decayed = [p for p in parameters if p.dim() > 1 or self.bug == "decay_on_norms"]
        others = [p for p in parameters if p.dim() == 1 and self.bug != "decay_on_norms"]
        return [
            {"params": decayed, "weight_decay": CONFIG.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]

    def windows(self, seed: int, count: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of random windows, chosen by `seed`."""
        generator = torch.Generator().manual_seed(seed)
        length = CONFIG.block_size
        starts = torch.randint(len(self.tokens) - length, (count,), generator=generator)
        rows = torch.stack([self.tokens[start : start + length + 1] for start in starts])
        x, y = rows[:, :-1], rows[:, 1:]
        return (x, x) if self.bug == "targets_not_shifted" else (x, y)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        if self.bug == "schedule_off_by_one":
            return learning_rate(step - 1, CONFIG)
        if self.bug == "schedule_per_piece":
            return learning_rate(min(PIECES * step, STEPS - 1), CONFIG)
        return learning_rate(step, CONFIG)

    def resume(self) -> None:
        """Simulate preemption and resume. One of the bugs is that the optimizer loses its state."""
        if self.bug == "optimizer_not_restored":
            self.optimizer.state.clear()

    def step(self, step: int) -> tuple[float, float, float]:
        """Train for one step, and return the loss, the gradient norm and the update norm."""
        parameters = list(self.model.parameters())
        before = [p.detach().clone() for p in parameters]
        number = step % RESUMED_EVERY if self.bug == "replayed_data" else step
        x, y = self.windows(1000 * (self.seed + 1) + number, CONFIG.batch_windows)
        torch.manual_seed(1000 * (self.seed + 1) + step)  # dropout's
        divisor = 1 if self.bug == "loss_not_divided" else PIECES
        loss = 0.0
        for inputs, targets in zip(x.chunk(PIECES), y.chunk(PIECES), strict=True):
            piece = self.model(inputs, targets)
            (piece / divisor).backward()
            loss += piece.item() / PIECES
        grad_norm = nn.utils.clip_grad_norm_(parameters, math.inf).item()
        self.optimizer.step()
        if self.bug != "no_zero_grad":
            self.optimizer.zero_grad()
        moved = [p.detach() - old for p, old in zip(parameters, before, strict=True)]
        return loss, grad_norm, torch.stack([m.norm() for m in moved]).norm().item()

    def evaluate(self) -> float:
        """Return the loss on a fixed set of windows."""
        self.model.train(self.bug == "dropout_in_evaluation")
        with torch.no_grad():
            loss = self.model(*self.windows(seed=0, count=32)).item()
        self.model.train()
        return loss

    def norm_gain(self) -> float:
        """Return the mean gain of all layer norms."""
        norms = [m for m in self.model.modules() if isinstance(m, nn.LayerNorm)]
        return torch.cat([norm.weight.detach() for norm in norms]).mean().item()


@functools.cache
def run(bug: str = HEALTHY, seed: int = 0) -> Record:
    """Train for 96 steps with a bug, or without one, and return the log.

    The state of torch's global random generator isn't changed.

    Args:
        bug: One of `BUGS`, or "healthy".
        seed: Seed for initial weights, data and dropout.

    Raises:
        ValueError: If the name of the bug is unknown.
    """
    if bug not in (HEALTHY, *BUGS):
        raise ValueError(f"no bug {bug!r}; the bugs are {', '.join(BUGS)}")
    with torch.random.fork_rng(devices=[]), hardware.threads_for(0):
        training = Training(bug, seed)
        rows, rates, val_loss = [], [], [training.evaluate()]
        for step in range(STEPS):
            if step % RESUMED_EVERY == 0:
                training.resume()
            rates.append(training.rate(step))
            set_learning_rate(training.optimizer, rates[-1])
            rows.append(training.step(step))
            if (step + 1) % EVALUATED_EVERY == 0:
                val_loss.append(training.evaluate())
        loss, grad_norm, update = (list(column) for column in zip(*rows, strict=True))
        again, gain = training.evaluate(), training.norm_gain()
    return Record(loss, grad_norm, rates, update, val_loss, again, gain)


def case(letter: str) -> Record:
    """Return the log of a case from A to J. `CASES` maps each case to its bug."""
    return run(CASES[letter], seed=10 + list(CASES).index(letter))


def table(cases: str, healthy: int = 3) -> str:
    """Format the metrics of some cases, such as "ABC", next to the range of healthy runs."""
    good = [run(seed=seed).numbers() for seed in range(healthy)]
    found = [case(letter).numbers() for letter in cases]
    lines = [f"{'':28}{'healthy':>18}" + "".join(f"{letter:>9}" for letter in cases)]
    for name in good[0]:
        digits = 4 if name == "val, measured again" else 2
        low, high = (pick(numbers[name] for numbers in good) for pick in (min, max))
        span = f"{low:.{digits}f} to {high:.{digits}f}"
        values = "".join(f"{numbers[name]:9.{digits}f}" for numbers in found)
        lines.append(f"{name:28}{span:>18}{values}")
    return "\n".join(lines)
