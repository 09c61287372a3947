"""Small GPTs that differ from GPT-2 by a set of changes, and their recorded runs in pairs."""

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from cs336_course.shared.letter_gpt import letters
from cs336_lib.data.corpus import DATA
from cs336_lib.muon import Muon

BLOCK, ROWS = 64, 4  # letters in a window, and windows in a batch
HELD_OUT = 400_000  # letters at the end of the plays, for the loss at the end of a run
WARMUP, DECAY = 0.05, 0.6  # shares of the steps
CAP = 15.0  # largest logit with the soft cap
T_95 = 2.776  # a |t| above it has p < 0.05 with five differences
LEVEL = 0.05

# By their short names, in the order in which the notebook adds them
CHANGES = {
    "rope": "RoPE",
    "bare": "RMSNorm, no gains, no biases",
    "qk_norm": "QK-norm",
    "relu2": "ReLU²",
    "untied": "head of its own, from zero",
    "zero": "blocks that add zero at first",
    "muon": "Muon",
    "linear": "constant, then linear to 0",
    "cap": "soft cap",
}


@dataclass(frozen=True)
class Size:
    """Shape of a model, and the steps of its runs."""

    n_layer: int
    n_head: int
    n_embd: int
    steps: int


SIZES = {"small": Size(2, 2, 64, 300), "large": Size(2, 4, 128, 300)}


@dataclass(frozen=True)
class Rates:
    """Peak learning rates of a run.

    Attributes:
        adamw: Rate of AdamW.
        muon: Rate of Muon for the matrices in the blocks, if the recipe has it.
        table: Factor on AdamW's rate for the table of the tokens, if the head has its own.
    """

    adamw: float
    muon: float = 0.0
    table: float = 1.0


