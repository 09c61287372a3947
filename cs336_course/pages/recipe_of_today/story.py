"""Small GPTs that differ from GPT-2 by a set of changes, and their recorded runs in pairs."""

import itertools
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cs336_course.shared import given_parts
from cs336_course.shared.letter_gpt import letters
from cs336_lib.data.corpus import DATA

BLOCK, N_LAYER, HEAD = 64, 2, 12  # letters in a window, blocks, and width of a head
HELD_OUT = 400_000  # letters at the end of the plays, for the loss at the end of a run
WARMUP, DECAY = 0.05, 0.6  # shares of the steps
MOMENTUM = 0.95
LEVEL = 0.05
SEEDS, TUNING = range(8), range(100, 103)

# By their short names, in the order of the notebook's sections
CHANGES = {
    "rope": "RoPE",
    "qk_norm": "QK-norm",
    "relu2": "ReLU²",
    "untied": "a head of its own",
    "fan_in": "first weights of 1/√inputs",
    "zero": "blocks that add zero at first",
    "muon": "Muon",
    "to_zero": "rates down to 0",
    "constant": "constant, then a line",
}
# Controls: in place of "muon", Adam's directions as long as Muon's step; and beside "qk_norm",
# scores up to 8, as GPT-2's heads of 64 numbers would have them
CONTROL, SHARP = "control", "sharp"


@dataclass(frozen=True)
class Setting:
    """Width of a model, letters in a batch, and steps of a run."""

    width: int
    batch: int
    steps: int


SETTINGS = {
    f"width {setting.width}, batch {setting.batch}": setting
    for setting in (Setting(48, 256, 150), Setting(24, 256, 150), Setting(48, 1024, 150))
}
BASE = next(iter(SETTINGS))


@dataclass(frozen=True)
class Rates:
    """Peak learning rates of AdamW, and of the matrices in the blocks if they have their own."""

    adamw: float
    blocks: float = 0.0


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


