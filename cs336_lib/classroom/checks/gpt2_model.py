"""Checks of notebook 07's parts of GPT-2 and of top-p sampling."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from cs336_lib import model as library
from cs336_lib.classroom.checks.report import DiagnosisError, by_hand, exercise, expect, part
from cs336_lib.config import GPTConfig
from cs336_lib.generate import filter_logits
from cs336_lib.hf import hugging_face_tensors

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

NO_RETURN = "your function returns None; is the `return` missing?"
NO_FORWARD = "`forward` returns None; is its `return` missing?"
ON_CPU = (
    "right on the CPU, but it would fail on a GPU: create new tensors on the inputs' device, as in "
    "torch.arange(..., device=x.device)."
)
QKV = "batch seq (three head dim) -> three batch head seq dim"
MERGED = "batch head seq dim -> batch seq (head dim)"


def same(got: Tensor, right: Tensor) -> bool:
    """Return whether two tensors are equal up to float32's rounding."""
    return got.shape == right.shape and torch.allclose(got.double(), right.double(), 1e-4, 1e-5)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator within the block, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def expect_tensor(got: object, shape: tuple[int, ...], none: str = NO_RETURN) -> None:
    """Expect a tensor of this shape."""
    expect(got is not None, none)
    expect(isinstance(got, Tensor), f"a tensor expected, not {type(got).__name__}.")
    found = tuple(got.shape)  # type: ignore[attr-defined]
    expect(found == shape, f"the shape is {found}; {shape} expected.")


def expect_none_of(got: Tensor, slips: Mapping[str, Tensor], right: Tensor) -> None:
    """Fail with a diagnosis if `got` equals the result of a known mistake in `slips`."""
    for diagnosis, wrong in slips.items():
        expect(same(wrong, right) or not same(got, wrong), diagnosis)


def expect_gradients(pairs: Mapping[str, tuple[Tensor, Tensor]], got: Tensor, want: Tensor) -> None:
    """Fail unless `got` and `want` have equal gradients with respect to the tensors in `pairs`."""
    weights = torch.linspace(-1, 1, want.numel()).reshape(want.shape).to(want)
    expect(got.requires_grad, "no gradient flows through; is something detached or in no_grad?")
    mine = torch.autograd.grad(got, [a for a, _ in pairs.values()], weights, allow_unused=True)
    theirs = torch.autograd.grad(want, [b for _, b in pairs.values()], weights, allow_unused=True)
    for name, a, b in zip(pairs, mine, theirs, strict=True):
        is_right = b is None or (a is not None and same(a, b))
        expect(
            is_right,
            f"the values are right, but the gradient of {name} isn't; is something detached, or "
            "computed under no_grad?",
        )


def expect_device(answer: Callable[..., Any], *inputs: Any) -> None:
    """Fail unless a function works for inputs that aren't on the CPU."""
    try:
        device = answer(*inputs).device.type
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        device = "cpu"
    expect(
        device == "meta",
        ON_CPU,
    )


# Modules


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return a module's parameters by name."""
    return dict(module.named_parameters())


def expect_names(mine: nn.Module, theirs: nn.Module) -> None:
    """Expect the names and shapes of GPT-2's checkpoint."""
    ours, right = named_parameters(mine), named_parameters(theirs)
    for name, parameter in right.items():
        is_bias = name.endswith("bias") and name.replace("bias", "weight") in ours
        expect(
            name in ours or not is_bias,
            f"{name} is missing: GPT-2's linear layers and norms have a bias.",
        )
        expect(
            name in ours,
            f"there is no parameter {name}. Checkpoints are read by name, so use GPT-2's names. "
            f"Yours are {', '.join(list(ours)[:6]) or 'none'}.",
        )
        found, wanted = tuple(ours[name].shape), tuple(parameter.shape)
        expect(found == wanted, f"{name} has the shape {found}; {wanted} expected.")
    extra = [name for name in ours if name not in right]
    expect(not extra, f"{extra[:1]} is a parameter that GPT-2 doesn't have.")


def twins(
    answer: Callable[..., Any],
    theirs: Callable[..., nn.Module],
    config: GPTConfig,
    seed: int,
    before: Callable[[Any], None] = lambda mine: None,
) -> tuple[Any, Any]:
    """Create the learner's module and the reference module with equal random weights.

    Args:
        answer: The learner's class.
        theirs: The library's class.
        config: The shape of both.
        seed: Seed of the weights.
        before: Further expectations of the learner's module, checked before its names.
    """
    with seeded(seed):
        mine, right = answer(config), theirs(config)
        expect(isinstance(mine, nn.Module), "make it a class derived from nn.Module.")
        before(mine)
        expect_names(mine, right)
        ours = named_parameters(mine)
        with torch.no_grad():
            for name, parameter in right.named_parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=0.2)
                ours[name].copy_(parameter)
    return mine, right