def rotate(x: Float[Tensor, "*batch seq dim"], base: float = 10_000.0) -> Tensor:
    """Turn the pairs (i, i + dim/2) of queries or keys by their positions (Su et al. 2021)."""
    cos, sin = turns(x.size(-2), x.size(-1) // 2, base)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


@cache
def turns(seq: int, half: int, base: float) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines (seq, half) of the angles."""
    angles = torch.outer(torch.arange(seq), base ** (-torch.arange(half) / half))
    return angles.cos(), angles.sin()


def norm(width: int, changes: frozenset[str]) -> nn.Module:
    """Return GPT-2's norm, or an RMSNorm without gains."""
    if "bare" in changes:
        return nn.RMSNorm(width, eps=1e-5, elementwise_affine=False)
    return nn.LayerNorm(width)


class Attention(nn.Module):
    """Causal attention, which may turn and normalize its queries and keys."""

    def __init__(self, size: Size, changes: frozenset[str]):
        super().__init__()
        self.n_head, self.changes = size.n_head, changes
        self.c_attn = nn.Linear(size.n_embd, 3 * size.n_embd, bias="bare" not in changes)
        self.c_proj = nn.Linear(size.n_embd, size.n_embd, bias="bare" not in changes)

    def forward(self, x: Float[Tensor, "batch seq n_embd"]) -> Float[Tensor, "batch seq n_embd"]:
        pattern = "batch seq (three head dim) -> three batch head seq dim"
        q, k, v = rearrange(self.c_attn(x), pattern, three=3, head=self.n_head)
        if "qk_norm" in self.changes:
            q, k = (F.rms_norm(t, t.shape[-1:]) for t in (q, k))
        if "rope" in self.changes:
            q, k = rotate(q), rotate(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(rearrange(y, "batch head seq dim -> batch seq (head dim)"))


class MLP(nn.Module):
    """Two linear layers, with a GELU or a squared ReLU between them."""

    def __init__(self, size: Size, changes: frozenset[str]):
        super().__init__()
        self.changes = changes
        self.c_fc = nn.Linear(size.n_embd, 4 * size.n_embd, bias="bare" not in changes)
        self.c_proj = nn.Linear(4 * size.n_embd, size.n_embd, bias="bare" not in changes)

    def forward(self, x: Float[Tensor, "batch seq n_embd"]) -> Float[Tensor, "batch seq n_embd"]:
        x = self.c_fc(x)
        squared = "relu2" in self.changes
        return self.c_proj(x.relu().square() if squared else F.gelu(x, approximate="tanh"))


class Block(nn.Module):
    """Attention and an MLP, which normalize their input and add to the residual stream."""

    def __init__(self, size: Size, changes: frozenset[str]):
        super().__init__()
        self.ln_1 = norm(size.n_embd, changes)
        self.attn = Attention(size, changes)
        self.ln_2 = norm(size.n_embd, changes)
        self.mlp = MLP(size, changes)

    def forward(self, x: Float[Tensor, "batch seq n_embd"]) -> Float[Tensor, "batch seq n_embd"]:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2 with a set of changes; without any, it's GPT-2.

    Args:
        size: Shape of the model.
        vocab_size: Number of different tokens.
        changes: Names from `CHANGES`.
    """

    def __init__(self, size: Size, vocab_size: int, changes: Iterable[str] = ()):
        super().__init__()
        self.changes = frozenset(changes)
        self.wte = nn.Embedding(vocab_size, size.n_embd)
        self.wpe = None if "rope" in self.changes else nn.Embedding(BLOCK, size.n_embd)
        self.h = nn.ModuleList(Block(size, self.changes) for _ in range(size.n_layer))
        self.ln_f = norm(size.n_embd, self.changes)
        self.lm_head = nn.Linear(size.n_embd, vocab_size, bias=False)
        if "untied" not in self.changes:
            self.lm_head.weight = self.wte.weight
        self.init_weights(size.n_layer)

    @torch.no_grad()
    def init_weights(self, n_layer: int) -> None:
        """Draw GPT-2's initial weights, except for those that a change sets to zero."""
        for name, p in self.named_parameters():
            if p.dim() == 1:
                p.fill_(0.0 if name.endswith("bias") else 1.0)
            elif name.startswith("lm_head"):
                p.zero_()
            elif name.startswith("wte") and "untied" in self.changes:
                p.normal_()
            elif name.startswith("w") or "zero" not in self.changes:
                p.normal_(0.0, 0.02 / math.sqrt(2 * n_layer) if "c_proj" in name else 0.02)
            else:
                p.normal_(0.0, 0.0 if "c_proj" in name else p.size(1) ** -0.5)

    def forward(
        self, idx: Int[Tensor, "batch seq"], targets: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, ""]:
        """Return the mean loss in nats per token."""
        x = self.wte(idx)
        if self.wpe is not None:
            x = x + self.wpe.weight[: idx.size(1)]
        if "untied" in self.changes:
            x = F.rms_norm(x, x.shape[-1:])
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if "cap" in self.changes:
            logits = CAP * torch.tanh(logits / CAP)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_optimizer(model: GPT, rates: Rates) -> torch.optim.Optimizer:
    """Make AdamW, or Muon for the matrices in the blocks and AdamW for the rest."""
    named = dict(model.named_parameters())
    matrices = [p for name, p in named.items() if name.startswith("h.") and p.dim() == 2]
    blocks = {"params": matrices, "lr": rates.adamw}
    if "muon" in model.changes:
        blocks |= {"lr": rates.muon, "muon_momentum": 0.95}
    heads = [p for name, p in named.items() if name in ("wpe.weight", "lm_head.weight")]
    groups = [
        blocks,
        {"params": [model.wte.weight], "lr": rates.adamw * rates.table},
        {"params": heads, "lr": rates.adamw},
        {"params": [p for p in named.values() if p.dim() == 1], "weight_decay": 0.0},
    ]
    used = [group for group in groups if group["params"]]
    return Muon(used, lr=rates.adamw, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def share(step: int, steps: int, changes: frozenset[str]) -> float:
    """Return the rate of a step as a share of the peak, after a linear warm-up.

    It falls on half a cosine to a tenth, or stays constant and then falls on a line to zero.
    """
    warmup = round(WARMUP * steps)
    if step < warmup:
        return (step + 1) / warmup
    if "linear" in changes:
        return min(1.0, (steps - step) / (DECAY * steps))
    progress = (step - warmup) / (steps - 1 - warmup)
    return 0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2


def train(
    size: Size,
    changes: Iterable[str],
    rates: Rates,
    seed: int,
    steps: int | None = None,
) -> tuple[float, list[float]]:
    """Train a model on the letters of the plays.

    Args:
        size: Shape of the model.
        changes: Names from `CHANGES`.
        rates: Peak learning rates.
        seed: Seed of the weights and of the batches.
        steps: Number of steps, if it isn't the size's own.

    Returns:
        The loss on held-out plays [nats per letter], and the mean training loss of each tenth.
    """
    ids, vocab_size = letters()
    torch.manual_seed(seed)
    model = GPT(size, vocab_size, changes)
    optimizer = make_optimizer(model, rates)
    peaks = [group["lr"] for group in optimizer.param_groups]
    generator = torch.Generator().manual_seed(seed)
    columns, losses = torch.arange(BLOCK + 1), []
    steps = steps or size.steps
    for step in range(steps):
        starts = torch.randint(len(ids) - HELD_OUT - BLOCK, (ROWS, 1), generator=generator)
        rows = ids[starts + columns]
        loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * share(step, steps, model.changes)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    tenths = torch.tensor(losses[: steps // 10 * 10]).view(10, -1).mean(1)
    return held_out_loss(model), tenths.tolist()


@torch.no_grad()
def held_out_loss(model: GPT) -> float:
    """Return the loss on held-out plays, in nats per letter."""
    ids, _ = letters()
    starts = torch.arange(len(ids) - HELD_OUT, len(ids) - BLOCK, 1200)
    rows = ids[starts[:, None] + torch.arange(BLOCK + 1)]
    return model(rows[:, :-1], rows[:, 1:]).item()


# Runs


@dataclass(frozen=True)
class Pair:
    """A change that was tried on a recipe, with the same seeds before and after.

    Attributes:
        change: Short name of the change.
        base: Short names of the changes that the recipe has without it.
        rates: Peak rates with the change.
        before: Losses without the change [nats per letter], one per seed.
        after: Losses with it, one per seed.
        kept: Whether the recipe kept it.
    """

    change: str
    base: tuple[str, ...]
    rates: Rates
    before: Sequence[float]
    after: Sequence[float]
    kept: bool

    @property
    def differences(self) -> list[float]:
        """Loss with the change minus loss without it, by seed; negative is better."""
        return [after - before for before, after in zip(self.before, self.after, strict=True)]

    @property
    def mean(self) -> float:
        """Mean of the differences."""
        return sum(self.differences) / len(self.differences)

    @property
    def half_width(self) -> float:
        """Half the width of the mean's 95 % interval, by the t-test's assumption."""
        return T_95 * statistics.stdev(self.differences) / len(self.differences) ** 0.5

    @property
    def p(self) -> float:
        """The p-value of a paired t-test."""
        return paired_p_value(self.differences)

    @property
    def passes(self) -> bool:
        """Whether the rule keeps the change. Simpler norms stay unless it says that they hurt."""
        is_sure, helps = self.p < LEVEL, self.mean < 0
        return helps or not is_sure if self.change == "bare" else helps and is_sure


def recorded() -> dict[str, Any]:
    """Return the runs that data/make_today_runs.py has recorded."""
    return json.loads((DATA / "today_runs.json").read_text(encoding="utf-8"))


def losses(
    runs: dict[str, Any],
    size: str,
    changes: Sequence[str],
    steps: int | None = None,
    first_seed: int = 0,
) -> list[float]:
    """Return the final losses of a recipe from five seeds.

    Args:
        runs: As `recorded` returns them.
        size: Name of the size.
        changes: Short names of the recipe's changes, in their order.
        steps: Number of steps, if it isn't the size's own.
        first_seed: First of the five seeds.
    """
    return [row["loss"] for row in five(runs, size, changes, steps, first_seed)]


def five(
    runs: dict[str, Any],
    size: str,
    changes: Sequence[str],
    steps: int | None = None,
    first_seed: int = 0,
) -> list[dict[str, Any]]:
    """Return the rows of a recipe's runs from five seeds."""
    steps, seeds = steps or SIZES[size].steps, range(first_seed, first_seed + 5)
    rows = [row for row in rows_of(runs, size, changes) if row["steps"] == steps]
    return sorted((row for row in rows if row["seed"] in seeds), key=lambda row: row["seed"])


def tenths(runs: dict[str, Any], size: str, changes: Sequence[str]) -> list[list[float]]:
    """Return the mean training losses of each tenth of the full-length runs, one row per seed."""
    return [row["tenths"] for row in five(runs, size, changes)]


def rates(runs: dict[str, Any], size: str, changes: Sequence[str]) -> Rates:
    """Return the peak rates of a recipe."""
    return rates_of(five(runs, size, changes)[0])


def sweep(runs: dict[str, Any], size: str, changes: Sequence[str]) -> dict[Rates, float]:
    """Return the mean losses of the tuning seeds, by the rates."""
    found: dict[Rates, list[float]] = {}
    for row in rows_of(runs, size, changes):
        if row["seed"] in runs["tuning_seeds"]:
            found.setdefault(rates_of(row), []).append(row["loss"])
    return {chosen: sum(values) / len(values) for chosen, values in found.items()}


def by_seed(runs: dict[str, Any], size: str, changes: Sequence[str], adamw: float) -> list[float]:
    """Return the losses of the tuning seeds at one rate of AdamW."""
    rows = (row for row in rows_of(runs, size, changes) if row["adamw"] == adamw)
    return [row["loss"] for row in rows if row["seed"] in runs["tuning_seeds"]]


def rates_of(row: dict[str, Any]) -> Rates:
    """Return the peak rates of a recorded run."""
    return Rates(row["adamw"], row["muon"], row["table"])


def rows_of(runs: dict[str, Any], size: str, changes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a recipe at a size."""
    wanted = size, list(changes)
    return [row for row in runs["runs"] if (row["size"], row["changes"]) == wanted]


def pairs(runs: dict[str, Any], size: str) -> list[Pair]:
    """Return the pairs of the path whose runs are recorded, in its order."""
    found = []
    for step in runs["path"]:
        base, first = tuple(step["base"]), step["first_seed"] if size == "small" else 0
        tried = (*base, step["change"])
        before, after = (losses(runs, size, c, first_seed=first) for c in (base, tried))
        if len(before) == len(after) == 5:
            chosen = rates(runs, size, tried)
            found.append(Pair(step["change"], base, chosen, before, after, step["kept"]))
    return found


def names(found: Sequence[Pair], long: Mapping[str, str]) -> list[str]:
    """Return a name for each pair, which also tells the two trials of a change apart."""
    tried, told = [pair.change for pair in found], []
    for place, change in enumerate(tried):
        trial = ("first", "second")[tried[:place].count(change)]
        told.append(long[change] + f", {trial} trial" * (tried.count(change) > 1))
    return told


def crossed(runs: dict[str, Any], size: str) -> dict[tuple[bool, float], list[float]]:
    """Return the losses of the recipes before and after QK-norm, each at both of their rates.

    Returns:
        Losses of the seeds 0 to 4, by whether the recipe has QK-norm and by AdamW's rate.
    """
    base = next(tuple(step["base"]) for step in runs["path"] if step["change"] == "qk_norm")
    found = {}
    for changes in (base, (*base, "qk_norm")):
        others = [row for row in runs["crossed"] if row["size"] == size]
        others = [row for row in others if row["changes"] == list(changes)]
        for rows in (five(runs, size, changes), sorted(others, key=lambda row: row["seed"])):
            place = "qk_norm" in changes, rows[0]["adamw"]
            found[place] = [row["loss"] for row in rows]
    return dict(sorted(found.items()))


def sides(corners: Mapping[tuple[bool, float], Sequence[float]]) -> dict[str, Pair]:
    """Return what the norm and the rate do alone, from what `crossed` returns."""
    low, high = sorted({rate for _, rate in corners})
    steps = {
        f"the norm, at rate {low}": ((False, low), (True, low)),
        f"the norm, at rate {high}": ((False, high), (True, high)),
        "the rate, without the norm": ((False, low), (False, high)),
        "the rate, with the norm": ((True, low), (True, high)),
        "both": ((False, low), (True, high)),
    }
    return {
        name: Pair(name, (), Rates(end[1]), corners[start], corners[end], kept=False)
        for name, (start, end) in steps.items()
    }


def recipe(runs: dict[str, Any]) -> tuple[str, ...]:
    """Return the changes that were kept."""
    return tuple(step["change"] for step in runs["path"] if step["kept"])


def paired_p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of a t-test on five differences, against a mean of 0.

    With four degrees of freedom, Student's distribution has a closed form (Student 1908). With
    x = t²/4 and s = sqrt(x / (1 + x)), a |t| as large or larger has the chance
    1 - s (3 - s²) / 2. Differences that are all 0 have a p-value of 1.

    Raises:
        ValueError: If there aren't five differences.
    """
    if len(differences) != 5:
        raise ValueError(f"{len(differences)} differences, but the formula is for 5")
    d = torch.tensor(differences, dtype=torch.float64)
    if not d.any():
        return 1.0
    x = 5 * d.mean() ** 2 / d.var() / 4
    s = (x / (1 + x)).sqrt()
    return (1 - s * (3 - s**2) / 2).item()


def told(p: float, digits: int = 4) -> str:
    """Return "p = 0.0123", or "p < 0.0001" for a p-value that would be rounded to 0."""
    return f"p = {p:.{digits}f}" if p >= 10**-digits else f"p < {10**-digits:.{digits}f}"


def wrong_sides(before: Sequence[float], after: Sequence[float]) -> tuple[int, int]:
    """Count the pairs of single runs whose difference has another sign than the mean's.

    Returns:
        The count, and the number of pairs of a run before with a run after.
    """
    mean = sum(after) - sum(before)
    found = [(b - a) * mean >= 0 for a, b in itertools.product(after, before)]
    return sum(found), len(found)
