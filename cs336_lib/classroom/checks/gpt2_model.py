"""Checks of notebook 07 on parameters, GELU, masks, initialization, sampling and the KV cache."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cs336_lib.accounting import count_parameters, parameter_counts
from cs336_lib.classroom.checks.report import exercise, expect
from cs336_lib.config import GPTConfig
from cs336_lib.hf import hugging_face_tensors
from cs336_lib.model import GPT

__all__ = [
    "cache_bytes",
    "convert",
    "gelu_slope",
    "init_std",
    "nucleus",
    "parameter_count",
    "window_mask",
]

NO_RETURN = "your function returns None; is the `return` missing?"


@exercise
def parameter_count(count: Callable[[GPTConfig], int]) -> None:
    """Check `count(config)`, all parameters of a GPT-2 with biases and without padding.

    The tied matrix counts once.
    """
    config = GPTConfig()
    c, n = config.n_embd, config.n_layer
    got, right = count(config), count_parameters(config)
    expect(got is not None, NO_RETURN)
    wte = config.vocab_size * c
    slips = {
        wte: "lm_head is the same matrix as wte: count it once.",
        (config.padded_vocab_size - config.vocab_size) * c: (
            "you counted the padded vocabulary; the checkpoint has 50,257 rows."
        ),
        -config.block_size * c: "the position table wpe is missing.",
        -2 * c: "ln_f is missing, the norm after the last block.",
        -wte: "the token table wte is missing.",
        -n * 4 * c * c: (
            "4 C² are missing in each block: all of attention (c_attn, C to 3C, and c_proj, C to "
            "C), or one of the MLP's two matrices (C to 4C and back)."
        ),
        -n * 2 * c * c: "c_attn makes queries, keys AND values: C to 3C, not C to C.",
        -n * c * c: "c_proj of the attention is missing.",
    }
    for difference, diagnosis in slips.items():
        expect(got != right + difference, diagnosis)
    norms = parameter_counts(config)["layer norms"]
    expect(got != right - n * 9 * c, "the biases of the four linear layers of a block are missing.")
    expect(
        got != right - n * 9 * c - norms // 2,
        "all biases are missing: of the linear layers, and of the norms.",
    )
    expect(got != right - norms // 2, "a LayerNorm has a weight and a bias: 2 C numbers, not C.")
    expect(got != right - norms, "the layer norms are missing.")
    expect(
        got != right - n * 4 * c,
        "4 C are missing in each block: its two layer norms, or attention's biases (3 C and C).",
    )
    expect(got != right - n * 5 * c, "the MLP's two biases are missing: 4 C and C.")
    expect(
        got != right - n * 2 * c,
        "2 C are missing in each block: one of its layer norms, or two thirds of c_attn's bias.",
    )
    expect(got == right, f"the 124M model has {right:,} parameters, not {got:,}.")
    other = GPTConfig(block_size=64, vocab_size=100, n_layer=3, n_head=2, n_embd=32)
    expect(
        count(other) == count_parameters(other),
        "right for the 124M model, wrong for another shape: use the fields of the config "
        "(block_size, vocab_size, n_layer, n_embd), not their values.",
    )


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal up to float32's rounding."""
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), atol=1e-4)


@exercise
def gelu_slope(slope: Callable[[Tensor], Tensor]) -> None:
    """Check `slope(x)`, the derivative of the exact GELU, x Phi(x)."""
    x = torch.linspace(-4, 4, 81)
    try:
        got = slope(x)
    except (TypeError, ValueError, RuntimeError) as error:
        one_number = "converted to Python scalar" in str(error) or "to Scalar" in str(error)
        expect(
            not one_number,
            "math.exp and math.erf take a single number; torch.exp and torch.erf take tensors.",
        )
        raise
    expect(got is not None, NO_RETURN)
    expect(isinstance(got, Tensor), f"a tensor expected, not {type(got).__name__}.")
    expect(got.shape == x.shape, f"the shape is {tuple(got.shape)}; it should be that of x.")
    wide = x.double()
    phi = torch.exp(-wide.square() / 2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + torch.erf(wide / math.sqrt(2)))
    expect(
        not same(got, wide * below),
        "that is GELU itself; return its slope. At x = 0 the slope is 1/2.",
    )
    expect(
        not same(got, below),
        "Φ(x) is only half of the product rule: (x Φ)' = Φ + x Φ', and Φ' is the bell curve φ.",
    )
    expect(not same(got, wide * phi), "x φ(x) is only half of the product rule; Φ(x) is missing.")
    expect(not same(got, below + phi), "Φ + φ: the second term of the product rule is x φ(x).")
    expect(
        not same(got, below + wide * phi * math.sqrt(2 * math.pi)),
        "the bell curve needs its factor 1 / sqrt(2 π).",
    )
    expect(
        not same(got, 0.5 * (1 + torch.erf(wide)) + wide * phi),
        "Φ(x) is (1 + erf(x / sqrt(2))) / 2: the sqrt(2) is missing.",
    )
    expect(
        not same(got, (wide > 0).double()),
        "that is ReLU's slope, a step; GELU's is smooth.",
    )
    with torch.enable_grad():
        leaf = wide.clone().requires_grad_()
        gelu = torch.nn.functional.gelu(leaf, approximate="tanh")
        (by_tanh,) = torch.autograd.grad(gelu.sum(), leaf)
    expect(
        not same(got, by_tanh),
        "that is the slope of the tanh formula; use the exact GELU, with erf.",
    )
    expect(same(got, below + wide * phi), f"at x = 1 you say {got[50]:.4f}; it is 1.0833.")


