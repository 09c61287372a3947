"""Answers to the exercises of the page stride_costs."""


def sorted_by_tile(height, width, tall, wide):
    """Sort all numbers by tile, column and row."""
    numbers = [(row, column) for row in range(height) for column in range(width)]
    return sorted(numbers, key=lambda at: (at[1] // wide, at[0] // tall, at[1], at[0]))


RIGHT = {
    "tiled_walk": [
        sorted_by_tile,
        lambda *sizes: iter(sorted_by_tile(*sizes)),
        lambda *sizes: [list(at) for at in sorted_by_tile(*sizes)],
    ],
}
REFUSED = {
    "tiled_walk": [
        lambda *sizes: [],
        lambda *sizes: sorted_by_tile(*sizes) * 2,
        lambda *sizes: sorted_by_tile(*sizes)[:-1],
        lambda *sizes: [row for row, _ in sorted_by_tile(*sizes)],
        ("range(0, height, tall)", "range(0, height - tall + 1, tall)"),
        ("range(0, width, wide)", "range(0, width - wide + 1, wide)"),
    ],
}
