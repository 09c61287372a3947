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


def shardings() -> Iterator[Case]:
    """Yield bytes per parameter with a number of GPUs and a stage."""
    first = BytesPerParameter(weights=2, gradient=3, master=5, state=9)  # all sizes differ
    yield from (sharding("", first, 8, stage) for stage in range(4))
    chosen = [(first, gpus) for gpus in (1, 64, 7, 1024)]
    chosen.append((BytesPerParameter(weights=4, gradient=4, master=0, state=8), 3))  # fp32
    # 8-bit AdamW
    chosen.append((BytesPerParameter(weights=2, gradient=2, master=4, state=2.03125), 5))
    bounds = (1, 16)
    drawn = sizes(2, gpus=(2, 99), weights=bounds, gradient=bounds, master=bounds, state=bounds)
    for size in drawn:
        per = BytesPerParameter(size.weights, size.gradient, size.master, size.state)
        chosen.append((per, size.gpus))
    for per, gpus in chosen:
        fields = f"{per.weights:g}, {per.gradient:g}, {per.master:g} and {per.state:g} bytes"
        yield from (sharding(f"a per of {fields}", per, gpus, stage) for stage in range(4))


def sharding(what: str, per: BytesPerParameter, gpus: int, stage: int) -> Case:
    """Return a case."""
    return Case(what, per=per, gpus=gpus, stage=stage)


def of_parts(per: BytesPerParameter, gpus: Any, stage: int) -> Any:
    """Divide the first parts."""
    parts = (per.master + per.state, per.gradient, per.weights)
    return sum(part / gpus for part in parts[:stage]) + sum(parts[stage:])


def by_branches(per: BytesPerParameter, gpus: int, stage: int) -> float:
    """Write each stage down."""
    if stage == 0:
        return per.total
    if stage == 1:
        return per.weights + per.gradient + (per.master + per.state) / gpus
    if stage == 2:
        return per.weights + (per.total - per.weights) / gpus
    return per.total / gpus


def by_saving(per: BytesPerParameter, gpus: int, stage: int) -> Any:
    """Take off what the other GPUs hold."""
    saved = 0.0
    for part in (per.master + per.state, per.gradient, per.weights)[:stage]:
        saved += part - part / gpus
    return np.float64(per.total - saved)


SHARE = "optimizer + gradient + weight"
ALL_HELD = "what a stage does not shard stays whole on each GPU."

