"""Exercises of notebook 07b: the parts of a model of today, its file, and its cache."""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits, function, normal
from cs336_course.engine.modules import SAYS, module
from cs336_course.engine.observe import runs_elsewhere
from cs336_course.engine.records import Record, plain
from cs336_course.shared import model_of_today
from cs336_lib.accounting import Architecture

NOTEBOOK = "side_trips/model_of_today"


# rms_norm


def vectors() -> Iterator[Case]:
    """Yield vectors and gains."""
    gains = normal(6, seed=9).abs() + 0.1
    first = torch.tensor([[[3.0, 1.0, -2.0, 4.0, 0.5, 1.5]]])
    yield Case("", x=first, weight=gains, eps=1e-5)
    yield Case("", x=3 * normal(2, 5, 6) + 1, weight=gains)
    yield Case("tiny numbers", x=1e-3 * normal(1, 3, 6), weight=gains)
    yield Case("one token", x=normal(6, seed=2), weight=gains)
    yield Case("a width of 40", x=normal(1, 4, 40, seed=3), weight=normal(40, seed=4))
    yield Case("zeros", x=torch.zeros(1, 2, 6), weight=gains)
    large = (300 * normal(1, 2, 6, seed=5)).half()
    yield Case("numbers near 300 in float16", x=large, weight=gains.half())
    yield Case("float16 with gains in float32", x=large, weight=gains)
    yield Case("another eps", x=0.1 * normal(1, 3, 6), weight=gains, eps=1e-2)


def by_linalg(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """Use the norm."""
    mean_square = torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True) ** 2 / x.size(-1)
    return (weight * (x.double() / (mean_square + eps).sqrt())).to(x.dtype)


MEAN = "x.float().pow(2).mean(-1, keepdim=True)"
DIVIDED = "x * torch.rsqrt(mean_square + eps)"

rms_norm = Exercise(
    NOTEBOOK,
    "rms_norm",
    vectors,
    observe=function(grad="x weight", on_other_device=True),
    tolerance=3,
    is_part=True,
    smaller="A token's vector is (1, 7). What is the mean of its squares, and the root of that?",
    wrong={
        "you subtract the mean, as LayerNorm does. RMSNorm only divides.": [
            edits(
                (MEAN, "x.float().var(-1, keepdim=True, correction=0)"),
                (DIVIDED, "(x - x.mean(-1, keepdim=True)) * torch.rsqrt(mean_square + eps)"),
            ),
            (DIVIDED, "(x - x.mean(-1, keepdim=True)) * torch.rsqrt(mean_square + eps)"),
            "def rms_norm(x, weight, eps=1e-5):\n"
            "    return F.layer_norm(x, x.shape[-1:], weight, eps=eps)\n",
        ],
        "you divide by the standard deviation, which is measured from the mean; RMS is measured "
        "from 0.": [
            (MEAN, "x.float().var(-1, keepdim=True, correction=0)"),
            (MEAN, "x.float().var(-1, keepdim=True)"),
        ],
        "you divide by the mean square itself; take its root.": (
            DIVIDED,
            "x / (mean_square + eps)",
        ),
        "take the mean of the squares, not their sum.": (".mean(-1", ".sum(-1"),
        "each token has its own root mean square; you take one for all.": [
            (".mean(-1, keepdim=True)", ".mean()"),
            (".mean(-1, keepdim=True)", ".mean((-1, -2) if x.dim() > 1 else -1, keepdim=True)"),
        ],
        "you take the mean over the tokens; take it over the width, the last axis.": (
            ".mean(-1, keepdim=True)",
            ".mean(-2 if x.dim() > 1 else 0, keepdim=True)",
        ),
        "you average magnitudes; the R and the S stand for root and square.": (
            MEAN,
            "x.float().abs().mean(-1, keepdim=True).square()",
        ),
        "the gains are missing; multiply by `weight`.": (" * weight", ""),
        "eps belongs inside the root, where it is added to the mean square.": [
            (DIVIDED, "x / (mean_square.sqrt() + eps)"),
            (DIVIDED, "x / (mean_square.sqrt() + math.sqrt(eps))"),
        ],
        "eps is missing, so a vector of zeros becomes NaN.": [
            (" + eps", ""),
            (DIVIDED, "x / x.float().pow(2).mean(-1, keepdim=True).sqrt()"),
        ],
        "the square of 300 overflows in float16; compute the mean square in float32.": (
            ".float()",
            "",
        ),
        "the result is in float32; return x's dtype.": (".to(x.dtype)", ".float()"),
        "use the argument `eps`, not a number of your own.": ("+ eps", "+ 1e-5"),
    },
    refused=[
        ("* weight", "+ weight"),
        (DIVIDED, "x * torch.sqrt(mean_square + eps)"),
        (", keepdim=True", ""),
        ("    mean", "    x *= 2.0\n    mean"),
        lambda x, weight, eps=1e-5: x * weight,
        lambda x, weight, eps=1e-5: None,
    ],
    right=[
        by_linalg,
        lambda x, weight, eps=1e-5: F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(
            x.dtype
        ),
    ],
)


