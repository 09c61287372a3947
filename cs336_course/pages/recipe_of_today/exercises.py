"""Exercises of notebook 09b: the parts of a GPT that is trained by a recipe of today."""

import itertools
import json
import math
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits, function, normal
from cs336_course.engine.modules import SAYS, module
from cs336_course.engine.records import Record, plain
from cs336_course.engine.task import printed
from cs336_course.learner.study import SHIPPED
from cs336_course.shared.model_of_today import rotate
from cs336_lib.config import GPTConfig
from cs336_lib.optim import orthogonalized

NOTEBOOK = "side_trips/recipe_of_today"


# sign_flips


def paired_runs() -> Iterator[Case]:
    """Yield differences of paired runs. They're multiples of 1/64, so their sums are exact."""
    yield Case("", differences=[-0.5, -0.25, -0.75])
    yield Case("a change that hurts", differences=[0.5, 0.25, 0.25, 0.75])
    yield Case("differences of both signs", differences=[0.5, -0.125, 0.25, 0.015625])
    yield Case("a large difference against small ones", differences=[-2.0, 0.25, 0.25, 0.25, 0.5])
    yield Case("equal differences", differences=[0.5, 0.5, -0.5, 0.5])
    yield Case("a difference of zero", differences=[0.0, -0.5, -0.25])
    yield Case("one seed", differences=[-0.25])
    yield Case("eight seeds", differences=[d / 64 for d in (-9, -4, -11, 2, -7, -3, -5, -1)])


COUNTED = "total >= seen"
TOTALS = "abs(sum(map(math.prod, zip(signs, differences))))"

sign_flips = Exercise(
    NOTEBOOK,
    "sign_flips",
    paired_runs,
    observe=function(),
    is_quiz=True,
    smaller="For the differences -1 and -2, four choices of signs have the sums -3, -1, 1 and 3. "
    "Which of them are as far from 0 as ours?",
    answers=("sign_flip_p_value",),
    given={"itertools": itertools},
    is_part=True,
    wrong={
        "your own signs are one of the choices; a p-value is never 0.": (COUNTED, "total > seen"),
        "you count only one side; a change may also hurt, so a sum is far from 0 on both sides.": [
            edits((TOTALS, TOTALS.removeprefix("abs(").removesuffix(")"))),
            ("/ len(totals)", "/ len(totals) / 2"),
        ],
        "you count signs; a large difference should weigh more than a small one.": edits(
            ("abs(sum(differences))", "abs(sum((d > 0) - (d < 0) for d in differences))"),
            (TOTALS, "abs(sum(s * ((d > 0) - (d < 0)) for s, d in zip(signs, differences)))"),
        ),
        "that is the number of choices; divide it by all of them.": (" / len(totals)", ""),
        "that is the share of the choices that are nearer to 0.": (COUNTED, "total < seen"),
    },
)


# helpers of the parts


