"""Notebook 07's checks: untouched stubs, typical slips by their diagnosis, right answers.

A slip is the notebook's printed solution with a few words replaced.
"""

import math
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import Tensor, nn
from verdicts import assert_untouched, assert_verdicts, verdict

from cs336_course.checks import gpt2_model as checks
from cs336_course.checks.report import DiagnosisError
from cs336_lib import model as library

FUNCTIONS = ("embed", "attention", "nucleus")
NAMES = {"causal_self_attention": "CausalSelfAttention", "mlp": "MLP", "block": "Block"} | {
    "gpt": "GPT"
}
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "07_gpt2_model.ipynb"
CELLS = nbformat.read(NOTEBOOK, as_version=4).cells
SOLUTIONS = {
    stub.metadata.cs336.exercise: re.findall(r"```python\n(.*?)```", later.source, flags=re.S)[0]
    for i, stub in enumerate(CELLS)
    if "exercise" in stub.metadata.get("tags", [])
    for later in CELLS[i + 1 : i + 3]
    if "solution" in later.metadata.get("tags", [])
}
EARLIER = {
    **{"math": math, "torch": torch, "F": F, "nn": nn, "Tensor": Tensor, "rearrange": rearrange},
    **{"embed": checks.library_embed, "attention": checks.library_attention},
    **{"CausalSelfAttention": library.CausalSelfAttention, "MLP": library.MLP},
    **{"Block": library.Block, "init_weights": checks.library_init_weights},
}


def edited(exercise, *edits):
    """Return the printed solution's answer, after replacing text that must occur in it."""
    code = SOLUTIONS[exercise]
    for old, new in edits:
        assert old in code, f"{old!r} is not in the solution of {exercise}"
        code = code.replace(old, new)
    namespace = dict(EARLIER)
    exec(code, namespace)
    return namespace[NAMES.get(exercise, exercise)]


def test_untouched_stubs():
    assert_untouched(checks, checks.__all__)


def test_a_forgotten_return_is_told():
    said = {name: verdict(getattr(checks, name), lambda *args: None) for name in FUNCTIONS}
    assert {name for name in said if "is the `return` missing" not in said[name]} == set()


def test_a_right_part_is_kept_and_another_replaced():
    class MLP(library.MLP):
        pass

    assert checks.mlp(MLP) is MLP
    assert checks.mlp(nn.Identity) is library.MLP


# embed


def by_rows(idx, wte, wpe):
    return wte.weight[idx] + wpe.weight[: idx.size(1)]


def by_function(idx, wte, wpe):
    positions = repeat(torch.arange(idx.size(1)).to(idx), "seq -> batch seq", batch=len(idx))
    return torch.add(F.embedding(positions, wpe.weight), F.embedding(idx, wte.weight))


def token_by_token(idx, wte, wpe):
    rows = [[wte.weight[i] + wpe.weight[n] for n, i in enumerate(text)] for text in idx.tolist()]
    return torch.stack([torch.stack(row) for row in rows])


def one_hot_embed(idx, wte, wpe):
    rows = F.one_hot(idx, len(wte.weight)).to(wte.weight.dtype)
    return rows @ wte.weight + wpe.weight[: idx.size(1)]


EMBED_SLIPS = {
    "by the root of n_embd": ("wte(idx) +", "wte(idx) * math.sqrt(wte.embedding_dim) +"),
    "the result is torch.float32; keep torch.bfloat16": (
        "wte(idx) +",
        "torch.zeros(*idx.shape, wte.embedding_dim) + wte(idx) +",
    ),
    "the positions are missing": (" + wpe(positions)", ""),
    "the tokens are missing": (
        "wte(idx) + wpe(positions)",
        "wpe(positions).expand(*idx.shape, -1)",
    ),
    "not by the token": ("wpe(positions)", "wpe(idx)"),
    "begin at 0, not at 1": ("wpe(positions)", "wpe((positions + 1) % 13)"),
    "from the front": ("wpe(positions)", "wpe(positions.flip(0))"),
    "don't multiply": ("+ wpe", "* wpe"),
    "not along the batch": ("idx.size(1)", "idx.size(0)"),
    "(axis 1), not along": (
        ("idx.size(1)", "idx.size(0)"),
        ("wpe(positions)", "wpe(positions)[:, None]"),
    ),
    "take its first rows": ("wpe(positions)", "wpe.weight"),
    "gradient of wpe": ("wpe(positions)", "wpe(positions).detach()"),
    "it would fail on a GPU": (", device=idx.device", ""),
    "continue to count in the next text": (
        "wpe(positions)",
        "wpe((torch.arange(idx.numel()) % len(wpe.weight)).view(idx.shape))",
    ),
    "you add one row to all": ("wpe(positions)", "wpe.weight[idx.size(1) - 1]"),
    "you add row 0 to all": ("wpe(positions)", "wpe.weight[0]"),
    "right for a batch of shape (3, 5) and 13 positions, but not for": (
        "wpe(positions)",
        "wpe(positions.clamp(max=4))",
    ),
    "changes its input idx in place": ("    return", "    idx[:] = 0\n    return"),
    "keep torch.float32": ("wpe(positions)", "wpe(positions).double()"),
    "wrong for a batch": ("+ wpe(positions)", "+ 2 * wpe(positions)"),
    "expected": ("wte(idx) + wpe(positions)", "(wte(idx) + wpe(positions))[0]"),
}


# attention


def looped(q, k, v):
    """Attention position by position."""
    rows = []
    for i in range(q.size(2)):
        scores = (q[:, :, i : i + 1] * k[:, :, : i + 1]).sum(-1) * q.size(-1) ** -0.5
        rows.append((scores.softmax(-1)[..., None] * v[:, :, : i + 1]).sum(2))
    return torch.stack(rows, dim=2)


def negative(q, k, v):
    """Attention with a large negative number for -inf, and the queries scaled."""
    index = torch.arange(q.size(2), device=q.device)
    scores = torch.einsum("bhid,bhjd->bhij", q * q.size(-1) ** -0.5, k)
    scores = scores.where(index[:, None] >= index, torch.finfo(q.dtype).min)
    return scores.log_softmax(-1).exp() @ v


def by_einsum(q, k, v):
    scores = einsum(q, k, "b h i d, b h j d -> b h i j") / q.shape[-1] ** 0.5
    mask = torch.full_like(scores, torch.finfo(q.dtype).min).triu(1)
    weights = F.softmax(scores.tril() + mask, dim=3)
    return einsum(weights, v, "b h i j, b h j d -> b h i d")


