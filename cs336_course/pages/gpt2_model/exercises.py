"""Exercises of notebook 07: the parts of GPT-2."""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits, function, normal, sizes
from cs336_course.engine.modules import SAYS, module
from cs336_course.engine.observe import runs_elsewhere
from cs336_course.engine.records import Record
from cs336_lib import model as library
from cs336_lib.config import GPTConfig

NOTEBOOK = "07_gpt2_model"


def shape(n_head: int, n_embd: int, n_layer: int = 2, **others: int) -> GPTConfig:
    """Return a small config with a padded vocabulary."""
    bounds: Any = {"block_size": 11, "vocab_size": 50} | others
    return GPTConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, **bounds)


def ids(*shape: int, below: int, seed: int = 0) -> Tensor:
    """Return random token ids."""
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


# Exercise 1


def library_embed(idx: Tensor, wte: nn.Embedding, wpe: nn.Embedding) -> Tensor:
    """Add the embeddings of tokens (batch, seq) and of their positions."""
    return wte(idx) + wpe(torch.arange(idx.size(1), device=idx.device))


def embed_cases() -> Iterator[Case]:
    """Yield ids and two tables, most of which have more rows than the text has tokens."""
    bounds: Any = {
        "batch": (1, 5),
        "seq": (2, 12),
        "width": (2, 9),
        "vocab": (2, 40),
        "spare": (1, 9),
    }
    drawn = [(s.batch, s.seq, s.width, s.vocab, s.seq + s.spare) for s in sizes(2, **bounds)]
    known = [(3, 5, 7, 13, 13), (1, 1, 4, 23, 6), (2, 40, 1, 9, 40)]
    for seed, (batch, seq, width, vocab, places) in enumerate([*known, *drawn]):
        dtype = {1: torch.bfloat16, 2: torch.float64}.get(seed, torch.float32)
        idx = ids(seq, batch, below=vocab, seed=seed).T  # not contiguous
        wte, wpe = (normal(rows, width, seed=rows).to(dtype) for rows in (vocab, places))
        yield Case("", idx=idx, wte=wte, wpe=wpe)


def table(weight: Tensor) -> nn.Embedding:
    """Return an embedding with this very tensor, so that its gradient is the tensor's."""
    rows, width = weight.shape
    found = nn.Embedding(rows, width, device="meta")
    del found.weight
    found.weight = weight
    return found


def with_tables(answer: Any, case: Case) -> Record:
    """Observe `embed` as a function of three tensors."""
    observe = function(grad="wte wpe", on_other_device=True)
    return observe(lambda idx, wte, wpe: answer(idx, table(wte), table(wpe)), case)


def token_by_token(idx, wte, wpe):
    rows = [[wte.weight[i] + wpe.weight[n] for n, i in enumerate(text)] for text in idx.tolist()]
    return torch.stack([torch.stack(row) for row in rows])


def one_hot_embed(idx, wte, wpe):
    rows = F.one_hot(idx, len(wte.weight)).to(wte.weight.dtype)
    return rows @ wte.weight + wpe.weight[: idx.size(1)]


def embed_by_function(idx, wte, wpe):
    positions = repeat(torch.arange(idx.size(1)).to(idx), "seq -> batch seq", batch=len(idx))
    return torch.add(F.embedding(positions, wpe.weight), F.embedding(idx, wte.weight))


WPE = "wpe(positions)"

embed = Exercise(
    NOTEBOOK,
    "embed",
    embed_cases,
    observe=with_tables,
    library=library_embed,
    smaller="A text has 3 tokens. Which rows of wpe do you need, and does it matter which tokens "
    "they are?",
    axes="batch seq n_embd",
    wrong={
        "the positions are missing; add rows of wpe.": (f" + {WPE}", ""),
        "the tokens are missing; add rows of wte.": (
            f"wte(idx) + {WPE}",
            f"{WPE}.expand(*idx.shape, -1)",
        ),
        "wpe is looked up by the place in the text (0, 1, 2, ...), not by the token.": [
            (WPE, "wpe(idx)"),
            (WPE, "wpe(idx % wpe.num_embeddings)"),
        ],
        "positions begin at 0, not at 1.": [
            (WPE, "wpe((positions + 1) % wpe.num_embeddings)"),
            (WPE, "wpe((positions + 1).clamp(max=wpe.num_embeddings - 1))"),
            (WPE, "wpe(positions + 1)"),
        ],
        "positions count from the front of the text.": (WPE, "wpe(positions.flip(0))"),
        "every place in the text has its own row; you add row 0 to all.": (WPE, "wpe.weight[0]"),
        "every place in the text has its own row; you add one row to all.": (
            WPE,
            "wpe.weight[idx.size(1) - 1]",
        ),
        "GPT-2 doesn't multiply the tokens by the root of n_embd; just add the two rows.": (
            "wte(idx) +",
            "wte(idx) * math.sqrt(wte.embedding_dim) +",
        ),
        "add the two, don't multiply them.": ("+ wpe", "* wpe"),
        "every text begins at position 0; you continue to count in the next text.": (
            WPE,
            "wpe((torch.arange(idx.numel()) % len(wpe.weight)).to(idx).view(idx.shape))",
        ),
        "count positions along the text (axis 1), not along the batch (axis 0).": [
            ("idx.size(1)", "idx.size(0)"),
            edits(("idx.size(1)", "idx.size(0)"), (WPE, f"{WPE}[:, None]")),
        ],
        "the text may be shorter than wpe; take its first rows.": [
            (WPE, "wpe.weight"),
            ("idx.size(1)", "wpe.num_embeddings"),
        ],
    },
    refused=[
        ("wte(idx) +", "torch.zeros(*idx.shape, wte.embedding_dim) + wte(idx) +"),
        (WPE, f"{WPE}.detach()"),
        ("wte(idx)", "wte.weight.data[idx]"),
        (", device=idx.device", ""),
        (WPE, "wpe(positions.clamp(max=4))"),
        (WPE, f"{WPE}.double()"),
        (f"wte(idx) + {WPE}", f"wte(idx).float() + {WPE}.float()"),
        ("+ wpe", "+ 2 * wpe"),
        (f"wte(idx) + {WPE}", f"(wte(idx) + {WPE})[0]"),
        (f"wte(idx) + {WPE}", f"(wte(idx) + {WPE}) / 2"),
        (f"wte(idx) + {WPE}", f"torch.cat((wte(idx), {WPE}.expand(*idx.shape, -1)), -1)"),
        (f"wte(idx) + {WPE}", f"(wte(idx) + {WPE}) * (idx > 0)[..., None]"),
        (WPE, "wpe((idx[:, :, None] == idx[:, None]).int().argmax(-1))"),
        ("idx.size(1)", "8"),
        ("    return", "    idx[:] = 0\n    return"),
        ("    return", "    idx += 1\n    idx -= 1\n    idx %= 2\n    return"),
        ("    return", "    wte.weight.data += 1\n    return"),
        lambda idx, wte, wpe: None,
    ],
    right=[
        lambda idx, wte, wpe: wte.weight[idx] + wpe.weight[: idx.size(1)],
        embed_by_function,
        token_by_token,
        one_hot_embed,
    ],
)


# Exercise 2


