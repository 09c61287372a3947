"""Other answers to the exercises of the room memory."""

import numpy as np
import torch

from cs336_course.pages.memory.exercises import TOTAL


def by_matrix(n_layer: int, n_embd: int, vocab_size: int, seq: int) -> tuple[int, int]:
    """Go through all matrices."""
    c = n_embd
    matrices = [(c, 3 * c), (c, c), (c, 4 * c), (4 * c, c)] * n_layer + [(c, vocab_size)]
    parameters = sum(a * b for a, b in matrices) + seq * c
    weights = gradients = 4 * parameters
    return parameters, weights + gradients + 2 * 4 * parameters


RIGHT = {
    "transformer_cost": [
        by_matrix,
        lambda *shape: list(by_matrix(*shape)),
        lambda *shape: np.array(by_matrix(*shape)),
        lambda *shape: torch.tensor(by_matrix(*shape)),
    ],
    "factored": [
        (TOTAL, "/ columns.mean()"),
        lambda rows, columns: rows[:, None] / rows.mean() * columns,
        lambda rows, columns: torch.einsum("i,j->ij", rows, columns / columns.mean()),
    ],
}
