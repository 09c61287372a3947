"""Compute what a token costs in training and in serving."""

from dataclasses import dataclass

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
from cs336_lib.system.datasheets import Device


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