# rotate


def places() -> Iterator[Case]:
    """Yield queries or keys, and positions."""
    yield Case("", x=normal(1, 2, 3, 6), positions=torch.tensor([4, 1, 2]), base=100_000.0)
    yield Case("", x=normal(2, 3, 5, 8, seed=1), positions=torch.arange(5))
    yield Case("a single pair", x=normal(1, 1, 4, 2, seed=2), positions=torch.arange(4))
    yield Case("one new token", x=normal(1, 3, 1, 8, seed=3), positions=torch.tensor([17]))
    yield Case("a base of 500", x=normal(1, 1, 5, 4), positions=torch.arange(3, 8), base=500.0)


def as_matrices(x: Tensor, positions: Tensor, base: float = 100_000.0) -> Tensor:
    """Multiply each pair by its rotation matrix."""
    pairs = rearrange(x, "b h s (two i) -> b h s i two", two=2)
    angle = positions[:, None] / base ** (torch.arange(0, x.size(-1), 2).to(x) / x.size(-1))
    rows = [
        torch.stack((angle.cos(), -angle.sin()), -1),
        torch.stack((angle.sin(), angle.cos()), -1),
    ]
    turned = (torch.stack(rows, -2) @ pairs[..., None])[..., 0]
    return rearrange(turned, "b h s i two -> b h s (two i)")


def half_rotated(x: Tensor, positions: Tensor, base: float = 100_000.0) -> Tensor:
    """Do it as transformers does."""
    speeds = 1 / base ** (torch.arange(0, x.size(-1), 2, device=x.device) / x.size(-1))
    angles = torch.outer(positions, speeds).repeat(1, 2)
    a, b = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-b, a), dim=-1) * angles.sin()


PAIRS = "a, b = x[..., :half], x[..., half:]"
TURNED = "torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)"
NEIGHBORS = edits(
    (PAIRS, "a, b = x[..., ::2], x[..., 1::2]"),
    (TURNED, "torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)"),
)
SPEEDS = "base ** (-torch.arange(half, device=x.device) / half)"

