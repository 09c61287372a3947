"""Exercise checks for notebook 03 on named dimensions and the order of elements."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from torch import Tensor

from cs336_lib.classroom.checks.draws import normal
from cs336_lib.classroom.checks.report import exercise, expect


def same(result: object, target: Tensor) -> bool:
    """Return whether `result` is a tensor and equals `target` up to rounding errors."""
    return (
        isinstance(result, Tensor)
        and result.shape == target.shape
        and torch.allclose(result.to(target), target, atol=1e-5, equal_nan=True)
    )


def compare(result: object, target: Tensor, mistakes: dict[str, Tensor], names: str) -> None:
    """Fail unless `result` equals `target`.

    `mistakes` maps a diagnosis to the tensor that a known mistake produces. If `result` equals one
    of these tensors, the error message is the diagnosis. Messages about a wrong shape use the axis
    names in `names`.
    """
    expect(isinstance(result, Tensor), f"return a tensor, not {type(result).__name__}.")
    if same(result, target):
        return
    for diagnosis, produced in mistakes.items():
        expect(not same(result, produced), diagnosis)
    expect(
        result.shape == target.shape,
        f"the shape is {tuple(result.shape)}; it should be {names} = {tuple(target.shape)}.",
    )
    expect(
        not result.isnan().any(),
        "there are NaNs in it, from a softmax over an empty row or a division by 0.",
    )
    expect(False, "the shape is right, but the numbers are not.")


@exercise("")
def head_scores(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Check the attention scores of each head for queries and keys [batch, seq, head, dim]."""
    q, k = normal(2, 3, 5, 7), normal(2, 3, 5, 7, seed=1)
    target = torch.einsum("bqhd,bkhd->bhqk", q, k)
    result = function(q, k)
    mistakes = {
        "you still multiply the last two axes; in batch seq head dim those are head and dim, so "
        "heads are compared with heads, and tokens are never compared with "
        "each other.": q @ k.transpose(-2, -1),
        "rows are keys and columns queries: put `query` before `key` to the right of the arrow.": (
            target.mT
        ),
        "the head axis comes last; softmax and mask expect batch head query key.": (
            rearrange(target, "batch head query key -> batch query key head")
        ),
        "the head axis comes after the query; the order should be batch head query key.": (
            rearrange(target, "batch head query key -> batch query head key")
        ),
        "the heads are summed up: a name left out to the right of the arrow is summed.": (
            target.sum(1)
        ),
        "the examples of the batch are summed up: keep `batch` to the right of the arrow.": (
            target.sum(0)
        ),
        "`dim` has two names in your pattern, so queries and keys are summed separately; use one "
        "name for both.": (
            rearrange(q.sum(-1), "b q h -> b h q 1") * rearrange(k.sum(-1), "b k h -> b h 1 k")
        ),
        "the heads have two names, so the keys' heads are summed; use one name for both.": (
            torch.einsum("bqhd,bkgd->bhqk", q, k)
        ),
        "you scaled the scores by 1/sqrt(dim); attention does, but this exercise doesn't.": (
            target / math.sqrt(q.size(-1))
        ),
    }
    compare(result, target, mistakes, "batch head query key")
    longer = normal(2, 4, 5, 7, seed=2)  # more keys than queries, as with a KV cache
    target = torch.einsum("bqhd,bkhd->bhqk", q, longer)
    compare(function(q, longer), target, {}, "batch head query key")


