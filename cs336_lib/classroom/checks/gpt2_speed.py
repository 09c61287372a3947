"""Checks of notebook 09 on throughput, TF32, padding, AdamW, flash attention and Amdahl's law."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cs336_lib.classroom.checks.report import DiagnosisError, exercise, expect


def expect_number(got: object, want: float, what: str, mistakes: Mapping[str, float]) -> None:
    """Fail unless `got` is `want`, with the diagnosis of a known mistake if one fits."""
    expect(got is not None, "your function returns None; is the `return` missing?")
    number = isinstance(got, int | float) and not isinstance(got, bool)
    expect(number, f"a number is expected, not {type(got).__name__}.")
    if math.isclose(got, want, rel_tol=1e-6):
        return
    for diagnosis, wrong in mistakes.items():
        if math.isclose(got, wrong, rel_tol=1e-6):
            raise DiagnosisError(diagnosis)
    raise DiagnosisError(f"{what} is {want:,.6g}, and you get {got:,.6g}.")


@exercise
def speed(answer: Callable[[float, int, float, float], tuple[float, float]]) -> None:
    """Check tokens per second and MFU, computed from milliseconds per step."""
    for ms, tokens, flops, peak in ((250.0, 8192, 1e9, 100e12), (40.0, 512, 3e7, 2e12)):
        got = answer(ms, tokens, flops, peak)
        expect(got is not None, "your function returns None; is the `return` missing?")
        pair = isinstance(got, tuple | list) and len(got) == 2
        expect(pair, "return a pair: tokens per second, and MFU.")
        rate, share = tokens / (ms / 1e3), tokens * flops / (ms / 1e3) / peak
        case = f"for {tokens} tokens in {ms:g} ms"
        slips = {
            "that is per millisecond; a second has 1000 of them.": tokens / ms,
            "you multiplied by the time; a rate is divided by it.": tokens * ms / 1e3,
            "milliseconds become seconds by dividing by 1000, not by multiplying.": tokens
            / ms
            / 1e3,
        }
        expect_number(got[0], rate, f"{case}: tokens per second", slips)
        slips = {
            "MFU: the FLOPs you were given are per token; a step does them for every token.": (
                share / tokens
            ),
            "MFU: the time is in milliseconds, the peak in FLOPs per second.": share / 1e3,
            "MFU: the peak is in FLOPs per second; you divide a whole step's FLOPs by it.": (
                tokens * flops / peak
            ),
            "MFU is a share, from 0 to 1; you return a percentage.": 100 * share,
            "MFU: that is inverted; divide what the model needs by what the chip could do.": 1
            / share,
        }
        expect_number(got[1], share, f"{case}: MFU", slips)


def kept_bits(x: Tensor, bits: int) -> Tensor:
    """Round fp32 numbers to the nearest with `bits` bits of fraction."""
    dropped = 23 - bits
    return ((x.view(torch.int32) + (1 << (dropped - 1))) >> dropped << dropped).view(torch.float32)


@exercise
def to_tf32(answer: Callable[[Tensor], Tensor]) -> None:
    """Check that fp32 numbers are rounded to nearest with 10 bits of fraction."""
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    try:
        got = answer(x)
    except NotImplementedError as error:
        expect(
            "shift" not in str(error), "only integers can be shifted: x.view(torch.int32) first."
        )
        raise
    expect(isinstance(got, Tensor), "return a tensor; is the `return` missing?")
    expect(torch.equal(x, before), "you changed your argument; work on a copy.")
    expect(
        got.dtype != torch.int32, "you return the bits as int32; view them as torch.float32 again."
    )
    expect(
        got.dtype == torch.float32,
        f"TF32 lives in 32-bit storage: return float32, not {str(got.dtype).split('.')[1]}.",
    )
    expect(
        not (got.isnan() | (got == 0)).all(),
        "all zeros (or nan): .int() converts the values; .view(torch.int32) shows their bits.",
    )
    truncated = (x.view(torch.int32) >> 13 << 13).view(torch.float32)
    expect(not torch.equal(got, x), "nothing was rounded.")
    expect(
        not torch.equal(got, truncated),
        "you cut the last 13 bits off; to round to nearest, first add half of what you cut.",
    )
    expect(
        not torch.equal(got, kept_bits(x, 7)), "7 bits of fraction is bf16; TF32 keeps 10 of them."
    )
    expect(
        not torch.equal(got, kept_bits(x, 13)),
        "you keep 13 bits and drop 10; TF32 keeps 10 and drops 13.",
    )
    expect(
        not torch.equal(got, ((x.view(torch.int32) + (1 << 13)) >> 13 << 13).view(torch.float32)),
        "you add all of what you cut, so everything is rounded up; add half of it: 1 << 12.",
    )
    expect(
        not torch.equal(got, (x * 1024).round() / 1024),
        "you keep 10 bits after the binary point; the fraction's bits come after the leading 1 of "
        "each number, wherever its point is.",
    )
    expect(
        got.nan_to_num().abs().max() < 1e6,
        "the numbers are huge: .float() converts the integers; .view(torch.float32) reads their "
        "bits as floats.",
    )
    expect(torch.equal(got, kept_bits(x, 10)), "the result is not x with 10 bits of fraction.")
    large = torch.tensor([1e10, -3e-20])
    expect(
        torch.equal(answer(large), kept_bits(large, 10)),
        "1e10 or 3e-20 went wrong: TF32 has fp32's 8 exponent bits (fp16 has 5).",
    )


@exercise
def padded(answer: Callable[[int, int], int]) -> None:
    """Check the smallest multiple of `multiple` that is at least n."""
    got = answer(50257, 64)
    expect(got is not None, "your function returns None; is the `return` missing?")
    expect(got != 50240, "50240 is smaller than 50257, so the last ids would have no column.")
    expect(got not in (785, 786), f"{got} is how many multiples; multiply by `multiple` again.")
    expect(got == 50304, f"padded(50257, 64) is 50304, not {got}.")
    expect(
        answer(50304, 64) != 50368,
        "50304 is already a multiple of 64; don't pad it further.",
    )
    for n, multiple in ((50304, 64), (50250, 64), (1, 128), (257, 8)):
        want = -(-n // multiple) * multiple
        expect(
            answer(n, multiple) == want,
            f"padded({n}, {multiple}) is {want}, not {answer(n, multiple)}.",
        )
    expect(isinstance(answer(257, 8), int), "a size is an int; use integer division.")


@exercise
def make_adamw(answer: Callable[[nn.Module, bool], torch.optim.Optimizer]) -> None:
    """Check that the optimizer of the lecture notes really gets its `fused` argument."""
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    fused, plain = answer(model, True), answer(model, False)
    expect(isinstance(fused, torch.optim.AdamW), "return a torch.optim.AdamW.")
    expect(
        fused.defaults["fused"],
        "optimizer.defaults['fused'] is not True although the caller passed fused=True; your "
        "function "
        "doesn't pass the argument on.",
    )
    expect(
        not plain.defaults["fused"],
        "the optimizer is fused although the caller passed fused=False.",
    )
    expect(
        tuple(fused.defaults["betas"]) == (0.9, 0.95) and fused.defaults["lr"] == 6e-4,
        "the learning rate (6e-4) or the betas (0.9, 0.95) were lost on the way.",
    )
    expect(
        len(fused.param_groups) == 2,
        "two groups are expected: matrices with weight decay, vectors without.",
    )
    for group in fused.param_groups:
        dims = {parameter.dim() for parameter in group["params"]}
        wanted = {0.1: {2}, 0.0: {1}}.get(group["weight_decay"])
        expect(
            dims == wanted,
            f"a group with weight decay {group['weight_decay']} holds parameters of {sorted(dims)} "
            "axes; matrices (2 axes) get 0.1, vectors (1 axis, LayerNorm's weight too) 0.0.",
        )


class LargestTensor(TorchDispatchMode):
    """Record the size of the largest tensor that is made within the block."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and measure its results."""
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.numel = max(self.numel, *sizes, 0)
        return made


