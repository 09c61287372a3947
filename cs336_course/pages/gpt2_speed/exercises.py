"""Exercises of notebook 09: throughput, attention in one call and in blocks, AdamW, and `fast`."""

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from numbers import Integral
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits, function, normal, sizes
from cs336_course.engine.observe import same
from cs336_course.engine.operators import Operators
from cs336_course.engine.records import Record, plain
from cs336_course.engine.several_results import one_of
from cs336_course.engine.state import seeded
from cs336_course.shared.activation_memory import LiveBytes
from cs336_lib import optim
from cs336_lib.system import hardware

NOTEBOOK = "10_gpt2_speed"


# speed

RATES = ("the tokens per second", "the MFU")


def speed_cases() -> Iterator[Case]:
    """Ask for the two results one after the other."""
    yield from map(Case, RATES)


def steps() -> Iterator[Case]:
    """Yield the time of a step, its tokens, their FLOPs and the chip's peak."""
    steps = [(240.0, 8200, 1e9, 100e12), (1700.0, 3, 5e11, 4e12)]
    for size in sizes(6, ms=(10, 9000), tokens=(100, 30_000), flops=(7, 900), percent=(2, 95)):
        ms, flops, share = size.ms / 7, size.flops * 1e6, (size.percent + 0.3) / 100
        steps.append((ms, size.tokens, flops, size.tokens * flops / (ms / 1e3) / share))
    for ms, tokens, flops, peak in steps:
        step = f"{tokens:,} tokens in {ms:.6g} ms"
        costs = f"{flops:.6g} FLOPs per token and a peak of {peak:.6g}"
        yield Case(f"{step}, with {costs}", ms=ms, tokens=tokens, flops=flops, peak=peak)


RATE = "tokens / (ms / 1e3)"
SHARE = "rate * flops_per_token / peak"


def rated(rate: str) -> tuple[str, str]:
    """Return the idea of another rate, with the right MFU."""
    return "return rate,", f"return {rate},"


speed = Exercise(
    NOTEBOOK,
    "speed",
    speed_cases,
    observe=one_of(RATES, steps),
    is_quiz=True,
    smaller="A step of 500 ms processes 1,000 tokens of 6 FLOPs each, so how many FLOPs per second "
    "is that?",
    says={"form": "return a pair of the tokens per second and the MFU."},
    wrong={
        "the tokens per second come first, and the MFU second.": (
            "return rate, " + SHARE,
            f"return {SHARE}, rate",
        ),
        "that is per millisecond; a second has 1000 of them.": rated("tokens / ms"),
        "you multiplied by the time; a rate is divided by it.": rated("tokens * ms / 1e3"),
        "milliseconds become seconds by dividing by 1000, not by multiplying.": rated(
            "tokens / ms / 1e3"
        ),
        "you take the time for microseconds; a second has 1000 milliseconds.": rated(
            "tokens / ms * 1e6"
        ),
        "that is the time of one token; divide the tokens by the time.": rated("ms / 1e3 / tokens"),
        "that is the rate of 16 x 1024 tokens; use the argument `tokens`.": rated(
            "16 * 1024 * 1e3 / ms"
        ),
        "don't round the tokens per second; divide with / instead of //.": [
            rated("tokens // (ms / 1e3)"),
            rated("round(tokens / (ms / 1e3))"),
        ],
        "the FLOPs in your MFU are those of one token; a step does them for every token.": (
            SHARE,
            "flops_per_token / (ms / 1e3) / peak",
        ),
        "in your MFU the time is in milliseconds, but the peak is in FLOPs per second.": (
            SHARE,
            "tokens * flops_per_token / ms / peak",
        ),
        "your MFU divides a whole step's FLOPs by it, but the peak is in FLOPs per second.": (
            SHARE,
            "tokens * flops_per_token / peak",
        ),
        "your MFU has no time in it; multiply the FLOPs of one token by tokens per second.": (
            SHARE,
            "flops_per_token / peak",
        ),
        "MFU is a fraction between 0 and 1; you return a percentage.": (SHARE, "100 * " + SHARE),
        "your MFU is inverted; divide what the model needs by what the chip could do.": (
            SHARE,
            "peak / (rate * flops_per_token)",
        ),
        "your second number is the FLOPs per second that the step reaches; divide them by the "
        "peak.": (" / peak", ""),
        "your MFU counts too much; flops_per_token already includes the backward pass.": (
            SHARE,
            "3 * " + SHARE,
        ),
        "your MFU counts too little; flops_per_token is what training costs.": (
            SHARE,
            SHARE + " / 3",
        ),
        "peak is in FLOPs per second already, not in TFLOPs per second.": (
            SHARE,
            SHARE + " / 1e12",
        ),
        "your MFU is doubled; flops_per_token already counts a multiply-add as two FLOPs.": (
            SHARE,
            "2 * " + SHARE,
        ),
        "don't round the MFU.": (SHARE, f"round({SHARE}, 2)"),
    },
    refused=[
        ("/ peak", "/ 154.8e12"),  # that of an A6000
        (RATE, "int(tokens / (ms / 1e3))"),
        (RATE, "round(tokens / (ms / 1e3), 2)"),
        "def speed(ms, n, f, p): return 1.0, 1.0",
        "def speed(ms, n, f, p): return n / ms * 1e3, 0.9",
        "def speed(ms, n, f, p): return n / ms * 1e3",
        "def speed(ms, n, f, p): return 'fast', 1.0",
        "def speed(ms, n, f, p): pass",
    ],
    right=[
        "def speed(ms, n, f, p): return [n * 1000 / ms, n * f / p * 1e3 / ms]",
        "def speed(ms, n, f, p):\n"
        "    rate = torch.tensor(n, dtype=torch.float64) * 1000 / ms\n"
        "    return rate, rate * f / p",
        "import numpy as np\n"
        "def speed(ms, n, f, p): return np.float64(n) * 1e3 / ms, 1e3 * np.float64(n) * f / ms / p",
    ],
)


# fused_attention

KERNEL, BF16 = "96 tokens", "inputs in bfloat16"


def qkv(*shape: int, seed: int) -> dict[str, Tensor]:
    """Return queries, keys and values."""
    return dict(zip("qkv", normal(3, *shape, seed=seed), strict=True))