def library_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention for tensors of shape (batch, head, seq, head_dim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_cases() -> Iterator[Case]:
    """Yield q, k and v."""
    bounds: Any = {"batch": (1, 4), "head": (1, 5), "seq": (2, 14), "dim": (2, 9)}
    drawn = [(s.batch, s.head, s.seq, s.dim) for s in sizes(2, **bounds)]
    known = [(2, 3, 5, 4), (1, 2, 9, 6), (3, 1, 1, 8), (1, 4, 3, 1)]
    for seed, (batch, head, seq, dim) in enumerate([*known, *drawn, (1, 1, 270, 2)]):
        parts = normal(3, batch, seq, head, dim, seed=seed).transpose(2, 3)  # not contiguous
        yield Case("", **dict(zip("qkv", parts, strict=True)))
    q, k, v = normal(3, 2, 2, 5, 4, seed=7)
    q[0, 0, 2], k[1, 1, 1] = 0, 0
    yield Case("scores of the past that are 0", q=q, k=k, v=v)
    q, k, v = normal(3, 2, 2, 5, 4, seed=8)
    for dtype in (torch.bfloat16, torch.float16):
        yield Case(str(dtype).removeprefix("torch."), q=q.to(dtype), k=k.to(dtype), v=v.to(dtype))
    # Whole numbers, whose scores near 30,000 have no rounding
    yield Case("scores near 30,000", q=(1000 * q).round(), k=(30 * k).round(), v=v)


def looped(q, k, v):
    rows = []
    for i in range(q.size(2)):
        scores = (q[:, :, i : i + 1] * k[:, :, : i + 1]).sum(-1) * q.size(-1) ** -0.5
        rows.append((scores.softmax(-1)[..., None] * v[:, :, : i + 1]).sum(2))
    return torch.stack(rows, dim=2)


def lowest(q, k, v):
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


def mixed(answer: Any, case: Case) -> Record:
    """Observe attention as a function. Rows of NaNs tell where they come from."""
    observe = function(
        grad="q k v",
        on_other_device=True,
        by_hand=[(F, "scaled_dot_product_attention"), (F, "multi_head_attention_forward")],
    )
    record = observe(answer, case)
    result, q = record["result"], case.inputs["q"]
    if case.what or not isinstance(result, Tensor) or result.shape != q.shape or q.size(2) < 3:
        return record
    lost = result.isnan().flatten(3).all(-1).flatten(0, 1)
    if lost[:, 0].all() and not lost[:, 1:].any():
        record["said"] = DIAGONAL
    elif lost[:, :-1].all() and not lost[:, -1].any():
        record["said"] = OTHER_AXIS
    return record


DIAGONAL = (
    "you get nan, since the first position may see nothing at all. Each may look at itself, so "
    "mask triu(1)."
)
OTHER_AXIS = (
    "you get nan, since your softmax runs over the heads or the texts, where the future is -inf in "
    "all of them. The keys are the last axis of (batch, head, query, key)."
)
SCALED = "q @ k.mT / math.sqrt(q.size(-1))"
MASKED = "scores.masked_fill(future, -math.inf)"
WEIGHTS = f"{MASKED}.softmax(-1)"
FUTURE = "torch.ones_like(scores[0, 0], dtype=torch.bool)"
BY_SUM = "return w / w.sum(-1, keepdim=True) @ v"

attention = Exercise(
    NOTEBOOK,
    "attention",
    attention_cases,
    observe=mixed,
    library=library_attention,
    smaller="A text has 2 tokens. Write down its 2 x 2 scores. Which of the weights must be 0?",
    axes="batch head seq head_dim",
    wrong={
        "divide the scores by the square root of head_dim.": (SCALED, "q @ k.mT"),
        "divide by the square root of head_dim, not by head_dim itself.": (
            SCALED,
            "q @ k.mT / q.size(-1)",
        ),
        "divide the scores by the root; you multiply.": (
            SCALED,
            "q @ k.mT * math.sqrt(q.size(-1))",
        ),
        "head_dim is the last axis of q; you scale by the size of another axis (seq).": (
            "q.size(-1)",
            "q.size(2)",
        ),
        "head_dim is the last axis of q; you scale by the size of another axis (head).": (
            "q.size(-1)",
            "q.size(1)",
        ),
        "each head scales by its own width, head_dim, not by the width of all heads.": (
            "q.size(-1)",
            "q.size(1) * q.size(-1)",
        ),
        "head_dim isn't always 64; read it from q.": ("math.sqrt(q.size(-1))", "8"),
        "there is no mask, so each position sees the future.": (MASKED, "scores"),
        "mask before the softmax. Afterwards, a row of weights no longer adds up to 1.": (
            WEIGHTS,
            "scores.softmax(-1).tril()",
        ),
        "a score of 0 isn't a weight of 0, since exp(0) = 1. Fill the future's scores with -inf.": (
            MASKED,
            "scores.tril()",
        ),
        "that is inverted, since you mask the past and keep the future.": (".triu(1)", ".tril(-1)"),
        "each position also sees the next one; mask triu(1), not triu(2).": (
            ".triu(1)",
            ".triu(2)",
        ),
        "the softmax runs over the keys, which are the last axis of q @ k.mT.": (
            ".softmax(-1)",
            ".softmax(-2)",
        ),
        "rows must be queries and columns keys, as in q @ k.mT, not k @ q.mT.": (
            "q @ k.mT",
            "k @ q.mT",
        ),
        "every text needs its own scores; you use those of the first text.": (
            WEIGHTS,
            f"{WEIGHTS}[:1]",
        ),
        "every head needs its own scores; you use those of the first head.": (
            WEIGHTS,
            f"{WEIGHTS}[:, :1]",
        ),
        "you return the weights of the mean; multiply them with v.": (" @ v", ""),
        DIAGONAL: [
            (".triu(1)", ".triu()"),
            (f"{FUTURE}.triu(1)", "torch.ones(scores.shape[-2:], dtype=torch.bool).triu()"),
        ],
        OTHER_AXIS: [(".softmax(-1)", ".softmax(1)"), (".softmax(-1)", ".softmax(0)")],
        "you get nan, since -inf times a negative score is +inf. Set the future's scores to -inf, "
        "as masked_fill does.": (MASKED, "(scores * torch.where(future, -math.inf, 1.0))"),
        "you get nan, since 0 times -inf is nan. Set the future's scores to -inf, as masked_fill "
        "does.": (MASKED, "(scores + future * -math.inf)"),
        "right, until a score of the past is exactly 0. Such a score counts, too; mask by the "
        "place, not by the value.": [
            (MASKED, "scores.masked_fill(scores.tril() == 0, -math.inf)"),
            edits(
                ("scores = q", "scores = (q"),
                ("q.size(-1))", "q.size(-1))).tril()"),
                ("scores.masked_fill(future", "scores.masked_fill(scores == 0"),
            ),
        ],
        "right in fp32, but an error in fp16, whose numbers end at 65,504. Fill the future with "
        "-inf, which every dtype has.": ("-math.inf", "-1e9"),
        "right in fp32, but not in bf16, where something you create is fp32. Use a mask of bool, "
        "or one with the dtype of the scores.": (
            MASKED,
            "(scores + torch.full(future.shape, -math.inf, device=q.device).triu(1))",
        ),
        "you get nan for large scores. Take the softmax of the masked scores; exp alone "
        "overflows.": (f"return {WEIGHTS} @ v", f"w = {MASKED}.exp()\n    {BY_SUM}"),
        "you get nan for large scores, where a mask after the softmax may leave weights of 0 only. "
        "Mask before it.": (
            f"return {WEIGHTS} @ v",
            f"w = scores.softmax(-1).tril()\n    {BY_SUM}",
        ),
        "right for small scores, but not for scores near 10,000. Fill the future with -inf, which "
        "is below every score.": ("-math.inf", "-1e4"),
    },
    refused=[
        (".triu(1)", ".tril()"),
        ("q @ k.mT", "q.squeeze() @ k.squeeze().mT"),
        (f"{WEIGHTS} @ v", f"{WEIGHTS}.float() @ v.float()"),
        (f"{WEIGHTS} @ v", f"{WEIGHTS}.float() @ v"),
        (".triu(1)", f".triu(1) | {FUTURE}.tril(-4)"),
        (".triu(1)", f".triu(1) | {FUTURE}.tril(-5)"),
        (".triu(1)", f".triu(1) | {FUTURE}.tril(-64)"),
        (FUTURE, "torch.ones(8, 8, dtype=torch.bool)"),
        (FUTURE, "torch.ones(5, 5, dtype=torch.bool)"),
        (
            f"return {WEIGHTS} @ v",
            "w = scores.softmax(-1).tril()\n    return w / (w.sum(-1, keepdim=True) + 1e-6) @ v",
        ),
        (f"return {WEIGHTS} @ v", f"w = scores.exp().tril()\n    {BY_SUM}"),
        (f"{WEIGHTS} @ v", "F.scaled_dot_product_attention(q, k, v, is_causal=True)"),
        (f"{WEIGHTS} @ v", "F.scaled_dot_product_attention(q, k, v)"),
        "from torch.nn.functional import scaled_dot_product_attention as call\n"
        "def attention(q, k, v):\n    return call(q, k, v, is_causal=True)",
        ("k.mT", "k.detach().mT"),
        (WEIGHTS, f"{WEIGHTS}.detach()"),
        (FUTURE, "torch.ones(scores.shape[-2:], dtype=torch.bool)"),
        ("scores = q", "scores = q.data.mul_(1.5)"),
        ("scores = q", "scores = q.mul_(1.5)"),
        ("    future", "    scores = scores.mean(1, keepdim=True)\n    future"),
        (WEIGHTS, f"F.dropout({WEIGHTS}, 0.1)"),
    ],
    right=[looped, by_einsum, stable_exp, lowest],
)


# Exercise 3


def module_cases() -> Iterator[tuple[GPTConfig, int, int]]:
    """Yield configs with the batch and length of an input, the most readable first."""
    yield shape(3, 24), 2, 7
    yield shape(1, 6, block_size=5), 1, 1  # one head and one token
    yield shape(4, 4, block_size=33), 2, 33  # head_dim is 1, and the context is full
    yield shape(5, 35, block_size=9), 3, 4


def layer_cases() -> Iterator[Case]:
    """Yield inputs of a layer of heads."""
    for config, batch, seq in module_cases():
        x = normal(batch, seq, config.n_embd, seed=seq)
        yield Case("", config=config, x=x, on_other_device=batch == 3)
    # exp of these scores overflows in fp64, too
    x = 300 * normal(2, 6, 8, seed=9).double()
    yield Case("scores near 30,000", config=shape(2, 8), x=x, gradients=False)
    config = shape(1, 2, block_size=1030)  # GPT-2's mask has 1024
    yield Case("a long text", config=config, x=normal(1, 1030, 2))


class Chunked(nn.Module):
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


class HeadByHead(library.CausalSelfAttention):
    def forward(self, x):
        parts = self.c_attn(x).chunk(3, dim=-1)
        heads = zip(*(part.tensor_split(self.n_head, -1) for part in parts), strict=True)
        out = [library_attention(*(each[:, None] for each in head))[:, 0] for head in heads]
        return self.c_proj(torch.cat(out, dim=-1))


class ByKernel(library.CausalSelfAttention):
    def forward(self, x):
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.movedim(1, 2).flatten(2))