@exercise("")
def masked_mean(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Check the mean over all tokens that aren't padding."""
    x = normal(2, 5, 3)
    mask = torch.tensor([[True, True, True, True, False], [True, True, False, False, False]])
    before = x.clone()
    kept = before * rearrange(mask, "batch seq -> batch seq 1")
    counts = reduce(mask.float(), "batch seq -> batch 1", "sum")
    try:
        result = function(x, mask)
    except RuntimeError as error:
        text = str(error)
        expect(
            "size of tensor" not in text,
            "two shapes do not fit together; they are matched from the right, so keep an axis of "
            "size 1 where one is missing: `batch 1` to divide by, `batch seq 1` to multiply with.",
        )
        expect(
            "bool" not in text.lower(),
            "the mask is boolean, and this needs numbers: mask.float() has ones and zeros.",
        )
        raise
    mistakes = {
        "you averaged over all tokens, padding included: the mask has no effect.": before.mean(1),
        "you set the padding to zero but divided by the sequence length: divide by the number of "
        "tokens that are kept.": kept.mean(1),
        "that is the sum of the kept tokens; divide by how many there are.": kept.sum(1),
        "you divided by the kept tokens of the whole batch: each row has its own number of them.": (
            kept.sum(1) / mask.sum()
        ),
        "you averaged the padding and dropped the tokens: True marks a token that counts.": (
            reduce(before * ~mask[..., None], "batch seq hidden -> batch hidden", "sum")
            / (5 - counts)
        ),
        "you pooled over the whole batch; return one vector for each row.": (
            kept.sum((0, 1)) / mask.sum()
        ),
    }
    compare(result, kept.sum(1) / counts, mistakes, "batch hidden")
    expect(torch.equal(x, before), "your function changed its input x in place.")


@exercise("")
def image_to_patches(function: Callable[[Tensor, int], Tensor]) -> None:
    """Check the conversion of images to flattened patches with the channel as last dimension."""
    images = normal(2, 3, 8, 12)

    def cut(output: str) -> Tensor:
        return rearrange(images, f"b c (h p1) (w p2) -> {output}", p1=4, p2=4)

    strided = "b c (p1 h) (p2 w) -> b (h w) (p1 p2 c)"
    mistakes = {
        "the channel varies slowest inside a patch; it should come last, as in (p1 p2 c).": (
            cut("b (h w) (c p1 p2)")
        ),
        "the patches come column by column; make `h` the slow axis to go row by row.": (
            cut("b (w h) (p1 p2 c)")
        ),
        "inside a patch, rows and columns are swapped: p1 before p2.": cut("b (h w) (p2 p1 c)"),
        "every patch is a thinned-out image; in (h p1) the left name is the slow one, so the "
        "patch index comes first and the place inside the "
        "patch second.": (rearrange(images, strided, p1=4, p2=4)),
        "`size` is the size of a patch, p1 and p2; you gave it to h and w, the number of them.": (
            rearrange(images, "b c (h p1) (w p2) -> b (h w) (p1 p2 c)", h=4, w=4)
        ),
        "the patches are right but not flattened into vectors.": cut("b (h w) p1 p2 c"),
        "the patches still lie on a grid: join `h` and `w` into one axis.": (
            cut("b h w (p1 p2 c)")
        ),
    }
    compare(function(images, 4), cut("b (h w) (p1 p2 c)"), mistakes, "batch patch value")
    fixed = {"`size` has no effect; your patches are always 4 x 4.": cut("b (h w) (p1 p2 c)")}
    small = rearrange(images, "b c (h p1) (w p2) -> b (h w) (p1 p2 c)", p1=2, p2=2)
    compare(function(images, 2), small, fixed, "batch patch value")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    split: str = "batch seq (head dim) -> batch head seq dim",
    merge: str = "batch head seq dim -> batch seq (head dim)",
    groups: str = "batch kv seq dim -> batch (kv group) seq dim",
    scale: float | None = None,
    masked: str = "future",
    softmax_over: int = -1,
) -> Tensor:
    """Compute grouped-query attention (6 query heads, 2 key and value heads).

    The default arguments are correct. Each argument can reproduce a typical mistake.
    """
    q = rearrange(q, split, head=6)
    k, v = (repeat(rearrange(t, split, head=2), groups, group=3) for t in (k, v))
    scores = q @ k.mT * (q.size(-1) ** -0.5 if scale is None else scale)
    ones = torch.ones(scores.shape[-2:], dtype=torch.bool)
    masks = {
        "future": ones.triu(1),
        "too little": ones.triu(2),
        "itself": ones.triu(0),
        "past": ones.tril(-1),
        "none": ~ones,
    }
    forbidden = masks[masked]
    weights = torch.softmax(scores.masked_fill(forbidden, -torch.inf), softmax_over)
    return rearrange(weights @ v, merge)


@exercise("")
def grouped_query_attention(function: Callable[..., Tensor]) -> None:
    """Check causal grouped-query attention, with several query heads per key and value head."""
    heads, kv_heads, dim = 6, 2, 4
    q, k, v = (
        3 * normal(2, 5, count * dim, seed=seed)
        for seed, count in enumerate((heads, kv_heads, kv_heads))
    )
    unmerged = attend(q, k, v, merge="batch head seq dim -> batch head seq dim")
    result = function(q, k, v, heads, kv_heads)
    mistakes = {
        "query head h reads key head h % kv_heads; neighbouring heads share one, so split the "
        "query heads as (kv group), not (group kv).": (
            attend(q, k, v, groups="batch kv seq dim -> batch (group kv) seq dim")
        ),
        "the scores are not scaled: divide them by sqrt(dim).": attend(q, k, v, scale=1.0),
        "the scale uses the width of all heads; use the dim of one head.": (
            attend(q, k, v, scale=(heads * dim) ** -0.5)
        ),
        "you divided by dim; use its square root.": attend(q, k, v, scale=1 / dim),
        "there is no causal mask: tokens look at the future.": attend(q, k, v, masked="none"),
        "that mask is inverted; each token looks at the future instead of the past.": (
            attend(q, k, v, masked="past")
        ),
        "each token sees one position too far; the future begins at triu(1).": (
            attend(q, k, v, masked="too little")
        ),
        "a token sees itself, so the future is triu(1); here the first token's row is empty, "
        "and its "
        "softmax is NaN.": attend(q, k, v, masked="itself"),
        "softmax runs over the queries; the weights of one query over all keys add up to 1.": (
            attend(q, k, v, softmax_over=-2)
        ),
        "the heads are merged as (dim head); the order they were split in is (head dim).": (
            attend(q, k, v, merge="batch head seq dim -> batch seq (dim head)")
        ),
        "the heads are split as (dim head); a head's numbers are neighbours: (head dim).": (
            attend(q, k, v, split="batch seq (dim head) -> batch head seq dim")
        ),
        "head and seq are mixed up when merging: bring seq in front of head, then join.": (
            unmerged.reshape(2, 5, heads * dim)
        ),
        "the heads are not merged; the result should be batch seq (head dim).": (unmerged),
    }
    compare(result, reference_attention(q, k, v, heads, kv_heads), mistakes, "batch seq width")


def reference_attention(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Compute grouped-query attention with repeated heads and PyTorch's fused attention."""
    q = q.unflatten(-1, (heads, -1)).transpose(1, 2)
    k, v = (
        t.unflatten(-1, (kv_heads, -1)).transpose(1, 2).repeat_interleave(heads // kv_heads, 1)
        for t in (k, v)
    )
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
