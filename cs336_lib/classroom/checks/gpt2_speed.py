"""Checks of notebook 09 on throughput, attention, padding, AdamW and `fast`."""

import math
import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cs336_lib import hardware, optim
from cs336_lib.classroom.checks.report import DiagnosisError, exercise, expect, part

NO_RETURN = "your function returns None; is the `return` missing?"


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


@exercise("")
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
            "MFU: those are the FLOPs of one token in no time; multiply by tokens per second.": (
                flops / peak
            ),
            "MFU is a share, from 0 to 1; you return a percentage.": 100 * share,
            "MFU: that is inverted; divide what the model needs by what the chip could do.": 1
            / share,
        }
        expect_number(got[1], share, f"{case}: MFU", slips)


@exercise("")
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


class LargestTensor(TorchDispatchMode):
    """Record the size of the largest tensor that is made within the block."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and measure its results."""
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.numel = max(self.numel, *sizes, 0)
        return made


def library_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention for tensors of shape (batch, head, seq, head_dim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def wrong_attention(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Return the results of typical mistakes in attention, by diagnosis."""
    attend, d = F.scaled_dot_product_attention, q.size(-1)
    over_heads = attend(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)
    future = torch.ones(q.size(2), q.size(2), dtype=torch.bool).triu()
    return {
        "every position sees the future; pass is_causal=True.": attend(q, k, v),
        "the scores are divided by d; the function divides by sqrt(d) itself.": attend(
            q, k, v, is_causal=True, scale=1 / d
        ),
        "the scores are not divided by sqrt(d); leave the argument `scale` out.": attend(
            q, k, v, is_causal=True, scale=1.0
        ),
        "queries and keys are swapped; the order is q, k, v.": attend(k, q, v, is_causal=True),
        "you mix heads, not positions; q, k and v already are (batch, head, seq, head_dim).": (
            over_heads.transpose(1, 2)
        ),
        "your mask is inverted: in attn_mask, True means that a key may be used.": attend(
            q, k, v, attn_mask=future
        ),
    }


@part(library_attention, "")
def fused_attention(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Check the output, gradients and memory of fused causal attention."""
    for seed, shape in enumerate(((2, 3, 37, 8), (1, 1, 50, 4), (3, 2, 1, 6))):
        generator = torch.Generator().manual_seed(seed)
        q, k, v, g = (torch.randn(shape, generator=generator) for _ in range(4))
        got, want = answer(q, k, v), library_attention(q, k, v)
        expect(got is not None, NO_RETURN)
        expect(isinstance(got, Tensor), f"return a tensor, not {type(got).__name__}.")
        expect(
            got.shape == want.shape,
            f"for inputs of {shape} the result should have that shape too, not {tuple(got.shape)}.",
        )
        expect(not got.isnan().any(), "there is a nan: does each position see itself?")
        if not torch.allclose(got, want, rtol=1e-4, atol=1e-5):
            expect(
                torch.equal(torch.nan_to_num(got), torch.nan_to_num(answer(q, k, v))),
                "two calls with equal inputs differ; leave dropout out.",
            )
            for diagnosis, wrong in wrong_attention(q, k, v).items():
                expect(not torch.allclose(got, wrong, rtol=1e-4, atol=1e-5), diagnosis)
            raise DiagnosisError("the result is not that of causal attention.")
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        copies = [x.clone().requires_grad_() for x in (q, k, v)]
        made = answer(*inputs)
        expect(made.requires_grad, "the result has no gradient; don't detach it.")
        gradients = torch.autograd.grad(made, inputs, g, allow_unused=True)
        for name, ours, theirs in zip(
            "qkv",
            gradients,
            torch.autograd.grad(library_attention(*copies), copies, g),
            strict=True,
        ):
            same = ours is not None and torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5)
            expect(same, f"the values are right, but the gradient of {name} is not.")
    expect_small(answer)


def expect_small(attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Fail if attention makes a T x T tensor."""
    q, k, v = (torch.randn(1, 1, 96, 4, requires_grad=True) for _ in range(3))
    with LargestTensor() as made:
        attention(q, k, v).sum().backward()
    expect(
        made.numel < 96 * 96,
        f"right, but for 96 tokens you make a tensor of {made.numel} = 96 x 96 numbers, all scores "
        "or a mask. F.scaled_dot_product_attention with is_causal=True makes neither.",
    )


def library_optimizer(model: nn.Module, config: Any) -> torch.optim.AdamW:
    """Make AdamW with GPT-3's betas, which updates all parameters in one fused kernel."""
    groups = optim.parameter_groups(model, config.weight_decay)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)


@part(library_optimizer, "")
def make_optimizer(answer: Callable[[nn.Module, Any], torch.optim.Optimizer]) -> None:
    """Check that AdamW is fused, has two groups, and makes the right updates."""
    for seed, rate, decay in ((0, 2e-3, 0.3), (1, 7e-4, 0.05)):
        config = SimpleNamespace(learning_rate=rate, weight_decay=decay)
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Embedding(7, 5), nn.LayerNorm(5), nn.Linear(5, 3))
        optimizer = answer(model, config)
        expect(optimizer is not None, NO_RETURN)
        is_adamw = isinstance(optimizer, torch.optim.AdamW)
        expect(is_adamw, f"return a torch.optim.AdamW, not {type(optimizer).__name__}.")
        expect_groups(optimizer, model, config)
        for group in optimizer.param_groups:
            expect(
                group["fused"],
                f"the optimizer isn't fused: its groups have fused={group['fused']}. Pass "
                "fused=True to AdamW itself.",
            )
            expect(
                math.isclose(group["lr"], rate),
                f"config.learning_rate is {rate:g}, but a group has lr={group['lr']:g}.",
            )
            expect(
                tuple(group["betas"]) != (0.9, 0.999),
                "the betas are AdamW's defaults, (0.9, 0.999); GPT-3's are (0.9, 0.95).",
            )
            betas = tuple(group["betas"])
            expect(betas == (0.9, 0.95), f"the betas should be (0.9, 0.95), not {betas}.")
            expect(
                math.isclose(group["eps"], 1e-8),
                f"eps should be AdamW's default, 1e-8, not {group['eps']:g}.",
            )
        torch.manual_seed(seed)
        twin = nn.Sequential(nn.Embedding(7, 5), nn.LayerNorm(5), nn.Linear(5, 3))
        steppers = ((model, optimizer), (twin, library_optimizer(twin, config)))
        for number in range(3):
            for net, stepper in steppers:
                generator = torch.Generator().manual_seed(number)
                for p in net.parameters():
                    p.grad = torch.randn(p.shape, generator=generator)
                stepper.step()
        ours, theirs = (nn.utils.parameters_to_vector(n.parameters()) for n, _ in steppers)
        same = torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7)
        expect(same, "after three steps the weights differ from AdamW's; leave other options out.")


