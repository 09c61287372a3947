"""The exercise of page 00, on the cheapest GPUs for a run."""

import random
from collections.abc import Iterator

from cs336_course.engine import Case, Exercise, edits
from cs336_course.pages.start_here.story import OFFERS, Offer

NOTEBOOK = "00_start_here"


def rentals() -> Iterator[Case]:
    """Yield the parameters and tokens of a run, a deadline in hours, and offers of GPUs."""
    run = {"parameters": 1.56e9, "tokens": 33.6e9}  # GPT-2 1558M, as llm.c trained it
    for hours in (48, 24, 336, 80):
        yield Case("", **run, hours=hours, offers=OFFERS)
    yield Case("a deadline that no offer meets", **run, hours=5, offers=OFFERS)
    yield Case("", **run, hours=48, offers=OFFERS[::-1])
    yield Case("no offers", **run, hours=48, offers=())
    even = (Offer("10 hours", 1, 1e15, 0.5, 1.0), Offer("5 hours", 2, 1e15, 0.5, 2.0))
    small = {"parameters": 1e9, "tokens": 3e9}
    yield Case("an offer that is just in time", **small, hours=10, offers=even)
    yield Case("an offer that is just too late", **small, hours=9.999, offers=even)
    shares = (Offer("half", 8, 1e15, 0.5, 1.0), Offer("less", 8, 1e15, 0.4, 1.1))
    yield Case("", **run, hours=48, offers=shares)
    begun = (Offer("1.25 hours", 8, 1e15, 0.5, 1.0), Offer("10 hours", 1, 1e15, 0.5, 1.2))
    yield Case("an hour that has only begun", **small, hours=12, offers=begun)
    drawn = random.Random(0)
    for _ in range(8):
        bounds = ((1e14, 2e15), (0.2, 0.6), (1, 8))  # of the peak, the MFU and the price
        offers = tuple(
            Offer(name, drawn.choice((1, 2, 4, 8, 16)), *(drawn.uniform(*each) for each in bounds))
            for name in ("offer A", "offer B", "offer C", "offer D", "offer E")
        )
        size = {"parameters": drawn.uniform(1e9, 2.5e9), "tokens": 33.6e9}
        yield Case("", **size, hours=drawn.uniform(20, 150), offers=offers)


cheapest = Exercise(
    NOTEBOOK,
    "cheapest",
    rentals,
    smaller="A run needs 36 hours on one GPU at $2 an hour. What does it cost there, and how long "
    "does it take and what does it cost on 4 such GPUs?",
    wrong={
        "reading a token takes 2 FLOPs for each parameter, and training on it takes 6.": [
            ("6 * parameters", "2 * parameters"),
            ("6 * parameters", "parameters"),
        ],
        "GPUs are billed by the second, and you pay whole hours.": (
            ("needed * offer.gpus", "-(-needed // 1) * offer.gpus")
        ),
        "one of your choices misses the deadline.": [
            ("if needed <= hours", "if True"),
            edits(("if needed <= hours", "if True"), (", default=None", "")),
        ],
        "that offer costs the least per hour. A slow GPU is rented for longer, so compare what the "
        "whole run costs.": [
            ("needed * offer.gpus * offer.price", "offer.price"),
            ("needed * offer.gpus * offer.price", "offer.gpus * offer.price"),
            edits(("needed * offer.gpus * ", ""), ("if needed <= hours", "if True")),
            edits(("needed * offer.gpus", "offer.gpus"), ("if needed <= hours", "if True")),
        ],
        "that offer is the fastest. A slower one may meet the deadline for less.": [
            (" * offer.gpus * offer.price", ""),
            edits((" * offer.gpus * offer.price", ""), ("if needed <= hours", "if True")),
        ],
        "you rent the GPUs at their peak, but a run reaches only the share `mfu` of it.": (
            (" * offer.mfu", "")
        ),
        "you multiply the time by `mfu`. A GPU that reaches less of its peak needs longer, not "
        "shorter.": (" * offer.mfu) / 3600", ") * offer.mfu / 3600"),
        "you return None for every deadline. Is a `return` missing, or your time in another unit "
        "than `hours`?": [
            (" / 3600", ""),
            (" / 3600", " / 60"),
        ],
        "the GPUs share the work, so eight of them need an eighth of the time that one needs.": [
            ("offer.gpus * offer.peak", "offer.peak"),
            edits(("offer.gpus * offer.peak", "offer.peak"), ("needed * offer.gpus", "needed")),
        ],
        "the price is that of one GPU for an hour, and an offer has several.": (
            ("needed * offer.gpus", "needed")
        ),
        "that is the most expensive offer of those that are in time.": ("min(", "max("),
        "there may be no offer that meets the deadline. Return None then.": [
            (", default=None", ""),
            ("default=None", 'default=""'),
        ],
        "the last offer in time replaces the ones before it, even if it costs more.": (
            ("min(bills, key=bills.get, default=None)", "next(reversed(bills), None)")
        ),
        "you take the first offer that is in time, but a later one may cost less.": (
            ("min(bills, key=bills.get, default=None)", "next(iter(bills), None)")
        ),
    },
)
