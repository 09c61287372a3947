"""Exercise of notebook 00, which introduces checks."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import torch

from cs336_course.engine import Case, Exercise, sizes

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
    "00_start_here",
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
