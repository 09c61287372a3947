"""Every check of 03_einops passes a right answer and names each typical mistake."""

import math
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce, repeat
from verdicts import assert_untouched, assert_verdicts

from cs336_lib.classroom.checks import shapes as checks

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
):
    """Grouped-query attention, right unless told otherwise."""
    q = rearrange(q, f"batch seq {split} -> batch head seq dim", head=heads)
    k, v = (rearrange(t, f"batch seq {split} -> batch head seq dim", head=kv_heads) for t in (k, v))
    group = heads // kv_heads
    k, v = (repeat(t, f"b kv s d -> b {sharing} s d", group=group) for t in (k, v))
    scores = einsum(q, k, "b h query d, b h key d -> b h query key")
    scores = scores * (scale or 1 / math.sqrt(q.size(-1)))
    mask = forbidden(torch.ones_like(scores, dtype=torch.bool))
    mixed = torch.softmax(scores.masked_fill(mask, -torch.inf), over) @ v
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


RIGHT = {
    "head_scores": [
        lambda q, k: einsum(q, k, "b q h d, b k h d -> b h q k"),
        lambda q, k: q.transpose(1, 2) @ k.permute(0, 2, 3, 1),
    ],
    "masked_mean": [
        lambda x, mask: (
            einsum(x, mask.float(), "b s h, b s -> b h") / reduce(mask.float(), "b s -> b 1", "sum")
        ),
        lambda x, mask: torch.stack([row[keep].mean(0) for row, keep in zip(x, mask, strict=True)]),
    ],
    "image_to_patches": [
        patches("b (h w) (p1 p2 c)"),
        lambda images, size: (
            F.unfold(images, size, stride=size).mT.unflatten(-1, (3, -1)).mT.flatten(-2)
        ),
    ],
    "grouped_query_attention": [attention],
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
        (lambda q, k: einsum(q, k, "b s h d, b s h d -> b h s"), "the shape is"),
        (lambda q, k: einsum(q, k, "b q h d, b k h e -> b h q k"), "one name for both"),
        (lambda q, k: einsum(q, k, "b q h d, b k g d -> b h q k"), "two names"),
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
        (lambda x, mask: x.sum(1) / mask.sum(1, keepdim=True), "the numbers are not."),
        (lambda x, mask: x.sum(1) / mask.sum(1, keepdim=True) * torch.nan, "there are NaNs in it"),
        (
            lambda x, mask: x.mul_(mask[..., None]).sum(1) / mask.sum(1, keepdim=True),
            "changed its input",
        ),
        (
            lambda x, mask: (x * mask[..., None]).sum(1) / reduce(mask.float(), "b s -> b", "sum"),
            "keep an axis of size 1",
        ),
        (lambda x, mask: (x * mask).sum(1), "keep an axis of size 1"),
        (lambda x, mask: einsum(x, mask, "b s h, b s -> b h"), "mask.float()"),
        (lambda x, mask: x.view(7), "your code raised RuntimeError"),
        (lambda x, mask: 3.0, "return a tensor, not float"),
    ],
    "image_to_patches": [
        (patches("b (h w) (c p1 p2)"), "channel varies slowest"),
        (patches("b (w h) (p1 p2 c)"), "column by column"),
        (patches("b (h w) (p2 p1 c)"), "rows and columns are swapped"),
        (patches("b (h w) (p1 p2 c)", "b c (p1 h) (p2 w)"), "thinned-out"),
        (
            lambda images, size: rearrange(
                images, "b c (h p1) (w p2) -> b (h w) (p1 p2 c)", h=size, w=size
            ),
            "you gave it to h and w",
        ),
        (patches("b (h w) p1 p2 c"), "not flattened"),
        (patches("b h w (p1 p2 c)"), "still lie on a grid"),
        (lambda images, size: patches("b (h w) (p1 p2 c)")(images, 4), "`size` has no effect"),
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
    ],
}


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
    assert torch.allclose(checks.attend(q, k, v), expected, atol=1e-5)


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