@exercise
def window_mask(mask: Callable[[int, int], Tensor]) -> None:
    """Check `mask(seq, window)`, True for the query itself and the window - 1 tokens before it."""
    got = mask(6, 3)
    expect(got is not None, NO_RETURN)
    expect(isinstance(got, Tensor), f"a tensor expected, not {type(got).__name__}.")
    expect(
        got.shape == (6, 6), f"the shape is {tuple(got.shape)}; it should be (seq, seq) = (6, 6)."
    )
    expect(got.dtype == torch.bool, f"the dtype is {got.dtype}; it should be torch.bool.")
    distance = torch.arange(6)[:, None] - torch.arange(6)  # from a query back to a key
    right = (distance >= 0) & (distance < 3)
    expect(
        not torch.equal(got, ~right),
        "that is inverted; True must mean that the query MAY look.",
    )
    expect(
        not torch.equal(got, right.T),
        "row i looks at the future; rows are queries, columns are keys, and a query looks back.",
    )
    expect(not torch.equal(got, distance >= 0), "that is the whole past; the window is ignored.")
    expect(
        not torch.equal(got, (distance >= 0) & (distance <= 3)),
        "that is one key too many; the window counts the token itself, so 3 means it and 2 "
        "before it.",
    )
    expect(
        not torch.equal(got, (distance > 0) & (distance <= 3)),
        "a token must see itself; your diagonal is False, so row 0 is empty and its "
        "softmax is nan.",
    )
    expect(
        not torch.equal(got, distance.abs() < 3),
        "the window reaches into the future: cut the upper triangle off.",
    )
    expect(
        got.any(),
        "all of it is False; triu(d) with d > 0 begins ABOVE the main diagonal, and the diagonals "
        "below it are negative.",
    )
    row = int((got != right).any(1).int().argmax())  # the first that differs
    expect(
        torch.equal(got, right),
        f"row {row} is {got[row].int().tolist()}; it should be {right[row].int().tolist()}.",
    )
    everything = torch.ones(5, 5, dtype=torch.bool).tril()
    expect(torch.equal(mask(5, 9), everything), "a window longer than the text is the whole past.")
    expect(torch.equal(mask(4, 1), torch.eye(4, dtype=torch.bool)), "window 1: only the diagonal.")


@exercise
def init_std(std: Callable[[str, int], float]) -> None:
    """Check `std(name, n_layer)`, the standard deviation at which GPT-2 initializes a parameter."""
    fc, proj = "transformer.h.0.mlp.c_fc.weight", "transformer.h.3.mlp.c_proj.weight"
    got = std(fc, 12)
    expect(got is not None, NO_RETURN)
    expect(not math.isclose(got, 0.02 / math.sqrt(24)), "c_fc does not write to the stream.")
    expect(math.isclose(got, 0.02), f"{fc} has 0.02, not {got:.5f}.")
    got = std(proj, 12)
    expect(
        not math.isclose(got, 0.02),
        "c_proj writes to the residual stream: its 0.02 must be divided by sqrt(2 n_layer).",
    )
    expect(
        not math.isclose(got, 0.02 / math.sqrt(12)),
        "each block adds to the stream twice (attention and MLP): 2 n_layer under the root.",
    )
    expect(
        not math.isclose(got, 0.02 / 24),
        "the root is missing: variances add up, so standard deviations need sqrt(2 n_layer).",
    )
    expect(math.isclose(got, 0.02 / math.sqrt(24)), f"{proj} has 0.02 / sqrt(24), not {got:.5f}.")
    got = std("transformer.h.0.attn.c_proj.weight", 48)
    expect(
        not math.isclose(got, 0.02),
        "the attention's c_proj writes to the stream as well as the MLP's.",
    )
    expect(
        math.isclose(got, 0.02 / math.sqrt(96)),
        f"for 48 layers c_proj has 0.02 / sqrt(96), not {got:.5f}: use n_layer.",
    )
    attn = "transformer.h.0.attn.c_attn.weight"
    expect(math.isclose(std(attn, 12), 0.02), f"{attn} reads from the stream, so it has 0.02.")
    for name in ("transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"):
        expect(
            math.isclose(std(name, 12), 0.02),
            f"{name} has 0.02, like every matrix that does not write to the stream.",
        )
    for name in (proj.replace("weight", "bias"), "transformer.h.0.attn.c_attn.bias"):
        expect(std(name, 12) == 0, f"{name} is not random; biases begin at 0, so the std is 0.")
    for name in ("transformer.h.0.ln_1.weight", "transformer.ln_f.weight"):
        expect(
            std(name, 12) == 0, f"{name} is not random; a norm begins as all ones, so the std is 0."
        )


