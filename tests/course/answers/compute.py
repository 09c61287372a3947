"""Other answers to the exercises of the room compute."""

from typing import Any

import numpy as np

from cs336_course.pages.compute.exercises import WHOLE, Offer


def by_loop(flops: float, days: float, offers: list[Offer]) -> list[Any]:
    """Keep the best offer so far."""
    best: list[Any] = []
    for offer in offers:
        seconds = flops / offer.peak / offer.mfu
        gpus = -int(-seconds / (days * 86_400) // 1)
        dollars = np.float64(offer.price * seconds / 3600)
        if gpus <= offer.free and (not best or dollars < best[2]):
            best = [offer.gpu, gpus, dollars]
    return best


RIGHT = {
    "cheapest_plan": [
        by_loop,
        (WHOLE, "-int(-gpu_seconds // (days * 86_400))"),
        ("return gpu, gpus, dollars", "return [gpu, gpus, dollars]"),
    ],
}