def stable_exp(q, k, v):
    allowed = torch.ones(q.size(2), q.size(2), device=q.device).tril()
    scores = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).masked_fill(allowed == 0, -math.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


SCALED = "q @ k.mT / math.sqrt(q.size(-1))"
MASKED = "scores.masked_fill(future, -math.inf)"
ATTENTION_SLIPS = {
    "divide the scores by the square root": (SCALED, "q @ k.mT"),
    "not by head_dim itself": (SCALED, "q @ k.mT / q.size(-1)"),
    "you multiply": (SCALED, "q @ k.mT * math.sqrt(q.size(-1))"),
    "another axis (seq)": ("q.size(-1)", "q.size(2)"),
    "another axis (head)": ("q.size(-1)", "q.size(1)"),
    "not by the width of all heads": ("q.size(-1)", "q.size(1) * q.size(-1)"),
    "there is no mask": (MASKED, "scores"),
    "mask before the softmax": (
        "scores.masked_fill(future, -math.inf).softmax(-1)",
        "scores.softmax(-1).masked_fill(future, 0)",
    ),
    "a score of 0 isn't a weight of 0": (MASKED, "scores.tril()"),
    "that is inverted": (".triu(1)", ".tril(-1)"),
    "also sees the next one": (".triu(1)", ".triu(2)"),
    "softmax runs over the keys": (".softmax(-1)", ".softmax(-2)"),
    "as in q @ k.mT": ("q @ k.mT", "k @ q.mT"),
    "multiply them with v": (" @ v", ""),
    "the first position may see nothing": (".triu(1)", ".triu()"),
    "somewhere a softmax sees only -inf": (".triu(1)", ".tril()"),
    "-inf times a negative score": (MASKED, "(scores * torch.where(future, -math.inf, 1.0))"),
    "0 times -inf is nan": (MASKED, "(scores + future * -math.inf)"),
    "whose numbers end at 65,504": (MASKED, "scores.masked_fill(future, -1e9)"),
    "your code raised RuntimeError": ("q @ k.mT", "q.squeeze() @ k.squeeze().mT"),
    "mask by the place": (MASKED, "scores.masked_fill(scores.tril() == 0, -math.inf)"),
    "an error in bf16": (
        MASKED,
        "(scores + torch.full(future.shape, -math.inf, device=q.device).triu(1))",
    ),
    "the result is torch.float32; keep torch.bfloat16": (
        f"{MASKED}.softmax(-1) @ v",
        f"{MASKED}.float().softmax(-1) @ v.float()",
    ),
    "(1, 1, 270, 2)": (
        ".triu(1)",
        ".triu(1) | torch.ones_like(scores[0, 0], dtype=torch.bool).tril(-64)",
    ),
    "nearly right": (
        f"return {MASKED}.softmax(-1) @ v",
        "w = scores.softmax(-1).tril()\n    return w / (w.sum(-1, keepdim=True) + 1e-6) @ v",
    ),
    "write it by hand": (
        f"{MASKED}.softmax(-1) @ v",
        "F.scaled_dot_product_attention(q, k, v)",
    ),
    "gradient of k": ("k.mT", "k.detach().mT"),
    "it would fail on a GPU": (
        "torch.ones_like(scores[0, 0], dtype=torch.bool)",
        "torch.ones(scores.shape[-2:], dtype=torch.bool)",
    ),
    "exp alone overflows": (
        f"return {MASKED}.softmax(-1) @ v",
        f"e = {MASKED}.exp()\n    return e / e.sum(-1, keepdim=True) @ v",
    ),
    "may leave weights of 0 only": (
        f"return {MASKED}.softmax(-1) @ v",
        "w = scores.softmax(-1).tril()\n    return w / w.sum(-1, keepdim=True) @ v",
    ),
    "not for scores near 10,000": ("-math.inf", "-1e4"),
    "isn't always 64": ("math.sqrt(q.size(-1))", "8"),
    "those of the first text": (".softmax(-1)", ".softmax(-1)[:1]"),
    "those of the first head": (".softmax(-1)", ".softmax(-1)[:, :1]"),
    "changes its input q in place": ("scores = q", "scores = q.data.mul_(1.5)"),
    "you change q or k or v in place": ("scores = q", "scores = q.mul_(1.5)"),
    "right for q of shape (2, 3, 5, 4), but not": (
        ".triu(1)",
        ".triu(1) | torch.ones_like(scores[0, 0], dtype=torch.bool).tril(-5)",
    ),
    "must match the size": (
        "torch.ones_like(scores[0, 0], dtype=torch.bool)",
        "torch.ones(5, 5).bool()",
    ),
}


# causal_self_attention


class Chunked(nn.Module):
    """Attention by chunk, view and transpose, with a buffer and other attribute names."""

    def __init__(self, config):
        super().__init__()
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.heads = config.n_head
        self.register_buffer("bias", torch.ones(config.block_size, config.block_size).tril())

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.c_attn(x).chunk(3, dim=2)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        y = scores.masked_fill(self.bias[:t, :t] == 0, -math.inf).softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class HeadByHead(nn.Module):
    """Attention with a list of heads, and slices of c_attn's output."""

    def __init__(self, config):
        super().__init__()
        self.config, width = config, config.n_embd
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        width, out = self.config.n_embd, []
        parts = [self.c_attn(x)[..., width * n : width * (n + 1)] for n in range(3)]
        for heads in zip(
            *(part.tensor_split(self.config.n_head, -1) for part in parts), strict=True
        ):
            out.append(checks.library_attention(*(head[:, None] for head in heads))[:, 0])
        return self.c_proj(torch.cat(out, dim=-1))


class ByKernel(library.CausalSelfAttention):
    """The library's linear layers, with another forward."""

    def forward(self, x):
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.movedim(1, 2).flatten(2))


