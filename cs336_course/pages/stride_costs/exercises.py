"""Exercise of the page stride_costs on a walk in tiles."""

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from cs336_course.engine import Case, Exercise, sizes
from cs336_course.engine.records import Record, plain

NOTEBOOK = "side_trips/stride_costs"


def walks() -> Iterator[Case]:
    """Yield sizes of a matrix and of its tiles."""
    yield Case("", height=4, width=6, tall=2, wide=3)
    yield Case("tiles that don't fit at the bottom", height=5, width=6, tall=2, wide=3)
    yield Case("tiles that don't fit on the right", height=4, width=7, tall=2, wide=3)
    yield Case("one large tile", height=3, width=2, tall=9, wide=9)
    for size in sizes(4, height=(1, 9), width=(1, 9), tall=(1, 4), wide=(1, 4)):
        yield Case("other sizes", **vars(size))


def observe_tiles(answer: Callable[..., Any], case: Case) -> Record:
    """Return the numbers of a walk, and the walk through each tile, in any order of the tiles."""
    walk = plain(list(answer(*case.inputs.values())))
    if not all(isinstance(at, list) and [type(x) for x in at] == [int, int] for at in walk):
        return {"a step": str(walk[:1])}
    tall, wide = case.inputs["tall"], case.inputs["wide"]
    tiles = groupby(walk, key=lambda at: (at[0] // tall, at[1] // wide))
    return {"the numbers": sorted(walk), "the tiles": sorted(list(tile) for _, tile in tiles)}


tiled_walk = Exercise(
    NOTEBOOK,
    "tiled_walk",
    walks,
    observe=observe_tiles,
    is_part=True,
    smaller="A matrix of 2 x 2 has tiles of 2 x 1. In which order do you read its four numbers?",
    wrong={
        "inside a tile, walk down its first column before you begin the second.": (
            lambda height, width, tall, wide: [
                (row, column)
                for top in range(0, height, tall)
                for left in range(0, width, wide)
                for row in range(top, min(top + tall, height))
                for column in range(left, min(left + wide, width))
            ]
        ),
        "that is the walk down whole columns, without tiles.": (
            lambda height, width, tall, wide: [(r, c) for c in range(width) for r in range(height)]
        ),
        "your walk leaves the matrix at the bottom; the last tile has fewer rows.": (
            "min(top + tall, height)",
            "top + tall",
        ),
        "your walk leaves the matrix on the right; the last tile has fewer columns.": (
            "min(left + wide, width)",
            "left + wide",
        ),
        "tall and wide are swapped; tall counts rows.": (
            lambda height, width, tall, wide: [
                (row, column)
                for top in range(0, height, wide)
                for left in range(0, width, tall)
                for column in range(left, min(left + tall, width))
                for row in range(top, min(top + wide, height))
            ]
        ),
        "a step is (row, column), in this order.": ("[(row, column)", "[(column, row)"),
    },
)