def expect_groups(optimizer: torch.optim.Optimizer, model: nn.Module, config: Any) -> None:
    """Fail unless matrices decay by the config's weight decay and vectors don't."""
    groups = optimizer.param_groups
    held = [p for group in groups for p in group["params"]]
    expect(
        {id(p) for p in held} == {id(p) for p in model.parameters()},
        "the groups don't hold each of the model's parameters.",
    )
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    matrices = {decays[id(p)] for p in model.parameters() if p.dim() >= 2}
    vectors = {decays[id(p)] for p in model.parameters() if p.dim() < 2}
    decay = config.weight_decay
    expect(
        not (vectors == matrices == {decay}),
        "biases and gains decay too; parameter_groups(model, config.weight_decay) separates them.",
    )
    expect(
        not (vectors == {decay} and matrices == {0.0}),
        "the groups are swapped: matrices decay, biases and gains don't.",
    )
    expect(
        matrices == {decay} and vectors == {0.0},
        f"config.weight_decay is {decay:g}, but matrices decay by {sorted(matrices)} and vectors "
        f"by {sorted(vectors)}; {decay:g} and 0 are expected.",
    )


def library_fast(model: nn.Module, config: Any) -> tuple[nn.Module, torch.autocast]:
    """Enable TF32, and return the compiled model and a bf16 autocast context."""
    torch.set_float32_matmul_precision("high")
    device = next(model.parameters()).device.type
    autocast = torch.autocast(device, dtype=torch.bfloat16, enabled=config.bf16)
    return torch.compile(model) if config.compile else model, autocast