MASK_BUFFER = edited(
    "causal_self_attention",
    (
        "        self.c_proj",
        "        ones = torch.ones(config.block_size, config.block_size)\n"
        "        self.register_buffer('bias', ones.tril())\n        self.c_proj",
    ),
    (
        "y = attention(q, k, v)",
        "seen = self.bias[: x.size(1), : x.size(1)]\n"
        "        scores = q @ k.mT / math.sqrt(q.size(-1))\n"
        "        y = scores.masked_fill(seen == 0, -math.inf).softmax(-1) @ v",
    ),
)
SPLIT = "batch seq (three head head_dim) ->"
CALL = "attention(q, k, v)"
LAYER_SCORES = "(q @ k.mT / math.sqrt(q.size(-1)))"
LAYER_SLIPS = {
    "reshape straight to (batch, head, seq, head_dim)": (
        (
            "q, k, v = rearrange(self.c_attn(x), pattern, three=3, head=self.n_head)",
            "q, k, v = (p.reshape(len(x), self.n_head, x.size(1), -1) "
            "for p in self.c_attn(x).chunk(3, -1))",
        ),
        ("return self.c_proj(", "return self.c_proj(attention(q, k, v).reshape(x.shape)); ("),
    ),
    "when you split and when you merge": (
        (SPLIT, "batch seq (three head_dim head) ->"),
        ('batch seq (head head_dim)")', 'batch seq (head_dim head)")'),
    ),
    "exp alone overflows": (
        CALL,
        f"(w := {LAYER_SCORES}.exp().tril()) / w.sum(-1, keepdim=True) @ v",
    ),
    "not for scores near 10,000": (
        CALL,
        f"({LAYER_SCORES} - torch.full((x.size(1), x.size(1)), 1e4, device=x.device).triu(1))"
        ".softmax(-1) @ v",
    ),
    "must match the size of tensor b (64)": (
        CALL,
        f"({LAYER_SCORES} + torch.full((64, 64), -math.inf, device=x.device)"
        ".triu(1)[: x.size(1), : x.size(1)]).softmax(-1) @ v",
    ),
    "c_proj is never used": ("return self.c_proj(rearrange(", "return (rearrange("),
    "use `attention`, which is causal": (CALL, "F.scaled_dot_product_attention(q, k, v)"),
    "you mixed them up": ("q, k, v = rearrange", "k, q, v = rearrange"),
    "then the values: q, k, v": ("q, k, v = rearrange", "v, k, q = rearrange"),
    "all queries come first": (SPLIT, "batch seq (head three head_dim) ->"),
    "not (head_dim head)": (SPLIT, "batch seq (three head_dim head) ->"),
    "when you merge": ('batch seq (head head_dim)")', 'batch seq (head_dim head)")'),
    "which mixes positions and heads": (
        "q, k, v = rearrange(self.c_attn(x), pattern, three=3, head=self.n_head)",
        "q, k, v = (p.reshape(len(x), self.n_head, x.size(1), -1) "
        "for p in self.c_attn(x).chunk(3, -1))",
    ),
    "without moving them back": (
        'rearrange(y, "batch head seq head_dim -> batch seq (head head_dim)")',
        "y.reshape(x.shape)",
    ),
    "attends over its own heads": (
        ("three batch head seq head_dim", "three batch seq head head_dim"),
        ('"batch head seq head_dim -> batch', '"batch seq head head_dim -> batch'),
    ),
    "a single head": ("self.n_head = config.n_head", "self.n_head = 1"),
    "not by n_embd": (
        CALL,
        "F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=x.size(-1) ** -0.5)",
    ),
    "the keys before the values": ("q, k, v = rearrange", "q, v, k = rearrange"),
    "isn't always 12": ("config.n_head", "12"),
    "scaled twice": (CALL, "attention(q / math.sqrt(q.size(-1)), k, v)"),
    "changes after model.eval()": (
        CALL,
        "F.scaled_dot_product_attention(q, k, v, is_causal=self.training)",
    ),
    "keep nothing of an earlier call": (
        CALL,
        "attention(q, self.__dict__.setdefault('k', k), v)",
    ),
    "it would fail on a GPU": (CALL, "attention(q, k, v) + torch.zeros(x.size(1), 1)"),
    "changes its input x in place": ("        pattern", "        x.data += 1\n        pattern"),
    "aren't scaled": (
        CALL,
        "F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)",
    ),
    "you add x": ("return self", "return x + self"),
    "c_attn.bias is missing": ("3 * config.n_embd)", "3 * config.n_embd, bias=False)"),
    "there is no parameter c_attn.weight": ("c_attn", "qkv"),
    "c_attn.weight has the shape (24, 24)": ("3 * config.n_embd", "config.n_embd"),
    "is its `return` missing": ("return ", ""),
    "leave it out": ("return ", "return F.dropout(x, 0.5) + "),
    "gradient of x": ("self.c_attn(x)", "self.c_attn(x.detach())"),
    "cannot assign module before": ("super().__init__()", "pass"),
}


# mlp


class Sequenced(nn.Module):
    """The MLP with the formula written out, and its layers in the other order."""

    def __init__(self, config):
        super().__init__()
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)

    def forward(self, x):
        x = self.c_fc(x)
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return self.c_proj(0.5 * x * (1 + torch.tanh(inner)))


class WithModule(Sequenced):
    """The MLP with nn.GELU."""

    def __init__(self, config):
        super().__init__(config)
        self.gelu = nn.GELU(approximate="tanh")

    def forward(self, x):
        return self.c_proj(self.gelu(self.c_fc(x)))


class ByFunction(Sequenced):
    """The MLP with torch's functions."""

    def forward(self, x):
        hidden = F.linear(x, self.c_fc.weight, self.c_fc.bias)
        hidden = torch.nn.functional.gelu(hidden, approximate="tanh")
        return hidden @ self.c_proj.weight.T + self.c_proj.bias


GELU = 'F.gelu(self.c_fc(x), approximate="tanh")'
MLP_SLIPS = {
    "you square h": (
        GELU,
        "0.5 * (h := self.c_fc(x)) * "
        "(1 + torch.tanh((2 / math.pi) ** 0.5 * (h + 0.044715 * h**2)))",
    ),
    "c_fc.weight has requires_grad=False": (
        "config.n_embd)\n        self.c_proj",
        "config.n_embd).requires_grad_(False)\n        self.c_proj",
    ),
    "changes requires_grad of its input x": ("self.c_fc(x)", "self.c_fc(x.requires_grad_(False))"),
    "a constant of GELU": (
        GELU,
        "0.5 * (h := self.c_fc(x)) * (1 + torch.tanh((2 / math.pi) ** 0.5 * (h + 0.0447 * h**3)))",
    ),
    "GELU's tanh formula": (', approximate="tanh"', ""),
    "GPT-2 has GELU": (GELU, "self.c_fc(x).relu()"),
    "sigmoid formula": (GELU, "self.c_fc(x) * torch.sigmoid(1.702 * self.c_fc(x))"),
    "not before them": (GELU, 'self.c_fc(F.gelu(x, approximate="tanh"))'),
    "the output is wrong for x of shape (3, 5, 24)": (GELU, f"2 * {GELU}"),
    "right for x of shape (3, 5, 24), but not for": (
        GELU,
        f"({GELU} if len(x) == 3 else 2 * {GELU})",
    ),
    "that is SiLU": (GELU, "F.silu(self.c_fc(x))"),
    "there is no nonlinearity": (GELU, "self.c_fc(x)"),
    "not after them": (
        f"self.c_proj({GELU})",
        'F.gelu(self.c_proj(self.c_fc(x)), approximate="tanh")',
    ),
    "you have a second one": (
        f"self.c_proj({GELU})",
        f'F.gelu(self.c_proj({GELU}), approximate="tanh")',
    ),
    "you add x": ("return self", "return x + self"),
    "c_fc.weight has the shape (48, 24); (96, 24)": ("4 * config.n_embd", "2 * config.n_embd"),
    "c_proj.bias is missing": (
        "4 * config.n_embd, config.n_embd)",
        "4 * config.n_embd, config.n_embd, bias=False)",
    ),
    "there is no parameter c_fc.weight": ("c_fc", "fc"),
    "a parameter that GPT-2 doesn't have": (
        "self.c_proj =",
        "self.norm = nn.LayerNorm(8)\n        self.c_proj =",
    ),
    "is its `return` missing": ("return ", ""),
    "two calls differ": (GELU, f"F.dropout({GELU}, 0.1)"),
}


