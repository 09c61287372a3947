"""Scaling laws and the best model for a budget, and the dollars of tokens on rented devices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cs336_lib.accounting import (
    Architecture,
    decode_flops,
    forward_flops_per_token,
    kv_cache_bytes,
    matmul_parameters,
    train_flops_per_token,
)
from cs336_lib.config import UserError
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json
from cs336_lib.system.datasheets import Device


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


def isoflop(listed: Sequence[ScalingRun]) -> list[Optimum]:
    """Fit a parabola to the losses of each budget over the logarithm of the model's size.

    This is approach 2 of Hoffmann et al. (2022, section 3.2).

    Raises:
        UserError: If a budget has fewer than three sizes, or its parabola has no lowest point.
    """
    found = []
    for budget in sorted({run.budget for run in listed}):
        these = [run for run in listed if run.budget == budget]
        sizes = [run.parameters for run in these]
        if len(set(sizes)) < 3:
            raise UserError(f"budget {budget:g}: at least 3 sizes expected")
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


def size_exponent(listed: Sequence[ScalingRun]) -> float:
    """Return the exponent of the best model size as a power of the budget."""
    optima = isoflop(listed)
    return power_law([o.budget for o in optima], [o.parameters for o in optima])[0]


def exponent_interval(listed: Sequence[ScalingRun], rounds: int = 500) -> tuple[float, float]:
    """Return a 95% bootstrap interval of `size_exponent`.

    Each round draws the runs of each budget again with replacement. A round is repeated if a budget
    has no parabola with a minimum.
    """
    random, budgets = np.random.default_rng(0), sorted({run.budget for run in listed})
    groups = [[run for run in listed if run.budget == budget] for budget in budgets]
    exponents: list[float] = []
    while len(exponents) < rounds:
        drawn = [group[i] for group in groups for i in random.integers(len(group), size=len(group))]
        try:
            exponents.append(size_exponent(drawn))
        except UserError:
            continue
    low, high = np.quantile(exponents, (0.025, 0.975))
    return float(low), float(high)


MFU = 0.4  # of the peak, in training and prompts; Llama 3 405B had 0.38 to 0.43 (2024, table 4)
BANDWIDTH_SHARE = 0.7  # of the datasheet's, in decoding; gpt-fast's README states 0.69 of an A100's
BYTES = 2  # of a weight and of a number in the KV cache


@dataclass(frozen=True)
class Rental:
    """Devices that share a model, rented at a price in dollars per device and hour."""

    device: Device
    price: float
    devices: int = 1

    @property
    def flops(self) -> float:
        """FLOP/s that the program reaches on all devices, in bf16."""
        return self.devices * MFU * self.device.peak_flops["bf16"]

    @property
    def bandwidth(self) -> float:
        """Bytes per second that the program reads on all devices."""
        return self.devices * BANDWIDTH_SHARE * self.device.bandwidth

    def dollars(self, seconds: float) -> float:
        """Return the dollars for `seconds` of all devices."""
        return seconds * self.devices * self.price / 3600

    def per_million(self, seconds: float) -> float:
        """Return the dollars for a million tokens that take `seconds` each."""
        return self.dollars(1e6 * seconds)


def training_cost(a: Architecture, rental: Rental, seq: int) -> float:
    """Return the dollars per million tokens of training on sequences of `seq` tokens."""
    return rental.per_million(train_flops_per_token(a, seq, "palm") / rental.flops)


def prefill_cost(a: Architecture, rental: Rental, seq: int) -> float:
    """Return the dollars per million tokens of prompts of `seq` tokens, limited by compute."""
    return rental.per_million(forward_flops_per_token(a, seq, "palm") / rental.flops)


def decode_seconds(a: Architecture, rental: Rental, users: int, context: int) -> float:
    """Return the seconds of a decoding step of a dense model, which makes a token for each user.

    The step reads the weights once, but for the lookup in the embedding, and the KV cache of every
    user. It takes as long as the slower of memory and compute (Pope et al. 2022, arXiv 2211.05102,
    section 2).
    """
    read = BYTES * matmul_parameters(a) + users * kv_cache_bytes(a, context, BYTES)
    return max(read / rental.bandwidth, users * decode_flops(a, context) / rental.flops)


def decode_cost(a: Architecture, rental: Rental, users: int, context: int) -> float:
    """Return the dollars per million tokens decoded. Arguments are those of `decode_seconds`."""
    return rental.per_million(decode_seconds(a, rental, users, context) / users)
