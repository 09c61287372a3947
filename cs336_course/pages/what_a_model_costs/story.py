"""Fit and use scaling laws: the best model for a budget, and the critical batch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from cs336_lib.accounting import (
    Architecture,
    Convention,
    count_parameters,
    decode_flops,
    forward_flops_per_token,
    kv_cache_bytes,
    matmul_parameters,
    mlp_matrices,
    train_flops_per_token,
)
from cs336_lib.config import UserError
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json
from cs336_lib.system.datasheets import Device

Count = Literal["parameters", "non_embedding"]


@dataclass(frozen=True)
class ScalingLaw:
    """Loss of a model of N parameters after D tokens, L = e + a / N^alpha + b / D^beta.

    Attributes:
        e: Loss in nats per token that remains with any model and any amount of data.
        a: Factor of the model's term.
        b: Factor of the data's term.
        alpha: Exponent of the parameters.
        beta: Exponent of the tokens.
        source: Where the numbers come from.
    """

    e: float
    a: float
    b: float
    alpha: float
    beta: float
    source: str = ""

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the predicted loss in nats per token."""
        return self.e + self.a / parameters**self.alpha + self.b / tokens**self.beta

    @property
    def exponent(self) -> float:
        """Exponent of the best number of parameters as a power of the budget."""
        return self.beta / (self.alpha + self.beta)

    def optimum(self, flops: float) -> tuple[float, float]:
        """Return the parameters and tokens with the lowest loss for 6 N D training FLOPs.

        Hoffmann et al. (2022, equation 4) derive the formula.
        """
        ratio = self.alpha * self.a / (self.beta * self.b)
        parameters = ratio ** (1 / (self.alpha + self.beta)) * (flops / 6) ** self.exponent
        return parameters, flops / 6 / parameters


# Hoffmann et al. printed rounded exponents, and rounding 0.2849 to 0.28 matters at 1e12 tokens.
# Their optimizer also stopped too early, so Besiroglu et al. fitted the runs of figure 4 again.
FITS = {
    "hoffmann": ScalingLaw(
        *(1.69, 406.4, 410.7, 0.34, 0.28),
        source="Hoffmann et al. 2022 (arXiv 2203.15556), appendix D.2",
    ),
    "hoffmann-unrounded": ScalingLaw(
        *(1.6934, 406.4, 410.7, 0.3392, 0.2849),
        source="the TeX source of Hoffmann et al. 2022, by Besiroglu et al. 2024",
    ),
    "besiroglu": ScalingLaw(
        *(1.8172, 482.01, 2085.43, 0.3478, 0.3658),
        source="Besiroglu et al. 2024 (arXiv 2404.10102)",
    ),
}


# Runs that ship


@dataclass(frozen=True)
class ScalingRun:
    """A run of data/scaling_runs.json.

    Attributes:
        budget: Training FLOPs that were planned.
        n_layer: Number of blocks.
        n_embd: Width.
        parameters: All parameters.
        non_embedding: Parameters without token and position embeddings.
        tokens: Training tokens.
        flops: Training FLOPs by `accounting.train_flops_per_token`.
        val_loss: Validation loss in nats per token after the last step.
        command: The command that trained it.
    """

    budget: float
    n_layer: int
    n_embd: int
    parameters: int
    non_embedding: int
    tokens: int
    flops: int
    val_loss: float
    command: str


def runs() -> list[ScalingRun]:
    """Return the small runs that ship, by budget and width."""
    return [ScalingRun(**row) for row in read_json(DATA / "scaling_runs.json")["isoflop"]]


@dataclass(frozen=True)
class Optimum:
    """The lowest point of a parabola through the losses of one budget.

    Attributes:
        budget: Training FLOPs.
        parameters: Number of parameters at the lowest point.
        loss: Loss at the lowest point, in nats per token.
        parabola: Coefficients for powers 2, 1 and 0 of the natural logarithm of the parameters.
    """

    budget: float
    parameters: float
    loss: float
    parabola: tuple[float, float, float]


def isoflop(listed: Sequence[ScalingRun], count: Count = "parameters") -> list[Optimum]:
    """Fit a parabola to the losses of each budget over the logarithm of the model's size.

    This is approach 2 of Hoffmann et al. (2022, section 3.2). `count` selects which parameters are
    the model's size.

    Raises:
        UserError: If a budget has fewer than three sizes, or its parabola has no lowest point.
    """
    found = []
    for budget in sorted({run.budget for run in listed}):
        these = [run for run in listed if run.budget == budget]
        sizes = [getattr(run, count) for run in these]
        if (different := len(set(sizes))) < 3:
            raise UserError(f"budget {budget:g}: {different} sizes; at least 3 expected")
        curve = np.polyfit(np.log(sizes), [run.val_loss for run in these], 2)
        second, first, constant = (float(c) for c in curve)
        if second <= 0:
            raise UserError(f"budget {budget:g}: the losses have no minimum; add other sizes")
        middle = -first / (2 * second)
        lowest = constant - second * middle**2
        found.append(Optimum(budget, math.exp(middle), lowest, (second, first, constant)))
    return found