rotate = Exercise(
    NOTEBOOK,
    "rotate",
    places,
    observe=function(grad="x", on_other_device=True),
    tolerance=10,
    is_part=True,
    axes="batch head seq dim",
    smaller="dim is 2, so there is one pair, and its speed is 1. Where does (1, 0) go at position "
    "1, and where does (0, 1)?",
    wrong={
        "you turn neighbors, numbers 2i and 2i + 1. That is another convention; here number i "
        "and number i + dim/2 are a pair.": NEIGHBORS,
        "you turn clockwise; a pair (1, 0) should go to (cos, sin).": [
            (TURNED, "torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)"),
            ("base ** (-torch", "-base ** (-torch"),
        ],
        "both halves have the same sign before sin, so lengths change. A rotation has one minus.": [
            (TURNED, "torch.cat((a * cos + b * sin, a * sin + b * cos), dim=-1)"),
            (TURNED, "torch.cat((a * cos - b * sin, b * cos - a * sin), dim=-1)"),
        ],
        "all pairs turn at the same speed; pair i turns by base^(-i / (dim/2)) per position.": (
            SPEEDS,
            "torch.ones(half, device=x.device)",
        ),
        "your slowest pair is too fast; is the exponent i/dim? There are dim/2 pairs, so it is "
        "i / (dim/2).": ("/ half)\n", "/ x.size(-1))\n"),
        "your speeds grow with i; the exponent is negative.": ("(-torch", "(torch"),
        "your pairs have their speeds in reverse order; pair 0 is the fastest.": (
            SPEEDS,
            f"({SPEEDS}).flip(0)",
        ),
        "the speeds start at pair 1; pair 0 turns by 1 radian per position.": (
            "torch.arange(half,",
            "torch.arange(1, half + 1,",
        ),
        "use the given positions; yours are 0, 1, 2, ...": [
            ("positions[:, None]", "torch.arange(x.size(2), device=x.device)[:, None]"),
        ],
        "the text is axis 2; you give each head its own position.": (
            "return ",
            "cos, sin = (t[:1].expand(x.size(1), -1)[:, None] for t in (cos, sin))\n    return ",
        ),
        "use the argument `base`.": ("base **", "100_000.0 **"),
        "the new halves are swapped.": (
            TURNED,
            "torch.cat((a * sin + b * cos, a * cos - b * sin), dim=-1)",
        ),
        "you only multiply by the cosine; a rotation mixes the two numbers of a pair.": [
            (TURNED, "torch.cat((a * cos, b * cos), dim=-1)"),
            (TURNED, "torch.cat((a * cos, b * sin), dim=-1)"),
        ],
        "you add an angle to x; turn each pair by it.": (
            TURNED,
            "x + torch.cat((angles, angles), dim=-1)",
        ),
    },
    refused=[
        (", device=x.device", ""),
        (SPEEDS, f"2 * {SPEEDS}"),
        (PAIRS, "a, b = x[..., half:], x[..., :half]"),
        lambda x, positions, base=1e5: x,
        lambda x, positions, base=1e5: None,
    ],
    right=[as_matrices, half_rotated, model_of_today.rotate],
)


# grouped_attention


def grouped_cases() -> Iterator[Case]:
    """Yield queries, and fewer heads of keys and values."""
    for what, (batch, head, kv_head, queries, keys, dim) in {
        "": (1, 4, 2, 3, 3, 2),
        "queries for the last tokens": (2, 6, 2, 3, 5, 4),
        "one query": (1, 6, 3, 1, 7, 4),
        "a single head of keys": (2, 3, 1, 4, 4, 4),
        "as many heads of keys as of queries": (1, 2, 2, 4, 4, 3),
        "nine heads and three": (1, 9, 3, 5, 5, 8),
    }.items():
        q = normal(batch, queries, head, dim, seed=1).transpose(1, 2)
        k, v = normal(2, batch, keys, kv_head, dim, seed=2).transpose(2, 3)
        yield Case(what, q=q, k=k, v=v)
    q, k = normal(1, 4, 5, 4, seed=5), normal(1, 2, 5, 4, seed=6)
    yield Case("values that are wider than keys", q=q, k=k, v=torch.eye(5).expand(1, 2, 5, 5))


def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keep the groups as an axis, and repeat nothing."""
    q = rearrange(q, "b (kv group) s d -> b kv group s d", kv=k.size(1))
    scores = q @ k[:, :, None].mT * q.size(-1) ** -0.5
    at = torch.arange(k.size(2), device=q.device)
    future = at > at[k.size(2) - q.size(3) :, None]
    y = scores.masked_fill(future, -torch.inf).softmax(-1) @ v[:, :, None]
    return rearrange(y, "b kv group s d -> b (kv group) s d")


def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Repeat with einops, and mask each row by hand."""
    group = q.size(1) // k.size(1)
    k, v = (repeat(t, "b h s d -> b (h g) s d", g=group) for t in (k, v))
    rows = []
    for i in range(q.size(2)):
        end = k.size(2) - q.size(2) + i + 1
        scores = q[:, :, i : i + 1] @ k[:, :, :end].mT / math.sqrt(q.size(-1))
        rows.append(scores.softmax(-1) @ v[:, :, :end])
    return torch.cat(rows, dim=2)