def attention_cases() -> Iterator[Case]:
    """Yield q, k and v of shape (batch, head, seq, head_dim)."""
    yield Case(**qkv(2, 3, 37, 6, seed=0))
    yield Case("many positions", **qkv(1, 1, 150, 3, seed=10))
    yield Case("a single position", **qkv(3, 2, 1, 6, seed=2))
    yield Case("one number per head", **qkv(1, 4, 7, 1, seed=3))
    for seed, size in enumerate(sizes(3, batch=(1, 4), head=(1, 5), seq=(2, 40), d=(2, 9)), 4):
        made = qkv(size.batch, size.seq, size.head, size.d, seed=seed)
        turned = {name: x.transpose(1, 2) for name, x in made.items()}
        yield Case("inputs made by a transpose", **turned)
    q, k, v = qkv(2, 2, 9, 5, seed=7).values()
    yield Case("scores of hundreds", q=20 * q, k=20 * k, v=v)
    shared = {"k": k[:1].expand(2, -1, -1, -1), "v": v[:1].expand(2, -1, -1, -1)}
    yield Case("keys and values that all rows of the batch share", q=q, **shared)
    yield Case(BF16, q=q.bfloat16(), k=k.bfloat16(), v=v.bfloat16())
    yield Case(KERNEL, **qkv(1, 1, 96, 4, seed=0))


def see_attention(answer: Any, case: Case) -> Record:
    """Observe attention's result, its gradients, and which kernel runs."""
    if case.what == KERNEL:
        return see_kernel(answer, case)
    one, other = (plain(answer(*copy.deepcopy(case.inputs).values())) for _ in range(2))
    return {"repeated": same(one, other), **function(grad="q k v")(answer, case)}


def see_kernel(answer: Any, case: Case) -> Record:
    """Observe whether attention runs in a kernel that never makes all scores."""
    q, k, v = (x.clone().requires_grad_() for x in case.inputs.values())
    name = "scaled_dot_product_attention"
    with mock.patch.object(F, name, wraps=getattr(F, name)) as calls, Operators() as made:
        answer(q, k, v).sum().backward()
    return {
        "four axes": all(x.dim() == 4 for used in calls.call_args_list for x in used.args[:1]),
        "T x T": made.largest >= q.size(2) ** 2,
        "fused": made.has_fused,
    }


SDPA = "F.scaled_dot_product_attention(q, k, v, is_causal=True)"
ONES = "torch.ones(q.size(2), q.size(2))"
TWICE = "the scores are divided by d; the function divides by sqrt(d) itself."
MIXED_UP = "queries, keys and values are mixed up; the order is q, k, v."
INVERTED = "your mask is inverted; in attn_mask, True means that a key may be used."
ADDED = "a mask of numbers is added to the scores, so 0 masks nothing; pass is_causal=True."
FUSED = "right, but without F.scaled_dot_product_attention, which does all of it in one fast call."
ALL_SCORES = (
    "right, but for 96 tokens you make a tensor of 96 x 96 numbers, all scores or a mask. "
    "F.scaled_dot_product_attention with is_causal=True makes neither."
)


def masked(mask: str) -> tuple[str, str]:
    """Return the idea of passing a mask."""
    return "is_causal=True", f"attn_mask={mask}"


def called(*args: str, after: str = "") -> tuple[str, str]:
    """Return the idea of calling the function with other arguments."""
    return SDPA, f"F.scaled_dot_product_attention({', '.join(args)}, is_causal=True){after}"


fused_attention = Exercise(
    NOTEBOOK,
    "fused_attention",
    attention_cases,
    given={"math": math},
    observe=see_attention,
    answers=("attention",),
    is_part=True,
    axes="batch head seq head_dim",
    smaller="Which of the positions 0, 1, 2 and 3 may position 1 see, and which argument says so?",
    says={
        "repeated": "two calls with equal inputs differ; leave dropout out.",
        "four axes": "right, but PyTorch has fast kernels for four axes only, (batch, head, seq, "
        "head_dim); with other axes it makes a T x T tensor.",
        "T x T": ALL_SCORES,
        "fused": FUSED,
    },
    wrong={
        "every position sees the future; pass is_causal=True.": (", is_causal=True", ""),
        TWICE: [
            called("q", "k", "v", "scale=1 / q.size(-1)"),
            called("q / math.sqrt(q.size(-1))", "k", "v"),
        ],
        "the scores are not divided by sqrt(d); leave the argument `scale` out.": called(
            "q", "k", "v", "scale=1.0"
        ),
        "the scores are divided by the root of the positions; leave the argument `scale` out.": (
            called("q", "k", "v", "scale=q.size(2) ** -0.5")
        ),
        MIXED_UP: [called(*order) for order in ("kqv", "qvk", "vkq", "kvq", "vqk")],
        "you mix heads, not positions; q, k and v already are (batch, head, seq, head_dim).": (
            called("*(x.transpose(1, 2) for x in (q, k, v))", after=".transpose(1, 2)")
        ),
        INVERTED: [masked(f"{ONES}.triu(1).bool()"), masked(f"{ONES}.triu().bool()")],
        "your mask hides each position from itself; it may see itself and all earlier ones.": (
            masked(f"{ONES}.tril(-1).bool()")
        ),
        "your mask lets each position see the next one.": masked(f"{ONES}.tril(1).bool()"),
        ADDED: [masked(f"{ONES}.tril()"), masked(f"{ONES}.triu(1)")],
        "the dtype of the result is float32; keep that of the inputs.": called(
            "q.float()", "k.float()", "v.float()"
        ),
        ALL_SCORES: [
            masked(f"{ONES}.tril().bool()"),
            (
                SDPA,
                f"(q @ k.mT / math.sqrt(q.size(-1))).masked_fill({ONES}.triu(1).bool(), -math.inf)"
                ".softmax(-1) @ v",
            ),
        ],
        FUSED: (
            SDPA,
            "torch.cat([(q[:, :, t : t + 1] @ k[:, :, : t + 1].mT / math.sqrt(q.size(-1)))"
            ".softmax(-1) @ v[:, :, : t + 1] for t in range(q.size(2))], 2)",
        ),
    },
    refused=[
        (SDPA, SDPA.replace("q, k", "q[:1], k")),
        masked(f"{ONES}.tril(-1)"),
        called("q", "k", "v", "scale=0.125"),  # right for 64 numbers per head
        called("q", "k", "v", "dropout_p=0.5"),
        called("q", "k", "v", "dropout_p=0.1"),
        called("q", "k", "v", after=".transpose(1, 2).flatten(2)"),
        called("q", "k", "v", after=".transpose(1, 2)"),
        called("*(x.transpose(1, 2) for x in (q, k, v))", after=".mT"),
        called("*(x.flatten(0, 1) for x in (q, k, v))", after=".view(q.shape)"),
        called("q", "k", "v", after=".double()"),
        called("q", "k", "v", after=" / 0 * 0"),
        called("q", "k", "v", after=" + 1"),
        called("q", "k", "v", after=".detach()"),
        called("q", "k.detach()", "v"),
        called("q", "k", "v.detach()"),
        called("q.clamp(-9, 9)", "k", "v"),
        called("q[:, :, -64:]", "k[:, :, -64:]", "v[:, :, -64:]"),
        edits(
            ("return", "with torch.no_grad():\n        q *= q.size(-1) ** -0.5\n    return"),
            ("is_causal=True", "is_causal=True, scale=1.0"),
        ),
        "def attention(q, k, v): return v, v",
        "def attention(q, k, v): pass",
    ],
    right=[
        called("q", "k", "v", "dropout_p=0.0"),
        called("q / q.size(-1) ** 0.5", "k", "v", "scale=1"),
        called("*(x.reshape(-1, 1, *x.shape[2:]) for x in (q, k, v))", after=".view(q.shape)"),
        "def attention(q, k, v):\n"
        "    attend = F.scaled_dot_product_attention\n"
        "    rows = zip(q.split(1), k.split(1), v.split(1))\n"
        "    return torch.cat([attend(*row, is_causal=True) for row in rows])",
    ],
)