class OnGPU(nn.Parameter):
    """A parameter that says it is on the second GPU."""

    device = property(lambda self: torch.device("cuda", 1))  # type: ignore[assignment]


class Head(nn.Module):
    """A model that consists of a single output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lm_head = nn.Linear(3, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.lm_head(x)


Fast = Callable[[nn.Module, Any], tuple[nn.Module, Any]]


@part(library_fast, "")
def fast(answer: Fast) -> None:
    """Check TF32, the autocast and the compiled model."""
    with hardware.tf32(False), warnings.catch_warnings():  # restores the precision at the end
        warnings.simplefilter("ignore")  # autocast for a GPU that isn't there warns
        low, plain = (pair(answer, Head(), bf16, False)[1] for bf16 in (True, False))
        expect(
            torch.get_float32_matmul_precision() != "medium",
            '"medium" lets fp32 matmuls run in bf16; TF32 is "high".',
        )
        expect(
            torch.get_float32_matmul_precision() == "high",
            'fp32 matmuls don\'t use TF32; call torch.set_float32_matmul_precision("high").',
        )
        expect_autocast(low, plain)
        expect_device(answer)
        expect_compiled(answer)


def autocast_depth() -> int:
    """Return how many autocast blocks are open."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def leave_autocasts(depth: int) -> bool:
    """Leave the autocast blocks that are open beyond `depth`, and return whether there are any.

    PyTorch keeps its bf16 copies of the weights until the outermost block ends. A block that stays
    open would make later training steps compute with old weights.
    """
    if autocast_depth() == depth:
        return False
    while autocast_depth() > depth:
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    for kind in ("cpu", "cuda"):
        torch.set_autocast_enabled(kind, False)
    return True


def pair(answer: Fast, model: nn.Module, bf16: bool, compiled: bool) -> tuple[Any, Any]:
    """Return the model and the autocast that the answer gives."""
    depth = autocast_depth()
    try:
        got = answer(model, SimpleNamespace(bf16=bf16, compile=compiled))
    except (RuntimeError, ValueError) as error:
        if "device_type" not in str(error):
            raise
        raise DiagnosisError(
            'autocast takes a device type such as "cuda", and neither a torch.device nor "cuda:1"; '
            "use the `.type` of the weights' device."
        ) from error
    finally:
        entered = leave_autocasts(depth)
    expect(not entered, "don't enter the autocast; return it.")
    expect(got is not None, NO_RETURN)
    is_pair = isinstance(got, tuple | list) and len(got) == 2
    expect(is_pair, "return a pair: the model, and the autocast.")
    expect(
        isinstance(got[0], nn.Module), "return the model first, then the autocast: model, autocast."
    )
    expect(
        hasattr(got[1], "__enter__"),
        f"the second value should be usable in `with`, and {type(got[1]).__name__} is not.",
    )
    for p in model.parameters():
        expect(p.dtype == torch.float32, "the weights stay fp32; autocast casts what it needs.")
    return got[0], got[1]


