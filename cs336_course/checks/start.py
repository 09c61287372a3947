"""Exercise check for notebook 00, which introduces checks."""

import math
from collections.abc import Callable, Iterator

import torch

from cs336_course.checks import draws
from cs336_course.checks.report import exercise, expect_number


def cases() -> Iterator[tuple[int, int]]:
    """Yield pairs (n, bits). The first ones tell the typical slips apart."""
    yield from ((1, 32), (10, 32), (3, 4), (5, 12), (0, 16), (1, 1), (124_439_808, 16))
    yield from ((2**24 + 1, 12), (175_000_000_001, 4))
    for case in draws.sizes(5, n=(2, 999), bits=(2, 130)):
        yield case.n, case.bits


def mistakes(n: int, bits: int) -> dict[str, float]:
    """Return the result of each typical slip by its diagnosis."""
    single = torch.tensor(n, dtype=torch.float32).item()
    wrapped = (n * bits + 2**31) % 2**32 - 2**31
    kept = (
        "your result has only the 24 bits of float32, which are too few here; Python's own numbers "
        "are exact enough"
    )
    return {
        kept: torch.tensor(n * bits / 8, dtype=torch.float32).item(),
        f"{kept}.": single * bits / 8,
        "0 numbers take 0 bytes, so no max(1, ...) is needed": max(1.0, n * bits / 8),
        "each of your numbers takes 1 bit; does bits appear in your formula?": n / 8,
        "each of your numbers takes 2 bytes; does bits appear in your formula?": n * 2,
        "your result is rounded, but it may be a fraction": round(n * bits / 8, 1),
        "one number is right, ten are not; does n appear in your formula?": bits / 8,
        "each of your numbers takes 4 bytes; does bits appear in your formula?": n * 4,
        "that is bits; a byte has 8 of them": n * bits,
        "you multiplied by 8; a byte has 8 bits, so there are fewer bytes than bits": n * bits * 8,
        "your result is rounded down, but it may be a fraction; did you use //?": n * bits // 8,
        "the size of each number is rounded down; did you use // on bits alone?": n * (bits // 8),
        "you give each number whole bytes, but two numbers of 4 bits fit into one byte": (
            n * math.ceil(bits / 8)
        ),
        "your result is rounded up, but it may be a fraction": math.ceil(n * bits / 8),
        "you also divided by 1000, but bytes are wanted, not kilobytes": n * bits / 8 / 1000,
        "you also divided by 1024, but bytes are wanted, not kibibytes": n * bits / 8 / 1024,
        "your n * bits doesn't fit into an int32; Python's own int has no limit": wrapped / 8,
    }


@exercise("One number of 16 bits fills two bytes. How many bytes do five such numbers fill?")
def bytes_of(answer: Callable[[int, int], float]) -> None:
    """Check the number of bytes for n numbers of `bits` bits, n * bits / 8."""
    for n, bits in cases():
        case = f"{n:,} number{'s' * (n != 1)} of {bits} bit{'s' * (bits != 1)} each"
        expect_number(answer(n, bits), n * bits / 8, case, mistakes(n, bits), rel_tol=1e-12)
