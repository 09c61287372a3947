"""Checks of notebook 07's parts of GPT-2. Those of sampling are in gpt2_sampling.py."""

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from cs336_course.checks import draws
from cs336_course.checks.gpt2_sampling import generate, nucleus
from cs336_course.checks.parts import (
    NO_FORWARD,
    ON_CPU,
    NoFusedAttention,
    and_then,
    described,
    expect_agreement,
    expect_device,
    expect_gradients,
    expect_like,
    expect_none_of,
    expect_stable,
    module_cases,
    named_parameters,
    same,
    seeded,
    shape,
    twins,
    unchanged,
)
from cs336_course.checks.report import DiagnosisError, expect, part, shown
from cs336_lib import model as library
from cs336_lib.config import GPTConfig
from cs336_lib.hugging_face import hugging_face_tensors

__all__ = [
    "attention",
    "block",
    "causal_self_attention",
    "embed",
    "generate",
    "gpt",
    "init_weights",
    "load_weights",
    "mlp",
    "nucleus",
]

QKV = "batch seq (three head dim) -> three batch head seq dim"
MERGED = "batch head seq dim -> batch seq (head dim)"


# Each part comes with the library's version, which the notebook continues with if the learner's is
# missing.


def library_embed(idx: Tensor, wte: nn.Embedding, wpe: nn.Embedding) -> Tensor:
    """Add the embeddings of tokens (batch, seq) and of their positions."""
    return wte(idx) + wpe(torch.arange(idx.size(1), device=idx.device))


CROSSED = "count positions along the text (axis 1), not along the batch (axis 0)."


def embed_slips(idx: Tensor, wte: nn.Embedding, wpe: nn.Embedding) -> dict[str, Tensor]:
    """Return the results of typical mistakes in `embed`, by diagnosis."""
    places, (batch, seq) = wpe.num_embeddings, idx.shape
    order, token = torch.arange(seq), wte(idx)
    return {
        "the positions are missing; add rows of wpe.": token,
        "the tokens are missing; add rows of wte.": wpe(order).expand(token.shape),
        "wpe is looked up by the place in the text (0, 1, 2, ...), not by the token.": (
            token + wpe(idx % places)
        ),
        "positions begin at 0, not at 1.": token + wpe((order + 1) % places),
        "positions count from the front of the text.": token + wpe(order.flip(0)),
        "every place in the text has its own row; you add row 0 to all.": token + wpe.weight[0],
        "every place in the text has its own row; you add one row to all.": (
            token + wpe.weight[seq - 1]
        ),
        "GPT-2 doesn't multiply the tokens by the root of n_embd; just add the two rows.": (
            token * math.sqrt(wte.embedding_dim) + wpe(order)
        ),
        "add the two, don't multiply them.": token * wpe(order),
        "every text begins at position 0; you continue to count in the next text.": (
            token + wpe(torch.arange(idx.numel()).view(idx.shape) % places)
        ),
        CROSSED: token + wpe(torch.arange(batch) % places)[:, None],
    }


@part(
    library_embed,
    "A text has 3 tokens. Which rows of wpe do you need, and does it matter which tokens they are?",
)
def embed(answer: Callable[[Tensor, nn.Embedding, nn.Embedding], Tensor]) -> None:
    """Check `embed(idx, wte, wpe)` on values, gradients and another device."""
    bounds = {"batch": (1, 5), "seq": (2, 12), "width": (2, 9), "vocab": (2, 40), "spare": (1, 9)}
    drawn = [(c.batch, c.seq, c.width, c.vocab, c.seq + c.spare) for c in draws.sizes(2, **bounds)]
    # batch, seq, width, and the rows of wte and wpe
    cases = [(3, 5, 7, 13, 13), (1, 1, 4, 23, 6), (2, 40, 1, 9, 40), *drawn]
    texts = and_then(cases, lambda case: f"a batch of shape {case[:2]} and {case[4]} positions")
    for seed, ((batch, seq, width, vocab, places), wrong) in enumerate(texts):
        with seeded(seed):
            dtype = {1: torch.bfloat16, 2: torch.float64}.get(seed, torch.float32)
            tables = (nn.Embedding(rows, width, dtype=dtype) for rows in (vocab, places))
            wte, wpe = tables
            idx = torch.randint(vocab, (seq, batch)).T
        right = library_embed(idx, wte, wpe)
        try:
            with unchanged(idx=idx, wte=wte.weight, wpe=wpe.weight):
                got = answer(idx, wte, wpe)
        except RuntimeError as error:
            whole, crossed = (f"tensor b ({size})" in str(error) for size in (places, batch))
            expect(not whole, "the text is shorter than wpe; take its first rows.")
            expect(not crossed, CROSSED)
            raise
        expect_like(got, right)
        expect_none_of(got, embed_slips(idx, wte, wpe), right)
        expect(same(got, right), wrong)
        pairs = {"wte": (wte.weight, wte.weight), "wpe": (wpe.weight, wpe.weight)}
        expect_gradients(pairs, got, right)
    tables = [nn.Embedding(rows, 4, device="meta") for rows in (23, 13)]
    expect_device_of_ids(lambda ids: answer(ids, *tables), tables)


def expect_device_of_ids(call: Callable[[Tensor], Any], tables: list[nn.Embedding]) -> None:
    """Fail if code for ids on another device looks up ids on the CPU, which meta tables allow."""
    devices: set[str] = set()
    for table in tables:
        table.register_forward_pre_hook(lambda _, inputs: devices.add(inputs[0].device.type))
    ids = torch.zeros(2, 3, dtype=torch.long, device="meta")
    expect_device(lambda: call(ids), reads_values=True)
    expect("cpu" not in devices, ON_CPU)