def expect_agreement(
    mine: nn.Module,
    right: nn.Module,
    x: Tensor,
    slips: Mapping[str, Callable[[Any, Tensor], Tensor]],
) -> None:
    """Fail unless the outputs and gradients of both modules agree. Diagnose known mistakes."""
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    want = right(b)
    try:
        got = mine(a)
    except RuntimeError as error:
        expect("leaf Variable" not in str(error), "you change x in place; write x = x + ...")
        raise
    expect_tensor(got, tuple(want.shape), NO_FORWARD)
    with torch.no_grad():
        expect_none_of(got, {text: wrong(right, x) for text, wrong in slips.items()}, want)
    again = mine(a)
    expect(
        same(got, again), "two calls differ. GPT-2 is trained without dropout here; leave it out."
    )
    expect(same(got, want), "with GPT-2's weights the outputs differ from the library's.")
    ours, theirs = named_parameters(mine), named_parameters(right)
    expect_gradients({"x": (a, b)} | {n: (ours[n], theirs[n]) for n in theirs}, got, want)


# Each part comes with the library's version, which the notebook continues with if the learner's is
# missing.


def library_embed(idx: Tensor, wte: nn.Embedding, wpe: nn.Embedding) -> Tensor:
    """Add the embeddings of tokens (batch, seq) and of their positions."""
    return wte(idx) + wpe(torch.arange(idx.size(1), device=idx.device))


@part(library_embed, "")
def embed(answer: Callable[[Tensor, nn.Embedding, nn.Embedding], Tensor]) -> None:
    """Check `embed(idx, wte, wpe)` on values, gradients and another device."""
    places = 13
    for seed, (batch, seq, width) in enumerate(((3, 5, 7), (6, 2, 9), (1, 13, 4))):
        with seeded(seed):
            wte, wpe = nn.Embedding(23, width), nn.Embedding(places, width)
            idx = torch.randint(places, (batch, seq))
        order = torch.arange(seq)
        token, right = wte(idx), library_embed(idx, wte, wpe)
        try:
            got = answer(idx, wte, wpe)
        except RuntimeError as error:
            expect(
                f"({places})" not in str(error),
                "the text is shorter than wpe: take its first rows.",
            )
            raise
        expect_tensor(got, tuple(right.shape))
        slips = {
            "the positions are missing: add rows of wpe.": token,
            "the tokens are missing: add rows of wte.": wpe(order).expand(right.shape),
            "wpe is looked up by the place in the text (0, 1, 2, ...), not by the token.": (
                token + wpe(idx)
            ),
            "positions begin at 0, not at 1.": token + wpe((order + 1) % places),
            "positions count from the front of the text.": token + wpe(order.flip(0)),
            "add the two, don't multiply them.": token * wpe(order),
            "count positions along the text (axis 1), not along the batch (axis 0).": (
                token + wpe(torch.arange(batch))[:, None]
            ),
        }
        expect_none_of(got, slips, right)
        expect(same(got, right), f"wrong for a batch of shape {(batch, seq)}.")
        pairs = {"wte": (wte.weight, wte.weight), "wpe": (wpe.weight, wpe.weight)}
        expect_gradients(pairs, got, right)
    # A meta embedding takes ids from any device, so we look at the ids that it gets.
    devices: set[str] = set()
    tables = [nn.Embedding(rows, 4, device="meta") for rows in (23, places)]
    for table in tables:
        table.register_forward_pre_hook(lambda _, inputs: devices.add(inputs[0].device.type))
    answer(torch.zeros(2, 3, dtype=torch.long, device="meta"), *tables)
    expect("cpu" not in devices, ON_CPU)


