"""Exercises of notebook 03 on named dimensions and the order of elements."""

import math
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from cs336_course.engine import Case, Exercise, edits, function, normal, sizes

__all__ = ["Bool", "Float", "math", "reduce"]  # the printed solutions use these, too
NOTEBOOK = "03_einops"
NUMPY = "NumPy doesn't record operations, so the gradient is lost. Use torch's functions."

# head_scores


def score_cases() -> Iterator[Case]:
    """Yield queries and keys [batch, seq, head, dim]."""
    yield Case("", q=normal(2, 3, 5, 7), k=normal(2, 3, 5, 7, seed=1))
    yield Case("more keys than queries", q=normal(2, 3, 5, 7), k=normal(2, 4, 5, 7, seed=2))
    yield Case("a single query", q=normal(3, 1, 2, 5), k=normal(3, 6, 2, 5, seed=3))
    yield Case("a batch of one", q=normal(1, 4, 3, 2), k=normal(1, 4, 3, 2, seed=4))
    yield Case("one head", q=normal(2, 3, 1, 4), k=normal(2, 5, 1, 4, seed=5))
    yield Case("heads of one number", q=normal(2, 2, 3, 1), k=normal(2, 4, 3, 1, seed=6))
    moved, shared = normal(3, 2, 4, 5).transpose(1, 2), normal(1, 6, 2, 5, seed=8)
    yield Case("inputs that aren't contiguous", q=moved, k=shared.expand(3, -1, -1, -1))
    for size in sizes(2, batch=(2, 4), seq=(2, 6), more=(0, 3), head=(2, 5), dim=(2, 9)):
        q = normal(size.batch, size.seq, size.head, size.dim, seed=9)
        k = normal(size.batch, size.seq + size.more, size.head, size.dim, seed=10)
        yield Case("other sizes", q=q, k=k)
        yield Case("inputs in float64", q=q.double(), k=k.double())
    q, k = (normal(2, 3, 2, 4, seed=seed).round() for seed in (11, 12))
    yield Case("inputs in float16", q=q.half(), k=k.half())
    yield Case("scores of several thousand", q=100 * q, k=100 * k)


def scores(q: Tensor, k: Tensor, pattern: str = "b q h d, b k h d -> b h q k") -> Tensor:
    """Return the scores, or what another pattern gives."""
    return einsum(q, k, pattern)


def future(q: Tensor, k: Tensor) -> Tensor:
    """Return where a key comes after a query."""
    return torch.ones(q.size(1), k.size(1), dtype=torch.bool).triu(1)


RAW = "return the scores before a softmax; the weights are computed from them later."
ONLY = "return the dot product of every query with every key; no mask is asked for."

