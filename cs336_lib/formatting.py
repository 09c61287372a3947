"""Format numbers, tables and rows of metrics as text."""

import re
from collections.abc import Sequence

from cs336_lib.io import printable


def digits(value: float) -> str:
    """Format a number with up to four significant digits, such as 7e10, 0.5 or 1,120."""
    plain = f"{value:,.4g}" if 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"
    return re.sub(r"e([+-])0*", lambda sign: "e" + sign[1].strip("+"), plain)


def short(value: float) -> str:
    """Format a count with up to four significant digits and a letter, such as 70B."""
    for power, letter in ((12, "T"), (9, "B"), (6, "M")):
        if value >= 10**power:
            return f"{value / 10**power:.4g}{letter}"
    return digits(value)


def gigabytes(value: float) -> str:
    """Format a number of bytes in GB (1e9 bytes)."""
    return f"{value / 1e9:,.0f} GB" if value >= 1e10 else f"{value / 1e9:.3g} GB"


def duration(seconds: float) -> str:
    """Format a time as seconds, minutes, hours or days."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} seconds"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows of cells as aligned lines of text.

    The first column is left-aligned, and all other columns are right-aligned. Control characters
    are escaped, so that a cell can't look like a row.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return ["  ".join(cells) for cells in padded]