def library_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention for tensors of shape (batch, head, seq, head_dim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def scale_slips(raw: Tensor, masked: Callable[..., Tensor], dim: int) -> dict[str, Tensor]:
    """Return the results of wrong scales, by diagnosis."""
    _, head, seq, _ = raw.shape
    other = "head_dim is the last axis of q; you scale by the size of another axis"
    return {
        "divide the scores by the square root of head_dim.": masked(raw),
        "divide by the square root of head_dim, not by head_dim itself.": masked(raw / dim),
        "divide the scores by the root; you multiply.": masked(raw * math.sqrt(dim)),
        f"{other} (seq).": masked(raw / math.sqrt(seq)),
        f"{other} (head).": masked(raw / math.sqrt(head)),
        "each head scales by its own width, head_dim, not by the width of all heads.": (
            masked(raw / math.sqrt(head * dim))
        ),
        "head_dim isn't always 64; read it from q.": masked(raw / 8),
    }


def attention_slips(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Return the results of typical mistakes in causal attention, by diagnosis."""
    raw, dim = q @ k.mT, q.size(-1)
    scores = raw / math.sqrt(dim)
    ones = torch.ones_like(raw[0, 0], dtype=torch.bool)
    future = ones.triu(1)

    def masked(scores: Tensor, mask: Tensor = future, axis: int = -1) -> Tensor:
        return scores.masked_fill(mask, -math.inf).softmax(axis) @ v

    return scale_slips(raw, masked, dim) | {
        "there is no mask, so each position sees the future.": scores.softmax(-1) @ v,
        "mask before the softmax. Afterwards, a row of weights no longer adds up to 1.": (
            scores.softmax(-1).masked_fill(future, 0) @ v
        ),
        "a score of 0 isn't a weight of 0, since exp(0) = 1. Fill the future's scores with -inf.": (
            scores.tril().softmax(-1) @ v
        ),
        "that is inverted, since you mask the past and keep the future.": (
            masked(scores, ones.tril(-1))
        ),
        "each position also sees the next one; mask triu(1), not triu(2).": (
            masked(scores, ones.triu(2))
        ),
        "the softmax runs over the keys, which are the last axis of q @ k.mT.": (
            masked(scores, axis=-2)
        ),
        "rows must be queries and columns keys, as in q @ k.mT, not k @ q.mT.": masked(scores.mT),
        "every text needs its own scores; you use those of the first text.": masked(scores[:1]),
        "every head needs its own scores; you use those of the first head.": masked(scores[:, :1]),
    }


def expect_no_nan(got: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Fail if there is nan in the result of attention. Diagnose known mistakes."""
    if not got.isnan().any():
        return
    scores = q @ k.mT / math.sqrt(q.size(-1))
    ones = torch.ones_like(scores[0, 0], dtype=torch.bool)
    slips = {
        "you get nan, since the first position may see nothing at all. Each may look at itself, so "
        "mask triu(1).": scores.masked_fill(ones.triu(0), -math.inf),
        "you get nan, since -inf times a negative score is +inf. Set the future's scores to -inf, "
        "as masked_fill does.": scores * torch.where(ones.triu(1), -math.inf, 1.0),
        "you get nan, since 0 times -inf is nan. Set the future's scores to -inf, as masked_fill "
        "does.": scores + ones.triu(1) * -math.inf,
    }
    for diagnosis, masked in slips.items():
        wrong = masked.softmax(-1) @ v
        expect(not same(got.nan_to_num(99.0), wrong.nan_to_num(99.0)), diagnosis)
    raise DiagnosisError(
        "you get nan, so somewhere a softmax sees only -inf, or +inf. Look at your scores after "
        "the mask."
    )


def expect_zero_scores(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Expect the right result where scores of the past are 0 by chance."""
    with seeded(4):
        q, k, v = torch.randn(3, 2, 2, 5, 4)
    q[0, 0, 2], k[1, 1, 1] = 0, 0
    expect(
        same(answer(q, k, v), library_attention(q, k, v)),
        "right, until a score of the past is exactly 0. Such a score counts, too; mask by the "
        "place, not by the value.",
    )


def expect_half(answer: Callable[[Tensor, Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
    """Expect that attention in a dtype of 16 bits works, and keeps it."""
    name = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    with seeded(5):
        q, k, v = torch.randn(3, 2, 2, 5, 4).to(dtype)
    try:
        got = answer(q, k, v)
    except RuntimeError as error:
        words = "dtype", "data type", "scalar type"
        mixed_dtypes = any(each in str(error) for each in words)
        expect(
            not mixed_dtypes,
            f"right in fp32, but an error in {name}, where something you create is fp32. Use a "
            "mask of bool, or one with the dtype of the scores.",
        )
        expect(
            "without overflow" not in str(error),
            f"right in fp32, but an error in {name}, whose numbers end at "
            f"{torch.finfo(dtype).max:,.6g}. Fill the future with -inf, which every dtype has.",
        )
        raise
    right = library_attention(q, k, v)
    expect_like(got, right)
    near = (got - right).abs().max() < 0.1
    expect(near, f"right in fp32, but far off in {name}.")


OVERFLOWS = (
    "you get nan for large scores. Take the softmax of the masked scores; exp alone overflows, "
    "and a mask after the softmax may leave weights of 0 only."
)
TOO_HIGH = (
    "right for small scores, but not for scores near 10,000. Fill the future with -inf, which is "
    "below every score."
)


def expect_large_scores(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Expect the right result for scores near 30,000, which are whole numbers without rounding."""
    with seeded(3):
        q, k, v = (size * torch.randn(2, 2, 5, 4) for size in (1000, 30, 1))
    q, k = q.round(), k.round()
    got, right = answer(q, k, v), library_attention(q, k, v)
    expect(got.isfinite().all(), OVERFLOWS)
    expect(same(got, right), TOO_HIGH)


@part(
    library_attention,
    "A text has 2 tokens. Write down its 2 x 2 scores. Which of the weights must be 0?",
)
def attention(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Check `attention(q, k, v)`, which is written by hand."""
    bounds = {"batch": (1, 4), "head": (1, 5), "seq": (2, 14), "dim": (2, 9)}
    drawn = [(c.batch, c.head, c.seq, c.dim) for c in draws.sizes(2, **bounds)]
    cases = [(2, 3, 5, 4), (1, 2, 9, 6), (3, 1, 1, 8), (1, 4, 3, 1), *drawn, (1, 1, 270, 2)]
    texts = and_then(cases, lambda case: f"q of shape {case}")
    for seed, ((batch, head, seq, dim), wrong) in enumerate(texts):
        with seeded(seed):  # transposed, so not contiguous
            parts = [torch.randn(batch, seq, head, dim).transpose(1, 2) for _ in range(3)]
        q, k, v = (tensor.requires_grad_() for tensor in parts)
        with NoFusedAttention(), unchanged(q=q, k=k, v=v):
            got = answer(q, k, v)
        right = library_attention(q, k, v)
        square = (batch, head, seq, seq)
        is_square = isinstance(got, Tensor) and got.shape == square != right.shape
        expect(not is_square, "you return the weights of the mean; multiply them with v.")
        expect_like(got, right)
        expect_no_nan(got, q, k, v)
        expect_none_of(got, attention_slips(q, k, v), right)
        expect(same(got, right), wrong)
        expect_gradients({"q": (q, q), "k": (k, k), "v": (v, v)}, got, right)
    expect_zero_scores(answer)
    expect_large_scores(answer)
    for dtype in (torch.bfloat16, torch.float16):
        expect_half(answer, dtype)
    expect_device(lambda: answer(*torch.zeros(3, 2, 2, 3, 4, device="meta")))


def mixed(
    layer: Any,
    x: Tensor,
    split: str = QKV,
    merge: str = MERGED,
    order: tuple[int, int, int] = (0, 1, 2),
    heads: int = 0,
    **options: Any,
) -> Tensor:
    """Return the output of attention before the projection, with optional mistakes."""
    parts = rearrange(layer.c_attn(x), split, three=3, head=heads or layer.n_head)
    q, k, v = (parts[i] for i in order)
    y = F.scaled_dot_product_attention(q, k, v, **({"is_causal": True} | options))
    return rearrange(y, merge)


def unsplit(layer: Any, x: Tensor, merge: str = MERGED) -> Tensor:
    """View q, k and v as heads without moving the axis of the heads."""
    (batch, seq, width), head = x.shape, layer.n_head
    q, k, v = (p.reshape(batch, head, seq, width // head) for p in layer.c_attn(x).split(width, -1))
    return rearrange(library_attention(q, k, v), merge)


ATTENTION_SLIPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "c_proj is never used.": lambda layer, x: mixed(layer, x),
    "each position sees the future; use `attention`, which is causal.": lambda layer, x: (
        layer.c_proj(mixed(layer, x, is_causal=False))
    ),
    "c_attn's output holds the queries, then the keys, then the values; you mixed them up.": (
        lambda layer, x: layer.c_proj(mixed(layer, x, order=(1, 0, 2)))
    ),
    "c_attn's output holds the queries, then the keys, then the values: q, k, v.": (
        lambda layer, x: layer.c_proj(mixed(layer, x, order=(2, 1, 0)))
    ),
    "c_attn's output holds the keys before the values; you swapped them.": (
        lambda layer, x: layer.c_proj(mixed(layer, x, order=(0, 2, 1)))
    ),
    "in c_attn's output all queries come first, then all keys: (three head head_dim).": (
        lambda layer, x: layer.c_proj(
            mixed(layer, x, "batch seq (head three dim) -> three batch head seq dim")
        )
    ),
    "a head's numbers lie side by side: (head head_dim), not (head_dim head).": lambda layer, x: (
        layer.c_proj(mixed(layer, x, "batch seq (three dim head) -> three batch head seq dim"))
    ),
    "when you merge, a head's numbers stay side by side: (head head_dim).": lambda layer, x: (
        layer.c_proj(mixed(layer, x, merge="batch head seq dim -> batch seq (dim head)"))
    ),
    "you view the output as heads without moving axes, which mixes positions and heads. Split "
    "the last axis, then transpose.": lambda layer, x: layer.c_proj(unsplit(layer, x)),
    "you reshape straight to (batch, head, seq, head_dim), which mixes positions and heads, and "
    "back. Split the last axis, then transpose.": lambda layer, x: layer.c_proj(
        unsplit(layer, x, "batch head seq dim -> batch head seq dim").reshape(x.shape)
    ),
    "a head's numbers lie side by side, when you split and when you merge: (head head_dim), not "
    "(head_dim head).": lambda layer, x: layer.c_proj(
        mixed(
            layer,
            x,
            "batch seq (three dim head) -> three batch head seq dim",
            "batch head seq dim -> batch seq (dim head)",
        )
    ),
    "you merge the heads without moving them back next to head_dim first.": lambda layer, x: (
        layer.c_proj(
            mixed(layer, x, merge="batch head seq dim -> batch head seq dim").reshape(x.shape)
        )
    ),
    "the heads aren't moved in front of the positions, so a position attends over its own heads. "
    "Transpose to (batch, head, seq, head_dim).": lambda layer, x: layer.c_proj(
        mixed(
            layer,
            x,
            "batch seq (three head dim) -> three batch seq head dim",
            "batch seq head dim -> batch seq (head dim)",
        )
    ),
    "that is a single head; split c_attn's output into n_head heads.": lambda layer, x: (
        layer.c_proj(mixed(layer, x, heads=1))
    ),
    "n_head isn't always 12; read it from the config.": lambda layer, x: layer.c_proj(
        mixed(layer, x, heads=layer.n_head if x.size(-1) % 12 else 12)
    ),
    "each head scales by its own width, head_dim, not by n_embd.": lambda layer, x: layer.c_proj(
        mixed(layer, x, scale=x.size(-1) ** -0.5)
    ),
    "the scores aren't scaled; `attention` does it for you.": lambda layer, x: layer.c_proj(
        mixed(layer, x, scale=1.0)
    ),
    "the scores are scaled twice; `attention` does it already.": lambda layer, x: layer.c_proj(
        mixed(layer, x, scale=layer.n_head / x.size(-1))
    ),
    "you add x; the block does that.": lambda layer, x: x + layer.c_proj(mixed(layer, x)),
}


@part(
    library.CausalSelfAttention,
    "With n_embd 4 and n_head 2, c_attn gives 12 numbers per token. Which of them are the keys of "
    "head 1?",
)
def causal_self_attention(answer: Callable[[GPTConfig], nn.Module]) -> None:
    """Check the class `CausalSelfAttention` on names, values and gradients."""
    long = shape(1, 2, block_size=1030), 1, 1030  # GPT-2's mask has 1024
    cases = and_then([*module_cases(0), long], described)
    for seed, ((config, batch, seq), wrong) in enumerate(cases):
        mine, right = twins(answer, library.CausalSelfAttention, config, seed)
        x = draws.normal(batch, seq, config.n_embd, seed=seed)
        expect_agreement(mine, right, x, ATTENTION_SLIPS, wrong)
    both = twins(answer, library.CausalSelfAttention, shape(2, 8), seed=9)
    mine, right = (each.double() for each in both)
    x = 300 * draws.normal(2, 6, 8, seed=9).double()  # exp of their scores overflows in fp64, too
    with torch.no_grad():
        got, want = mine(x), right(x)
    expect(got.isfinite().all(), OVERFLOWS)
    expect(same(got, want), TOO_HIGH)


def squared_gelu(h: Tensor) -> Tensor:
    """Return GELU's tanh formula with a square instead of the cube."""
    return h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**2))) / 2


MLP_SLIPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "GPT-2 was trained with GELU's tanh formula, F.gelu(..., approximate='tanh').": lambda mlp, x: (
        mlp.c_proj(F.gelu(mlp.c_fc(x)))
    ),
    "that is the sigmoid formula of GELU; GPT-2 has the tanh formula.": lambda mlp, x: mlp.c_proj(
        mlp.c_fc(x) * (1.702 * mlp.c_fc(x)).sigmoid()
    ),
    "GELU's tanh formula has a cube between c_fc and c_proj, h + 0.044715 * h**3; you square h.": (
        lambda mlp, x: mlp.c_proj(squared_gelu(mlp.c_fc(x)))
    ),
    "the nonlinearity is ReLU; GPT-2 has GELU.": lambda mlp, x: mlp.c_proj(mlp.c_fc(x).relu()),
    "that is SiLU; GPT-2 has GELU.": lambda mlp, x: mlp.c_proj(F.silu(mlp.c_fc(x))),
    "there is no nonlinearity between the two layers.": lambda mlp, x: mlp.c_proj(mlp.c_fc(x)),
    "GELU belongs between the two layers, not after them.": lambda mlp, x: F.gelu(
        mlp.c_proj(mlp.c_fc(x)), approximate="tanh"
    ),
    "GELU belongs between the two layers, not before them.": lambda mlp, x: mlp.c_proj(
        mlp.c_fc(F.gelu(x, approximate="tanh"))
    ),
    "there is one GELU, between the layers; you have a second one.": lambda mlp, x: F.gelu(
        mlp(x), approximate="tanh"
    ),
    "you add x; the block does that.": lambda mlp, x: x + mlp(x),
}


