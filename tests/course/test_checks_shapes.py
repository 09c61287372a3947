"""Every check of 03_einops passes a right answer and names each typical mistake."""

import math
import subprocess
import sys
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce, repeat
from verdicts import assert_untouched, assert_verdicts

from cs336_course.checks import shapes as checks

NAMES = ("head_scores", "masked_mean", "image_to_patches", "grouped_query_attention")


def test_untouched_stubs():
    assert_untouched(checks, NAMES)


def patches(output, split="b c (h p1) (w p2)"):
    """An answer to image_to_patches that flattens in this way."""
    return lambda images, size: rearrange(images, f"{split} -> {output}", p1=size, p2=size)


def attention(
    q,
    k,
    v,
    heads,
    kv_heads,
    *,
    sharing="(kv group)",
    split="(head dim)",
    merge="batch seq (head dim)",
    scale=None,
    forbidden=lambda ones: ones.triu(1),
    over=-1,
    fill=-torch.inf,
):
    """Grouped-query attention, right unless told otherwise."""
    q = rearrange(q, f"batch seq {split} -> batch head seq dim", head=heads)
    k, v = (rearrange(t, f"batch seq {split} -> batch head seq dim", head=kv_heads) for t in (k, v))
    group = heads // kv_heads
    k, v = (repeat(t, f"b kv s d -> b {sharing} s d", group=group) for t in (k, v))
    scores = einsum(q, k, "b h query d, b h key d -> b h query key")
    scores = scores * (scale or 1 / math.sqrt(q.size(-1)))
    mask = forbidden(torch.ones_like(scores, dtype=torch.bool))
    mixed = torch.softmax(scores.masked_fill(mask, fill), over) @ v
    return rearrange(mixed, f"batch head seq dim -> {merge}")


def split_inside_einsum(q, k, v, heads, kv_heads):
    """Parentheses in an einsum, which einops does not support."""
    k = rearrange(k, "b s (kv d) -> b kv s d", kv=kv_heads)
    q = rearrange(q, "b s (head d) -> b head s d", head=heads)
    return einsum(q, k, "b (kv group) q d, b kv k d -> b kv group q k")


def reshaped(q, k, v, heads, kv_heads):
    """Merging without bringing seq in front of head."""
    mixed = attention(q, k, v, heads, kv_heads, merge="batch head seq dim")
    return mixed.reshape(q.shape)


def looped_scores(q, k):
    """One matrix product for each example and head."""
    heads = range(q.size(2))
    return torch.stack(
        [torch.stack([a[:, h] @ b[:, h].T for h in heads]) for a, b in zip(q, k, strict=True)]
    )


def cut_patches(images, size):
    """One slice for each patch."""
    height, width = images.shape[2:]
    corners = product(range(0, height, size), range(0, width, size))
    cuts = [images[:, :, y : y + size, x : x + size] for y, x in corners]
    return torch.stack([cut.permute(0, 2, 3, 1).reshape(len(images), -1) for cut in cuts], dim=1)


