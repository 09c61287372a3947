"""Other answers to the exercises of the room compute."""

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import torch

from cs336_course.pages.compute.exercises import WHOLE, Offer, blames, gaps
from cs336_course.pages.compute.story import Operation
from cs336_course.shared.roofline import roofline


def by_roofline(operations: list[Operation], peak: float, bandwidth: float) -> list[Any]:
    """Divide by the speed of the roofline."""
    lost, least = defaultdict(list), []
    for op in operations:
        seconds = op.work.flops / roofline(op.work.intensity, peak, bandwidth)
        least.append(seconds)
        lost[op.kind].append(op.seconds - seconds)
    return [np.float64(np.sum(least)), sorted(lost, key=lambda kind: -sum(lost[kind]))[0]]


def by_counter(operations: list[Operation], peak: float, bandwidth: float) -> tuple[Any, str]:
    """Let an operator that is faster than its roofline lose nothing."""
    lost, least = Counter[str](), torch.tensor(0.0, dtype=torch.float64)
    for op in reversed(operations):
        seconds = max(op.work.flops / peak, op.work.bytes / bandwidth)
        least += seconds
        lost[op.kind] += max(0, op.seconds - seconds)  # type: ignore[assignment]
    return least, lost.most_common(1)[0][0]


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
    "step_gap": [
        blames(lambda ops, best: sum(gaps(ops, best))),
        by_roofline,
        by_counter,
    ],
    "cheapest_plan": [
        by_loop,
        (WHOLE, "-int(-gpu_seconds // (days * 86_400))"),
        ("return gpu, gpus, dollars", "return [gpu, gpus, dollars]"),
    ],
}
REFUSED = {
    "step_gap": [
        "from itertools import groupby\n"
        "def explain(operations, peak, bandwidth):\n"
        "    least, lost = 0.0, {}\n"
        "    for kind, ops in groupby(operations, key=lambda op: op.kind):\n"
        "        for op in ops:\n"
        "            at_best = max(op.work.flops / peak, op.work.bytes / bandwidth)\n"
        "            least += at_best\n"
        "            lost[kind] = op.seconds - at_best\n"
        "    return least, max(lost, key=lost.get)\n",
    ],
}
