"""Exercises of notebook 04b on a transformer's bill, sharding, and hidden communication."""

from collections import namedtuple
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from cs336_course.engine import Case, Exercise, edits, function, sizes
from cs336_course.engine.several_results import one_of
from cs336_course.pages.compute.exercises import KEPT, WRAPPED
from cs336_lib import accounting
from cs336_lib.accounting import BytesPerParameter

NOTEBOOK = "side_trips/memory"

# transformer_cost

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


def by_matrix(n_layer: int, n_embd: int, vocab_size: int, seq: int) -> Bill:
    """Go through all matrices."""
    c = n_embd
    matrices = [(c, 3 * c), (c, c), (c, 4 * c), (4 * c, c)] * n_layer + [(c, vocab_size)]
    flops = sum(2 * a * b for a, b in matrices) + n_layer * 2 * (2 * seq * c)
    parameters = sum(a * b for a, b in matrices) + seq * c
    weights = gradients = 4 * parameters
    return Bill(parameters, flops, weights + gradients + 2 * 4 * parameters)


PARAMETERS = "parameters = blocks + output + seq * n_embd"
FORWARD = "2 * (blocks + output) + n_layer * 4 * seq * n_embd"
BYTES = "(4 + 4 + 8) * parameters"
RETURNED = "return parameters, flops, (4 + 4 + 8) * parameters"

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
    refused=[
        ("output + seq * n_embd", "output + 32 * n_embd"),
        ("vocab_size * n_embd", "50304 * n_embd"),
        ("12 * n_embd**2", "(12 * n_embd**2 + 9 * n_embd)"),
        ("12 * n_embd**2", "(12 * n_embd**2 + 4 * n_embd)"),
        ("blocks =", "n_embd = np.array([n_embd], dtype=np.int32)\n    blocks ="),
        ("4 * seq * n_embd", "4 * seq * 64"),
        ("4 * seq * n_embd", "4 * n_embd * n_embd"),
        (BYTES, "7 * parameters"),
        (RETURNED, "return parameters"),
        (RETURNED, "return parameters, flops"),
        (RETURNED, "return {0: parameters, 1: flops, 2: 16 * parameters}"),
        (RETURNED, "return (parameters, flops, 16 * parameters), 0, 0"),
        lambda *shape: None,
        lambda *shape: 1 / 0,
    ],
    right=[
        by_matrix,
        lambda *shape: list(by_matrix(*shape)),
        lambda *shape: np.array(by_matrix(*shape)),
        lambda *shape: torch.tensor(by_matrix(*shape)),
    ],
)


# zero_bytes