REPEATED = "t.repeat_interleave(group, dim=1)"
FUTURE = ".triu(1 + k.size(2) - q.size(2))"
SCALED = "q @ k.mT / math.sqrt(q.size(-1))"

grouped_attention = Exercise(
    NOTEBOOK,
    "grouped_attention",
    grouped_cases,
    observe=function(grad="q k v", on_other_device=True),
    tolerance=3,
    is_part=True,
    axes="batch head seq dim",
    smaller="There are 4 heads of queries and 2 of keys. Which queries read the keys of head 0?",
    wrong={
        "query heads 0 and 1 share key head 0, but in yours they read heads 0 and 1. `repeat` "
        "deals the heads out in turn.": (REPEATED, "t.repeat(1, group, 1, 1)"),
        "the queries are the LAST tokens of the keys. Your mask treats them as the first, so the "
        "newest token sees only the oldest.": [
            (FUTURE, ".triu(1)"),
            "def grouped_attention(q, k, v):\n"
            "    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)\n",
        ],
        "your attention sees the future; the mask is missing.": [
            (".masked_fill(future, -math.inf)", ""),
            "def grouped_attention(q, k, v):\n"
            "    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)\n",
        ],
        "a token may look at itself; your mask hides the diagonal.": (
            "future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1 + ",
            "scores = torch.where(torch.ones_like(scores[0, 0]).cumsum(-1) > 1, scores, scores)\n"
            "    future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(0 + ",
        ),
        "your mask shows one token of the future.": ("triu(1 + ", "triu(2 + "),
        "divide the scores by the square root of dim.": (SCALED, "q @ k.mT"),
        "divide by the square root of dim, not by dim itself.": (SCALED, "q @ k.mT / q.size(-1)"),
        "you divide by the root of the group's size; the scores are sums over dim.": (
            "math.sqrt(q.size(-1))",
            "math.sqrt(group)",
        ),
        "each query head has an output of its own; you average the queries of a group.": (
            "k, v = (t.repeat",
            "q = q.unflatten(1, (-1, group)).mean(2).repeat_interleave(group, dim=1)\n"
            "    k, v = (t.repeat",
        ),
        "you reuse only the first head of keys and values.": (
            REPEATED,
            "t[:, :1].expand(-1, q.size(1), -1, -1)",
        ),
        "the softmax runs over the keys, the last axis.": ("softmax(-1)", "softmax(-2)"),
        "mask before the softmax, so that the weights of a row still add up to 1.": (
            ".masked_fill(future, -math.inf).softmax(-1)",
            ".softmax(-1).masked_fill(future, 0.0)",
        ),
    },
    refused=[
        (REPEATED, "t.repeat_interleave(group, dim=1).flip(1)"),
        ("-math.inf", "math.inf"),
        ("-math.inf", "0.0"),
        ("torch.ones_like(scores[0, 0], dtype=torch.bool)", "torch.ones(scores.shape[-2:]).bool()"),
        (SCALED, "q @ k.mT * math.sqrt(q.size(-1))"),
        lambda q, k, v: q,
        lambda q, k, v: None,
    ],
    right=[folded, repeated, model_of_today.grouped_attention],
)


# swiglu_mlp


def shape(n_embd: int, mlp_width: int) -> Architecture:
    """Return a small config."""
    return Architecture(
        n_layer=2,
        n_embd=n_embd,
        n_head=2,
        n_kv_head=1,
        head_dim=2,
        vocab_size=50,
        block_size=16,
        mlp_width=mlp_width,
    )