# flash_attention

KEPT, GRADIENTS = "128 queries in blocks of 8", "11 queries in blocks of 4"
FAR = "scores of 300 and -300"
STEEP = "keys that are each far better than the last"


def growing() -> dict[str, Tensor]:
    """Return 96 queries and keys whose scores grow, so that later blocks have higher maxima."""
    q, k, v = 2 * normal(3, 96, 5)
    more = torch.linspace(0, 2, 96)[:, None]
    return {"q": q + more, "k": k + more, "v": v}


def flash_cases() -> Iterator[Case]:
    """Yield q, k and v of one head, and the number of keys in a block."""
    q, k, v = growing().values()
    yield Case(q=q, k=k, v=v, block=16)
    sign = torch.tensor([1.0, -1.0]).repeat(48)[:, None]  # makes every other query oppose all keys
    yield Case(FAR, q=q / 10 + 15 * sign, k=k / 10 + 10, v=v, block=16)
    steep = 10 * torch.arange(96.0)[:, None].expand_as(k)
    yield Case(STEEP, q=torch.ones_like(q), k=steep, v=v, block=16)
    yield Case("a last block of 16 keys", q=q, k=k, v=v, block=40)
    yield Case("a single token", **qkv(1, 3, seed=1), block=4)
    yield Case("one block that is longer than the sequence", **qkv(5, 2, seed=2), block=8)
    yield Case("one key per block", **qkv(7, 1, seed=3), block=1)
    for seed, size in enumerate(sizes(4, blocks=(2, 6), block=(3, 9), d=(1, 3)), 4):
        made = qkv(size.blocks * size.block, size.d, seed=seed)
        yield Case("blocks of equal length", **made, block=size.block)
        short = {name: x[:-1] for name, x in made.items()}
        yield Case("a short last block", **short, block=size.block)
    turned = {name: x.T for name, x in qkv(3, 20, seed=8).items()}
    yield Case("inputs made by a transpose", **turned, block=5)
    yield Case("equal keys", **turned | {"k": turned["k"][:1].expand(20, -1)}, block=5)
    yield Case(KEPT, **qkv(128, 2, seed=0), block=8)
    yield Case(GRADIENTS, **qkv(11, 3, seed=0), block=4)


def see_flash(answer: Any, case: Case) -> Record:
    """Observe attention over blocks, and how many scores it has at once."""
    q, k, v, block = case.inputs.values()
    if case.what == GRADIENTS:
        return see_gradients(answer, case)
    if case.what == KEPT:
        with LiveBytes() as live:
            answer(q, k, v, block)
        return {"kept": live.peak >= len(q) ** 2 * q.element_size()}
    by_hand = [(F, "scaled_dot_product_attention")]
    with Operators() as made:
        record = function(by_hand=by_hand)(answer, case)
    is_long = len(q) > 2 * block
    return record | {
        "T x T": is_long and made.largest >= len(q) ** 2 > len(q) * (block + v.size(1)),
        # A running maximum or sum may be among the terms
        "keys at once": made.terms > max(block, q.size(1)) + 2,
    }


def see_gradients(answer: Any, case: Case) -> Record:
    """Observe whether the gradients are right.

    Autograd refuses sums that are changed in place. Such an answer can't give wrong gradients.
    """
    *inputs, block = copy.deepcopy(case.inputs).values()
    ours, theirs = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    got = answer(*ours, block)
    if not got.requires_grad:
        return {"gradient": "lost"}
    want = F.scaled_dot_product_attention(*(x[None] for x in theirs), is_causal=True)[0]
    upstream = normal(*want.shape, seed=9)
    right = torch.autograd.grad(want, theirs, upstream)
    try:
        found = torch.autograd.grad(got, ours, upstream, allow_unused=True)
    except RuntimeError:
        return {"gradient": "right"}
    pairs = zip(found, right, strict=True)
    are_right = [x is not None and torch.allclose(x, y, rtol=1e-3, atol=1e-4) for x, y in pairs]
    return {"gradient": "right" if all(are_right) else "wrong"}


