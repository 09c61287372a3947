"""Exercises of page 10: flash attention in blocks of keys, and all that makes a step fast."""

import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits, function, normal, sizes
from cs336_course.engine.operators import Operators
from cs336_course.engine.records import Record, plain
from cs336_course.shared.activation_memory import LiveBytes
from cs336_lib.system import hardware

NOTEBOOK = "10_gpt2_speed"


# flash_attention

KEPT, GRADIENTS = "128 queries in blocks of 8", "11 queries in blocks of 4"


def qkv(*shape: int, seed: int) -> dict[str, Tensor]:
    """Return queries, keys and values."""
    return dict(zip("qkv", normal(3, *shape, seed=seed), strict=True))


def flash_cases() -> Iterator[Case]:
    """Yield q, k and v of one head, and the number of keys in a block."""
    q, k, v = 2 * normal(3, 96, 5)
    more = torch.linspace(0, 2, 96)[:, None]  # so that later blocks have higher maxima
    q, k = q + more, k + more
    yield Case(q=q, k=k, v=v, block=16)
    sign = torch.tensor([1.0, -1.0]).repeat(48)[:, None]  # makes every other query oppose all keys
    far = {"q": q / 10 + 15 * sign, "k": k / 10 + 10, "v": v}
    yield Case("scores of 300 and -300", **far, block=16)
    steep = 10 * torch.arange(96.0)[:, None].expand_as(k)
    what = "keys that are each far better than the last"
    yield Case(what, q=torch.ones_like(q), k=steep, v=v, block=16)
    yield Case("a last block of 16 keys", q=q, k=k, v=v, block=40)
    yield Case("a single token", **qkv(1, 3, seed=1), block=4)
    yield Case("one block that is longer than the sequence", **qkv(5, 2, seed=2), block=8)
    yield Case("one key per block", **qkv(7, 1, seed=3), block=1)
    for seed, size in enumerate(sizes(2, blocks=(2, 6), block=(3, 9), d=(1, 3)), 4):
        made = qkv(size.blocks * size.block - 1, size.d, seed=seed)
        yield Case("a short last block", **made, block=size.block)
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
        "T x T": "right, but you made a T x T tensor, with all scores at once or a mask for all of "
        "them. Make both for `block` keys at a time.",
        "keys at once": "right, but you combine more keys at once than a block has. Take `block` "
        "keys at a time.",
        "kept": "right, but you keep the scores of all blocks, which are T x T together. Use up a "
        "block before you compute the next one.",
        "gradient": "the values are right, but the gradients aren't. Is something detached, or in "
        "no_grad?",
    },
    wrong={
        "every position sees the future; mask keys that come after their query.": (
            ".masked_fill(keys > queries, -math.inf)",
            "",
        ),
        "the scores are divided by sqrt(d), and by nothing else.": [
            ("math.sqrt(d)", other) for other in ("1", "d", "math.sqrt(seq)", "math.sqrt(block)")
        ],
        "the weights do not add up to 1; divide by their total at the end.": (
            "result / total",
            "result",
        ),
        "when a block brings a higher maximum, what was summed before must be multiplied by "
        "exp(old maximum - new maximum), both the result and the total.": [
            ("old * ", ""),
            ("old * total", "total"),
            ("old * result", "result"),
        ],
        "you divide by the total in every block; do it once, after the last one.": edits(
            ("keepdim=True)\n", "keepdim=True)\n        result = result / total\n"),
            ("return result / total", "return result"),
        ),
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
        "of exponentials, as part of the total of all blocks.": edits(
            (
                "result, total = old * result + weights @ v[keys], ",
                "weights = scores.softmax(1).nan_to_num()\n"
                "        result, total = result + weights @ v[keys], ",
            ),
            ("old * total + weights.sum(1, keepdim=True)", "total + (queries >= start).float()"),
        ),
        "every row is nan. In the first block the old sums need a factor of 0, as exp(m - new) is, "
        "and yours is infinite.": (
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
        "there is a nan, because m is as low as a masked score in a block that is all masked. "
        "Begin with the first block, which has a key for every query, and never let m fall.": [
            ("range(0, seq, block)", "reversed(range(0, seq, block))"),
            ("torch.maximum(m, scores.amax(1, keepdim=True))", "scores.amax(1, keepdim=True)"),
        ],
        "right for small scores, but exp(300) is infinite and exp(-300) is 0. Subtract each "
        "query's own highest score so far, starting from -inf.": [
            edits(
                ("torch.maximum(m, scores.amax(1, keepdim=True))", "torch.zeros(seq, 1)"),
                ("-math.inf), torch", "0.0), torch"),
            ),
            ("torch.full((seq, 1), -math.inf)", "torch.zeros(seq, 1)"),
            ("scores.amax(1, keepdim=True)", "scores.max()"),
        ],
        "right until a later key has a much higher score. Mask it before you take the maximum, "
        "which otherwise includes the future.": edits(
            (".masked_fill(keys > queries, -math.inf)", ""),
            ("torch.exp(scores - new)", "torch.exp(scores - new) * (keys <= queries)"),
        ),
        "right for 96 = 6 blocks of 16, but wrong for blocks of 40, where the last one is short. "
        "It has 16 keys; end at min(start + block, T).": [
            ("min(start + block, seq)", "start + block"),
            ("range(0, seq, block)", "range(0, seq - block + 1, block)"),
        ],
    },
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
        "fp32 matmuls": "fp32 matmuls don't use TF32; always call "
        'torch.set_float32_matmul_precision("high").',
        "dtype": "the weights stay fp32; autocast casts what it needs.",
        "moved": "your function changes the model's weights.",
        "trainable": "your function freezes the weights, so they can't be trained.",
        "training": "your function changes the model's mode; it stays in training mode.",
        "autocast for": "the autocast should be for the type of the weights' device.",
        "enters twice": "your autocast can be entered only once, and a step enters it for every "
        "micro-batch.",
        "matmuls": "matmuls under your autocast should run in bf16 exactly if config.bf16 is on; "
        "pass enabled=config.bf16.",
        "compiled": "the model should be compiled exactly if config.compile is on.",
        "itself": "config.compile is off; return the model itself.",
        "model compiled": "model.compile() changes the model itself, so sampling would be compiled "
        "too, although its texts grow. Return torch.compile(model), and leave the model as it is.",
        "own parameters": "the compiled model has other parameters, so the optimizer would update "
        "the wrong ones.",
        "eager": "an eager backend traces the model without compiling it; leave it out.",
    },
    errors={
        'autocast takes a device type such as "cuda", and neither a torch.device nor "cuda:1"; use '
        "the `.type` of the weights' device.": (
            "device_type",
            ("weight.device.type", "weight.device"),
        ),
    },
    wrong={
        "if config.bf16 is off, you return no autocast. Always return one, and enable it only if "
        "config.bf16 is set.": [
            (", autocast", ", autocast if config.bf16 else None"),
            (", autocast", ", autocast if config.bf16 else nullcontext()"),
        ],
        "matmuls run in fp16, which is autocast's default on a GPU; pass dtype=torch.bfloat16.": [
            ("torch.bfloat16", "torch.float16"),
            (", torch.bfloat16, config.bf16", ", enabled=config.bf16"),
        ],
    },
)