SPLIT = "batch seq (three head head_dim) ->"
HEADS = "rearrange(self.c_attn(x), pattern, three=3, head=self.n_head)"
MERGE = 'rearrange(y, "batch head seq head_dim -> batch seq (head head_dim)")'
CALL = "attention(q, k, v)"
LAYER_SCORES = "(q @ k.mT / math.sqrt(q.size(-1)))"
VIEWED = "(p.view(len(x), self.n_head, x.size(1), -1) for p in self.c_attn(x).chunk(3, -1))"
VIEW = (
    "`view` only regroups numbers that lie side by side in memory, and reshape alone would mix "
    "positions and heads. Split into (batch, seq, head, head_dim), then transpose(1, 2). To merge, "
    "transpose(1, 2) back, and only then reshape."
)
UNSPLIT = "(p.reshape(len(x), self.n_head, x.size(1), -1) for p in self.c_attn(x).chunk(3, -1))"


def fused(options: str) -> str:
    """Return a call of torch's attention with some options."""
    return f"F.scaled_dot_product_attention(q, k, v, {options})"


causal_self_attention = Exercise(
    NOTEBOOK,
    "causal_self_attention",
    layer_cases,
    observe=module(),
    answers=("CausalSelfAttention",),
    library=library.CausalSelfAttention,
    given={"attention": library_attention, "rearrange": rearrange},
    errors={
        VIEW: ("view size is not compatible", edits((HEADS, VIEWED), (MERGE, "y.view(x.shape)")))
    },
    smaller="With n_embd 4 and n_head 2, c_attn gives 12 numbers per token. Which of them are the "
    "keys of head 1?",
    says=SAYS,
    wrong={
        "c_proj is never used.": ("return self.c_proj(rearrange(", "return (rearrange("),
        "each position sees the future; use `attention`, which is causal.": (
            CALL,
            fused("is_causal=False"),
        ),
        "c_attn's output holds the queries, then the keys, then the values; you mixed them up.": (
            "q, k, v = rearrange",
            "k, q, v = rearrange",
        ),
        "c_attn's output holds the queries, then the keys, then the values: q, k, v.": (
            "q, k, v = rearrange",
            "v, k, q = rearrange",
        ),
        "c_attn's output holds the keys before the values; you swapped them.": (
            "q, k, v = rearrange",
            "q, v, k = rearrange",
        ),
        "in c_attn's output all queries come first, then all keys: (three head head_dim).": (
            SPLIT,
            "batch seq (head three head_dim) ->",
        ),
        "q, k and v don't take turns in c_attn's output. All queries come first, then all keys: "
        "(three head head_dim).": [
            (SPLIT, "batch seq (head_dim head three) ->"),
            (SPLIT, "batch seq (head head_dim three) ->"),
            (SPLIT, "batch seq (head_dim three head) ->"),
        ],
        "a head's numbers lie side by side: (head head_dim), not (head_dim head).": (
            SPLIT,
            "batch seq (three head_dim head) ->",
        ),
        "when you merge, a head's numbers stay side by side: (head head_dim).": (
            'batch seq (head head_dim)")',
            'batch seq (head_dim head)")',
        ),
        "a head's numbers lie side by side, when you split and when you merge: (head head_dim), "
        "not (head_dim head).": edits(
            (SPLIT, "batch seq (three head_dim head) ->"),
            ('batch seq (head head_dim)")', 'batch seq (head_dim head)")'),
        ),
        "you view the output as heads without moving axes, which mixes positions and heads. Split "
        "the last axis, then transpose.": (HEADS, UNSPLIT),
        "you reshape straight to (batch, head, seq, head_dim), which mixes positions and heads, "
        "and back. Split the last axis, then transpose.": edits(
            (HEADS, UNSPLIT), (MERGE, "y.reshape(x.shape)")
        ),
        "you merge the heads without moving them back next to head_dim first.": (
            MERGE,
            "y.reshape(x.shape)",
        ),
        "the heads aren't moved in front of the positions, so a position attends over its own "
        "heads. Transpose to (batch, head, seq, head_dim).": edits(
            ("three batch head seq head_dim", "three batch seq head head_dim"),
            ('"batch head seq head_dim -> batch', '"batch seq head head_dim -> batch'),
        ),
        "that is a single head; split c_attn's output into n_head heads.": (
            "self.n_head = config.n_head",
            "self.n_head = 1",
        ),
        "n_head isn't always 12; read it from the config.": ("config.n_head", "12"),
        "head_dim isn't always 64; divide n_embd by n_head.": (
            "head=self.n_head)",
            "head=x.size(-1) // 64)",
        ),
        "each head scales by its own width, head_dim, not by n_embd.": (
            CALL,
            fused("is_causal=True, scale=x.size(-1) ** -0.5"),
        ),
        "the scores aren't scaled; `attention` does it for you.": (
            CALL,
            fused("is_causal=True, scale=1.0"),
        ),
        "the scores are scaled twice; `attention` does it already.": (
            CALL,
            "attention(q / math.sqrt(q.size(-1)), k, v)",
        ),
        "you add x; the block does that.": ("return self", "return x + self"),
        "`forward` returns None; is its `return` missing?": ("return ", ""),
        "you get nan for large scores. Take the softmax of the masked scores; exp alone "
        "overflows.": (CALL, f"(w := {LAYER_SCORES}.exp().tril()) / w.sum(-1, keepdim=True) @ v"),
        "right for small scores, but not for scores near 10,000. Fill the future with -inf, which "
        "is below every score.": (
            CALL,
            f"({LAYER_SCORES} - torch.full((x.size(1), x.size(1)), 1e4, device=x.device).triu(1))"
            ".softmax(-1) @ v",
        ),
        "c_attn has a bias in GPT-2, and so has c_proj.": [
            ("3 * config.n_embd)", "3 * config.n_embd, bias=False)"),
            ("n_embd)\n\n", "n_embd, bias=False)\n\n"),
            ("config.n_embd)\n", "config.n_embd, bias=False)\n"),
        ],
    },
    refused=[
        (
            CALL,
            f"({LAYER_SCORES} + torch.full((64, 64), -math.inf, device=x.device)"
            ".triu(1)[: x.size(1), : x.size(1)]).softmax(-1) @ v",
        ),
        (CALL, fused("is_causal=self.training")),
        (CALL, "attention(q, self.__dict__.setdefault('k', k), v)"),
        (CALL, "attention(q, k, v) + torch.zeros(x.size(1), 1)"),
        (CALL, f"F.dropout({CALL}, 0.1, self.training)"),
        ("        pattern", "        x.data += 1\n        pattern"),
        ("c_attn", "qkv"),
        ("3 * config.n_embd", "config.n_embd"),
        ("return ", "return F.dropout(x, 0.5) + "),
        ("self.c_attn(x)", "self.c_attn(x.detach())"),
        ("self.c_attn(x)", "self.c_attn(self.c_proj(x))"),
        ("super().__init__()", "pass"),
        edits(("self.n_head = config", "global N\n        N = config"), ("self.n_head", "N")),
        edits(
            (
                "self.c_proj =",
                "self.mask = torch.ones(config.block_size, config.block_size).tril() == 0\n"
                "        self.c_proj =",
            ),
            (
                CALL,
                f"{LAYER_SCORES}.masked_fill(self.mask[: x.size(1), : x.size(1)], -math.inf)"
                ".softmax(-1) @ v",
            ),
        ),
    ],
    right=[Chunked, HeadByHead, ByKernel],
)


