"""Runs of the page on AdaGrad: rare words and letters, quadratics, and three surfaces."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from cs336_course.shared import letter_gpt, short_optimizers
from cs336_course.shared.loss_surfaces import (
    RATES,
    Surface,
    bowl,
    ravine,
    saddle,
    steps_until,
    swept_descent,
)
from cs336_lib.data import corpus

RAREST = 250  # the words on which the rules are compared

Swept = Mapping[float, Sequence[float]]


@dataclass(frozen=True)
class Lines:
    """Lines of a text as word numbers, from the most frequent word to the rarest.

    Word number 0 is padding. `letters` is the number of letters of each line's words, and `seen`
    counts how often each word occurs.
    """

    words: list[str]
    ids: Int[Tensor, "lines longest"]
    length: Float[Tensor, " vocab"]
    letters: Float[Tensor, " lines"]
    seen: Int[Tensor, " vocab"]


def read(lines: int = 16_000, vocab: int = 1000, text: str | None = None) -> Lines:
    """Create the data set from a text, by default from the plays.

    Words outside the vocabulary are omitted, and lines with fewer than six words are skipped.

    Args:
        lines: Number of lines to take.
        vocab: Number of words to keep, including padding.
        text: Text to read.
    """
    text = corpus.shakespeare() if text is None else text
    split = (re.findall("[a-z]+", line) for line in text.lower().splitlines())
    read = list(islice((words for words in split if len(words) >= 6), lines))
    counted = Counter(chain.from_iterable(read))
    words = ["", *(word for word, _ in counted.most_common(vocab - 1))]
    number = {word: index for index, word in enumerate(words)}
    rows = [torch.tensor([number[w] for w in line if w in number]).long() for line in read]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    length = torch.tensor([float(len(word)) for word in words])
    return Lines(words, ids, length, length[ids].sum(1), ids.flatten().bincount(minlength=vocab))


def relative_error(
    guess: Float[Tensor, " vocab"], length: Float[Tensor, " vocab"]
) -> Float[Tensor, " words"]:
    """Return how far each word's guess is off, in units of its length, without the padding."""
    return (guess[1:] - length[1:]).abs() / length[1:]


def sweep(
    learn: Callable[..., Float[Tensor, " vocab"]],
    rule: Callable[..., torch.optim.Optimizer],
    rates: Sequence[float],
    length: Float[Tensor, " vocab"],
    **settings: object,
) -> dict[float, list[float]]:
    """Return the errors on the rarest words at each learning rate, for three seeds.

    Args:
        learn: Function of a rule, a rate, a seed and `settings`, which returns what was learned.
        rule: Optimizer class, or a `functools.partial` of the class.
        rates: Learning rates to try.
        length: Length of each word.
        settings: Further arguments of `learn`.
    """
    return {
        lr: [
            relative_error(learn(rule, lr, seed, **settings), length)[-RAREST:].mean().item()
            for seed in range(3)
        ]
        for lr in rates
    }


def best(swept: Swept) -> tuple[float, Sequence[float]]:
    """Return the learning rate with the smallest mean error, and its errors."""
    converged = {lr: errors for lr, errors in swept.items() if sum(errors) < 3}  # nan isn't
    return min(converged.items(), key=lambda item: sum(item[1]))


def print_best(swept: Mapping[str, Swept]) -> None:
    """Print the best learning rate of each rule with its error, as a mean and a range."""
    for name, results in swept.items():
        lr, errors = best(results)
        span = f"({min(errors):.3f} to {max(errors):.3f})"
        print(f"{name:9} lr {lr:5}  error {sum(errors) / 3:.3f}  {span}")


