"""Notebook 09's checks: untouched stubs, typical mistakes by their diagnosis, right answers."""

import contextlib
import copy
import io
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from verdicts import assert_untouched, assert_verdicts, stub

from cs336_course.checks import gpt2_speed as checks
from cs336_course.checks import surroundings
from cs336_lib import optim

NAMES = ("speed", "fused_attention", "flash_attention", "padded", "make_optimizer", "fast")


def test_untouched_stubs():
    assert_untouched(checks, NAMES)


def rate(ms, tokens):
    return tokens / ms * 1e3


def flop_rate(ms, n, f):
    return rate(ms, n) * f


def in_seconds(ms, tokens, flops, peak):
    """Right, and the time of the ideal step divided by the measured time."""
    seconds = ms / 1e3
    return [tokens / seconds, tokens * flops / peak / seconds]


def with_tensors(ms, tokens, flops, peak):
    found = torch.tensor(tokens, dtype=torch.float64) * 1000 / ms
    return found, found * flops / peak


SPEEDS = [
    (lambda ms, n, f, p: (rate(ms, 16 * 1024), 0.5), "use the argument `tokens`"),
    (lambda ms, n, f, p: (rate(ms, n), flop_rate(ms, n, f) / p), "passed"),
    (in_seconds, "passed"),
    (with_tensors, "passed"),
    (lambda ms, n, f, p: (np.float64(n) * 1e3 / ms, np.float64(n) * f / (ms * p) * 1e3), "passed"),
    (lambda ms, n, f, p: None, "is the `return` missing"),
    (lambda ms, n, f, p: rate(ms, n), "return a pair"),
    (lambda ms, n, f, p: ("fast", 1.0), "a number is expected"),
    (lambda ms, n, f, p: (flop_rate(ms, n, f) / p, rate(ms, n)), "tokens per second come first"),
    (lambda ms, n, f, p: (n / ms, 0.5), "that is per millisecond"),
    (lambda ms, n, f, p: (n / (ms * 1e3), 0.5), "not by multiplying"),
    (lambda ms, n, f, p: (n * ms / 1e3, 0.5), "you multiplied by the time"),
    (lambda ms, n, f, p: (ms / 1e3 / n, 0.5), "the time of one token"),
    (lambda ms, n, f, p: (n / (ms / 1e6), 0.5), "for microseconds"),
    (lambda ms, n, f, p: (round(rate(ms, n), 2), flop_rate(ms, n, f) / p), "of 3 tokens"),
    (lambda ms, n, f, p: (n // (ms / 1e3), 0.5), "divide with / instead of //"),
    (lambda ms, n, f, p: (rate(ms, n), f / (ms / 1e3) / p), "a step does them for every token"),
    (lambda ms, n, f, p: (rate(ms, n), n * f / ms / p), "the time is in milliseconds"),
    (lambda ms, n, f, p: (rate(ms, n), n * f / p), "a whole step's FLOPs by it"),
    (lambda ms, n, f, p: (rate(ms, n), f / p), "multiply the FLOPs of one token by tokens"),
    (lambda ms, n, f, p: (rate(ms, n), flop_rate(ms, n, f)), "divide them by the peak"),
    (lambda ms, n, f, p: (rate(ms, n), 3 * flop_rate(ms, n, f) / p), "includes the backward pass"),
    (lambda ms, n, f, p: (rate(ms, n), flop_rate(ms, n, f) / p / 3), "what training costs"),
    (lambda ms, n, f, p: (rate(ms, n), flop_rate(ms, n, f) / p / 1e12), "not in TFLOPs"),
    (lambda ms, n, f, p: (rate(ms, n), 2 * flop_rate(ms, n, f) / p), "a multiply-add as two"),
    (lambda ms, n, f, p: (rate(ms, n), round(flop_rate(ms, n, f) / p, 2)), "don't round the MFU"),
    (lambda ms, n, f, p: (rate(ms, n), 100 * flop_rate(ms, n, f) / p), "you return a percentage"),
    (lambda ms, n, f, p: (rate(ms, n), p / flop_rate(ms, n, f)), "is inverted"),
    (lambda ms, n, f, p: (1.0, 1.0), "off for the tokens per second of 8,200 tokens in 240 ms."),
    (lambda ms, n, f, p: (rate(ms, n), 0.9), "off for the MFU of 8,200 tokens in 240 ms"),
]


def test_speed():
    assert_verdicts(checks.speed, SPEEDS)


def counted_up(n, multiple):
    size = multiple
    while size < n:
        size += multiple
    return size


PADDED = [
    (lambda n, m: n + n % m, "that adds the remainder, 17; add what is missing up to 64"),
    (lambda n, m: -(-n // m) * m, "passed"),
    (lambda n, m: (n + m - 1) // m * m, "passed"),
    (lambda n, m: math.ceil(n / m) * m, "passed"),
    (lambda n, m: n + -n % m, "passed"),
    (lambda n, m: n if n % m == 0 else n + m - n % m, "passed"),
    (lambda n, m: np.int64(np.ceil(n / m) * m), "passed"),
    (counted_up, "passed"),
    (lambda n, m: None, "is the `return` missing"),
    (lambda n, m: n // m * m, "50240 is smaller"),
    (lambda n, m: round(n / m) * m, "50240 is smaller"),
    (lambda n, m: -(-n // m), "that is how many multiples"),
    (lambda n, m: n // m, "round up, not down, and multiply"),
    (lambda n, m: n, "50257 itself isn't a multiple of 64"),
    (lambda n, m: n + m, "that adds 64 to 50257"),
    (lambda n, m: -n % m, "how many are missing"),
    (lambda n, m: (n // m + 1) * m, "50304 is already a multiple of 64; don't pad it further"),
    (lambda n, m: n + m - n % m, "don't pad it further"),
    (lambda n, m: (-(-n // m) + 1) * m, "but not the smallest one"),
    (lambda n, m: 1 << (n - 1).bit_length(), "the next power of 2"),
    (lambda n, m: n + m - 1 & -m, "your bits work for powers of 2, but"),
    (lambda n, m: n + -n % 64, "the next multiple of 64, but `multiple` is 128"),
    (lambda n, m: 50304, "GPT-2's vocabulary only, and `n` is 1"),
    (lambda n, m: int(n / m + 0.999) * m, "2048 is smaller than 2049"),
    (lambda n, m: 7, "off for padded(50257, 64)"),
    (lambda n, m: math.ceil(n / m) * float(m), "use integer division"),
    (lambda n, m: str(-(-n // m) * m), "a number is expected, not str"),
]


def test_padded():
    assert_verdicts(checks.padded, PADDED)


def by_hand(q, k, v):
    scores = q @ k.mT / math.sqrt(q.size(-1))
    future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ v


def one_by_one(q, k, v):
    """Right, and one query at a time, so there's no T x T tensor and no fast kernel."""
    rows = []
    for t in range(q.size(2)):
        weights = (q[:, :, t : t + 1] @ k[:, :, : t + 1].mT / math.sqrt(q.size(-1))).softmax(-1)
        rows.append(weights @ v[:, :, : t + 1])
    return torch.cat(rows, 2)


def sdpa(**options):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def with_mask(q, k, v, diagonal=0, upper=False):
    ones = torch.ones(q.size(2), q.size(2), dtype=torch.bool)
    mask = ones.triu(diagonal) if upper else ones.tril(diagonal)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def no_gradient(q, k, v):
    return checks.library_attention(q, k, v.detach())


def row_by_row(q, k, v):
    """Right, and one call for each row of the batch."""
    rows = zip(q.split(1), k.split(1), v.split(1), strict=True)
    return torch.cat([F.scaled_dot_product_attention(*row, is_causal=True) for row in rows])


def scaled_first(q, k, v):
    """Right, and scales q instead of the scores."""
    return F.scaled_dot_product_attention(q / q.size(-1) ** 0.5, k, v, is_causal=True, scale=1)


def over_flat_heads(q, k, v):
    """Right, and takes the heads as a part of the batch."""
    flat = (x.reshape(-1, 1, *x.shape[2:]) for x in (q, k, v))
    return F.scaled_dot_product_attention(*flat, is_causal=True).view(q.shape)


def three_axes(q, k, v):
    """The slip of folding heads into the batch, for which PyTorch has no fast kernel."""
    return CAUSAL(*(x.flatten(0, 1) for x in (q, k, v))).view(q.shape)


def scaled_in_place(q, k, v):
    with torch.no_grad():
        q /= q.size(-1) ** 0.5
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1)


def added_mask(q, k, v):
    """The slip of a mask of ones and zeros, which are added to the scores."""
    ones = torch.ones(q.size(2), q.size(2), dtype=q.dtype).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=ones)


def over_heads(q, k, v):
    return CAUSAL(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


def by_d(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / q.size(-1))


def in_a_window(q, k, v):
    """The slip of a block size that is read from a small model."""
    return CAUSAL(q[:, :, -64:], k[:, :, -64:], v[:, :, -64:])


def small_only(q, k, v):
    return CAUSAL(q.clamp(-9, 9), k, v)


CAUSAL = checks.library_attention
ATTENTION = [
    (
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=q.size(-2) ** -0.5
        ),
        "divided by the root of the positions",
    ),
    (CAUSAL, "passed"),
    (sdpa(is_causal=True, dropout_p=0.0), "passed"),
    (row_by_row, "passed"),
    (scaled_first, "passed"),
    (over_flat_heads, "passed"),
    (lambda q, k, v: None, "is the `return` missing"),
    (lambda q, k, v: (v, v), "return a tensor, not tuple"),
    (lambda q, k, v: CAUSAL(q, k, v).transpose(1, 2), "should have that shape too"),
    (lambda q, k, v: CAUSAL(q, k, v).double(), "float64 for inputs in float32"),
    (lambda q, k, v: CAUSAL(q.float(), k.float(), v.float()), "float32 for inputs in bfloat16"),
    (scaled_in_place, "changes its input q in place"),
    (sdpa(), "pass is_causal=True"),
    (sdpa(is_causal=True, scale=1.0), "not divided by sqrt(d)"),
    (by_d, "divided by d; the function"),
    (lambda q, k, v: CAUSAL(q / math.sqrt(q.size(-1)), k, v), "divided by d; the function"),
    (lambda q, k, v: CAUSAL(k, q, v), "the order is q, k, v"),
    (lambda q, k, v: CAUSAL(q, v, k), "the order is q, k, v"),
    (over_heads, "you mix heads"),
    (lambda q, k, v: with_mask(q, k, v, upper=True), "your mask is inverted"),
    (lambda q, k, v: with_mask(q, k, v, 1, upper=True), "your mask is inverted"),
    (lambda q, k, v: with_mask(q, k, v, -1), "hides each position from itself"),
    (lambda q, k, v: with_mask(q, k, v, 1), "see the next one"),
    (added_mask, "a mask of numbers is added"),
    (sdpa(is_causal=True, dropout_p=0.5), "leave dropout out"),
    (lambda q, k, v: CAUSAL(q, k, v) / 0 * 0, "there is a nan"),
    (lambda q, k, v: CAUSAL(q, k, v) + 1, "not that of causal attention"),
    (in_a_window, "for inputs of (1, 1, 150, 3) the result should have that shape"),
    (small_only, "with scores of hundreds the result is not"),
    (lambda q, k, v: CAUSAL(q, k, v).detach(), "the result has no gradient"),
    (no_gradient, "the gradient of v is not"),
    (three_axes, "fast kernels for four axes only"),
    (by_hand, "all scores or a mask"),
    (with_mask, "all scores or a mask"),
    (one_by_one, "right, but without F.scaled_dot_product_attention"),
]


def test_fused_attention():
    assert_verdicts(checks.fused_attention, ATTENTION)


def adamw(model, config, kind=torch.optim.AdamW, groups=optim.parameter_groups, **changed):
    options = {"lr": config.learning_rate, "betas": (0.9, 0.95), "fused": True} | changed
    return kind(groups(model, config.weight_decay), **options)


def one_group(model, decay):
    return [{"params": list(model.parameters()), "weight_decay": decay}]


def swapped(model, decay):
    matrices, vectors = optim.parameter_groups(model, decay)
    return [matrices | {"weight_decay": 0.0}, vectors | {"weight_decay": decay}]


def matrices_only(model, decay):
    return optim.parameter_groups(model, decay)[:1]


def one_group_each(model, decay):
    """Right: a group for each parameter, which is fused by the group."""
    return [
        {"params": [p], "weight_decay": decay if p.dim() >= 2 else 0.0, "fused": True}
        for p in model.parameters()
    ]


class Lazy(torch.optim.AdamW):
    """AdamW that only makes every second step."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        return super().step(closure) if self.calls % 2 else None


def unused(model, config):
    """The slip of the published script."""
    extra = {"fused": True}
    assert extra
    return adamw(model, config, fused=None)


def by_name(model, decay):
    """Take the weights of norms for matrices."""
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if "bias" not in name], "weight_decay": decay},
        {"params": [p for name, p in named if "bias" in name], "weight_decay": 0.0},
    ]


def two_axes_only(model, decay):
    found = list(model.parameters())
    return [
        {"params": [p for p in found if p.dim() == 2], "weight_decay": decay},
        {"params": [p for p in found if p.dim() != 2], "weight_decay": 0.0},
    ]


def first_fused(model, config):
    optimizer = adamw(model, config, fused=None)
    optimizer.param_groups[0]["fused"] = True
    return optimizer


def built_later(model, config):
    """Right, and adds the second group afterwards."""
    decayed, others = optim.parameter_groups(model, config.weight_decay)
    optimizer = torch.optim.AdamW([decayed], config.learning_rate, (0.9, 0.95), fused=True)
    optimizer.add_param_group(others)
    return optimizer


def initialized(model, config):
    for p in model.parameters():
        nn.init.normal_(p, std=0.02)
    return adamw(model, config)


def halved(model, config):
    config.weight_decay /= 2
    return adamw(model, config)


OPTIMIZERS = [
    (adamw, "passed"),
    (built_later, "passed"),
    (lambda m, c: adamw(m, c, groups=lambda m, d: optim.parameter_groups(m, d)[::-1]), "passed"),
    (lambda m, c: adamw(m, c, betas=[0.9, 0.95], foreach=False), "passed"),
    (checks.library_optimizer, "passed"),
    (lambda m, c: adamw(m, c, groups=one_group_each, fused=None), "passed"),
    (lambda m, c: adamw(m, c, weight_decay=c.weight_decay, eps=1e-8), "passed"),
    (lambda m, c: None, "is the `return` missing"),
    (lambda m, c: adamw(m, c, kind=torch.optim.Adam), "not Adam"),
    (unused, "Its groups have fused=None"),
    (first_fused, "Its groups have fused=None"),
    (lambda m, c: adamw(m, c, fused=next(m.parameters()).is_cuda), "fused=False"),
    (initialized, "changes the model's weights"),
    (halved, "changes the config"),
    (lambda m, c: adamw(m, c, fused=False), "isn't fused"),
    (lambda m, c: adamw(m, c, lr=c.learning_rate or 6e-4), "config.learning_rate is 0, but"),
    (
        lambda m, c: adamw(m, c, groups=lambda m, d: optim.parameter_groups(m, d or 0.1)),
        "for a model without decay, config.weight_decay is 0, but",
    ),
    (lambda m, c: adamw(m, c, lr=6e-4), "config.learning_rate is 0.002, but"),
    (lambda m, c: adamw(m, c, betas=(0.9, 0.999)), "GPT-3's are (0.9, 0.95)"),
    (lambda m, c: adamw(m, c, betas=(0.95, 0.9)), "the betas are swapped"),
    (lambda m, c: adamw(m, c, eps=1e-5), "AdamW's default, 1e-8"),
    (lambda m, c: adamw(m, c, groups=one_group), "biases and gains decay too"),
    (lambda m, c: adamw(m, c, betas=(0.9, 0.99)), "not (0.9, 0.99)"),
    (lambda m, c: adamw(m, c, groups=by_name), "vectors by 0.0 and 0.3"),
    (lambda m, c: adamw(m, c, groups=two_axes_only), "for a model with a weight of three axes"),
    (lambda m, c: adamw(copy.deepcopy(m), c), "don't hold each"),
    (lambda m, c: adamw(m, c, groups=swapped), "the groups are swapped"),
    (lambda m, c: adamw(m, c, groups=matrices_only), "don't hold each"),
    (
        lambda m, c: adamw(m, c, groups=lambda m, _: optim.parameter_groups(m, 0.1)),
        "two axes or more decay by 0.1. Use parameter_groups(model, config.weight_decay)",
    ),
    (lambda m, c: adamw(m, c, amsgrad=True), "amsgrad=True is another algorithm"),
    (lambda m, c: adamw(m, c, maximize=True), "climbs up the loss"),
    (lambda m, c: adamw(m, c, kind=Lazy), "leave other options out"),
]


def test_make_optimizer():
    assert_verdicts(checks.make_optimizer, OPTIMIZERS)


def tuned(
    model,
    config,
    precision="high",
    kind=None,
    dtype=torch.bfloat16,
    enabled=None,
    compiled=None,
):
    torch.set_float32_matmul_precision(precision)
    device = kind or next(model.parameters()).device.type
    enabled = config.bf16 if enabled is None else enabled
    autocast = torch.autocast(device, dtype=dtype, enabled=enabled)
    return torch.compile(model) if compiled or config.compile else model, autocast


def with_null_context(model, config):
    model, autocast = tuned(model, config)
    return model, autocast if config.bf16 else contextlib.nullcontext()


def once(model, config):
    @contextlib.contextmanager
    def autocast():
        with tuned(model, config)[1]:
            yield

    return tuned(model, config)[0], autocast()


def allowed(model, config):
    answer = tuned(model, config)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = True
    return answer


def device_itself(model, config):
    device = model.lm_head.weight.device
    return model, torch.autocast(device, dtype=torch.bfloat16, enabled=config.bf16)


def with_index(model, config):
    return tuned(model, config, kind=str(model.lm_head.weight.device))


def low_weights(model, config):
    return tuned(model.bfloat16(), config)


def entered(model, config):
    model, autocast = tuned(model, config)
    autocast.__enter__()
    return model, autocast


def in_place(model, config):
    if config.compile:
        model.compile()
    return model, tuned(model, config)[1]


def never_compiled(model, config):
    return model, tuned(model, config)[1]


def another(model, config):
    return torch.compile(copy.deepcopy(model)) if config.compile else model, tuned(model, config)[1]


def never_disabled(model, config):
    """Right, with torch.compile's own switch, the embedding's device and an inner function."""
    torch.backends.cuda.matmul.allow_tf32 = True
    device = model.transformer.wte.weight.device.type
    autocast = torch.amp.autocast(device, torch.bfloat16, config.bf16)
    return torch.compile(model, disable=not config.compile), autocast


def optimized(model, config):
    """Right, and calls the first weight's device and PyTorch's wrapper by other names."""
    autocast = tuned(model, config)[1]
    return [torch.compile(model, mode="max-autotune") if config.compile else model, autocast]


def newer(model, config):
    torch.backends.fp32_precision = "tf32"
    return model, torch.autocast("cpu", torch.bfloat16, config.bf16)


def mixed(model, config):
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    return model, torch.autocast("cpu", torch.bfloat16, config.bf16)


def tf32_without_bf16(model, config):
    return tuned(model, config, precision="highest" if config.bf16 else "high")


def tf32_with_bf16(model, config):
    return tuned(model, config, precision="high" if config.bf16 else "highest")


def tf32_when_compiled(model, config):
    return tuned(model, config, precision="high" if config.compile else "highest")


def one_or_the_other(model, config):
    if config.bf16 and config.compile:
        return model, tuned(model, config)[1]
    return tuned(model, config)


def default_dtype(model, config):
    """The slip that autocast uses bf16 on a CPU, but fp16 on a GPU."""
    model, _ = tuned(model, config)
    kind = model.lm_head.weight.device.type
    return model, torch.autocast(kind, enabled=config.bf16)


def rounded(model, config):
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.bfloat16())
    return tuned(model, config)


def frozen(model, config):
    return tuned(model.requires_grad_(False), config)


def switched_on(model, config):
    torch.set_autocast_enabled("cpu", config.bf16)
    return tuned(model, config)


def bf16_everywhere(model, config):
    torch.set_default_dtype(torch.bfloat16 if config.bf16 else torch.float32)
    return tuned(model, config)


def function_only(model, config):
    model, autocast = tuned(model, config)
    return torch.compile(lambda x: model(x)), autocast


def eager(model, config):
    autocast = tuned(model, config)[1]
    return torch.compile(model, backend="eager") if config.compile else model, autocast


FAST = [
    (tuned, "passed"),
    (never_disabled, "passed"),
    (optimized, "passed"),
    (newer, "fp32_precision can't be mixed"),
    (mixed, "fp32_precision can't be mixed"),
    (tf32_without_bf16, "if config.bf16 is True and config.compile is False"),
    (tf32_with_bf16, "if config.bf16 is False and config.compile is False"),
    (tf32_when_compiled, "if config.bf16 is True and config.compile is False"),
    (one_or_the_other, "each setting works alone"),
    (default_dtype, "autocast's default on a GPU"),
    (rounded, "changes the model's weights"),
    (frozen, "freezes the weights"),
    (lambda m, c: tuned(m.eval(), c), "calls model.eval()"),
    (switched_on, "leaves autocast switched on"),
    (bf16_everywhere, "PyTorch's default dtype"),
    (eager, "an eager backend"),
    (checks.library_fast, "passed"),
    (with_null_context, "if config.bf16 is False, you return a nullcontext"),
    (lambda m, c: tuned(m, c, enabled=c.bf16 or c.compile), "config.compile switches bf16 on"),
    (allowed, "passed"),
    (lambda m, c: None, "is the `return` missing"),
    (lambda m, c: m, "return a pair"),
    (lambda m, c: tuned(m, c)[::-1], "return the model first"),
    (function_only, "a module, not a function"),
    (lambda m, c: (m, torch.bfloat16), "usable in `with`, and dtype is not"),
    (lambda m, c: tuned(m, c, precision="highest"), "don't use TF32"),
    (lambda m, c: tuned(m, c, precision="medium"), "run in bf16; TF32 is"),
    (lambda m, c: tuned(m, c, dtype=torch.float16), "matmuls run in fp16"),
    (lambda m, c: tuned(m, c, enabled=True), "pass enabled=config.bf16"),
    (lambda m, c: tuned(m, c, enabled=False), "config.bf16 is on, but"),
    (lambda m, c: tuned(m, c, kind="cuda"), "weights are on the CPU, but the autocast"),
    (lambda m, c: tuned(m, c, kind="cpu"), "for a model on a GPU the autocast is for"),
    (device_itself, "neither a torch.device"),
    (with_index, '"cuda:1"|its type "cuda"'),
    (low_weights, "the weights stay fp32"),
    (entered, "leaves autocast switched on"),
    (once, "can be entered only once"),
    (lambda m, c: tuned(m, c, compiled=True), "config.compile is off, but you return"),
    (in_place, "Return torch.compile(model)"),
    (never_compiled, "config.compile is on, but"),
    (another, "other parameters"),
]


def test_fast():
    cases = [(answer, expected.split("|")[-1]) for answer, expected in FAST]
    before = torch.get_float32_matmul_precision()
    assert_verdicts(checks.fast, cases)
    assert torch.get_float32_matmul_precision() == before


def test_a_part_that_fails_is_the_librarys():
    with contextlib.redirect_stdout(io.StringIO()):
        assert checks.fast(stub) is checks.library_fast
        assert checks.fused_attention(stub) is checks.library_attention
        assert checks.fused_attention(row_by_row) is row_by_row
        assert checks.fused_attention(one_by_one) is checks.library_attention
        assert checks.make_optimizer(lambda model, config: None) is checks.library_optimizer


def blocks(mistake):
    return lambda q, k, v, block: checks.block_softmax(q, k, v, block, mistake)


def at_once(q, k, v, block):
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0] + 0 * (
        (q @ k.T).sum()
    )


def all_scores(q, k, v, block):
    """Right, and ignores the blocks."""
    scores = q @ k.T / math.sqrt(q.size(1))
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf).softmax(1) @ v


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


def merged(q, k, v, block):
    """Right, and merges each block's own softmax by its logsumexp, without -inf - (-inf)."""
    result, lse = torch.zeros_like(v), torch.full((len(q), 1), -math.inf)
    for ks, vs, numbers in zip(
        k.split(block), v.split(block), torch.arange(len(k)).split(block), strict=True
    ):
        scores = torch.einsum("td,sd->ts", q, ks) / q.shape[1] ** 0.5
        scores = torch.where(numbers <= torch.arange(len(q))[:, None], scores, -math.inf)
        own = scores.logsumexp(1, keepdim=True)
        both = torch.logaddexp(lse, own)
        weights = torch.nan_to_num(scores.softmax(1))
        result, lse = (lse - both).exp() * result + (own - both).exp() * (weights @ vs), both
    return result


def query_by_query(q, k, v, block):
    """Right, and blocks of keys for one query, only as far as it sees."""
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


def skipping_blocks(q, k, v, block):
    """Right, with blocks of queries, sums in place, and no block that is masked entirely."""
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


def softmax_of_a_query(q, k, v, block):
    """Right, and ignores the blocks."""
    return torch.cat(
        [
            (q[t : t + 1] @ k[: t + 1].T / q.size(1) ** 0.5).softmax(1) @ v[: t + 1]
            for t in range(len(q))
        ]
    )


def in_one_call(q, k, v, block):
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


def in_one_imported_call(q, k, v, block):
    """Calls the function without its name in F."""
    q, k, v = q[None, None], k[None, None], v[None, None]
    return torch._C._nn.scaled_dot_product_attention(q, k, v, is_causal=True)[0, 0]


def last_block_first(q, k, v, block):
    """The slip of an order in which the first blocks of a query are masked entirely."""
    queries, result = torch.arange(len(q))[:, None], torch.zeros_like(v)
    m, total = torch.full((len(q), 1), -math.inf), torch.zeros(len(q), 1)
    for keys in reversed(torch.arange(len(k)).split(block)):
        scores = (q @ k[keys].T / math.sqrt(q.size(1))).masked_fill(keys > queries, -math.inf)
        new = torch.maximum(m, scores.amax(1, keepdim=True))
        old, weights = (m - new).exp(), (scores - new).exp()
        result = old * result + weights @ v[keys]
        total, m = old * total + weights.sum(1, keepdim=True), new
    return result / total


def two_passes(q, k, v, block):
    """Right, and keeps all scores until their maximum is known."""
    queries, scores = torch.arange(len(q))[:, None], []
    for keys in torch.arange(len(k)).split(block):
        scores.append((q @ k[keys].T / q.size(1) ** 0.5).masked_fill(keys > queries, -math.inf))
    highest = torch.full((len(q), 1), -math.inf)
    for part in scores:
        highest = torch.maximum(highest, part.amax(1, keepdim=True))
    result, total = torch.zeros_like(v), torch.zeros(len(q), 1)
    for part, values in zip(scores, v.split(block), strict=True):
        weights = (part - highest).exp()
        result, total = result + weights @ values, total + weights.sum(1, keepdim=True)
    return result / total


def late_mask(q, k, v, block):
    """The slip of a maximum over scores that are masked only afterwards."""
    queries, result = torch.arange(len(q))[:, None], torch.zeros_like(v)
    m, total = torch.full((len(q), 1), -math.inf), torch.zeros(len(q), 1)
    for keys in torch.arange(len(k)).split(block):
        scores = q @ k[keys].T / math.sqrt(q.size(1))
        new = torch.maximum(m, scores.amax(1, keepdim=True))
        weights = (scores - new).exp() * (keys <= queries)
        result = (m - new).exp() * result + weights @ v[keys]
        total, m = (m - new).exp() * total + weights.sum(1, keepdim=True), new
    return result / total


def blocks_of_16(q, k, v, block):
    return checks.block_softmax(q, k, v, 16)


def scaled_q_in_place(q, k, v, block):
    result = checks.block_softmax(q, k, v, block)
    q /= math.sqrt(q.size(1))
    return result


def without(shape):
    """Fail for the inputs that `shape` describes by their sequence and block."""

    def attend(q, k, v, block):
        right = checks.block_softmax(q, k, v, block)
        return right + 1 if shape(len(q), block) else right

    return attend


def detached_total(q, k, v, block):
    whole = checks.block_softmax(q, k, v, block, "divide")
    return whole * (checks.block_softmax(q, k, v, block) / whole).detach()


FLASH = [
    (checks.block_means, "you take a softmax in each block and average the blocks"),
    (blocks(""), "passed"),
    (merged, "passed"),
    (query_by_query, "passed"),
    (skipping_blocks, "passed"),
    (detached_total, "the gradient of q is not"),
    (lambda *args: checks.block_softmax(*args).detach(), "the result has no gradient"),
    (torch.no_grad()(lambda *args: checks.block_softmax(*args)), "the result has no gradient"),
    (lambda *args: None, "is the `return` missing"),
    (lambda q, k, v, block: (v, v), "return a tensor, not tuple"),
    (lambda q, k, v, block: v[:4], "the result should be (96, 5)"),
    (lambda *args: checks.block_softmax(*args).double(), "float64 for inputs in float32"),
    (scaled_q_in_place, "changes its input q in place"),
    (blocks("causal"), "sees the future"),
    (blocks("scale"), "not divided by sqrt(d)"),
    (blocks("divide"), "do not add up to 1"),
    (blocks("rescale"), "multiplied by exp(old maximum - new maximum)"),
    (blocks("rescale total"), "rescale the result but not the total"),
    (blocks("rescale result"), "rescale the total but not the result"),
    (blocks("no root"), "you divide the scores by d"),
    (blocks("length"), "by the root of T"),
    (blocks("width"), "by the root of the block's size"),
    (blocks("zero"), "is -inf, not 0"),
    (blocks("offset"), "counted from 0 again"),
    (blocks("first values"), "take the values of the same keys"),
    (nan_for(slice(None)), "take exp(m - new)"),
    (nan_for(slice(1)), "not its own"),
    (nan_for(slice(16, None)), "the wrong way round"),
    (nan_for(slice(80)), "Begin with the first block"),
    (last_block_first, "Begin with the first block"),
    (lambda q, k, v, block: v + 1, "not that of attention"),
    (in_one_call, "functional.scaled_dot_product_attention does all the work"),
    (in_one_imported_call, "you combine 96 keys at once"),
    (at_once, "functional.scaled_dot_product_attention does all the work"),
    (all_scores, "with all scores at once"),
    (two_passes, "you keep the scores of all blocks"),
    (softmax_of_a_query, "you combine 96 keys at once"),
    (
        blocks_of_16,
        "T = 7, d = 1 and block = 1, with one key per block, you combine 7 keys at once",
    ),
    (without_maximum, "Subtract each query's own"),
    (lambda *args: without_maximum(*args, floor=0.0), "starting from -inf"),
    (late_mask, "Mask it before you take the maximum"),
    (whole_blocks_only, "where the last one is short"),
    (last_block_padded, "end at min(start + block, T)"),
    (without(lambda seq, block: seq == 1), "with a single token"),
    (without(lambda seq, block: seq < block), "with a single token"),
    (without(lambda seq, block: block == 1), "with one key per block"),
]


def test_flash_attention():
    assert_verdicts(checks.flash_attention, FLASH)


def test_an_autocast_that_an_answer_enters_is_left_again():
    checks.fast(entered)
    assert surroundings.read_autocast()[0] == 0
    assert not torch.is_autocast_enabled("cpu")


def test_settings_that_an_answer_changes_are_restored():
    before = torch.backends.fp32_precision, torch.get_autocast_dtype("cpu")
    for answer in (newer, mixed, switched_on, bf16_everywhere, default_dtype):
        checks.fast(answer)
    assert (torch.backends.fp32_precision, torch.get_autocast_dtype("cpu")) == before
    assert torch.get_default_dtype() == torch.float32
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_float32_matmul_precision() in {"highest", "high", "medium"}
