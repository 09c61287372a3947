"""Regression that learns each word's length from the length of lines, where most words are rare."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

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
        mean = sum(errors) / len(errors)
        print(f"{name:9} lr {lr:5}  error {mean:.3f}  ({min(errors):.3f} to {max(errors):.3f})")