@part(
    library.MLP,
    "With n_embd 2, how many numbers does a token have after c_fc, and how many after c_proj?",
)
def mlp(answer: Callable[[GPTConfig], nn.Module]) -> None:
    """Check the class `MLP` on names, values and gradients."""
    others = [(shape(1, 1), 2, 1), (shape(1, 7), 1, 4), *list(module_cases(1))[2:]]
    cases = and_then(
        [(shape(3, 24), 3, 5), *others],
        lambda case: f"x of shape {(*case[1:], case[0].n_embd)}",
    )
    for seed, ((config, batch, seq), wrong) in enumerate(cases):
        mine, right = (each.double() for each in twins(answer, library.MLP, config, seed))
        x = 2 * draws.normal(batch, seq, config.n_embd, seed=seed).double()
        got = mine(x)
        expect_like(got, x, NO_FORWARD)
        exact = right.c_proj(F.gelu(right.c_fc(x)))  # less than fp32's tolerance away
        expect(not torch.allclose(got, exact, 1e-9, 1e-9), next(iter(MLP_SLIPS)))
        want = right(x)
        expect(
            not same(got, want) or torch.allclose(got, want, 1e-6, 1e-6),
            "nearly right, so a constant of GELU is slightly off. They are sqrt(2 / pi) and "
            "0.044715.",
        )
        expect_agreement(mine, right, x, MLP_SLIPS, wrong)


