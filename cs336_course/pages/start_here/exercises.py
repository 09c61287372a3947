"""Exercises of notebook 00 on bytes, and on the cheapest GPUs for a run."""

import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import torch

from cs336_course.engine import Case, Exercise, edits, sizes
from cs336_course.pages.start_here.story import OFFERS, Offer

NOTEBOOK = "00_start_here"

# bytes_of

KEPT = (
    "your result has only the 24 bits of float32, which are too few here; Python's own numbers are "
    "exact enough."
)


def byte_cases() -> Iterator[Case]:
    """Yield numbers n, and the bits of each."""
    for n, bits in ((1, 32), (10, 32), (3, 4), (5, 12), (0, 16), (1, 1), (124_439_808, 16)):
        yield Case("", n=n, bits=bits)
    yield Case("", n=2**24 + 1, bits=12)
    yield Case("", n=175_000_000_001, bits=4)
    for size in sizes(5, n=(2, 999), bits=(2, 130)):
        yield Case("", n=size.n, bits=size.bits)


bytes_of = Exercise(
    NOTEBOOK,
    "bytes_of",
    byte_cases,
    tolerance=1e-6,  # tells float32's 24 bits from Python's 53
    smaller="One number of 16 bits fills two bytes. How many bytes do five such numbers fill?",
    wrong={
        "that is bits; a byte has 8 of them.": (" / 8", ""),
        "you multiplied by 8; a byte has 8 bits, so there are fewer bytes than bits.": (
            "/ 8",
            "* 8",
        ),
        "one number is right, ten are not; does n appear in your formula?": ("n * bits", "bits"),
        "each of your numbers takes 1 bit; does bits appear in your formula?": (
            "bits / 8",
            "1 / 8",
        ),
        "each of your numbers takes 2 bytes; does bits appear in your formula?": ("bits / 8", "2"),
        "each of your numbers takes 4 bytes; does bits appear in your formula?": ("bits / 8", "4"),
        "your result is rounded down, but it may be a fraction; did you use //?": [
            ("/ 8", "// 8"),
            ("n * bits / 8", "int(n * bits / 8)"),
        ],
        "the size of each number is rounded down; did you use // on bits alone?": (
            "bits / 8",
            "(bits // 8)",
        ),
        "you give each number whole bytes, but two numbers of 4 bits fit into one byte.": (
            "bits / 8",
            "-(-bits // 8)",
        ),
        "your result is rounded up, but it may be a fraction.": (
            "n * bits / 8",
            "-(-n * bits // 8)",
        ),
        "your result is rounded, but it may be a fraction.": [
            ("n * bits / 8", "round(n * bits / 8)"),
            ("n * bits / 8", "round(n * bits / 8, 1)"),
        ],
        "0 numbers take 0 bytes, so no max(1, ...) is needed.": (
            "n * bits / 8",
            "max(1, n * bits / 8)",
        ),
        "you also divided by 1000, but bytes are wanted, not kilobytes.": ("/ 8", "/ 8 / 1000"),
        "you also divided by 1024, but bytes are wanted, not kibibytes.": ("/ 8", "/ 8 / 1024"),
        "your n * bits doesn't fit into an int32; Python's own int has no limit.": (
            "n * bits",
            "((n * bits + 2**31) % 2**32 - 2**31)",
        ),
        KEPT: [
            ("n * bits / 8", "torch.tensor(n * bits / 8).item()"),
            ("n * bits / 8", "torch.tensor(n * bits) / 8"),
            ("n * bits", "torch.tensor(float(n)).item() * bits"),
        ],
    },
    refused=[
        ("bits / 8", "(4 if bits == 32 else 2)"),
        ("bits / 8", "2 ** (bits - 1).bit_length() / 8"),
        ("n * bits / 8", 'f"{n * bits / 8} bytes"'),
        lambda n, bits: 7,
        lambda n, bits: n * 10 / 8 if bits == 12 else n * bits / 8,
        lambda n, bits: n / 8 * min(bits, 15) if n > 1000 else n * bits / 8,
        lambda n, bits: n * 4.0 if bits == 32 else None,
        lambda n, bits: n / 0,
    ],
    right=[
        lambda n, bits: 0.125 * n * bits,
        lambda n, bits: np.float64(n) * bits / 8,
        lambda n, bits: Fraction(n * bits, 8),
        lambda n, bits: torch.tensor(n, dtype=torch.float64) * bits / 8,
        lambda n, bits: n * bits // 8 + n * bits % 8 / 8,
    ],
)


# cheapest


