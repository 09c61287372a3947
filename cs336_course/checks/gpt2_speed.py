"""Checks of notebook 09 on throughput, attention, padding, AdamW and `fast`."""

import copy
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Integral
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cs336_course.checks.draws import normal, sizes
from cs336_course.checks.report import (
    DiagnosisError,
    by_hand,
    exercise,
    expect,
    expect_number,
    part,
)
from cs336_course.checks.surroundings import seeded
from cs336_course.demos.activation_memory import LiveBytes
from cs336_lib import optim
from cs336_lib.system import hardware

NO_RETURN = "your function returns None; is the `return` missing?"


def rate_slips(ms: float, tokens: int) -> dict[str, float]:
    """Return the tokens per second of typical mistakes, by diagnosis."""
    return {
        "that is per millisecond; a second has 1000 of them.": tokens / ms,
        "you multiplied by the time; a rate is divided by it.": tokens * ms / 1e3,
        "milliseconds become seconds by dividing by 1000, not by multiplying.": tokens / ms / 1e3,
        "you take the time for microseconds; a second has 1000 milliseconds.": tokens / ms * 1e6,
        "that is the time of one token; divide the tokens by the time.": ms / 1e3 / tokens,
        "that is the rate of 16 x 1024 tokens; use the argument `tokens`.": 16 * 1024 * 1e3 / ms,
        "don't round the tokens per second; divide with / instead of //.": tokens * 1e3 // ms,
    }


def mfu_slips(share: float, tokens: int, flops: float, peak: float) -> dict[str, float]:
    """Return the MFU of typical mistakes, by diagnosis."""
    return {
        "the FLOPs in your MFU are those of one token; a step does them for every token.": (
            share / tokens
        ),
        "in your MFU the time is in milliseconds, but the peak is in FLOPs per second.": (
            share / 1e3
        ),
        "your MFU divides a whole step's FLOPs by it, but the peak is in FLOPs per second.": (
            tokens * flops / peak
        ),
        "your MFU has no time in it; multiply the FLOPs of one token by tokens per second.": (
            flops / peak
        ),
        "MFU is a fraction between 0 and 1; you return a percentage.": 100 * share,
        "your MFU is inverted; divide what the model needs by what the chip could do.": 1 / share,
        "your second number is the FLOPs per second that the step reaches; divide them by the "
        "peak.": share * peak,
        "your MFU counts too much; flops_per_token already includes the backward pass.": 3 * share,
        "your MFU counts too little; flops_per_token is what training costs.": share / 3,
        "peak is in FLOPs per second already, not in TFLOPs per second.": share / 1e12,
        "your MFU is doubled; flops_per_token already counts a multiply-add as two FLOPs.": (
            2 * share
        ),
        "don't round the MFU.": round(share, 2),
    }


@exercise(
    "A step of 500 ms processes 1,000 tokens of 6 FLOPs each, so how many FLOPs per second is that?"
)
def speed(answer: Callable[[float, int, float, float], tuple[float, float]]) -> None:
    """Check tokens per second and MFU, computed from milliseconds per step."""
    cases = [(240.0, 8200, 1e9, 100e12), (1700.0, 3, 5e11, 4e12)]
    for case in sizes(6, ms=(10, 9000), tokens=(100, 30_000), flops=(7, 900), percent=(2, 95)):
        ms, flops, share = case.ms / 7, case.flops * 1e6, (case.percent + 0.3) / 100
        cases.append((ms, case.tokens, flops, case.tokens * flops / (ms / 1e3) / share))
    for ms, tokens, flops, peak in cases:
        got = answer(ms, tokens, flops, peak)
        expect(got is not None, NO_RETURN)
        is_pair = isinstance(got, tuple | list) and len(got) == 2
        expect(is_pair, "return a pair of the tokens per second and the MFU.")
        rate, share = tokens / (ms / 1e3), tokens * flops / (ms / 1e3) / peak
        step = f"{tokens:,} tokens in {ms:.6g} ms"
        slips = {"the tokens per second come first, and the MFU second.": share}
        slips |= rate_slips(ms, tokens)
        expect_number(got[0], rate, f"the tokens per second of {step}", slips)
        slips = mfu_slips(share, tokens, flops, peak)
        costs = f"{flops:.6g} FLOPs per token and a peak of {peak:.6g}"
        expect_number(got[1], share, f"the MFU of {step}, with {costs}", slips)


