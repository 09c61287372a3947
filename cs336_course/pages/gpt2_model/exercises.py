"""Exercises of 07_gpt2_model: a layer of heads, and the first weights."""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits, normal
from cs336_course.engine.modules import SAYS, module
from cs336_course.engine.observe import runs_elsewhere
from cs336_course.engine.records import Record
from cs336_lib import model as library
from cs336_lib.config import GPTConfig

NOTEBOOK = "07_gpt2_model"


def shape(n_head: int, n_embd: int, n_layer: int = 2, **others: int) -> GPTConfig:
    """Return a small config with a padded vocabulary."""
    bounds: Any = {"block_size": 11, "vocab_size": 50} | others
    return GPTConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, **bounds)


# causal_self_attention


def layer_cases() -> Iterator[Case]:
    """Yield configs and inputs of a layer of heads."""
    for config, batch, seq in (
        (shape(3, 24), 2, 7),
        (shape(1, 6, block_size=5), 1, 1),  # one head and one token
        (shape(4, 4, block_size=33), 2, 33),  # head_dim is 1, and the context is full
        (shape(5, 35, block_size=9), 3, 4),
    ):
        x = normal(batch, seq, config.n_embd, seed=seq)
        yield Case("", config=config, x=x, on_other_device=batch == 3)
    # exp of these scores overflows in fp64, too
    x = 300 * normal(2, 6, 8, seed=9).double()
    yield Case("scores near 30,000", config=shape(2, 8), x=x, gradients=False)
    config = shape(1, 2, block_size=1030)  # GPT-2's mask has 1024
    yield Case("a long text", config=config, x=normal(1, 1030, 2))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention for tensors of shape (batch, head, seq, head_dim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def split(order: str, axes: str = "head seq") -> tuple[str, str]:
    """Return an edit that reads c_attn's output in another order, or swaps the axes it makes."""
    return (
        "batch seq (three head head_dim) -> three batch head seq head_dim",
        f"batch seq ({order}) -> three batch {axes} head_dim",
    )


def mixed(call: str) -> tuple[str, str]:
    """Return an edit that mixes the values in another way."""
    return "attention(q, k, v)", call


QKV = "rearrange(self.c_attn(x), pattern, three=3, head=self.n_head)"
MERGE = 'rearrange(y, "batch head seq head_dim -> batch seq (head head_dim)")'
MERGED = 'batch seq (head head_dim)")', 'batch seq (head_dim head)")'
PARTS = "(p.{}(len(x), self.n_head, x.size(1), -1) for p in self.c_attn(x).chunk(3, -1))"

causal_self_attention = Exercise(
    NOTEBOOK,
    "causal_self_attention",
    layer_cases,
    observe=module(),
    answers=("CausalSelfAttention",),
    library=library.CausalSelfAttention,
    given={"rearrange": rearrange},
    smaller="With n_embd 4 and n_head 2, c_attn gives 12 numbers per token. Which of them are the "
    "keys of head 1?",
    says=SAYS,
    errors={
        "`view` only regroups numbers that lie side by side in memory, and reshape alone would mix "
        "positions and heads. Split into (batch, seq, head, head_dim), then transpose(1, 2). To "
        "merge, transpose(1, 2) back, and only then reshape.": (
            "view size is not compatible",
            edits((QKV, PARTS.format("view")), (MERGE, "y.view(x.shape)")),
        ),
        "c_attn's output is one tensor. Cut its last axis into three, for q, k and v.": (
            "values to unpack",
            (QKV, "self.c_attn(x)"),
        ),
    },
    wrong={
        "c_proj is never used.": ("return self.c_proj(rearrange(", "return (rearrange("),
        "each position sees the future; use `attention`, which is causal.": mixed(
            "F.scaled_dot_product_attention(q, k, v)"
        ),
        "c_attn's output holds the queries, then the keys, then the values; you mixed them up.": [
            ("q, k, v = rearrange", "k, q, v = rearrange"),
            ("q, k, v = rearrange", "v, k, q = rearrange"),
            ("q, k, v = rearrange", "q, v, k = rearrange"),
        ],
        "in c_attn's output all queries come first, then all keys: (three head head_dim).": [
            split("head three head_dim"),
            split("head_dim head three"),
            split("head head_dim three"),
            split("head_dim three head"),
        ],
        "a head's numbers lie side by side, when you split and when you merge: (head head_dim), "
        "not (head_dim head).": [
            split("three head_dim head"),
            MERGED,
            edits(split("three head_dim head"), MERGED),
        ],
        "you view the output as heads without moving axes, which mixes positions and heads. Split "
        "the last axis, then transpose.": [
            (QKV, PARTS.format("reshape")),
            edits((QKV, PARTS.format("reshape")), (MERGE, "y.reshape(x.shape)")),
        ],
        "you merge the heads without moving them back next to head_dim first.": (
            MERGE,
            "y.reshape(x.shape)",
        ),
        "the heads aren't moved in front of the positions, so a position attends over its own "
        "heads. Transpose to (batch, head, seq, head_dim).": edits(
            split("three head head_dim", "seq head"),
            ('"batch head seq head_dim -> batch', '"batch seq head head_dim -> batch'),
        ),
        "that is a single head; split c_attn's output into n_head heads.": (
            "self.n_head = config.n_head",
            "self.n_head = 1",
        ),
        "n_head isn't always 12; read it from the config.": ("config.n_head", "12"),
        "head_dim isn't always 64; divide n_embd by n_head.": (
            "head=self.n_head)",
            "head=x.size(-1) // 64)",
        ),
        "each head scales by its own width, head_dim, not by n_embd.": mixed(
            "F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=x.size(-1) ** -0.5)"
        ),
        "the scores aren't scaled; `attention` does it for you.": mixed(
            "F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)"
        ),
        "the scores are scaled twice; `attention` does it already.": mixed(
            "attention(q / math.sqrt(q.size(-1)), k, v)"
        ),
        "you add x; the block does that.": ("return self", "return x + self"),
    },
)


# init_weights


@torch.no_grad()
def library_init_weights(model: nn.Module) -> None:
    """Draw GPT-2's initial weights, with a smaller std where a block writes to the stream."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif ".ln_" in name:
            parameter.fill_(1.0)
        else:
            is_small = "c_proj" in name
            parameter.normal_(0.0, 0.02 / (math.sqrt(2 * model.config.n_layer) if is_small else 1))


def depths() -> Iterator[Case]:
    """Yield configs of three depths, whose weights have enough numbers for statistics."""
    for n_layer, n_head, n_embd in ((3, 2, 64), (1, 4, 100), (5, 5, 80)):
        yield Case("", config=shape(n_head, n_embd, n_layer, block_size=70, vocab_size=90))


def initialized(answer: Any, case: Case) -> Record:
    """Observe how each parameter begins, given that all were 7 before."""
    model = library.GPT(case.inputs["config"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    answer(model)
    record: Record = {}
    starts: list[list[float]] = []
    for name, parameter in model.named_parameters():
        numbers = parameter.detach()[: model.config.vocab_size]
        padding = parameter.detach()[model.config.vocab_size :]
        how = distribution(numbers) if (padding != 7).all() else "left in part as it was"
        record[f"the start of {name}"] = how
        if how == "drawn":
            record[f"the std of {name}"] = numbers.std().item()
            starts.append(
                [round(x / numbers.max().item(), 2) for x in numbers.flatten()[:8].tolist()]
            )
    first = model.lm_head.weight.clone()
    record |= {
        "twice": any(start in starts[:n] for n, start in enumerate(starts)),
        "dtypes": sorted({str(parameter.dtype) for parameter in model.parameters()}),
        "tied": model.lm_head.weight is model.transformer.wte.weight,
        "trains": all(parameter.requires_grad for parameter in model.parameters()),
        "modes": sorted({module.training for module in model.modules()}),
    }
    answer(model)
    record["again"] = not torch.equal(first, model.lm_head.weight)
    on_meta = library.GPT(case.inputs["config"]).to("meta")
    return {**record, "elsewhere": runs_elsewhere(answer, Case("", model=on_meta))}


def distribution(numbers: Tensor) -> str:
    """Return how numbers that were all 7 have been set, in words that allow for chance."""
    std, share = numbers.std().item(), (numbers.unique().numel() / numbers.numel())
    chance = 4 / math.sqrt(numbers.numel())  # four standard errors, for few numbers
    if (numbers == 7).any():
        return "left as it was" if (numbers == 7).all() else "left in part as it was"
    if (numbers == numbers.flatten()[0]).all():
        return f"{numbers.flatten()[0].item() + 0.0:g} everywhere"  # 0 without a sign
    if share < 0.5:
        return "drawn with numbers that repeat"
    if abs(numbers.mean().item()) > max(0.2, chance) * std:
        return "drawn with another mean than 0"
    within = (numbers.abs() < std).double().mean().item()  # 0.68 if the numbers are normal
    is_normal = abs(within - 0.6827) < max(0.04, chance / 2)
    return "drawn" if is_normal else "drawn from another distribution"


def others(code: str) -> tuple[str, str]:
    """Return an edit that sets the weights that don't write to the stream by some code."""
    return "            parameter.normal_(0.0, 0.02)\n", f"            {code}\n"


DEPTH = "math.sqrt(2 * model.config.n_layer)"

init_weights = Exercise(
    NOTEBOOK,
    "init_weights",
    depths,
    observe=initialized,
    library=library_init_weights,
    tolerance=8e4,  # 8 % for the stds of random numbers
    smaller="Each block adds to the stream twice, each time with variance 1. What variance do "
    "n_layer blocks add?",
    says={
        "twice": "two weights begin with the same numbers; draw each of them anew.",
        "dtypes": "a parameter has another dtype now; keep it.",
        "tied": "lm_head and wte are no longer one tensor; change the weights in place.",
        "trains": "a parameter no longer requires a gradient; leave that as it is.",
        "modes": "your function changes the model's mode; leave that to the caller.",
        "again": "two calls give the same numbers; draw new ones in each.",
    },
    wrong={
        "each c_proj writes to the stream, so its 0.02 is divided by sqrt(2 n_layer).": (
            DEPTH,
            "1",
        ),
        "a block writes to the stream twice, so take sqrt(2 n_layer).": ("2 * model", "model"),
        "variances add, so divide by the square root of 2 n_layer.": (DEPTH, DEPTH[9:]),
        "divide by the square root of 2 n_layer, not by n_layer.": (DEPTH, "model.config.n_layer"),
        "divide by sqrt(2 n_layer); you multiply.": ("0.02 / math", "0.02 * math"),
        "n_layer isn't always 12; read it from model.config.": ("model.config.n_layer", "12"),
        "only the c_proj weights are smaller; the others don't write to the stream.": (
            '"c_proj" in name',
            '".c_" in name',
        ),
        "each block has two c_proj weights, those of attention and of the MLP. You shrink one.": [
            ('"c_proj" in name', '"attn.c_proj" in name'),
            ('"c_proj" in name', '"mlp.c_proj" in name'),
        ],
        "a std of 0.02 is wanted; yours is its square, as if that were the variance.": others(
            "parameter.normal_(0.0, 0.02**2)"
        ),
        "c_proj.bias and ln_1.bias answer two questions with yes; ask for the bias first.": [
            ('name.endswith("bias")', 'name.endswith("bias") and "c_proj" not in name'),
            ('name.endswith("bias")', 'name.endswith("bias") and ".ln_" not in name'),
        ],
        "ln_f is a norm, too; its gain begins at 1.": (
            '".ln_" in name',
            '".ln_1" in name or ".ln_2" in name',
        ),
    },
)