def rentals() -> Iterator[Case]:
    """Yield the FLOPs of a run, a deadline in hours, and offers of GPUs."""
    flops = 3.08e20  # GPT-2 1558M on 30B tokens
    for hours in (48, 24, 336, 80):
        yield Case("", flops=flops, hours=hours, offers=OFFERS)
    yield Case("a deadline that no offer meets", flops=flops, hours=5, offers=OFFERS)
    yield Case("", flops=flops, hours=48, offers=OFFERS[::-1])
    yield Case("no offers", flops=flops, hours=48, offers=())
    even = (Offer("10 hours", 1, 1e15, 0.5, 1.0), Offer("5 hours", 2, 1e15, 0.5, 2.0))
    yield Case("an offer that is just in time", flops=1.8e19, hours=10, offers=even)
    yield Case("an offer that is just too late", flops=1.8e19, hours=9.999, offers=even)
    shares = (Offer("half", 8, 1e15, 0.5, 1.0), Offer("less", 8, 1e15, 0.4, 1.1))
    yield Case("", flops=flops, hours=48, offers=shares)
    drawn = random.Random(0)
    for _ in range(8):
        offers = tuple(
            Offer(
                f"offer {letter}",
                drawn.choice((1, 2, 4, 8, 16)),
                drawn.uniform(1e14, 2e15),
                drawn.uniform(0.2, 0.6),
                drawn.uniform(1, 8),
            )
            for letter in "ABCDE"
        )
        work = drawn.uniform(2e20, 5e20)
        yield Case("", flops=work, hours=drawn.uniform(20, 150), offers=offers)


def by_sorting(flops: float, hours: float, offers: Sequence[Offer]) -> str | None:
    """Sort the offers by their dollars per useful FLOP, and return the first in time."""
    for offer in sorted(offers, key=lambda o: o.price / (o.peak * o.mfu)):
        if flops <= hours * 3600 * offer.gpus * offer.peak * offer.mfu:
            return offer.name
    return None


BILL = "needed * offer.gpus * offer.price"
CHOICE = "min(bills, key=bills.get, default=None)"
PER_HOUR = (
    "that offer costs the least per hour. A slow GPU is rented for longer, so compare what the "
    "whole run costs."
)
SHARED = "the GPUs share the work, so eight of them need an eighth of the time that one needs."
LATE = "one of your choices misses the deadline."

cheapest = Exercise(
    NOTEBOOK,
    "cheapest",
    rentals,
    smaller="A run needs 36 hours on one GPU at $2 an hour. What does it cost there, and how long "
    "does it take and what does it cost on 4 such GPUs?",
    wrong={
        LATE: ("if needed <= hours", "if True"),
        PER_HOUR: [
            (BILL, "offer.price"),
            (BILL, "offer.gpus * offer.price"),
            edits((BILL, "offer.price"), ("if needed <= hours", "if True")),
            edits((BILL, "offer.gpus * offer.price"), ("if needed <= hours", "if True")),
        ],
        "that offer is the fastest. A slower one may meet the deadline for less.": [
            (BILL, "needed"),
            edits((BILL, "needed"), ("if needed <= hours", "if True")),
        ],
        "you rent the GPUs at their peak, but a run reaches only the share `mfu` of it.": (
            " * offer.mfu",
            "",
        ),
        "you multiply the time by `mfu`. A GPU that reaches less of its peak needs longer, not "
        "shorter.": (" * offer.mfu) / 3600", ") * offer.mfu / 3600"),
        "`hours` is in hours, and your time is in another unit.": [
            (" / 3600", ""),
            (" / 3600", " / 60"),
        ],
        SHARED: [
            ("offer.gpus * offer.peak", "offer.peak"),
            edits(("offer.gpus * offer.peak", "offer.peak"), (BILL, "needed * offer.price")),
        ],
        "the price is that of one GPU for an hour, and an offer has several.": (
            BILL,
            "needed * offer.price",
        ),
        "that is the bill. The task asks for the name of the offer.": (
            CHOICE,
            "min(bills.values(), default=None)",
        ),
        "that is the whole offer. The task asks for its name.": (
            "bills[offer.name]",
            "bills[offer]",
        ),
        "that is the most expensive offer of those that are in time.": (
            CHOICE,
            "max(bills, key=bills.get, default=None)",
        ),
        "there may be no offer that meets the deadline. Return None then.": [
            (CHOICE, "min(bills, key=bills.get)"),
            (CHOICE, 'min(bills, key=bills.get, default="")'),
        ],
        "the last offer in time replaces the ones before it, even if it costs more.": (
            CHOICE,
            "next(reversed(bills), None)",
        ),
        "you take the first offer that is in time, but a later one may cost less.": (
            CHOICE,
            "next(iter(bills), None)",
        ),
    },
    refused=[
        lambda flops, hours, offers: "8 H100",
        lambda flops, hours, offers: None,
        lambda flops, hours, offers: "8 B200" if hours < 48 else "8 H100",
        lambda flops, hours, offers: flops / 0,
        (" * offer.mfu", " * 0.41"),
        (BILL, "-offer.peak"),
        ("needed * offer.gpus", "-(-needed // 24) * offer.gpus"),
    ],
    right=[by_sorting, (" / 3600", " / 60 / 60"), (BILL, "offer.price / (offer.peak * offer.mfu)")],
)