def block_softmax(q: Tensor, k: Tensor, v: Tensor, block: int, mistake: str) -> Tensor:
    """Compute attention over blocks of keys, with one mistake built in."""
    causal = mistake != "causal"
    scale = {"scale": 1.0, "no root": 1 / q.size(-1)}.get(mistake, q.size(-1) ** -0.5)
    masked = 0.0 if mistake == "zero" else -math.inf
    seq = len(q)
    highest, total = torch.full((seq, 1), -math.inf), torch.zeros(seq, 1)
    result = torch.zeros_like(v)
    for start in range(0, seq, block):
        keys = torch.arange(start, min(start + block, seq))
        scores = scale * q @ k[keys].T
        if causal:
            numbers = keys - start if mistake == "offset" else keys
            scores = scores.masked_fill(numbers[None] > torch.arange(seq)[:, None], masked)
        now = torch.maximum(highest, scores.amax(1, keepdim=True))
        rescale = torch.exp(highest - now) if mistake != "rescale" else torch.ones_like(now)
        weights = torch.exp(scores - now)
        kept = result if mistake == "rescale result" else rescale * result
        result, highest = kept + weights @ v[keys], now
        total = (1.0 if mistake == "rescale total" else rescale) * total
        total = total + weights.sum(1, keepdim=True)
    return result if mistake == "divide" else result / total


