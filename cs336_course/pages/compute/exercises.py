"""Exercises of notebook 04 on FLOPs, the roofline of a step, and the price of a run."""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cs336_course.engine import Case, Exercise
from cs336_course.engine.several_results import one_of
from cs336_course.pages.compute.story import Operation
from cs336_course.shared.roofline import Work

__all__ = ["math", "pairwise"]  # printed solutions use them
NOTEBOOK = "04_compute"
KEPT = "your numbers have only the 24 bits of float32; Python's own integers are exact."
WRAPPED = "your numbers don't fit into an int32; Python's own integers have no limit."

# backward_flops


FLOPS = "2 * sum(forward) - forward[0]"
BATCH = "[2 * batch * d_in * d_out"


# step_gap

ANSWERS = ("the seconds", "the kind")

# Kind, FLOPs, bytes and milliseconds of each operator, for 1e14 FLOP/s and 2e12 B/s, so 1e10 FLOPs
# or 2e8 bytes take 0.1 ms. In the first step, each mistake about kinds finds another kind.
STEPS = (
    (
        ("matmul", 8e10, 2e8, 1.0),
        ("norms", 1e6, 2e8, 0.3),
        ("AdamW", 1e7, 4e8, 0.46),
        ("attention", 2e10, 1e8, 0.21),
        ("norms", 1e6, 2e8, 0.3),
        ("matmul", 1e10, 4e8, 0.21),
        ("loss", 1e6, 2e7, 0.1),
        ("embedding", 1e6, 2.2e8, 0.33),
        ("attention", 2e10, 1e8, 0.44),
        ("dropout", 1e6, 1e8, 0.1),
        ("norms", 1e6, 2e8, 0.2),
        ("AdamW", 1e7, 2e8, 0.14),
    ),
    (
        ("AdamW", 1e6, 1e8, 0.06),
        ("matmul", 2e10, 8e8, 0.9),
        ("matmul", 5e9, 1e7, 0.1),
        ("loss", 1e6, 2e6, 0.05),
    ),
    (  # AdamW is faster than its roofline, as with weights in a cache.
        ("embedding", 1e6, 2e8, 0.3),
        ("attention", 1e10, 1e7, 0.2),
        ("embedding", 1e6, 2e8, 0.15),
        ("matmul", 4e10, 1e8, 0.55),
        ("AdamW", 1e7, 2e9, 0.3),
        ("attention", 1e10, 1e7, 0.28),
    ),
    (("one", 3e10, 1e8, 0.7),),
    (("one", 3e10, 1e8, 0.2),),  # nothing is slower than its roofline
)


def questions() -> Iterator[Case]:
    """Yield the seconds and the kind that are asked for."""
    for name in ANSWERS:
        yield Case(name)


def steps() -> Iterator[Case]:
    """Yield the operators of a step with a peak and a bandwidth."""
    for rows in STEPS:
        yield step([operation(*row) for row in rows], 100e12, 2e12)
    drawn = random.Random(0)
    for peak, bandwidth in ((2.5e11, 3e10), (989.5e12, 3.35e12), (60e12, 9e11)):
        operations = []
        for _ in range(drawn.randint(12, 20)):
            kind = drawn.choice(("matmul", "attention", "loss", "element-wise, norms", "AdamW"))
            computing, moving = (10 ** drawn.uniform(-6, -3) for _ in range(2))
            milliseconds = 1e3 * drawn.uniform(1, 3) * max(computing, moving)
            operations.append(operation(kind, computing * peak, moving * bandwidth, milliseconds))
        yield step(operations, peak, bandwidth)


def step(operations: list[Operation], peak: float, bandwidth: float) -> Case:
    """Return a case."""
    kinds = ", ".join(dict.fromkeys(op.kind for op in operations))
    what = f"{len(operations)} operators ({kinds}) at {peak:g} FLOP/s and {bandwidth:g} B/s"
    return Case(what, operations=operations, peak=peak, bandwidth=bandwidth)