# block


class Written(nn.Module):
    """The block with its modules in another order."""

    def __init__(self, config):
        super().__init__()
        self.attn, self.mlp = library.CausalSelfAttention(config), library.MLP(config)
        self.ln_2, self.ln_1 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)

    def forward(self, x):
        middle = self.attn(self.ln_1(x)) + x
        return sum((middle, self.mlp(self.ln_2(middle))))


class InLoop(library.Block):
    """The library's modules, applied in a loop."""

    def forward(self, x):
        for norm, layer in ((self.ln_1, self.attn), (self.ln_2, self.mlp)):
            x = torch.add(x, layer(norm(x)))
        return x


class NormByFunction(library.Block):
    """The block with the norms as functions."""

    def forward(self, x):
        def norm(x, layer):
            return F.layer_norm(x, x.shape[-1:], layer.weight, layer.bias)

        x = self.attn(norm(x, self.ln_1)).add(x)
        return x + self.mlp(norm(x, self.ln_2))


FIRST, SECOND = "x = x + self.attn(self.ln_1(x))", "x + self.mlp(self.ln_2(x))"
BLOCK_SLIPS = {
    "(post-norm)": (
        (FIRST, "x = self.ln_1(x + self.attn(x))"),
        (SECOND, "self.ln_2(x + self.mlp(x))"),
    ),
    "nothing is added": (
        (FIRST, "x = self.attn(self.ln_1(x))"),
        (SECOND, "self.mlp(self.ln_2(x))"),
    ),
    "attention's output replaces x": (FIRST, "x = self.attn(self.ln_1(x))"),
    "the MLP's output replaces x": (SECOND, "self.mlp(self.ln_2(x))"),
    "the MLP reads x from before": (
        (FIRST, "a = self.attn(self.ln_1(x))"),
        (SECOND, "a + x + self.mlp(self.ln_2(x))"),
    ),
    "so attention's is lost": (
        (FIRST, "a = x + self.attn(self.ln_1(x))"),
        (SECOND, "x + self.mlp(self.ln_2(a))"),
    ),
    "add to x itself": (
        (FIRST, "x = self.ln_1(x)\n        x = x + self.attn(x)\n        x = self.ln_2(x)"),
        (SECOND, "x + self.mlp(x)"),
    ),
    "the MLP is never applied": (SECOND, "x"),
    "attention is never applied": (FIRST, "pass"),
    "one tensor with another parameter": (
        "self.ln_2 = nn.LayerNorm(config.n_embd)",
        "self.ln_2 = self.ln_1",
    ),
    "has eps=1e-06": (
        "self.ln_1 = nn.LayerNorm(config.n_embd)",
        "self.ln_1 = nn.LayerNorm(config.n_embd, eps=1e-6)",
    ),
    "ln_1 is used twice": (SECOND, "x + self.mlp(self.ln_1(x))"),
    "the norms are never used": ((FIRST, "x = x + self.attn(x)"), (SECOND, "x + self.mlp(x)")),
    "ln_1 is never used": (FIRST, "x = x + self.attn(x)"),
    "ln_2 is never used": (SECOND, "x + self.mlp(x)"),
    "attention comes first": (
        (FIRST, "x = x + self.MLP(self.ln_2(x))"),
        (SECOND, "x + self.attn(self.ln_1(x))"),
        ("self.MLP", "self.mlp"),
    ),
    "the norms are swapped": (
        ("self.attn(self.ln_1(x))", "self.attn(self.ln_X(x))"),
        ("self.mlp(self.ln_2(x))", "self.mlp(self.ln_1(x))"),
        ("ln_X", "ln_2"),
    ),
    "a value that its gradient needs": (
        FIRST,
        "x = x.clone()\n        x += self.attn(self.ln_1(x))",
    ),
    "write x = x + ...": (FIRST, "x += self.attn(self.ln_1(x))"),
    "there is no parameter ln_1.weight": ("ln_1", "norm_1"),
    "ln_2.bias is missing": (
        "self.ln_2 = nn.LayerNorm(config.n_embd)",
        "self.ln_2 = nn.RMSNorm(config.n_embd)",
    ),
    "is its `return` missing": ("return ", ""),
}


# init_weights


@torch.no_grad()
def by_module(model):
    """Initialize module by module, as nanoGPT does."""
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear | nn.Embedding):
            std = 0.02 * ((2 * model.config.n_layer) ** -0.5 if name.endswith("c_proj") else 1)
            nn.init.normal_(module.weight, mean=0.0, std=std)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)


def by_table(model):
    """Assign new values, with a std looked up by the end of the name."""
    small = 0.02 / math.sqrt(2 * len(model.transformer.h))
    for name, parameter in model.named_parameters():
        std = {"attn.c_proj.weight": small, "mlp.c_proj.weight": small}
        std = next((value for end, value in std.items() if name.endswith(end)), 0.02)
        drawn = std * torch.randn_like(parameter)
        is_norm, is_bias = "ln_" in name, "bias" in name
        parameter.data = 0 * drawn if is_bias else torch.ones_like(drawn) if is_norm else drawn


