"""Simulate a set-associative cache, which explains why some strides are slow."""

from collections import OrderedDict
from collections.abc import Iterable

LINE, SETS, PLACES = 64, 64, 8  # bytes of a cache line, and an L1 cache of 32 KiB


def misses(addresses: Iterable[int], sets: int = SETS, places: int = PLACES) -> int:
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
        missed += line not in held
        held[line] = None
        held.move_to_end(line)
        if len(held) > places:
            held.popitem(last=False)
    return missed


def missed_share(width: int, height: int = 64) -> float:
    """Return the share of reads that miss L1 on a walk down 48 columns in fp32."""
    walk = [4 * (row * width + column) for column in range(48) for row in range(height)]
    return misses(walk) / len(walk)
