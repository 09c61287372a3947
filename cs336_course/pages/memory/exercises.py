"""Exercises of the side trip on memory: a transformer's bill, and a factored state."""

from collections import namedtuple
from collections.abc import Iterator

import torch
from torch import Tensor

from cs336_course.engine import Case, Exercise, normal, sizes
from cs336_course.engine.several_results import one_of

NOTEBOOK = "side_trips/memory"

# transformer_cost

KEPT = "your numbers have only the 24 bits of float32; Python's own integers are exact."
WRAPPED = "your numbers don't fit into an int32; Python's own integers have no limit."

COSTS = ("the parameters", "the FLOPs per token", "the bytes")


def costs() -> Iterator[Case]:
    """Yield the three numbers that are asked for."""
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


Bill = namedtuple("Bill", "parameters flops bytes")


PARAMETERS = "parameters = blocks + output + seq * n_embd"
FORWARD = "2 * (blocks + output) + n_layer * 4 * seq * n_embd"
BYTES = "(4 + 4 + 8) * parameters"

transformer_cost = Exercise(
    NOTEBOOK,
    "transformer_cost",
    costs,
    observe=one_of(COSTS, models),
    answers=("cost",),
    is_quiz=True,
    smaller="Take n_layer = 1, n_embd = 2, vocab_size = 5 and seq = 3. Which matrices are there, "
    "and which of them multiplies a token?",
    says={"form": "return three numbers: parameters, FLOPs per token, bytes."},
    wrong={
        # Parameters
        "the parameters come first, then the FLOPs, then the bytes.": (
            "return parameters, flops,",
            "return flops, parameters,",
        ),
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
        KEPT: ("return parameters", "return int(np.float32(parameters))"),
        WRAPPED: ("return parameters", "return (parameters + 2**31) % 2**32 - 2**31"),
        # FLOPs
        "attention's own matmuls are missing: each block adds 2 seq C for the scores and 2 seq C "
        "for the weighted values.": (FORWARD, "2 * (blocks + output)"),
        "you count 2 FLOPs for each parameter, but a position look-up isn't a matmul.": (
            "2 * (blocks + output)",
            "2 * parameters",
        ),
        "you count 2 FLOPs for each parameter, but a position look-up isn't a matmul, and "
        "attention's own matmuls have no parameters.": (FORWARD, "2 * parameters"),
        "a token look-up isn't a matmul; only the output matrix costs FLOPs.": (
            FORWARD,
            f"{FORWARD} + 2 * output",
        ),
        "the output matrix is missing: every token is multiplied by vocab_size x n_embd.": (
            "2 * (blocks + output)",
            "2 * blocks",
        ),
        "that is a training step (3 x forward); count only the forward pass.": (
            FORWARD,
            f"3 * ({FORWARD})",
        ),
        "6 N is a training step without attention; count the forward pass, with attention.": (
            FORWARD,
            "6 * parameters",
        ),
        "attention's matmuls run in every block; you count them once.": ("n_layer * 4", "4"),
        "a token's query meets `seq` keys; seq x seq is for the whole sequence.": (
            "4 * seq",
            "4 * seq**2",
        ),
        "a multiply-add is two FLOPs, so 2 for each parameter of a matmul.": (
            FORWARD,
            f"({FORWARD}) // 2",
        ),
        "you count a multiply-add as one FLOP in the matrices; it is two there, too.": (
            "2 * (blocks + output)",
            "blocks + output",
        ),
        "that is for the whole sequence; divide by seq.": (FORWARD, f"({FORWARD}) * seq"),
        "attention has two matmuls a block (scores, and weights times values), and the causal half "
        "is not subtracted; you count half.": ("4 * seq", "2 * seq"),
        "you count the keys that a token sees on average, (seq + 1) / 2; the causal half is not "
        "subtracted here.": ("4 * seq", "2 * (seq + 1)"),
        "only matmuls count; you count the softmax of attention, too.": (
            FORWARD,
            f"{FORWARD} + n_layer * 5 * seq",
        ),
        "attention's share is three times too much: 12 layers seq C is for training, and forward "
        "takes a third.": ("4 * seq", "12 * seq"),
        # Bytes
        "those are the weights alone; gradients and AdamW's two moments come on top.": (
            BYTES,
            "4 * parameters",
        ),
        "four bytes are missing, the gradient's or one of AdamW's two: 4 + 4 + 8.": (
            BYTES,
            "12 * parameters",
        ),
        "the optimizer's state is missing, or your numbers take 2 bytes; in fp32 each parameter "
        "takes 4 + 4 + 8.": (BYTES, "8 * parameters"),
        "that is twice too much; each parameter takes 4 + 4 + 8 = 16 bytes.": (
            BYTES,
            "32 * parameters",
        ),
        "fp32 needs no master copy; each parameter takes 4 + 4 + 8 bytes.": (
            BYTES,
            "20 * parameters",
        ),
        "that is the number of parameters; each takes 4 + 4 + 8 bytes.": (BYTES, "parameters"),
        "those are bits; a byte has 8.": (BYTES, "128 * parameters"),
        "that is mixed precision with a copy in fp32; in fp32 each parameter takes 4 + 4 + 8.": (
            BYTES,
            "18 * parameters",
        ),
        "those are billions of bytes (GB); return bytes.": (BYTES, f"{BYTES} / 1e9"),
        "those are GiB; return bytes.": (BYTES, f"{BYTES} / 2**30"),
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
