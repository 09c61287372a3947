"""Exercises of page 03 on named dimensions."""

import math
from collections.abc import Callable, Iterator

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from cs336_course.engine import Case, Exercise, function, normal, sizes

__all__ = ["Float", "math"]  # the printed solutions use these
NOTEBOOK = "03_einops"


# query_gradient


def gradient_cases() -> Iterator[Case]:
    """Yield gradients of scores [batch, head, query, key] and keys [batch, key, head, dim]."""
    yield Case("", g=normal(2, 3, 5, 5), k=normal(2, 5, 3, 4, seed=1))
    yield Case("more keys than queries", g=normal(2, 3, 2, 6, seed=2), k=normal(2, 6, 3, 5, seed=3))
    yield Case("a single query", g=normal(3, 2, 1, 4, seed=4), k=normal(3, 4, 2, 5, seed=5))
    yield Case("a batch of one", g=normal(1, 3, 4, 2, seed=6), k=normal(1, 2, 3, 5, seed=7))
    yield Case("one head", g=normal(2, 1, 4, 3, seed=8), k=normal(2, 3, 1, 5, seed=9))
    yield Case("heads of one number", g=normal(2, 3, 4, 5, seed=10), k=normal(2, 5, 3, 1, seed=11))
    moved, shared = normal(2, 5, 3, 4, seed=12).transpose(1, 3), normal(1, 5, 4, 2, seed=13)
    yield Case("inputs that aren't contiguous", g=moved, k=shared.expand(2, -1, -1, -1))
    for size in sizes(2, seed=1, batch=(2, 4), head=(2, 5), query=(2, 6), key=(2, 6), dim=(2, 9)):
        g = normal(size.batch, size.head, size.query, size.key, seed=14)
        k = normal(size.batch, size.key, size.head, size.dim, seed=15)
        yield Case("other sizes", g=g, k=k)
        yield Case("inputs in float64", g=g.double(), k=k.double())
    g, k = normal(2, 3, 4, 2, seed=16).round(), normal(2, 2, 3, 5, seed=17).round()
    yield Case("inputs in float16", g=g.half(), k=k.half())


query_gradient = Exercise(
    NOTEBOOK,
    "query_gradient",
    gradient_cases,
    observe=function(grad="g k"),
    smaller="One query q meets the keys 2 and 5, so its scores are 2q and 5q. Their gradients are "
    "1 and 10. What is the gradient of q?",
    wrong={
        "you sum over the queries, which gives a gradient to the keys; sum over the keys.": (
            lambda g, k: einsum(g, k, "b h q k, b q h d -> b k h d")
        ),
        "the heads have two names, so the keys of all heads are summed; use one name for both.": (
            lambda g, k: einsum(g, k, "b h q k, b k f d -> b q h d")
        ),
        "the keys have two names, so both inputs are summed separately; use one name for both.": (
            lambda g, k: einsum(g, k, "b h q k, b j h d -> b q h d")
        ),
        "the batch has two names, so the keys of all examples are summed; use one name for both.": (
            lambda g, k: einsum(g, k, "b h q k, a k h d -> b q h d")
        ),
    },
)


# grouped_query_attention


def drawn(
    batch: int, seq: int, heads: int, kv_heads: int, dim: int, what: str = "", seed: int = 0
) -> Case:
    """Return a case with drawn queries, keys and values [batch, seq, width]."""
    widths = heads * dim, kv_heads * dim, kv_heads * dim
    q, k, v = (3 * normal(batch, seq, width, seed=seed + n) for n, width in enumerate(widths))
    return Case(what, q=q, k=k, v=v, heads=heads, kv_heads=kv_heads)