head_scores = Exercise(
    NOTEBOOK,
    "head_scores",
    score_cases,
    observe=function(grad="q k"),
    axes="batch head query key",
    smaller="One head has 2 queries and 4 keys of 3 numbers. How many scores are there, and what "
    "does each sum over?",
    wrong={
        "you still multiply the last two axes; in batch seq head dim those are head and dim, so "
        "heads are compared with heads, and tokens are never compared with each other.": (
            lambda q, k: q @ k.transpose(-2, -1)
        ),
        "rows are keys and columns queries: put `query` before `key` to the right of the arrow.": (
            lambda q, k: scores(q, k).mT
        ),
        "the head axis comes last; softmax and mask expect batch head query key.": (
            lambda q, k: scores(q, k, "b q h d, b k h d -> b q k h")
        ),
        "the head axis comes after the query; the order should be batch head query key.": (
            lambda q, k: scores(q, k, "b q h d, b k h d -> b q h k")
        ),
        "the heads are summed up: a name left out to the right of the arrow is summed.": (
            lambda q, k: scores(q, k).sum(1)
        ),
        "the examples of the batch are summed up: keep `batch` to the right of the arrow.": (
            lambda q, k: scores(q, k).sum(0)
        ),
        "queries and keys share one name, so each query meets only the key at its own position; "
        "give them two names.": lambda q, k: scores(q, k, "b s h d, b s h d -> b h s"),
        "you reshaped where axes must change places; a transpose moves head in front of seq, and a "
        "reshape only counts the same elements in other rows.": (
            lambda q, k: (
                q.reshape(len(q), q.size(2), q.size(1), -1)
                @ k.reshape(len(k), k.size(2), k.size(1), -1).mT
            )
        ),
        "`dim` has two names in your pattern, so queries and keys are summed separately; use one "
        "name for both.": lambda q, k: scores(q, k, "b q h d, b k h e -> b h q k"),
        "the heads have two names, so the keys' heads are summed; use one name for both.": (
            lambda q, k: scores(q, k, "b q h d, b k g d -> b h q k")
        ),
        "the batch has two names, so each query meets the keys of all examples; use one name for "
        "both.": lambda q, k: scores(q, k, "b q h d, c k h d -> b h q k"),
        "you scaled the scores by 1/sqrt(dim); attention does, but this exercise doesn't.": (
            lambda q, k: scores(q, k) / q.size(-1) ** 0.5
        ),
        f"you apply a softmax; {RAW}": lambda q, k: scores(q, k).softmax(-1),
        f"you scale and apply a softmax; {RAW}": (
            lambda q, k: (scores(q, k) / q.size(-1) ** 0.5).softmax(-1)
        ),
        f"you apply a softmax, and over the queries, too; {RAW}": (
            lambda q, k: scores(q, k).softmax(-2)
        ),
        "you divide by the lengths of query and key, which gives cosines; leave the dot products "
        "as they are.": lambda q, k: scores(F.normalize(q, dim=-1), F.normalize(k, dim=-1)),
        f"you set the future to 0; {ONLY}": lambda q, k: scores(q, k).tril(),
        f"you set the future to -inf; {ONLY}": (
            lambda q, k: scores(q, k).masked_fill(future(q, k), -torch.inf)
        ),
        "that is the distance between query and key; multiply them, and sum over dim.": (
            lambda q, k: torch.cdist(q.transpose(1, 2), k.transpose(1, 2))
        ),
        "you take the mean over dim; a dot product is the sum.": (
            lambda q, k: scores(q, k) / q.size(-1)
        ),
        "you divide by the root of the number of queries; leave the dot products as they are.": (
            lambda q, k: scores(q, k) / math.sqrt(q.size(1))
        ),
        "your scores are rounded to 16 bits on the way; compute them in the inputs' dtype.": [
            lambda q, k: scores(q.half(), k.half()).to(q.dtype),
            lambda q, k: scores(q.bfloat16(), k.bfloat16()).to(q.dtype),
        ],
        "negative scores are missing; keep them, because softmax makes them small weights.": (
            lambda q, k: scores(q, k).relu()
        ),
        "the sign is wrong.": lambda q, k: -scores(q, k),
        "axes of size 1 have to stay; leave out squeeze().": lambda q, k: scores(q, k).squeeze(),
        "there may be more keys than queries; use all keys.": [
            lambda q, k: scores(q, k[:, : q.size(1)]),
            lambda q, k: scores(q, k[:, -q.size(1) :]),
        ],
        "the result is always float32; keep the inputs' dtype.": (
            lambda q, k: scores(q.float(), k.float())
        ),
        NUMPY: lambda q, k: torch.from_numpy(
            np.einsum("bqhd,bkhd->bhqk", q.detach().numpy(), k.detach().numpy())
        ),
    },
    refused=[
        "batch, seq, heads, dim = 2, 3, 5, 7\n"
        "def head_scores(q, k):\n"
        "    q = q.reshape(batch, seq, heads, dim).transpose(1, 2)\n"
        "    return q @ k.reshape(batch, -1, heads, dim).permute(0, 2, 3, 1)\n",
        lambda q, k: None,
        lambda q, k: scores(q, k, "b q h d, b k h d -> q k"),
        lambda q, k: scores(q, k).mean(0, keepdim=True),
        lambda q, k: scores(q.mul_(2), k) / 2,
        lambda q, k: (q.div_(q.norm()), scores(q, k))[1],
        lambda q, k: scores(q, k).clamp(-50, 50),
        lambda q, k: scores(q, k).to("meta"),
        lambda q, k: scores(q, k[:1].expand_as(k)),
        lambda q, k: scores(q, k[:, :, :1].expand_as(k)),
        lambda q, k: scores(q.view(-1).view(q.shape), k.view(-1).view(k.shape)),
        lambda q, k: scores(q.float(), k.float()) if q.element_size() < 4 else scores(q, k),
        lambda q, k: scores(q, k.detach()),
        lambda q, k: scores(q.data, k.data),
        lambda q, k: torch.matmul(
            q.transpose(1, 2), k.permute(0, 2, 3, 1), out=torch.empty(0, dtype=q.dtype)
        ),
    ],
    right=[
        lambda q, k: q.transpose(1, 2) @ k.permute(0, 2, 3, 1),
        lambda q, k: (q.transpose(1, 2)[..., None, :] * k.transpose(1, 2)[:, :, None]).sum(-1),
        lambda q, k: torch.stack(
            [
                torch.stack([a[:, h] @ b[:, h].T for h in range(q.size(2))])
                for a, b in zip(q, k, strict=True)
            ]
        ),
    ],
)


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


def back(g: Tensor, k: Tensor, pattern: str = "b h q k, b k h d -> b q h d") -> Tensor:
    """Return the gradient of the queries, or what another pattern gives."""
    return einsum(g, k, pattern)