def power_law(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Fit y = factor * x^exponent by least squares of logarithms. Return exponent and factor."""
    exponent, constant = np.polyfit(np.log(x), np.log(y), 1)
    return float(exponent), math.exp(constant)


def size_exponent(listed: Sequence[ScalingRun], count: Count = "parameters") -> float:
    """Return the exponent of the best model size as a power of the budget."""
    optima = isoflop(listed, count)
    return power_law([o.budget for o in optima], [o.parameters for o in optima])[0]


def exponent_interval(
    listed: Sequence[ScalingRun], count: Count = "parameters", rounds: int = 500
) -> tuple[float, float]:
    """Return a 95% bootstrap interval of `size_exponent`.

    Each round draws the runs of each budget again with replacement. A round is repeated if a budget
    has no parabola with a minimum.

    Raises:
        UserError: If the runs themselves have such a budget.
    """
    isoflop(listed, count)
    random, budgets = np.random.default_rng(0), sorted({run.budget for run in listed})
    groups = [[run for run in listed if run.budget == budget] for budget in budgets]
    exponents: list[float] = []
    while len(exponents) < rounds:
        drawn = [group[i] for group in groups for i in random.integers(len(group), size=len(group))]
        try:
            exponents.append(size_exponent(drawn, count))
        except UserError:
            continue
    low, high = np.quantile(exponents, (0.025, 0.975))
    return float(low), float(high)


HUBER = 1e-3  # residuals of log losses beyond this count linearly (Hoffmann et al. 2022, 3.3)


def fit(listed: Sequence[ScalingRun], count: Count = "parameters") -> ScalingLaw:
    """Fit a scaling law to runs by approach 3 of Hoffmann et al. (2022, section 3.3).

    L-BFGS minimizes the Huber loss of log losses from several starts. As Besiroglu et al. (2024)
    advise, the loss is a sum instead of a mean, so that the optimizer doesn't stop too early. Sizes
    and tokens are divided by their geometric means, which separates factors from exponents.
    """
    sizes = torch.tensor([getattr(run, count) for run in listed], dtype=torch.float64).log()
    tokens = torch.tensor([run.tokens for run in listed], dtype=torch.float64).log()
    losses = torch.tensor([run.val_loss for run in listed], dtype=torch.float64).log()
    size, data = sizes.mean(), tokens.mean()

    def error(p: Tensor) -> Tensor:
        terms = [p[0] - p[3] * (sizes - size), p[1] - p[4] * (tokens - data), p[2].expand_as(sizes)]
        predicted = torch.logsumexp(torch.stack(terms), dim=0)
        return torch.nn.functional.huber_loss(predicted, losses, reduction="sum", delta=HUBER)

    starts = [(alpha, beta) for alpha in (0.3, 0.6) for beta in (0.3, 0.6)]
    best = min((minimized(error, *start) for start in starts), key=lambda p: error(p).item())
    a, b, e, alpha, beta = best.tolist()
    a, b = a + alpha * size.item(), b + beta * data.item()
    return ScalingLaw(math.exp(e), math.exp(a), math.exp(b), alpha, beta)


def minimized(error: Callable[[Tensor], Tensor], alpha: float, beta: float) -> Tensor:
    """Minimize `error` from a start with these exponents."""
    p = torch.tensor([-1.0, -1.0, 0.3, alpha, beta], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [p],
        max_iter=500,
        tolerance_grad=1e-12,
        tolerance_change=1e-15,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = error(p)
        value.backward()
        return value

    optimizer.step(closure)
    return p.detach()


# Critical batch size


def gradient_noise(
    small_squared: float, big_squared: float, small: float, big: float
) -> tuple[float, float]:
    """Estimate the gradient and its noise from squared norms at two batch sizes.

    A batch of B tokens has a gradient whose expected squared norm is |G|^2 + tr(Sigma) / B, so two
    batch sizes give two equations. The estimates are unbiased (McCandlish et al. 2018, arXiv
    1812.06162, appendix A.1).

    Args:
        small_squared: Mean squared gradient norm over batches of `small` tokens.
        big_squared: Mean squared gradient norm over batches of `big` tokens.
        small: Tokens or sequences in a small batch.
        big: Tokens or sequences in a big batch, more than `small`.

    Returns:
        |G|^2 and tr(Sigma). The ratio tr(Sigma) / |G|^2 estimates the critical batch size, in the
        unit of `small` and `big`.
    """
    if not big > small > 0:
        raise UserError(f"batches of {small:g} and {big:g}; the second must be larger")
    squared = (big * big_squared - small * small_squared) / (big - small)
    return squared, (small_squared - big_squared) / (1 / small - 1 / big)


@dataclass(frozen=True)
class Rental:
    """Rented devices, and how much of their datasheet a program reaches.

    The defaults are near published values. Llama 3 405B was trained at an MFU of 0.38 to 0.43
    (Llama team 2024, table 4), and gpt-fast's README states 0.69 of an A100's bandwidth.

    Attributes:
        device: The datasheet.
        price: Dollars per device and hour.
        devices: Number of devices that share the model.
        mfu: Fraction of the peak FLOP/s in training and prefill.
        convention: FLOPs that `mfu` counts (see `accounting`).
        bandwidth_share: Fraction of the memory bandwidth in decoding.
        dtype: Precision of the matmuls.
    """

    device: Device
    price: float
    devices: int = 1
    mfu: float = 0.4
    convention: Convention = "palm"
    bandwidth_share: float = 0.7
    dtype: str = "bf16"

    @property
    def flops(self) -> float:
        """FLOP/s that the program reaches on all devices."""
        return self.devices * self.mfu * self.device.peak_flops[self.dtype]

    @property
    def bandwidth(self) -> float:
        """Bytes per second that the program reads on all devices."""
        return self.devices * self.bandwidth_share * self.device.bandwidth

    def per_million(self, seconds: float) -> float:
        """Return the dollars for a million tokens that take `seconds` each."""
        return 1e6 * seconds * self.devices * self.price / 3600


def training_cost(a: Architecture, rental: Rental, seq: int) -> float:
    """Return the dollars per million tokens of training on sequences of `seq` tokens."""
    flops = train_flops_per_token(a, seq, rental.convention)
    return rental.per_million(flops / rental.flops)


def prefill_cost(a: Architecture, rental: Rental, seq: int) -> float:
    """Return the dollars per million tokens of prompts of `seq` tokens, limited by compute."""
    flops = forward_flops_per_token(a, seq, rental.convention)
    return rental.per_million(flops / rental.flops)


def weight_bytes(a: Architecture, batch: int, bytes_per_weight: float = 2) -> float:
    """Return the expected bytes of weights that one decoding step reads.

    The lookup in the embedding isn't counted. With a mixture of experts, a token chooses `n_active`
    of `n_expert` experts, so a batch of independent choices leaves (1 - n_active / n_expert)^batch
    of them unread.
    """
    if not a.n_expert:
        return bytes_per_weight * matmul_parameters(a)
    unread = (1 - a.n_active / a.n_expert) ** batch
    experts = (a.n_expert * (1 - unread) - a.n_active) * mlp_matrices(a, a.expert_width)
    return bytes_per_weight * (matmul_parameters(a) + a.expert_layers * experts)


def decode_seconds(
    a: Architecture, rental: Rental, batch: int, context: int, bytes_per_value: float = 2
) -> float:
    """Return the seconds of a decoding step, which makes one token for each sequence.

    The step reads the weights once, and the KV cache of every sequence. It takes as long as the
    slower of memory and compute (Pope et al. 2022, arXiv 2211.05102, section 2).

    Args:
        a: The model.
        rental: The devices.
        batch: Sequences that are decoded together.
        context: Tokens in the KV cache of each sequence.
        bytes_per_value: Bytes of a weight and of a number in the KV cache.

    Raises:
        UserError: If weights and caches don't fit into the devices' memory.
    """
    cache = batch * kv_cache_bytes(a, context, bytes_per_value)
    stored = bytes_per_value * count_parameters(a) + cache
    room = rental.devices * rental.device.memory
    if stored > room:
        need = f"weights and caches take {stored / 1e9:.0f} GB, and the devices have"
        advice = "use more devices, or a smaller batch or context"
        raise UserError(f"{need} {room / 1e9:.0f}; {advice}")
    read = weight_bytes(a, batch, bytes_per_value) + cache
    return max(read / rental.bandwidth, batch * decode_flops(a, context) / rental.flops)


def decode_cost(
    a: Architecture, rental: Rental, batch: int, context: int, bytes_per_value: float = 2
) -> float:
    """Return the dollars per million tokens decoded. Arguments are those of `decode_seconds`."""
    return rental.per_million(decode_seconds(a, rental, batch, context, bytes_per_value) / batch)