def post_norm(block: Any, x: Tensor) -> Tensor:
    """Apply a block with post-norm, as in the original transformer of 2017."""
    x = block.ln_1(x + block.attn(x))
    return block.ln_2(x + block.mlp(x))


def after(block: Any, x: Tensor) -> Tensor:
    """Return the stream after attention."""
    return x + block.attn(block.ln_1(x))


def normalized_stream(block: Any, x: Tensor) -> Tensor:
    """Apply a block that adds to the normalized copy instead of the residual stream."""
    x = block.ln_1(x)
    x = block.ln_2(x + block.attn(x))
    return x + block.mlp(x)


BLOCK_SLIPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "those norms stand on the stream (post-norm); GPT-2 normalizes what a sub-layer reads.": (
        post_norm
    ),
    "the MLP is never applied.": after,
    "attention is never applied.": lambda b, x: x + b.mlp(b.ln_2(x)),
    "nothing is added; each sub-layer adds to x.": lambda b, x: b.mlp(b.ln_2(b.attn(b.ln_1(x)))),
    "attention's output replaces x; add it.": lambda b, x: (
        b.attn(b.ln_1(x)) + b.mlp(b.ln_2(b.attn(b.ln_1(x))))
    ),
    "the MLP's output replaces x; add it.": lambda b, x: b.mlp(b.ln_2(after(b, x))),
    "the MLP reads x from before attention; it should read the sum.": lambda b, x: (
        after(b, x) + b.mlp(b.ln_2(x))
    ),
    "the MLP's output is added to x from before attention, so attention's is lost.": lambda b, x: (
        x + b.mlp(b.ln_2(after(b, x)))
    ),
    "you add to the normalized copy; add to x itself.": normalized_stream,
    "ln_1 is used twice; the MLP reads ln_2.": lambda b, x: (
        after(b, x) + b.mlp(b.ln_1(after(b, x)))
    ),
    "the norms are never used.": lambda b, x: x + b.attn(x) + b.mlp(x + b.attn(x)),
    "ln_1 is never used.": lambda b, x: x + b.attn(x) + b.mlp(b.ln_2(x + b.attn(x))),
    "ln_2 is never used.": lambda b, x: after(b, x) + b.mlp(after(b, x)),
    "attention comes first, then the MLP.": lambda b, x: (
        x + b.mlp(b.ln_2(x)) + b.attn(b.ln_1(x + b.mlp(b.ln_2(x))))
    ),
    "the norms are swapped; attention reads ln_1, and the MLP reads ln_2.": lambda b, x: (
        x + b.attn(b.ln_2(x)) + b.mlp(b.ln_1(x + b.attn(b.ln_2(x))))
    ),
}