@torch.no_grad()
def in_two_rounds(model):
    """Draw every matrix, far from cut off, and shrink some."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.trunc_normal_(parameter, std=0.02)
    for block in model.transformer.h:
        for layer in (block.attn.c_proj, block.mlp.c_proj):
            layer.weight /= (2 * model.config.n_layer) ** 0.5
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.reset_parameters()
        elif isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()


SMALL = "parameter.normal_(0.0, 0.02 / math.sqrt(2 * model.config.n_layer))"
OTHER = "parameter.normal_(0.0, 0.02)"
INIT_SLIPS = {
    "writes to the stream, so its 0.02": (SMALL, OTHER),
    "a block writes to the stream twice": ("2 * model", "model"),
    "divide by the square root of 2 n_layer, not": (
        SMALL,
        "parameter.normal_(0.0, 0.02 / model.config.n_layer)",
    ),
    "variances add": (SMALL, "parameter.normal_(0.0, 0.02 / (2 * model.config.n_layer))"),
    "you multiply": ("0.02 / math", "0.02 * math"),
    "only the c_proj weights are smaller": ('"c_proj" in name', '"c_" in name'),
    "not the variance": (OTHER, "parameter.normal_(0.0, 0.02**2)"),
    "the std of transformer.wte.weight is off": (OTHER, "parameter.normal_(0.0, 0.01)"),
    "isn't drawn from a normal distribution": (
        OTHER,
        "parameter.uniform_(-0.02 * 3**0.5, 0.02 * 3**0.5)",
    ),
    "the mean should be 0": (OTHER, "parameter.normal_(0.02, 0.02)"),
    "every bias begins at 0": (
        'name.endswith("bias")',
        'name.endswith("bias") and ".ln_" in name',
    ),
    "should be 0": ("parameter.zero_()", "parameter.fill_(1.0)"),
    "is a norm's gain": ("parameter.fill_(1.0)", "parameter.fill_(0.0)"),
    "is left as it was": ("parameter.zero_()", "pass"),
    "draw it": (OTHER, "parameter.fill_(0.0)"),
    "seeds a generator": (OTHER, "torch.manual_seed(0)\n            parameter.normal_(0.0, 0.02)"),
    "leave the seed": ("    for name", "    torch.manual_seed(0)\n    for name"),
    "keep @torch.no_grad()": ("@torch.no_grad()\n", ""),
    "are no longer one tensor": (
        "    for name",
        "    model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())\n    for name",
    ),
    "n_layer isn't always 12": ("model.config.n_layer", "12"),
    "is off for n_layer = 1": ("model.config.n_layer", "3"),
    "numbers repeat within": (
        OTHER,
        "parameter.copy_(0.02 * torch.randn(parameter.size(-1)))",
    ),
    "mlp.c_proj.weight: it writes to the stream": ('"c_proj" in name', '"attn.c_proj" in name'),
    "ln_f.weight is a norm's gain": ('".ln_" in name', '".ln_1" in name or ".ln_2" in name'),
    "it would fail on a GPU": (OTHER, "parameter.data = 0.02 * torch.randn(parameter.shape)"),
    "keep its dtype": (OTHER, "parameter.data = 0.02 * torch.randn_like(parameter).double()"),
    "a part of transformer.wte.weight is left": (
        OTHER,
        "parameter[: model.config.vocab_size].normal_(0.0, 0.02)",
    ),
}


# gpt


class Rewritten(nn.Module):
    """GPT with other code: a loop over indices, log-softmax, positions by rows."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        tree = nn.Module()
        tree.ln_f = nn.LayerNorm(config.n_embd)
        tree.h = nn.ModuleList([library.Block(config) for _ in range(config.n_layer)])
        tree.wpe = nn.Embedding(config.block_size, config.n_embd)
        tree.wte = nn.Embedding(config.padded_vocab_size, config.n_embd)
        self.transformer = tree
        self.lm_head = nn.Linear(config.n_embd, config.padded_vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        checks.library_init_weights(self)

    def forward(self, idx, targets=None):
        x = self.transformer.wte(idx) + self.transformer.wpe.weight[: idx.size(1)]
        for i in range(self.config.n_layer):
            x = self.transformer.h[i](x)
        x = self.transformer.ln_f(x)
        logits = x @ self.lm_head.weight[: self.config.vocab_size].T
        if targets is not None:
            return -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()
        return logits


class Nested(Rewritten):
    """GPT with nanoGPT's loss, and the head's rows cut instead of the logits."""

    def forward(self, idx, targets=None):
        x = checks.library_embed(idx, self.transformer.wte, self.transformer.wpe)
        for each in self.transformer.h:
            x = each(x)
        head = self.lm_head.weight[: self.config.vocab_size]
        logits = F.linear(self.transformer.ln_f(x), head)
        if targets is None:
            return logits
        flat = logits.view(-1, logits.size(-1))
        return F.cross_entropy(flat, targets.reshape(-1), ignore_index=-1)


class Summed(Rewritten):
    """GPT with a loss that is summed by hand, over the vocabulary's axis in the middle."""

    def forward(self, idx, targets=None):
        positions = torch.arange(idx.shape[-1], device=idx.device).expand(idx.shape)
        x = self.transformer.wpe(positions) + self.transformer.wte(idx)
        x = nn.Sequential(*self.transformer.h, self.transformer.ln_f)(x)
        logits = self.lm_head(x).split(self.config.vocab_size, dim=-1)[0]
        if targets is None:
            return logits
        losses = F.nll_loss(logits.log_softmax(-1).mT, targets, reduction="none")
        return losses.sum() / targets.numel()


LOSS = "F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())"
HEAD = "logits = self.lm_head(self.transformer.ln_f(x))[..., : self.config.vocab_size]"
GPT_SLIPS = {
    "must be one matrix": ("        self.lm_head.weight = wte.weight\n", ""),
    "cut them to config.vocab_size": ("[..., : self.config.vocab_size]", ""),
    "only the last block counts": (
        ("x = block(x)", "y = block(x)"),
        (HEAD, f"x = y\n        {HEAD}"),
    ),
    "counts the padded rows": (
        ("[..., : self.config.vocab_size]", ""),
        (
            "            return logits\n",
            "            return logits[..., : self.config.vocab_size]\n",
        ),
    ),
    "has no attribute 'config'": ("        self.config = config\n        wte", "        wte"),
    "before self.lm_head": (
        "        self.transformer = nn",
        "        self.lm_head = nn.Linear(config.n_embd, "
        "config.padded_vocab_size, bias=False)\n        self.transformer = nn",
    ),
    "not before the first": (
        ("self.transformer.ln_f(x)", "x"),
        ("in self.transformer.h:", "in [self.transformer.ln_f, *self.transformer.h]:"),
    ),
    "by the root of n_embd": (
        "        for block in",
        "        x = x + (math.sqrt(x.size(-1)) - 1) * self.transformer.wte(idx)\n"
        "        for block in",
    ),
    "not only of the last": ("self.transformer.ln_f(x)", "self.transformer.ln_f(x[:, -1:])"),
    "log-probabilities": (
        "            return logits\n",
        "            return logits.log_softmax(-1)\n",
    ),
    "the last position only": (LOSS, "F.cross_entropy(logits[:, -1], targets[:, -1])"),
    "id 0 is a token": ("targets.flatten())", "targets.flatten(), ignore_index=0)"),
    "in bits": (f"return {LOSS}", f"return {LOSS} / math.log(2)"),
    "the loss is wrong for ids": (f"return {LOSS}", f"return 1.1 * {LOSS}"),
    "() is expected": ("if targets is None", "if targets is None or not targets.any()"),
    "isn't 0 at first": (
        ("        init_weights(self)\n", ""),
        (
            "        h = nn",
            "        self.transformer = nn.ModuleDict({'wte': wte})\n"
            "        init_weights(self)\n        h = nn",
        ),
    ),
    "input targets in place": (f"return {LOSS}", f"targets[:] = 1\n        return {LOSS}"),
    "it would fail on a GPU": (
        "embed(idx, self.transformer.wte, self.transformer.wpe)",
        "self.transformer.wte(idx) + self.transformer.wpe(torch.arange(idx.size(1)))",
    ),
    "ln_f, the norm after the last block": ("self.transformer.ln_f(x)", "x"),
    "the blocks' outputs are not used": ("x = block(x)", "block(x)"),
    "reverse order": ("in self.transformer.h:", "in list(self.transformer.h)[::-1]:"),
    "use `embed`": (
        "embed(idx, self.transformer.wte, self.transformer.wpe)",
        "self.transformer.wte(idx)",
    ),
    "return the logits.": (
        "            return logits\n",
        "            return logits.softmax(-1)\n",
    ),
    "not the sum": ("targets.flatten())", "targets.flatten(), reduction='sum')"),
    "shifted already": (
        LOSS,
        "F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())",
    ),
    "not probabilities": ("logits.float()", "logits.softmax(-1)"),
    "the sign is wrong": (f"return {LOSS}", f"return -{LOSS}"),
    "use flatten, not view": ("targets.flatten()", "targets.view(-1)"),
    "without targets return the logits alone": (
        "            return logits\n",
        "            return logits, None\n",
    ),
    "with targets return the loss alone": (f"return {LOSS}", f"return logits, {LOSS}"),
    "with targets `forward` returns None": (f"return {LOSS}", LOSS),
    "lm_head has no bias": (", bias=False", ""),
    "all blocks are one object": (
        "Block(config) for _ in range(config.n_layer)",
        "[Block(config)] * config.n_layer",
    ),
    "the config's n_layer is 2": ("range(config.n_layer)", "range(12)"),
    "blocks belong into an nn.ModuleList": (', "h": h', ""),
    "call init_weights": ("        init_weights(self)\n", ""),
    "padded_vocab_size is 64": (
        "nn.Embedding(config.padded_vocab_size",
        "nn.Embedding(config.vocab_size",
    ),
    "self.lm_head is missing": ("self.lm_head", "self.head"),
    "self.transformer is missing": ("self.transformer", "self.tree"),
    "gradient of transformer.wte.weight": (
        "x = embed(",
        "with torch.no_grad():\n            x = embed(",
    ),
}


# load_weights


@torch.no_grad()
def by_state_dict(model, theirs):
    """Load by a converted dictionary, as hf does."""
    ours = model.state_dict()
    found = {}
    for name, tensor in theirs.items():
        name = name.removeprefix("transformer.")
        if f"transformer.{name}" not in ours:
            continue
        if name.split(".")[-2] in ("c_attn", "c_proj", "c_fc") and tensor.ndim == 2:
            tensor = rearrange(tensor, "i o -> o i")
        like = ours[f"transformer.{name}"].clone()
        rows = min(len(like), len(tensor))
        like[:rows] = tensor[:rows]
        found[f"transformer.{name}"] = like
    model.load_state_dict(found, strict=False)


@torch.no_grad()
def by_own_names(model, theirs):
    """Look up each parameter in the file, and copy what both have."""
    for name, parameter in model.named_parameters():
        found = theirs.get(name, theirs.get(name.removeprefix("transformer.")))
        layer = name.split(".")[-2]
        if name.endswith("weight") and layer.startswith("c_"):
            found = found.mT
        rows = min(found.size(0), parameter.size(0))
        parameter.narrow(0, 0, rows).copy_(found.narrow(0, 0, rows))


def by_data(model, theirs):
    """Write through `data`, by the type of module."""
    theirs = {name.replace("transformer.", ""): tensor for name, tensor in theirs.items()}
    for prefix, module in model.transformer.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            tensor = theirs[f"{prefix}.{key}"]
            if isinstance(module, nn.Linear):
                tensor = torch.atleast_2d(tensor).t().squeeze(1 if key == "bias" else ())
            for row, new in zip(parameter.data, tensor, strict=False):
                row.copy_(new)


TURNED = "tensor.t() if is_linear else tensor"
COPIED = "ours[name][: len(tensor)] = tensor[: len(ours[name])]"
LOAD_SLIPS = {
    "Write into the model's own tensors": (
        "ours[name][: len(tensor)] = tensor[: len(ours[name])]",
        "ours[name] = tensor",
    ),
    "Transpose those, and no others": (TURNED, "tensor"),
    "It is square": (
        TURNED,
        "tensor.t() if tensor.shape[1:] != ours[name].shape[1:] else tensor",
    ),
    "don't transpose them": (TURNED, "tensor.t() if tensor.ndim == 2 else tensor"),
    "a reshape isn't a transpose": (
        TURNED,
        "tensor.reshape(tensor.shape[::-1]) if is_linear else tensor",
    ),
    "is a causal mask": (
        "if name in ours:  # there are also causal masks",
        "if 'lm_head' not in name:",
    ),
    "wte once more": (
        "if name in ours:  # there are also causal masks",
        "if '.attn.bias' not in name and 'masked' not in name:",
    ),
    "with or without 'transformer.'": (
        ('name = "transformer." + name.removeprefix("transformer.")', "pass"),
        ("if name in ours:  # there are also causal masks", "if '.attn.' not in name:"),
    ),
    "not even wte": (
        '"transformer." + name.removeprefix("transformer.")',
        '"transformer." + name',
    ),
    "is copied, not even wte. Names may come": (
        'name = "transformer." + name.removeprefix("transformer.")',
        "pass",
    ),
    "doesn't hold the published numbers": (
        "if name in ours:",
        "if name in ours and 'ln_' not in name:",
    ),
    "copy the rows that both have": (COPIED, "ours[name].copy_(tensor)"),
    "rows now": (COPIED, "ours[name].data = tensor"),
    "shares memory": (
        COPIED,
        "if len(tensor) == len(ours[name]):\n"
        "                ours[name].data = tensor\n"
        f"            {COPIED}",
    ),
    "Copy the rows that both have": (
        "if name in ours:",
        "if name in ours and tensor.numel() == ours[name].numel():",
    ),
    "should stay as they were": (COPIED, f"ours[name].zero_()\n            {COPIED}"),
    "nothing is copied, not even wte": (
        (
            "    for name",
            "    bare = not next(iter(theirs)).startswith('transformer.')\n    for name",
        ),
        (
            'name = "transformer." + name.removeprefix("transformer.")',
            'name = "transformer." * bare + name',
        ),
    ),
    "holds the file's lm_head.weight": (
        ("ours = dict(model.named_parameters())", "ours = model.state_dict()"),
        (
            'name = "transformer." + name.removeprefix("transformer.")',
            'name = name if "lm_" in name else "transformer." + name.removeprefix("transformer.")',
        ),
    ),
    "calls model.eval()": ("    for name", "    model.eval()\n    for name"),
    "keep @torch.no_grad()": (
        ("@torch.no_grad()\n", ""),
        (COPIED, "ours[name][: len(tensor)].copy_(tensor)"),
    ),
    "square table, not a linear layer": (
        TURNED,
        "tensor.t() if tensor.ndim == 2 and (len(tensor) == tensor.size(1) "
        "or tensor.shape[1:] != ours[name].shape[1:]) else tensor",
    ),
    "c_attn.bias isn't copied": (
        "if name in ours:",
        "if name in ours and not name.endswith('attn.bias'):",
    ),
    "skip what named_parameters() doesn't list": (
        "if name in ours:  # there are also causal masks",
        "if not name.endswith(('.attn.bias', 'masked_bias', 'lm_head.weight')):",
    ),
    "h.10.ln_1.weight doesn't hold": (
        "if name in ours:",
        "if name in ours and '.10.' not in name:",
    ),
    "keep its dtype": (COPIED, f"ours[name].data = ours[name].data.double()\n            {COPIED}"),
    "no longer requires a gradient": (
        "    for name",
        "    model.requires_grad_(False)\n    for name",
    ),
    "no longer one tensor": (COPIED, "model.transformer.wte.weight = nn.Parameter(tensor)"),
    "you changed the dictionary": (
        "theirs.items():",
        "list(theirs.items()):\n        del theirs[name]",
    ),
    "c_proj.weight isn't transposed": (
        '"c_attn.weight", "c_proj.weight", "c_fc.weight"',
        '"c_attn.weight", "c_fc.weight", "mlp.c_proj.weight"',
    ),
}


# generate


@torch.no_grad()
def from_indices(model, idx, new_tokens, top_k=50):
    """Draw among topk's values, with another way to draw, and map back."""
    text = idx.clone()
    while text.size(1) < idx.size(1) + new_tokens:
        logits = model(text[:, -model.config.block_size :])[:, -1, :]
        values, places = torch.topk(logits, top_k, dim=-1)
        noise = -torch.log(-torch.log(torch.rand_like(values)))
        choice = (values + noise).argmax(-1, keepdim=True)
        text = torch.hstack((text, places.gather(-1, choice)))
    return text


@torch.no_grad()
def text_by_text(model, idx, new_tokens, top_k=50):
    """Continue each text alone, with weights that aren't normalized."""
    done = []
    for row in idx:
        for _ in range(new_tokens):
            logits = model(row[None, -model.config.block_size :])[0, -1]
            weights = logits.softmax(0)
            weights[logits < logits.topk(top_k).values.min()] = 0
            row = torch.cat((row, torch.multinomial(weights, 1)))
        done.append(row)
    return torch.stack(done)


@torch.no_grad()
def in_a_buffer(model, idx, new_tokens, top_k=50):
    """Fill a buffer, and scatter the likeliest logits into a row of -inf."""
    begin, size = idx.shape[1], model.config.block_size
    text = torch.cat([idx, idx.new_zeros(idx.shape[0], new_tokens)], dim=-1)
    for end in range(begin, begin + new_tokens):
        logits = model(text[:, max(0, end - size) : end])[:, -1, :]
        ordered, order = logits.sort(dim=-1, descending=True)
        kept = torch.full_like(logits, -torch.inf)
        kept.scatter_(1, order[:, :top_k], ordered[:, :top_k])
        text[:, end] = torch.multinomial(F.softmax(kept, dim=-1), num_samples=1).squeeze(1)
    return text


DRAW = "torch.multinomial(probabilities, 1)"
CROP = "idx[:, -model.config.block_size :]"
KEEP = "logits.masked_fill(logits < kth, -math.inf)"
GENERATE_SLIPS = {
    "append to the whole idx": (
        "    for _ in range(new_tokens):\n",
        f"    for _ in range(new_tokens):\n        idx = {CROP}\n",
    ),
    "Give it the last block_size tokens only": (CROP, "idx"),
    "the last position only": (f"model({CROP})[:, -1]", f"model({CROP})[:, 0]"),
    "the last token only": (CROP, "idx[:, -1:]"),
    "not fewer": (CROP, "idx[:, 1 - model.config.block_size :]"),
    "(batch, seq) is expected": (f"model({CROP})", "model(idx[0])"),
    "doesn't grow": (CROP, "idx[:, :3]"),
    "draw with torch.multinomial": (DRAW, "probabilities.argmax(-1, keepdim=True)"),
    "use the ids in .indices": (
        f"probabilities = {KEEP}.softmax(-1)",
        "probabilities = logits.topk(top_k).values.softmax(-1)",
    ),
    "compared with its own text": (
        "logits.topk(top_k).values[:, -1:]",
        "logits.topk(top_k).values[:, -1]",
    ),
    "You keep one token fewer": ("logits < kth", "logits <= kth"),
    "more different tokens are drawn": (KEEP, "logits"),
    "You always keep 50 tokens": ("topk(top_k)", "topk(50)"),
    "50 is the default": ("top_k: int = 50", "top_k: int = 40"),
    "one threshold for the whole batch": ("values[:, -1:]", "values[0, -1]"),
    "you use one threshold": ("values[:, -1:]", "values.min()"),
    "not the first": (CROP, "idx[:, : model.config.block_size]"),
    "get the token of the first": (DRAW, f"{DRAW}[:1].expand(len(idx), 1)"),
    "changes its input idx in place": ("    for _ in", "    idx[:, 0] = 0\n    for _ in"),
    "keep torch.int64": ("return idx", "return idx.int()"),
    "it would fail on a GPU": (
        "    for _ in",
        "    idx = torch.cat((torch.zeros(len(idx), 0, dtype=torch.long), idx), 1)\n    for _ in",
    ),
    "leave the seed": ("    for _ in", "    torch.manual_seed(0)\n    for _ in"),
    "Apply softmax": (".softmax(-1)", ""),
    "those that the model wants": (".softmax(-1)", ".softmax(-1).softmax(-1)"),
    "draw by its probabilities": (".softmax(-1)", ".div(2).softmax(-1)"),
    "without a temperature": (".softmax(-1)", ".div(0.8).softmax(-1)"),
    "keep some token of every text": ("values[:, -1:]", "values[:, -1:].max()"),
    "draw at random": (".softmax(-1)", ".mul(20).softmax(-1)"),
    "or a power": (".softmax(-1)", ".softmax(-1) ** 2"),
    "keep @torch.no_grad()": ("@torch.no_grad()\n", ""),
    "calls model.train()": ("    for _ in", "    model.train()\n    for _ in"),
    "You keep one token too many": ("topk(top_k)", "topk(min(top_k + 1, logits.size(-1)))"),
    "the model is called once": (
        ("    for _", f"    logits = model({CROP})[:, -1]\n    for _"),
        (f"        logits = model({CROP})[:, -1]\n", ""),
    ),
    "the prompt isn't counted": ("range(new_tokens)", "range(new_tokens - idx.size(1))"),
    "the logits of the last position only": (f"model({CROP})[:, -1]", f"model({CROP}).mean(1)"),
    "but a token of 40 %": (
        DRAW,
        "(probabilities * torch.empty_like(probabilities).exponential_()).argmax(-1, True)",
    ),
    "return the prompt as well": ("return idx", "return idx[:, -new_tokens:]"),
    "repeat it `new_tokens` times": ("range(new_tokens)", "range(1)"),
    "begin with the prompt": ("return idx", "return idx.flip(1)"),
    "is the `return` missing": ("return idx", "idx"),
}


# nucleus


def kept_if(rule, normalise=True, sort_back=True, descending=True):
    """Top-p, keeping where rule(sum before, sum up to and with, p)."""

    def nucleus(probabilities, p):
        ordered, order = probabilities.sort(descending=descending)
        total = ordered.cumsum(0)
        chosen = ordered.where(rule(total - ordered, total, p), 0.0)
        kept = torch.zeros_like(chosen).scatter(0, order, chosen) if sort_back else chosen
        return kept / kept.sum() if normalise else kept

    return nucleus


def first_stays(before, total, p):
    return (total < p) | (before == 0)


def before_p(before, total, p):
    return before < p


def one_more(before, total, p):
    """Also the token after the one that crosses p."""
    shifted = torch.cat((before[:1], before[:-1]))
    return shifted < p


def in_place(probabilities, p):
    kept = kept_if(before_p)(probabilities, p)
    return probabilities.copy_(kept)


def in_plain_python(probabilities, p):
    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i].item())
    kept, total = [0.0] * len(order), 0.0
    for i in order:
        if total < p:
            kept[i] = probabilities[i].item()
            total += kept[i]
    return torch.tensor([value / total for value in kept], dtype=probabilities.dtype)