def padding_slips(n: int, multiple: int) -> dict[str, int]:
    """Return typical mistakes of rounding up, by diagnosis."""
    down, count = n // multiple * multiple, -(-n // multiple)
    spare = f"{n} is already a multiple of {multiple}; don't pad it further."
    if n % multiple:
        spare = "your result is a multiple, but not the smallest one that is at least n."
    return {
        f"{down} is smaller than {n}, so the last ids would have no column.": down,
        f"{n} itself isn't a multiple of {multiple}.": n,
        f"that is how many multiples of {multiple} fit; multiply by {multiple} again.": count,
        "round up, not down, and multiply by `multiple` again.": n // multiple,
        spare: (count + 1) * multiple,
        f"that adds {multiple} to {n}, and the sum needn't be a multiple of {multiple}.": (
            n + multiple
        ),
        f"that adds the remainder, {n % multiple}; add what is missing up to {multiple}.": (
            n + n % multiple
        ),
        f"that is how many are missing; add them to {n}.": -n % multiple,
        f"your bits work for powers of 2, but {multiple} isn't one.": (
            (n + multiple - 1) & ~(multiple - 1)
        ),
        f"that is the next power of 2; the next multiple of {multiple} is smaller.": (
            1 << (n - 1).bit_length()
        ),
        f"that is the next multiple of 64, but `multiple` is {multiple}.": -(-n // 64) * 64,
        f"50304 is right for GPT-2's vocabulary only, and `n` is {n}.": 50304,
    }


@exercise("How many eggs fit into the boxes of 8 that you need for 17 eggs, and how many for 16?")
def padded(answer: Callable[[int, int], int]) -> None:
    """Check the smallest multiple of `multiple` that is at least n."""
    fixed = [(50257, 64), (50304, 64), (50250, 64), (1, 128), (257, 8), (13, 1), (24, 24)]
    fixed += [(2049, 2048), (1_000_001, 1_000_000)]  # a fraction that is nearly 0 still counts
    drawn = sizes(12, n=(1, 60_000), multiple=(2, 300))
    for n, multiple in [*fixed, *((case.n, case.multiple) for case in drawn)]:
        got, want = answer(n, multiple), -(-n // multiple) * multiple
        expect_number(got, want, f"padded({n}, {multiple})", padding_slips(n, multiple))
        expect(
            isinstance(got, Integral),
            f"a size is an int, and you return a {type(got).__name__}; use integer division.",
        )


# Position of a matmul's first matrix among the arguments, by operator
MATMULS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "addmv": 1, "baddbmm": 1}
REDUCTIONS = {"_softmax", "amax", "logsumexp", "max.dim", "sum.dim_IntList"}


class Operators(TorchDispatchMode):
    """Record the operators that run within the block.

    Attributes:
        names: Names of the operators, such as "mm".
        largest: Number of elements of the largest result.
        terms: Largest number of values that a matmul, sum, maximum or softmax combines.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.largest = self.terms = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, and record it with its sizes."""
        made = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::")
        self.names.add(name)
        tensors = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.largest = max(self.largest, *tensors, 0)
        if self.is_fused(name):
            self.terms = max(self.terms, args[1].size(-2))
        elif name in MATMULS:
            self.terms = max(self.terms, args[MATMULS[name]].size(-1))
        elif name in REDUCTIONS and len(args) > 1:
            axes = [args[1]] if isinstance(args[1], int) else args[1]
            axes = axes or range(args[0].dim())  # no axes are all axes
            self.terms = max(self.terms, math.prod(args[0].size(axis) for axis in axes))
        return made

    @staticmethod
    def is_fused(name: str) -> bool:
        """Return whether an operator computes the whole attention."""
        return "scaled_dot_product" in name


def library_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention for tensors of shape (batch, head, seq, head_dim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def wrong_attention(q: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the results of typical mistakes in attention, with their diagnoses."""
    attend, d, seq = F.scaled_dot_product_attention, q.size(-1), q.size(2)
    yield "every position sees the future; pass is_causal=True.", attend(q, k, v)
    twice = "the scores are divided by d; the function divides by sqrt(d) itself."
    yield twice, attend(q, k, v, is_causal=True, scale=1 / d)
    never = "the scores are not divided by sqrt(d); leave the argument `scale` out."
    yield never, attend(q, k, v, is_causal=True, scale=1.0)
    other = "the scores are divided by the root of the positions; leave the argument `scale` out."
    yield other, attend(q, k, v, is_causal=True, scale=seq**-0.5)
    for order in ((k, q, v), (q, v, k), (v, k, q), (k, v, q), (v, q, k)):
        yield (
            "queries, keys and values are mixed up; the order is q, k, v.",
            attend(*order, is_causal=True),
        )
    others = (x.transpose(1, 2) for x in (q, k, v))
    over_heads = attend(next(others), next(others), next(others), is_causal=True)
    heads = "you mix heads, not positions; q, k and v already are (batch, head, seq, head_dim)."
    yield heads, over_heads.transpose(1, 2)
    ones = torch.ones(seq, seq)
    masks = {
        "your mask is inverted; in attn_mask, True means that a key may be used.": (
            ones.triu().bool(),
            ones.triu(1).bool(),
        ),
        "your mask hides each position from itself; it may see itself and all earlier ones.": (
            ones.tril(-1).bool(),
        ),
        "your mask lets each position see the next one.": (ones.tril(1).bool(),),
        "a mask of numbers is added to the scores, so 0 masks nothing; pass is_causal=True.": (
            ones.tril(),
            ones.triu(1),
        ),
    }
    for diagnosis, wrong in masks.items():
        for mask in wrong:
            yield diagnosis, attend(q, k, v, attn_mask=mask)


QKV = tuple[Tensor, Tensor, Tensor]


def attention_inputs() -> Iterator[tuple[str, QKV]]:
    """Yield q, k and v for fused attention, and what is special about them."""

    def drawn(*shape: int, seed: int) -> QKV:
        q, k, v = normal(3, *shape, seed=seed)
        return q, k, v

    yield "", drawn(2, 3, 37, 6, seed=0)
    yield "", drawn(1, 1, 50, 4, seed=1)
    yield " with many positions", drawn(1, 1, 150, 3, seed=10)
    yield " with a single position", drawn(3, 2, 1, 6, seed=2)
    yield " with one number per head", drawn(1, 4, 7, 1, seed=3)
    for seed, case in enumerate(sizes(3, batch=(1, 4), head=(1, 5), seq=(2, 40), d=(2, 9)), 4):
        q, k, v = drawn(case.batch, case.seq, case.head, case.d, seed=seed)
        yield " made by a transpose", (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    q, k, v = drawn(2, 2, 9, 5, seed=7)
    yield " with scores of hundreds", (20 * q, 20 * k, v)
    shared = v[:1].expand(2, -1, -1, -1)
    yield " that all rows of the batch share", (q, k[:1].expand(2, -1, -1, -1), shared)


@part(
    library_attention,
    "Which of the positions 0, 1, 2 and 3 may position 1 see, and which argument says so?",
)
def fused_attention(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Check the output, gradients and memory of fused causal attention."""
    for special, inputs in attention_inputs():
        q, k, v = inputs
        copies = [x.clone() for x in inputs]
        got, want = answer(q, k, v), library_attention(*copies)
        expect(got is not None, NO_RETURN)
        expect(isinstance(got, Tensor), f"return a tensor, not {type(got).__name__}.")
        shape = tuple(q.shape)
        expect(
            got.shape == want.shape,
            f"for inputs of {shape} the result should have that shape too, not {tuple(got.shape)}.",
        )
        expect_unchanged("qkv", inputs, copies)
        expect_dtype(got, q)
        expect_attention(answer, got, (q, k, v), f"{shape}{special}")
        expect_gradients(answer, inputs)
    low = (x.bfloat16() for x in inputs)
    expect_dtype(answer(*low), torch.empty(0, dtype=torch.bfloat16))
    expect_fused(answer)


def expect_unchanged(names: str, inputs: Sequence[Tensor], copies: Sequence[Tensor]) -> None:
    """Fail if an input differs from its copy."""
    for name, x, before in zip(names, inputs, copies, strict=True):
        expect(torch.equal(x, before), f"your function changes its input {name} in place.")


def expect_dtype(got: Tensor, like: Tensor) -> None:
    """Fail unless the result has the dtype of the inputs."""
    kept, found = (str(x.dtype).removeprefix("torch.") for x in (like, got))
    expect(kept == found, f"your function returns {found} for inputs in {kept}; keep their dtype.")


def expect_attention(answer: Callable[..., Tensor], got: Tensor, qkv: QKV, case: str) -> None:
    """Fail with the likely reason unless `got` is causal attention."""
    if close(got, library_attention(*qkv)):
        return
    again = answer(*qkv)
    expect(
        torch.equal(got.nan_to_num(), again.nan_to_num()),
        "two calls with equal inputs differ; leave dropout out.",
    )
    for diagnosis, wrong in wrong_attention(*qkv):
        expect(not close(got, wrong), diagnosis)
    expect(not got.isnan().any(), "there is a nan; does each position see itself?")
    raise DiagnosisError(f"for inputs of {case} the result is not that of causal attention.")


def close(got: Tensor, want: Tensor) -> bool:
    """Return whether two results of attention are equal up to fp32's rounding."""
    return torch.allclose(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)


def expect_gradients(answer: Callable[..., Tensor], qkv: QKV) -> None:
    """Fail unless q, k and v get the gradients of attention."""
    inputs, copies = ([x.clone().requires_grad_() for x in qkv] for _ in range(2))
    made, right = answer(*inputs), library_attention(*copies)
    expect(made.requires_grad, "the result has no gradient; don't detach it.")
    upstream = normal(*made.shape, seed=9)
    ours = torch.autograd.grad(made, inputs, upstream, allow_unused=True)
    theirs = torch.autograd.grad(right, copies, upstream)
    for name, x, y in zip("qkv", ours, theirs, strict=True):
        same = x is not None and torch.allclose(x, y, rtol=1e-3, atol=1e-4)
        expect(same, f"the values are right, but the gradient of {name} is not.")


def expect_fused(attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Fail if attention makes a T x T tensor, or never calls PyTorch's function."""
    q, k, v = (x.requires_grad_() for x in normal(3, 1, 1, 96, 4))
    call = "scaled_dot_product_attention"
    with mock.patch.object(F, call, wraps=getattr(F, call)) as calls, Operators() as made:
        attention(q, k, v).sum().backward()
    expect(
        all(x.dim() == 4 for used in calls.call_args_list for x in used.args[:1]),
        "right, but PyTorch has fast kernels for four axes only, (batch, head, seq, head_dim); "
        "with other axes it makes a T x T tensor.",
    )
    expect(
        made.largest < 96 * 96,
        f"right, but for 96 tokens you make a tensor of {made.largest} = 96 x 96 numbers, all "
        "scores or a mask. F.scaled_dot_product_attention with is_causal=True makes neither.",
    )
    expect(
        any(map(made.is_fused, made.names)),
        "right, but without F.scaled_dot_product_attention, which does all of it in one fast call.",
    )


def library_optimizer(model: nn.Module, config: Any) -> torch.optim.AdamW:
    """Make AdamW with GPT-3's betas, which updates all parameters in one fused kernel."""
    groups = optim.parameter_groups(model, config.weight_decay)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)


def optimized_models() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Yield functions that build a model, and what is special about each."""

    def tied() -> nn.Module:
        model = nn.Sequential(nn.Embedding(7, 5), nn.LayerNorm(5), nn.Linear(5, 7, bias=False))
        model[2].weight = model[0].weight
        return model

    yield "", lambda: nn.Sequential(nn.Embedding(7, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    yield "whose output layer shares the embedding's weight", tied
    yield "with a matrix of one row", lambda: nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 3))
    yield "without biases", lambda: nn.Sequential(nn.Linear(4, 6, bias=False))
    yield "with a weight of three axes", lambda: nn.Conv1d(3, 4, 2)
    yield "without decay", lambda: nn.Linear(3, 2)
    yield "with a learning rate of 0", lambda: nn.Linear(3, 2)


@part(
    library_optimizer,
    "Which settings of AdamW are the same for matrices and biases, and which do the groups set?",
)
def make_optimizer(answer: Callable[[nn.Module, Any], torch.optim.Optimizer]) -> None:
    """Check that AdamW is fused, has two groups, and makes the right updates."""
    drawn = sizes(4, seed=1, rate=(1, 99), decay=(1, 99))
    configs = [SimpleNamespace(learning_rate=2e-3, weight_decay=0.3)]
    configs += [
        SimpleNamespace(learning_rate=c.rate / 1e4, weight_decay=c.decay / 1e2) for c in drawn
    ]
    configs.append(SimpleNamespace(learning_rate=3e-3, weight_decay=0.0))
    configs.append(SimpleNamespace(learning_rate=0.0, weight_decay=0.2))
    cases = zip(optimized_models(), configs, strict=True)
    for seed, ((special, build), config) in enumerate(cases):
        with seeded(seed):
            model, before = build(), SimpleNamespace(**vars(config))
        weights = [p.detach().clone() for p in model.parameters()]
        optimizer = answer(model, config)
        expect(optimizer is not None, NO_RETURN)
        is_adamw = isinstance(optimizer, torch.optim.AdamW)
        expect(is_adamw, f"return a torch.optim.AdamW, not {type(optimizer).__name__}.")
        expect(config == before, "your function changes the config.")
        kept = all(map(torch.equal, weights, model.parameters()))
        expect(kept, "your function changes the model's weights; only a step may.")
        case = f"for a model {special}, " if special else ""
        expect_groups(optimizer, model, config, case)
        expect_settings(optimizer, config)
        expect_updates(optimizer, model, config, case)


def expect_settings(optimizer: torch.optim.Optimizer, config: Any) -> None:
    """Fail unless every group is fused and has GPT-2's settings."""
    for group in optimizer.param_groups:
        expect(
            group["fused"],
            f"the optimizer isn't fused. Its groups have fused={group['fused']}; pass fused=True "
            "to AdamW itself.",
        )
        rate, betas = config.learning_rate, tuple(group["betas"])
        expect(
            math.isclose(group["lr"], rate, rel_tol=1e-6),  # it may be an fp32 tensor
            f"config.learning_rate is {rate:g}, but a group has lr={group['lr']:g}.",
        )
        expect(
            betas != (0.9, 0.999),
            "the betas are AdamW's defaults, (0.9, 0.999); GPT-3's are (0.9, 0.95).",
        )
        expect(betas != (0.95, 0.9), "the betas are swapped; the first is 0.9.")
        expect(betas == (0.9, 0.95), f"the betas should be (0.9, 0.95), not {betas}.")
        expect(
            math.isclose(group["eps"], 1e-8),
            f"eps should be AdamW's default, 1e-8, not {group['eps']:g}.",
        )
        expect(not group["maximize"], "maximize=True climbs up the loss; leave it out.")
        expect(not group["amsgrad"], "amsgrad=True is another algorithm; leave it out.")


def expect_updates(
    optimizer: torch.optim.Optimizer, model: nn.Module, config: Any, case: str
) -> None:
    """Fail unless three steps change the weights as AdamW does."""
    twin = copy.deepcopy(model)
    for net, stepper in ((model, optimizer), (twin, library_optimizer(twin, config))):
        for step in range(3):
            for number, p in enumerate(net.parameters()):
                p.grad = normal(*p.shape, seed=10 * step + number)
            stepper.step()
    ours, theirs = (nn.utils.parameters_to_vector(net.parameters()) for net in (model, twin))
    same = torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    expect(
        same, f"{case}after three steps the weights differ from AdamW's; leave other options out."
    )


def expect_groups(
    optimizer: torch.optim.Optimizer, model: nn.Module, config: Any, case: str
) -> None:
    """Fail unless matrices decay by the config's weight decay and vectors don't."""
    groups = optimizer.param_groups
    held = [p for group in groups for p in group["params"]]
    expect(
        {id(p) for p in held} == {id(p) for p in model.parameters()},
        "the groups don't hold each of the model's parameters, and nothing else.",
    )
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    matrices = {decays[id(p)] for p in model.parameters() if p.dim() >= 2}
    vectors = {decays[id(p)] for p in model.parameters() if p.dim() < 2}
    decay = config.weight_decay
    expect(
        not decay or not (vectors == matrices == {decay}),
        "biases and gains decay too; parameter_groups(model, config.weight_decay) separates them.",
    )
    expect(
        not decay or not (vectors == {decay} and matrices == {0.0}),
        "the groups are swapped; matrices decay, and biases and gains don't.",
    )
    expect(
        vectors <= {0.0},
        f"{case}config.weight_decay is {decay:g}, but parameters of two axes or more decay by "
        f"{listed(matrices)} and vectors by {listed(vectors)}. Vectors shouldn't decay.",
    )
    expect(
        matrices == {decay},
        f"{case}config.weight_decay is {decay:g}, but parameters of two axes or more decay by "
        f"{listed(matrices)}. Use parameter_groups(model, config.weight_decay).",
    )


def listed(decays: Collection[object]) -> str:
    """Format weight decays, which the learner may have set to `None`."""
    return " and ".join(sorted(map(str, decays))) or "nothing"


def library_fast(model: nn.Module, config: Any) -> tuple[nn.Module, torch.autocast]:
    """Enable TF32, and return the compiled model and a bf16 autocast context."""
    torch.set_float32_matmul_precision("high")
    device = next(model.parameters()).device.type
    autocast = torch.autocast(device, dtype=torch.bfloat16, enabled=config.bf16)
    return torch.compile(model) if config.compile else model, autocast


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


Fast = Callable[[nn.Module, Any], tuple[nn.Module, Any]]


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


@part(
    library_fast,
    "Which two values do you return for each of the four combinations of config.bf16 and "
    "config.compile?",
)
def fast(answer: Fast) -> None:
    """Check TF32, the autocast and the compiled model."""
    with slow_defaults():
        low, plain = (pair(answer, Tied(), bf16, False)[1] for bf16 in (True, False))
        expect_autocast(low, plain)
        expect_device(answer)
        expect_compiled(answer)
        expect_both(answer)


def pair(answer: Fast, model: Tied, bf16: bool, compiled: bool) -> tuple[Any, Any]:
    """Return the model and the autocast that the answer gives."""
    weight = model.lm_head.weight.detach().clone()
    torch.set_float32_matmul_precision("highest")
    try:
        got = answer(model, SimpleNamespace(bf16=bf16, compile=compiled))
    except (RuntimeError, ValueError) as error:
        if "device_type" not in str(error):
            raise
        raise DiagnosisError(
            'autocast takes a device type such as "cuda", and neither a torch.device nor "cuda:1"; '
            "use the `.type` of the weights' device."
        ) from error
    expect(got is not None, NO_RETURN)
    is_pair = isinstance(got, tuple | list) and len(got) == 2
    expect(is_pair, "return a pair: the model, and the autocast.")
    expect(not isinstance(got[1], nn.Module), "return the model first, and then the autocast.")
    expect(
        isinstance(got[0], nn.Module),
        f"the first value should be a module, not a {type(got[0]).__name__}; "
        "pass the model itself to torch.compile.",
    )
    expect(
        hasattr(got[1], "__enter__"),
        f"the second value should be usable in `with`, and {type(got[1]).__name__} is not.",
    )
    expect(
        not isinstance(got[1], nullcontext),
        f"if config.bf16 is {bf16}, you return a nullcontext. Always return an autocast, and "
        "enable it only if config.bf16 is set.",
    )
    for p in model.parameters():
        expect(p.dtype == torch.float32, "the weights stay fp32; autocast casts what it needs.")
        expect(torch.equal(p, weight), "your function changes the model's weights.")
        expect(p.requires_grad, "your function freezes the weights, so they can't be trained.")
    expect(model.training, "your function calls model.eval(); the model stays in training mode.")
    expect_tf32(f"if config.bf16 is {bf16} and config.compile is {compiled}")
    return got[0], got[1]


def expect_tf32(case: str) -> None:
    """Fail unless fp32 matmuls run in TF32, as PyTorch's older setting shows it."""
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # PyTorch refuses to mix its two settings
        precision = "mixed"
    expect(
        precision != "mixed" and torch.backends.fp32_precision != "tf32",
        "PyTorch's fp32_precision can't be mixed with the setting that this notebook uses; call "
        'torch.set_float32_matmul_precision("high").',
    )
    expect(precision != "medium", '"medium" lets fp32 matmuls run in bf16; TF32 is "high".')
    expect(
        precision == "high",
        f"fp32 matmuls don't use TF32 {case}; always call "
        'torch.set_float32_matmul_precision("high").',
    )


def product_dtype(context: Any) -> torch.dtype:
    """Return the dtype of a matmul's result within a context."""
    x = torch.ones(2, 2)
    with context:
        return (x @ x).dtype


def expect_autocast(low: Any, plain: Any) -> None:
    """Fail unless matmuls run in bf16 under `low` every time, and in fp32 under `plain`."""
    try:
        seen, plainly = {product_dtype(low), product_dtype(low)}, product_dtype(plain)
    except (RuntimeError, AttributeError) as error:
        raise DiagnosisError(
            "your autocast can be entered only once, and a step enters it for every micro-batch."
        ) from error
    expect(
        seen != {torch.float16},
        "matmuls run in fp16, which is autocast's default on a GPU; pass dtype=torch.bfloat16.",
    )
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
    model, far = Tied(), torch.cuda.is_available() and not hardware.has_bf16(torch.device("cuda"))
    model.tie(OnGPU(model.lm_head.weight.detach()))
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
    model = Tied()
    got, _ = pair(answer, model, False, False)
    expect(not is_compiled(got), "config.compile is off, but you return a compiled model.")
    expect(got is model, "config.compile is off; return the model itself.")
    with mock.patch.object(torch, "compile", wraps=torch.compile) as compiler:
        got, plain = pair(answer, model, False, True)
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
    eager = any("eager" in str(call.kwargs.get("backend")) for call in compiler.call_args_list)
    expect(not eager, "an eager backend traces the model without compiling it; leave it out.")
    expect(
        product_dtype(plain) == torch.float32,
        "config.compile switches bf16 on although config.bf16 is off; pass enabled=config.bf16.",
    )


def expect_both(answer: Fast) -> None:
    """Fail unless bf16 and the compiler can be on together."""
    model = Tied()
    got, low = pair(answer, model, True, True)
    both = product_dtype(low) == torch.bfloat16 and is_compiled(got)
    expect(both, "each setting works alone, but not config.bf16 and config.compile together.")


def is_compiled(model: nn.Module) -> bool:
    """Return whether a module is compiled, as a wrapper or in place."""
    in_place = getattr(model, "_compiled_call_impl", None) is not None
    return in_place or hasattr(model, "_orig_mod")


def block_softmax(q: Tensor, k: Tensor, v: Tensor, block: int, mistake: str = "") -> Tensor:
    """Compute attention over blocks of keys, with one mistake built in."""
    causal, seq = mistake != "causal", len(q)
    scales = {"scale": 1.0, "no root": 1 / q.size(-1), "length": seq**-0.5, "width": block**-0.5}
    scale = scales.get(mistake, q.size(-1) ** -0.5)
    masked = 0.0 if mistake == "zero" else -math.inf
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
        values = v[: len(keys)] if mistake == "first values" else v[keys]
        result, highest = kept + weights @ values, now
        total = (1.0 if mistake == "rescale total" else rescale) * total
        total = total + weights.sum(1, keepdim=True)
    return result if mistake == "divide" else result / total


def block_means(q: Tensor, k: Tensor, v: Tensor, block: int) -> Tensor:
    """Return the mean of each visible block's own attention, which is a typical mistake."""
    queries, result, count = torch.arange(len(q))[:, None], torch.zeros_like(v), 0
    for start in range(0, len(q), block):
        keys = torch.arange(start, min(start + block, len(q)))
        scores = (q @ k[keys].T / math.sqrt(q.size(1))).masked_fill(keys > queries, -math.inf)
        result = result + scores.softmax(-1).nan_to_num() @ v[keys]
        count = count + (queries >= start).float()
    return result / count


BLOCK_SLIPS = {
    "causal": "every position sees the future; mask keys that come after their query.",
    "scale": "the scores are not divided by sqrt(d).",
    "divide": "the weights do not add up to 1; divide by their total at the end.",
    "rescale": "when a block brings a higher maximum, what was summed before must be "
    "multiplied by exp(old maximum - new maximum), both the result and the total.",
    "rescale total": "you rescale the result but not the total.",
    "rescale result": "you rescale the total but not the result.",
    "no root": "you divide the scores by d; divide by its root, sqrt(d).",
    "length": "you divide the scores by the root of T; divide by sqrt(d).",
    "width": "you divide the scores by the root of the block's size; divide by sqrt(d).",
    "zero": "a masked score is -inf, not 0, because exp(0) is still a weight.",
    "offset": "in the mask, the keys of each block are counted from 0 again; its first key is "
    "number `start` of the sequence.",
    "first values": "every block uses the first values; take the values of the same keys.",
}


def block_inputs() -> Iterator[tuple[str, QKV, int]]:
    """Yield q, k and v of one head and the size of a block, and what is special about them."""

    def drawn(seq: int, d: int, seed: int) -> QKV:
        q, k, v = normal(3, seq, d, seed=seed)
        return q, k, v

    yield "a single token", drawn(1, 3, seed=1), 4
    yield "one block that is longer than the sequence", drawn(5, 2, seed=2), 8
    yield "one key per block", drawn(7, 1, seed=3), 1
    for seed, case in enumerate(sizes(4, blocks=(2, 6), block=(3, 9), d=(1, 3)), 4):
        q, k, v = drawn(case.blocks * case.block, case.d, seed)
        yield "blocks of equal length", (q, k, v), case.block
        rows = len(q) - 1
        yield "a short last block", (q[:rows], k[:rows], v[:rows]), case.block
    q, k, v = (x.T for x in normal(3, 3, 20, seed=8))
    yield "inputs made by a transpose", (q, k, v), 5
    yield "equal keys", (q, k[:1].expand(20, -1), v), 5


@exercise(
    "A query has score 1 in the first block and 3 in the second, so what are m and total after it?"
)
def flash_attention(answer: Callable[[Tensor, Tensor, Tensor, int], Tensor]) -> None:
    """Check causal attention of one head that processes one block of keys at a time."""
    q, k, v = 2 * normal(3, 96, 5)
    growing = torch.linspace(0, 2, 96)[:, None]
    q, k = q + growing, k + growing
    expect_blocks(answer, q, k, v)
    expect_far(answer, q, k, v)
    short = (
        "right for 96 = 6 blocks of 16, but wrong for blocks of 40, where the last one is short."
    )
    try:
        got = answer(q, k, v, 40)
    except (RuntimeError, IndexError) as error:
        raise DiagnosisError(f"{short} It has 16 keys; end at min(start + block, T).") from error
    expect(attended(got, q, k, v), short)
    for special, inputs, block in block_inputs():
        q, k, v = inputs
        case = f"T = {len(q)}, d = {q.size(1)} and block = {block}, with {special}"
        with Operators() as made:
            got = answer(q, k, v, block)
        right = isinstance(got, Tensor) and got.shape == v.shape and attended(got, q, k, v)
        expect(right, f"right for 96 queries with blocks of 16, but wrong for {case}.")
        expect_few(made, max(block, q.size(1)), f"for {case},")
    expect_small(answer)
    expect_gradients_of_blocks(answer)


def expect_gradients_of_blocks(answer: Callable[..., Tensor]) -> None:
    """Fail if gradients are missing or wrong.

    Autograd refuses sums that are changed in place. Such an answer can't give wrong gradients.
    """
    inputs, copies = ([x.clone().requires_grad_() for x in normal(3, 11, 3)] for _ in range(2))
    got, want = answer(*inputs, 4), library_attention(*(x[None] for x in copies))[0]
    expect(
        got.requires_grad,
        "right, but the result has no gradient, so nothing could learn through it. Is something "
        "detached, or in no_grad?",
    )
    upstream = normal(*want.shape, seed=9)
    theirs = torch.autograd.grad(want, copies, upstream)
    try:
        ours = torch.autograd.grad(got, inputs, upstream, allow_unused=True)
    except RuntimeError as error:
        if "inplace operation" in str(error):
            return
        raise
    for name, x, y in zip("qkv", ours, theirs, strict=True):
        is_right = x is not None and torch.allclose(x, y, rtol=1e-3, atol=1e-4)
        expect(
            is_right,
            f"the values are right, but the gradient of {name} is not; is a part of them detached?",
        )


def expect_blocks(answer: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> None:
    """Fail with the likely reason unless 96 queries are right with blocks of 16."""
    copies = [x.clone() for x in (q, k, v)]
    with by_hand(F, "scaled_dot_product_attention"), Operators() as made:
        got = answer(q, k, v, 16)
    expect(got is not None, NO_RETURN)
    expect(isinstance(got, Tensor), f"return a tensor, not {type(got).__name__}.")
    expect(got.shape == v.shape, f"the result should be {tuple(v.shape)}, not {tuple(got.shape)}.")
    expect_unchanged("qkv", (q, k, v), copies)
    expect_dtype(got, v)
    for mistake, diagnosis in BLOCK_SLIPS.items():
        wrong = block_softmax(q, k, v, 16, mistake)
        expect(not torch.allclose(got, wrong, rtol=1e-3, atol=1e-4), diagnosis)
    expect(
        not torch.allclose(got, block_means(q, k, v, 16), rtol=1e-3, atol=1e-4),
        "you take a softmax in each block and average the blocks, but a block's share is its sum "
        "of exponentials, as part of the total of all blocks.",
    )
    expect_no_nan(got)
    expect(attended(got, q, k, v), "the result is not that of attention.")
    expect(
        made.largest < 96 * 96,
        f"right, but you made a T x T tensor of {made.largest} numbers, with all scores at once "
        "or a mask for all of them. Make both for `block` keys at a time.",
    )
    expect_few(made, 16, "for blocks of 16 keys")


def expect_few(made: Operators, block: int, case: str) -> None:
    """Fail if the answer sums over more keys than a block has, such as all keys of a query."""
    expect(
        made.terms <= block + 2,  # a running maximum or sum may be among them
        f"right, but {case} you combine {made.terms} keys at once. Take `block` keys at a time.",
    )


def expect_small(answer: Callable[..., Tensor]) -> None:
    """Fail if the answer keeps the scores of all blocks."""
    q, k, v = normal(3, 128, 2)
    with LiveBytes() as live:
        answer(q, k, v, 8)
    expect(
        live.peak < 128 * 128 * q.element_size(),
        "right, but you keep the scores of all blocks, which are T x T together. Use up a block "
        "before you compute the next one.",
    )


def expect_far(answer: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> None:
    """Fail if scores of hundreds overflow."""
    sign = torch.tensor([1.0, -1.0]).repeat(48)[:, None]  # makes every other query oppose all keys
    far_q, far_k = q / 10 + 15 * sign, k / 10 + 10  # scores of 300 and of -300
    expect(
        attended(answer(far_q, far_k, v, 16), far_q, far_k, v),
        "right for small scores, but exp(300) is infinite and exp(-300) is 0. Subtract each "
        "query's own highest score so far, starting from -inf.",
    )
    steep = 10 * torch.arange(96.0)[:, None].expand_as(k)  # each key is far better than the last
    expect(
        attended(answer(torch.ones_like(q), steep, v, 16), torch.ones_like(q), steep, v),
        "right until a later key has a much higher score. Mask it before you take the maximum, "
        "which otherwise includes the future.",
    )


def attended(got: Tensor, q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether `got` is the causal attention of one head."""
    want = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    return torch.allclose(got, want, rtol=1e-3, atol=1e-3)


def expect_no_nan(got: Tensor) -> None:
    """Fail with the likely reason if a query's result is nan."""
    lost = got.isnan().any(1)  # queries
    expect(
        not lost.all(),
        "every row is nan. Since m begins at -inf, exp(new - m) is infinite; take exp(m - new).",
    )
    expect(
        not lost[0] or lost[1:].any(),
        "query 0 is nan, so it has no key left; mask the keys *after* each query, not its own.",
    )
    expect(
        not lost[-1] or lost[0],
        "query 0 has a result but the last query is nan; is your mask the wrong way round?",
    )
    expect(
        not lost.any(),
        "there is a nan, because a whole masked block gives exp(-inf - (-inf)). Begin with the "
        "first block, in which every query has a key, and never let m fall again.",
    )