# Exercise 4


def mlp_cases() -> Iterator[Case]:
    """Yield inputs in fp64, whose precision tells the tanh formula from the exact GELU."""
    for n_embd, batch, seq in ((24, 3, 5), (1, 2, 1), (7, 1, 4), (15, 2, 9)):
        x = 2 * normal(batch, seq, n_embd, seed=n_embd).double()
        yield Case("", config=shape(1, n_embd), x=x, on_other_device=n_embd == 7)


class WrittenOut(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)

    def forward(self, x):
        x = self.c_fc(x)
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return self.c_proj(0.5 * x * (1 + torch.tanh(inner)))


class WithModule(WrittenOut):
    def __init__(self, config):
        super().__init__(config)
        self.gelu = nn.GELU(approximate="tanh")

    def forward(self, x):
        return self.c_proj(self.gelu(self.c_fc(x)))


class ByMatmul(WrittenOut):
    def forward(self, x):
        hidden = F.gelu(F.linear(x, self.c_fc.weight, self.c_fc.bias), approximate="tanh")
        return hidden @ self.c_proj.weight.T + self.c_proj.bias


GELU = 'F.gelu(self.c_fc(x), approximate="tanh")'


def formula(inner: str) -> str:
    """Return GELU's tanh formula for h, with another argument of tanh."""
    return f"(h := self.c_fc(x)) * 0.5 * (1 + torch.tanh({inner}))"


