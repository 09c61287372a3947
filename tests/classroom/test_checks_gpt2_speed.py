"""Notebook 09's checks: untouched stubs, typical mistakes by their diagnosis, right answers."""

import math

import torch
import torch.nn.functional as F
from verdicts import assert_untouched, assert_verdicts

from cs336_lib import optim
from cs336_lib.classroom.checks import gpt2_speed as checks

NAMES = ("speed", "to_tf32", "padded", "make_adamw", "flash_attention", "whole_speedup")


def test_untouched_stubs():
    assert_untouched(checks, NAMES)


def rate(ms, tokens):
    return tokens / ms * 1e3


SPEEDS = {
    "passed": lambda ms, n, f, p: (rate(ms, n), rate(ms, n) * f / p),
    "is the `return` missing": lambda ms, n, f, p: None,
    "return a pair": lambda ms, n, f, p: rate(ms, n),
    "a number is expected": lambda ms, n, f, p: ("fast", 1.0),
    "that is per millisecond": lambda ms, n, f, p: (n / ms, 0.5),
    "not by multiplying": lambda ms, n, f, p: (n / (ms * 1e3), 0.5),
    "you multiplied by the time": lambda ms, n, f, p: (n * ms / 1e3, 0.5),
    "a step does them for every token": lambda ms, n, f, p: (rate(ms, n), f / (ms / 1e3) / p),
    "the time is in milliseconds": lambda ms, n, f, p: (rate(ms, n), n * f / ms / p),
    "a whole step's FLOPs by it": lambda ms, n, f, p: (rate(ms, n), n * f / p),
    "you return a percentage": lambda ms, n, f, p: (rate(ms, n), 100 * rate(ms, n) * f / p),
    "that is inverted": lambda ms, n, f, p: (rate(ms, n), p / (rate(ms, n) * f)),
    "tokens per second is": lambda ms, n, f, p: (1.0, 1.0),
}


def test_speed():
    assert_verdicts(checks.speed, SPEEDS)


def bits(x, drop, half=True):
    added = x.view(torch.int32) + (1 << (drop - 1) if half else 0)
    return (added >> drop << drop).view(torch.float32)


def in_place(x):
    x.copy_(bits(x, 13))
    return x


def without_kernel(x):
    """An error of torch's own, which must not be taken for an untouched stub."""
    raise NotImplementedError("no kernel for this")


TF32 = {
    "passed": lambda x: bits(x, 13),
    "return a tensor": lambda x: None,
    "you changed your argument": in_place,
    "view them as torch.float32 again": lambda x: bits(x, 13).view(torch.int32),
    "return float32, not bfloat16": lambda x: x.bfloat16(),
    "only integers can be shifted": lambda x: x >> 13 << 13,
    "all zeros (or nan)": lambda x: (x.int() >> 13 << 13).view(torch.float32),
    "add half of it": lambda x: ((x.view(torch.int32) + (1 << 13)) >> 13 << 13).view(torch.float32),
    "after the binary point": lambda x: (x * 1024).round() / 1024,
    "nothing was rounded": lambda x: x.clone(),
    "you cut the last 13 bits off": lambda x: bits(x, 13, half=False),
    "7 bits of fraction is bf16": lambda x: bits(x, 16),
    "you keep 13 bits and drop 10": lambda x: bits(x, 10),
    ".float() converts the integers": lambda x: (
        (x.view(torch.int32) + (1 << 12)) >> 13 << 13
    ).float(),
    "not x with 10 bits": lambda x: bits(x, 12),
    "no kernel for this": without_kernel,
    "1e10 or 3e-20 went wrong": lambda x: torch.where(x.abs() > 6e4, math.inf, bits(x, 13)),
}


def test_to_tf32():
    assert_verdicts(checks.to_tf32, TF32)