def by_mask(probabilities, p):
    """Top-p with the mask of what is dropped, brought back by a second sort."""
    order = torch.argsort(probabilities, descending=True, stable=True)
    total = torch.cumsum(probabilities[order], dim=-1)
    dropped = torch.cat((torch.zeros(1, dtype=torch.bool), total[:-1] >= p))
    back = dropped[order.argsort()]
    return F.normalize(probabilities.masked_fill(back, 0.0), p=1, dim=0)


def by_numpy(probabilities, p):
    values = probabilities.numpy()
    order = np.argsort(-values)
    count = int(np.searchsorted(np.cumsum(values[order]), np.float32(p))) + 1
    kept = np.zeros_like(values)
    kept[order[:count]] = values[order[:count]]
    return torch.from_numpy(kept / kept.sum())


def by_threshold(probabilities, p):
    kept = kept_if(before_p, normalise=False)(probabilities, p)
    kept = probabilities.where(probabilities >= kept[kept > 0].min(), 0.0)
    return kept / kept.sum()


def softmax_again(probabilities, p):
    kept = kept_if(before_p, normalise=False)(probabilities, p)
    return kept.masked_fill(kept == 0, -math.inf).softmax(0)


NUCLEI = {
    "your softmax gives dropped tokens": lambda probabilities, p: kept_if(
        before_p, normalise=False
    )(probabilities, p).softmax(0),
    "divide by their sum": kept_if(before_p, normalise=False),
    "probabilities sorted": kept_if(before_p, sort_back=False),
    "the token that crosses p is missing": kept_if(first_stays),
    "one token too many": kept_if(one_more),
    "< p, not <= p": kept_if(lambda before, total, p: before <= p),
    "descending=True": kept_if(
        lambda b, t, p: torch.tensor([True, True, True, False, False]), descending=False
    ),
    "changes its input probabilities in place": in_place,
    "keep all 5 tokens": lambda probabilities, p: probabilities[probabilities > 0.2],
    "it must always stay": lambda probabilities, p: (
        kept_if(before_p)(probabilities, p) if p > 0.5 else torch.zeros_like(probabilities)
    ),
    "p = 1 keeps every token": lambda probabilities, p: kept_if(before_p)(
        probabilities, min(p, 0.7)
    ),
    "nothing is dropped": lambda probabilities, p: probabilities,
    "wrong for p = 0.7": lambda probabilities, p: probabilities**2,
    "a softmax of probabilities": softmax_again,
    "in their own order": lambda probabilities, p: F.normalize(
        probabilities.where(probabilities.cumsum(0) - probabilities < p, 0.0), p=1, dim=0
    ),
    "not by a threshold": by_threshold,
    "keep torch.float32": lambda probabilities, p: kept_if(before_p)(probabilities, p).double(),
    "right for 5 tokens, but not for": lambda probabilities, p: kept_if(before_p)(
        probabilities, p if len(probabilities) < 9 else 0.5
    ),
    "a tensor is expected": lambda probabilities, p: 1,
    "Don't round": kept_if(lambda before, total, p: before.round(decimals=2) < p),
    "below p = 1": lambda probabilities, p: kept_if(
        lambda before, total, p: torch.arange(len(total)) <= (total >= p).int().argmax()
    )(probabilities, p),
    "keep torch.float64": lambda probabilities, p: kept_if(before_p)(probabilities, p).float(),
}


