"""Exercises of the side trip on a recipe of today: a test of pairs, and first weights."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, normal
from cs336_course.engine.records import Record, plain
from cs336_course.pages.recipe_of_today.story import rotate
from cs336_lib.config import GPTConfig

__all__ = ["math"]  # the printed solution uses it
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


sign_flips = Exercise(
    NOTEBOOK,
    "sign_flips",
    paired_runs,
    smaller="For the differences -1 and -2, four choices of signs have the sums -3, -1, 1 and 3. "
    "Which of them are as far from 0 as ours?",
    answers=("sign_flip_p_value",),
    given={"itertools": itertools},
    is_part=True,
    wrong={
        "your own signs are one of the choices; a p-value is never 0.": [
            ("total >= seen", "total > seen"),
            ("return sum(", "return -1 / len(totals) + sum("),
        ],
        "you count only one side; a change may also hurt, so a sum is far from 0 on both sides.": [
            (
                "abs(sum(map(math.prod, zip(signs, differences))))",
                "sum(map(math.prod, zip(signs, differences)))",
            ),
            ("abs(", "("),
            ("/ len(totals)", "/ len(totals) / 2"),
        ],
        "you count signs; a large difference should weigh more than a small one.": (
            "seen, totals",
            "differences = [(d > 0) - (d < 0) for d in differences]\n    seen, totals",
        ),
        "that is the number of choices; divide it by all of them.": (" / len(totals)", ""),
        "that is the share of the choices that are nearer to 0.": ("total >= seen", "total < seen"),
    },
)


# init_of_today


def norm(x: Tensor) -> Tensor:
    """Divide each vector by its root mean square."""
    return F.rms_norm(x, (x.size(-1),))


class Part(nn.Module):
    """Linear layers without biases, by their names: attention or a ReLU² MLP."""

    def __init__(self, heads: int, **sizes: tuple[int, int]):
        super().__init__()
        self.heads = heads
        for name, size in sizes.items():
            self.add_module(name, nn.Linear(*size, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the part adds to the stream."""
        if not self.heads:
            return self.c_proj(F.relu(self.c_fc(x)).square())
        found = torch.stack([layer(x) for layer in (self.c_q, self.c_k, self.c_v)])
        q, k, v = rearrange(found, "n b t (head dim) -> n b head t dim", head=self.heads)
        y = F.scaled_dot_product_attention(rotate(norm(q)), rotate(norm(k)), v, is_causal=True)
        return self.c_proj(rearrange(y, "b head t dim -> b t (head dim)"))


class GPT(nn.Module):
    """A GPT with RoPE and QK-norm, whose norms have no gains and whose head is its own."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        d, self.transformer = config.n_embd, nn.Module()
        self.transformer.wte = nn.Embedding(config.vocab_size, d)
        self.transformer.h = nn.ModuleList()
        for _ in range(config.n_layer):
            attention = Part(config.n_head, c_q=(d, d), c_k=(d, d), c_v=(d, d), c_proj=(d, d))
            mlp = Part(0, c_fc=(d, 4 * d), c_proj=(4 * d, d))
            self.transformer.h.append(nn.ModuleDict({"attn": attention, "mlp": mlp}))
        self.lm_head = nn.Linear(d, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        x = norm(self.transformer.wte(tokens))
        for part in (part for block in self.transformer.h for part in block.values()):
            x = x + part(norm(x))
        return self.lm_head(norm(x))


def depths() -> Iterator[Case]:
    """Yield shapes of models."""
    yield Case("", config=GPTConfig(16, 50, n_layer=2, n_head=2, n_embd=32))
    yield Case("three wide layers", config=GPTConfig(16, 50, n_layer=3, n_head=1, n_embd=48))


def see_init(answer: Any, case: Case) -> Record:
    """Observe how a new model begins, and which of its matrices learn in four steps."""
    model = GPT(case.inputs["config"])
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
        F.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:]).backward()
        for name, p in model.named_parameters():
            if p.grad is not None and p.grad.any():
                left.pop(name, None)
                p.data -= 0.01 * p.grad.sign()
            p.grad = None
    return sorted(left)


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
            '"c_proj" in name or "lm_head" in name',
            '"c_proj" in name',
        ),
        "wte is 0; draw it with a std of 1.": ("parameter.normal_(0.0, 1.0)", "parameter.zero_()"),
        "with c_fc = 0 the MLP stays 0, since ReLU² has the slope 0 there.": [
            ('"c_proj" in name', '"c_fc" in name or "attn.c_proj" in name'),
            ('"c_proj" in name', '"c_fc" in name or "c_proj" in name'),
        ],
        "c_v and attention's c_proj are both 0, so each waits for the other; leave one of them.": (
            '"c_proj" in name',
            '"c_v" in name or "c_proj" in name',
        ),
        "c_q and c_k are both 0, so each waits for the other; leave them drawn.": (
            '"c_proj" in name',
            '"c_q" in name or "c_k" in name or "c_proj" in name',
        ),
        "a linear layer keeps the scale of its input with a std of 1/sqrt(inputs), and the inputs "
        "of (out, in) are the columns.": ("parameter.size(1)", "parameter.size(0)"),
    },
)