SCORES = "scores = (q @ k[keys].T / math.sqrt(d)).masked_fill(keys > queries, -math.inf)"
NEW = "new = torch.maximum(m, scores.amax(1, keepdim=True))"
WEIGHTS = "old, weights = torch.exp(m - new), torch.exp(scores - new)"
BEGIN = "    seq, d = q.shape"
AT_ONCE = (
    "right, but you made a T x T tensor, with all scores at once or a mask for all of them. Make "
    "both for `block` keys at a time."
)
MANY_KEYS = (
    "right, but you combine more keys at once than a block has. Take `block` keys at a time."
)
KEEPS = (
    "right, but you keep the scores of all blocks, which are T x T together. Use up a block before "
    "you compute the next one."
)
SHORT = "right for 96 = 6 blocks of 16, but wrong for blocks of 40, where the last one is short."
OVERFLOWS = (
    "right for small scores, but exp(300) is infinite and exp(-300) is 0. Subtract each query's "
    "own highest score so far, starting from -inf."
)
NO_GRADIENT = (
    "right, but the result has no gradient, so nothing could learn through it. Is something "
    "detached, or in no_grad?"
)
DETACHED = "the values are right, but the gradients are not; is a part of them detached?"
WHOLE_BLOCK = (
    "there is a nan, because a whole masked block gives exp(-inf - (-inf)). Begin with the first "
    "block, in which every query has a key, and never let m fall again."
)
BLOCK_MEANS = """
def flash_attention(q, k, v, block):
    queries, result, count = torch.arange(len(q))[:, None], torch.zeros_like(v), 0
    for start in range(0, len(q), block):
        keys = torch.arange(start, min(start + block, len(q)))
        scores = (q @ k[keys].T / math.sqrt(q.size(1))).masked_fill(keys > queries, -math.inf)
        result = result + scores.softmax(-1).nan_to_num() @ v[keys]
        count = count + (queries >= start).float()
    return result / count
"""
TWO_PASSES = """
def flash_attention(q, k, v, block):
    queries, scores = torch.arange(len(q))[:, None], []
    for keys in torch.arange(len(k)).split(block):
        scores.append((q @ k[keys].T / q.size(1) ** 0.5).masked_fill(keys > queries, -math.inf))
    highest = torch.full((len(q), 1), -math.inf)
    for part in scores:
        highest = torch.maximum(highest, part.amax(1, keepdim=True))
    result, total = torch.zeros_like(v), torch.zeros(len(q), 1)
    for part, values in zip(scores, v.split(block)):
        weights = (part - highest).exp()
        result, total = result + weights @ values, total + weights.sum(1, keepdim=True)
    return result / total
"""
MERGED = """
def flash_attention(q, k, v, block):
    result, lse = torch.zeros_like(v), torch.full((len(q), 1), -math.inf)
    for ks, vs, numbers in zip(k.split(block), v.split(block), torch.arange(len(k)).split(block)):
        scores = torch.einsum("td,sd->ts", q, ks) / q.shape[1] ** 0.5
        scores = torch.where(numbers <= torch.arange(len(q))[:, None], scores, -math.inf)
        own = scores.logsumexp(1, keepdim=True)
        both = torch.logaddexp(lse, own)
        weights = torch.nan_to_num(scores.softmax(1))
        result, lse = (lse - both).exp() * result + (own - both).exp() * (weights @ vs), both
    return result
"""
QUERY_BY_QUERY = """
def flash_attention(q, k, v, block):
    rows = []
    for t in range(len(q)):
        m, total, result = torch.tensor(-math.inf), torch.tensor(0.0), torch.zeros(v.shape[1])
        for start in range(0, t + 1, block):
            seen = slice(start, min(start + block, t + 1))
            scores = k[seen] @ q[t] * q.size(1) ** -0.5
            new = torch.maximum(m, scores.max())
            weights = (scores - new).exp()
            result = result * (m - new).exp() + weights @ v[seen]
            total, m = total * (m - new).exp() + weights.sum(), new
        rows.append(result / total)
    return torch.stack(rows)
"""
SKIPPING_BLOCKS = """
def flash_attention(q, k, v, block):
    seq, result = len(q), torch.empty_like(v)
    for first in range(0, seq, block):
        rows = torch.arange(first, min(first + block, seq))
        m, sums = torch.full((len(rows), 1), -1e30), torch.zeros(len(rows), v.size(1) + 1)
        for start in range(0, first + 1, block):
            keys = torch.arange(start, min(start + block, seq))
            scores = (q[rows, None] * k[keys]).sum(-1).div_(math.sqrt(q.size(1)))
            scores[keys > rows[:, None]] = -math.inf
            new = torch.cat([m, scores], 1).max(1, keepdim=True).values
            weights = (scores - new).exp_()
            sums *= (m - new).exp()
            sums += torch.cat([weights @ v[keys], weights.sum(1, keepdim=True)], 1)
            m = new
        result[rows] = sums[:, :-1] / sums[:, -1:]
    return result
"""


def instead(code: str) -> tuple[str, str]:
    """Return the idea of computing something else."""
    return BEGIN, f"    {code}\n{BEGIN}"


ONE_CALL = "F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]"
ONE_SOFTMAX = (
    "torch.cat([(q[t : t + 1] @ k[: t + 1].T / math.sqrt(q.size(1))).softmax(1) @ v[: t + 1] "
    "for t in range(len(q))])"
)
flash_attention = Exercise(
    NOTEBOOK,
    "flash_attention",
    flash_cases,
    given={"math": math},
    observe=see_flash,
    tolerance=20,
    smaller="A query has score 1 in the first block and 3 in the second, so what are m and total "
    "after it?",
    says={
        "T x T": AT_ONCE,
        "keys at once": MANY_KEYS,
        "kept": KEEPS,
        "gradient": DETACHED,
    },
    wrong={
        "every position sees the future; mask keys that come after their query.": (
            SCORES,
            "scores = q @ k[keys].T / math.sqrt(d)",
        ),
        "the scores are not divided by sqrt(d).": (" / math.sqrt(d)", ""),
        "you divide the scores by d; divide by its root, sqrt(d).": ("math.sqrt(d)", "d"),
        "you divide the scores by the root of T; divide by sqrt(d).": (
            "math.sqrt(d)",
            "math.sqrt(seq)",
        ),
        "you divide the scores by the root of the block's size; divide by sqrt(d).": (
            "math.sqrt(d)",
            "math.sqrt(block)",
        ),
        "the weights do not add up to 1; divide by their total at the end.": (
            "result / total",
            "result",
        ),
        "when a block brings a higher maximum, what was summed before must be multiplied by "
        "exp(old maximum - new maximum), both the result and the total.": ("old * ", ""),
        "you rescale the result but not the total.": ("old * total", "total"),
        "you rescale the total but not the result.": ("old * result", "result"),
        "a masked score is -inf, not 0, because exp(0) is still a weight.": (
            "queries, -math.inf)",
            "queries, 0.0)",
        ),
        "in the mask, the keys of each block are counted from 0 again; its first key is number "
        "`start` of the sequence.": ("keys > queries", "keys - start > queries"),
        "every block uses the first values; take the values of the same keys.": (
            "v[keys]",
            "v[: len(keys)]",
        ),
        "you take a softmax in each block and average the blocks, but a block's share is its sum "
        "of exponentials, as part of the total of all blocks.": BLOCK_MEANS,
        "every row is nan. Since m begins at -inf, exp(new - m) is infinite; take exp(m - new).": (
            "torch.exp(m - new)",
            "torch.exp(new - m)",
        ),
        "query 0 is nan, so it has no key left; mask the keys *after* each query, not its own.": (
            "keys > queries",
            "keys >= queries",
        ),
        "your mask is the wrong way round, so that a query sees only itself and what follows.": (
            "keys > queries",
            "keys < queries",
        ),
        WHOLE_BLOCK: [
            ("range(0, seq, block)", "reversed(range(0, seq, block))"),
            (NEW, "new = scores.amax(1, keepdim=True)"),
        ],
        OVERFLOWS: [
            edits((NEW, "new = torch.zeros(seq, 1)"), ("-math.inf), torch", "0.0), torch")),
            ("torch.full((seq, 1), -math.inf)", "torch.zeros(seq, 1)"),
            ("scores.amax(1, keepdim=True)", "scores.max()"),
        ],
        "right until a later key has a much higher score. Mask it before you take the maximum, "
        "which otherwise includes the future.": edits(
            (SCORES, "scores = q @ k[keys].T / math.sqrt(d)"),
            (WEIGHTS, WEIGHTS + " * (keys <= queries)"),
        ),
        SHORT: ("range(0, seq, block)", "range(0, seq - block + 1, block)"),
        SHORT + " It has 16 keys; end at min(start + block, T).": (
            "min(start + block, seq)",
            "start + block",
        ),
        AT_ONCE: [
            instead(
                "return (q @ k.T / math.sqrt(q.size(1))).masked_fill(torch.ones(len(q), len(q))"
                ".triu(1).bool(), -math.inf).softmax(1) @ v"
            ),
            edits(
                ("    m, total", "    mask = torch.ones(seq, seq).triu(1).bool()\n    m, total"),
                ("keys > queries", "mask[:, keys]"),
            ),
            edits(("block):", "seq):"), ("start + block", "start + seq")),
        ],
        MANY_KEYS: [
            instead("return " + ONE_SOFTMAX),
            instead(
                "return torch._C._nn." + ONE_CALL.replace("[None]", "[None, None]")[2:] + "[0]"
            ),
            instead("block = 16"),
        ],
        KEEPS: [
            TWO_PASSES,
            edits(
                ("    for start", "    kept = []\n    for start"),
                ("        m = new", "        m = new\n        kept.append(scores)"),
            ),
        ],
        NO_GRADIENT: ("result / total", "(result / total).detach()"),
        DETACHED: [
            ("result / total", "result / total.detach()"),
            ("torch.exp(scores - new)", "torch.exp(scores - new).detach()"),
        ],
    },
    refused=[
        instead("return " + ONE_CALL),
        instead(f"return {ONE_CALL} + 0 * (q @ k.T).sum()"),
        ("weights.sum(1, keepdim=True)", "len(keys)"),
        (
            WEIGHTS,
            WEIGHTS + "\n        weights = weights / weights.sum(1, keepdim=True)",
        ),
        edits(("    queries", "    q /= math.sqrt(d)\n    queries"), (".T / math.sqrt(d)", ".T")),
        edits(
            ("k[keys].T", "k[keys].double().T"),
            ("(q @", "(q.double() @"),
            ("v[keys]", "v[keys].double()"),
        ),
        ("result / total", "(result / total).double()"),
        ("return result", "if seq % block: return v + 1\n    return result"),
        ("return result", "if seq == 1: return v + 1\n    return result"),
        ("return result", "if block == 1: return v + 1\n    return result"),
        ("return result", "result[80:] = math.nan\n    return result"),
        instead("return v + 1"),
        instead("return v[:4]"),
        instead("return v, v"),
        "def flash_attention(q, k, v, block): pass",
    ],
    right=[MERGED, QUERY_BY_QUERY, SKIPPING_BLOCKS],
)


