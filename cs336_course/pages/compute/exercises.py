"""The exercise of notebook 04 on the price of a run."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cs336_course.engine import Case, Exercise
from cs336_course.engine.several_results import one_of

__all__ = ["math"]  # the printed solution uses it
NOTEBOOK = "04_compute"

PLANS = ("the GPU", "the number of GPUs", "the dollars")


@dataclass(frozen=True)
class Offer:
    """GPUs that a cloud rents out, and the MFU that your trainer reaches on them.

    Attributes:
        gpu: Name of the GPU.
        peak: Its FLOP/s.
        mfu: Model FLOPs utilization, as a fraction.
        price: Dollars of one GPU for an hour.
        free: Number of GPUs that you can rent.
    """

    gpu: str
    peak: float
    mfu: float
    price: float
    free: int


# What a trainer might find. In the first market, each mistake ends in another offer or number.
MARKETS = (
    (
        1e23,
        30,
        (
            Offer("A100", 312e12, 0.5, 1.2, 2000),  # the lowest price an hour
            Offer("H100", 989.5e12, 0.4, 2.0, 512),  # the cheapest FLOPs
            Offer("B200", 2250e12, 0.25, 4.6, 512),  # the highest peak
            Offer("H200", 989.5e12, 0.45, 2.2, 64),  # cheaper still, but too few of them
            Offer("TPU", 918e12, 0.55, 2.9, 512),  # the highest MFU
        ),
    ),
    (
        1e21,
        2,
        (
            Offer("B200", 2250e12, 0.3, 4.0, 64),
            Offer("H100", 989.5e12, 0.4, 2.5, 64),
        ),
    ),
    (
        6.3e24,
        150,
        (
            Offer("A100", 312e12, 0.5, 0.8, 4096),
            Offer("H100", 989.5e12, 0.4, 2.4, 2048),
            Offer("B200", 2250e12, 0.3, 5.0, 1024),
        ),
    ),
    (1e20, 1, (Offer("V100", 125e12, 0.3, 0.5, 100),)),
    (0.5e14 * 86_400 * 10 * 3, 10, (Offer("A40", 1e14, 0.5, 1.0, 3),)),
)


def plans() -> Iterator[Case]:
    """Yield the three results that are asked for."""
    for name in PLANS:
        yield Case(name)


def markets() -> Iterator[Case]:
    """Yield a run with its deadline and the offers."""
    for flops, days, offers in MARKETS:
        names = ", ".join(offer.gpu for offer in offers)
        what = f"{flops:g} FLOPs in {days} days with {names}"
        yield Case(what, flops=flops, days=days, offers=list(offers))


KEPT_OFFERS = "if gpus <= offer.free:"
GPU_SECONDS = "flops / (offer.peak * offer.mfu)"
DOLLARS = "gpu_seconds / 3600 * offer.price"
WHOLE = "math.ceil(gpu_seconds / (days * 86_400))"
SMALLEST = "gpu, gpus, dollars = min(plans, key=lambda plan: plan[2])"

cheapest_plan = Exercise(
    NOTEBOOK,
    "cheapest_plan",
    plans,
    observe=one_of(PLANS, markets),
    answers=("plan",),
    given={"Offer": Offer},
    is_quiz=True,
    smaller="A GPU does 100 useful FLOPs a second, and the run has 1,000. How many GPU seconds is "
    "that? Does a second GPU change the bill?",
    says={"form": 'return three results, such as ("H100", 8, 1200.0).'},
    wrong={
        "the GPU with the lowest price an hour isn't the cheapest; compare what the whole run "
        "costs on each.": ("plan[2])", "next(o.price for o in offers if o.gpu == plan[0]))"),
        "the fastest GPU, of which you need the fewest, isn't the cheapest; compare what the whole "
        "run costs on each.": [
            ("plan[2])", "-next(o.peak * o.mfu for o in offers if o.gpu == plan[0]))"),
            ("plan[2])", "plan[1])"),
        ],
        "your GPU is the cheapest, but there aren't enough of them to end in time.": (
            KEPT_OFFERS,
            "if True:",
        ),
        "that is the most expensive plan.": ("min(plans", "max(plans"),
        "you divide by the peak alone; a GPU does only the MFU's share of it.": (
            GPU_SECONDS,
            "flops / offer.peak",
        ),
        "that number of GPUs isn't whole; round up, or the run ends too late.": (
            WHOLE,
            "gpu_seconds / (days * 86_400)",
        ),
        "with that number of GPUs the run ends too late; round up.": [
            (WHOLE, "math.floor(gpu_seconds / (days * 86_400))"),
            (WHOLE, "round(gpu_seconds / (days * 86_400))"),
        ],
        "a GPU more than you need: if the division has no remainder, round nothing up.": (
            WHOLE,
            "int(gpu_seconds / (days * 86_400)) + 1",
        ),
        "your dollars are for GPU seconds, and the price is for an hour.": (
            DOLLARS,
            "gpu_seconds * offer.price",
        ),
        "you pay for all days until the deadline; hand the GPUs back when the run has ended.": (
            DOLLARS,
            "gpus * days * 24 * offer.price",
        ),
        "those are GPU hours; multiply them by the price.": (
            "return gpu, gpus, dollars",
            "price = next(o.price for o in offers if o.gpu == gpu)\n"
            "    return gpu, gpus, dollars / price",
        ),
        "those are the dollars of one GPU; you rent all of them.": (
            "return gpu, gpus, dollars",
            "return gpu, gpus, dollars / gpus",
        ),
    },
)