# All of them

SLIPS = {
    "embed": EMBED_SLIPS,
    "attention": ATTENTION_SLIPS,
    "causal_self_attention": LAYER_SLIPS,
    "mlp": MLP_SLIPS,
    "block": BLOCK_SLIPS,
    "init_weights": INIT_SLIPS,
    "gpt": GPT_SLIPS,
    "load_weights": LOAD_SLIPS,
    "generate": GENERATE_SLIPS,
}
RIGHT = {
    "embed": [by_rows, one_hot_embed, by_function, token_by_token],
    "attention": [looped, by_einsum, stable_exp, negative],
    "causal_self_attention": [Chunked, HeadByHead, ByKernel, MASK_BUFFER],
    "mlp": [Sequenced, WithModule, ByFunction],
    "block": [Written, InLoop, NormByFunction],
    "init_weights": [by_module, by_table, in_two_rounds],
    "gpt": [Rewritten, Nested, Summed],
    "load_weights": [by_state_dict, by_own_names, by_data],
    "generate": [from_indices, text_by_text, in_a_buffer],
    "nucleus": [kept_if(before_p), in_plain_python, by_mask, by_numpy],
}


@pytest.mark.parametrize("exercise", SLIPS)
def test_slips_are_diagnosed(exercise):
    cases = []
    for diagnosis, edits in SLIPS[exercise].items():
        pairs = [edits] if isinstance(edits[0], str) else edits
        cases.append((edited(exercise, *pairs), diagnosis))
    assert_verdicts(getattr(checks, exercise), cases)


def test_wrong_nuclei_are_diagnosed():
    assert_verdicts(checks.nucleus, NUCLEI)


@pytest.mark.parametrize("exercise", RIGHT)
def test_other_right_answers_pass(exercise):
    answers = [edited(exercise), *RIGHT[exercise]]
    assert_verdicts(getattr(checks, exercise), [(answer, "passed") for answer in answers])


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("init_weights", edited("init_weights", (OTHER, "parameter.normal_(0.0, 0.01)"))),
        ("gpt", edited("gpt", (f"return {LOSS}", f"return 1.1 * {LOSS}"))),
        ("nucleus", lambda probabilities, p: probabilities**2),
    ],
)
def test_the_right_figure_is_kept_for_a_later_attempt(exercise, answer):
    with pytest.raises(DiagnosisError) as raised:
        getattr(checks, exercise).__wrapped__(answer)
    assert "is right." in raised.value.figures
    assert raised.value.figures not in str(raised.value)