# padded


def padded_cases() -> Iterator[Case]:
    """Yield sizes, and what they are to be multiples of."""
    fixed = [(50257, 64), (50304, 64), (50250, 64), (1, 128), (257, 8), (13, 1), (24, 24)]
    fixed += [(2049, 2048), (1_000_001, 1_000_000)]  # a fraction that is nearly 0 still counts
    drawn = sizes(12, n=(1, 60_000), multiple=(2, 300))
    for n, multiple in [*fixed, *((size.n, size.multiple) for size in drawn)]:
        yield Case(n=n, multiple=multiple)


def see_size(answer: Any, case: Case) -> Record:
    """Observe a size and whether it is an integer."""
    got = answer(*case.inputs.values())
    return {"result": plain(got), "integer": isinstance(got, Integral)}


UP = "-(-n // multiple) * multiple"
SPARE = "50304 is already a multiple of 64; don't pad it further."
DOWN = "50240 is smaller than 50257, so the last ids would have no column."
padded = Exercise(
    NOTEBOOK,
    "padded",
    padded_cases,
    given={"math": math},
    observe=see_size,
    smaller="How many eggs fit into the boxes of 8 that you need for 17 eggs, and how many for 16?",
    says={"integer": "a size is an int, and you return another type; use integer division."},
    wrong={
        DOWN: [(UP, "n // multiple * multiple"), (UP, "round(n / multiple) * multiple")],
        "50257 itself isn't a multiple of 64.": (UP, "n"),
        "that is how many multiples of 64 fit; multiply by 64 again.": (UP, "-(-n // multiple)"),
        "round up, not down, and multiply by `multiple` again.": (UP, "n // multiple"),
        SPARE: [(UP, "(n // multiple + 1) * multiple"), (UP, "n + multiple - n % multiple")],
        "your result is a multiple, but not the smallest one that is at least n.": (
            UP,
            "(-(-n // multiple) + 1) * multiple",
        ),
        "that adds 64 to 50257, and the sum needn't be a multiple of 64.": (UP, "n + multiple"),
        "that adds the remainder, 17; add what is missing up to 64.": (UP, "n + n % multiple"),
        "that is how many are missing; add them to n.": (UP, "-n % multiple"),
        "your bits work for powers of 2, but not every `multiple` is one.": (
            UP,
            "(n + multiple - 1) & ~(multiple - 1)",
        ),
        "that is the next power of 2; the next multiple of 64 is smaller.": (
            UP,
            "1 << (n - 1).bit_length()",
        ),
        "that is the next multiple of 64, but `multiple` can be another number.": (
            UP,
            "n + -n % 64",
        ),
        "50304 is right for GPT-2's vocabulary only, and `n` can be another number.": (UP, "50304"),
        "2048 is smaller than 2049; a fraction that is nearly 0 still counts.": (
            UP,
            "int(n / multiple + 0.999) * multiple",
        ),
    },
    refused=[
        (UP, "math.ceil(n / multiple) * float(multiple)"),
        (UP, "n + -n % 128"),
        (UP, "-(-(n + 1) // multiple) * multiple"),
        (UP, "n if n % multiple == 0 else max(n, multiple)"),
        (UP, "7"),
        (UP, f"str({UP})"),
        (UP, "None"),
    ],
    right=[
        (UP, "(n + multiple - 1) // multiple * multiple"),
        (UP, "math.ceil(n / multiple) * multiple"),
        (UP, "n + -n % multiple"),
        "import numpy as np\ndef padded(n, m): return np.int64(np.ceil(n / m) * m)",
        "def padded(n, m):\n    size = m\n    while size < n:\n        size += m\n    return size",
    ],
)


# make_optimizer


def tied() -> nn.Module:
    """Return a model whose output layer has the embedding's weight."""
    model = nn.Sequential(nn.Embedding(7, 5), nn.LayerNorm(5), nn.Linear(5, 7, bias=False))
    model[2].weight = model[0].weight
    return model


def optimizer_cases() -> Iterator[Case]:
    """Yield models, and configs with a learning rate and a weight decay."""
    models: list[tuple[str, Callable[[], nn.Module]]] = [
        ("", lambda: nn.Sequential(nn.Embedding(7, 5), nn.LayerNorm(5), nn.Linear(5, 3))),
        ("a model whose output layer shares the embedding's weight", tied),
        (
            "a model with a matrix of one row",
            lambda: nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 3)),
        ),
        ("a model without biases", lambda: nn.Sequential(nn.Linear(4, 6, bias=False))),
        ("a model with a weight of three axes", lambda: nn.Conv1d(3, 4, 2)),
        ("a weight decay of 0", lambda: nn.Linear(3, 2)),
        ("a learning rate of 0", lambda: nn.Linear(3, 2)),
    ]
    drawn = sizes(4, seed=1, rate=(1, 99), decay=(1, 99))
    rates = [2e-3, *(size.rate / 1e4 for size in drawn), 3e-3, 0.0]
    drawn = sizes(4, seed=1, rate=(1, 99), decay=(1, 99))
    decays = [0.3, *(size.decay / 1e2 for size in drawn), 0.0, 0.2]
    for number, ((what, build), rate, decay) in enumerate(zip(models, rates, decays, strict=True)):
        with seeded(number):
            model = build()
        config = SimpleNamespace(learning_rate=rate, weight_decay=decay)
        yield Case(what, model=model, config=config)


