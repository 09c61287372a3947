"""Simulate a set-associative cache, which explains why some strides are slow."""

from collections import OrderedDict
from collections.abc import Iterable

LINE = 64  # bytes


def misses(addresses: Iterable[int], sets: int, places: int) -> int:
    """Count the reads whose cache line is missing.

    A line goes into the set `line number % sets`. A full set drops the line that was used least
    recently.

    Args:
        addresses: Byte addresses, in the order in which they are read.
        sets: Number of sets.
        places: Number of lines in a set.
    """
    cache: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(sets)]
    missed = 0
    for address in addresses:
        line = address // LINE
        held = cache[line % sets]
        if line in held:
            held.move_to_end(line)
            continue
        missed += 1
        held[line] = None
        if len(held) > places:
            held.popitem(last=False)
    return missed


def column_walk(
    width: int, columns: int = 48, element_size: int = 4, height: int | None = None
) -> list[int]:
    """Return the addresses of the first columns of a matrix, one column after another.

    Without a height, the matrix is square.
    """
    rows = range(height or width)
    return [element_size * (row * width + column) for column in range(columns) for row in rows]


def missed_share(
    width: int, sets: int = 2048, places: int = 16, height: int | None = None
) -> float:
    """Return the share of reads of a column walk that miss. By default, the cache holds 2 MiB."""
    walk = column_walk(width, height=height)
    return misses(walk, sets, places) / len(walk)
