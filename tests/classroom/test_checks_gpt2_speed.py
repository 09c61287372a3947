"""Notebook 09's checks: untouched stubs, typical mistakes by their diagnosis, right answers."""

import contextlib
import copy
import io
import math

import torch
import torch.nn.functional as F
from verdicts import assert_untouched, assert_verdicts, stub

from cs336_lib import optim
from cs336_lib.classroom.checks import gpt2_speed as checks

NAMES = ("speed", "fused_attention", "flash_attention", "padded", "make_optimizer", "fast")


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
    "multiply by tokens per second": lambda ms, n, f, p: (rate(ms, n), f / p),
    "you return a percentage": lambda ms, n, f, p: (rate(ms, n), 100 * rate(ms, n) * f / p),
    "that is inverted": lambda ms, n, f, p: (rate(ms, n), p / (rate(ms, n) * f)),
    "tokens per second is": lambda ms, n, f, p: (1.0, 1.0),
}


def test_speed():
    assert_verdicts(checks.speed, SPEEDS)


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


def by_hand(q, k, v):
    scores = q @ k.mT / math.sqrt(q.size(-1))
    future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ v


def one_by_one(q, k, v):
    """Right, and one query at a time: no T x T tensor."""
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


CAUSAL = checks.library_attention
ATTENTION = [
    (CAUSAL, "passed"),
    (sdpa(is_causal=True, dropout_p=0.0), "passed"),
    (one_by_one, "passed"),
    (lambda q, k, v: None, "is the `return` missing"),
    (lambda q, k, v: (v, v), "return a tensor, not tuple"),
    (lambda q, k, v: CAUSAL(q, k, v).transpose(1, 2), "should have that shape too"),
    (sdpa(), "pass is_causal=True"),
    (sdpa(is_causal=True, scale=1.0), "not divided by sqrt(d)"),
    (
        lambda q, k, v: sdpa(is_causal=True, scale=1 / q.size(-1))(q, k, v),
        "divided by d; the function",
    ),
    (lambda q, k, v: CAUSAL(q / math.sqrt(q.size(-1)), k, v), "divided by d; the function"),
    (lambda q, k, v: CAUSAL(k, q, v), "the order is q, k, v"),
    (
        lambda q, k, v: CAUSAL(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2),
        "you mix heads",
    ),
    (lambda q, k, v: with_mask(q, k, v, upper=True), "your mask is inverted"),
    (
        lambda q, k, v: with_mask(q, k, v, -1),
        "there is a nan|does each position see itself|not that",
    ),
    (sdpa(is_causal=True, dropout_p=0.5), "leave dropout out"),
    (lambda q, k, v: CAUSAL(q, k, v) + 1, "not that of causal attention"),
    (lambda q, k, v: CAUSAL(q, k, v).detach(), "the result has no gradient"),
    (no_gradient, "the gradient of v is not"),
    (by_hand, "all scores or a mask"),
    (with_mask, "all scores or a mask"),
]


def test_fused_attention():
    cases = [(answer, expected.split("|")[-1]) for answer, expected in ATTENTION]
    assert_verdicts(checks.fused_attention, cases)


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


def unused(model, config):
    """The slip of the published script."""
    extra = {"fused": True}
    assert extra
    return adamw(model, config, fused=None)


OPTIMIZERS = [
    (adamw, "passed"),
    (checks.library_optimizer, "passed"),
    (lambda m, c: adamw(m, c, groups=one_group_each, fused=None), "passed"),
    (lambda m, c: adamw(m, c, weight_decay=c.weight_decay, eps=1e-8), "passed"),
    (lambda m, c: None, "is the `return` missing"),
    (lambda m, c: adamw(m, c, kind=torch.optim.Adam), "not Adam"),
    (unused, "isn't fused: its groups have fused=None"),
    (lambda m, c: adamw(m, c, fused=False), "isn't fused"),
    (lambda m, c: adamw(m, c, lr=6e-4), "config.learning_rate is 0.002, but"),
    (lambda m, c: adamw(m, c, betas=(0.9, 0.999)), "GPT-3's are (0.9, 0.95)"),
    (lambda m, c: adamw(m, c, betas=(0.95, 0.9)), "not (0.95, 0.9)"),
    (lambda m, c: adamw(m, c, eps=1e-5), "AdamW's default, 1e-8"),
    (lambda m, c: adamw(m, c, groups=one_group), "biases and gains decay too"),
    (lambda m, c: adamw(m, c, groups=swapped), "the groups are swapped"),
    (lambda m, c: adamw(m, c, groups=matrices_only), "don't hold each"),
    (
        lambda m, c: adamw(m, c, groups=lambda m, _: optim.parameter_groups(m, 0.1)),
        "matrices decay by [0.1]",
    ),
    (lambda m, c: adamw(m, c, amsgrad=True), "leave other options out"),
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


FAST = [
    (tuned, "passed"),
    (checks.library_fast, "passed"),
    (with_null_context, "passed"),
    (allowed, "passed"),
    (lambda m, c: None, "is the `return` missing"),
    (lambda m, c: m, "return a pair"),
    (lambda m, c: tuned(m, c)[::-1], "return the model first"),
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
    (entered, "don't enter the autocast"),
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
        assert checks.fused_attention(one_by_one) is one_by_one
        assert checks.make_optimizer(lambda model, config: None) is checks.library_optimizer


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


def test_an_autocast_that_an_answer_enters_is_left_again():
    checks.fast(entered)
    assert checks.autocast_depth() == 0
    assert not torch.is_autocast_enabled("cpu")