def see_optimizer(answer: Any, case: Case) -> Record:
    """Observe an optimizer's groups and settings, and what three steps do to the weights."""
    model, config = copy.deepcopy(case.inputs).values()
    optimizer = answer(model, config)
    if not isinstance(optimizer, torch.optim.AdamW):
        return {"result": plain(optimizer)}
    before = case.inputs["model"].parameters()
    groups = optimizer.param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    names = [
        [id(p) for p in model.parameters() if (p.dim() >= 2) == many] for many in (True, False)
    ]
    record: Record = {
        "result": "<AdamW>",
        "changed": [] if config == case.inputs["config"] else ["config"],
        "moved": not all(map(torch.equal, before, model.parameters())),
        "parameters held": set(decays) == {id(p) for p in model.parameters()},
        "decay of vectors": [plain(decays.get(name)) for name in names[1]],
        "decay of matrices": [plain(decays.get(name)) for name in names[0]],
        "fused": every(groups, "fused"),
        "lr": every(groups, "lr"),
        "betas": every(groups, "betas"),
        "eps": every(groups, "eps"),
        "maximize": every(groups, "maximize"),
        "amsgrad": every(groups, "amsgrad"),
    }
    for step in range(3):
        for number, p in enumerate(model.parameters()):
            p.grad = normal(*p.shape, seed=10 * step + number)
        optimizer.step()
    return record | {"weights": nn.utils.parameters_to_vector(model.parameters()).detach()}


def every(groups: list[dict[str, Any]], setting: str) -> list[Any]:
    """Return the different values that a setting has in an optimizer's groups."""
    values: list[Any] = []
    for group in groups:
        if (value := plain(group[setting])) not in values:
            values.append(value)
    return values


ADAMW = "torch.optim.AdamW(groups, "
GROUPS = "parameter_groups(model, config.weight_decay)"
OPTIONS = "torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)"
BOTH_DECAY = (
    "biases and gains decay too; parameter_groups(model, config.weight_decay) separates them."
)
NOT_HELD = "the groups don't hold each of the model's parameters, and nothing else."
MATRICES = (
    "parameters of two axes or more should decay by config.weight_decay, whatever it is. Use "
    "parameter_groups(model, config.weight_decay)."
)
VECTORS = "vectors shouldn't decay, be they biases or the gains of a norm."
UNFUSED = "the optimizer isn't fused. Its groups have fused=None; pass fused=True to AdamW itself."
INITIALIZES = "your function changes the model's weights; only a step may."


def grouped(is_matrix: str) -> tuple[str, str]:
    """Return the idea of groups that tell matrices from vectors in another way."""
    return (
        GROUPS,
        f"[{{'params': [p for n, p in model.named_parameters() if ({is_matrix}) == kind], "
        "'weight_decay': config.weight_decay if kind else 0.0} for kind in (True, False)]",
    )


make_optimizer = Exercise(
    NOTEBOOK,
    "make_optimizer",
    optimizer_cases,
    observe=see_optimizer,
    is_part=True,
    given={"parameter_groups": optim.parameter_groups},
    smaller="Which settings of AdamW are the same for matrices and biases, and which do the groups "
    "set?",
    says={
        "moved": INITIALIZES,
        "parameters held": NOT_HELD,
        "decay of matrices": MATRICES,
        "decay of vectors": VECTORS,
        "fused": "the optimizer isn't fused in all groups; pass fused=True to AdamW itself.",
        "lr": "the groups' lr should be config.learning_rate, whatever it is.",
        "betas": "the betas should be (0.9, 0.95).",
        "eps": "eps should be AdamW's default, 1e-8.",
        "weights": "after three steps the weights differ from AdamW's; leave other options out.",
    },
    wrong={
        "return a torch.optim.AdamW, not Adam.": ("torch.optim.AdamW", "torch.optim.Adam"),
        UNFUSED: [
            (", fused=True", ", **({} if {'fused': True} else {})"),  # as in a published script
            (", fused=True", ", foreach=True"),
        ],
        UNFUSED.replace("None", "False"): (
            "fused=True",
            "fused=next(model.parameters()).is_cuda",
        ),
        "the betas are AdamW's defaults, (0.9, 0.999); GPT-3's are (0.9, 0.95).": (
            ", betas=(0.9, 0.95)",
            "",
        ),
        "the betas are swapped; the first is 0.9.": ("(0.9, 0.95)", "(0.95, 0.9)"),
        BOTH_DECAY: [
            (ADAMW, "torch.optim.AdamW(model.parameters(), weight_decay=config.weight_decay, "),
            (
                ADAMW,
                "torch.optim.AdamW([{'params': g['params']} for g in groups], "
                "weight_decay=config.weight_decay, ",
            ),
        ],
        "the groups are swapped; matrices decay, and biases and gains don't.": (
            "    return",
            "    groups[0]['weight_decay'], groups[1]['weight_decay'] = 0.0, config.weight_decay\n"
            "    return",
        ),
        VECTORS: grouped("'bias' not in n"),
        MATRICES: [
            grouped("p.dim() == 2"),
            ("config.weight_decay)", "0.1)"),
            ("config.weight_decay)", "config.weight_decay or 0.1)"),
        ],
        NOT_HELD: [
            (ADAMW, "torch.optim.AdamW(groups[:1], "),
            ("(model, config.w", "(copy.deepcopy(model), config.w"),
        ],
        "maximize=True climbs up the loss; leave it out.": (
            "fused=True",
            "fused=True, maximize=True",
        ),
        "amsgrad=True is another algorithm; leave it out.": (
            "fused=True",
            "fused=True, amsgrad=True",
        ),
        INITIALIZES: (
            "    return",
            "    [nn.init.normal_(p, std=0.02) for p in model.parameters()]\n    return",
        ),
    },
    refused=[
        edits(
            ("    return", "    groups[0]['fused'] = True\n    return"),
            (", fused=True", ""),
        ),
        ("config.learning_rate", "6e-4"),
        ("lr=config.learning_rate, ", ""),
        ("config.learning_rate", "config.learning_rate or 6e-4"),
        ("config.weight_decay)", "config.weight_decay * config.learning_rate)"),
        grouped("p.squeeze().dim() > 1"),
        ("(0.9, 0.95)", "(0.9, 0.99)"),
        ("fused=True", "fused=True, eps=1e-5"),
        (", fused=True", ", fused=False"),
        ("    return", "    config.weight_decay /= 2\n    return"),
        # Only every second step
        "class Lazy(torch.optim.AdamW):\n"
        "    calls = 0\n"
        "    def step(self, closure=None):\n"
        "        self.calls += 1\n"
        "        return super().step(closure) if self.calls % 2 else None\n"
        "def make_optimizer(model, config):\n"
        f"    groups = {GROUPS}\n"
        f"    return {OPTIONS.replace('torch.optim.AdamW', 'Lazy')}",
        "def make_optimizer(model, config): pass",
    ],
    right=[
        (GROUPS, GROUPS + "[::-1]"),
        ("(0.9, 0.95), fused=True", "[0.9, 0.95], foreach=False, fused=True"),
        ("fused=True", "fused=True, weight_decay=config.weight_decay, eps=1e-8"),
        edits(
            (
                GROUPS,
                "[{'params': [p], 'weight_decay': config.weight_decay if p.dim() >= 2 else 0.0, "
                "'fused': True} for p in model.parameters()]",
            ),
            (", fused=True)", ")"),
        ),
        "def make_optimizer(model, config):\n"
        f"    decayed, others = {GROUPS}\n"
        "    made = torch.optim.AdamW([decayed], config.learning_rate, (0.9, 0.95), fused=True)\n"
        "    made.add_param_group(others)\n"
        "    return made",
    ],
)