def operation(kind: str, flops: float, moved: float, milliseconds: float) -> Operation:
    """Return an operator, whose name isn't its kind."""
    return Operation(f"aten_{kind[:2]}", kind, Work(flops, moved), milliseconds / 1e3)


def blames(figure: Callable[[list[Operation], list[float]], float]) -> Any:
    """Return an answer that finds the kind with the largest figure.

    Args:
        figure: Computes it from the operators of a kind and their seconds at best.
    """

    def explain(operations: list[Operation], peak: float, bandwidth: float) -> tuple[float, str]:
        ops, best = defaultdict(list), defaultdict(list)
        for op in operations:
            ops[op.kind].append(op)
            best[op.kind].append(max(op.work.flops / peak, op.work.bytes / bandwidth))
        return sum(map(sum, best.values())), max(
            ops, key=lambda kind: figure(ops[kind], best[kind])
        )

    return explain


def gaps(ops: list[Operation], best: list[float]) -> list[float]:
    """Return the seconds that operators lose."""
    return [op.seconds - least for op, least in zip(ops, best, strict=True)]


def ratios(ops: list[Operation], best: list[float]) -> list[float]:
    """Return the seconds of operators as multiples of those at best."""
    return [op.seconds / least for op, least in zip(ops, best, strict=True)]


AT_BEST = "max(op.work.flops / peak, op.work.bytes / bandwidth)"
WORST = "max(lost, key=lost.get)"
LOST = "lost.get(op.kind, 0.0) + op.seconds - at_best"
LIMIT = "each operator has its own limit, so take the longer time of each and then the sum."