zero_bytes = Exercise(
    NOTEBOOK,
    "zero_bytes",
    shardings,
    observe=function(by_hand=[(BytesPerParameter, "sharded")]),
    answers=("on_each_gpu",),
    given={"accounting": accounting},
    smaller="Weights, gradient, master and state take 2, 2, 4 and 8 bytes. With 4 GPUs, which of "
    "them does stage 1 divide?",
    wrong={
        "the master weights are missing; they belong to the optimizer.": (
            "(per.master + per.state)",
            "per.state",
        ),
        "the optimizer's state is missing.": ("(per.master + per.state)", "per.master"),
        "stages build on each other; each shards one part more than the stage before it.": (
            ">=",
            "==",
        ),
        "your stages are off by one; stage 0 doesn't shard.": edits(
            ("stage >= 1", "True"), ("stage >= 2", "stage >= 1"), ("stage >= 3", "stage >= 2")
        ),
        "your stages are off by one; stage 1 shards the optimizer's part.": (">=", ">"),
        "stage 1 shards the optimizer's part; you begin with the weights.": edits(
            ("stage >= 1", "stage > 2"), ("stage >= 3", "stage >= 1")
        ),
        f"you divide everything at every stage; {ALL_HELD}": (SHARE, "per.total / gpus"),
        f"you divide everything from stage 1 on; {ALL_HELD}": (
            SHARE,
            "per.total / (gpus if stage else 1)",
        ),
        "you divide everything once more at each stage; a stage shards one part more, and each "
        "part once.": (SHARE, "per.total / gpus**stage"),
        "what your stage doesn't shard is missing; it stays whole on each GPU.": (
            lambda per, gpus, stage: (
                of_parts(per, gpus, stage) - (of_parts(per, 10**12, stage) if stage else 0)
            )
        ),
        "your weights are never sharded; they are at stage 3.": ("stage >= 3", "False"),
        "you always count 2, 2, 4 and 8 bytes; read the fields of `per`.": (
            lambda per, gpus, stage: of_parts(BytesPerParameter(2, 2, 4, 8), gpus, stage)
        ),
        "those are bits; return bytes.": (SHARE, f"8 * ({SHARE})"),
        "you round; keep the fraction.": (SHARE, f"round({SHARE}, 2)"),
        "you round to whole numbers; keep the fraction.": (SHARE, f"round({SHARE})"),
        "that is the sum over all GPUs; return one GPU's share.": (SHARE, f"({SHARE}) * gpus"),
        "that is what sharding saves; return what a GPU still holds.": (
            SHARE,
            f"per.total - ({SHARE})",
        ),
        "you round to whole bytes; keep the fraction.": (SHARE, f"int({SHARE})"),
        "your gradients are never sharded; they are from stage 2 on.": ("stage >= 2", "False"),
        "your gradients are sharded at stage 2 only; stages build on each other.": (
            "stage >= 2",
            "stage == 2",
        ),
        "// drops the fraction of a byte; divide with /.": [
            ("/", "//"),
            lambda per, gpus, stage: sum(
                part // gpus if stage > number else part
                for number, part in enumerate((per.master + per.state, per.gradient, per.weights))
            ),
        ],
        "stage 1 shards the master weights as well as the moments: both belong to the optimizer.": [
            ("(per.master + per.state)", "per.master + per.state"),
            (
                "return",
                "if stage == 1:\n        optimizer = per.master + per.state / gpus\n    return",
            ),
        ],
        "the master weights belong to the optimizer, which stage 1 shards, and not to the "
        "weights.": edits(
            ("(per.master + per.state)", "per.state"), ("per.weights", "(per.weights + per.master)")
        ),
        "stage 2 shards gradients, stage 3 the weights; you have them the other way round.": edits(
            ("stage >= 2", "stage > 2"), ("stage >= 3", "stage >= 2")
        ),
    },
    refused=[
        "def on_each_gpu(per, gpus, stage):\n    return per.sharded(gpus, stage)\n",
        "def on_each_gpu(per, gpus, stage):\n"
        "    return accounting.BytesPerParameter.sharded(per, gpus, stage)\n",
        "def on_each_gpu(per, gpus, stage):\n"
        "    fields = per.weights, per.gradient, per.master, per.state\n"
        "    return accounting.BytesPerParameter(*fields).sharded(gpus, stage)\n",
        ("gpus if", "min(gpus, 64) if"),
        ("gpus if", "8 if"),
        ("gpus if", "gpus + 1 if"),
        ("return", "if stage == 3:\n        return per.total / gpus**3\n    return"),
        ("return", "if stage == 0:\n        return None\n    return"),
        edits(("per.master", "per.gradient"), ("gradient = per.gradient", "gradient = per.master")),
        lambda per, gpus, stage: of_parts(BytesPerParameter(2, 3, 5, 9), gpus, stage),
        lambda per, gpus, stage: "whole",
        lambda per, gpus, stage: None,
        lambda per, gpus, stage: 1 / 0,
    ],
    right=[
        of_parts,
        by_branches,
        by_saving,
        lambda per, gpus, stage: of_parts(per, Fraction(gpus), stage),
    ],
)


# least_tokens