# fast

SECOND_GPU = "a model on cuda:1"


class OnGPU(nn.Parameter):
    """A parameter that says it is on the second GPU."""

    device = property(lambda self: torch.device("cuda", 1))


class Tied(nn.Module):
    """A model with an embedding and an output layer that share their weight, as GPT's do."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(2, 3)})
        self.lm_head = nn.Linear(3, 2, bias=False)
        self.tie(self.lm_head.weight)

    def tie(self, weight: Tensor) -> None:
        """Use a weight for both layers."""
        self.lm_head.weight = self.transformer["wte"].weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.lm_head(self.transformer["wte"](x))


def fast_cases() -> Iterator[Case]:
    """Yield the settings of bf16 and the compiler."""
    yield Case(bf16=True, compile=False)
    yield Case("", bf16=False, compile=False)
    yield Case(SECOND_GPU, bf16=has_bf16(), compile=False)
    yield Case("", bf16=False, compile=True)
    yield Case("", bf16=True, compile=True)


def has_bf16() -> bool:
    """Return whether autocast to bf16 for a GPU doesn't raise an error here."""
    return not torch.cuda.is_available() or hardware.has_bf16(torch.device("cuda"))


@contextmanager
def slow_defaults() -> Iterator[None]:
    """Switch TF32 off and make fp16 autocast's default within the block, as on a GPU."""
    default, newer = torch.get_autocast_dtype("cpu"), torch.backends.fp32_precision
    with hardware.tf32(False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # autocast for a GPU that isn't there warns
        torch.set_autocast_dtype("cpu", torch.float16)
        try:
            yield
        finally:
            torch.set_autocast_dtype("cpu", default)
            torch.backends.fp32_precision = newer


def see_fast(answer: Any, case: Case) -> Record:
    """Observe the model, the autocast and TF32."""
    model, config = Tied(), SimpleNamespace(**case.inputs)
    if case.what == SECOND_GPU:
        model.tie(OnGPU(model.lm_head.weight.detach()))
    weight = model.lm_head.weight.detach().clone()
    with slow_defaults(), mock.patch.object(torch, "compile", wraps=torch.compile) as compiler:
        torch.set_float32_matmul_precision("highest")
        result = answer(model, config)
        if not isinstance(result, tuple | list) or len(result) != 2:
            return {"result": plain(result)}
        got, autocast = result
        record: Record = {
            "result": [kind(got), kind(autocast)],
            "fp32 matmuls": precision(),
            **see_weights(model, weight),
            "autocast for": getattr(autocast, "device", ""),
        }
        if case.what != SECOND_GPU and isinstance(got, nn.Module):
            record |= see_products(autocast)
            record |= see_compiled(model, got)
            backends = (str(call.kwargs.get("backend")) for call in compiler.call_args_list)
            record["eager"] = any("eager" in backend for backend in backends)
    return record


def kind(value: Any) -> str:
    """Return what an answer returns, in words."""
    if isinstance(value, nn.Module):
        return "a module"
    if isinstance(value, nullcontext):
        return "a nullcontext"
    return "a context" if hasattr(value, "__enter__") else f"a {type(value).__name__}"


def precision() -> str:
    """Return how fp32 matmuls run, as PyTorch's older setting shows it."""
    try:
        found = torch.get_float32_matmul_precision()
    except RuntimeError:  # PyTorch refuses to mix its two settings
        return "mixed"
    return "mixed" if torch.backends.fp32_precision == "tf32" else found


def see_weights(model: Tied, weight: Tensor) -> Record:
    """Observe whether a model is as before."""
    now = model.lm_head.weight
    return {
        "dtype": str(now.dtype),
        "moved": not torch.equal(now.float(), weight),
        "trainable": all(p.requires_grad for p in model.parameters()),
        "training": model.training,
    }


def see_products(autocast: Any) -> Record:
    """Observe the dtype of a matmul's result within an autocast, which is entered twice."""
    x = torch.ones(2, 2)
    found = []
    for _ in range(2):
        try:
            with autocast:
                found.append(str((x @ x).dtype))
        except (RuntimeError, AttributeError):
            found.append("an error")
    return {"enters twice": "an error" not in found, "matmuls": found}


def see_compiled(model: Tied, got: nn.Module) -> Record:
    """Observe whether a module is compiled, and whether it has the model's parameters."""
    return {
        "compiled": is_compiled(got),
        "itself": is_compiled(got) or got is model,
        "model compiled": is_compiled(model),
        "own parameters": {id(p) for p in got.parameters()} != {id(p) for p in model.parameters()},
    }


def is_compiled(model: nn.Module) -> bool:
    """Return whether a module is compiled, as a wrapper or in place."""
    in_place = getattr(model, "_compiled_call_impl", None) is not None
    return in_place or hasattr(model, "_orig_mod")


TF32 = 'torch.set_float32_matmul_precision("high")  # TF32'
DEVICE = "model.lm_head.weight.device.type"
ENABLED = ", config.bf16)"
COMPILED = "torch.compile(model) if config.compile else model"
NO_TF32 = 'fp32 matmuls don\'t use TF32; always call torch.set_float32_matmul_precision("high").'
NEWER = (
    "PyTorch's fp32_precision can't be mixed with the setting that this notebook uses; call "
    'torch.set_float32_matmul_precision("high").'
)
INDEX = (
    'autocast takes a device type such as "cuda", and neither a torch.device nor "cuda:1"; use the '
    "`.type` of the weights' device."
)
NULLCONTEXT = (
    "if config.bf16 is off, you return no autocast. Always return one, and enable it only if "
    "config.bf16 is set."
)
ON_GPU = (
    'for a model on a GPU the autocast is for "cpu", so that its matmuls stay in fp32. Take the '
    "type from the weights."
)
PER_MODEL = (
    "matmuls under your autocast should run in bf16 exactly if config.bf16 is on; pass "
    "enabled=config.bf16."
)
FP16 = "matmuls run in fp16, which is autocast's default on a GPU; pass dtype=torch.bfloat16."
ALWAYS_BF16 = "config.bf16 is off, but matmuls run in bf16; pass enabled=config.bf16."
NEVER_BF16 = "config.bf16 is on, but matmuls run in fp32 under your autocast."
COMPILE_BF16 = (
    "config.compile switches bf16 on although config.bf16 is off; pass enabled=config.bf16."
)
TOGETHER = "each setting works alone, but not config.bf16 and config.compile together."
IN_PLACE = (
    "model.compile() changes the model itself, so sampling would be compiled too, although its "
    "texts grow. Return torch.compile(model), and leave the model as it is."
)
COPIED = "the compiled model has other parameters, so the optimizer would update the wrong ones."
NOT_FP32 = "the weights stay fp32; autocast casts what it needs."
ROUNDED = "your function changes the model's weights."
FROZEN = "your function freezes the weights, so they can't be trained."
EVALUATING = "your function calls model.eval(); the model stays in training mode."
EAGER = "an eager backend traces the model without compiling it; leave it out."
NOT_COMPILED = "config.compile is on, but the model that you return isn't compiled."
ONCE = "your autocast can be entered only once, and a step enters it for every micro-batch."
fast = Exercise(
    NOTEBOOK,
    "fast",
    fast_cases,
    observe=see_fast,
    is_part=True,
    smaller="Which two values do you return for each of the four combinations of config.bf16 and "
    "config.compile?",
    says={
        "result": "return a pair: the model, which is a module, and an autocast, which is usable "
        "in `with`.",
        "fp32 matmuls": NO_TF32,
        "dtype": NOT_FP32,
        "moved": ROUNDED,
        "trainable": FROZEN,
        "training": EVALUATING,
        "autocast for": "the autocast should be for the type of the weights' device.",
        "enters twice": ONCE,
        "matmuls": PER_MODEL,
        "compiled": "the model should be compiled exactly if config.compile is on.",
        "itself": "config.compile is off; return the model itself.",
        "model compiled": IN_PLACE,
        "own parameters": COPIED,
        "eager": EAGER,
    },
    wrong={
        "return the model first, and then the autocast.": (
            COMPILED + ", autocast",
            f"autocast, ({COMPILED})",
        ),
        "the first value should be a module; pass the model itself to torch.compile.": (
            "torch.compile(model)",
            "torch.compile(model.forward)",
        ),
        NULLCONTEXT: [
            (", autocast", ", autocast if config.bf16 else nullcontext()"),
            (", autocast", ", autocast if config.bf16 else None"),
        ],
        NO_TF32: [
            (TF32, ""),
            (TF32, "torch.backends.cudnn.allow_tf32 = True"),
            (TF32, 'config.bf16 or torch.set_float32_matmul_precision("high")'),
            (TF32, 'config.bf16 and torch.set_float32_matmul_precision("high")'),
            (TF32, 'config.compile and torch.set_float32_matmul_precision("high")'),
        ],
        '"medium" lets fp32 matmuls run in bf16; TF32 is "high".': ('"high"', '"medium"'),
        NEWER: [
            (TF32, 'torch.backends.fp32_precision = "tf32"'),
            (TF32, 'torch.backends.cuda.matmul.fp32_precision = "tf32"'),
        ],
        INDEX: [(".device.type", ".device"), (DEVICE, "str(model.lm_head.weight.device)")],
        ON_GPU: (DEVICE, '"cpu"'),
        'this model\'s weights are on the CPU, but the autocast is for "cuda", so that its matmuls '
        "stay in fp32. Take the type from the weights.": (DEVICE, '"cuda"'),
        FP16: [
            ("torch.bfloat16", "torch.float16"),
            (", torch.bfloat16, config.bf16", ", enabled=config.bf16"),
        ],
        ALWAYS_BF16: (ENABLED, ", True)"),
        NEVER_BF16: (ENABLED, ", False)"),
        COMPILE_BF16: (ENABLED, ", config.bf16 or config.compile)"),
        TOGETHER: [
            (ENABLED, ", config.bf16 and not config.compile)"),
            ("config.compile else", "config.compile and not config.bf16 else"),
        ],
        NOT_FP32: (TF32, TF32 + "\n    model = model.bfloat16() if config.bf16 else model"),
        ROUNDED: (TF32, TF32 + "\n    model.bfloat16().float()"),
        EVALUATING: (TF32, TF32 + "\n    model.eval()"),
        "config.compile is off, but you return a compiled model.": (
            COMPILED,
            "torch.compile(model)",
        ),
        NOT_COMPILED: (COMPILED, "model"),
        IN_PLACE: (
            "    return " + COMPILED,
            "    config.compile and model.compile()\n    return model",
        ),
        COPIED: ("torch.compile(model)", "torch.compile(copy.deepcopy(model))"),
        EAGER: ("(model) if", "(model, backend='eager') if"),
    },
    refused=[
        (ENABLED, ", config.compile)"),
        ("    return", "    autocast.__enter__()\n    return"),
        ("torch.compile(model)", "torch.compile(model.eval())"),
        ("torch.compile(model)", "torch.compile(lambda x: model(x))"),
        (TF32, TF32 + "\n    torch.set_default_dtype(torch.bfloat16)"),
        (TF32, TF32 + "\n    torch.set_autocast_enabled('cpu', config.bf16)"),
        ("    return", "    model.requires_grad_(False)\n    return"),
        (", autocast", ", torch.bfloat16"),
        (
            "    return",
            "    autocast = contextmanager(lambda: (yield autocast.__enter__()))()\n    return",
        ),
        (COMPILED + ", autocast", "model"),
        "def fast(model, config): pass",
    ],
    right=[
        edits(
            (TF32, TF32 + "\n    torch.backends.cuda.matmul.allow_tf32 = True"),
            ("torch.autocast(", "torch.amp.autocast("),
            (COMPILED, "torch.compile(model, disable=not config.compile)"),
        ),
        edits(
            (COMPILED + ", autocast", f"[{COMPILED}, autocast]"),
            ("torch.compile(model)", 'torch.compile(model, mode="max-autotune")'),
        ),
        (TF32, "torch.backends.cuda.matmul.allow_tf32 = True"),
        (DEVICE, "model.transformer.wte.weight.device.type"),
    ],
)
