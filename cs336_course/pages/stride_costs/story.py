"""Simulate a set-associative cache, which explains why some strides are slow."""

import random
from collections import OrderedDict
from collections.abc import Iterable

LINE, SETS = 64, 1024  # bytes of a cache line, and sets of an L2 cache of 512 KiB


def misses(addresses: Iterable[int], sets: int, places: int, drop: str = "oldest") -> int:
    """Count the reads whose cache line is missing.

    A line goes into the set `line number % sets`. A full set drops the line that was used least
    recently, or a "random" one.

    Args:
        addresses: Byte addresses, in the order in which they are read.
        sets: Number of sets.
        places: Number of lines in a set.
    """
    cache: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(sets)]
    missed, dice = 0, random.Random(0)
    for address in addresses:
        line = address // LINE
        held = cache[line % sets]
        if line in held:
            held.move_to_end(line)
            continue
        missed += 1
        if len(held) == places:
            del held[next(iter(held)) if drop == "oldest" else dice.choice(list(held))]
        held[line] = None
    return missed


def missed_share(
    width: int, height: int = 0, sets: int = SETS, places: int = 8, drop: str = "oldest"
) -> float:
    """Return the share of reads that miss a cache on a walk down 48 columns in fp32.

    Without a height, the matrix is square.
    """
    rows = range(height or width)
    walk = [4 * (row * width + column) for column in range(48) for row in rows]
    return misses(walk, sets, places, drop) / len(walk)