query_gradient = Exercise(
    NOTEBOOK,
    "query_gradient",
    gradient_cases,
    observe=function(grad="g k"),
    axes="batch query head dim",
    smaller="One query q meets the keys 2 and 5, so its scores are 2q and 5q. Their gradients are "
    "1 and 10. What is the gradient of q?",
    wrong={
        "the head axis comes before the query; a gradient has the axes of its tensor, and q is "
        "batch query head dim.": lambda g, k: back(g, k, "b h q k, b k h d -> b h q d"),
        "you sum over the queries, which gives a gradient to the keys; sum over the keys.": (
            lambda g, k: back(g, k, "b h q k, b q h d -> b k h d")
        ),
        "the heads have two names, so the keys of all heads are summed; use one name for both.": (
            lambda g, k: back(g, k, "b h q k, b k f d -> b q h d")
        ),
        "the keys have two names, so both inputs are summed separately; use one name for both.": (
            lambda g, k: back(g, k, "b h q k, b j h d -> b q h d")
        ),
        "the batch has two names, so the keys of all examples are summed; use one name for both.": (
            lambda g, k: back(g, k, "b h q k, a k h d -> b q h d")
        ),
        "you reshaped where axes must change places; to the right of the arrow, write them in the "
        "order that q has.": lambda g, k: back(g, k, "b h q k, b k h d -> b h q d").reshape(
            len(g), g.size(2), g.size(1), -1
        ),
        "the dims are summed up; q has one gradient for each of them.": (
            lambda g, k: back(g, k, "b h q k, b k h d -> b q h")
        ),
        "the heads are summed up; each head has its own queries.": (
            lambda g, k: back(g, k, "b h q k, b k h d -> b q d")
        ),
        "you take the mean over the keys; the chain rule sums over all scores that q is in.": (
            lambda g, k: back(g, k) / g.size(-1)
        ),
        "you scaled by 1/sqrt(dim); these scores weren't scaled.": (
            lambda g, k: back(g, k) / math.sqrt(k.size(-1))
        ),
        "the sign is wrong; return the gradient, not the step against it.": (
            lambda g, k: -back(g, k)
        ),
        "axes of size 1 have to stay; leave out squeeze().": lambda g, k: back(g, k).squeeze(),
        "the result is always float32; keep the inputs' dtype.": (
            lambda g, k: back(g.float(), k.float())
        ),
        NUMPY: lambda g, k: torch.from_numpy(
            np.einsum("bhqk,bkhd->bqhd", g.detach().numpy(), k.detach().numpy())
        ),
    },
    refused=[
        lambda g, k: None,
        lambda g, k: g @ k,
        lambda g, k: back(g.mul_(2), k) / 2,
        lambda g, k: back(g, k[:1].expand_as(k)),
        lambda g, k: back(g, k.detach()),
        lambda g, k: back(g.data, k),
        lambda g, k: back(g.view(-1).view(g.shape), k.view(-1).view(k.shape)),
        lambda g, k: back(g, k).to("meta"),
    ],
    right=[
        lambda g, k: (g @ k.transpose(1, 2)).transpose(1, 2),
        lambda g, k: (g.permute(0, 2, 1, 3)[..., None] * k.transpose(1, 2)[:, None]).sum(3),
    ],
)


# masked_mean