@part(
    library.Block,
    "Suppose attention and the MLP both return 0. What should the block return for x?",
)
def block(answer: Callable[[GPTConfig], nn.Module]) -> None:
    """Check the class `Block` on names, values and gradients."""
    cases = and_then(module_cases(2), described)
    for seed, ((config, batch, seq), wrong) in enumerate(cases):
        mine, right = twins(answer, library.Block, config, seed)
        x = 2 * draws.normal(batch, seq, config.n_embd, seed=seed) + 1
        expect_agreement(mine, right, x, BLOCK_SLIPS, wrong)


def expect_mode(model: nn.Module, training: bool) -> None:
    """Fail if a function has switched a model between training and evaluation."""
    is_same = all(module.training == training for module in model.modules())
    expect(is_same, "your function calls model.eval() or model.train(); leave that to the caller.")


def library_init_weights(model: library.GPT) -> None:
    """Draw GPT-2's initial weights, with a smaller std where a block writes to the stream."""
    seed = int(torch.randint(2**62, (), device="cpu"))
    for name, parameter in model.named_parameters():
        library.GPT.init_parameter(model, name, parameter, seed)


def std_slips(n_layer: int) -> dict[float, str]:
    """Return the diagnoses of wrong stds of a c_proj weight, by std."""
    return {
        0.02: "it writes to the stream, so its 0.02 is divided by sqrt(2 n_layer).",
        0.02 / math.sqrt(n_layer): "a block writes to the stream twice, so take sqrt(2 n_layer).",
        0.02 / (2 * n_layer): "variances add, so divide by the square root of 2 n_layer.",
        0.02 / n_layer: "divide by the square root of 2 n_layer, not by n_layer.",
        0.02 * math.sqrt(2 * n_layer): "divide by sqrt(2 n_layer); you multiply.",
        0.02 / math.sqrt(24): "n_layer isn't always 12; read it from model.config.",
    }


def expect_std(name: str, tensor: Tensor, n_layer: int) -> None:
    """Fail unless a random weight has the expected std. Diagnose known mistakes."""
    std, shrunk = tensor.std().item(), 0.02 / math.sqrt(2 * n_layer)
    right = shrunk if "c_proj" in name else 0.02

    def is_near(other: float) -> bool:
        return abs(std / other - 1) < 0.06

    expect(std > 0, f"{name} is the same number everywhere; draw it.")
    is_drawn = tensor.unique().numel() > tensor.numel() / 2
    expect(is_drawn, f"numbers repeat within {name}; draw each of them.")
    if not is_near(right):
        if "c_proj" in name:
            for wrong, diagnosis in std_slips(n_layer).items():
                expect(not is_near(wrong), f"{name}: {diagnosis}")
        elif is_near(shrunk):
            raise DiagnosisError(
                f"{name} doesn't write to the stream; only the c_proj weights are smaller."
            )
        expect(not is_near(right**2), f"{name}: normal_ takes the std, not the variance.")
        figures = f"You get {shown(round(std, 4))}, and {shown(round(right, 4))} is right."
        raise DiagnosisError(f"the std of {name} is off for n_layer = {n_layer}.", figures)
    expect(abs(tensor.mean().item()) < 0.2 * right, f"{name}: the mean should be 0.")
    within = (tensor.abs() < std).float().mean().item()  # 0.68 if the numbers are normal
    expect(abs(within - 0.6827) < 0.04, f"{name} isn't drawn from a normal distribution.")


def expect_initialized(model: library.GPT) -> None:
    """Fail unless every parameter is GPT-2's, given that all were 7 before."""
    config = model.config
    starts: list[Tensor] = []
    for name, parameter in model.named_parameters():
        tensor = parameter.detach()
        is_drawn = name.endswith("bias") and tensor.numel() > 1 and tensor.std() > 0
        expect(not is_drawn, f"{name} is drawn; every bias begins at 0.")
        expect(not (tensor == 7).all(), f"{name} is left as it was.")
        expect(not (tensor == 7).any(), f"a part of {name} is left as it was.")
        expect(tensor.dtype == torch.float32, f"{name} is {tensor.dtype} now; keep its dtype.")
        if name.endswith("bias"):
            expect((tensor == 0).all(), f"{name} should be 0.")
        elif ".ln_" in name:
            expect((tensor == 1).all(), f"{name} is a norm's gain; it begins at 1.")
        else:
            expect_std(name, tensor[: config.vocab_size], config.n_layer)
            start = tensor.flatten()[:8] / tensor.flatten()[0]
            repeated = any(same(start, earlier) for earlier in starts)
            expect(
                not repeated,
                f"{name} gets the numbers of another weight; don't seed within the function.",
            )
            starts.append(start)
    tied = model.lm_head.weight is model.transformer.wte.weight
    expect(tied, "lm_head and wte are no longer one tensor; change the weights in place.")
    trained = all(parameter.requires_grad for parameter in model.parameters())
    expect(trained, "the parameters no longer require gradients; change them in place.")