PADDED = {
    "passed": lambda n, m: -(-n // m) * m,
    "is the `return` missing": lambda n, m: None,
    "50240 is smaller": lambda n, m: n // m * m,
    "786 is how many multiples": lambda n, m: -(-n // m),
    "not 50257": lambda n, m: n,
    "don't pad it further": lambda n, m: (n // m + 1) * m,
    "padded(1, 128) is 128, not 50304": lambda n, m: 50304,
    "use integer division": lambda n, m: math.ceil(n / m) * float(m),
}


def test_padded():
    assert_verdicts(checks.padded, PADDED)


def adamw(model, fused, *, groups=optim.parameter_groups, **changed):
    options = {"lr": 6e-4, "betas": (0.9, 0.95), "fused": fused or None} | changed
    return torch.optim.AdamW(groups(model, 0.1), **options)


def one_group(model, decay):
    return [{"params": list(model.parameters()), "weight_decay": decay}]


def swapped(model, decay):
    matrices, vectors = optim.parameter_groups(model, decay)
    return [matrices | {"weight_decay": 0.0}, vectors | {"weight_decay": decay}]


ADAMW = {
    "passed": adamw,
    "return a torch.optim.AdamW": lambda model, fused: None,
    "doesn't pass the argument on": lambda model, fused: adamw(model, False),
    "although the caller passed fused=False": lambda model, fused: adamw(model, True),
    "the betas (0.9, 0.95) were lost": lambda m, fused: adamw(m, fused, betas=(0.9, 0.999)),
    "two groups are expected": lambda m, fused: adamw(m, fused, groups=one_group),
    "weight decay 0.0 holds parameters of [2] axes": lambda m, f: adamw(m, f, groups=swapped),
}


def test_make_adamw():
    assert_verdicts(checks.make_adamw, ADAMW)


def blocks(mistake):
    return lambda q, k, v, block: checks.block_softmax(q, k, v, block, mistake)


def at_once(q, k, v, block):
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0] + 0 * (
        (q @ k.T).sum()
    )


def without_maximum(q, k, v, block, floor=None):
    """Sums exp(scores) as they are, or less a maximum that is never below `floor`."""
    result, total = torch.zeros_like(v), torch.zeros(len(q), 1)
    scores = [q @ k[i : i + block].T / q.size(-1) ** 0.5 for i in range(0, len(k), block)]
    for start, part in zip(range(0, len(k), block), scores, strict=True):
        future = torch.arange(start, start + part.size(1))[None] > torch.arange(len(q))[:, None]
        part = part.masked_fill(future, -math.inf)
        if floor is not None:
            part = part - torch.cat([s.amax(1, True) for s in scores], 1).amax(1, True).clamp(floor)
        result, total = (
            result + part.exp() @ v[start : start + block],
            total + part.exp().sum(1, True),
        )
    return result / total


def whole_blocks_only(q, k, v, block):
    if len(q) % block:
        return torch.zeros_like(v)
    return checks.block_softmax(q, k, v, block, "")


def nan_for(queries):
    def attend(q, k, v, block):
        result = checks.block_softmax(q, k, v, block, "")
        result[queries] = math.nan
        return result

    return attend


def last_block_padded(q, k, v, block):
    if len(q) % block:
        return torch.zeros(len(q), block) + torch.zeros(len(q), len(q) % block)
    return checks.block_softmax(q, k, v, block, "")


FLASH = {
    "passed": blocks(""),
    "is the `return` missing": lambda *args: None,
    "the result should be (96, 8)": lambda q, k, v, block: v[:4],
    "sees the future": blocks("causal"),
    "not divided by sqrt(d)": blocks("scale"),
    "do not add up to 1": blocks("divide"),
    "multiplied by exp(old maximum - new maximum)": blocks("rescale"),
    "rescale the result but not the total": blocks("rescale total"),
    "rescale the total but not the result": blocks("rescale result"),
    "you divide the scores by d": blocks("no root"),
    "is -inf, not 0": blocks("zero"),
    "counted from 0 again": blocks("offset"),
    "take exp(m - new)": nan_for(slice(None)),
    "not its own": nan_for(slice(1)),
    "the wrong way round": nan_for(slice(16, None)),
    "there is a nan": nan_for(slice(80)),
    "not that of attention": lambda q, k, v, block: v + 1,
    "with all scores at once": at_once,
    "Subtract each query's own": without_maximum,
    "starting from -inf": lambda q, k, v, block: without_maximum(q, k, v, block, floor=0.0),
    "where the last one is short": whole_blocks_only,
    "end at min(start + block, T)": last_block_padded,
}


def test_flash_attention():
    assert_verdicts(checks.flash_attention, FLASH)


def old(shares, factors):
    return sum(share / factors.get(kind, 1) for kind, share in shares.items())


SPEEDUPS = {
    "passed": lambda s, f: 1 / old(s, f),
    "is the `return` missing": lambda s, f: None,
    "only added up what changed": lambda s, f: 1 / sum(s[kind] / f[kind] for kind in f),
    "that is the factor of the part": lambda s, f: math.prod(f.values()),
    "you took the mean of the factors": lambda s, f: sum(s[k] * f.get(k, 1) for k in s),
    "the new time as a share": old,
    "took the part out altogether": lambda s, f: 1 / sum(s[k] for k in s if k not in f),
    "only the changed part's new time": lambda s, f: sum(s[kind] / f[kind] for kind in f),
    "you multiplied the speed-ups": lambda s, f: math.prod(
        1 / (s[kind] / f[kind] + 1 - s[kind]) for kind in f
    ),
    "factors.get(kind, 1)": lambda s, f: 1 / sum(s[kind] / f[kind] for kind in s),
    "two parts faster": lambda s, f: 1 / (0.3 / 6 + 0.7),
}


def test_whole_speedup():
    assert_verdicts(checks.whole_speedup, SPEEDUPS)
