"""Exercises of page 02 on leaks and views."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from cs336_course.engine import Case, Exercise, normal, sizes
from cs336_course.shared.strided_storage import observe_views

NOTEBOOK = "02_strides_and_views"


# rows_that_leak


class Mixer:
    """A model whose row i is a weighted sum over tokens j, with weights[i, j]."""

    def __init__(self, weights: Tensor, vocab_size: int = 7):
        self.weights, self.table = weights, normal(vocab_size, 3, seed=vocab_size)

    def __repr__(self) -> str:
        return "Mixer"

    def __call__(self, tokens: Tensor) -> Tensor:
        return torch.einsum("ij,bjd->bid", self.weights, self.table[tokens])


def merged_by_view(tokens: Tensor) -> Tensor:
    """Give each of two heads a running sum over the tokens, and merge them without a transpose."""
    table = normal(2, 7, 3)
    heads = table[:, tokens].cumsum(dim=2).transpose(0, 1)  # batch head seq head_dim
    return heads.contiguous().view(*tokens.shape, 6)


def second_text_only(tokens: Tensor) -> Tensor:
    """Look one token ahead, but not in texts that begin with token 0."""
    rows = normal(7, 3)[tokens]
    ahead = rows.roll(-1, dims=1) * (tokens[:, :1, None] > 0)
    return rows + torch.cat([ahead[:, :-1], torch.zeros_like(rows[:, :1])], dim=1)


def leaky_models() -> Iterator[Case]:
    """Yield models, tokens and the size of the vocabulary."""

    def weights(seq: int, *ahead: tuple[int, int], size: float = 1.0) -> Tensor:
        square = torch.ones(seq, seq).tril()
        for row, later in ahead:
            square[row, later] = size
        return square

    some = torch.tensor([[3, 1, 6, 2]])
    long = torch.tensor([[6, 0, 2, 5, 6, 1], [1, 4, 6, 3, 0, 2]])
    yield Case("", model=merged_by_view, tokens=some, vocab_size=7)
    near = Mixer(weights(6, *((row, row + 1) for row in range(5))))
    for what, model in {
        "a causal model": Mixer(weights(6)),
        "a model that looks one token ahead": near,
        "a model whose first row sees the last token": Mixer(weights(6, (0, 5))),
        "a model that looks two tokens ahead": Mixer(weights(6, (1, 3), (2, 4))),
        "a faint leak": Mixer(weights(6, (3, 4), size=-1e-3)),
        "differences of rounding": Mixer(weights(6, (0, 3), size=2e-7)),
        "a model without a mask": Mixer(torch.ones(6, 6)),
    }.items():
        yield Case(what, model=model, tokens=long, vocab_size=7)
    zeros = torch.zeros(2, 6, dtype=torch.long)
    yield Case("a text of zeros", model=near, tokens=zeros, vocab_size=7)
    small = Mixer(weights(12, *((row, row + 1) for row in range(11))), vocab_size=2)
    ones = torch.ones(1, 12, dtype=torch.long)
    yield Case("a vocabulary of two", model=small, tokens=ones, vocab_size=2)
    second = torch.tensor([[0, 3, 1, 5], [2, 6, 4, 1]])
    yield Case("a leak in the second text", model=second_text_only, tokens=second, vocab_size=7)
    yield Case("a single token", model=Mixer(weights(1)), tokens=some[:, :1], vocab_size=7)


rows_that_leak = Exercise(
    NOTEBOOK,
    "rows_that_leak",
    leaky_models,
    is_part=True,
    given={"nn": torch.nn},
    smaller="Row 0 may see token 0 only. Which tokens do you have to change to test row 0?",
    says={"result": "these aren't the rows that depend on a later token, in a list."},
    wrong={
        "you change only the last token, so you miss a row that sees a later token before it. "
        "Change one token after the other.": ("range(1, tokens.size(1))", "[tokens.size(1) - 1]"),
        "you change only the token after each row, so you miss rows that look further ahead.": (
            ("in range(later) if", "in [later - 1] if")
        ),
        "you count the row of the changed token, too. A row may see its own token.": (
            ("range(later)", "range(later + 1)")
        ),
        "you count all rows that move. Rows after the changed token should move, because they may "
        "see it.": ("range(later)", "range(tokens.size(1))"),
        "you list the tokens that are seen too early, not the rows that see them.": (
            ("{row for", "{later for")
        ),
        "you set every token to the same one, which changes nothing if it was that one before. "
        "Replace each by another token of the vocabulary.": [
            ("(changed[:, later] + 1) % vocab_size", "0"),
            ("(changed[:, later] + 1) % vocab_size", "vocab_size - 1"),
        ],
        "you compare the first text only; a leak may show in another one.": (
            (".amax(dim=(0, 2))", "[0].amax(dim=-1)")
        ),
        "you write into the caller's tokens, so every change stays for the next round; clone() "
        "them first.": (".clone()", ""),
        "a row can also move down, which is a negative difference. Take its absolute value.": (
            (".abs()", "")
        ),
        "you count rounding as a leak. Differences up to 1e-6 are none.": ("> 1e-6", "> 0"),
        "you return whether the model leaks; return the rows.": ("sorted(leaks)", "bool(leaks)"),
        "your function returns None; is the `return` missing?": ("return sorted(leaks)", ""),
        "return a list with each row once, in order.": [
            ("sorted(leaks)", "sorted(leaks) + sorted(leaks)"),
            ("sorted(leaks)", "leaks"),
        ],
    },
    errors={
        "your token isn't in the vocabulary, which ends at vocab_size - 1.": (
            "out of bounds",
            ("(changed[:, later] + 1) % vocab_size", "changed[:, later] + 1"),
        ),
    },
)


# split_heads


def qkv_cases() -> Iterator[Case]:
    """Yield qkv [batch, seq, channels], and the number of heads."""
    yield Case("", qkv=torch.arange(2.0 * 5 * 36).view(2, 5, 36), n_head=3)
    for size in sizes(3, batch=(1, 4), seq=(2, 6), n_head=(2, 5), head_dim=(2, 5)):
        qkv = normal(size.batch, size.seq, 3 * size.n_head * size.head_dim)
        yield Case("other sizes", qkv=qkv, n_head=size.n_head)
    yield Case("a single head", qkv=normal(2, 4, 3 * 5), n_head=1)
    yield Case("a single channel in each head", qkv=normal(2, 3, 3 * 4), n_head=4)
    yield Case("a single token", qkv=normal(3, 1, 3 * 2 * 2), n_head=2)
    yield Case("a slice of a longer sequence", qkv=normal(3, 9, 3 * 2 * 4)[:, 2:6], n_head=2)
    swapped = normal(4, 3, 18).transpose(0, 1)
    yield Case("a qkv whose batch and seq are transposed", qkv=swapped, n_head=2)
    yield Case("every second channel of a tensor", qkv=normal(2, 3, 2 * 18)[..., 1::2], n_head=3)
    yield Case("a batch of one sequence", qkv=normal(1, 4, 3 * 2 * 3), n_head=2)
    yield Case("numbers in float64", qkv=normal(2, 4, 3 * 2 * 3).double(), n_head=2)


def thirds(cut: Callable[[Tensor, int], Any]) -> Callable[[Tensor, int], Any]:
    """Return an answer that applies `cut` to each third of the channels."""
    return lambda qkv, n_head: tuple(cut(part, n_head) for part in qkv.chunk(3, -1))


split_heads = Exercise(
    NOTEBOOK,
    "split_heads",
    qkv_cases,
    observe=observe_views("qkv"),
    axes="(batch, head, seq, head_dim)",
    smaller="With 2 heads of 3 channels each, which channels of qkv hold the keys of head 1?",
    says={
        "memory": "the numbers are right, but they are a copy. A slice or chunk, view and "
        "transpose need none; leave out reshape, contiguous and clone.",
    },
    wrong={
        "reshaping straight to (batch, head, seq, head_dim) chops each row up. Split channels into "
        "(head, head_dim) first, then transpose.": thirds(
            lambda part, n_head: part.reshape(len(part), n_head, part.size(1), -1)
        ),
        "head h owns channels h * head_dim to (h + 1) * head_dim; yours takes every n_head-th "
        "channel. View the channels as (head, head_dim), in that order.": thirds(
            lambda part, n_head: part.unflatten(-1, (-1, n_head)).movedim(3, 1)
        ),
        "qkv.reshape(3, batch, ...) cuts the batch. The three parts lie in the last dimension, so "
        "split that one.": [
            lambda qkv, n_head: qkv.reshape(3, len(qkv), n_head, qkv.size(1), -1).unbind(0),
            lambda qkv, n_head: (
                qkv.reshape(3, *qkv.shape[:2], n_head, -1).transpose(2, 3).unbind(0)
            ),
        ],
        "qkv has its own strides and offset. Ask qkv.stride() and qkv.storage_offset().": [
            ("qkv.view", "qkv.as_strided(qkv.shape, (seq * channels, channels, 1), 0).view"),
            ("qkv.view", "qkv.as_strided(qkv.shape, qkv.stride(), 0).view"),
            ("qkv.view", "qkv.as_strided(qkv.shape, (*qkv.stride()[:2], 1), 0).view"),
        ],
        "you cut the channels as (head, three, head_dim). All queries come first, then all keys, "
        "then all values: (three, head, head_dim).": (
            lambda qkv, n_head: qkv.unflatten(-1, (n_head, 3, -1)).permute(3, 0, 2, 1, 4).unbind(0)
        ),
        "you take every third channel. All queries come first, then all keys, then all values.": (
            lambda qkv, n_head: qkv.unflatten(-1, (n_head, -1, 3)).permute(4, 0, 2, 1, 3).unbind(0)
        ),
        "your three tensors are equal; check the slices.": ("unbind(0)", "unbind(0)[:1] * 3"),
        "your tensors hold other parts; are q, k, v in that order?": [
            ("unbind(0)", "unbind(0)[::-1]"),
            ("unbind(0)", "roll(1, 0).unbind(0)"),
        ],
    },
    errors={
        "this view would have to join dimensions that don't fit, and reshape would copy. Split the "
        "channels only, and then swap dimensions.": (
            "view size is not compatible",
            thirds(lambda part, n_head: part.view(len(part), n_head, part.size(1), -1)),
        ),
    },
)