@part(
    library_init_weights,
    "Each block adds to the stream twice, each time with variance 1. What variance do n_layer "
    "blocks add?",
)
def init_weights(answer: Callable[[nn.Module], None]) -> None:
    """Check `init_weights(model)` by the spread of every parameter, at three depths."""
    cases = (3, 2, 64), (1, 4, 100), (5, 5, 80)
    for seed, (n_layer, n_head, n_embd) in enumerate(cases):
        with seeded(seed):
            config = shape(n_head, n_embd, n_layer, block_size=70, vocab_size=90)
            model = library.GPT(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(7.0)
            try:
                answer(model)
            except RuntimeError as error:
                in_place = "in-place" in str(error)
                expect(not in_place, "keep @torch.no_grad(), since weights are changed in place.")
                raise
            expect_initialized(model)
            expect_mode(model, True)
            first = model.lm_head.weight[: config.vocab_size].clone()
            answer(model)
            expect(
                not torch.equal(first, model.lm_head.weight[: config.vocab_size]),
                "two calls give the same numbers; leave the seed to the caller.",
            )
    with torch.device("meta"):
        elsewhere = library.GPT(config)
    expect_device(lambda: answer(elsewhere))


def expect_assembly(model: Any) -> None:
    """Expect that a new GPT has distinct blocks, a tied output matrix and GPT-2's first weights."""
    expect(hasattr(model, "transformer"), "self.transformer is missing.")
    expect(hasattr(model, "lm_head"), "self.lm_head is missing.")
    expect(hasattr(model, "config"), "keep the config as self.config; `generate` reads it.")
    names = named_parameters(model)
    expect("lm_head.bias" not in names, "lm_head has no bias in GPT-2; pass bias=False.")
    for name in ("wte", "wpe", "h", "ln_f"):
        present = name in dict(model.transformer.named_children())
        expect(present, f"self.transformer has no {name}; blocks belong into an nn.ModuleList.")
    wte, head = model.transformer.wte.weight, model.lm_head.weight
    rows = model.config.padded_vocab_size
    expect(len(wte) == rows, f"wte has {len(wte)} rows; padded_vocab_size is {rows}.")
    expect(head is wte, "lm_head and wte must be one matrix, so self.lm_head.weight = wte.weight.")
    expect("transformer.wte.weight" in names, "create self.transformer before self.lm_head.")
    blocks = list(model.transformer.h)
    n_layer = model.config.n_layer
    expect(len(blocks) == n_layer, f"{len(blocks)} blocks; the config's n_layer is {n_layer}.")
    distinct = len({id(block) for block in blocks})
    expect(distinct == n_layer, "all blocks are one object; call Block(config) for each.")
    std = wte[: model.config.vocab_size].std().item()
    expect(0.012 < std < 0.03, "wte doesn't have GPT-2's std; call init_weights at the end.")
    for name, parameter in names.items():
        if name.endswith("bias"):
            at_zero = not parameter.any()
            expect(at_zero, f"{name} isn't 0 at first; call init_weights when all parts exist.")


def gpt_slips(model: Any, idx: Tensor) -> dict[str, Tensor]:
    """Return the logits of a GPT with a known mistake, by diagnosis."""
    tree = model.transformer
    tokens, start = tree.wte(idx), library_embed(idx, tree.wte, tree.wpe)

    def logits(x: Tensor, blocks: Any = tree.h, norm: Any = tree.ln_f) -> Tensor:
        for each in blocks:
            x = each(x)
        return model.lm_head(norm(x))[..., : model.config.vocab_size]

    return {
        "ln_f, the norm after the last block, is missing.": logits(start, norm=lambda x: x),
        "ln_f stands after the last block, not before the first.": (
            logits(tree.ln_f(start), norm=lambda x: x)
        ),
        "the blocks' outputs are not used; write x = block(x).": logits(start, ()),
        "only the last block counts; write x = block(x).": logits(start, tree.h[-1:]),
        "the blocks run in the reverse order.": logits(start, list(tree.h)[::-1]),
        "the positions are missing; use `embed`.": logits(tokens),
        "GPT-2 doesn't multiply the embeddings by the root of n_embd.": (
            logits(start + (math.sqrt(model.config.n_embd) - 1) * tokens)
        ),
        "probabilities are returned; return the logits.": logits(start).softmax(-1),
        "log-probabilities are returned; return the logits.": logits(start).log_softmax(-1),
    }


def loss_slips(model: Any, idx: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return wrong losses, by the diagnosis."""
    logits, vocab = model(idx), model.config.vocab_size
    padded = F.pad(logits, (0, model.config.padded_vocab_size - vocab))
    flat, right = logits.flatten(0, 1), targets.flatten()
    shifted = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())
    return {
        "the loss is the mean over all tokens, not the sum.": F.cross_entropy(
            flat, right, reduction="sum"
        ),
        "the targets are shifted already; don't shift them again.": shifted,
        "cross_entropy takes logits, not probabilities.": F.cross_entropy(flat.softmax(-1), right),
        "the loss counts the padded rows; cut the logits to vocab_size first.": F.cross_entropy(
            padded.flatten(0, 1), right
        ),
        "the sign is wrong.": -F.cross_entropy(flat, right),
        "the loss counts the last position only.": F.cross_entropy(logits[:, -1], targets[:, -1]),
        "id 0 is a token as any other; don't ignore it.": (
            F.cross_entropy(flat, right, ignore_index=0)
        ),
        "the loss is in bits; leave it in nats.": F.cross_entropy(flat, right) / math.log(2),
    }


def expect_logits(mine: Any, right: Any, idx: Tensor, wrong: str) -> None:
    """Fail unless the logits of two models agree."""
    with unchanged(idx=idx):
        got = mine(idx)
    want, config = right(idx), right.config
    expect(not isinstance(got, tuple), "without targets return the logits alone, not a pair.")
    found = tuple(got.shape) if isinstance(got, Tensor) else ()
    batch, seq = idx.shape
    is_padded = found == (batch, seq, config.padded_vocab_size) != want.shape
    expect(
        not is_padded,
        "the logits have the padded vocabulary's size; cut them to config.vocab_size.",
    )
    is_last = found in {(batch, 1, config.vocab_size), (batch, config.vocab_size)} and seq > 1
    expect(not is_last, "return the logits of all positions, not only of the last.")
    expect_like(got, want, NO_FORWARD)
    expect_none_of(got, gpt_slips(right, idx), want)
    expect_stable(lambda: mine(idx), mine, got)
    expect(same(got, want), f"with GPT-2's weights the logits are {wrong}")
    expect(
        same(mine(idx.flip(1)), right(idx.flip(1))),
        "right for the first text, but not for a second one; keep nothing of an earlier call.",
    )


def expect_loss(mine: Any, right: Any, idx: Tensor, targets: Tensor, wrong: str) -> None:
    """Fail unless the losses and gradients of two models agree."""
    try:
        with unchanged(idx=idx, targets=targets):
            loss = mine(idx, targets)
    except RuntimeError as error:
        expect(".reshape" not in str(error), "targets may be a slice; use flatten, not view.")
        raise
    expect(not isinstance(loss, tuple), "with targets return the loss alone, not a pair.")
    want = right(idx, targets)
    expect_like(loss, want, "with targets `forward` returns None.")
    expect_none_of(loss, loss_slips(right, idx, targets), want)
    figures = f"You get {shown(loss.item())}, and {shown(want.item())} is right."
    if not same(loss, want):
        raise DiagnosisError(f"the loss is {wrong}", figures)
    ours, theirs = named_parameters(mine), named_parameters(right)
    expect_gradients({name: (ours[name], theirs[name]) for name in theirs}, loss, want)


@part(
    library.GPT,
    "With batch 2, seq 3, n_embd 4 and vocab_size 5, which shapes do the embeddings, each block's "
    "output and the logits have?",
)
def gpt(answer: Callable[[GPTConfig], nn.Module]) -> None:
    """Check the class `GPT` on names, tying, logits, loss and gradients."""
    exact = shape(1, 6, n_layer=1, block_size=5, vocab_size=64)  # no padded rows
    more = (shape(5, 20, n_layer=3), 3, 11), (exact, 1, 1), *list(module_cases(3))[2:]
    cases = and_then(
        [(shape(3, 24), 2, 7), *more],
        lambda case: (
            f"ids of shape {case[1:]}, n_layer {case[0].n_layer} and n_head {case[0].n_head}"
        ),
    )
    for seed, ((config, batch, seq), wrong) in enumerate(cases):
        mine, right = twins(answer, library.GPT, config, seed, expect_assembly)
        with torch.no_grad():  # padded rows count in neither
            right.lm_head.weight[config.vocab_size :] = 0
            right.lm_head.weight *= 1 + 20 * seed  # the logits may be large
            mine.get_parameter("lm_head.weight").copy_(right.lm_head.weight)
        with seeded(seed):
            tokens = torch.randint(config.vocab_size, (batch, seq + 1))
            tokens[0, 1] = 0
        idx, targets = tokens[:, :-1], tokens.clone()[:, 1:]  # neither is contiguous
        expect_logits(mine, right, idx, wrong)
        expect_loss(mine, right, idx, targets, wrong)
    with seeded(0):
        one, two = answer(config), answer(config)
    expect(
        not torch.equal(one.lm_head.weight, two.lm_head.weight),
        "two new models have the same weights; leave the seed to the caller.",
    )
    mine.to("meta")
    tables = [module for module in mine.modules() if isinstance(module, nn.Embedding)]
    expect_device_of_ids(lambda ids: mine(ids, ids), tables)


@torch.no_grad()
def library_load_weights(model: nn.Module, theirs: Mapping[str, Tensor]) -> None:
    """Copy OpenAI's tensors into the model."""
    ours = named_parameters(model)
    for name, tensor in theirs.items():
        name = "transformer." + name.removeprefix("transformer.")
        if name in ours:
            tensor = tensor.t() if ".c_" in name and name.endswith("weight") else tensor
            ours[name][: len(tensor)] = tensor[: len(ours[name])]


def expect_rows(name: str, got: Tensor, before: Tensor, rows: int, theirs: Tensor) -> None:
    """Fail if a table wasn't copied at all, or its rows beyond the published ones changed."""
    expect(
        len(theirs) == len(before) or not torch.equal(got, before),
        f"{name} isn't copied. The file has {len(theirs)} rows, and the model {len(before)}. Copy "
        "the rows that both have.",
    )
    lm_head = (got[:rows] == 1).all()
    expect(not lm_head, f"{name} holds the file's lm_head.weight; skip that, as the task says.")
    expect(
        torch.equal(got[rows:], before[rows:]),
        f"the rows of {name} that the file doesn't have should stay as they were.",
    )


def expect_loaded(
    model: library.GPT, published: Mapping[str, Tensor], before: Mapping[str, Tensor]
) -> None:
    """Fail unless the model contains the published tensors. Diagnose known mistakes.

    Args:
        model: The learner's loaded model.
        published: The file's tensors by name, without a prefix.
        before: The model's parameters before loading.
    """
    tied = model.lm_head.weight is model.transformer.wte.weight
    expect(tied, "lm_head and wte are no longer one tensor; copy into the parameters in place.")
    for name, parameter in model.named_parameters():
        theirs = published[name.removeprefix("transformer.")]
        is_linear = ".c_" in name and name.endswith("weight")
        right = (theirs.t() if is_linear else theirs)[: len(parameter)]
        got = parameter.detach()
        expect(got.shape[1:] == right.shape[1:], f"{name} has the shape {tuple(got.shape)} now.")
        expect(
            len(got) == len(before[name]),
            f"{name} has {len(got)} rows now, not {len(before[name])}. Copy into your own tensor.",
        )
        expect(got.dtype == torch.float32, f"{name} is {got.dtype} now; keep its dtype.")
        expect(parameter.requires_grad, f"{name} no longer requires a gradient.")
        if name in ("transformer.wte.weight", "transformer.wpe.weight"):
            expect_rows(name, got, before[name], len(right), theirs)
        got = got[: len(right)]
        expect(
            not (is_linear and right.shape[0] == right.shape[1] and torch.equal(got, theirs)),
            f"{name} isn't transposed. It is square, so comparing shapes doesn't show it; go by "
            "the name.",
        )
        if not is_linear and right.ndim == 2 and right.shape[0] == right.shape[1]:
            turned = torch.equal(got, right.t())
            expect(not turned, f"{name} is a square table, not a linear layer; go by the name.")
        reshaped = theirs.reshape(right.shape) if is_linear else theirs
        expect(
            not (is_linear and torch.equal(got, reshaped)),
            f"{name} has the right shape, but a reshape isn't a transpose.",
        )
        expect(
            "c_attn.bias" not in name or not torch.equal(got, before[name]),
            f"{name} isn't copied. It ends with attn.bias, too, but it isn't a mask.",
        )
        expect(torch.equal(got, right), f"{name} doesn't hold the published numbers.")


def loading_error(error: Exception, theirs: GPTConfig, ours: GPTConfig) -> str:
    """Return the diagnosis for an error in `load_weights`, or "" if its cause is unknown."""
    text = str(error)
    if isinstance(error, KeyError):
        if "attn.bias" in text or "masked_bias" in text:
            return f"{text} is a causal mask, not a weight; leave it out."
        if "lm_head" in text:
            return "lm_head.weight is wte once more; leave it out."
        if "score" in text:
            return f"your model has no {text}; skip what named_parameters() doesn't list."
        return f"there is no {text}. Names may come with or without 'transformer.' in front."
    if "leaf Variable" in text:
        return "keep @torch.no_grad(), since weights are changed in place."
    numbers, width = set(map(int, re.findall(r"\d+", text))), ours.n_embd
    if numbers & {3 * width, 4 * width}:
        return (
            "linear layers are stored as (in, out), and nn.Linear's weight is (out, in). Transpose "
            "those, and no others."
        )
    rows = {theirs.vocab_size, ours.padded_vocab_size, theirs.block_size, ours.block_size}
    if numbers & rows:
        if "dimension 1" in text or f"[{width}, " in text:
            return "wte and wpe are tables, not linear layers; don't transpose them."
        return "tables may have another number of rows; copy the rows that both have."
    return ""


@torch.no_grad()
def move(model: nn.Module) -> None:
    """Add random numbers to all parameters."""
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape), alpha=0.1)