def expect_autocast(low: Any, plain: Any) -> None:
    """Fail unless matmuls run in bf16 under `low` every time, and in fp32 under `plain`."""
    x = torch.ones(2, 2)

    def dtype(context: Any) -> torch.dtype:
        with context:
            return (x @ x).dtype

    try:
        seen, plainly = {dtype(low), dtype(low)}, dtype(plain)
    except (RuntimeError, AttributeError) as error:
        raise DiagnosisError(
            "your autocast can be entered only once, and a step enters it for every micro-batch."
        ) from error
    expect(seen != {torch.float16}, "matmuls run in fp16; pass dtype=torch.bfloat16.")
    kind = getattr(low, "device", "cpu")
    expect(
        kind == "cpu",
        f'this model\'s weights are on the CPU, but the autocast is for "{kind}", so that its '
        "matmuls stay in fp32. Take the type from the weights.",
    )
    expect(
        seen == {torch.bfloat16},
        "config.bf16 is on, but matmuls run in fp32 under your autocast.",
    )
    expect(
        plainly == torch.float32,
        "config.bf16 is off, but matmuls run in bf16; pass enabled=config.bf16.",
    )


def expect_device(answer: Fast) -> None:
    """Fail unless the autocast of a model on cuda:1 is for "cuda"."""
    model, far = Head(), torch.cuda.is_available() and not hardware.has_bf16(torch.device("cuda"))
    model.lm_head.weight = OnGPU(model.lm_head.weight.detach())
    _, autocast = pair(answer, model, not far, False)
    kind = getattr(autocast, "device", "cuda")
    expect(
        kind != "cuda:1",
        'for weights on the device cuda:1, autocast should get its type "cuda"; older versions of '
        "PyTorch refuse an index.",
    )
    expect(
        kind == "cuda",
        f'for a model on a GPU the autocast is for "{kind}", so that its matmuls stay in fp32. '
        "Take the type from the weights.",
    )


def expect_compiled(answer: Fast) -> None:
    """Fail unless the model is compiled exactly if the config requests it."""
    model = Head()
    got, _ = pair(answer, model, False, False)
    expect(not is_compiled(got), "config.compile is off, but you return a compiled model.")
    expect(got is model, "config.compile is off; return the model itself.")
    got, _ = pair(answer, model, False, True)
    expect(
        not is_compiled(model),
        "model.compile() changes the model itself, so evaluation would be compiled for each of its "
        "sizes too. Return torch.compile(model), and leave the model as it is.",
    )
    expect(is_compiled(got), "config.compile is on, but the model that you return isn't compiled.")
    expect(
        {id(p) for p in got.parameters()} == {id(p) for p in model.parameters()},
        "the compiled model has other parameters, so the optimizer would update the wrong ones.",
    )


def is_compiled(model: nn.Module) -> bool:
    """Return whether a module is compiled, as a wrapper or in place."""
    in_place = getattr(model, "_compiled_call_impl", None) is not None
    return in_place or hasattr(model, "_orig_mod")


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


BLOCK_SLIPS = {
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


@exercise("")
def flash_attention(answer: Callable[[Tensor, Tensor, Tensor, int], Tensor]) -> None:
    """Check causal attention of one head that processes one block of keys at a time."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (2 * torch.randn(96, 8, generator=generator) for _ in range(3))
    q, k = q + torch.linspace(0, 2, 96)[:, None], k + torch.linspace(0, 2, 96)[:, None]
    want = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    with LargestTensor() as made:
        got = answer(q, k, v, 16)
    expect(isinstance(got, Tensor), "return a tensor; is the `return` missing?")
    expect(got.shape == v.shape, f"the result should be {tuple(v.shape)}, not {tuple(got.shape)}.")
    for mistake, diagnosis in BLOCK_SLIPS.items():
        wrong = block_softmax(q, k, v, 16, mistake)
        expect(not torch.allclose(got, wrong, rtol=1e-3, atol=1e-4), diagnosis)
    expect_no_nan(got)
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
        "query's own highest score so far, starting from -inf.",
    )
    ragged = "right for 96 = 6 blocks of 16, wrong for blocks of 40, where the last one is short."
    try:
        got = answer(q, k, v, 40)
    except (RuntimeError, IndexError) as error:
        raise DiagnosisError(f"{ragged} It has 16 keys: end at min(start + block, T).") from error
    expect(torch.allclose(got, want, rtol=1e-3, atol=1e-4), ragged)


def expect_no_nan(got: Tensor) -> None:
    """Fail with the likely reason if a query's result is nan."""
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