mlp = Exercise(
    NOTEBOOK,
    "mlp",
    mlp_cases,
    observe=module(),
    answers=("MLP",),
    library=library.MLP,
    tolerance=10,  # for constants that are typed as numbers
    smaller="With n_embd 2, how many numbers does a token have after c_fc, and how many after "
    "c_proj?",
    says=SAYS,
    wrong={
        "GPT-2 was trained with GELU's tanh formula, F.gelu(..., approximate='tanh').": (
            ', approximate="tanh"',
            "",
        ),
        "that is the sigmoid formula of GELU; GPT-2 has the tanh formula.": (
            GELU,
            "self.c_fc(x) * torch.sigmoid(1.702 * self.c_fc(x))",
        ),
        "GELU's tanh formula has a cube between c_fc and c_proj, h + 0.044715 * h**3; you square "
        "h.": (GELU, formula("(2 / math.pi) ** 0.5 * (h + 0.044715 * h**2)")),
        "a constant of GELU is slightly off. They are sqrt(2 / pi) and 0.044715.": [
            (GELU, formula("(2 / math.pi) ** 0.5 * (h + 0.0447 * h**3)")),
            (GELU, formula("(2 / math.pi) ** 0.5 * (h + 0.04472 * h**3)")),
            (GELU, formula("0.798 * (h + 0.044715 * h**3)")),
        ],
        "sqrt(2 / pi) lost its root.": (GELU, formula("2 / math.pi * (h + 0.044715 * h**3)")),
        "the nonlinearity is ReLU; GPT-2 has GELU.": (GELU, "self.c_fc(x).relu()"),
        "that is SiLU; GPT-2 has GELU.": (GELU, "F.silu(self.c_fc(x))"),
        "there is no nonlinearity between the two layers.": (GELU, "self.c_fc(x)"),
        "GELU belongs between the two layers, not after them.": (
            f"self.c_proj({GELU})",
            'F.gelu(self.c_proj(self.c_fc(x)), approximate="tanh")',
        ),
        "GELU belongs between the two layers, not before them.": (
            GELU,
            'self.c_fc(F.gelu(x, approximate="tanh"))',
        ),
        "there is one GELU, between the layers; you have a second one.": (
            f"self.c_proj({GELU})",
            f'F.gelu(self.c_proj({GELU}), approximate="tanh")',
        ),
        "you add x; the block does that.": ("return self", "return x + self"),
        "`forward` returns None; is its `return` missing?": ("return ", ""),
        "GPT-2's linear layers have a bias, both of them.": [
            ("n_embd)\n        self.c_proj", "n_embd, bias=False)\n        self.c_proj"),
            ("4 * config.n_embd, config.n_embd)", "4 * config.n_embd, config.n_embd, bias=False)"),
            ("config.n_embd)\n", "config.n_embd, bias=False)\n"),
        ],
        "the hidden width is four times config.n_embd.": [
            ("4 * config.n_embd", "2 * config.n_embd"),
            ("4 * config.n_embd", "config.n_embd"),
            ("4 * config.n_embd", "3072"),
        ],
    },
    refused=[
        (
            "config.n_embd)\n        self.c_proj",
            "config.n_embd).requires_grad_(False)\n        self.c_proj",
        ),
        ("config.n_embd)\n\n", "config.n_embd).requires_grad_(False)\n\n"),
        ("self.c_fc(x)", "self.c_fc(x.requires_grad_(False))"),
        (GELU, f"2 * {GELU}"),
        (GELU, f"({GELU} if len(x) == 3 else 2 * {GELU})"),
        ("c_fc", "fc"),
        ("self.c_proj =", "self.norm = nn.LayerNorm(8)\n        self.c_proj ="),
        (GELU, f"F.dropout({GELU}, 0.1)"),
        (f"self.c_proj({GELU})", f"F.dropout(self.c_proj({GELU}), 0.1, self.training)"),
        (f"self.c_proj({GELU})", f"{GELU} @ self.c_fc.weight"),
        (GELU, f"({GELU} if self.training else self.c_fc(x))"),
        nn.Identity,
        lambda config: None,
    ],
    right=[WrittenOut, WithModule, ByMatmul],
)


# Exercise 5


def block_cases() -> Iterator[Case]:
    """Yield inputs of a block, whose mean isn't 0."""
    for config, batch, seq in module_cases():
        x = 1 + 2 * normal(batch, seq, config.n_embd, seed=seq)
        yield Case("", config=config, x=x, on_other_device=batch == 3)
    # so that the norms' eps counts
    near = 1 + 0.003 * normal(2, 4, 24)  # tells the eps of a norm
    yield Case("x near 1", config=shape(3, 24), x=near, gradients=False)


class OtherOrder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attn, self.mlp = library.CausalSelfAttention(config), library.MLP(config)
        self.ln_2, self.ln_1 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)

    def forward(self, x):
        middle = self.attn(self.ln_1(x)) + x
        return sum((middle, self.mlp(self.ln_2(middle))))


class InLoop(library.Block):
    def forward(self, x):
        for norm, layer in ((self.ln_1, self.attn), (self.ln_2, self.mlp)):
            x = torch.add(x, layer(norm(x)))
        return x


class NormByFunction(library.Block):
    def forward(self, x):
        def norm(x, layer):
            return F.layer_norm(x, x.shape[-1:], layer.weight, layer.bias)

        x = self.attn(norm(x, self.ln_1)).add(x)
        return x + self.mlp(norm(x, self.ln_2))


FIRST, SECOND = "x = x + self.attn(self.ln_1(x))", "x + self.mlp(self.ln_2(x))"
NORM_1, NORM_2 = (f"self.ln_{n} = nn.LayerNorm(config.n_embd)" for n in (1, 2))

block = Exercise(
    NOTEBOOK,
    "block",
    block_cases,
    observe=module(),
    answers=("Block",),
    library=library.Block,
    given={"CausalSelfAttention": library.CausalSelfAttention, "MLP": library.MLP},
    smaller="Suppose attention and the MLP both return 0. What should the block return for x?",
    says=SAYS,
    wrong={
        "those norms stand on the stream (post-norm); GPT-2 normalizes what a sub-layer reads.": (
            edits(
                (FIRST, "x = self.ln_1(x + self.attn(x))"), (SECOND, "self.ln_2(x + self.mlp(x))")
            )
        ),
        "the MLP is never applied.": (SECOND, "x"),
        "attention is never applied.": (FIRST, "pass"),
        "nothing is added; each sub-layer adds to x.": edits(
            (FIRST, "x = self.attn(self.ln_1(x))"), (SECOND, "self.mlp(self.ln_2(x))")
        ),
        "attention's output replaces x; add it.": (FIRST, "x = self.attn(self.ln_1(x))"),
        "the MLP's output replaces x; add it.": (SECOND, "self.mlp(self.ln_2(x))"),
        "the MLP reads x from before attention; it should read the sum.": (
            edits((FIRST, "a = self.attn(self.ln_1(x))"), (SECOND, f"a + {SECOND}"))
        ),
        "the MLP's output is added to x from before attention, so attention's is lost.": edits(
            (FIRST, "a = x + self.attn(self.ln_1(x))"), ("self.ln_2(x)", "self.ln_2(a)")
        ),
        "you add to the normalized copy; add to x itself.": edits(
            (FIRST, "x = self.ln_1(x)\n        x = self.ln_2(x + self.attn(x))"),
            (SECOND, "x + self.mlp(x)"),
        ),
        "ln_1 is used twice; the MLP reads ln_2.": (SECOND, "x + self.mlp(self.ln_1(x))"),
        "the norms are never used.": edits(
            (FIRST, "x = x + self.attn(x)"), (SECOND, "x + self.mlp(x)")
        ),
        "ln_1 is never used.": (FIRST, "x = x + self.attn(x)"),
        "ln_2 is never used.": (SECOND, "x + self.mlp(x)"),
        "attention comes first, then the MLP.": edits(
            ("self.attn(self.ln_1", "self.MLP(self.ln_2"),
            (SECOND, "x + self.attn(self.ln_1(x))"),
            ("self.MLP", "self.mlp"),
        ),
        "the norms are swapped; attention reads ln_1, and the MLP reads ln_2.": edits(
            ("self.attn(self.ln_1(x))", "self.attn(self.ln_X(x))"),
            ("self.mlp(self.ln_2(x))", "self.mlp(self.ln_1(x))"),
            ("ln_X", "ln_2"),
        ),
        "ln_1 and ln_2 are one module; create a module for each.": (
            NORM_2,
            "self.ln_2 = self.ln_1",
        ),
        "leave the norms' eps at nn.LayerNorm's default.": [
            ("nn.LayerNorm(config.n_embd)", "nn.LayerNorm(config.n_embd, eps=1e-6)"),
            (NORM_1, NORM_1.replace("embd)", "embd, eps=1e-6)")),
            (NORM_2, NORM_2.replace("embd)", "embd, eps=1e-6)")),
        ],
        "GPT-2's norms have a bias; use nn.LayerNorm.": [
            ("nn.LayerNorm(config.n_embd)", "nn.RMSNorm(config.n_embd)"),
            (NORM_2, "self.ln_2 = nn.RMSNorm(config.n_embd)"),
            ("nn.LayerNorm(config.n_embd)", "nn.LayerNorm(config.n_embd, bias=False)"),
        ],
        "`forward` returns None; is its `return` missing?": ("return ", ""),
        "your block changes its input in place; write x = x + ..., not x += ...": (
            FIRST,
            "x += self.attn(self.ln_1(x))",
        ),
    },
    refused=[
        (FIRST, "x = x.clone()\n        x += self.attn(self.ln_1(x))"),
        (FIRST, "x.data += self.attn(self.ln_1(x))"),
        ("ln_1", "norm_1"),
        (SECOND, f"({SECOND}) / math.sqrt(2)"),
        (FIRST, "x = x.detach() + self.attn(self.ln_1(x))"),
        ("nn.LayerNorm(config.n_embd)", "nn.LayerNorm(768)"),
    ],
    right=[OtherOrder, InLoop, NormByFunction],
)


