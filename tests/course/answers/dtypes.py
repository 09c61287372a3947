"""Answers to the exercises of page 01."""

import math

import numpy as np

RIGHT = {
    "where_it_ends": [
        lambda f, n: (2 * math.floor(f * 2**24 / n) + 1) * n / 2**25,
        lambda f, n: np.float32((math.ceil(f / (n * 2**-24)) - 0.5) * n * 2**-24),
    ],
    "smallest_scale": [
        lambda n, vocab_size, largest: (
            next(
                (
                    2**k
                    for k in range(40)
                    if 2**k * 2**23 >= n * vocab_size and 2**k * largest < 65520
                ),
                None,
            )
            if largest * max(1, 2 ** math.ceil(math.log2(n * vocab_size / 2**23))) < 65520
            else None
        ),
        ("scale = 1", "scale = 1.0"),
    ],
}
REFUSED = {
    "where_it_ends": [lambda f, n: 5 / 64, lambda f, n: str(5 / 64), lambda f, n: 1 / 64],
    "smallest_scale": [
        lambda n, vocab_size, largest: 2**16,
        ("else None", "else 0"),
        ("scale *= 2", "scale *= 4"),
    ],
}