@exercise
def convert(answer: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Check `convert(theirs)`, a published checkpoint renamed and transposed for our model."""
    config = GPTConfig(block_size=8, vocab_size=64, n_layer=3, n_head=2, n_embd=16)
    with torch.random.fork_rng(devices=[]):
        model = GPT(config)
    published = {n.removeprefix("transformer."): t for n, t in hugging_face_tensors(model).items()}
    theirs = dict(published)
    for block in range(config.n_layer):
        theirs[f"h.{block}.attn.bias"] = torch.ones(8, 8).tril()[None, None]
    before = {name: tensor.clone() for name, tensor in theirs.items()}
    got = answer(theirs)
    expect(got is not None, NO_RETURN)
    expect(
        theirs.keys() == before.keys()
        and all(torch.equal(theirs[n], t) for n, t in before.items()),
        "the right idea, but you changed the dictionary that was given to you; build a new one.",
    )
    expected = {n: t for n, t in model.state_dict().items() if n != "lm_head.weight"}
    masks = [name for name in got if name.endswith(".attn.bias")]
    expect(
        not masks,
        f"{masks[0] if masks else ''} is still there: it is a stored causal mask, not a weight. "
        "Leave it out, in every block.",
    )
    expect(
        not any(f"transformer.{name}" in expected for name in got),
        'our names begin with "transformer."; put it in front.',
    )
    missing = sorted(expected.keys() - got.keys())
    gone = missing[0] if missing else ""
    expect(
        not (missing and gone.endswith("c_attn.bias")),
        "c_attn.bias is gone: it is a weight. Only the name that ends in attn.bias after a dot is "
        "the mask: '.attn.bias'.",
    )
    expect(not missing, f"{gone} is missing.")
    extra = sorted(got.keys() - expected.keys() - {"lm_head.weight"})
    expect(not extra, f"{extra[0] if extra else ''} is not a name in our model.")
    for name in ("transformer.wte.weight", "transformer.wpe.weight"):
        expect(
            got[name].shape == expected[name].shape,
            f"{name} was transposed: only the Conv1D weights (attn and mlp, c_...) are.",
        )
    attn, fc = "transformer.h.0.attn.c_attn.weight", "transformer.h.0.mlp.c_fc.weight"
    for name in (attn, fc):
        expect(
            got[name].shape == expected[name].shape,
            f"{name} is {tuple(got[name].shape)}, as published; nn.Linear wants (out, in).",
        )
    reshaped = expected[fc].T.reshape(expected[fc].shape)
    expect(
        not torch.equal(got[fc], reshaped),
        f"{fc} has the right shape but its numbers are in the wrong places; a reshape is not a "
        "transpose.",
    )
    square = "transformer.h.0.attn.c_proj.weight"
    expect(
        not torch.equal(got[square], expected[square].T),
        f"{square} is not transposed. It is square, so comparing shapes does not show it: go by "
        "the name.",
    )
    for name, value in expected.items():
        expect(
            got[name].shape == value.shape and torch.equal(got[name], value),
            f"{name} has the wrong numbers.",
        )


@exercise
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


@exercise
def cache_bytes(size: Callable[[GPTConfig, int, int, int], int]) -> None:
    """Check `size(config, batch, tokens, bytes_per_number)`, the bytes of a KV cache."""
    config = GPTConfig(n_layer=24, n_head=16, n_embd=1024)  # unequal layers and heads show mistakes
    got, right = size(config, 1, 1000, 4), 2 * 24 * 1000 * 1024 * 4
    expect(got is not None, NO_RETURN)
    slips = {
        right // 2: "keys AND values are kept: a factor of 2 is missing.",
        right // 24: "every layer has its own keys and values: n_layer is missing.",
        right // 16: "n_embd is all heads together, and all are kept: do not divide by n_head.",
        right * 8: "bytes_per_number are bytes already, not bits.",
        right * 16: "n_embd is all heads together: do not multiply by n_head again.",
        right // 4: "that counts numbers; each takes bytes_per_number bytes.",
        right * 3 // 2: "queries are not kept; an old query is never used again.",
        right // 1000: "that is one token's share; the cache holds `tokens` of them.",
        24 * 16 * 1000 * 1000 * 4: (
            "tokens x tokens are the attention weights; the cache keeps keys and values, which "
            "grow with the length, not with its square."
        ),
    }
    for value, diagnosis in slips.items():
        expect(got != value, diagnosis)
    expect(
        got == right, f"GPT-2 medium with 1000 tokens in fp32 takes {right:,} bytes, not {got:,}."
    )
    expect(
        size(config, 5, 100, 2) == 5 * 2 * 24 * 100 * 1024 * 2, "wrong for a batch of 5 in bf16."
    )
    wide = GPTConfig(n_layer=48, n_head=25, n_embd=1600)
    expect(
        size(wide, 1, 10, 2) == 2 * 48 * 10 * 1600 * 2,
        "right for GPT-2 medium, wrong for GPT-2 XL: use the fields of the config.",
    )