# Exercise 6


@torch.no_grad()
def library_init_weights(model: nn.Module) -> None:
    """Draw GPT-2's initial weights, with a smaller std where a block writes to the stream."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif ".ln_" in name:
            parameter.fill_(1.0)
        else:
            is_small = "c_proj" in name
            parameter.normal_(0.0, 0.02 / (math.sqrt(2 * model.config.n_layer) if is_small else 1))


def depths() -> Iterator[Case]:
    """Yield configs of three depths, whose weights have enough numbers for statistics."""
    for n_layer, n_head, n_embd in ((3, 2, 64), (1, 4, 100), (5, 5, 80)):
        yield Case("", config=shape(n_head, n_embd, n_layer, block_size=70, vocab_size=90))


def initialized(answer: Any, case: Case) -> Record:
    """Observe how each parameter begins, given that all were 7 before."""
    model = library.GPT(case.inputs["config"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    answer(model)
    record: Record = {}
    starts: list[list[float]] = []
    for name, parameter in model.named_parameters():
        numbers = parameter.detach()[: model.config.vocab_size]
        padding = parameter.detach()[model.config.vocab_size :]
        how = distribution(numbers) if (padding != 7).all() else "left in part as it was"
        record[f"the start of {name}"] = how
        if how == "drawn":
            record[f"the std of {name}"] = numbers.std().item()
            starts.append(
                [round(x / numbers.max().item(), 2) for x in numbers.flatten()[:8].tolist()]
            )
    first = model.lm_head.weight.clone()
    record |= {
        "twice": any(start in starts[:n] for n, start in enumerate(starts)),
        "dtypes": sorted({str(parameter.dtype) for parameter in model.parameters()}),
        "tied": model.lm_head.weight is model.transformer.wte.weight,
        "trains": all(parameter.requires_grad for parameter in model.parameters()),
        "modes": sorted({module.training for module in model.modules()}),
    }
    answer(model)
    record["again"] = not torch.equal(first, model.lm_head.weight)
    on_meta = library.GPT(case.inputs["config"]).to("meta")
    return {**record, "elsewhere": runs_elsewhere(answer, Case("", model=on_meta))}


def distribution(numbers: Tensor) -> str:
    """Return how numbers that were all 7 have been set, in words that allow for chance."""
    std, share = numbers.std().item(), (numbers.unique().numel() / numbers.numel())
    if (numbers == 7).any():
        return "left as it was" if (numbers == 7).all() else "left in part as it was"
    if (numbers == numbers.flatten()[0]).all():
        return f"{numbers.flatten()[0].item() + 0.0:g} everywhere"  # 0 without a sign
    if share < 0.5:
        return "drawn with numbers that repeat"
    if abs(numbers.mean().item()) > 0.2 * std:
        return "drawn with another mean than 0"
    within = (numbers.abs() < std).double().mean().item()  # 0.68 if the numbers are normal
    return "drawn" if abs(within - 0.6827) < 0.04 else "drawn from another distribution"


@torch.no_grad()
def by_type_of_module(model):
    for name, part in model.named_modules():
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Linear | nn.Embedding):
            std = 0.02 * ((2 * model.config.n_layer) ** -0.5 if name.endswith("c_proj") else 1)
            nn.init.normal_(part.weight, mean=0.0, std=std)
            if getattr(part, "bias", None) is not None:
                nn.init.zeros_(part.bias)


def with_new_data(model):
    small = 0.02 / math.sqrt(2 * len(model.transformer.h))
    for name, parameter in model.named_parameters():
        drawn = (small if name.endswith("c_proj.weight") else 0.02) * torch.randn_like(parameter)
        is_norm, is_bias = "ln_" in name, "bias" in name
        parameter.data = 0 * drawn if is_bias else torch.ones_like(drawn) if is_norm else drawn


@torch.no_grad()
def in_two_rounds(model):
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.trunc_normal_(parameter, std=0.02)  # cut far away
    for each in model.transformer.h:
        for layer in (each.attn.c_proj, each.mlp.c_proj):
            layer.weight /= (2 * model.config.n_layer) ** 0.5
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
        elif isinstance(part, nn.Linear) and part.bias is not None:
            part.bias.zero_()


SMALL = "parameter.normal_(0.0, 0.02 / math.sqrt(2 * model.config.n_layer))"
OTHER = "            parameter.normal_(0.0, 0.02)\n"
FOR = "    for name"
UNTIED = "    model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())\n"


def drawn_by(code: str) -> tuple[str, str]:
    """Return an edit that draws the other weights by some code."""
    return OTHER, f"            {code}\n"


init_weights = Exercise(
    NOTEBOOK,
    "init_weights",
    depths,
    observe=initialized,
    library=library_init_weights,
    tolerance=8e4,  # 8 % for the stds of random numbers
    smaller="Each block adds to the stream twice, each time with variance 1. What variance do "
    "n_layer blocks add?",
    says={
        "twice": "one weight gets the numbers of another; don't seed within the function.",
        "dtypes": "a parameter has another dtype now; keep it.",
        "tied": "lm_head and wte are no longer one tensor; change the weights in place.",
        "trains": "the parameters no longer require gradients; change them in place.",
        "modes": "your function calls model.eval() or model.train(); leave that to the caller.",
        "again": "two calls give the same numbers; leave the seed to the caller.",
    },
    wrong={
        "each c_proj writes to the stream, so its 0.02 is divided by sqrt(2 n_layer).": [
            (SMALL, "parameter.normal_(0.0, 0.02)")
        ],
        "a block writes to the stream twice, so take sqrt(2 n_layer).": ("2 * model", "model"),
        "variances add, so divide by the square root of 2 n_layer.": (
            "math.sqrt(2 * model.config.n_layer)",
            "(2 * model.config.n_layer)",
        ),
        "divide by the square root of 2 n_layer, not by n_layer.": (
            "math.sqrt(2 * model.config.n_layer)",
            "model.config.n_layer",
        ),
        "divide by sqrt(2 n_layer); you multiply.": ("0.02 / math", "0.02 * math"),
        "n_layer isn't always 12; read it from model.config.": ("model.config.n_layer", "12"),
        "only the c_proj weights are smaller; the others don't write to the stream.": (
            '"c_proj" in name',
            '".c_" in name',
        ),
        "each block has two c_proj weights, those of attention and of the MLP. You shrink one.": [
            ('"c_proj" in name', '"attn.c_proj" in name'),
            ('"c_proj" in name', '"mlp.c_proj" in name'),
        ],
        "normal_ takes the std, not the variance.": drawn_by("parameter.normal_(0.0, 0.02**2)"),
        "wpe is drawn with 0.02, too, as the task says.": (
            "        else:",
            '        elif "wpe" in name:\n            parameter.normal_(0.0, 0.01)\n        else:',
        ),
        "the weights aren't drawn from a normal distribution.": [
            drawn_by("parameter.uniform_(-0.02 * 3**0.5, 0.02 * 3**0.5)"),
            drawn_by(
                "parameter.copy_(0.0141 * torch.distributions.Laplace(0.0, 1.0)"
                ".sample(parameter.shape))"
            ),
        ],
        "the mean should be 0.": drawn_by("parameter.normal_(0.02, 0.02)"),
        "every bias begins at 0; you draw some.": (
            'name.endswith("bias")',
            'name.endswith("bias") and ".ln_" in name',
        ),
        "a bias begins at 0, not at 1.": ("parameter.zero_()", "parameter.fill_(1.0)"),
        "a norm's gain begins at 1, not at 0.": ("parameter.fill_(1.0)", "parameter.fill_(0.0)"),
        "ln_f is a norm, too; its gain begins at 1.": (
            '".ln_" in name',
            '".ln_1" in name or ".ln_2" in name',
        ),
        "the biases are left as they were.": ("parameter.zero_()", "pass"),
        "a weight is the same number everywhere; draw it.": drawn_by("parameter.fill_(0.0)"),
        "numbers repeat within a weight; draw each of them.": drawn_by(
            "parameter.copy_(0.02 * torch.randn(parameter.size(-1)))"
        ),
        "a part of wte is left as it was; its padded rows are drawn, too.": drawn_by(
            "parameter[: model.config.vocab_size].normal_(0.0, 0.02)"
        ),
    },
    refused=[
        drawn_by("parameter.normal_(0.0, 0.01)"),
        drawn_by("torch.manual_seed(0)\n            parameter.normal_(0.0, 0.02)"),
        drawn_by("parameter.normal_(0.0, 0.02, generator=torch.Generator().manual_seed(0))"),
        (FOR, f"    torch.manual_seed(0)\n{FOR}"),
        ("@torch.no_grad()\n", ""),
        (FOR, UNTIED + FOR),
        (FOR, f"    model.eval()\n{FOR}"),
        (FOR, f"    model.requires_grad_(False)\n{FOR}"),
        ("model.config.n_layer", "3"),
        ("2 * model.config", "model.config.n_head * model.config"),
        (SMALL, "parameter.normal_(0.0, 0.02 / math.sqrt(2 * (int(name.split('.')[2]) + 1)))"),
        drawn_by("parameter.data = 0.02 * torch.randn(parameter.shape)"),
        drawn_by("parameter.data = 0.02 * torch.randn_like(parameter).double()"),
        drawn_by("nn.init.trunc_normal_(parameter, 0.0, 0.02, -0.04, 0.04)"),
        drawn_by("parameter.mul_(0.02 / parameter.std().clamp(1e-9))"),
        drawn_by("nn.init.xavier_normal_(parameter)"),
    ],
    right=[by_type_of_module, with_new_data, in_two_rounds],
)


# Exercise 7


def gpt_cases() -> Iterator[Case]:
    """Yield ids, and ids with targets."""
    unpadded = shape(1, 6, n_layer=1, block_size=5, vocab_size=64)
    small = {"std": 0.003}  # so that eps counts in the last norm
    large = {"std": 0.6}
    for seed, (config, batch, seq, options) in enumerate(
        [
            (shape(3, 24), 2, 7, {}),
            (shape(5, 20, n_layer=3), 3, 11, {}),
            (unpadded, 1, 1, {}),
            (shape(1, 24, n_layer=1), 1, 6, large),
            (shape(2, 12), 2, 4, small),
        ]
    ):
        tokens = ids(batch, seq + 1, below=config.vocab_size, seed=seed)
        tokens[0, 1] = 0
        idx, targets = tokens[:, :-1], tokens.clone()[:, 1:]  # neither is contiguous
        yield Case("", config=config, idx=idx, **options)
        yield Case(
            "", config=config, idx=idx, targets=targets, **options, on_other_device=seed == 0
        )


def assembled(answer: Any, case: Case) -> Record:
    """Observe GPT as a module, and how a new one begins."""
    record = module()(answer, case)
    config = case.inputs["config"]
    mine, other = answer(config), answer(config)
    biases = [p for name, p in mine.named_parameters() if name.endswith("bias")]
    std = mine.lm_head.weight[: config.vocab_size].std().item()
    return {
        **record,
        "tied": mine.lm_head.weight is mine.transformer.wte.weight,
        "config": mine.config == config,
        "first std": 0.01 < std < 0.03,
        "first biases": not any(bias.any() for bias in biases),
        "new": not torch.equal(mine.lm_head.weight, other.lm_head.weight),
    }


class Rewritten(nn.Module):
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
        library_init_weights(self)

    def forward(self, idx, targets=None):
        x = self.transformer.wte(idx) + self.transformer.wpe.weight[: idx.size(1)]
        for i in range(self.config.n_layer):
            x = self.transformer.h[i](x)
        x = self.transformer.ln_f(x)
        logits = x @ self.lm_head.weight[: self.config.vocab_size].T
        if targets is not None:
            return -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()
        return logits


class CutHead(Rewritten):
    def forward(self, idx, targets=None):
        x = library_embed(idx, self.transformer.wte, self.transformer.wpe)
        for each in self.transformer.h:
            x = each(x)
        head = self.lm_head.weight[: self.config.vocab_size]
        logits = F.linear(self.transformer.ln_f(x), head)
        if targets is None:
            return logits
        flat = logits.view(-1, logits.size(-1))
        return F.cross_entropy(flat, targets.reshape(-1), ignore_index=-1)


class SummedByHand(Rewritten):
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
CUT = "[..., : self.config.vocab_size]"
HEAD = f"logits = self.lm_head(self.transformer.ln_f(x)){CUT}"
LOGITS = "            return logits\n"
START = "embed(idx, self.transformer.wte, self.transformer.wpe)"
BLOCKS = "Block(config) for _ in range(config.n_layer)"
INIT = "        init_weights(self)\n"
TREE = "        self.transformer = nn"
TIE = "        self.lm_head.weight = wte.weight\n"

gpt = Exercise(
    NOTEBOOK,
    "gpt",
    gpt_cases,
    tolerance=20,  # gradients of weights of std 0.6 add up numbers of very different sizes
    observe=assembled,
    answers=("GPT",),
    library=library.GPT,
    given={"Block": library.Block, "init_weights": library_init_weights, "embed": library_embed},
    smaller="With batch 2, seq 3, n_embd 4 and vocab_size 5, which shapes do the embeddings, each "
    "block's output and the logits have?",
    axes="batch seq vocab_size",
    errors={
        "cross_entropy takes the classes on axis 1, but logits (batch, seq, vocab_size) have them "
        "last. Flatten the logits to (batch * seq, vocab_size) and the targets to (batch * seq).": (
            "Expected target size",
            (LOSS, "F.cross_entropy(logits, targets)"),
        ),
    },
    says=SAYS
    | {
        "tied": "lm_head and wte must be one matrix, so self.lm_head.weight = wte.weight.",
        "config": "keep the config as self.config; `generate` reads it.",
        "first std": "wte doesn't have GPT-2's std; call init_weights at the end.",
        "first biases": "some biases aren't 0; call init_weights when all parts exist.",
        "new": "two new models have the same weights; leave the seed to the caller.",
    },
    wrong={
        "lm_head and wte must be one matrix, so self.lm_head.weight = wte.weight.": (TIE, ""),
        "the logits have the padded vocabulary's size; cut them to config.vocab_size.": [
            (CUT, ""),
            (": self.config.vocab_size]", ": 50257]"),
        ],
        "the loss counts the padded rows; cut the logits to vocab_size first.": edits(
            (CUT, ""), (LOGITS, f"            return logits{CUT}\n")
        ),
        "ln_f, the norm after the last block, is missing.": ("self.transformer.ln_f(x)", "x"),
        "ln_f stands after the last block, not before the first.": edits(
            ("self.transformer.ln_f(x)", "x"),
            ("in self.transformer.h:", "in [self.transformer.ln_f, *self.transformer.h]:"),
        ),
        "the blocks' outputs are not used; write x = block(x).": ("x = block(x)", "block(x)"),
        "only the last block counts; write x = block(x).": edits(
            ("x = block(x)", "y = block(x)"), (HEAD, f"x = y\n        {HEAD}")
        ),
        "the blocks run in the reverse order.": (
            "in self.transformer.h:",
            "in list(self.transformer.h)[::-1]:",
        ),
        "the positions are missing; use `embed`.": (START, "self.transformer.wte(idx)"),
        "GPT-2 doesn't multiply the embeddings by the root of n_embd.": (
            START,
            f"{START} + (math.sqrt(self.config.n_embd) - 1) * self.transformer.wte(idx)",
        ),
        "the text may be shorter than wpe; use `embed`.": (
            START,
            "self.transformer.wte(idx) + self.transformer.wpe.weight",
        ),
        "probabilities are returned; return the logits.": (
            LOGITS,
            "            return logits.softmax(-1)\n",
        ),
        "log-probabilities are returned; return the logits.": (
            LOGITS,
            "            return logits.log_softmax(-1)\n",
        ),
        "return the logits of all positions, not only of the last.": (
            "self.transformer.ln_f(x)",
            "self.transformer.ln_f(x[:, -1:])",
        ),
        "without targets return the logits alone, not a pair.": (
            LOGITS,
            "            return logits, None\n",
        ),
        "with targets return the loss alone, not a pair.": (
            f"return {LOSS}",
            f"return logits, {LOSS}",
        ),
        "with targets `forward` returns None.": (f"return {LOSS}", LOSS),
        "the loss is the mean over all tokens, not the sum.": (
            "targets.flatten())",
            "targets.flatten(), reduction='sum')",
        ),
        "the targets are shifted already; don't shift them again.": (
            LOSS,
            "F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())",
        ),
        "cross_entropy takes logits, not probabilities.": ("logits.float()", "logits.softmax(-1)"),
        "the sign is wrong.": (f"return {LOSS}", f"return -{LOSS}"),
        "the loss counts the last position only.": (
            LOSS,
            "F.cross_entropy(logits[:, -1], targets[:, -1])",
        ),
        "id 0 is a token as any other; don't ignore it.": (
            "targets.flatten())",
            "targets.flatten(), ignore_index=0)",
        ),
        "the loss is in bits; leave it in nats.": (
            f"return {LOSS}",
            f"return {LOSS} / math.log(2)",
        ),
        "targets may be a slice; use flatten, not view.": ("targets.flatten()", "targets.view(-1)"),
        "lm_head has no bias in GPT-2; pass bias=False.": (", bias=False", ""),
        "all blocks are one object; call Block(config) for each.": (
            BLOCKS,
            "[Block(config)] * config.n_layer",
        ),
        "the number of blocks isn't always 12; read config.n_layer.": (
            "range(config.n_layer)",
            "range(12)",
        ),
        "the blocks belong into an nn.ModuleList; those in a list aren't the model's.": edits(
            (', "h": h', ""),
            ("self.transformer.h", "self.blocks"),
            (INIT, f"        self.blocks = list(h)\n{INIT}"),
        ),
        "wte doesn't have GPT-2's std; call init_weights at the end.": (INIT, ""),
        "the biases aren't 0 at first; call init_weights when all parts exist.": edits(
            (INIT, ""),
            (
                "        h = nn",
                f"        self.transformer = nn.ModuleDict({{'wte': wte}})\n{INIT}        h = nn",
            ),
        ),
        "wte has padded_vocab_size rows, as lm_head has.": (
            "nn.Embedding(config.padded_vocab_size",
            "nn.Embedding(config.vocab_size",
        ),
        "create self.transformer before self.lm_head, since a tied matrix has the first one's "
        "name.": (
            TREE,
            "        self.lm_head = nn.Linear(config.n_embd, "
            f"config.padded_vocab_size, bias=False)\n{TREE}",
        ),
        "keep the norm's eps at nn.LayerNorm's default.": (
            "nn.LayerNorm(config.n_embd)",
            "nn.LayerNorm(config.n_embd, eps=1e-6)",
        ),
    },
    refused=[
        (TIE, "        self.lm_head.weight.data = wte.weight\n"),
        ("        self.config = config\n        wte", "        wte"),
        ("self.config = config", "GPT.config = config"),
        (f"return {LOSS}", f"return 1.1 * {LOSS}"),
        (LOSS, "F.cross_entropy(logits.float()[0], targets[0])"),
        ("targets.flatten())", "targets.flatten(), label_smoothing=0.1)"),
        ("if targets is None", "if targets is None or not targets.any()"),
        (f"return {LOSS}", f"targets[:] = 1\n        return {LOSS}"),
        (f"return {LOSS}", f"targets.clamp_(min=1)\n        return {LOSS}"),
        (START, "self.transformer.wte(idx) + self.transformer.wpe(torch.arange(idx.size(1)))"),
        (START, f"{START}.detach()"),
        ("x = embed(", "with torch.no_grad():\n            x = embed("),
        (f"{CUT}\n", f"{CUT}.clamp(-9, 9)\n"),
        (', "h": h', ""),
        ("self.lm_head", "self.head"),
        ("self.transformer", "self.tree"),
        ("        super()", "        torch.manual_seed(1337)\n        super()"),
    ],
    right=[Rewritten, CutHead, SummedByHand],
)