def published_tensors(source: library.GPT, prefix: str, head_first: bool) -> dict[str, Tensor]:
    """Return a model's tensors as files have them, with causal masks and perhaps lm_head."""
    move(source)
    found = hugging_face_tensors(source).items()
    theirs = {
        prefix + name.removeprefix("transformer."): t.detach().clone().contiguous()
        for name, t in found
    }
    for layer in range(source.config.n_layer):
        theirs[f"{prefix}h.{layer}.attn.bias"] = torch.ones(11, 11).tril()[None, None]
        theirs[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    if prefix:
        head = {"lm_head.weight": torch.ones_like(theirs[f"{prefix}wte.weight"])}
        theirs = head | theirs if head_first else theirs | head
        theirs["score.weight"] = torch.ones(2, source.config.n_embd)  # of a classifier
    return theirs


def nothing_copied(answer: Callable[..., None], prefix: str, config: GPTConfig) -> str:
    """Return the diagnosis for a model that is as it was before, by a file with other names."""
    model = library.GPT(config)
    first = [parameter.detach().clone() for parameter in model.parameters()]
    other = "" if prefix else "transformer."
    with suppress(KeyError, RuntimeError):
        answer(model, published_tensors(library.GPT(config), other, head_first=True))
    if all(map(torch.equal, first, model.parameters())):
        return (
            "nothing is copied, not even wte. Write into the model's own tensors, as in "
            "ours[name].copy_(...); an assignment to a name or to an entry of a dict doesn't."
        )
    return (
        "nothing is copied, not even wte. Names may come with or without 'transformer.' in front; "
        "look at each, not only at the first."
    )


def expect_loading(
    answer: Callable[..., None], prefix: str, file: GPTConfig, own: GPTConfig
) -> None:
    """Fail unless `load_weights` copies a file's tensors into a model with the shape `own`."""
    theirs = published_tensors(library.GPT(file), prefix, head_first=file == own)
    model = library.GPT(own)
    move(model)
    before = {name: tensor.clone() for name, tensor in theirs.items()}
    first = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    try:
        answer(model, theirs)
    except (KeyError, RuntimeError) as error:
        diagnosis = loading_error(error, file, own)
        expect(not diagnosis, diagnosis)
        raise
    unchanged = list(theirs) == list(before) and all(
        torch.equal(theirs[name], tensor) for name, tensor in before.items()
    )
    expect(unchanged, "you changed the dictionary `theirs` or its tensors; leave them alone.")
    now = named_parameters(model)
    if all(name in now and torch.equal(now[name], first[name]) for name in first):
        raise DiagnosisError(nothing_copied(answer, prefix, file))
    published = {name.removeprefix("transformer."): tensor for name, tensor in before.items()}
    expect_loaded(model, published, first)
    expect_mode(model, True)
    for tensor in theirs.values():
        tensor.zero_()
    shared = not all(bool(parameter.any()) for parameter in model.parameters())
    expect(
        not shared, "the model shares memory with `theirs`, so training would change both; copy."
    )


@part(
    library_load_weights,
    "A file stores h.0.attn.c_proj.weight as (768, 768) and h.0.mlp.c_fc.weight as (768, 3072). "
    "Which of them do you transpose?",
)
def load_weights(answer: Callable[[nn.Module, dict[str, Tensor]], None]) -> None:
    """Check `load_weights(model, theirs)` on names with and without a prefix, and on tables."""
    file = shape(2, 24, n_layer=3)
    short = shape(2, 24, n_layer=3, block_size=6)
    deep = shape(2, 4, n_layer=11, block_size=5, vocab_size=130)
    square = shape(2, 16, block_size=16, vocab_size=16)  # wpe and wte of the file are square
    cases = (
        ("", file, file),
        ("transformer.", file, file),
        ("", file, short),
        ("transformer.", short, file),
        ("", deep, shape(2, 4, n_layer=11)),
        ("transformer.", square, square),
    )
    for seed, (prefix, theirs, own) in enumerate(cases):
        with seeded(seed):
            expect_loading(answer, prefix, theirs, own)
