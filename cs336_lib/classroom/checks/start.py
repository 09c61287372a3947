"""Exercise check for notebook 00, which introduces checks."""

from collections.abc import Callable

from cs336_lib.classroom.checks.report import exercise, expect


@exercise("")
def bytes_of(answer: Callable[[int, int], float]) -> None:
    """Check the number of bytes for n numbers of `bits` bits, n * bits / 8."""
    got = answer(1, 32)
    expect(got != 32, "that is bits; a byte has 8 of them")
    expect(got != 256, "you multiplied by 8; a byte has 8 bits, so there are fewer bytes than bits")
    expect(got == 4, f"one number of 32 bits takes 4 bytes, not {got}")
    expect(answer(10, 32) == 40, "one number is right, ten are not: does n appear in your formula?")
    expect(
        answer(3, 4) != 12,
        "three 4-bit numbers take 1.5 bytes, not 12: does bits appear in your formula?",
    )
    expect(answer(3, 4) == 1.5, "three 4-bit numbers take 1.5 bytes; did you use //, which rounds?")