def letters_by_frequency() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Draw 2,000 windows of letters, and sort the letters that follow into four groups."""
    letters, size = letter_gpt.letters()
    rank = letters.bincount(minlength=size).argsort(descending=True).argsort()
    x, y = letter_gpt.batch(torch.Generator().manual_seed(99), rows=2000)
    number = torch.bucketize(rank[y.flatten()], torch.tensor([5, 12, 24]), right=True)
    names = ("5 most frequent", "next 7", "next 12", "38 rarest")
    groups = {name: number == group for group, name in enumerate(names)}
    return x, y, groups


def step_lengths(
    rule: Callable[..., torch.optim.Optimizer], gradients: Sequence[float], **settings: object
) -> list[float]:
    """Return how far one weight moves at each step, in units of the learning rate."""
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer, lengths = rule([w], lr=1.0, **settings), []
    for gradient in gradients:
        before, w.grad = w.item(), torch.full_like(w, gradient)
        optimizer.step()
        lengths.append(abs(w.item() - before))
    return lengths


# PyTorch's rule for each of the page's, with settings of both.
ADAM = {"lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}
PYTORCH = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "Momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "AdaGrad": (torch.optim.Adagrad, {"lr": 0.05, "eps": 1e-10}),
    "RMSProp": (torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.99, "eps": 1e-8}),
    "Adam": (torch.optim.Adam, ADAM),
    "AdamW": (torch.optim.AdamW, ADAM | {"weight_decay": 0.1}),
}


def trained(
    rule: Callable[..., torch.optim.Optimizer], settings: Mapping[str, object]
) -> Float[Tensor, " weights"]:
    """Return the weights of a small network in float64 that the rule has trained."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)).double()
    optimizer = rule(model.parameters(), **settings)
    for _ in range(100):
        x = torch.randn(16, 8).double()
        optimizer.zero_grad()
        F.mse_loss(model(x), x.sum(1, keepdim=True).sin()).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def steps_on_quadratic(
    curvatures: Sequence[float], lr: float, momentum: float = 0.0, tolerance: float = 0.01
) -> int:
    """Return the number of steps after which every coordinate stays within the tolerance.

    The loss is half the sum of curvature times square, and each coordinate starts at 1.
    """
    curvature = torch.tensor(curvatures, dtype=torch.float64)
    point = torch.ones_like(curvature)
    velocity, last, step = torch.zeros_like(point), 0, 0
    while step < 2 * last + 100:  # long enough to see whether it comes back
        step += 1
        velocity = momentum * velocity + curvature * point
        point = point - lr * velocity
        if point.abs().max() > tolerance:
            last = step
    return last + 1


# Rules with settings that suit 200 steps on a surface of two weights.
RULES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": short_optimizers.SGD,
    "Momentum": short_optimizers.Momentum,
    "AdaGrad": short_optimizers.AdaGrad,
    "RMSProp": partial(short_optimizers.RMSProp, alpha=0.9),
    "Adam": partial(short_optimizers.Adam, betas=(0.9, 0.99)),
    "AdamW": partial(short_optimizers.AdamW, betas=(0.9, 0.99), weight_decay=0.05),
}

# Each surface with its start, and the loss at which a path counts as down.
CASES: dict[str, tuple[Surface, tuple[float, float], float | None]] = {
    "ravine": (ravine, (-4.0, 1.5), 0.01),
    "saddle": (saddle, (1.5, 0.002), -0.2),
    "noisy bowl": (bowl, (-1.7, 1.4), None),
}


def compare(
    steps: int = 200,
) -> tuple[dict[str, dict[str, Tensor]], dict[tuple[str, str], Float[Tensor, " starts"]]]:
    """Run every rule on every surface from three starts, at the rule's best learning rate.

    AdamW gets Adam's rate, since its decay pulls towards two of the minima.

    Returns:
        The path of each rule from the first start, by surface. The scores of the three starts, by
        surface and rule: the number of steps until the loss stays low, or in the noisy bowl the
        mean distance from the minimum in the second half of the run.
    """
    generator = torch.Generator().manual_seed(0)
    jitter = 1 + 0.1 * torch.randn(3, 2, generator=generator)  # moves the second and third start
    jitter[0] = 1
    noise = torch.randn(steps, 3, 2, generator=generator)
    paths: dict[str, dict[str, Tensor]] = {case: {} for case in CASES}
    best = {}
    for case, (surface, start, level) in CASES.items():
        starts = torch.tensor(start) * jitter
        for rule, maker in RULES.items():
            noises = noise if level is None else None
            found = swept_descent(surface, starts, maker, RATES, steps, noises)
            if level is None:
                score = found[steps // 2 :].norm(dim=-1).mean(0).nan_to_num(math.inf)
            else:
                score = steps_until(surface(found), level)
            if rule != "AdamW":
                row = score.mean(1).argmin()
            best[case, rule], paths[case][rule] = score[row], found[:, row, 0]
    return paths, best