class GPT:
    """GPT-2 with a set of changes, trained with several seeds at once; without changes, it's GPT-2.

    A weight has a first axis `models`, and all weights are views of one leaf, `flat`.

    Args:
        width: Width of the residual stream.
        changes: Names from `CHANGES`.
        seeds: Seed of the first weights of each model.
    """

    def __init__(self, width: int, changes: Iterable[str], seeds: Sequence[int]):
        self.changes, vocab_size = frozenset(changes), letters()[1]
        self.shapes: dict[str, tuple[int, ...]] = {"wte": (vocab_size, width)}
        if "rope" not in self.changes:
            self.shapes["wpe"] = BLOCK, width
        if "untied" in self.changes:
            self.shapes["lm_head"] = vocab_size, width
        for layer in range(N_LAYER):
            for name, rows, columns in (
                ("attn.c_attn", 3 * width, width),
                ("attn.c_proj", width, width),
                ("mlp.c_fc", 4 * width, width),
                ("mlp.c_proj", width, 4 * width),
            ):
                self.shapes[f"h.{layer}.{name}.weight"] = rows, columns
                self.shapes[f"h.{layer}.{name}.bias"] = (rows,)
        for name in (*(f"h.{i}.ln_{j}" for i in range(N_LAYER) for j in (1, 2)), "ln_f"):
            self.shapes[f"{name}.weight"] = self.shapes[f"{name}.bias"] = (width,)
        self.matrices = [name for name, shape in self.shapes.items() if len(shape) == 2]
        self.flat = torch.stack([self.first_weights(seed) for seed in seeds]).requires_grad_()

    def first_weights(self, seed: int) -> Tensor:
        """Draw GPT-2's initial weights, each matrix by a seed that its name gives.

        So a matrix has the same draws in each variant, times a std that a change may alter.
        """
        found = []
        for name, shape in self.shapes.items():
            if len(shape) == 1:
                found.append(torch.full(shape, float(name.endswith("weight"))))
                continue
            fits = name.startswith("h.") and "fan_in" in self.changes
            std = shape[1] ** -0.5 if fits else 0.02
            if "c_proj" in name:
                std = 0.0 if "zero" in self.changes else std / math.sqrt(2 * N_LAYER)
            own = torch.Generator().manual_seed(1000 * zlib.crc32(name.encode()) + seed)
            found.append(std * torch.randn(shape, generator=own).flatten())
        return torch.cat(found)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views (models, ...) of weights or gradients by their names."""
        parts = flat.split([math.prod(shape) for shape in self.shapes.values()], dim=1)
        pairs = zip(self.shapes.items(), parts, strict=True)
        return {name: part.unflatten(1, shape) for (name, shape), part in pairs}

    def __call__(
        self, idx: Int[Tensor, "models batch seq"], targets: Int[Tensor, "models batch seq"]
    ) -> Float[Tensor, " models"]:
        """Return each model's mean loss in nats per token."""
        p = self.named(self.flat)
        models, batch, seq = idx.shape
        vocab_size, width = self.shapes["wte"]
        first = vocab_size * torch.arange(models)[:, None, None]
        x = F.embedding(idx + first, p["wte"].flatten(0, 1))
        if "wpe" in p:
            x = x + p["wpe"][:, None, :seq]
        x = x.flatten(1, 2)

        def norm(x: Tensor, name: str) -> Tensor:
            gains, biases = (p[f"{name}.{part}"][:, None] for part in ("weight", "bias"))
            return F.layer_norm(x, (width,)) * gains + biases

        def linear(x: Tensor, name: str) -> Tensor:
            return torch.baddbmm(p[f"{name}.bias"][:, None], x, p[f"{name}.weight"].mT)

        for layer in (f"h.{i}" for i in range(N_LAYER)):
            y = linear(norm(x, f"{layer}.ln_1"), f"{layer}.attn.c_attn")
            x = x + linear(self.attend(y, batch), f"{layer}.attn.c_proj")
            y = linear(norm(x, f"{layer}.ln_2"), f"{layer}.mlp.c_fc")
            squared = "relu2" in self.changes
            y = y.relu().square() if squared else F.gelu(y, approximate="tanh")
            x = x + linear(y, f"{layer}.mlp.c_proj")
        logits = norm(x, "ln_f") @ p.get("lm_head", p["wte"]).mT
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view(models, -1).mean(1)

    def attend(self, qkv: Float[Tensor, "models tokens three_width"], batch: int) -> Tensor:
        """Return what the heads read (models, tokens, width)."""
        pattern = "models (batch seq) (three head dim) -> three (models batch) head seq dim"
        q, k, v = rearrange(qkv, pattern, three=3, batch=batch, dim=HEAD)
        if "qk_norm" in self.changes:
            q, k = (F.rms_norm(t, t.shape[-1:]) for t in (q, k))
            q = q * (8 / HEAD**0.5 if SHARP in self.changes else 1)
        if "rope" in self.changes:
            q, k = rotate(q), rotate(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        pattern = "(models batch) head seq dim -> models (batch seq) (head dim)"
        return rearrange(y, pattern, batch=batch)


@cache
def muon_updates() -> Any:
    """Return the function that the notebook's cell defines."""
    names = {"Tensor": Tensor, "math": math}
    parts = ("orthogonalized", "muon_updates")
    return given_parts.run("side_trips/recipe_of_today", *parts, names=names)["muon_updates"]


class Optimizer:
    """AdamW, with the notebook's Muon for the matrices in the blocks if the recipe has it.

    With the control's changes, these matrices move in Adam's directions, and the RMS of a step is
    that of Muon's.

    Args:
        model: The models.
        rates: Peak rates of each model.
    """

    def __init__(self, model: GPT, rates: Sequence[Rates]):
        self.model, self.has_muon = model, bool(model.changes & {"muon", CONTROL})
        self.blocks = [name for name in model.matrices if name.startswith("h.")]
        self.rate, self.decay = torch.zeros_like(model.flat), torch.zeros_like(model.flat)
        self.means, self.squares = torch.zeros(2, *model.flat.shape)
        self.momenta: dict[tuple[int, ...], Tensor] = {}
        self.rate += torch.tensor([each.adamw for each in rates])[:, None]
        views = model.named(self.rate)
        for name, decay in model.named(self.decay).items():
            decay.fill_(0.1 if decay.dim() == 3 else 0.0)
            if rates[0].blocks and name in self.blocks:
                views[name].copy_(torch.tensor([each.blocks for each in rates])[:, None, None])

    @torch.no_grad()
    def step(self, number: int, share: float) -> None:
        """Clip the gradients of each model at a norm of 1, and make step `number`, from 1."""
        flat, g = self.model.flat, self.model.flat.grad
        assert g is not None
        g *= (1 / (g.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1)
        self.means.lerp_(g, 0.1)
        self.squares.lerp_(g.square(), 0.05)
        roots = (self.squares / (1 - 0.95**number)).sqrt_().add_(1e-8)
        update = self.means / (1 - 0.9**number) / roots
        if self.has_muon:
            self.orthogonalize(g, roots, update)
        flat.mul_(1 - share * self.rate * self.decay).sub_(share * self.rate * update)
        flat.grad = None

    def orthogonalize(self, g: Tensor, roots: Tensor, update: Tensor) -> None:
        """Write Muon's updates of the matrices, those of a shape together."""
        views = [self.model.named(t) for t in (g, roots, update)]
        by_shape: dict[tuple[int, ...], list[list[Tensor]]] = {}
        for name in self.blocks:
            rows, columns = self.model.shapes[name]
            parts = [t[name].chunk(3 if rows == 3 * columns else 1, dim=1) for t in views]
            for three in zip(*parts, strict=True):
                by_shape.setdefault(three[0].shape, []).append(list(three))
        for shape, found in by_shape.items():
            gradients, scales = (torch.cat([three[i] for three in found]) for i in (0, 1))
            means = self.momenta.setdefault(shape, torch.zeros_like(gradients))
            updates = muon_updates()(gradients, means, MOMENTUM)
            if CONTROL in self.model.changes:
                adam = gradients.lerp(means, MOMENTUM) / scales
                lengths = [t.norm(dim=(1, 2), keepdim=True) for t in (updates, adam)]
                updates = adam * lengths[0] / (lengths[1] + 1e-12)  # 0 in a first step
            for three, moved in zip(found, updates.split(shape[0]), strict=True):
                three[2].copy_(moved)


def share(step: int, steps: int, changes: frozenset[str]) -> float:
    """Return the rate of a step as a share of the peak, after a linear warm-up.

    It falls on half a cosine, or stays constant and then falls on a line. It ends at a tenth or 0.
    """
    warmup, end = round(WARMUP * steps), 0.0 if "to_zero" in changes else 0.1
    if step < warmup:
        return (step + 1) / warmup
    if "constant" in changes:
        height = min(1.0, (steps - step) / (DECAY * steps))
    else:
        height = (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
    return end + (1 - end) * height


def train(
    setting: Setting,
    changes: Iterable[str],
    rates: Sequence[Rates],
    seeds: Sequence[int],
    steps: int = 0,
) -> tuple[list[float], list[list[float]]]:
    """Train models on the letters of the plays, all at once.

    Args:
        setting: Width, batch and steps.
        changes: Names from `CHANGES`.
        rates: Peak learning rates of each model.
        seeds: Seed of the weights and of the batches of each model.
        steps: Number of steps, if it isn't the setting's own.

    Returns:
        Each model's loss on held-out plays [nats per letter], and its mean training loss of each
        tenth.
    """
    ids, _ = letters()
    model = GPT(setting.width, changes, seeds)
    optimizer = Optimizer(model, rates)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    shape = setting.batch // BLOCK, 1
    columns, losses = torch.arange(BLOCK + 1), []
    steps = steps or setting.steps
    for step in range(steps):
        draws = [torch.randint(len(ids) - HELD_OUT - BLOCK, shape, generator=g) for g in generators]
        rows = ids[torch.stack(draws) + columns]
        loss = model(rows[..., :-1], rows[..., 1:])
        loss.sum().backward()
        optimizer.step(step + 1, share(step, steps, model.changes))
        losses.append(loss.detach())
    tenths = torch.stack(losses[: steps // 10 * 10], 1).unflatten(1, (10, -1)).mean(2)
    return held_out_losses(model), tenths.tolist()


@torch.no_grad()
def held_out_losses(model: GPT) -> list[float]:
    """Return each model's loss on held-out plays, in nats per letter."""
    ids, _ = letters()
    starts = torch.arange(len(ids) - HELD_OUT, len(ids) - BLOCK, 2400)
    rows = (ids[starts[:, None] + torch.arange(BLOCK + 1)]).expand(len(model.flat), -1, -1)
    return model(rows[..., :-1], rows[..., 1:]).tolist()


# Runs


@dataclass(frozen=True)
class Pair:
    """Two recipes at their best rates, with the same seeds.

    Attributes:
        before: Losses without the change [nats per letter], one per seed.
        after: Losses with it, one per seed.
    """

    before: Sequence[float]
    after: Sequence[float]

    @property
    def units(self) -> list[int]:
        """Loss with the change minus loss without it, by seed, in units of 0.0001 nats.

        As integers, so that their sums are exact.
        """
        pairs = zip(self.before, self.after, strict=True)
        return [round(1e4 * (after - before)) for before, after in pairs]

    @property
    def mean(self) -> float:
        """Mean of the differences [nats]; negative is better."""
        return sum(self.units) / len(self.units) / 1e4

    @property
    def p(self) -> float:
        """The p-value of the sign-flip test."""
        signs = torch.tensor(list(itertools.product((1, -1), repeat=len(self.units))))
        sums = (signs @ torch.tensor(self.units)).abs()
        return (sums >= sums[0]).double().mean().item()

    @property
    def verdict(self) -> str:
        """What the test says."""
        return ("helps" if self.mean < 0 else "hurts") if self.p < LEVEL else "can't tell"


def recorded() -> dict[str, Any]:
    """Return the runs that data/make_today_runs.py has recorded."""
    return json.loads((DATA / "today_runs.json").read_text(encoding="utf-8"))


def rows_of(runs: dict[str, Any], setting: str, changes: Iterable[str], steps: int = 0) -> list:
    """Return the rows of a recipe's runs, sorted by their seeds."""
    wanted = setting, list(changes), steps or SETTINGS[setting].steps
    rows = (row for row in runs["runs"] if (row["setting"], row["changes"], row["steps"]) == wanted)
    return sorted(rows, key=lambda row: row["seed"])


def sweep(runs: dict[str, Any], setting: str, changes: Iterable[str]) -> dict[Rates, list[float]]:
    """Return the losses of the tuning seeds by the rates."""
    found: dict[Rates, list[float]] = {}
    for row in rows_of(runs, setting, changes):
        if row["seed"] in TUNING:
            found.setdefault(Rates(row["adamw"], row["blocks"]), []).append(row["loss"])
    return dict(sorted(found.items(), key=lambda item: (item[0].adamw, item[0].blocks)))


def best(runs: dict[str, Any], setting: str, changes: Iterable[str]) -> Rates:
    """Return the rates with the lowest mean loss of the tuning seeds."""
    found = sweep(runs, setting, changes)
    return min(found, key=lambda rates: sum(found[rates]))


def eight(
    runs: dict[str, Any],
    setting: str,
    changes: Iterable[str],
    steps: int = 0,
    rates: Rates | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of a recipe's eight seeds, at its best rates or others."""
    rates = rates or best(runs, setting, changes)
    rows = rows_of(runs, setting, changes, steps)
    rows = [row for row in rows if Rates(row["adamw"], row["blocks"]) == rates]
    return [row for row in rows if row["seed"] in SEEDS]


def losses(*where: Any, **which: Any) -> list[float]:
    """Return the final losses of the rows that `eight` returns."""
    return [row["loss"] for row in eight(*where, **which)]


def without(change: str) -> tuple[str, ...]:
    """Return the recipe of today without a change."""
    return tuple(name for name in CHANGES if name != change)


def left_out(runs: dict[str, Any], setting: str, change: str) -> Pair:
    """Return the recipe of today without a change, and with it, each at its best rates."""
    return Pair(*(losses(runs, setting, changes) for changes in (without(change), CHANGES)))


def ladder(runs: dict[str, Any], setting: str) -> dict[int, float]:
    """Return the recipe's mean losses by the number of steps, each with its own schedule."""
    rates, found = best(runs, setting, CHANGES), {}
    for steps in rungs(setting):
        values = losses(runs, setting, CHANGES, steps=steps, rates=rates)
        found[steps] = sum(values) / len(values)
    return found


def rungs(setting: str) -> list[int]:
    """Return the numbers of steps for which the last recipe is trained."""
    steps = SETTINGS[setting].steps
    return [round(steps * part / 24) for part in (4, 6, 12, 18, 24, 36)]


def saved(runs: dict[str, Any], setting: str, changes: Iterable[str]) -> float:
    """Return the share of the steps that the recipe of today saves against another recipe.

    It needs the steps at which the line through its ladder reaches the other's mean loss. The line
    of the last two rungs goes on beyond the last one, and a loss above the first counts as that.
    """
    values, found = losses(runs, setting, changes), ladder(runs, setting)
    loss, steps = sum(values) / len(values), list(found)
    pairs = itertools.pairwise(steps)
    low, high = next(p for p in pairs if loss >= found[p[1]] or p[1] == steps[-1])
    needed = low + (found[low] - loss) / (found[low] - found[high]) * (high - low)
    return 1 - max(needed, steps[0]) / SETTINGS[setting].steps
