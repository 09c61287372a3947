"""Offers of rented GPUs, with invented prices."""

from typing import NamedTuple

from cs336_lib.system.hardware import DATASHEET


class Offer(NamedTuple):
    """GPUs that can be rented together.

    Attributes:
        name: Name of the offer.
        gpus: Number of GPUs.
        peak: Peak FLOP/s of one GPU.
        mfu: Share of the peak that a training run reaches.
        price: Dollars per hour of one GPU.
    """

    name: str
    gpus: int
    peak: float
    mfu: float
    price: float


A100, H100, B200 = (DATASHEET[key].peak_flops["bf16"] for key in ("a100", "h100", "b200"))
OFFERS = (
    Offer("8 A100", 8, A100, 0.55, 1.50),
    Offer("1 H100", 1, H100, 0.45, 3.00),
    Offer("8 H100", 8, H100, 0.41, 3.00),
    Offer("8 B200", 8, B200, 0.35, 6.00),
)