def library_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention for tensors of shape (batch, head, seq, head_dim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_slips(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Return the results of typical mistakes in causal attention, by diagnosis."""
    raw, dim = q @ k.mT, q.size(-1)
    scores = raw / math.sqrt(dim)
    ones = torch.ones_like(raw[0, 0], dtype=torch.bool)
    future = ones.triu(1)

    def masked(scores: Tensor, mask: Tensor = future, axis: int = -1) -> Tensor:
        return scores.masked_fill(mask, -math.inf).softmax(axis) @ v

    zeros = (
        "a score of 0 isn't a weight of 0, since exp(0) = 1: fill the future's scores with -inf."
    )
    return {
        "divide the scores by the square root of head_dim.": masked(raw),
        "divide by the square root of head_dim, not by head_dim itself.": masked(raw / dim),
        "divide the scores by the root; you multiply.": masked(raw * math.sqrt(dim)),
        "head_dim is the last axis of q; you scale by the size of another axis (seq).": (
            masked(raw / math.sqrt(q.size(2)))
        ),
        "head_dim is the last axis of q; you scale by the size of another axis (head).": (
            masked(raw / math.sqrt(q.size(1)))
        ),
        "each head scales by its own width, head_dim, not by the width of all heads.": (
            masked(raw / math.sqrt(q.size(1) * dim))
        ),
        "there is no mask: each position sees the future.": scores.softmax(-1) @ v,
        "mask before the softmax. Afterwards, a row of weights no longer adds up to 1.": (
            scores.softmax(-1).masked_fill(future, 0) @ v
        ),
        zeros: scores.tril().softmax(-1) @ v,
        "that is inverted: you mask the past and keep the future.": masked(scores, ones.tril(-1)),
        "each position also sees the next one: mask triu(1), not triu(2).": (
            masked(scores, ones.triu(2))
        ),
        "the softmax runs over the keys, which are the last axis of q @ k.mT.": (
            masked(scores, axis=-2)
        ),
        "rows must be queries and columns keys: q @ k.mT, not k @ q.mT.": masked(scores.mT),
    }


@part(library_attention, "")
def attention(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Check `attention(q, k, v)`, which is written by hand."""
    cases = ((2, 3, 5, 4, 1.0), (1, 2, 9, 6, 1.0), (3, 1, 1, 8, 1.0), (1, 2, 4, 3, 400.0))
    for seed, (batch, head, seq, dim, size) in enumerate(cases):
        with seeded(seed):  # transposed, so not contiguous
            parts = [torch.randn(batch, seq, head, dim).transpose(1, 2) for _ in range(3)]
        q, k, v = (size * parts[0]).requires_grad_(), parts[1].requires_grad_(), parts[2]
        v.requires_grad_()
        with by_hand(F, "scaled_dot_product_attention"):
            got = answer(q, k, v)
        right = library_attention(q, k, v)
        is_square = isinstance(got, Tensor) and got.shape == (batch, head, seq, seq) != right.shape
        expect(not is_square, "you return the weights of the mean; multiply them with v.")
        expect_tensor(got, tuple(right.shape))
        if got.isnan().any():
            expect(size == 1, "exp overflows for large scores; softmax doesn't.")
            raise DiagnosisError(
                "nan: somewhere a softmax sees only -inf. A position may look at itself, so mask "
                "triu(1), and take the softmax over the last axis."
            )
        if size == 1:
            expect_none_of(got, attention_slips(q, k, v), right)
        expect(same(got, right), f"wrong for q of shape {tuple(q.shape)}.")
        if size == 1:  # a softmax that is nearly 0 or 1 has no gradient to speak of
            expect_gradients({"q": (q, q), "k": (k, k), "v": (v, v)}, got, right)
    expect_device(answer, *torch.zeros(3, 2, 2, 3, 4, device="meta"))


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


def unsplit(layer: Any, x: Tensor) -> Tensor:
    """View q, k and v as heads without moving the axis of the heads."""
    (batch, seq, width), head = x.shape, layer.n_head
    q, k, v = (p.reshape(batch, head, seq, width // head) for p in layer.c_attn(x).split(width, -1))
    return rearrange(library_attention(q, k, v), MERGED)


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
    "each head scales by its own width, head_dim, not by n_embd.": lambda layer, x: layer.c_proj(
        mixed(layer, x, scale=x.size(-1) ** -0.5)
    ),
    "the scores aren't scaled; `attention` does it for you.": lambda layer, x: layer.c_proj(
        mixed(layer, x, scale=1.0)
    ),
    "you add x; the block does that.": lambda layer, x: x + layer.c_proj(mixed(layer, x)),
}


def shape(n_head: int, n_embd: int, n_layer: int = 2) -> GPTConfig:
    """Return a small config with a padded vocabulary."""
    return GPTConfig(block_size=11, vocab_size=50, n_layer=n_layer, n_head=n_head, n_embd=n_embd)


@part(library.CausalSelfAttention, "")
def causal_self_attention(answer: Callable[[GPTConfig], nn.Module]) -> None:
    """Check the class `CausalSelfAttention` on names, values and gradients."""
    for seed, (config, batch, seq) in enumerate(((shape(3, 24), 2, 7), (shape(5, 20), 3, 11))):
        mine, right = twins(answer, library.CausalSelfAttention, config, seed)
        with seeded(seed):
            x = torch.randn(batch, seq, config.n_embd)
        expect_agreement(mine, right, x, ATTENTION_SLIPS)


MLP_SLIPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "GPT-2 was trained with GELU's tanh formula: F.gelu(..., approximate='tanh').": lambda mlp, x: (
        mlp.c_proj(F.gelu(mlp.c_fc(x)))
    ),
    "the nonlinearity is ReLU; GPT-2 has GELU.": lambda mlp, x: mlp.c_proj(mlp.c_fc(x).relu()),
    "that is SiLU; GPT-2 has GELU.": lambda mlp, x: mlp.c_proj(F.silu(mlp.c_fc(x))),
    "there is no nonlinearity between the two layers.": lambda mlp, x: mlp.c_proj(mlp.c_fc(x)),
    "GELU belongs between the two layers, not after them.": lambda mlp, x: F.gelu(
        mlp.c_proj(mlp.c_fc(x)), approximate="tanh"
    ),
    "there is one GELU, between the layers; you have a second one.": lambda mlp, x: F.gelu(
        mlp(x), approximate="tanh"
    ),
    "you add x; the block does that.": lambda mlp, x: x + mlp(x),
}


@part(library.MLP, "")
def mlp(answer: Callable[[GPTConfig], nn.Module]) -> None:
    """Check the class `MLP` on names, values and gradients."""
    for seed, config in enumerate((shape(3, 24), shape(1, 7))):
        mine, right = (each.double() for each in twins(answer, library.MLP, config, seed))
        with seeded(seed):
            x = 2 * torch.randn(3, 5, config.n_embd, dtype=torch.float64)
        got = mine(x)
        expect_tensor(got, tuple(x.shape), NO_FORWARD)
        exact = right.c_proj(F.gelu(right.c_fc(x)))  # less than fp32's tolerance away
        expect(not torch.allclose(got, exact, 1e-9, 1e-9), next(iter(MLP_SLIPS)))
        expect_agreement(mine, right, x, MLP_SLIPS)


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
    "nothing is added: each sub-layer adds to x.": lambda b, x: b.mlp(b.ln_2(b.attn(b.ln_1(x)))),
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
    "the norms are swapped: attention reads ln_1, the MLP ln_2.": lambda b, x: (
        x + b.attn(b.ln_2(x)) + b.mlp(b.ln_1(x + b.attn(b.ln_2(x))))
    ),
}


@part(library.Block, "")
def block(answer: Callable[[GPTConfig], nn.Module]) -> None:
    """Check the class `Block` on names, values and gradients."""
    for seed, (config, batch, seq) in enumerate(((shape(3, 24), 2, 7), (shape(5, 20), 1, 11))):
        mine, right = twins(answer, library.Block, config, seed)
        with seeded(seed):
            x = 2 * torch.randn(batch, seq, config.n_embd) + 1
        expect_agreement(mine, right, x, BLOCK_SLIPS)


def library_init_weights(model: library.GPT) -> None:
    """Draw GPT-2's initial weights, with a smaller std where a block writes to the stream."""
    for name, parameter in model.named_parameters():
        library.GPT.init_parameter(model, name, parameter)


def expect_std(name: str, tensor: Tensor, n_layer: int) -> None:
    """Fail unless a random weight has the expected std. Diagnose known mistakes."""
    std, right = tensor.std().item(), 0.02
    if "c_proj" in name:
        right /= math.sqrt(2 * n_layer)
        slips = {
            0.02: "writes to the stream, so its 0.02 is divided by sqrt(2 n_layer).",
            0.02 / math.sqrt(n_layer): "a block writes to the stream twice: sqrt(2 n_layer).",
            0.02 / (2 * n_layer): "variances add, so divide by the square root of 2 n_layer.",
            0.02 / n_layer: "divide by the square root of 2 n_layer, not by n_layer.",
            0.02 * math.sqrt(2 * n_layer): "divide by sqrt(2 n_layer); you multiply.",
        }
        for wrong, diagnosis in slips.items():
            expect(abs(std / wrong - 1) > 0.06, f"{name}: {diagnosis}")
    else:
        shrunk = 0.02 / math.sqrt(2 * n_layer)
        expect(
            abs(std / shrunk - 1) > 0.06,
            f"{name} doesn't write to the stream; only the c_proj weights are smaller.",
        )
    expect(abs(std / 0.02**2 - 1) > 0.06, f"{name}: normal_ takes the std, not the variance.")
    expect(std > 0, f"{name} is the same number everywhere; draw it.")
    expect(abs(std / right - 1) < 0.06, f"{name} has the std {std:.4f}; {right:.4f} expected.")
    expect(abs(tensor.mean().item()) < 0.2 * right, f"{name}: the mean should be 0.")
    is_normal = tensor.abs().max() > 2.7 * std
    expect(is_normal, f"{name} has no large numbers; draw it from a normal distribution.")


@part(library_init_weights, "")
def init_weights(answer: Callable[[nn.Module], None]) -> None:
    """Check `init_weights(model)` by the spread of every parameter, at two depths."""
    for seed, n_layer in enumerate((3, 5)):
        with seeded(seed):
            config = GPTConfig(block_size=60, vocab_size=90, n_layer=n_layer, n_head=2, n_embd=64)
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
            first = model.lm_head.weight[: config.vocab_size].clone()
            for name, parameter in model.named_parameters():
                tensor = parameter.detach()
                expect(
                    not (name.endswith("bias") and tensor.std() > 0),
                    f"{name} is drawn; every bias begins at 0.",
                )
                expect(not (tensor == 7).all(), f"{name} is left as it was.")
                if name.endswith("bias"):
                    expect((tensor == 0).all(), f"{name} should be 0.")
                elif ".ln_" in name:
                    expect((tensor == 1).all(), f"{name} is a norm's gain; it begins at 1.")
                else:
                    expect_std(name, tensor[: config.vocab_size], n_layer)
            blocks: Any = model.transformer.h
            equal = torch.equal(blocks[0].attn.c_attn.weight, blocks[1].attn.c_attn.weight)
            expect(not equal, "all blocks get the same numbers; don't seed within the function.")
            tied = model.lm_head.weight is model.transformer.wte.weight
            expect(tied, "lm_head and wte are no longer one tensor; change the weights in place.")
            answer(model)
            expect(
                not torch.equal(first, model.lm_head.weight[: config.vocab_size]),
                "two calls give the same numbers; leave the seed to the caller.",
            )


def expect_assembly(model: Any) -> None:
    """Expect that a new GPT has distinct blocks and a tied output matrix."""
    expect(hasattr(model, "transformer"), "self.transformer is missing.")
    expect(hasattr(model, "lm_head"), "self.lm_head is missing.")
    expect(hasattr(model, "config"), "keep the config as self.config; `generate` reads it.")
    names = named_parameters(model)
    expect("lm_head.bias" not in names, "lm_head has no bias in GPT-2: bias=False.")
    for name in ("wte", "wpe", "h", "ln_f"):
        present = name in dict(model.transformer.named_children())
        expect(present, f"self.transformer has no {name}; blocks belong into an nn.ModuleList.")
    wte, head = model.transformer.wte.weight, model.lm_head.weight
    rows = model.config.padded_vocab_size
    expect(len(wte) == rows, f"wte has {len(wte)} rows; padded_vocab_size is {rows}.")
    expect(head is wte, "lm_head and wte must be one matrix: self.lm_head.weight = wte.weight.")
    expect("transformer.wte.weight" in names, "create self.transformer before self.lm_head.")
    blocks = list(model.transformer.h)
    n_layer = model.config.n_layer
    expect(len(blocks) == n_layer, f"{len(blocks)} blocks; the config's n_layer is {n_layer}.")
    distinct = len({id(block) for block in blocks})
    expect(distinct == n_layer, "all blocks are one object; call Block(config) for each.")
    std = wte[: model.config.vocab_size].std().item()
    expect(0.017 < std < 0.023, f"wte has the std {std:.3f}; call init_weights at the end.")


def gpt_slips(model: Any, idx: Tensor) -> dict[str, Tensor]:
    """Return the logits of a GPT with one part missing, by diagnosis."""
    tree = model.transformer
    tokens, start = tree.wte(idx), library_embed(idx, tree.wte, tree.wpe)

    def logits(x: Tensor, blocks: Any = tree.h, norm: Any = tree.ln_f) -> Tensor:
        for each in blocks:
            x = each(x)
        return model.lm_head(norm(x))[..., : model.config.vocab_size]

    return {
        "ln_f, the norm after the last block, is missing.": logits(start, norm=lambda x: x),
        "the blocks' outputs are not used: x = block(x).": logits(start, ()),
        "only the last block counts: x = block(x).": logits(start, tree.h[-1:]),
        "the blocks run in the reverse order.": logits(start, list(tree.h)[::-1]),
        "the positions are missing; use `embed`.": logits(tokens),
        "probabilities are returned; return the logits.": logits(start).softmax(-1),
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
    }


@part(library.GPT, "")
def gpt(answer: Callable[[GPTConfig], nn.Module]) -> None:
    """Check the class `GPT` on names, tying, logits, loss and gradients."""
    cases = ((shape(3, 24), 2, 7), (shape(5, 20, n_layer=3), 3, 11))
    for seed, (config, batch, seq) in enumerate(cases):
        mine, right = twins(answer, library.GPT, config, seed, expect_assembly)
        with torch.no_grad():  # padded rows count in neither
            right.lm_head.weight[config.vocab_size :] = 0
            mine.get_parameter("lm_head.weight").copy_(right.lm_head.weight)
        with seeded(seed):
            tokens = torch.randint(config.vocab_size, (batch, seq + 1))
        idx, targets = tokens[:, :-1], tokens[:, 1:]  # neither is contiguous
        got, want = mine(idx), right(idx)
        expect(not isinstance(got, tuple), "without targets return the logits alone, not a pair.")
        padded = (batch, seq, config.padded_vocab_size)
        expect(
            not isinstance(got, Tensor) or got.shape != padded,
            "the logits have the padded vocabulary's size; cut them to config.vocab_size.",
        )
        expect_tensor(got, tuple(want.shape), NO_FORWARD)
        expect_none_of(got, gpt_slips(right, idx), want)
        expect(same(got, want), "with GPT-2's weights the logits differ from the library's.")
        try:
            loss = mine(idx, targets)
        except RuntimeError as error:
            expect(".reshape" not in str(error), "targets may be a slice; use flatten, not view.")
            raise
        expect(not isinstance(loss, tuple), "with targets return the loss alone, not a pair.")
        expect(same(got, mine(idx)), "two calls differ; leave dropout out.")
        expect_tensor(loss, (), "with targets `forward` returns None.")
        want = right(idx, targets)
        expect_none_of(loss, loss_slips(right, idx, targets), want)
        expect(same(loss, want), f"the loss is {loss.item():.4f}; {want.item():.4f} expected.")
        ours, theirs = named_parameters(mine), named_parameters(right)
        expect_gradients({name: (ours[name], theirs[name]) for name in theirs}, loss, want)


@torch.no_grad()
def library_load_weights(model: nn.Module, theirs: Mapping[str, Tensor]) -> None:
    """Copy OpenAI's tensors into the model."""
    ours = named_parameters(model)
    for name, tensor in theirs.items():
        name = "transformer." + name.removeprefix("transformer.")
        if name in ours:
            tensor = tensor.t() if ".c_" in name and name.endswith("weight") else tensor
            ours[name][: len(tensor)] = tensor[: len(ours[name])]


def expect_loaded(model: library.GPT, published: Mapping[str, Tensor]) -> None:
    """Fail unless the model contains the published tensors. Diagnose known mistakes."""
    tied = model.lm_head.weight is model.transformer.wte.weight
    expect(tied, "lm_head and wte are no longer one tensor; copy into the parameters in place.")
    for name, parameter in model.named_parameters():
        theirs = published[name.removeprefix("transformer.")]
        is_linear = ".c_" in name and name.endswith("weight")
        right = (theirs.t() if is_linear else theirs)[: len(parameter)]
        got = parameter.detach()
        expect(got.shape[1:] == right.shape[1:], f"{name} has the shape {tuple(got.shape)} now.")
        expect(len(got) >= len(right), f"{name} has only {len(got)} rows now.")
        got = got[: len(right)]
        expect(
            not (is_linear and right.shape[0] == right.shape[1] and torch.equal(got, theirs)),
            f"{name} isn't transposed. It is square, so comparing shapes doesn't show it: go by "
            "the name.",
        )
        reshaped = theirs.reshape(right.shape) if is_linear else theirs
        expect(
            not (is_linear and torch.equal(got, reshaped)),
            f"{name} has the right shape, but a reshape isn't a transpose.",
        )
        expect(torch.equal(got, right), f"{name} doesn't hold the published numbers.")


def loading_error(error: Exception) -> str:
    """Return the diagnosis for an error in `load_weights`, or "" if its cause is unknown."""
    text = str(error)
    numbers = set(re.findall(r"\d+", text))
    if isinstance(error, KeyError):
        if "attn.bias" in text or "masked_bias" in text:
            return f"{text} is a causal mask, not a weight; leave it out."
        if "lm_head" in text:
            return "lm_head.weight is wte once more; leave it out."
        return f"there is no {text}. Names may come with or without 'transformer.' in front."
    if "leaf Variable" in text:
        return "keep @torch.no_grad(), since weights are changed in place."
    if numbers & {"72", "96"}:
        return (
            "linear layers are stored as (in, out), and nn.Linear's weight is (out, in). Transpose "
            "those, and no others."
        )
    if numbers & {"50", "64", "11"}:
        if "dimension 1" in text or "[24, " in text:
            return "wte and wpe are tables, not linear layers; don't transpose them."
        return "tables may have another number of rows: copy the rows that both have."
    return ""


def published_tensors(source: library.GPT, prefix: str) -> dict[str, Tensor]:
    """Return a model's tensors as files have them, with causal masks and perhaps lm_head."""
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    found = hugging_face_tensors(source).items()
    theirs = {
        prefix + name.removeprefix("transformer."): t.detach().clone().contiguous()
        for name, t in found
    }
    for layer in range(source.config.n_layer):
        theirs[f"{prefix}h.{layer}.attn.bias"] = torch.ones(11, 11).tril()[None, None]
        theirs[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    if prefix:
        theirs["lm_head.weight"] = theirs[f"{prefix}wte.weight"].clone()
    return theirs


@part(library_load_weights, "")
def load_weights(answer: Callable[[nn.Module, dict[str, Tensor]], None]) -> None:
    """Check `load_weights(model, theirs)` on names with and without a prefix, and on tables."""
    for seed, (prefix, block_size) in enumerate((("", 11), ("transformer.", 11), ("", 6))):
        with seeded(seed):
            theirs = published_tensors(library.GPT(shape(2, 24, n_layer=3)), prefix)
            model = library.GPT(GPTConfig(block_size, 50, n_layer=3, n_head=2, n_embd=24))
        before = {name: tensor.clone() for name, tensor in theirs.items()}
        first = model.lm_head.weight.detach().clone()
        try:
            answer(model, theirs)
        except (KeyError, RuntimeError) as error:
            diagnosis = loading_error(error)
            expect(not diagnosis, diagnosis)
            raise
        unchanged = list(theirs) == list(before) and all(
            torch.equal(theirs[name], tensor) for name, tensor in before.items()
        )
        expect(unchanged, "you changed the dictionary `theirs` or its tensors; leave them alone.")
        copied = not torch.equal(model.transformer.wte.weight, first)
        expect(copied, "wte isn't copied. Names may come with or without 'transformer.' in front.")
        expect_loaded(model, {name.removeprefix("transformer."): t for name, t in before.items()})
        for tensor in theirs.values():
            tensor.zero_()
        own = all(bool(parameter.any()) for parameter in model.parameters())
        expect(own, "the model shares memory with `theirs`, so training would change both; copy.")


@torch.no_grad()
def library_generate(model: Any, idx: Tensor, new_tokens: int, top_k: int = 50) -> Tensor:
    """Continue token ids (batch, seq), drawing from the `top_k` likeliest tokens."""
    for _ in range(new_tokens):
        logits = model(idx[:, -model.config.block_size :])[:, -1]
        probabilities = filter_logits(logits, top_k=top_k).softmax(-1)
        idx = torch.cat((idx, torch.multinomial(probabilities, 1)), dim=1)
    return idx


class Scripted(nn.Module):
    """A model whose last logits are those of a table, by the last token.

    At all earlier positions it prefers the last token, which a right `generate` never sees.

    Args:
        table: Logits (vocab, vocab) of the next token, by the last one.
        block_size: The longest text that it reads.
    """

    def __init__(self, table: Tensor, block_size: int):
        super().__init__()
        self.table = table
        self.config = GPTConfig(block_size, len(table), n_layer=1, n_head=1, n_embd=1)
        self.lengths: list[int] = []

    def forward(self, idx: Tensor) -> Tensor:
        """Return the logits, and note the length of the text."""
        expect(
            idx.dim() == 2,
            f"the model gets ids of shape {tuple(idx.shape)}; (batch, seq) expected.",
        )
        expect(
            idx.size(1) <= self.config.block_size,
            f"the model gets {idx.size(1)} tokens, and its block_size is {self.config.block_size}. "
            "Give it the last block_size tokens only.",
        )
        self.lengths.append(idx.size(1))
        logits = torch.zeros(*idx.shape, len(self.table))
        logits[..., -1] = 50.0
        logits[:, -1] = self.table[idx[:, -1]]
        return logits


def continued(
    answer: Callable[..., Tensor], model: Scripted, idx: Tensor, new: int, **k: int
) -> Tensor:
    """Call the learner's `generate`, and fail unless the result has the right form."""
    before = idx.clone()
    try:
        got = answer(model, idx, new, **k)
    except RuntimeError as error:
        negative = "probability tensor contains" in str(error)
        expect(not negative, "torch.multinomial takes probabilities; apply softmax to the logits.")
        unaligned = f"({len(model.table)}) must match the size" in str(error)
        expect(
            not unaligned,
            "the k-th logits of all texts need the shape (batch, 1), so that each is compared with "
            "its own text: .values[:, -1:].",
        )
        raise
    batch, seq = idx.shape
    is_tensor = isinstance(got, Tensor)
    expect(not (is_tensor and got.shape == (batch, new) and seq), "return the prompt as well.")
    one_more = is_tensor and got.shape == (batch, seq + 1) and new != 1
    expect(not one_more, "one token was added; repeat it `new_tokens` times.")
    expect_tensor(got, (batch, seq + new))
    expect(torch.equal(idx, before), "you changed the ids that were given to you.")
    expect(torch.equal(got[:, :seq], idx), "the result must begin with the prompt.")
    return got


def expect_growing_text(answer: Callable[..., Tensor]) -> None:
    """Expect that the model reads the text so far, up to its context length."""
    vocab = 97
    follow = -1e4 * (1 - torch.eye(vocab)).roll(1, 1)  # after token n comes n + 1
    start = torch.tensor([[5, 9, 2], [40, 1, 30]])
    model = Scripted(follow, block_size=6)
    got = continued(answer, model, start, 11)
    right = torch.cat((start, start[:, -1:] + torch.arange(1, 12)), dim=1)
    places = "those are places in topk's list; use the ids in .indices."
    expect(not (got[:, 3] == 0).all(), places)
    expect(not (got[:, 3] == vocab - 1).any(), "use the logits of the last position only: [:, -1].")
    expect(max(model.lengths) > 1, "the model reads the last token only; give it the whole text.")
    expect(
        model.lengths[1] > model.lengths[0],
        "the text that the model reads doesn't grow; append each token before the next call.",
    )
    expect(
        torch.equal(got, right),
        "the new tokens aren't those that the model wants. Apply one softmax to the logits of the "
        "last position, and draw by its probabilities.",
    )
    expect(max(model.lengths) == 6, "give the model the last block_size tokens, not fewer.")
    expect(torch.equal(continued(answer, model, start, 0), start), "new_tokens=0 adds nothing.")


def expect_top_k(answer: Callable[..., Tensor]) -> None:
    """Expect draws from the top_k likeliest tokens, which differ between texts and calls."""
    vocab, texts = 97, torch.full((800, 1), 3)
    nearly_flat = 0.001 * torch.arange(vocab).expand(vocab, vocab)
    with seeded(0):
        drawn, again = (
            continued(answer, Scripted(nearly_flat, 4), texts, 2, top_k=5)[:, 1:] for _ in "12"
        )
    seen = set(drawn.flatten().tolist())
    expect(len(seen) > 1, "every text gets the same token: draw with torch.multinomial.")
    expect(
        seen != set(range(vocab - 4, vocab)),
        "top_k=5 keeps five tokens and you keep four; mask what is below the fifth, not the fifth.",
    )
    expect(len(seen) <= 5, "top_k=5, but more than five different tokens are drawn.")
    expect(seen == set(range(vocab - 5, vocab)), "those aren't the top_k likeliest tokens.")
    expect(not torch.equal(drawn, again), "two calls draw the same; leave the seed to the caller.")


@part(library_generate, "")
def generate(answer: Callable[..., Tensor]) -> None:
    """Check `generate(model, idx, new_tokens, top_k=50)` on models with known probabilities."""
    expect_growing_text(answer)
    expect_top_k(answer)
    unequal = torch.full((97, 97), -1e4)
    unequal[:, [20, 60]] = torch.tensor([math.log(0.9), math.log(0.1)])
    with seeded(1):
        drawn = continued(answer, Scripted(unequal, 4), torch.full((800, 1), 3), 1)[:, 1]
    share = (drawn == 20).float().mean().item()
    expect(share < 0.97, f"a token of 90 % is drawn in {share:.0%} of the texts; draw at random.")
    expect(
        share > 0.83,
        f"a token of 90 % is drawn in {share:.0%} of the texts. Apply one softmax to the logits, "
        "and draw by its probabilities.",
    )


@exercise("")
def nucleus(answer: Callable[[Tensor, float], Tensor]) -> None:
    """Check top-p by `nucleus(probabilities, p)`, whose kept probabilities add up to 1."""
    p = torch.tensor([0.1, 0.5, 0.05, 0.3, 0.05])
    given = p.clone()
    got = answer(given, 0.7)
    expect(got is not None, NO_RETURN)
    expect(isinstance(got, Tensor), f"a tensor expected, not {type(got).__name__}.")
    expect(torch.equal(given, p), "you changed the tensor that was given to you; work on a copy.")
    expect(got.shape == p.shape, f"the shape is {tuple(got.shape)}; keep all {len(p)} tokens.")
    right = torch.tensor([0, 0.625, 0, 0.375, 0])
    expect(
        not same(got, torch.tensor([0, 0.5, 0, 0.3, 0])),
        "the right tokens, but they add up to 0.8: divide by their sum.",
    )
    expect(
        not same(got, torch.tensor([0.625, 0.375, 0, 0, 0])),
        "you return the probabilities sorted; each must go back to its own token.",
    )
    only = torch.tensor([0.0, 1, 0, 0, 0])
    expect(
        not same(got, only),
        "the token that crosses p is missing: 0.5 alone does not reach 0.7, so 0.3 is kept too.",
    )
    expect(
        not same(got, torch.tensor([1, 5, 0, 3, 0]) / 9),
        "one token too many: 0.5 + 0.3 reaches 0.7 already. Compare the sum BEFORE each token.",
    )
    expect(
        not same(got, torch.tensor([2, 0, 1, 0, 1]) / 4),
        "you kept the unlikely ones: sort with descending=True.",
    )
    expect(
        not same(got, torch.tensor([0.375, 0, 0.625, 0, 0])),
        "indexing with `order` sorts once more; to undo the sorting, assign result[order] = ...",
    )
    expect(
        same(got, right),
        f"for p = 0.7 you return {[round(v, 3) for v in got.tolist()]}, not {right.tolist()}.",
    )
    expect(
        same(answer(p, 0.3), only),
        "p = 0.3: the likeliest token alone is more than p, and it must always stay.",
    )
    exact = torch.tensor([0.125, 0.5, 0.125, 0.25])  # sums without rounding
    expect(
        same(answer(exact, 0.5), torch.tensor([0.0, 1, 0, 0])),
        "p = 0.5: a token of 0.5 reaches it alone, so the next one, with 0.5 before it, is out: "
        "< p, not <= p.",
    )
    expect(same(answer(p, 1.0), p), "p = 1 keeps every token.")