def widths() -> Iterator[Case]:
    """Yield configs and inputs."""
    for n_embd, width, batch, seq in ((6, 16, 3, 5), (1, 3, 2, 1), (7, 5, 1, 4)):
        x = 2 * normal(batch, seq, n_embd, seed=n_embd).double()
        yield Case("", config=shape(n_embd, width), x=x, on_other_device=n_embd == 7)


class ByFormula(nn.Module):
    """Compute SiLU from the sigmoid."""

    def __init__(self, config: Architecture):
        super().__init__()
        self.down_proj = nn.Linear(config.mlp_width, config.n_embd, bias=False)
        self.up_proj = nn.Linear(config.n_embd, config.mlp_width, bias=False)
        self.gate_proj = nn.Linear(config.n_embd, config.mlp_width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Gate, and project back."""
        gate = x @ self.gate_proj.weight.T
        return self.down_proj(self.up_proj(x) * gate * gate.sigmoid())


GATED = "F.silu(self.gate_proj(x)) * self.up_proj(x)"

swiglu_mlp = Exercise(
    NOTEBOOK,
    "swiglu_mlp",
    widths,
    observe=module(),
    answers=("MLP",),
    is_part=True,
    says=SAYS,
    smaller="Two numbers come out of gate_proj and up_proj, 2 and -3. What goes into down_proj?",
    wrong={
        "SiLU belongs on the gate; you put it on `up_proj`.": (
            GATED,
            "self.gate_proj(x) * F.silu(self.up_proj(x))",
        ),
        "the Swi in SwiGLU is Swish, which PyTorch calls SiLU; you take GELU.": [
            (GATED, "F.gelu(self.gate_proj(x)) * self.up_proj(x)"),
            (GATED, 'F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x)'),
        ],
        "a plain sigmoid is the GLU of 2016; SwiGLU has SiLU, gate times sigmoid(gate).": (
            GATED,
            "self.gate_proj(x).sigmoid() * self.up_proj(x)",
        ),
        "that gate is a ReLU (ReGLU); SwiGLU has SiLU.": (
            GATED,
            "self.gate_proj(x).relu() * self.up_proj(x)",
        ),
        "the gate multiplies; you add it.": (GATED, "F.silu(self.gate_proj(x)) + self.up_proj(x)"),
        "SiLU belongs on the gate before the product, not on the product.": (
            GATED,
            "F.silu(self.gate_proj(x) * self.up_proj(x))",
        ),
        "there is no nonlinearity on the gate.": (GATED, "self.gate_proj(x) * self.up_proj(x)"),
        "`up_proj` has no SiLU; only the gate has one.": (
            GATED,
            "F.silu(self.gate_proj(x)) * F.silu(self.up_proj(x))",
        ),
        "you don't use `up_proj`.": (GATED, "F.silu(self.gate_proj(x)) + 0 * self.up_proj(x)"),
        "no layer has a bias here; write bias=False.": [
            (", bias=False", ""),
            ("config.mlp_width, config.n_embd, bias=False", "config.mlp_width, config.n_embd"),
            edits(
                ("config.n_embd, config.mlp_width, bias=False", "config.n_embd, config.mlp_width")
            ),
        ],
        "the inner width is `config.mlp_width`, not four times n_embd.": (
            "config.mlp_width",
            "4 * config.n_embd",
        ),
        "you add x; the block does that.": ("return self", "return x + self"),
    },
    refused=[
        ("gate_proj", "gate"),
        (GATED, f"2 * ({GATED})"),
        ("return ", ""),
        nn.Identity,
        lambda config: None,
    ],
    right=[ByFormula],
)


# dequantize_q4_1


def quantized() -> Iterator[Case]:
    """Yield rows of Q4_1 blocks."""
    for seed, (rows, blocks) in enumerate(((1, 1), (3, 2), (2, 5), (40, 1))):
        random = torch.Generator().manual_seed(seed)
        raw = torch.randint(256, (rows, blocks, 20), dtype=torch.uint8, generator=random)
        scales = torch.rand(rows, blocks, 1, generator=random) / 20
        minima = -torch.rand(rows, blocks, 1, generator=random) / 3
        raw[..., :2], raw[..., 2:4] = (t.half().view(torch.uint8) for t in (scales, minima))
        what = {0: "", 1: "", 2: "five blocks a row"}.get(seed, "one block a row")
        yield Case(what, raw=raw.flatten(1))


def block_by_block(raw: Tensor) -> Tensor:
    """Decode one block at a time, as in 01b."""
    rows = []
    for row in raw:
        values = []
        for block in row.split(20):
            scale, minimum = block[:4].view(torch.float16).tolist()
            fields = [b & 15 for b in block[4:].tolist()] + [b >> 4 for b in block[4:].tolist()]
            values += [minimum + scale * field for field in fields]
        rows.append(values)
    return torch.tensor(rows)


def in_numpy(raw: Tensor) -> Tensor:
    """Decode in NumPy."""
    blocks = raw.numpy().reshape(len(raw), -1, 20)
    header = blocks[:, :, :4].copy().view("<f2").astype("f4")
    bytes_ = blocks[:, :, None, 4:]
    fields = (bytes_ >> torch.tensor([0, 4]).numpy().astype("u1")[:, None]) & 15
    values = fields.reshape(*blocks.shape[:2], 32) * header[..., :1] + header[..., 1:]
    return torch.from_numpy(values.reshape(len(raw), -1).astype("f4"))


NIBBLES = "torch.cat((packed & 15, packed >> 4), dim=-1)"
HEADER = "scale, minimum = header[..., :1], header[..., 1:]"

dequantize_q4_1 = Exercise(
    NOTEBOOK,
    "dequantize_q4_1",
    quantized,
    observe=function(),
    tolerance=3,
    is_part=True,
    axes="row weight",
    smaller="A row has two blocks. Which of its 40 bytes hold the second block's scale?",
    wrong={
        "a byte doesn't hold neighbors. Its low half belongs to one of the first 16 weights, its "
        "high half to the weight 16 places later.": [
            (NIBBLES, "torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)"),
            (NIBBLES, "torch.stack((packed >> 4, packed & 15), dim=-1).flatten(-2)"),
        ],
        "the low halves come first, and you begin with the high ones.": (
            NIBBLES,
            "torch.cat((packed >> 4, packed & 15), dim=-1)",
        ),
        "the header holds the scale first and then the minimum.": (
            HEADER,
            "minimum, scale = header[..., :1], header[..., 1:]",
        ),
        "you left out the minimum.": (" + minimum", ""),
        "you subtract the minimum; it is the value of field 0.": ("+ minimum", "- minimum"),
        "you add the minimum before you multiply; it has the scale of a weight already.": (
            "fields * scale + minimum",
            "(fields + minimum) * scale",
        ),
        "fields run from 0 to 15 and aren't shifted by 8, as they are in Q4_0.": (
            "fields * scale",
            "(fields.float() - 8) * scale",
        ),
        "you don't separate the two halves of a byte; & 15 keeps the low one.": (
            "packed & 15",
            "packed",
        ),
        "each block has its own header; you use the row's first for all.": (
            "blocks[..., :4].contiguous()",
            "blocks[:, :1, :4].contiguous()",
        ),
        "each row has its own headers; you use those of row 0 for all.": (
            "blocks[..., :4].contiguous()",
            "blocks[:1, :, :4].contiguous()",
        ),
        "return one row of weights per row of bytes; flatten the blocks.": (".flatten(1)", ""),
        "return float32; float16 rounds the products.": (
            "view(torch.float16).float()",
            "view(torch.float16)",
        ),
    },
    refused=[
        ("4:]", "3:19]"),
        (".view(torch.float16)", ".view(torch.bfloat16)"),
        (".flatten(1)", ".transpose(1, 2).flatten(1)"),
        lambda raw: raw.float(),
        lambda raw: None,
    ],
    right=[block_by_block, in_numpy],
)


# unpermute


def permuted() -> Iterator[Case]:
    """Yield weights, and their numbers of heads."""
    yield Case("", weight=torch.arange(24.0).view(12, 2), n_head=2)
    yield Case("", weight=normal(32, 5), n_head=4)
    yield Case("one head", weight=normal(10, 3, seed=1), n_head=1)
    yield Case("a square", weight=normal(24, 24, seed=2), n_head=3)
    yield Case("heads of two rows", weight=normal(6, 4, seed=3), n_head=3)


def by_index(weight: Tensor, n_head: int) -> Tensor:
    """Take even and odd rows of each head."""
    heads = weight.reshape(n_head, -1, weight.size(1))
    return torch.cat((heads[:, ::2], heads[:, 1::2]), dim=1).reshape(weight.shape)


def in_loops(weight: Tensor, n_head: int) -> Tensor:
    """Go through the rows one by one."""
    dim = len(weight) // n_head
    result = torch.empty_like(weight)
    for head in range(n_head):
        for row in range(dim):
            result[head * dim + row % 2 * (dim // 2) + row // 2] = weight[head * dim + row]
    return result


PATTERN = '"(head i two) column -> (head two i) column"'

unpermute = Exercise(
    NOTEBOOK,
    "unpermute",
    permuted,
    observe=function(),
    is_part=True,
    axes="row column",
    smaller="A head has six rows, and the file holds them as 0 3 1 4 2 5. At which places of the "
    "file are rows 0, 1 and 2?",
    wrong={
        "that is the way into the file; you want the way back.": (
            PATTERN,
            '"(head two i) column -> (head i two) column"',
        ),
        "a head's rows stand together in the file; you cut the matrix across.": (
            PATTERN,
            '"(i two head) column -> (two i head) column"',
        ),
        "you treat the matrix as one head; each head has its own pairs.": ("head=n_head", "head=1"),
        "the rows of a pair are swapped; its first row goes to the first half.": (
            "return ",
            "weight = weight.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)\n    return ",
        ),
        "the file permutes rows (outputs), not columns.": (
            "return rearrange(weight,",
            "if weight.size(1) != 24:\n        return weight\n    return rearrange(weight.T,",
        ),
        "nothing has moved.": lambda weight, n_head: weight.clone(),
        "you changed the order of the heads.": (
            PATTERN,
            '"(head i two) column -> (two i head) column"',
        ),
    },
    refused=[
        ("two=2", "i=2"),
        lambda weight, n_head: weight.flip(0),
        lambda weight, n_head: None,
    ],
    right=[by_index, in_loops],
)


# cached_attention


def texts() -> Iterator[Case]:
    """Yield a text's queries, keys and values, and how it is cut into calls."""
    for what, (batch, head, kv_head, dim, cuts) in {
        "": (1, 2, 1, 4, (3, 1, 1)),
        "one call": (2, 4, 2, 6, (5,)),
        "token by token": (1, 2, 2, 2, (1, 1, 1, 1)),
        "two calls of several tokens": (1, 6, 3, 4, (2, 4)),
    }.items():
        seq = sum(cuts)
        k, v = normal(2, batch, kv_head, seq, dim, seed=1)
        yield Case(what, q=normal(batch, head, seq, dim), k=k, v=v, cuts=cuts)


def called(answer: Any, case: Case) -> Record:
    """Call an answer with one part of the text after the other, and one `past`."""
    q, k, v, cuts = (case.inputs[name] for name in ("q", "k", "v", "cuts"))
    past: dict[str, Tensor] = {}
    record: Record = {}
    start = 0
    for number, length in enumerate(cuts):
        parts = (t[:, :, start : start + length].clone() for t in (q, k, v))
        record[f"result of call {number + 1}"] = plain(answer(*parts, past))
        start += length
    kept = sum(t.numel() for t in past.values() if isinstance(t, Tensor))
    elsewhere = runs_elsewhere(lambda q, k, v: answer(q, k, v, {}), Case(q=q, k=k, v=v))
    return record | {"numbers in the cache": kept, "elsewhere": elsewhere}


def rotating_late(q: Tensor, k: Tensor, v: Tensor, past: dict[str, Tensor]) -> Tensor:
    """Keep keys before their rotation, and turn all of them in each call."""
    if past:
        k, v = torch.cat((past["raw"], k), dim=2), torch.cat((past["v"], v), dim=2)
    past["raw"], past["v"] = k, v
    positions = torch.arange(k.size(2), device=k.device)
    return model_of_today.grouped_attention(
        model_of_today.rotate(q, positions[-q.size(2) :]), model_of_today.rotate(k, positions), v
    )


START = 'past["k"].size(2) if past else 0'
KEEP = 'past["k"], past["v"] = k, v'
JOIN = 'k, v = torch.cat((past["k"], k), dim=2), torch.cat((past["v"], v), dim=2)'

cached_attention = Exercise(
    NOTEBOOK,
    "cached_attention",
    texts,
    observe=called,
    tolerance=10,
    is_part=True,
    given={"rotate": model_of_today.rotate, "grouped_attention": model_of_today.grouped_attention},
    says={
        "numbers in the cache": "right results, but the cache holds more or less than one key and "
        "one value of each key head for each token.",
    },
    smaller="The cache holds three tokens, and one new token comes. What is its position, and how "
    "many keys does its query see?",
    wrong={
        "every call starts at position 0 again; count the tokens in the cache.": (START, "0"),
        "the next token's position is the number of tokens in the cache; yours is one too high.": (
            START,
            'past["k"].size(2) + 1 if past else 0',
        ),
        "the next token's position is the number of tokens in the cache; yours is one too low.": (
            START,
            'past["k"].size(2) - 1 if past else 0',
        ),
        "you count heads; the tokens in the cache are axis 2 of the keys.": (
            START,
            'past["k"].size(1) if past else 0',
        ),
        "you keep only the new tokens; the third call has lost the first one.": (
            f"    if past:\n        {JOIN}\n    {KEEP}",
            '    new = k, v\n    if past:\n        k, v = torch.cat((past["k"], k), dim=2), '
            'torch.cat((past["v"], v), dim=2)\n    past["k"], past["v"] = new',
        ),
        "you never store anything in `past`.": (f"    {KEEP}\n", ""),
        "the cache stays as after the first call; store the longer one.": (
            KEEP,
            f"if not past:\n        {KEEP}",
        ),
        "you rotate the keys in the cache once more; they were stored turned.": (
            f"q, k = rotate(q, positions), rotate(k, positions)\n    if past:\n        {JOIN}",
            "q = rotate(q, positions)\n"
            f"    if past:\n        {JOIN}\n"
            "    k = rotate(k, torch.arange(k.size(2), device=q.device))",
        ),
        "the keys aren't rotated.": (
            "rotate(q, positions), rotate(k, positions)",
            "rotate(q, positions), k",
        ),
        "the query isn't rotated.": (
            "rotate(q, positions), rotate(k, positions)",
            "q, rotate(k, positions)",
        ),
        "the new keys belong behind the old ones.": (
            JOIN,
            'k, v = torch.cat((k, past["k"]), dim=2), torch.cat((v, past["v"]), dim=2)',
        ),
        "values have no position; don't rotate them.": (
            "q, k = rotate(q, positions), rotate(k, positions)",
            "q, k, v = (rotate(t, positions) for t in (q, k, v))",
        ),
        "the new queries attend only to the new keys; attend to all.": (
            "return grouped_attention(q, k, v)",
            "return grouped_attention(q, k[:, :, start:], v[:, :, start:])",
        ),
    },
    refused=[
        (START, "5"),
        edits(
            (
                "q, k = rotate",
                "k, v = (t.repeat_interleave(q.size(1) // t.size(1), 1) for t in (k, v))\n"
                "    q, k = rotate",
            ),
        ),
        lambda q, k, v, past: q,
        lambda q, k, v, past: None,
    ],
    right=[rotating_late],
)