def attention_cases() -> Iterator[Case]:
    """Yield queries, keys and values [batch, seq, width] with the numbers of heads."""
    yield drawn(2, 5, 6, 2, 4)
    yield drawn(2, 5, 6, 3, 4, "pairs of query heads", seed=1)
    yield drawn(3, 4, 5, 1, 3, "one key head for all query heads", seed=2)
    yield drawn(2, 3, 4, 4, 5, "as many key heads as query heads", seed=3)
    yield drawn(2, 4, 1, 1, 6, "one head", seed=4)
    yield drawn(3, 1, 4, 2, 2, "a single token", seed=5)
    yield drawn(1, 7, 4, 2, 3, "a batch of one", seed=6)
    yield drawn(2, 3, 6, 2, 1, "heads of one number", seed=7)
    for size in sizes(2, batch=(1, 4), seq=(2, 8), kv=(2, 3), group=(2, 4), dim=(2, 7)):
        heads = size.kv * size.group
        yield drawn(size.batch, size.seq, heads, size.kv, size.dim, "other sizes", seed=9)
    q, k, v = normal(2, 6, 24).split((16, 4, 4), dim=-1)
    yield Case("inputs that are slices of one tensor", q=q, k=k, v=v, heads=4, kv_heads=1)
    shared = normal(1, 4, 6).expand(3, -1, -1)
    yield Case("an expanded tensor", q=shared, k=shared, v=shared, heads=2, kv_heads=2)
    q, k, v = q.double(), k.double(), v.double()
    yield Case("inputs in float64", q=q, k=k, v=v, heads=4, kv_heads=1)
    yield drawn(1, 70, 2, 1, 4, "70 tokens", seed=10)
    yield drawn(1, 1100, 2, 1, 4, "1,100 tokens", seed=10)  # more than GPT-2's context
    q, k, v = (normal(2, 5, width, seed=width).half() for width in (16, 8, 8))
    yield Case("inputs in float16", q=q, k=k, v=v, heads=4, kv_heads=2)
    # Whole numbers and dim 4 make the scores exact, however they are computed.
    for factor, what in ((16, "scores of several hundred"), (200, "scores of many thousands")):
        q, k = (factor * normal(2, 6, width, seed=width).round() for width in (16, 8))
        yield Case(what, q=q, k=k, v=normal(2, 6, 8), heads=4, kv_heads=2)


def attend(
    *,
    split: str = "b s (h d) -> b h s d",
    merge: str = "b h s d -> b s (h d)",
    keys: str = "(kv group)",
    values: str = "(kv group)",
    scale: Callable[[int, int, int], float] = lambda dim, heads, kv_heads: dim**-0.5,
    hidden: Callable[[Tensor], Tensor] = lambda ones: ones.triu(1),
    fill: float = -torch.inf,
    over: int = -1,
    after_softmax: str = "",
) -> Callable[..., Tensor]:
    """Return an answer that is right, but for what the arguments change."""

    def answer(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int) -> Tensor:
        group = heads // kv_heads
        q = rearrange(q, split, h=heads)
        k, v = (
            repeat(rearrange(x, split, h=kv_heads), f"b kv s d -> b {order} s d", group=group)
            for x, order in ((k, keys), (v, values))
        )
        found = q @ k.mT * scale(q.size(-1), heads, kv_heads)
        mask = hidden(torch.ones_like(found, dtype=torch.bool))
        if after_softmax:
            weights = torch.softmax(found, over).masked_fill(mask, 0.0)
            if after_softmax == "divided":
                weights = weights / weights.sum(-1, keepdim=True)
        else:
            weights = torch.softmax(found.masked_fill(mask, fill), over)
        return rearrange(weights @ v, merge)

    return answer


def misread(x: Tensor, heads: int) -> Tensor:
    """Read the elements as if they came by head, then by token."""
    return rearrange(x.reshape(len(x), heads, x.size(1), -1), "b h s d -> b s (h d)")