def rings() -> Iterator[Case]:
    """Yield a number of GPUs with their peak, link and the bytes of a gradient."""
    first = {"gpus": 8, "peak": 989.5e12, "bandwidth": 450e9, "gradient_bytes": 2}
    yield Case("", **first)
    for gpus, peak, bandwidth, size in (
        (8, 989.5e12, 50e9, 4),
        (3, 312e12, 25e9, 2),
        (1024, 2250e12, 12.5e9, 4),
        (2, 1e12, 1e9, 1),
        (1, 989.5e12, 450e9, 2),  # a single GPU sends nothing
    ):
        yield Case("", gpus=gpus, peak=peak, bandwidth=bandwidth, gradient_bytes=size)
    for size in sizes(2, gpus=(2, 99), peak=(10, 999), bandwidth=(1, 99), gradient_bytes=(1, 8)):
        yield Case(
            "",
            gpus=size.gpus,
            peak=1e12 * size.peak,
            bandwidth=1e9 * size.bandwidth,
            gradient_bytes=size.gradient_bytes,
        )


def by_a_billion(gpus: int, peak: float, bandwidth: float, gradient_bytes: float) -> Any:
    """Take a model of a billion parameters."""
    parameters = 1e9
    sent = 2 * parameters * gradient_bytes * (1 - 1 / gpus)
    flops_of_a_token = 4 * parameters
    return np.float64(sent / bandwidth * peak / flops_of_a_token)


SENT = "2 * gradient_bytes * (gpus - 1) / gpus"
BACKWARD = "4 / peak"

least_tokens = Exercise(
    NOTEBOOK,
    "least_tokens",
    rings,
    answers=("least_tokens",),
    smaller="A GPU needs 8 s to send what it sends, and backward takes 2 s for each token. How "
    "many tokens hide the sending? What are the two times for a model of one parameter?",
    wrong={
        "gradients exist only from the backward pass on, so they hide behind its 4 FLOPs, and not "
        "behind all 6.": (BACKWARD, "6 / peak"),
        "those are the FLOPs of the forward pass; gradients appear in backward, which takes 4.": (
            BACKWARD,
            "2 / peak",
        ),
        "that is a reduce-scatter; an all-reduce gathers the sums, too, and sends as much again.": (
            "2 * gradient_bytes",
            "gradient_bytes",
        ),
        "in a ring of n GPUs, each sends 2 (n - 1) / n of the gradients; the factor with n is "
        "missing.": (" * (gpus - 1) / gpus", ""),
        "in a ring each GPU sends one part of the gradients at a time; you send all of them to "
        "every other GPU.": (SENT, "gradient_bytes * (gpus - 1)"),
        "that is n times too much: in a ring each GPU sends 1/n of the gradients in a turn, and "
        "the tokens are those of one GPU.": [
            (SENT, "2 * gradient_bytes * (gpus - 1)"),
            ("return sending / backward", "return gpus * sending / backward"),
        ],
        "that is upside down: divide the time to send by the time that a token takes.": (
            "sending / backward",
            "backward / sending",
        ),
        "that is 8 times too much: the bandwidth is in bytes, not bits.": (SENT, f"8 * {SENT}"),
        "a gradient doesn't always take 2 bytes; use gradient_bytes.": (
            "2 * gradient_bytes",
            "2 * 2",
        ),
        "a gradient doesn't always take 4 bytes; use gradient_bytes.": (
            "2 * gradient_bytes",
            "2 * 4",
        ),
        "that is the ridge of the link, in FLOPs per byte; ask how many bytes and FLOPs a "
        "parameter has.": ("return sending / backward", "return peak / bandwidth"),
        "you round; keep the fraction.": [
            ("return sending / backward", "return int(sending / backward)"),
            ("return sending / backward", "return round(sending / backward)"),
            ("return sending / backward", "return -int(-(sending / backward) // 1)"),
        ],
    },
    refused=[
        ("(gpus - 1) / gpus", "7 / 8"),
        ("(gpus - 1) / gpus", "gpus / (gpus + 1)"),
        (BACKWARD, "4 / 989.5e12"),
        ("/ bandwidth", "/ 450e9"),
        lambda gpus, peak, bandwidth, gradient_bytes: None,
        lambda gpus, peak, bandwidth, gradient_bytes: "many",
        lambda gpus, peak, bandwidth, gradient_bytes: 1 / 0,
    ],
    right=[
        by_a_billion,
        ("return sending / backward", "return torch.tensor(sending / backward).double()"),
    ],
)