def by_library(q, k, v, heads, kv_heads):
    """PyTorch's attention, which shares keys and values itself."""
    q = q.unflatten(-1, (heads, -1)).transpose(1, 2)
    k, v = (x.unflatten(-1, (kv_heads, -1)).transpose(1, 2) for x in (k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2).flatten(2)


def by_query_head(q, k, v, heads, kv_heads):
    """A loop over the query heads."""
    dim, group = q.size(-1) // heads, heads // kv_heads
    mixed = []
    for head in range(heads):
        shared = slice(head // group * dim, (head // group + 1) * dim)
        scores = q[..., head * dim : (head + 1) * dim] @ k[..., shared].mT / dim**0.5
        scores = scores + torch.full_like(scores, -torch.inf).triu(1)
        mixed.append(scores.softmax(-1) @ v[..., shared])
    return torch.cat(mixed, dim=-1)


def masked_after_softmax(q, k, v, heads, kv_heads, divided=False):
    """Attention whose weights, not scores, are masked."""
    q = rearrange(q, "b s (kv g d) -> b kv g s d", kv=kv_heads, g=heads // kv_heads)
    k, v = (rearrange(x, "b s (kv d) -> b kv 1 s d", kv=kv_heads) for x in (k, v))
    weights = torch.softmax(q @ k.mT / q.size(-1) ** 0.5, dim=-1).tril()
    if divided:
        weights = weights / weights.sum(-1, keepdim=True)
    return rearrange(weights @ v, "b kv g s d -> b s (kv g d)")


def split_by_reshape(q, k, v, heads, kv_heads):
    """Splitting with the head in front of seq, without a transpose."""
    q = q.reshape(len(q), heads, q.size(1), -1)
    k, v = (x.reshape(len(x), kv_heads, x.size(1), -1) for x in (k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return rearrange(mixed, "b h s d -> b s (h d)")


def padded_at_the_end(x, mask):
    """The mean of as many tokens from the left as are kept."""
    return torch.stack([row[:n].mean(0) for row, n in zip(x, mask.sum(1), strict=True)])


def from_first_to_last(x, mask):
    """The mean of all tokens between the first and the last that are kept."""
    places = [keep.nonzero().flatten() for keep in mask]
    return torch.stack([row[p[0] : p[-1] + 1].mean(0) for row, p in zip(x, places, strict=True)])


def up_to_the_last(x, mask):
    """The mean of all tokens up to the last that is kept."""
    places = [keep.nonzero().flatten() for keep in mask]
    return torch.stack([row[: p[-1] + 1].mean(0) for row, p in zip(x, places, strict=True)])


def masked_in_float32(q, k, v, heads, kv_heads):
    """Attention that adds a mask of float32."""
    q = rearrange(q, "b s (kv g d) -> b kv g s d", kv=kv_heads, g=heads // kv_heads)
    k, v = (rearrange(x, "b s (kv d) -> b kv 1 s d", kv=kv_heads) for x in (k, v))
    future = torch.full((q.size(-2), q.size(-2)), -torch.inf).triu(1)
    weights = torch.softmax(q @ k.mT / q.size(-1) ** 0.5 + future, dim=-1)
    return rearrange(weights @ v, "b kv g s d -> b s (kv g d)")


def fixed_mask(q, k, v, heads, kv_heads, tokens):
    """Attention whose mask has a fixed size."""
    mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    used = q.size(1)
    return attention(q, k, v, heads, kv_heads, forbidden=lambda _: mask[:used, :used])


def by_numbers_of_float32(x, mask):
    """The mean whose weights are always float32."""
    weight = mask.float()
    return (x * weight[..., None]).sum(1) / weight.sum(1, keepdim=True)


RIGHT = {
    "head_scores": [
        lambda q, k: einsum(q, k, "b q h d, b k h d -> b h q k"),
        lambda q, k: q.transpose(1, 2) @ k.permute(0, 2, 3, 1),
        lambda q, k: (q.transpose(1, 2)[..., None, :] * k.transpose(1, 2)[:, :, None]).sum(-1),
        looped_scores,
    ],
    "masked_mean": [
        lambda x, mask: (
            einsum(x, mask.to(x.dtype), "b s h, b s -> b h")
            / reduce(mask.to(x.dtype), "b s -> b 1", "sum")
        ),
        lambda x, mask: torch.stack([row[keep].mean(0) for row, keep in zip(x, mask, strict=True)]),
        lambda x, mask: x.masked_fill(~mask[..., None], torch.nan).nanmean(1),
        lambda x, mask: (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1),
        lambda x, mask: ((mask / mask.sum(1, keepdim=True)).to(x.dtype)[:, None] @ x).squeeze(1),
        lambda x, mask: torch.where(mask[..., None], x, 0).sum(1) / mask.sum(1)[:, None],
    ],
    "image_to_patches": [
        patches("b (h w) (p1 p2 c)"),
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
        cut_patches,
    ],
    "grouped_query_attention": [
        attention,
        by_library,
        by_query_head,
        lambda q, *rest: attention(q, *rest, fill=torch.finfo(q.dtype).min),
    ],
}

WRONG = {
    "head_scores": [
        (lambda q, k: q @ k.transpose(-2, -1), "heads are compared with heads"),
        (lambda q, k: einsum(q, k, "b q h d, b k h d -> b h k q"), "rows are keys"),
        (lambda q, k: einsum(q, k, "b q h d, b k h d -> b q k h"), "comes last"),
        (lambda q, k: einsum(q, k, "b q h d, b k h d -> b q h k"), "after the query"),
        (lambda q, k: einsum(q, k, "b q h d, b k h d -> b q k"), "heads are summed"),
        (lambda q, k: einsum(q, k, "b q h d, b k h d -> h q k"), "examples of the"),
        (lambda q, k: einsum(q, k, "b q h d, b k h d -> b h q k") / 7**0.5, "scaled"),
        (lambda q, k: einsum(q, k, "b s h d, b s h d -> b h s"), "share one name"),
        (lambda q, k: einsum(q, k, "b q h d, b k h e -> b h q k"), "one name for both"),
        (lambda q, k: einsum(q, k, "b q h d, b k g d -> b h q k"), "the heads have two names"),
        (lambda q, k: einsum(q, k, "b q h d, c k h d -> b h q k"), "the batch has two names"),
        (
            lambda q, k: q.reshape(2, 5, -1, 7) @ k.reshape(2, 5, -1, 7).mT,
            "reshape only counts the same elements",
        ),
        (lambda q, k: einsum(q, k, "b q h d, b k h d -> q k"), "the shape is"),
        (
            lambda q, k: einsum(q, k[:, : q.size(1)], "b q h d, b k h d -> b h q k"),
            "not for more keys than queries",
        ),
        (
            lambda q, k: einsum(q, k, "b q h d, b k h d -> b h q k").squeeze(),
            "not for a single query",
        ),
        (
            lambda q, k: einsum(q.float(), k.float(), "b q h d, b k h d -> b h q k"),
            "returns float32; keep the inputs' dtype",
        ),
        (
            lambda q, k: einsum(q.mul_(2), k, "b q h d, b k h d -> b h q k") / 2,
            "changes its input q in place",
        ),
        (
            lambda q, k: einsum(q, k, "b q h d, b k h d -> b h q k").clamp(-50, 50),
            "not for scores of several thousand",
        ),
        (lambda q, k: (q @ k.transpose(-2, -1)).to("meta"), "the result is on meta"),
        (lambda q, k: einsum(q, k, "b q h d, b k h d -> b h q k").softmax(-1), "before a softmax"),
        (
            lambda q, k: (einsum(q, k, "b q h d, b k h d -> b h q k") / 7**0.5).softmax(-1),
            "before a softmax",
        ),
        (
            lambda q, k: (
                F.normalize(q, dim=-1).transpose(1, 2) @ F.normalize(k, dim=-1).permute(0, 2, 3, 1)
            ),
            "you divide by the lengths",
        ),
        (
            lambda q, k: einsum(q, k, "b q h d, b k h d -> b h q k").tril(),
            "no mask",
        ),
        (
            lambda q, k: einsum(q, k, "b q h d, b k h d -> b h q k").masked_fill(
                torch.ones(q.size(1), k.size(1), dtype=torch.bool).triu(1), -torch.inf
            ),
            "no mask",
        ),
        (lambda q, k: einsum(q, k, "b q h d, b k h d -> b h q k") / 3**0.5, "number of queries"),
        (
            lambda q, k: einsum(q.half(), k.half(), "b q h d, b k h d -> b h q k").to(q.dtype),
            "rounded to float16 on the way",
        ),
        (
            lambda q, k: einsum(q.bfloat16(), k.bfloat16(), "b q h d, b k h d -> b h q k").float(),
            "rounded to bfloat16 on the way",
        ),
        (lambda q, k: -einsum(q, k, "b q h d, b k h d -> b h q k"), "the sign is wrong"),
        (lambda q, k: einsum(q, k, "b q h d, b k h d -> b h q k").relu(), "negative scores"),
        (
            lambda q, k: torch.cdist(q.transpose(1, 2), k.transpose(1, 2)),
            "distance",
        ),
        (
            lambda q, k: einsum(q, k, "b q h d, b k h d -> b h q k").mean(0, keepdim=True),
            "the shape is",
        ),
        (lambda q, k: None, "return a tensor, not NoneType"),
    ],
    "masked_mean": [
        (lambda x, mask: x.mean(1), "the mask has no effect"),
        (lambda x, mask: (x * mask[..., None]).mean(1), "divided by the sequence"),
        (lambda x, mask: (x * mask[..., None]).sum(1), "divide by how many"),
        (lambda x, mask: (x * mask[..., None]).sum(1) / mask.sum(), "own number"),
        (
            lambda x, mask: (x * ~mask[..., None]).sum(1) / (~mask).sum(1, keepdim=True),
            "dropped the tokens",
        ),
        (lambda x, mask: x[mask].mean(0), "pooled over the whole batch"),
        (lambda x, mask: x.masked_fill_(~mask[..., None], 0).mean(1), "divided by the sequence"),
        (lambda x, mask: x.sum(1) / mask.sum(1, keepdim=True), "padding is in the sum"),
        (lambda x, mask: x.flip(1)[:, 0], "the numbers are not."),
        (lambda x, mask: x.sum(1) / mask.sum(1, keepdim=True) * torch.nan, "there are NaNs in it"),
        (
            lambda x, mask: x.mul_(mask[..., None]).sum(1) / mask.sum(1, keepdim=True),
            "changes its input x",
        ),
        (
            lambda x, mask: (x * mask[..., None]).sum(1) / reduce(mask.float(), "b s -> b", "sum"),
            "keep an axis of size 1",
        ),
        (lambda x, mask: (x * mask).sum(1), "keep an axis of size 1"),
        (lambda x, mask: einsum(x, mask, "b s h, b s -> b h"), "mask.to(x.dtype)"),
        (
            lambda x, mask: (x * mask[..., None]).sum(1) // mask.sum(1, keepdim=True),
            "drops the fraction",
        ),
        (lambda x, mask: x.masked_fill(~mask[..., None], -torch.inf).amax(1), "the largest value"),
        (
            lambda x, mask: (
                einsum(x, mask.float(), "b s h, b s -> b h") / mask.sum(1, keepdim=True)
            ),
            "mask.float() is float32",
        ),
        (
            lambda x, mask: checks.mean_of_kept(x, mask[:1].expand_as(mask)),
            "the first row's mask for all rows",
        ),
        (
            lambda x, mask: (x * mask[..., None]).sum(1) / mask[0].sum(),
            "first row's number of tokens",
        ),
        (
            lambda x, mask: (x * mask[..., None]).sum(1) / mask.sum(1).max(),
            "the largest number of tokens in the batch",
        ),
        (lambda x, mask: (x * mask[..., None]).sum(1) / len(x), "the number of rows"),
        (lambda x, mask: x[:, 0], "the first token's vector"),
        (
            lambda x, mask: torch.stack(
                [row[keep].median(0).values for row, keep in zip(x, mask, strict=True)]
            ),
            "the median",
        ),
        (
            lambda x, mask: (x * mask.to(x.dtype).softmax(1)[..., None]).sum(1),
            "a softmax of the mask",
        ),
        (by_numbers_of_float32, "returns float32; keep the inputs' dtype, which is float16"),
        (
            lambda x, mask: (
                (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True, dtype=torch.uint8)
            ),
            "not for 300 tokens",
        ),
        *(
            (
                lambda x, mask, dtype=dtype: (
                    (x * mask[..., None]).sum(1) / mask.to(dtype).sum(1, keepdim=True).to(x.dtype)
                ),
                f"a count of {tokens} doesn't fit into {str(dtype).removeprefix('torch.')}",
            )
            for dtype, tokens in ((torch.bfloat16, 259), (torch.float16, "2,571"))
        ),
        (
            lambda x, mask: RIGHT["masked_mean"][0](x[:, :512], mask[:, :512]),
            "you use the first 512",
        ),
        (lambda x, mask: F.avg_pool1d(x[0], (1, 2, 3)), "your code raised RuntimeError"),
        (padded_at_the_end, "assume that padding comes last"),
        (from_first_to_last, "Padding may also stand between tokens"),
        (up_to_the_last, "Padding may also come first"),
        (
            lambda x, mask: (x * mask[..., None]).sum(1) / (x * mask[..., None] != 0).sum(1),
            "the number of values that aren't zero",
        ),
        (
            lambda x, mask: (
                (x * mask[..., None]).sum(1) / (x * mask[..., None]).any(-1).sum(1, keepdim=True)
            ),
            "may be all zeros",
        ),
        (
            lambda x, mask: (x.float() * mask[..., None]).sum(1) / mask.sum(1, keepdim=True),
            "returns float32; keep the inputs' dtype",
        ),
        (
            lambda x, mask: checks.mean_of_kept(x, mask.logical_not_().logical_not()),
            "its input mask",
        ),
        (lambda x, mask: x.view(7), "your code raised RuntimeError"),
        (lambda x, mask: 3.0, "return a tensor, not float"),
    ],
    "image_to_patches": [
        (patches("b (h w) (c p1 p2)"), "channel varies slowest"),
        (patches("b (w h) (p1 p2 c)"), "column by column"),
        (patches("b (h w) (p2 p1 c)"), "rows and columns are swapped"),
        (patches("b (h w) (p1 p2 c)", "b c (p1 h) (p2 w)"), "thinned-out"),
        (
            lambda images, size: images.permute(0, 2, 3, 1).reshape(
                len(images), -1, size * size * images.size(1)
            ),
            "and then only reshape",
        ),
        (
            lambda images, size: rearrange(
                images, "b c (h p1) (w p2) -> b (h w) (p1 p2 c)", h=size, w=size
            ),
            "you gave it to h and w",
        ),
        (patches("b (h w) p1 p2 c"), "not flattened"),
        (patches("b h w (p1 p2 c)"), "still lie on a grid"),
        (lambda images, size: patches("b (h w) (p1 p2 c)")(images, 4), "`size` has no effect"),
        (patches("(b h w) (p1 p2 c)"), "the patches of all images are in one axis"),
        (patches("b (p1 p2 c) (h w)"), "the values come before the patches"),
        (lambda images, size: F.unfold(images, size, stride=size).mT, "channel varies slowest"),
        (
            lambda images, size: rearrange(
                images.unfold(2, size, 1).unfold(3, size, 1), "b c h w p q -> b (h w) (p q c)"
            ),
            "your patches overlap",
        ),
        (
            lambda images, size: images.reshape(len(images), -1, size * size * images.size(1)),
            "a reshape alone",
        ),
        (
            lambda images, size: (
                images.unfold(2, size, size).unfold(3, size, size).view(len(images), -1, 48)
            ),
            "`view` can't join axes",
        ),
        (lambda images, size: patches("b (h w) (p1 p2 c)")(images[:, :3], size), "five channels"),
        (
            lambda images, size: patches("b (h w) (p1 p2 c)")(images, size).squeeze(),
            "not for one patch in each image",
        ),
        (
            lambda images, size: patches("b (h w) (p1 p2 c)")(images.float(), size),
            "returns float32",
        ),
        (
            lambda images, size: patches("b (h w) (p1 p2 c)")(images.add_(1), size) - 1,
            "changes its input images in place",
        ),
    ],
    "grouped_query_attention": [
        (partial(attention, sharing="(group kv)"), "h % kv_heads"),
        (partial(attention, scale=1.0), "not scaled"),
        (partial(attention, scale=24**-0.5), "width of all heads"),
        (partial(attention, scale=1 / 4), "use its square root"),
        (partial(attention, forbidden=torch.zeros_like), "no causal mask"),
        (partial(attention, forbidden=lambda ones: ones.tril(-1)), "mask is inverted"),
        (partial(attention, forbidden=lambda ones: ones.triu(0)), "row is empty"),
        (partial(attention, forbidden=lambda ones: ones.triu(2)), "one position too far"),
        (partial(attention, over=-2), "over the queries"),
        (partial(attention, merge="batch seq (dim head)"), "merged as (dim head)"),
        (partial(attention, split="(dim head)"), "split as (dim head)"),
        (split_inside_einsum, "Shape rearrangement is not yet supported in einsum"),
        (reshaped, "head and seq are mixed up"),
        (partial(attention, merge="batch head seq dim"), "are not merged"),
        (split_by_reshape, "mixed up when splitting"),
        (
            partial(attention, split="(dim head)", merge="batch seq (dim head)"),
            "split and merged as (dim head)",
        ),
        (partial(attention, scale=2.0), "you multiply by sqrt(dim)"),
        (partial(attention, fill=0.0), "exp(0) is 1"),
        (partial(attention, fill=-100.0), "lower than any other"),
        (partial(attention, fill=-1e4), "lower than any other"),
        (partial(attention, fill=-1e9), "doesn't fit into float16"),
        (masked_in_float32, "a new tensor is float32"),
        (partial(fixed_mask, tokens=8), "not for 70 tokens"),
        (partial(fixed_mask, tokens=1024), "not for 1,100 tokens"),
        (partial(attention, forbidden=lambda ones: ones.tril()), "a token's past and itself"),
        (partial(attention, scale=8**-0.5), "width of all key heads"),
        (lambda q, k, v, *heads: attention(q, k, k, *heads), "you sum up keys"),
        (
            lambda q, k, v, *heads: attention(
                q, checks.first_head(k, 2), checks.first_head(v, 2), *heads
            ),
            "all query heads read the first key head",
        ),
        (
            lambda q, k, v, *heads: attention(q, checks.first_head(k, 2), v, *heads),
            "as it has its values",
        ),
        (
            lambda q, *rest: attention(
                q, *rest, forbidden=lambda _: torch.ones(q.size(1), q.size(1)).triu(1).bool()
            ),
            "it would fail on a GPU",
        ),
        (masked_after_softmax, "mask after the softmax"),
        (partial(masked_after_softmax, divided=True), "only masked keys had weight"),
        (partial(attention, over=1), "over the heads"),
        (lambda q, k, v, *heads: attention(q, k, v.roll(4, -1), *heads), "the numbers are not."),
        (partial(checks.attend, values="(group kv)"), "but values aren't"),
        (partial(checks.attend, keys="(group kv)"), "but keys aren't"),
        (lambda q, k, v, *heads: attention(q, k, v, 6, 2), "not for pairs of query heads"),
        (lambda *case: attention(*case, scale=1 / 2), "not for one key head for all query heads"),
        (lambda *case: attention(*case).squeeze(1), "not for a single token"),
        (
            lambda q, k, v, *heads: attention(q.float(), k.float(), v.float(), *heads),
            "returns float32; keep the inputs' dtype",
        ),
        (
            lambda q, k, v, *heads: (
                attention(q.mul_(2), k, v, *heads, scale=(6 / q.size(-1)) ** 0.5 / 2)
                if heads == (6, 2)
                else None
            ),
            "changes its input q in place",
        ),
    ],
}


@torch.no_grad()
def scores_in_a_buffer(q, k):
    """Scores that are written into a tensor of their own."""
    out = torch.empty(q.size(0), q.size(2), q.size(1), k.size(1), dtype=q.dtype)
    return torch.matmul(q.transpose(1, 2), k.permute(0, 2, 3, 1), out=out)


def masked_in_place(q, k, v, heads, kv_heads):
    """Attention that zeroes the future's weights in place and divides by what is left."""
    q = rearrange(q, "b s (kv g d) -> b kv g s d", kv=kv_heads, g=heads // kv_heads)
    k, v = (rearrange(x, "b s (kv d) -> b kv 1 s d", kv=kv_heads) for x in (k, v))
    future = torch.ones(q.size(-2), q.size(-2), dtype=torch.bool).triu(1)
    scores = (q @ k.mT / q.size(-1) ** 0.5).masked_fill(future, -torch.inf)
    weights = torch.softmax(scores, -1)
    weights *= 1
    return rearrange(weights @ v, "b kv g s d -> b s (kv g d)")


LOST = "the gradient is lost"
HALF = "isn't; is something detached"
# The numbers are right, but no gradient or a wrong one flows back
WITHOUT_GRADIENT = {
    "head_scores": [
        (
            lambda q, k: torch.from_numpy(np.einsum("bqhd,bkhd->bhqk", q.numpy(), k.numpy())),
            "the gradient is lost, because NumPy",
        ),
        (
            lambda q, k: torch.from_numpy(
                np.einsum("bqhd,bkhd->bhqk", q.detach().numpy(), k.detach().numpy())
            ),
            LOST,
        ),
        (
            lambda q, k: einsum(q, k.detach(), "b q h d, b k h d -> b h q k"),
            "gradient of k " + HALF,
        ),
        (lambda q, k: einsum(q.data, k.data, "b q h d, b k h d -> b h q k"), LOST),
        (scores_in_a_buffer, LOST),
        (
            lambda q, k: torch.matmul(
                q.transpose(1, 2),
                k.permute(0, 2, 3, 1),
                out=torch.empty(0, dtype=q.dtype),
            ),
            "a function with out=... isn't recorded",
        ),
    ],
    "masked_mean": [
        (lambda x, mask: torch.no_grad()(RIGHT["masked_mean"][0])(x, mask), LOST),
        (
            lambda x, mask: torch.stack(
                [
                    torch.tensor(row[keep].tolist(), dtype=x.dtype).mean(0)
                    for row, keep in zip(x, mask, strict=True)
                ]
            ),
            LOST,
        ),
    ],
    "image_to_patches": [
        (lambda images, size: cut_patches(images.detach(), size), LOST),
        (torch.inference_mode()(cut_patches), LOST),
    ],
    "grouped_query_attention": [
        (lambda q, k, v, *heads: attention(q, k, v.detach(), *heads), "gradient of v " + HALF),
        (lambda q, k, v, *heads: attention(q, k.detach(), v, *heads), "gradient of k " + HALF),
        (torch.no_grad()(by_library), LOST),
        (
            lambda *inputs: (torch.set_grad_enabled(False), by_library(*inputs))[1],
            "leave that out, or, if nothing in this task needs a gradient",
        ),
        (masked_in_place, "you change a value that its gradient needs"),
    ],
}


@pytest.mark.parametrize("name", RIGHT)
def test_gradients_have_to_flow(name):
    assert_verdicts(getattr(checks, name), WITHOUT_GRADIENT[name])


@pytest.mark.parametrize("name", RIGHT)
def test_right_and_wrong_answers(name):
    right = [(answer, "passed") for answer in RIGHT[name]]
    assert_verdicts(getattr(checks, name), right + WRONG[name])


def test_reference_attention_is_pytorchs_own():
    q, k, v = (checks.normal(2, 5, width, seed=seed) for seed, width in enumerate((24, 8, 8)))
    split = "batch seq (head dim) -> batch head seq dim"
    by_torch = F.scaled_dot_product_attention(
        *(rearrange(t, split, dim=4) for t in (q, k, v)), is_causal=True, enable_gqa=True
    )
    expected = rearrange(by_torch, "batch head seq dim -> batch seq (head dim)")
    assert torch.allclose(checks.reference_attention(q, k, v, 6, 2), expected, atol=1e-5)
    assert torch.allclose(checks.attend(q, k, v, 6, 2), expected, atol=1e-5)


ANNOTATED = '''
from jaxtyping import Float
from torch import Tensor


def flattened(x: Float[Tensor, "rows columns"]):
    """Annotate the flat result as if it had two axes."""
    y: Float[Tensor, "rows columns"] = x.flatten()
    return y
'''
UNDER_A_HOOK = """
import torch
from beartype.claw import beartype_package
from jaxtyping import install_import_hook
{install}
from annotated import flattened
for shape in ((2,), (2, 3)):
    try:
        print("accepted", tuple(flattened(torch.ones(shape)).shape))
    except Exception as error:
        print("refused", "variable" if 'variable "y"' in str(error) else "argument")
"""


@pytest.mark.parametrize(
    ("install", "of_a_matrix"),
    [
        ("install_import_hook('annotated', 'beartype.beartype')", "accepted (6,)"),
        ("beartype_package('annotated')", "refused variable"),
    ],
)
def test_only_the_import_hook_of_beartype_checks_annotated_variables(
    tmp_path, install, of_a_matrix
):
    (tmp_path / "annotated.py").write_text(ANNOTATED)
    code = UNDER_A_HOOK.format(install=install)  # its own process: beartype's hook would stay
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["refused argument", of_a_matrix]