@exercise
def flash_attention(answer: Callable[[Tensor, Tensor, Tensor, int], Tensor]) -> None:
    """Check exact causal attention of one head that processes one block of keys at a time."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (2 * torch.randn(96, 8, generator=generator) for _ in range(3))
    q, k = q + torch.linspace(0, 2, 96)[:, None], k + torch.linspace(0, 2, 96)[:, None]
    want = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    with LargestTensor() as made:
        got = answer(q, k, v, 16)
    expect(isinstance(got, Tensor), "return a tensor; is the `return` missing?")
    expect(got.shape == v.shape, f"the result should be {tuple(v.shape)}, not {tuple(got.shape)}.")
    diagnoses = {
        "causal": "every position sees the future: mask keys that come after their query.",
        "scale": "the scores are not divided by sqrt(d).",
        "divide": "the weights do not add up to 1: divide by their total at the end.",
        "rescale": "when a block brings a higher maximum, what was summed before must be "
        "multiplied by exp(old maximum - new maximum): the result and the total.",
        "rescale total": "you rescale the result but not the total.",
        "rescale result": "you rescale the total but not the result.",
        "no root": "you divide the scores by d; divide by its root, sqrt(d).",
        "zero": "a masked score is -inf, not 0, because exp(0) is still a weight.",
        "offset": "in the mask, the keys of each block are counted from 0 again; its first key is "
        "number `start` of the sequence.",
    }
    for mistake, diagnosis in diagnoses.items():
        wrong = block_softmax(q, k, v, 16, mistake)
        expect(not torch.allclose(got, wrong, rtol=1e-3, atol=1e-4), diagnosis)
    lost = got.isnan().any(1)  # queries
    expect(
        not lost.all(),
        "every row is nan: as m begins at -inf, exp(new - m) is infinite; take exp(m - new).",
    )
    expect(
        not lost[0] or lost[1:].any(),
        "query 0 is nan, so it has no key left: mask the keys *after* each query, not its own.",
    )
    expect(
        not lost[-1] or lost[0],
        "query 0 has a result but the last query is nan; is your mask the wrong way round?",
    )
    expect(
        not lost.any(),
        "there is a nan, because a whole masked block gives exp(-inf - (-inf)); keep the old "
        "maximum, which is finite from the first block on.",
    )
    expect(torch.allclose(got, want, rtol=1e-3, atol=1e-4), "the result is not that of attention.")
    expect(
        made.numel < 96 * 96,
        f"right, but you made a T x T tensor of {made.numel} numbers, with all scores at once or a "
        "mask for all of them. Make both for `block` keys at a time.",
    )
    sign = torch.tensor([1.0, -1.0]).repeat(48)[:, None]  # makes every other query oppose all keys
    far_q, far_k = q / 10 + 10 * sign, k / 10 + 10  # scores of 300 and of -300
    want_far = F.scaled_dot_product_attention(far_q[None], far_k[None], v[None], is_causal=True)[0]
    expect(
        torch.allclose(answer(far_q, far_k, v, 16), want_far, rtol=1e-3, atol=1e-3),
        "right for small scores, but exp(300) is infinite and exp(-300) is 0. Subtract each "
        "query's "
        "own highest score so far, starting from -inf.",
    )
    ragged = "right for 96 = 6 blocks of 16, wrong for blocks of 40, where the last one is short."
    try:
        got = answer(q, k, v, 40)
    except (RuntimeError, IndexError) as error:
        raise DiagnosisError(f"{ragged} It has 16 keys: end at min(start + block, T).") from error
    expect(torch.allclose(got, want, rtol=1e-3, atol=1e-4), ragged)


@exercise
def whole_speedup(answer: Callable[[dict[str, float], dict[str, float]], float]) -> None:
    """Check Amdahl's law, 1 / sum of share / factor, where unchanged kinds have a factor of 1."""
    shares, factors = {"matmul": 0.5, "attention": 0.3, "rest": 0.2}, {"attention": 6.0}
    mistakes = {
        "you only added up what changed; the rest still takes its old time.": 6 / 0.3,
        "that is the factor of the part; the whole is not faster than its unchanged parts allow.": (
            6.0
        ),
        "you took the mean of the factors; times add up, factors do not.": 0.3 * 6 + 0.7,
        "that is the new time as a share of the old; the speed-up is one over it.": 0.3 / 6 + 0.7,
        "you took the part out altogether; it still takes a sixth of its time.": 1 / 0.7,
        "that is only the changed part's new time; add the others', then take one over the sum.": (
            0.3 / 6
        ),
    }
    want = 1 / (0.3 / 6 + 0.7)
    try:
        got = answer(shares, factors)
    except KeyError as error:
        raise DiagnosisError(
            f"{error} has no entry in `factors`; kinds that did not change keep their time, so use "
            "factors.get(kind, 1)."
        ) from error
    expect_number(got, want, "attention (30 %) six times as fast", mistakes)
    both = {"matmul": 2.0, "rest": 4.0}
    want = 1 / (0.5 / 2 + 0.3 + 0.2 / 4)
    one_by_one = 1 / ((0.5 / 2 + 0.5) * (0.2 / 4 + 0.8))
    slip = "you multiplied the speed-ups of single changes; add up all new times, then invert once."
    expect_number(answer(shares, both), want, "two parts faster, by 2 and by 4", {slip: one_by_one})
    expect_number(answer(shares, {}), 1.0, "nothing faster", {})
