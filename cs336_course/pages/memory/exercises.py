"""Exercises of the side trip on memory: a transformer's bytes, and a factored state."""

from collections.abc import Iterator

import torch
from torch import Tensor

from cs336_course.engine import Case, Exercise, normal, sizes
from cs336_course.engine.several_results import one_of

NOTEBOOK = "side_trips/memory"

# transformer_cost

COSTS = ("the parameters", "the bytes")


def costs() -> Iterator[Case]:
    """Yield the two numbers that are asked for."""
    for name in COSTS:
        yield Case(name)


def models() -> Iterator[Case]:
    """Yield the layers, width, vocabulary and sequence length of a model."""
    for layers, width, vocab, seq in (
        (3, 64, 256, 32),
        (12, 768, 50304, 1024),
        (1, 5, 3, 1),
        (2, 7, 11, 300),  # longer than wide
        (96, 12289, 50257, 2048),  # more than 32-bit numbers can count
    ):
        yield Case("", n_layer=layers, n_embd=width, vocab_size=vocab, seq=seq)
    for size in sizes(4, n_layer=(1, 9), n_embd=(2, 99), vocab_size=(2, 999), seq=(1, 99)):
        yield Case("", **vars(size))


PARAMETERS = "parameters = blocks + output + seq * n_embd"
BYTES = "(4 + 4 + 8) * parameters"

transformer_cost = Exercise(
    NOTEBOOK,
    "transformer_cost",
    costs,
    observe=one_of(COSTS, models),
    answers=("cost",),
    is_quiz=True,
    smaller="Take n_layer = 1, n_embd = 2, vocab_size = 5 and seq = 3. Which matrices are there, "
    "and how large are they?",
    says={"form": "return two numbers: parameters and bytes."},
    wrong={
        # Parameters
        "the position embedding (seq x n_embd) has parameters too.": (
            PARAMETERS,
            "parameters = blocks + output",
        ),
        "the output matrix is the token embedding (tied): count it once.": (
            PARAMETERS,
            f"{PARAMETERS} + output",
        ),
        "the embeddings are missing: vocab_size x n_embd and seq x n_embd.": (
            PARAMETERS,
            "parameters = blocks",
        ),
        "the token embedding is missing: vocab_size x n_embd.": (
            PARAMETERS,
            "parameters = blocks + seq * n_embd",
        ),
        "your attention has 3 C^2; its output projection makes it 4 C^2.": ("12 *", "11 *"),
        "your MLP has one matrix; it has two, each 4 C^2.": ("12 *", "8 *"),
        "those are one block's; there are n_layer of them.": ("n_layer * 12", "12"),
        "the embeddings aren't in every block; add them once.": (
            PARAMETERS,
            "parameters = blocks + n_layer * (output + seq * n_embd)",
        ),
        "you count biases; this model has none.": (
            PARAMETERS,
            f"{PARAMETERS} + n_layer * 9 * n_embd",
        ),
        "you count biases and norms; this model has neither.": (
            PARAMETERS,
            f"{PARAMETERS} + (n_layer * 13 + 2) * n_embd",
        ),
        "there are `seq` positions, whatever GPT-2 has.": (
            PARAMETERS,
            "parameters = blocks + output + 1024 * n_embd",
        ),
        "attention's T x T scores aren't parameters.": (
            PARAMETERS,
            f"{PARAMETERS} + n_layer * seq**2",
        ),
        # Bytes
        "those are the weights alone; gradients and AdamW's two moments come on top.": (
            BYTES,
            "4 * parameters",
        ),
        "you count fewer than 16 bytes for a parameter. In fp32 its weight and its gradient take "
        "4 each, and AdamW's two moments 8.": [(BYTES, f"{n} * parameters") for n in (8, 12)],
        "you count more than 16 bytes for a parameter. In fp32 its weight and its gradient take "
        "4 each, and AdamW's two moments 8.": [(BYTES, f"{n} * parameters") for n in (18, 20, 32)],
        "that is the number of parameters; each takes 4 + 4 + 8 bytes.": (BYTES, "parameters"),
        "those are bits; a byte has 8.": (BYTES, "128 * parameters"),
    },
)


# factored


def means() -> Iterator[Case]:
    """Yield the row means and column means of matrices of squares."""
    yield Case("", **of_rows_and_columns(torch.tensor([[1.0, 2.0, 3.0], [5.0, 6.0, 1.0]])))
    for seed, size in enumerate(sizes(6, rows=(1, 7), cols=(1, 7))):
        v = normal(size.rows, size.cols, seed=seed) ** 2
        yield Case("another shape", **of_rows_and_columns(v.double() if seed % 2 else v))


def of_rows_and_columns(v: Tensor) -> dict[str, Tensor]:
    """Return the means along both axes."""
    return {"rows": v.mean(1), "columns": v.mean(0)}


OUTER = "torch.outer(rows, columns)"
TOTAL = "/ rows.mean()"

factored = Exercise(
    NOTEBOOK,
    "factored",
    means,
    smaller="All entries of v are 3. What are its row means and column means, and what should your "
    "function return?",
    wrong={
        "the product of two means has the wrong unit, a gradient to the fourth power; divide by "
        "the mean of all entries.": (f" {TOTAL}", ""),
        "you divide by a sum of means; that's right for sums, but these are means.": [
            (TOTAL, "/ rows.sum()"),
            (TOTAL, "/ columns.sum()"),
        ],
        "you divide by the mean of all entries twice, so the unit is gone.": (
            TOTAL,
            "/ (rows.mean() * columns.mean())",
        ),
        "the root of the product has the right unit, but the row means come out wrong; divide the "
        "product by the mean of all entries.": (f"{OUTER} {TOTAL}", f"{OUTER}.sqrt()"),
        "you average a row mean and a column mean. A row that is all zero should stay zero, so "
        "multiply them.": (f"{OUTER} {TOTAL}", "(rows[:, None] + columns) / 2"),
        "you add a row mean and a column mean. That keeps the means, but it may become negative, "
        "and v has a root to take; multiply them.": (
            f"{OUTER} {TOTAL}",
            "rows[:, None] + columns - rows.mean()",
        ),
        "rows and columns are swapped; entry [i, j] belongs to row i.": (
            OUTER,
            "torch.outer(columns, rows)",
        ),
        "you multiply by the mean of all entries; divide by it.": (TOTAL, "* rows.mean()"),
    },
)
