"""The checks of a toy course, whose only exercise depends on no page."""

from collections.abc import Iterator

from cs336_course.engine import Case, Exercise


def sizes() -> Iterator[Case]:
    """Yield numbers of values and their widths."""
    yield Case(n=3, bits=16)
    yield Case(n=5, bits=4)
    yield Case(n=1, bits=32)


WRONG = {"that is bits, and a byte has 8.": lambda n, bits: n * bits}
bytes_of = Exercise("", "bytes_of", sizes, WRONG)
bytes_of.solution = "def bytes_of(n, bits):\n    return n * bits / 8"