step_gap = Exercise(
    NOTEBOOK,
    "step_gap",
    questions,
    observe=one_of(ANSWERS, steps),
    answers=("explain",),
    is_quiz=True,
    smaller="An operator takes 3 s. Its FLOPs need 1 s, its bytes 2 s. How long must it take, and "
    "how much is lost?",
    says={"form": 'return a pair, such as (0.002, "AdamW").'},
    wrong={
        # Kind, which ideas about the seconds may change, too
        "your kind takes the longest; ask which loses the most, measured less roofline.": blames(
            lambda ops, best: sum(op.seconds for op in ops)
        ),
        "your kind has the largest ratio of measured to roofline; ask for the most seconds lost.": (
            blames(lambda ops, best: sum(op.seconds for op in ops) / sum(best))
        ),
        "your kind has the operator with the largest ratio of measured to roofline; ask for the "
        "most seconds lost.": blames(lambda ops, best: max(ratios(ops, best))),
        "your kind has the operator with the longest gap; add up the gaps of each kind.": blames(
            lambda ops, best: max(gaps(ops, best))
        ),
        "your kind has the largest mean gap; add up the gaps of each kind, and don't divide.": (
            blames(lambda ops, best: sum(gaps(ops, best)) / len(ops))
        ),
        "your kind leads if only the last operator of each kind counts; add up their gaps.": [
            blames(lambda ops, best: gaps(ops, best)[-1]),
        ],
        "your kind is farthest from its roofline, but it's faster; ask for the seconds lost.": (
            LOST,
            "lost.get(op.kind, 0.0) + abs(op.seconds - at_best)",
        ),
        "your kind leads if each kind has one roofline; take each operator's, and add up the "
        "gaps.": (
            "def explain(operations, peak, bandwidth):\n"
            "    least, flops, moved, took = 0.0, {}, {}, {}\n"
            "    for op in operations:\n"
            "        least += max(op.work.flops / peak, op.work.bytes / bandwidth)\n"
            "        flops[op.kind] = flops.get(op.kind, 0.0) + op.work.flops\n"
            "        moved[op.kind] = moved.get(op.kind, 0.0) + op.work.bytes\n"
            "        took[op.kind] = took.get(op.kind, 0.0) + op.seconds\n"
            "    lost = {k: took[k] - max(flops[k] / peak, moved[k] / bandwidth) for k in took}\n"
            "    return least, max(lost, key=lost.get)\n"
        ),
        "your kind loses the least.": (WORST, "min(lost, key=lost.get)"),
        "your kind has the slowest operator; add up the seconds lost of each kind.": blames(
            lambda ops, best: max(op.seconds for op in ops)
        ),
        "your kind leads if only the first operator of each kind counts; add up their gaps.": (
            LOST,
            "lost.get(op.kind, op.seconds - at_best)",
        ),
        "your kind leads if you add up the ratios of measured to roofline; add up the seconds "
        "lost.": blames(lambda ops, best: sum(ratios(ops, best))),
        "your kind has the most operators; ask which loses the most seconds.": blames(
            lambda ops, best: len(ops)
        ),
        "your kind has the most FLOPs; ask which loses the most seconds.": blames(
            lambda ops, best: sum(op.work.flops for op in ops)
        ),
        "your kind comes last in the alphabet; max(lost) compares names, max(lost, key=lost.get) "
        "seconds.": (WORST, "max(lost)"),
        # Seconds
        "the other way round: first the seconds, then the kind.": (
            f"least, {WORST}",
            f"{WORST}, least",
        ),
        "you add the two times of an operator; computing and moving overlap, so the longer one "
        "counts.": (AT_BEST, "op.work.flops / peak + op.work.bytes / bandwidth"),
        "you take the shorter of an operator's two times; it ends when the slower is done.": (
            "at_best = max",
            "at_best = min",
        ),
        f"you count the computing of matmuls and attention, and the moving of the rest; {LIMIT}": (
            AT_BEST,
            "op.work.flops / peak if op.kind in ('matmul', 'attention') "
            "else op.work.bytes / bandwidth",
        ),
        f"you count the computing of matmuls, and the moving of the rest; {LIMIT}": (
            AT_BEST,
            "op.work.flops / peak if op.kind == 'matmul' else op.work.bytes / bandwidth",
        ),
        f"you count only the computing; {LIMIT}": (AT_BEST, "op.work.flops / peak"),
        f"you count only the moving; {LIMIT}": (AT_BEST, "op.work.bytes / bandwidth"),
        f"you take the longer of the step's two totals; {LIMIT}": (
            "return least",
            "return max(sum(op.work.flops for op in operations) / peak, "
            "sum(op.work.bytes for op in operations) / bandwidth)",
        ),
        "you take the longer of each kind's two totals; each operator has its own limit.": (
            "def explain(operations, peak, bandwidth):\n"
            "    least, lost = 0.0, {}\n"
            "    for kind in {op.kind for op in operations}:\n"
            "        ops = [op for op in operations if op.kind == kind]\n"
            "        computing = sum(op.work.flops for op in ops) / peak\n"
            "        moving = sum(op.work.bytes for op in ops) / bandwidth\n"
            "        least += max(computing, moving)\n"
            "        lost[kind] = sum(op.seconds for op in ops) - max(computing, moving)\n"
            "    return least, max(lost, key=lost.get)\n"
        ),
        "that is the longest operator; the step runs them one after the other.": (
            "least += at_best",
            "least = max(least, at_best)",
        ),
        "those are the seconds that were measured; the roofline's are expected.": (
            "least += at_best",
            "least += op.seconds",
        ),
        "that is the gap; first return the seconds by the roofline.": (
            "least += at_best",
            "least += op.seconds - at_best",
        ),
        "those are milliseconds; seconds are expected.": ("return least", "return 1e3 * least"),
        "you swapped peak and bandwidth: FLOPs are divided by the peak, bytes by the bandwidth.": (
            AT_BEST,
            "max(op.work.flops / bandwidth, op.work.bytes / peak)",
        ),
    },
)


# cheapest_plan

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
