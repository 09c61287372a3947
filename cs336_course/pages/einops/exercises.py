"""Exercises of page 03 on named dimensions."""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor

from cs336_course.engine import Case, Exercise, function, normal, sizes
from cs336_course.engine.records import Record

__all__ = ["product"]  # a printed solution uses it
NOTEBOOK = "03_einops"
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # queries, keys, values (batch head seq dim)


# query_gradient


def gradient_cases() -> Iterator[Case]:
    """Yield gradients of scores [batch, head, query, key] and keys [batch, key, kv, dim]."""
    yield Case("", g=normal(2, 6, 5, 5), k=normal(2, 5, 2, 4, seed=1))
    yield Case("more keys than queries", g=normal(2, 6, 2, 6, seed=2), k=normal(2, 6, 3, 5, seed=3))
    yield Case("a single query", g=normal(3, 4, 1, 4, seed=4), k=normal(3, 4, 2, 5, seed=5))
    yield Case("no heads that share", g=normal(1, 3, 4, 2, seed=6), k=normal(1, 2, 3, 5, seed=7))
    yield Case("one key head", g=normal(2, 4, 4, 3, seed=8), k=normal(2, 3, 1, 5, seed=9))
    moved, shared = normal(2, 5, 3, 4, seed=12).transpose(1, 3), normal(1, 5, 2, 2, seed=13)
    yield Case("inputs that aren't contiguous", g=moved, k=shared.expand(2, -1, -1, -1))
    for size in sizes(2, seed=1, batch=(2, 4), kv=(2, 5), group=(2, 4), query=(2, 6), key=(2, 6)):
        g = normal(size.batch, size.kv * size.group, size.query, size.key, seed=14)
        yield Case("other sizes", g=g, k=(k := normal(size.batch, size.key, size.kv, 7, seed=15)))
        yield Case("inputs in float64", g=g.double(), k=k.double())
    g, k = normal(2, 6, 4, 2, seed=16).round(), normal(2, 2, 3, 5, seed=17).round()
    yield Case("inputs in float16", g=g.half(), k=k.half())


def back(g: Tensor, k: Tensor, order: str = "kv group") -> Tensor:
    """Return the gradient of the queries, whose heads come in some order."""
    grouped = rearrange(g, f"b ({order}) query key -> b kv group query key", kv=k.size(2))
    gradient = einsum(grouped, k, "b kv group query key, b key kv d -> b query kv group d")
    return rearrange(gradient, f"b query kv group d -> b query ({order}) d")


query_gradient = Exercise(
    NOTEBOOK,
    "query_gradient",
    gradient_cases,
    observe=function(grad="g k"),
    smaller="One query q meets the keys 2 and 5, so its scores are 2q and 5q. Their gradients are "
    "1 and 10. What is the gradient of q?",
    wrong={
        "the query heads that share a key head stand side by side. Which name in the parentheses "
        "is the slow one then?": lambda g, k: back(g, k, "group kv"),
        "you sum over the query heads that share, but each has its own query.": (
            lambda g, k: einsum(g.unflatten(1, (k.size(2), -1)), k, "b v h q k, b k v d -> b q v d")
        ),
        "the heads have two names, so each meets all others, and they are summed.": (
            lambda g, k: einsum(g, k, "b h q k, b k f d -> b q h d")
        ),
        "the numbers are right, but no gradient flows back to g and k. If autograd computed them, "
        "do it with one einsum.": lambda g, k: back(g.data, k),
        "the keys have two names, so both inputs are summed separately; use one name for both.": (
            lambda g, k: back(g, k.sum(1, keepdim=True).expand_as(k))
        ),
    },
    errors={
        "two sizes of one name differ. k has fewer heads than g, and its order is batch key kv "
        "dim.": (
            "does not broadcast with previously seen size",
            lambda g, k: einsum(g, k, "b h q k, b k h d -> b q h d"),
        ),
        "`einsum` takes no parentheses, so split the heads of g with `rearrange` first.": (
            "Shape rearrangement is not yet supported",
            lambda g, k: einsum(g, k, "b (kv group) q k, b k kv d -> b q (kv group) d"),
        ),
    },
)


# keeps_contract


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    """Return the usual scores."""
    return q @ k.mT / math.sqrt(q.size(-1))


def hide(scores: Tensor, diagonal: int = 1) -> Tensor:
    """Set the scores above a diagonal to minus infinity."""
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(diagonal), -torch.inf)


def weigh(score: Callable[[Tensor, Tensor], Tensor], over: int = -1) -> Attend:
    """Return the attention that takes a softmax of some scores."""
    return lambda q, k, v: score(q, k).softmax(over) @ v