def norm(x: Tensor) -> Tensor:
    """Divide each vector by its root mean square, as in the notebook."""
    return F.rms_norm(x, (x.size(-1),))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention for tensors of shape (batch, head, seq, head_dim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def shape(n_layer: int, n_head: int, n_embd: int) -> GPTConfig:
    """Return a small config with a padded vocabulary."""
    return GPTConfig(block_size=16, vocab_size=50, n_layer=n_layer, n_head=n_head, n_embd=n_embd)


# attention_of_today


def layer_cases() -> Iterator[Case]:
    """Yield inputs of a layer of heads."""
    for seed, (n_head, n_embd, batch, seq) in enumerate(
        ((3, 24, 2, 7), (1, 6, 1, 1), (2, 8, 3, 5))
    ):
        x = normal(batch, seq, n_embd, seed=seed)
        yield Case("", config=shape(2, n_head, n_embd), x=x, on_other_device=seed == 0)
    long = 300 * normal(2, 6, 8, seed=9)
    yield Case("long vectors", config=shape(2, 2, 8), x=long, gradients=False)
    yield Case("loud heads", config=shape(2, 2, 8), x=normal(2, 6, 8, seed=3), std=2.0)


class RotatedFirst(nn.Module):
    """Rotate before the norm, from another position on, and split by hand."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.heads = config.n_head
        for name in ("c_proj", "c_v", "c_k", "c_q"):
            self.add_module(name, nn.Linear(config.n_embd, config.n_embd, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """Mix the tokens of each head."""
        b, t, c = x.shape
        q, k, v = (
            layer(x).view(b, t, self.heads, -1).transpose(1, 2)
            for layer in (self.c_q, self.c_k, self.c_v)
        )
        q, k = (rotate(each, 3 + torch.arange(t, device=x.device)) for each in (q, k))
        q, k = (
            each * torch.rsqrt(each.pow(2).mean(-1, keepdim=True) + torch.finfo(q.dtype).eps)
            for each in (q, k)
        )
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        scores = q @ k.mT * (c // self.heads) ** -0.5
        y = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


MIXED = "attention(rotate(norm(q), positions), rotate(norm(k), positions), v)"
HEADS = "q, k, v = (rearrange(t, pattern, head=self.n_head) for t in found)"
ALL_HEADS = "you normalize all heads together, so a loud head silences the others; split first."
LAYERS = "config.n_embd, config.n_embd, bias=False"

attention_of_today = Exercise(
    NOTEBOOK,
    "attention_of_today",
    layer_cases,
    observe=module(),
    answers=("CausalSelfAttention",),
    is_part=True,
    says=SAYS,
    tolerance=10,
    smaller="A query is (3, 4), and its key twice as long. What does `norm` make of the two, and "
    "what is their score?",
    wrong={
        "a score still grows with the lengths of q and k; normalize both.": (
            MIXED,
            "attention(rotate(q, positions), rotate(k, positions), v)",
        ),
        "you normalize the queries only; a long key still shouts.": (
            MIXED,
            "attention(rotate(norm(q), positions), rotate(k, positions), v)",
        ),
        "you normalize the keys only; a long query still makes every score large.": (
            MIXED,
            "attention(rotate(q, positions), rotate(norm(k), positions), v)",
        ),
        "you normalize the values, too; they keep their length.": (
            "positions), v)",
            "positions), norm(v))",
        ),
        ALL_HEADS: edits(
            ("(layer(x) for", "(layer(x) for"),
            (HEADS, f"q, k, v = found\n        {HEADS.replace('found', '(norm(q), norm(k), v)')}"),
            (MIXED, "attention(rotate(q, positions), rotate(k, positions), v)"),
        ),
        "the scores don't know how far apart tokens are; rotate q and k by their positions.": [
            (MIXED, "attention(norm(q), norm(k), v)"),
            (
                "torch.arange(x.size(1), device=x.device)",
                "torch.zeros(x.size(1), device=x.device)",
            ),
        ],
        "you rotate only the queries, so a score depends on where they stand; rotate both.": (
            "rotate(norm(k), positions)",
            "norm(k)",
        ),
        "you rotate only the keys, so a score depends on where they stand; rotate both.": (
            "rotate(norm(q), positions)",
            "norm(q)",
        ),
        "values carry content, not positions; don't rotate them.": (
            "positions), v)",
            "positions), rotate(v, positions))",
        ),
        "call `rotate` with its default base.": (
            MIXED,
            "attention(rotate(norm(q), positions, 1e4), rotate(norm(k), positions, 1e4), v)",
        ),
        "positions run along the text; you count backwards.": (
            "torch.arange(x.size(1), device=x.device)",
            "torch.arange(x.size(1), device=x.device).flip(0)",
        ),
        "each position sees the future; use `attention`, which is causal.": (
            "y = attention(",
            "y = F.scaled_dot_product_attention(",
        ),
        "`attention` divides by the root of head_dim already.": (
            "positions), v)",
            "positions) / math.sqrt(q.size(-1)), v)",
        ),
        "queries and keys are swapped.": edits(
            ("(self.c_q, self.c_k, self.c_v)", "(self.c_k, self.c_q, self.c_v)")
        ),
        "a head's numbers lie side by side: (head head_dim), when you split and when you merge.": (
            "(head head_dim)",
            "(head_dim head)",
        ),
        "c_proj is never used.": ("return self.c_proj(rearrange(", "return (rearrange("),
        "no layer has a bias here; write bias=False.": [(", bias=False", "")],
        "that is a single head; split q, k and v into n_head heads.": (
            "self.n_head = config.n_head",
            "self.n_head = 1",
        ),
    },
    refused=[
        ("c_q", "q"),
        ("norm(q)", "2 * norm(q)"),
        ("norm(q)", "F.normalize(q, dim=-1)"),
        ("norm(q)", "norm(q).detach()"),
        (", device=x.device", ""),
        ("(head head_dim) ->", "(head_dim head) ->"),
        ("return ", "return x + "),
        lambda config: None,
        nn.Identity,
    ],
    right=[RotatedFirst, ("device=x.device)", "device=x.device) + 1")],
)


# init_of_today


@cache
def course_code() -> str:
    """Return the notebook's code of a GPT, with the solution for its attention."""
    cells = json.loads((SHIPPED / f"{NOTEBOOK}.ipynb").read_text(encoding="utf-8"))["cells"]
    marks = [(cell["metadata"].get("cs336", {}).get("part"), cell["source"]) for cell in cells]
    given = {part: "".join(source) for part, source in marks if part}
    solved = printed(NOTEBOOK, "attention_of_today")
    return "\n\n".join((given["norm"], solved, given["block_of_today"], given["gpt_of_today"]))


def made(init_weights: Any, config: GPTConfig) -> nn.Module:
    """Return the notebook's GPT with initial weights by some function."""
    names: dict[str, Any] = {"init_weights": init_weights, "rotate": rotate, "F": F, "nn": nn}
    names |= {"attention": attention, "rearrange": rearrange, "torch": torch, "Tensor": Tensor}
    exec(course_code(), names)
    return names["GPT"](config)


def leave(model: nn.Module) -> None:
    """Leave PyTorch's initial weights, which an answer then changes."""


def depths() -> Iterator[Case]:
    """Yield shapes of models."""
    yield Case("", config=shape(2, 2, 32))
    yield Case("three wide layers", config=shape(3, 1, 48))


def see_init(answer: Any, case: Case) -> Record:
    """Observe how a new model begins, and which of its matrices learn in four steps."""
    model = made(leave, case.inputs["config"])
    before = {name: id(p) for name, p in model.named_parameters()}
    returned = answer(model)
    found = dict(model.named_parameters())
    if {name: id(p) for name, p in found.items()} != before:
        return {"in place": False}
    drawn = {name: p.detach() for name, p in found.items() if p.any()}
    spread = {n: t.std().item() * (1 if "wte" in n else t.size(1) ** 0.5) for n, t in drawn.items()}
    tokens = torch.arange(34).view(2, 17) * 7 % 50
    with torch.no_grad():
        x = norm(normal(2, 8, case.inputs["config"].n_embd))
        record: Record = {
            "in place": True,
            "returns": plain(returned),
            "trains": all(p.requires_grad for p in found.values()),
            "equal": not bool(model(tokens[:, :-1]).any()),
            "adds": [
                name
                for block in model.transformer.h
                for name, part in block.named_children()
                if part(x).any()
            ],
            "wte": "wte" in " ".join(drawn),
            "too wide": sorted(name for name, std in spread.items() if std > 1.2),
            "too narrow": sorted(name for name, std in spread.items() if std < 0.8),
            "a mean": sorted(n for n, t in drawn.items() if t.mean().abs() > 0.2 * t.std()),
        }
    return record | {"never": never_learn(model, tokens)}


def never_learn(model: nn.Module, tokens: Tensor) -> list[str]:
    """Return the names of the matrices that have no gradient in any of four steps."""
    left = dict(model.named_parameters())
    for _ in range(4):
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        for name, p in model.named_parameters():
            if p.grad is not None and p.grad.any():
                left.pop(name, None)
                p.data -= 0.01 * p.grad.sign()
            p.grad = None
    return sorted(left)


ZERO = '"c_proj" in name or "lm_head" in name'
KEEPS = "parameter.size(1) ** -0.5"
SCALE = "a linear layer keeps the scale of its input with a std of 1/sqrt(inputs), as in 05b; the "

init_of_today = Exercise(
    NOTEBOOK,
    "init_of_today",
    depths,
    observe=see_init,
    answers=("init_weights",),
    is_part=True,
    says={
        "in place": "change the parameters in place; some are new objects.",
        "returns": "return nothing; change the parameters in place.",
        "trains": "the parameters no longer require gradients; change them in place.",
        "equal": "the logits of a new model must all be 0, so that each token is equally likely.",
        "adds": "a new block changes the stream. Which matrix writes to it last?",
        "never": "some matrices never get a gradient. Are there two zeros on one path?",
        "too wide": "the std of some weights is too large. wte has 1, and each linear layer keeps "
        "the scale of its input.",
        "too narrow": "the std of some weights is too small. wte has 1, and each linear layer "
        "keeps the scale of its input.",
    },
    smaller="A model is y = a · b · x with numbers a and b, and the loss wants y = 1 at x = 1. "
    "What is the gradient of a and of b if a = 0 and b = 1? If both are 0?",
    wrong={
        "the logits of a new model aren't all equal; whose zeros would make them so?": (
            ZERO,
            '"c_proj" in name',
        ),
        "a new block adds something to the stream; whose zeros would prevent it?": (
            ZERO,
            '"lm_head" in name',
        ),
        "attention still adds something to the stream.": (
            ZERO,
            '"mlp.c_proj" in name or "lm_head" in name',
        ),
        "the MLP still adds something to the stream.": (
            ZERO,
            '"attn.c_proj" in name or "lm_head" in name',
        ),
        "wte is 0; draw it with a std of 1.": (ZERO, '"c_proj" in name or "wte" in name'),
        "the stream and the head are 0, and so is every gradient, forever; draw wte.": [
            (ZERO, '"c_proj" in name or "lm_head" in name or "wte" in name'),
            "def init_weights(model):\n"
            "    for parameter in model.parameters():\n        nn.init.zeros_(parameter)\n",
        ],
        "with c_fc = 0 the MLP stays 0, since ReLU² has the slope 0 there.": [
            (ZERO, '"c_fc" in name or "attn.c_proj" in name or "lm_head" in name'),
            (ZERO, '"c_proj" in name or "lm_head" in name or "c_fc" in name'),
        ],
        "c_v and attention's c_proj are both 0, so each waits for the other; leave one of them.": (
            ZERO,
            '"c_proj" in name or "lm_head" in name or "c_v" in name',
        ),
        "c_q and c_k are both 0, so each waits for the other; leave them drawn.": (
            ZERO,
            '"c_proj" in name or "lm_head" in name or "c_q" in name or "c_k" in name',
        ),
        "the embedding has GPT-2's std of 0.02; it should be 1.": ("(0.0, 1.0)", "(0.0, 0.02)"),
        f"{SCALE}yours is narrower.": [(KEEPS, "0.02"), (KEEPS, "1 / parameter.size(1)")],
        f"{SCALE}inputs of (out, in) are the columns.": (KEEPS, "parameter.size(0) ** -0.5"),
        "the linear layers have a std of 1, so their outputs are as wide as the root of the number "
        "of inputs.": (KEEPS, "1.0"),
        "you draw all linear layers with a mean; it should be 0.": (
            f"normal_(0.0, {KEEPS})",
            f"normal_({KEEPS}, {KEEPS})",
        ),
    },
    refused=[
        ("@torch.no_grad()\n", ""),
        (KEEPS, "2 * parameter.size(1) ** -0.5"),
        ("(0.0, 1.0)", "(1.0, 1.0)"),
        ("    for name", "    torch.manual_seed(0)\n    for name"),
        ("    for name", "    model.requires_grad_(False)\n    for name"),
        lambda model: None,
        lambda model: model,
    ],
    right=[
        (ZERO, '"c_v" in name or "mlp.c_proj" in name or "lm_head" in name'),
        (f"normal_(0.0, {KEEPS})", f"uniform_(-(3**0.5) * {KEEPS}, 3**0.5 * {KEEPS})"),
    ],
)


# muon_updates


def stacks() -> Iterator[Case]:
    """Yield gradients of matrices of one shape, and their running means."""
    for seed, (what, count, rows, columns) in enumerate(
        (
            ("", 2, 6, 3),
            ("wide matrices", 2, 3, 12),
            ("square matrices", 3, 5, 5),
            ("a single matrix of one row", 1, 1, 4),
            ("tall matrices", 1, 16, 4),
        )
    ):
        gradients = 0.1 * normal(count, rows, columns, seed=seed)
        means = (0.0 if seed == 2 else 0.05) * normal(count, rows, columns, seed=10 + seed)
        momentum = 0.8 if seed == 1 else 0.95
        yield Case(what, gradients=gradients, means=means, momentum=momentum)


def see_updates(answer: Any, case: Case) -> Record:
    """Observe the updates, and the running means and the gradients that a call leaves."""
    given = {name: x.clone() if isinstance(x, Tensor) else x for name, x in case.inputs.items()}
    return {
        "result": plain(answer(**given)),
        "the running means": given["means"],
        "the gradients": given["gradients"],
    }


def one_by_one(gradients: Tensor, means: Tensor, momentum: float) -> Tensor:
    """Take one matrix after the other."""
    found = []
    for gradient, mean in zip(gradients, means, strict=True):
        mean += (1 - momentum) * (gradient - mean)
        ahead = (1 - momentum) * gradient + momentum * mean
        factor = (gradient.size(0) / gradient.size(1)) ** 0.5
        found.append(factor * orthogonalized(ahead[None])[0])
    return torch.stack(found)


FACTOR = "math.sqrt(rows / columns)"
MEAN = "means.lerp_(gradients, 1 - momentum)"
AHEAD = "ahead = gradients.lerp(means, momentum)  # Nesterov: where the mean is going to be"

muon_updates = Exercise(
    NOTEBOOK,
    "muon_updates",
    stacks,
    observe=see_updates,
    tolerance=100,  # five rounds make small singular values, and their errors, 480 times as large
    is_part=True,
    axes="matrix row column",
    smaller="A matrix has one row and four columns, and its only singular value is 1. How large "
    "can its output be, if the input is (1, 1, 1, 1)?",
    wrong={
        "the factor for the shape is missing.": (f" * {FACTOR}", ""),
        "your factor is upside down; a tall matrix spreads its output over many rows.": (
            FACTOR,
            "math.sqrt(columns / rows)",
        ),
        "take the root of rows / columns; lengths are roots of sums of squares.": (
            FACTOR,
            "rows / columns",
        ),
        "that is right for tall matrices, but wide ones add up many inputs, and their factor is "
        "below 1.": (FACTOR, "max(1, rows / columns) ** 0.5"),
        "that is 05b's factor, which gives the entries AdamW's size; here the output counts.": [
            (FACTOR, "0.2 * max(rows, columns) ** 0.5"),
        ],
        "the factor depends on the shape of one matrix; you count the matrices, too.": (
            "gradients.shape[1:]",
            "gradients.shape[:2]",
        ),
        "you orthogonalize the gradient alone; Muon takes a running mean.": (
            "orthogonalized(ahead)",
            "orthogonalized(gradients)",
        ),
        "you orthogonalize the running mean; Nesterov moves it on by one gradient.": (
            "orthogonalized(ahead)",
            "orthogonalized(means)",
        ),
        "you don't orthogonalize.": ("orthogonalized(ahead)", "ahead"),
        "the running means must change in place; yours stay as they were.": (
            MEAN,
            "means = means.lerp(gradients, 1 - momentum)",
        ),
        "the newest gradient has the weight 1 - momentum; yours has momentum.": (
            MEAN,
            "means.lerp_(gradients, momentum)",
        ),
        "you keep a sum of gradients; a mean has weights that add up to 1.": (
            MEAN,
            "means.mul_(momentum).add_(gradients)",
        ),
        "you change the gradients; clipping and logs may still need them.": (
            "gradients.lerp(means",
            "gradients.lerp_(means",
        ),
        "the running means are what stays; you overwrite them with the look ahead.": (
            "ahead = gradients.lerp(means, momentum)",
            "ahead = means.lerp_(gradients, 1 - momentum)",
        ),
        "the optimizer subtracts what you return, so leave the sign.": (
            "return orthogonalized",
            "return -orthogonalized",
        ),
    },
    refused=[
        (FACTOR, "2.0"),
        (MEAN, "means.copy_(gradients)"),
        ("momentum)", "0.95)"),
        ("return ", ""),
        lambda gradients, means, momentum: gradients,
    ],
    right=[one_by_one, (f" * {FACTOR}", " * rows**0.5 / columns**0.5")],
)


# groups_of_today


def group_cases() -> Iterator[Case]:
    """Yield shapes and settings."""
    settings = {"weight_decay": 0.3, "wte_scale": 12.0, "head_scale": 0.25}
    yield Case("", config=shape(2, 2, 8), **settings)
    yield Case(
        "other settings", config=shape(1, 1, 6), weight_decay=0.1, wte_scale=2.0, head_scale=3.0
    )
    yield Case("one wide model", config=shape(3, 1, 64), **settings)


def see_groups(answer: Any, case: Case) -> Record:
    """Observe which parameters have which settings."""
    settings = dict(case.inputs)
    model = made(leave, settings.pop("config"))
    groups = answer(model, SimpleNamespace(**settings))
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return {"form": type(groups).__name__}
    lists = [group.get("params") for group in groups]
    if not all(isinstance(one, list) for one in lists):
        return {"form": sorted({type(one).__name__ for one in lists})}
    names = {id(p): name for name, p in model.named_parameters()}
    listed = [names.get(id(p), "?") for one in lists for p in one]
    keys = ("momentum", "weight_decay", "scale")
    return {
        "form": "list",
        "strangers": "?" in listed,
        "twice": sorted({name for name in listed if listed.count(name) > 1}),
        "missing": sorted(set(names.values()) - set(listed)),
        **{
            f"{key} of each parameter": {
                names.get(id(p), "?"): plain(group.get(key, "none"))
                for group in groups
                for p in group["params"]
            }
            for key in keys
        },
        "number of groups": len(groups),
    }


WTE = '{"params": [model.transformer.wte.weight], "weight_decay": 0.0, "scale": config.wte_scale},'
HEAD = '{"params": [model.lm_head.weight], "weight_decay": 0.0, "scale": config.head_scale},'
BLOCKS = "list(model.transformer.h.parameters())"

groups_of_today = Exercise(
    NOTEBOOK,
    "groups_of_today",
    group_cases,
    observe=see_groups,
    answers=("parameter_groups",),
    is_part=True,
    says={
        "form": 'return a list of dicts, such as {"params": [...], "weight_decay": 0.0}, whose '
        "params are lists.",
        "strangers": "a group contains something that is not a parameter of the model.",
        "twice": "a parameter is in two groups, so it would move twice a step.",
        "missing": "some parameters are in no group, so they never train.",
    },
    smaller="A batch has three of 50,000 tokens. How many rows of the gradient of wte are 0? What "
    "would an orthogonalized step do with the other three?",
    wrong={
        "wte is a table, of which a batch sees a few rows; give it to AdamW.": edits(
            (BLOCKS, "[*model.transformer.wte.parameters(), *model.transformer.h.parameters()]"),
            (WTE, ""),
        ),
        "each row of the head belongs to a token, rare or frequent; give it to AdamW.": edits(
            (BLOCKS, "[*model.transformer.h.parameters(), model.lm_head.weight]"), (HEAD, "")
        ),
        "the two tables of tokens belong to AdamW; you give Muon every matrix.": edits(
            (BLOCKS, "list(model.parameters())"), (WTE, ""), (HEAD, "")
        ),
        "wte is in no group, so it never trains.": (WTE, ""),
        "lm_head is in no group, so it never trains. Its weight is no longer wte's.": (HEAD, ""),
        "the scales of wte and lm_head are swapped.": edits(
            ("config.wte_scale", "config.other"),
            ("config.head_scale", "config.wte_scale"),
            ("config.other", "config.head_scale"),
        ),
        "only Muon's matrices are decayed; the tables have 0.": (
            '"weight_decay": 0.0',
            '"weight_decay": config.weight_decay',
        ),
        "Muon's matrices aren't decayed; use config.weight_decay.": (
            '"weight_decay": config.weight_decay',
            '"weight_decay": 0.0',
        ),
        "AdamW has its own betas; only Muon's group has a momentum.": (
            '"weight_decay": 0.0,',
            '"weight_decay": 0.0, "momentum": 0.95,',
        ),
        "Muon's group needs its momentum of 0.95.": (', "momentum": 0.95', ""),
        "params must be a list. A generator is empty after the first loop.": [
            (BLOCKS, "model.transformer.h.parameters()"),
        ],
        "your projections aren't in Muon's group; they are maps between vectors, too.": edits(
            (BLOCKS, '[p for n, p in model.transformer.h.named_parameters() if "proj" not in n]'),
            (
                "[model.lm_head.weight]",
                "[model.lm_head.weight, *(p for n, p in "
                'model.transformer.h.named_parameters() if "proj" in n)]',
            ),
        ),
    },
    refused=[
        ("0.95", "0.9"),
        ('"scale": 1.0', '"scale": config.wte_scale'),
        ("    return [", "    config.wte_scale\n    ["),
        lambda model, config: list(model.parameters()),
        lambda model, config: None,
    ],
    right=[
        (BLOCKS, '[p for n, p in model.named_parameters() if ".h." in n]'),
        (BLOCKS, "[m.weight for m in model.transformer.h.modules() if isinstance(m, nn.Linear)]"),
    ],
)


# rate_of_today


def run_cases() -> Iterator[Case]:
    """Yield runs with their highest rate, and the share of their steps that decay."""
    yield Case(max_steps=10, decay_share=0.4, learning_rate=2.0)
    yield Case(max_steps=7, decay_share=0.5, learning_rate=0.3)
    yield Case("no decay", max_steps=5, decay_share=0.0, learning_rate=3.0)
    yield Case("a decay from the first step on", max_steps=8, decay_share=1.0, learning_rate=4.0)
    yield Case("one step", max_steps=1, decay_share=0.5, learning_rate=1.0)
    yield Case("a longer run", max_steps=43, decay_share=0.7, learning_rate=0.02)


def see_rates(answer: Any, case: Case) -> Record:
    """Observe the rates of all steps of a run."""
    config = SimpleNamespace(**case.inputs)
    return {f"the rate of step {n}": plain(answer(n, config)) for n in range(config.max_steps)}


LEFT = "(config.max_steps - step)"

rate_of_today = Exercise(
    NOTEBOOK,
    "rate_of_today",
    run_cases,
    observe=see_rates,
    answers=("learning_rate",),
    is_part=True,
    tolerance=20,
    smaller="A run has 4 steps and a rate of 8, and it decays from the first step on. Step 4, "
    "which doesn't run, would have the rate 0. Which rates do steps 0 to 3 have?",
    wrong={
        "the last step has the rate 0, so you pay for nothing; 0 comes after it.": (
            LEFT,
            "(config.max_steps - 1 - step)",
        ),
        "the rate doesn't fall.": (f"min(1.0, {LEFT} / max(decay_steps, 1))", "1.0"),
        "the rate begins to fall at step 0; it should be constant before the last part.": (
            "config.decay_share * config.max_steps",
            "config.max_steps",
        ),
        "decay_share is the part that decays, at the end; you take it for the constant part.": (
            "config.decay_share *",
            "(1 - config.decay_share) *",
        ),
        "the rate is above its maximum before the decay; limit the factor to 1.": (
            f"min(1.0, {LEFT} / max(decay_steps, 1))",
            f"({LEFT} / max(decay_steps, 1))",
        ),
        "a share of 0 means no decay, and you divide by its 0 steps.": (
            "max(decay_steps, 1)",
            "decay_steps",
        ),
        "the rate falls along a cosine; a straight line is asked for.": (
            f"min(1.0, {LEFT} / max(decay_steps, 1))",
            f"(1 - math.cos(math.pi * min(1.0, {LEFT} / max(decay_steps, 1)))) / 2",
        ),
        "the rate falls from step to step by a factor; a straight line subtracts.": (
            f"min(1.0, {LEFT} / max(decay_steps, 1))",
            f"min(1.0, {LEFT} / max(decay_steps, 1)) ** 2",
        ),
        "use config.learning_rate.": ("config.learning_rate", "0.025"),
        "there is no warm-up in this recipe.": (
            "min(1.0, ",
            "min(1.0, (step + 1) / 3, ",
        ),
    },
    refused=[
        (LEFT, "(config.max_steps + 1 - step)"),
        ("config.decay_share", "0.4"),
        ("config.decay_share * config.max_steps", "int(config.decay_share * config.max_steps)"),
        ("return ", ""),
        lambda step, config: 0.0,
    ],
    right=[
        "def learning_rate(step, config):\n"
        "    first = config.max_steps * (1 - config.decay_share)\n"
        "    if step <= first or config.decay_share == 0 or config.max_steps == 1:\n"
        "        return config.learning_rate\n"
        "    share = 1 - (step - first) / (config.max_steps - first)\n"
        "    return config.learning_rate * share\n",
    ],
)