def mean_cases() -> Iterator[Case]:
    """Yield tokens [batch, seq, hidden] and masks [batch, seq]."""
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 0, 0, 0, 0]]).bool()
    yield Case("", x=normal(3, 5, 4), mask=mask)
    left = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1]]).bool()
    yield Case("padding on the left", x=normal(3, 6, 4), mask=left)
    holes = torch.tensor([[1, 0, 1, 0, 0], [0, 1, 0, 0, 1], [1, 0, 0, 1, 1]]).bool()
    yield Case("padding between tokens", x=normal(3, 5, 2, seed=1), mask=holes)
    yield Case("one token in each row", x=normal(4, 4, 3, seed=2), mask=torch.eye(4).bool())
    yield Case("no padding", x=normal(2, 3, 5, seed=3), mask=torch.ones(2, 3).bool())
    zeros = normal(2, 4, 3, seed=4)
    zeros[:, 1], zeros[:, 0, 0] = 0, 0
    mask = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0]]).bool()
    yield Case("a token of zeros", x=zeros, mask=mask)
    yield Case("one number in all", x=normal(1, 1, 1), mask=torch.ones(1, 1).bool())
    moved = normal(5, 3, 4, seed=5).transpose(0, 1)
    yield Case("an x that isn't contiguous", x=moved, mask=moved[..., 0] < 1)
    yield Case("an expanded x", x=normal(1, 5, 2, seed=6).expand(3, -1, -1), mask=holes)
    for size in sizes(3, batch=(1, 4), seq=(2, 9), hidden=(1, 6)):
        x = normal(size.batch, size.seq, size.hidden, seed=7)
        mask = normal(size.batch, size.seq, seed=8) > 0
        mask[:, size.seq // 2] = True  # every row has a token
        yield Case("other sizes", x=x, mask=mask)
        yield Case("inputs in float64", x=x.double(), mask=mask)
    x, mask = (4 * normal(2, 5, 3, seed=8)).round(), torch.zeros(2, 5).bool()
    mask[0, 1:], mask[1, 2:4] = True, True
    yield Case("inputs in float16", x=x.half(), mask=mask)
    # A count in bf16 rounds 259 to 260, and one in fp16 rounds 2,571 to 2,572.
    for tokens, first in ((300, 259), (3000, 2571)):
        long = torch.ones(2, tokens).bool()
        long[0, first:], long[1, 100:260] = False, False
        yield Case(f"{tokens:,} tokens", x=normal(2, tokens, 3, seed=9) + 5, mask=long)


def mean_of(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of each row's tokens whose mask is True."""
    return torch.stack([row[keep].mean(0) for row, keep in zip(x, mask, strict=True)])


def total(x: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of each row's tokens whose mask is True."""
    return torch.where(mask[..., None], x, 0).sum(1)


def at(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return all positions, and each row's first and last one that is kept."""
    last = mask.long().cumsum(1).argmax(1, keepdim=True)
    return torch.arange(mask.size(1)), mask.long().argmax(1, keepdim=True), last


masked_mean = Exercise(
    NOTEBOOK,
    "masked_mean",
    mean_cases,
    observe=function(grad="x"),
    axes="batch hidden",
    smaller="A row's tokens are [2, 4, 9], and its mask is [True, False, True]. What do you sum, "
    "and what do you divide by?",
    wrong={
        "you averaged over all tokens, padding included: the mask has no effect.": (
            lambda x, mask: x.mean(1)
        ),
        "you set the padding to zero but divided by the sequence length: divide by the number of "
        "tokens that are kept.": lambda x, mask: total(x, mask) / x.size(1),
        "that is the sum of the kept tokens; divide by how many there are.": total,
        "you divide by the number of kept tokens, but padding is in the sum.": (
            lambda x, mask: x.sum(1) / mask.sum(1, keepdim=True)
        ),
        "you divided by the kept tokens of the whole batch: each row has its own number of them.": (
            lambda x, mask: total(x, mask) / mask.sum()
        ),
        "you averaged the padding and dropped the tokens: True marks a token that counts.": (
            lambda x, mask: total(x, ~mask) / (~mask).sum(1, keepdim=True)
        ),
        "you pooled over the whole batch; return one vector for each row.": (
            lambda x, mask: x[mask].mean(0)
        ),
        "that is the largest value of the kept tokens; the mean is expected.": (
            lambda x, mask: x.masked_fill(~mask[..., None], -torch.inf).amax(1)
        ),
        "a division with // drops the fraction; use /.": (
            lambda x, mask: total(x, mask) // mask.sum(1, keepdim=True)
        ),
        "you use the first row's mask for all rows.": (
            lambda x, mask: mean_of(x, mask[:1].expand_as(mask))
        ),
        "you divide every row by the first row's number of tokens.": (
            lambda x, mask: total(x, mask) / mask[0].sum()
        ),
        "you divide every row by the largest number of tokens in the batch.": (
            lambda x, mask: total(x, mask) / mask.sum(1).max()
        ),
        "you divide by the number of rows; divide by each row's number of kept tokens.": (
            lambda x, mask: total(x, mask) / len(x)
        ),
        "that is the first token's vector; the mean of the kept tokens is expected.": (
            lambda x, mask: x[:, 0]
        ),
        "that is the last kept token's vector; the mean of the kept tokens is expected.": (
            lambda x, mask: x[torch.arange(len(x)), at(mask)[2].flatten()]
        ),
        "that is the median of the kept tokens; the mean is expected.": (
            lambda x, mask: torch.stack(
                [row[keep].median(0).values for row, keep in zip(x, mask, strict=True)]
            )
        ),
        "a softmax of the mask gives padding some weight, too; weigh it with 0.": (
            lambda x, mask: (x * mask.to(x.dtype).softmax(1)[..., None]).sum(1)
        ),
        "you assume that padding comes last, but the mask may begin with False: use its positions, "
        "not only their number.": (
            lambda x, mask: mean_of(x, at(mask)[0] < mask.sum(1, keepdim=True))
        ),
        "padding may also stand between tokens: use every position of the mask, not the first and "
        "the last.": lambda x, mask: mean_of(
            x, (at(mask)[0] >= at(mask)[1]) & (at(mask)[0] <= at(mask)[2])
        ),
        "padding may also come first: you average from the beginning to the last kept token.": (
            lambda x, mask: mean_of(x, at(mask)[0] <= at(mask)[2])
        ),
        "you divide by the number of values that aren't zero; a kept token may have zeros.": (
            lambda x, mask: total(x, mask) / (x * mask[..., None] != 0).sum(1)
        ),
        "a token that counts may be all zeros; count the mask, not the vectors.": (
            lambda x, mask: total(x, mask) / (x * mask[..., None] != 0).any(-1).sum(1, keepdim=True)
        ),
        "the count doesn't fit into 16 or 8 bits; count in int64 or float32.": [
            lambda x, mask, kind=kind: (
                total(x, mask) / mask.sum(1, keepdim=True).to(kind).to(x.dtype)
            )
            for kind in (torch.bfloat16, torch.float16, torch.uint8, torch.int8)
        ],
        **{
            f"you use the first {most} tokens only.": (
                lambda x, mask, most=most: mean_of(x[:, :most], mask[:, :most])
            )
            for most in (128, 256, 512, 1024, 2048)
        },
        "the result is float32 for every input; keep the inputs' dtype: mask.to(x.dtype).": [
            edits(("mask.to(x.dtype)", "mask.float()"), ("einsum(x,", "einsum(x.float(),")),
            lambda x, mask: total(x.float(), mask) / mask.sum(1, keepdim=True),
        ],
        "your mask is float32 for every input, and einsum takes one dtype: mask.to(x.dtype).": (
            "mask.to(x.dtype)",
            "mask.float()",
        ),
        "a mask is boolean, and einsum needs numbers: mask.to(x.dtype) has ones and zeros.": (
            "mask.to(x.dtype)",
            "mask",
        ),
    },
    refused=[
        lambda x, mask: None,
        lambda x, mask: 3.0,
        lambda x, mask: x.view(7),
        lambda x, mask: x.flip(1)[:, 0],
        lambda x, mask: mean_of(x, mask) * torch.nan,
        lambda x, mask: x.masked_fill_(~mask[..., None], 0).mean(1),
        lambda x, mask: x.mul_(mask[..., None]).sum(1) / mask.sum(1, keepdim=True),
        lambda x, mask: mean_of(x, mask.logical_not_().logical_not()),
        lambda x, mask: total(x, mask) / mask.sum(1),
        lambda x, mask: (x * mask).sum(1),
        lambda x, mask: (x * mask[..., None]).sum(1) / mask.float().sum(1, keepdim=True),
        lambda x, mask: total(x, mask) / (mask.sum(1, keepdim=True) + 1e-9),
        lambda x, mask: total(x, mask) / mask.sum(1, keepdim=True, dtype=torch.uint8),
        lambda x, mask: total(x, mask) / mask.sum(1, keepdim=True).clamp(min=2),
        lambda x, mask: total(x, mask) / (mask.sum(1, keepdim=True) + 1),
        lambda x, mask: total(x, mask) / (mask.sum() / len(x)),
        ("    weight =", "    mask = mask.clone()\n    mask[:, 0] &= x.size(1) < 20\n    weight ="),
        ("    weight =", "    x[~mask] = 0\n    weight ="),
        ("    return total", "    mask ^= True\n    return total"),
        edits(
            ("    total =", "    weight = weight / weight.sum()\n    total ="),
            (' / reduce(weight, "batch seq -> batch 1", "sum")', ""),
        ),
        ("einsum(x,", "einsum(x.view(-1).view(x.shape),"),
        ('"batch seq -> batch 1", "sum")', '"batch seq -> batch 1", "sum").squeeze()'),
        lambda x, mask: torch.no_grad()(mean_of)(x, mask),
        lambda x, mask: mean_of(torch.tensor(x.tolist(), dtype=x.dtype), mask),
    ],
    right=[
        mean_of,
        lambda x, mask: x.masked_fill(~mask[..., None], torch.nan).nanmean(1),
        lambda x, mask: (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1),
        lambda x, mask: ((mask / mask.sum(1, keepdim=True)).to(x.dtype)[:, None] @ x).squeeze(1),
        lambda x, mask: total(x, mask) / mask.sum(1)[:, None],
    ],
)


# image_to_patches


def image_cases() -> Iterator[Case]:
    """Yield images [batch, channel, height, width] and sizes of patches."""
    images = normal(2, 3, 8, 12)
    yield Case("", images=images, size=4)
    yield Case("another size on the same images", images=images, size=2)
    yield Case("images that are taller than wide", images=normal(2, 3, 12, 6, seed=1), size=3)
    yield Case("one channel", images=normal(2, 1, 4, 6, seed=2), size=2)
    yield Case("five channels and square images", images=normal(3, 5, 4, 4, seed=3), size=2)
    yield Case("one patch in each image", images=normal(2, 3, 5, 5, seed=4), size=5)
    yield Case("patches of one pixel", images=normal(2, 3, 2, 3, seed=5), size=1)
    yield Case("one pixel in all", images=normal(1, 1, 1, 1), size=1)
    last = images.contiguous(memory_format=torch.channels_last)
    yield Case("images that are stored channels last", images=last, size=4)
    yield Case("expanded images", images=normal(1, 2, 6, 3, seed=6).expand(4, -1, -1, -1), size=3)
    for size in sizes(3, batch=(1, 3), channel=(1, 4), h=(1, 4), w=(1, 4), patch=(2, 5)):
        shape = size.batch, size.channel, size.h * size.patch, size.w * size.patch
        yield Case("other sizes", images=normal(*shape, seed=7), size=size.patch)
    images = normal(2, 2, 4, 6, seed=8)
    yield Case("inputs in float64", images=images.double(), size=2)
    yield Case("inputs in float16", images=images.half(), size=2)


def patches(
    output: str = "b (h w) (p1 p2 c)", split: str = "b c (h p1) (w p2)"
) -> Callable[[Tensor, int], Tensor]:
    """Return an answer that splits and joins axes in this way."""
    return lambda images, size: rearrange(images, f"{split} -> {output}", p1=size, p2=size)


def flat(images: Tensor, size: int) -> tuple[int, int, int]:
    """Return the right shape."""
    return len(images), -1, size * size * images.size(1)


def cut_out(images: Tensor, size: int) -> Tensor:
    """Cut each patch out by itself."""
    height, width = images.shape[2:]
    corners = product(range(0, height, size), range(0, width, size))
    cuts = [images[:, :, y : y + size, x : x + size] for y, x in corners]
    return torch.stack([cut.permute(0, 2, 3, 1).reshape(len(images), -1) for cut in cuts], dim=1)


image_to_patches = Exercise(
    NOTEBOOK,
    "image_to_patches",
    image_cases,
    observe=function(grad="images"),
    answers=("to_patches",),
    axes="batch patch value",
    smaller="A 2 x 2 image is red 1, 2, 3, 4 and green 5, 6, 7, 8. What is its one patch of size "
    "2?",
    wrong={
        "the channel varies slowest inside a patch; it should come last, as in (p1 p2 c).": (
            patches("b (h w) (c p1 p2)")
        ),
        "the patches come column by column; make `h` the slow axis to go row by row.": (
            patches("b (w h) (p1 p2 c)")
        ),
        "inside a patch, rows and columns are swapped: p1 before p2.": patches("b (h w) (p2 p1 c)"),
        "every patch is a thinned-out image; in (h p1) the left name is the slow one, so the patch "
        "index comes first and the place inside the patch second.": (
            patches(split="b c (p1 h) (p2 w)")
        ),
        "`size` is the size of a patch, p1 and p2; you gave it to h and w, the number of them.": (
            "p1=size, p2=size",
            "h=size, w=size",
        ),
        "the patches are right but not flattened into vectors.": patches("b (h w) p1 p2 c"),
        "the patches still lie on a grid: join `h` and `w` into one axis.": (
            patches("b h w (p1 p2 c)")
        ),
        "the patches of all images are in one axis; keep `batch` apart.": (
            patches("(b h w) (p1 p2 c)")
        ),
        "the values come before the patches; the order should be batch patch value.": (
            patches("b (p1 p2 c) (h w)")
        ),
        "your patches overlap; each begins `size` pixels after the one before it.": (
            lambda images, size: rearrange(
                images.unfold(2, size, 1).unfold(3, size, 1), "b c h w p q -> b (h w) (p q c)"
            )
        ),
        "you move the channel to the end and then only reshape; a patch's pixels don't lie next to "
        "each other.": (
            lambda images, size: images.permute(0, 2, 3, 1).reshape(flat(images, size))
        ),
        "a reshape alone keeps the elements in their old order; a patch's pixels don't lie next to "
        "each other.": lambda images, size: images.reshape(flat(images, size)),
        "`size` has no effect; your patches are always 4 x 4.": (
            "p1=size, p2=size",
            "p1=4, p2=4",
        ),
        "`view` can't join axes that a transpose has moved apart; `rearrange` and `reshape` copy "
        "where they must.": (
            lambda images, size: (
                images.unfold(2, size, size)
                .unfold(3, size, size)
                .permute(0, 2, 3, 4, 5, 1)
                .view(flat(images, size))
            )
        ),
        "images may have any number of channels; you use three.": (
            lambda images, size: patches()(images[:, :3], size)
        ),
        "axes of size 1 have to stay; leave out squeeze().": (
            lambda images, size: patches()(images, size).squeeze()
        ),
        "the result is always float32; keep the inputs' dtype.": (
            lambda images, size: patches()(images.float(), size)
        ),
    },
    refused=[
        lambda images, size: patches()(images.expand(-1, 3, -1, -1), size),
        "b, c, h, w = 2, 3, 8, 12\n"
        "def to_patches(images, size):\n"
        "    x = images.reshape(b, c, h // size, size, w // size, size)\n"
        "    return x.permute(0, 2, 4, 3, 5, 1).reshape(b, -1, size * size * c)\n",
        "def to_patches(images, size):\n"
        "    n = images.size(2) // size\n"
        "    x = images.reshape(*images.shape[:2], n, size, -1, size)\n"
        "    return x.permute(0, 2, 4, 3, 5, 1).reshape(len(images), n * n, -1)\n",
        lambda images, size: F.unfold(images, size, stride=size).mT,
        ("rearrange(images,", "rearrange(images.view(-1).view(images.shape),"),
        (
            "    return ",
            "    images = images.float() if images.element_size() < 4 else images\n    return ",
        ),
        lambda images, size: patches()(images.add_(1), size) - 1,
        lambda images, size: cut_out(images.detach(), size),
        torch.inference_mode()(cut_out),
    ],
    right=[
        cut_out,
        lambda images, size: (
            F.unfold(images, size, stride=size)
            .mT.unflatten(-1, (images.size(1), -1))
            .mT.flatten(-2)
        ),
        lambda images, size: (
            images.unfold(2, size, size)
            .unfold(3, size, size)
            .permute(0, 2, 3, 4, 5, 1)
            .flatten(3)
            .flatten(1, 2)
        ),
    ],
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
    split: str = "batch seq (head dim) -> batch head seq dim",
    merge: str = "batch head seq dim -> batch seq (head dim)",
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
        q = rearrange(q, split, head=heads)
        k, v = (
            repeat(rearrange(x, split, head=kv_heads), f"b kv s d -> b {order} s d", group=group)
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
    by_head = x.reshape(len(x), heads, x.size(1), -1)
    return rearrange(by_head, "batch head seq dim -> batch seq (head dim)")


def first_head(x: Tensor, heads: int) -> Tensor:
    """Return the first head's numbers for all heads."""
    return x[..., : x.size(-1) // heads].repeat(1, 1, heads)


def by_library(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Use PyTorch's attention, which shares keys and values itself."""
    q = q.unflatten(-1, (heads, -1)).transpose(1, 2)
    k, v = (x.unflatten(-1, (kv_heads, -1)).transpose(1, 2) for x in (k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2).flatten(2)


def by_query_head(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Compute one query head after the other."""
    dim, group = q.size(-1) // heads, heads // kv_heads
    mixed = []
    for head in range(heads):
        shared = slice(head // group * dim, (head // group + 1) * dim)
        found = q[..., head * dim : (head + 1) * dim] @ k[..., shared].mT / dim**0.5
        found = found + torch.full_like(found, -torch.inf).triu(1)
        mixed.append(found.softmax(-1) @ v[..., shared])
    return torch.cat(mixed, dim=-1)


ATTEND = attend()
SOFTMAX = "torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)"
MASK = "torch.ones_like(scores, dtype=torch.bool).triu(1)"
LOWER = "a masked score must be lower than any other, so set it to -inf."

grouped_query_attention = Exercise(
    NOTEBOOK,
    "grouped_query_attention",
    attention_cases,
    observe=function(grad="q k v", on_other_device=True),
    axes="batch seq width",
    smaller="With 4 query heads and 2 key heads, which key head does each query head read, and "
    "which tokens does the second token see?",
    wrong={
        "query head h reads key head h % kv_heads; neighboring heads share one, so split the query "
        "heads as (kv group), not (group kv).": attend(keys="(group kv)", values="(group kv)"),
        "keys are shared by neighboring query heads, but values aren't; both are (kv group).": (
            attend(values="(group kv)")
        ),
        "values are shared by neighboring query heads, but keys aren't; both are (kv group).": (
            attend(keys="(group kv)")
        ),
        "the heads are merged as (dim head); the order they were split in is (head dim).": (
            attend(merge="batch head seq dim -> batch seq (dim head)")
        ),
        "the heads are split as (dim head); a head's numbers are neighbors: (head dim).": (
            attend(split="batch seq (dim head) -> batch head seq dim")
        ),
        "the heads are split and merged as (dim head); a head's numbers are neighbors, so both are "
        "(head dim).": attend(
            split="batch seq (dim head) -> batch head seq dim",
            merge="batch head seq dim -> batch seq (dim head)",
        ),
        "head and seq are mixed up when splitting: split the width into (head dim) first, then "
        "bring head in front of seq.": lambda q, k, v, heads, kv_heads: ATTEND(
            misread(q, heads), misread(k, kv_heads), misread(v, kv_heads), heads, kv_heads
        ),
        "head and seq are mixed up when merging: bring seq in front of head, then join.": (
            lambda q, *rest: attend(merge="batch head seq dim -> batch head seq dim")(
                q, *rest
            ).reshape(q.shape)
        ),
        "the heads are not merged; the result should be batch seq (head dim).": (
            attend(merge="batch head seq dim -> batch head seq dim")
        ),
        "you sum up keys; the weights belong to the values.": (
            lambda q, k, v, *heads: ATTEND(q, k, k, *heads)
        ),
        "all query heads read the first key head; each group has its own.": (
            lambda q, k, v, heads, kv_heads: ATTEND(
                q, first_head(k, kv_heads), first_head(v, kv_heads), heads, kv_heads
            )
        ),
        "all query heads read the first key head; each group has its own, as it has its values.": (
            lambda q, k, v, heads, kv_heads: ATTEND(q, first_head(k, kv_heads), v, heads, kv_heads)
        ),
        "the scores are not scaled: divide them by sqrt(dim).": attend(scale=lambda *_: 1.0),
        "the scale uses the width of all heads; use the dim of one head.": (
            attend(scale=lambda dim, heads, kv_heads: (heads * dim) ** -0.5)
        ),
        "the scale uses the width of all key heads; use the dim of one head.": (
            attend(scale=lambda dim, heads, kv_heads: (kv_heads * dim) ** -0.5)
        ),
        "you divided by dim; use its square root.": attend(scale=lambda dim, *_: 1 / dim),
        "you multiply by sqrt(dim); divide by it.": attend(scale=lambda dim, *_: dim**0.5),
        "the scale is that of a head of 4 numbers; use the dim of one head.": (
            attend(scale=lambda *_: 0.5)
        ),
        "there is no causal mask: tokens look at the future.": attend(hidden=torch.zeros_like),
        "that mask is inverted; each token looks at the future instead of the past.": (
            attend(hidden=lambda ones: ones.tril(-1))
        ),
        "that mask hides a token's past and itself; hide only its future, triu(1).": (
            attend(hidden=torch.tril)
        ),
        "each token sees one position too far; the future begins at triu(1).": (
            attend(hidden=lambda ones: ones.triu(2))
        ),
        "a token sees itself, so the future is triu(1); here the first token's row is empty, and "
        "its softmax is NaN.": attend(hidden=torch.triu),
        "the future's scores are 0, but exp(0) is 1, so softmax still gives them weight; set them "
        "to -inf.": attend(fill=0.0),
        LOWER: [
            attend(fill=-100.0),
            attend(fill=-1e4),
            ("scores.masked_fill(future, -torch.inf)", "scores - 1000 * future"),
        ],
        "-1e9 doesn't fit into float16; use -torch.inf.": attend(fill=-1e9),
        "you mask after the softmax, so the weights of a query no longer add up to 1; set the "
        "scores to -inf before it.": attend(after_softmax="only"),
        "you mask after the softmax; where only masked keys had weight, you divide 0 by 0. Set the "
        "future to -inf before it.": attend(after_softmax="divided"),
        "exp overflows for large scores; let torch.softmax subtract the maximum.": edits(
            (SOFTMAX, "scores.masked_fill(future, -torch.inf).exp()"),
            ("    mixed =", "    weights = weights / weights.sum(-1, keepdim=True)\n    mixed ="),
        ),
        "softmax runs over the queries; the weights of one query over all keys add up to 1.": (
            attend(over=-2)
        ),
        "softmax runs over the heads; the weights of one query over all keys add up to 1.": (
            attend(over=1)
        ),
        "your mask is too small for long sequences; make it for as many tokens as there are.": [
            (MASK, f"torch.ones({n}, {n}).bool().triu(1)[: q.size(-2), : q.size(-2)]")
            for n in (8, 64, 1024)
        ],
        "your mask is float32, and so is the result then; keep the inputs' dtype.": (
            "scores.masked_fill(future, -torch.inf)",
            "scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)",
        ),
        "the result is always float32; keep the inputs' dtype.": (
            lambda q, k, v, *heads: ATTEND(q.float(), k.float(), v.float(), *heads)
        ),
        "axes of size 1 have to stay; leave out squeeze().": (
            lambda *given: ATTEND(*given).squeeze()
        ),
        "the numbers of heads have no effect; use the arguments heads and kv_heads.": (
            lambda q, k, v, *heads: ATTEND(q, k, v, 6, 2)
        ),
    },
    refused=[
        "def grouped_query_attention(q, k, v, heads, kv_heads):\n"
        '    return einsum(q, k, "b (kv group) q d, b kv k d -> b kv group q k")\n',
        attend(fill=-10.0),
        ("-torch.inf", "torch.finfo(scores.dtype).tiny"),
        ("math.sqrt(q.size(-1))", "math.sqrt(scores.size(-1))"),
        ("math.sqrt(q.size(-1))", "int(math.sqrt(q.size(-1)))"),
        ("heads // kv_heads", "3"),
        edits(
            ("kv=kv_heads", "kv=2"),
            ('"kv": kv_heads', '"kv": 2'),
            ("heads // kv_heads", "heads // 2"),
        ),
        "def grouped_query_attention(q, k, v, heads, kv_heads):\n"
        '    q, k, v = (rearrange(x, "b s (h d) -> b h s d", d=4) for x in (q, k, v))\n'
        "    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)\n"
        '    return rearrange(mixed, "b h s d -> b s (h d)")\n',
        ("    mixed =", "    v = v[:, :1].expand_as(v)\n    mixed ="),
        (
            "    sizes =",
            "    if q.element_size() < 4:\n        q, k, v = q.float(), k.float(), v.float()\n"
            "    sizes =",
        ),
        ("    sizes =", "    q = q.view(-1).view(q.shape)\n    sizes ="),
        edits(
            ("    sizes =", "    q /= math.sqrt(q.size(-1) // heads)\n    sizes ="),
            ("    scores = scores / math.sqrt(q.size(-1))\n", ""),
        ),
        lambda q, k, v, *heads: ATTEND(*(x.flatten(0, 1)[None] for x in (q, k, v)), *heads).reshape(
            q.shape
        ),
        lambda q, k, v, *heads: ATTEND(q, k, v.roll(4, -1), *heads),
        lambda q, k, v, *heads: ATTEND(q, k, v.detach(), *heads),
        lambda q, k, v, *heads: ATTEND(q, k.detach(), v, *heads),
        torch.no_grad()(by_library),
        lambda *given: (torch.set_grad_enabled(False), by_library(*given))[1],
        ("    mixed =", "    weights *= 1\n    mixed ="),
        (MASK, "torch.ones(q.size(-2), q.size(-2)).triu(1).bool()"),
    ],
    right=[
        ATTEND,
        by_library,
        by_query_head,
        lambda q, *rest: attend(fill=torch.finfo(q.dtype).min)(q, *rest),
    ],
)