def first_head(x: Tensor, heads: int) -> Tensor:
    """Return the first head's numbers for all heads."""
    return x[..., : x.size(-1) // heads].repeat(1, 1, heads)


grouped_query_attention = Exercise(
    NOTEBOOK,
    "grouped_query_attention",
    attention_cases,
    observe=function(grad="q k v", on_other_device=True),
    smaller="With 4 query heads and 2 key heads, which key head does each query head read, and "
    "which tokens does the second token see?",
    wrong={
        "query head h reads key head h % kv_heads; neighboring heads share one, so split the query "
        "heads as (kv group), not (group kv).": attend(keys="(group kv)", values="(group kv)"),
        "keys and values are shared in different ways; both are (kv group).": [
            attend(values="(group kv)"),
            attend(keys="(group kv)"),
        ],
        "the heads are split or merged as (dim head); a head's numbers are neighbors: (head "
        "dim).": [
            attend(merge="b h s d -> b s (d h)"),
            attend(split="b s (d h) -> b h s d"),
            attend(split="b s (d h) -> b h s d", merge="b h s d -> b s (d h)"),
        ],
        "head and seq are mixed up when splitting: split the width into (head dim) first, then "
        "bring head in front of seq.": (
            lambda q, k, v, h, g: attend()(misread(q, h), misread(k, g), misread(v, g), h, g)
        ),
        "head and seq are mixed up when merging: bring seq in front of head, then join.": (
            lambda q, *rest: attend(merge="b h s d -> b h s d")(q, *rest).reshape(q.shape)
        ),
        "all query heads read the first key head; each group has its own.": [
            lambda q, k, v, h, g: attend()(q, first_head(k, g), first_head(v, g), h, g),
            lambda q, k, v, h, g: attend()(q, first_head(k, g), v, h, g),
        ],
        "the scores are not scaled: divide them by sqrt(dim).": attend(scale=lambda *_: 1.0),
        "divide by the root of the dim of one head.": [
            attend(scale=lambda dim, heads, kv_heads: (heads * dim) ** -0.5),
            attend(scale=lambda dim, heads, kv_heads: (kv_heads * dim) ** -0.5),
            attend(scale=lambda dim, *_: 1 / dim),
            attend(scale=lambda dim, *_: dim**0.5),
            attend(scale=lambda *_: 0.5),
        ],
        "there is no causal mask: tokens look at the future.": attend(hidden=torch.zeros_like),
        "that mask is inverted; each token looks at the future instead of the past.": (
            attend(hidden=lambda ones: ones.tril(-1))
        ),
        "a token sees its past and itself, and nothing else, so hide triu(1).": [
            attend(hidden=torch.tril),
            attend(hidden=torch.triu),
            attend(hidden=lambda ones: ones.triu(2)),
        ],
        "the future's scores are 0, but exp(0) is 1, so softmax still gives them weight; set them "
        "to -inf.": attend(fill=0.0),
        "a masked score must be lower than any other in every dtype, so set it to -inf.": [
            attend(fill=-100.0),
            attend(fill=-1e4),
            attend(fill=-1e9),
            ("scores.masked_fill(future, -torch.inf)", "scores - 1000 * future"),
        ],
        "you mask after the softmax, so the weights of a query no longer add up to 1; set the "
        "scores to -inf before it.": [
            attend(after_softmax="only"),
            attend(after_softmax="divided"),
        ],
        "exp overflows for large scores; let torch.softmax subtract the maximum.": (
            "torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)",
            "scores.exp().masked_fill(future, 0) / scores.exp().tril().sum(-1, keepdim=True)",
        ),
        "softmax runs over the wrong axis; the weights of one query over all keys add up to 1.": [
            attend(over=-2),
            attend(over=1),
        ],
        "your mask is too small for long sequences; make it for as many tokens as there are.": [
            (
                "torch.ones_like(scores, dtype=torch.bool).triu(1)",
                f"torch.ones({n}, {n}).bool().triu(1)[: q.size(-2), : q.size(-2)]",
            )
            for n in (8, 64, 1024)
        ],
        "your mask is float32, and so is the result then; keep the inputs' dtype.": (
            "scores.masked_fill(future, -torch.inf)",
            "scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)",
        ),
    },
)