def distance(scores: Tensor) -> Tensor:
    """Return how many tokens a key lies before a query."""
    place = torch.arange(scores.size(-1))
    return place[:, None] - place


def by_position(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compare heads within a token, as in section 1."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return (hide(scores_of(q, k)).softmax(-1) @ v).transpose(1, 2)


def keys_of_all_texts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Misspell the batch in the scores, so that the keys of all texts are summed."""
    scores = einsum(q, k, "b h q d, a h k d -> b h q k") / math.sqrt(q.size(-1))
    return hide(scores).softmax(-1) @ v


usual = weigh(lambda q, k: hide(scores_of(q, k)))
SOUND: dict[str, Attend] = {
    "the usual attention": usual,
    "scores that are divided by dim, as in muP": weigh(lambda q, k: hide(q @ k.mT / q.size(-1))),
    "scores with a bias by distance, as in ALiBi": weigh(
        lambda q, k: hide(scores_of(q, k) - 0.2 * distance(scores_of(q, k)))
    ),
}
MUTANTS: dict[str, tuple[Attend, str]] = {
    "no mask": (weigh(scores_of), "Which rows must stay when a later token changes?"),
    "triu as the mask": (
        weigh(lambda q, k: hide(scores_of(q, k).mT).mT),
        "It sees the future and not the past. Which rows must stay when a token changes?",
    ),
    "a mask that begins one token late": (
        weigh(lambda q, k: hide(scores_of(q, k), 2)),
        "It looks one token ahead, so the row before a changed token moves.",
    ),
    "a softmax over the queries": (
        weigh(lambda q, k: hide(scores_of(q, k)), -2),
        "The weights of a key add up to 1 now, and not those of a query. For which values do you "
        "know the mean?",
    ),
    "queries that are normalized along the text": (
        weigh(lambda q, k: hide(scores_of(q / q.norm(dim=2, keepdim=True), k))),
        "A later token comes in through its query. Is the query among the things that you change?",
    ),
    "weights that add up to less than 1": (
        lambda q, k, v: F.pad(hide(scores_of(q, k)), (0, 1)).softmax(-1)[..., :-1] @ v,
        "It sees the right tokens, so no change of a token shows it. For which values do you know "
        "the mean, whatever the weights are?",
    ),
    "a window of four tokens": (
        weigh(lambda q, k: hide(scores_of(q, k)).masked_fill(distance(q @ k.mT) > 3, -torch.inf)),
        "A row must see its whole past. Which rows must move when the first token changes?",
    ),
    "the line of section 1": (
        by_position,
        "No token sees another. Which rows must move when a token changes?",
    ),
    "keys that are summed over the texts": (
        keys_of_all_texts,
        "A change in one text must not move another. Are there two, and do you change one token "
        "alone? Softmax forgets what is added to all keys.",
    ),
    "values of the first head for all": (
        lambda q, k, v: usual(q, k, v[:, :1]),
        "A change in one head must not move another.",
    ),
}


def kills(answer: Any, case: Case) -> Record:
    """Observe which versions of attention a test accepts."""
    accepted = {}
    versions = SOUND | {name: attend for name, (attend, _) in MUTANTS.items()}
    for name, attend in versions.items():
        try:
            verdict = answer(attend)
        except AssertionError:
            return {"said": "return False where your `assert` fails, so that the check can go on."}
        if isinstance(verdict, Tensor | np.bool_):
            verdict = bool(verdict)
        if not isinstance(verdict, bool):
            return {"said": f"return True or False, not {type(verdict).__name__}."}
        accepted[name] = verdict
    record: Record = {"accepted": accepted}
    refused = [name for name in SOUND if not accepted[name]]
    alive = [name for name in MUTANTS if accepted[name]]
    if refused:
        record["said"] = (
            f"your test refuses a version that keeps the contract: {refused[0]}. Ask only what "
            "the contract says, leave room for rounding, and clone() what you change. Even with a "
            "weight of 0, a nan or inf spreads."
        )
    elif alive:
        score = f"{len(MUTANTS) - len(alive)} of {len(MUTANTS)} mutants"
        why = MUTANTS[alive[0]][1]
        record["said"] = f"your test kills {score}. One that survives is {alive[0]}. {why}"
    return record


keeps_contract = Exercise(
    NOTEBOOK,
    "keeps_contract",
    lambda: [Case()],
    observe=kills,
    may_seed=True,
    smaller="There are two texts, two heads and three tokens. You change the second token in the "
    "first head of the first text. Which of the 12 rows must move?",
    wrong={},
)
