"""Exercises of notebook 04 on FLOPs, the roofline of a step, and sharding."""

import random
from collections import Counter, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from cs336_course.demos.operator_costs import Operation
from cs336_course.demos.roofline import Work, roofline
from cs336_course.engine import Case, Exercise, edits, function, sizes
from cs336_course.engine.several_results import one_of
from cs336_lib import accounting
from cs336_lib.accounting import BytesPerParameter

__all__ = ["pairwise"]  # a printed solution uses it
NOTEBOOK = "04_flops_and_memory"
KEPT = "your numbers have only the 24 bits of float32; Python's own integers are exact."
WRAPPED = "your numbers don't fit into an int32; Python's own integers have no limit."

# backward_flops


def chains() -> Iterator[Case]:
    """Yield batches with the widths of linear layers."""
    # In the first chain, the first, the last and the largest layer differ.
    for batch, widths in (
        (8, (4, 16, 16, 3)),
        (7, (5, 3, 2)),
        (2, (3, 5, 7, 11)),
        (3, (5, 7)),
        (1, (9, 2, 2, 1, 6)),
        (1, (32, 32, 16)),
        (5, (8, 4, 8, 4)),
        (3, (64, 64, 64, 64)),
    ):
        yield Case("", batch=batch, widths=widths)
    # 32-bit numbers can't count these FLOPs.
    yield Case("wide layers", batch=65_536, widths=(12_289, 49_157, 12_301))
    for size in sizes(4, batch=(2, 50), layers=(1, 6)):
        drawn = sizes(size.layers + 1, seed=size.batch, width=(2, 40))
        yield Case("", batch=size.batch, widths=tuple(one.width for one in drawn))


def by_layer(batch: int, widths: tuple[int, ...]) -> int:
    """Count the matmuls of each layer."""
    flops = 0
    for layer in range(len(widths) - 1):
        matmuls = 1 if layer == 0 else 2
        flops += matmuls * 2 * batch * widths[layer] * widths[layer + 1]
    return flops


def from_the_end(batch: int, widths: tuple[int, ...]) -> Any:
    """Count backwards, in NumPy's integers."""
    *hidden, first = [2 * batch * a * b for a, b in pairwise(widths)][::-1]
    return np.int64(2 * sum(hidden)) + first


FLOPS = "2 * sum(forward) - forward[0]"
BATCH = "[2 * batch * d_in * d_out"

backward_flops = Exercise(
    NOTEBOOK,
    "backward_flops",
    chains,
    answers=("backward",),
    smaller="A layer maps 3 inputs to 5 outputs, for a batch of 8. Which gradients need a matmul, "
    "and how many FLOPs does each take?",
    wrong={
        "you compute the input's gradient too, but we don't need it, so the first layer has one "
        "matmul in backward, not two.": (" - forward[0]", ""),
        "that is the forward pass. Each layer but the first has two matmuls in backward.": (
            FLOPS,
            "sum(forward)",
        ),
        "you left the first layer out altogether; its weights need their gradient.": (
            FLOPS,
            "2 * sum(forward[1:])",
        ),
        "you save the matmul at the last layer; it is the first whose input needs no gradient.": (
            "forward[0]",
            "forward[-1]",
        ),
        "you save the matmul at the largest layer; it is the first whose input needs no "
        "gradient.": ("forward[0]", "max(forward)"),
        "you save the matmul at the smallest layer; it is the first whose input needs no "
        "gradient.": ("forward[0]", "min(forward)"),
        "you recognize the first layer by its size, but a later layer may be as large; go by its "
        "position.": [
            (FLOPS, "sum(x if x == forward[0] else 2 * x for x in forward)"),
            "def backward(batch, widths):\n"
            "    first = widths[0], widths[1]\n"
            "    pairs = pairwise(widths)\n"
            "    return sum((2 if (a, b) == first else 4) * batch * a * b for a, b in pairs)\n",
            "def backward(batch, widths):\n"
            "    pairs = pairwise(widths)\n"
            "    return sum((2 if a == widths[0] else 4) * batch * a * b for a, b in pairs)\n",
            "def backward(batch, widths):\n"
            "    flops = 2 * batch * widths[0] * widths[1]\n"
            "    pairs = pairwise(widths)\n"
            "    return flops + sum(4 * batch * a * b for a, b in pairs if a != widths[0])\n",
        ],
        "layers of the same size are different layers; count each of them.": [
            ("sum(forward)", "sum(set(forward))"),
            edits(
                ("[2 *", "list({(d_in, d_out): 2 *"),
                ("pairwise(widths)]", "pairwise(widths)}.values())"),
            ),
        ],
        "you count a multiplication and an addition as one; each is a FLOP, so 2 m n p.": (
            "[2 * batch",
            "[batch",
        ),
        "that is forward and backward together; count only backward.": ("2 * sum", "3 * sum"),
        "that is forward and backward together, 3 x forward; count only backward, where the first "
        "layer has one matmul.": (FLOPS, "3 * sum(forward)"),
        "that is for one example; there are `batch` of them.": ("2 * batch", "2"),
        "that is for one example, and has the gradient of the first layer's input, which nobody "
        "needs.": edits(("2 * batch", "2"), (" - forward[0]", "")),
        "these layers have no biases, and only matmuls count.": (
            FLOPS,
            f"{FLOPS} + batch * sum(widths[1:])",
        ),
        "only matmuls count; leave out the activations between the layers.": (
            FLOPS,
            f"{FLOPS} + batch * sum(widths[1:-1])",
        ),
        "by convention a matmul takes 2 m n p; you take off one addition for each entry of a "
        "forward matmul.": (FLOPS, f"{FLOPS} - 2 * batch * sum(widths[1:]) + batch * widths[1]"),
        "only backward's matmuls count; you add the optimizer's update of the weights.": (
            FLOPS,
            f"{FLOPS} + sum(forward) // batch",
        ),
        "you save a matmul at the last layer, too; it is only the first whose input needs no "
        "gradient.": (FLOPS, f"{FLOPS} - forward[-1]"),
        "you count the first two layers only; go through all of them.": [
            ("sum(forward)", "sum(forward[:2])"),
            lambda batch, w: 2 * batch * w[0] * w[1] + 4 * batch * w[1] * w[2],
            "def backward(batch, widths):\n"
            "    d_in, hidden, d_out = widths[:3]\n"
            "    return 2 * batch * (d_in * hidden + 2 * hidden * d_out)\n",
        ],
        "you multiply by the batch twice; each matmul has it once.": ("2 * batch", "2 * batch**2"),
        "you count one matmul for each layer but the first; those layers have two, and the first "
        "has one.": (FLOPS, "sum(forward[1:])"),
        KEPT: [
            (FLOPS, f"int(np.float32({FLOPS}))"),
            (FLOPS, "int(torch.tensor(forward).float().sum() * 2) - forward[0]"),
            "def backward(batch, widths):\n"
            "    w = torch.tensor(widths, dtype=torch.float32)\n"
            "    flops = 2 * batch * w[:-1] * w[1:]\n"
            "    return int(2 * flops.sum() - flops[0])\n",
        ],
        WRAPPED: [
            (FLOPS, f"({FLOPS} + 2**31) % 2**32 - 2**31"),
            "def backward(batch, widths):\n"
            "    widths = np.array(widths, dtype=np.int32)\n"
            "    forward = 2 * np.int32(batch) * widths[:-1] * widths[1:]\n"
            "    return 2 * forward.sum() - forward[0]\n",
        ],
    },
    refused=[
        (FLOPS, "(2 * len(forward) - 1) * forward[0]"),
        ("pairwise(widths)", "pairwise((784, 256, 10))"),
        ("2 * batch", "2 * 8"),
        ("2 * batch", "2 * 64"),
        edits((BATCH, "[2 * d_in * d_out"), ("2 * sum", "2 * batch * sum")),
        ("return", "if len(forward) < 2:\n        return 0\n    return"),
        ("return", "if len(forward) < 2:\n        return None\n    return"),
        ("pairwise(widths)", "zip(widths[::2], widths[1::2])"),
        ("pairwise(widths)", "pairwise(widths[:4])"),
        ("d_in * d_out", "(d_in + 1) * d_out"),
        ("2 * sum(forward)", "(1 + 1e-7) * 2 * sum(forward)"),
        "def backward(batch, widths):\n"
        "    pairs = pairwise(widths)\n"
        "    return sum((4 if widths.index(a) else 2) * batch * a * b for a, b in pairs)\n",
        (FLOPS, "(2 * sum(forward) - forward[0], batch)"),
        lambda batch, widths: 7,
        lambda batch, widths: "many",
        lambda batch, widths: None,
        lambda batch, widths: batch / 0,
    ],
    right=[
        by_layer,
        from_the_end,
        (FLOPS, f"torch.tensor({FLOPS})"),
        (FLOPS, f"float({FLOPS})"),
    ],
)


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


# step_gap

ANSWERS = ("the seconds", "the kind")

# Kind, FLOPs, bytes and milliseconds of each operator, for 1e14 FLOP/s and 2e12 B/s, so 1e10 FLOPs
# or 2e8 bytes take 0.1 ms. In the first step, each mistake about kinds finds another kind.
STEPS = (
    (
        ("matmul", 8e10, 2e8, 1.0),
        ("norms", 1e6, 2e8, 0.3),
        ("AdamW", 1e7, 4e8, 0.46),
        ("attention", 2e10, 1e8, 0.21),
        ("norms", 1e6, 2e8, 0.3),
        ("matmul", 1e10, 4e8, 0.21),
        ("loss", 1e6, 2e7, 0.1),
        ("embedding", 1e6, 2.2e8, 0.33),
        ("attention", 2e10, 1e8, 0.44),
        ("dropout", 1e6, 1e8, 0.1),
        ("norms", 1e6, 2e8, 0.2),
        ("AdamW", 1e7, 2e8, 0.14),
    ),
    (
        ("AdamW", 1e6, 1e8, 0.06),
        ("matmul", 2e10, 8e8, 0.9),
        ("matmul", 5e9, 1e7, 0.1),
        ("loss", 1e6, 2e6, 0.05),
    ),
    (  # AdamW is faster than its roofline, as with weights in a cache.
        ("embedding", 1e6, 2e8, 0.3),
        ("attention", 1e10, 1e7, 0.2),
        ("embedding", 1e6, 2e8, 0.15),
        ("matmul", 4e10, 1e8, 0.55),
        ("AdamW", 1e7, 2e9, 0.3),
        ("attention", 1e10, 1e7, 0.28),
    ),
    (("one", 3e10, 1e8, 0.7),),
    (("one", 3e10, 1e8, 0.2),),  # nothing is slower than its roofline
)


def questions() -> Iterator[Case]:
    """Yield the seconds and the kind that are asked for."""
    for name in ANSWERS:
        yield Case(name)


def steps() -> Iterator[Case]:
    """Yield the operators of a step with a peak and a bandwidth."""
    for rows in STEPS:
        yield step([operation(*row) for row in rows], 100e12, 2e12)
    drawn = random.Random(0)
    for peak, bandwidth in ((2.5e11, 3e10), (989.5e12, 3.35e12), (60e12, 9e11)):
        operations = []
        for _ in range(drawn.randint(12, 20)):
            kind = drawn.choice(("matmul", "attention", "loss", "element-wise, norms", "AdamW"))
            computing, moving = (10 ** drawn.uniform(-6, -3) for _ in range(2))
            milliseconds = 1e3 * drawn.uniform(1, 3) * max(computing, moving)
            operations.append(operation(kind, computing * peak, moving * bandwidth, milliseconds))
        yield step(operations, peak, bandwidth)


def step(operations: list[Operation], peak: float, bandwidth: float) -> Case:
    """Return a case."""
    kinds = ", ".join(dict.fromkeys(op.kind for op in operations))
    what = f"{len(operations)} operators ({kinds}) at {peak:g} FLOP/s and {bandwidth:g} B/s"
    return Case(what, operations=operations, peak=peak, bandwidth=bandwidth)


def operation(kind: str, flops: float, moved: float, milliseconds: float) -> Operation:
    """Return an operator, whose name isn't its kind."""
    return Operation(f"aten_{kind[:2]}", kind, Work(flops, moved), milliseconds / 1e3)


def blames(figure: Callable[[list[Operation], list[float]], float]) -> Any:
    """Return an answer that finds the kind with the largest figure.

    Args:
        figure: Computes it from the operators of a kind and their seconds at best.
    """

    def explain(operations: list[Operation], peak: float, bandwidth: float) -> tuple[float, str]:
        ops, best = defaultdict(list), defaultdict(list)
        for op in operations:
            ops[op.kind].append(op)
            best[op.kind].append(max(op.work.flops / peak, op.work.bytes / bandwidth))
        return sum(map(sum, best.values())), max(
            ops, key=lambda kind: figure(ops[kind], best[kind])
        )

    return explain


def gaps(ops: list[Operation], best: list[float]) -> list[float]:
    """Return the seconds that operators lose."""
    return [op.seconds - least for op, least in zip(ops, best, strict=True)]


def ratios(ops: list[Operation], best: list[float]) -> list[float]:
    """Return the seconds of operators as multiples of those at best."""
    return [op.seconds / least for op, least in zip(ops, best, strict=True)]


def by_roofline(operations: list[Operation], peak: float, bandwidth: float) -> list[Any]:
    """Divide by the speed of the roofline."""
    lost, least = defaultdict(list), []
    for op in operations:
        seconds = op.work.flops / roofline(op.work.intensity, peak, bandwidth)
        least.append(seconds)
        lost[op.kind].append(op.seconds - seconds)
    return [np.float64(np.sum(least)), sorted(lost, key=lambda kind: -sum(lost[kind]))[0]]


def by_counter(operations: list[Operation], peak: float, bandwidth: float) -> tuple[Any, str]:
    """Let an operator that is faster than its roofline lose nothing."""
    lost, least = Counter[str](), torch.tensor(0.0, dtype=torch.float64)
    for op in reversed(operations):
        seconds = max(op.work.flops / peak, op.work.bytes / bandwidth)
        least += seconds
        lost[op.kind] += max(0, op.seconds - seconds)  # type: ignore[assignment]
    return least, lost.most_common(1)[0][0]


AT_BEST = "max(op.work.flops / peak, op.work.bytes / bandwidth)"
WORST = "max(lost, key=lost.get)"
LOST = "lost.get(op.kind, 0.0) + op.seconds - at_best"
LIMIT = "each operator has its own limit, so take the longer time of each and then the sum."

step_gap = Exercise(
    NOTEBOOK,
    "step_gap",
    questions,
    observe=one_of(ANSWERS, steps),
    answers=("explain",),
    is_quiz=True,
    smaller="An operator takes 3 s. Its FLOPs need 1 s, its bytes 2 s. How long must it take, and "
    "how much is lost?",
    says={"form": 'return a pair, such as (0.002, "AdamW").'},
    wrong={
        # Kind, which ideas about the seconds may change, too
        "your kind takes the longest; ask which loses the most, measured less roofline.": blames(
            lambda ops, best: sum(op.seconds for op in ops)
        ),
        "your kind has the largest ratio of measured to roofline; ask for the most seconds lost.": (
            blames(lambda ops, best: sum(op.seconds for op in ops) / sum(best))
        ),
        "your kind has the operator with the largest ratio of measured to roofline; ask for the "
        "most seconds lost.": blames(lambda ops, best: max(ratios(ops, best))),
        "your kind has the operator with the longest gap; add up the gaps of each kind.": blames(
            lambda ops, best: max(gaps(ops, best))
        ),
        "your kind has the largest mean gap; add up the gaps of each kind, and don't divide.": (
            blames(lambda ops, best: sum(gaps(ops, best)) / len(ops))
        ),
        "your kind leads if only the last operator of each kind counts; add up their gaps.": [
            blames(lambda ops, best: gaps(ops, best)[-1]),
        ],
        "your kind is farthest from its roofline, but it's faster; ask for the seconds lost.": (
            LOST,
            "lost.get(op.kind, 0.0) + abs(op.seconds - at_best)",
        ),
        "your kind leads if each kind has one roofline; take each operator's, and add up the "
        "gaps.": (
            "def explain(operations, peak, bandwidth):\n"
            "    least, flops, moved, took = 0.0, {}, {}, {}\n"
            "    for op in operations:\n"
            "        least += max(op.work.flops / peak, op.work.bytes / bandwidth)\n"
            "        flops[op.kind] = flops.get(op.kind, 0.0) + op.work.flops\n"
            "        moved[op.kind] = moved.get(op.kind, 0.0) + op.work.bytes\n"
            "        took[op.kind] = took.get(op.kind, 0.0) + op.seconds\n"
            "    lost = {k: took[k] - max(flops[k] / peak, moved[k] / bandwidth) for k in took}\n"
            "    return least, max(lost, key=lost.get)\n"
        ),
        "your kind loses the least.": (WORST, "min(lost, key=lost.get)"),
        "your kind has the slowest operator; add up the seconds lost of each kind.": blames(
            lambda ops, best: max(op.seconds for op in ops)
        ),
        "your kind leads if only the first operator of each kind counts; add up their gaps.": (
            LOST,
            "lost.get(op.kind, op.seconds - at_best)",
        ),
        "your kind leads if you add up the ratios of measured to roofline; add up the seconds "
        "lost.": blames(lambda ops, best: sum(ratios(ops, best))),
        "your kind has the most operators; ask which loses the most seconds.": blames(
            lambda ops, best: len(ops)
        ),
        "your kind has the most FLOPs; ask which loses the most seconds.": blames(
            lambda ops, best: sum(op.work.flops for op in ops)
        ),
        "your kind comes last in the alphabet; max(lost) compares names, max(lost, key=lost.get) "
        "seconds.": (WORST, "max(lost)"),
        # Seconds
        "the other way round: first the seconds, then the kind.": (
            f"least, {WORST}",
            f"{WORST}, least",
        ),
        "you add the two times of an operator; computing and moving overlap, so the longer one "
        "counts.": (AT_BEST, "op.work.flops / peak + op.work.bytes / bandwidth"),
        "you take the shorter of an operator's two times; it ends when the slower is done.": (
            "at_best = max",
            "at_best = min",
        ),
        f"you count the computing of matmuls and attention, and the moving of the rest; {LIMIT}": (
            AT_BEST,
            "op.work.flops / peak if op.kind in ('matmul', 'attention') "
            "else op.work.bytes / bandwidth",
        ),
        f"you count the computing of matmuls, and the moving of the rest; {LIMIT}": (
            AT_BEST,
            "op.work.flops / peak if op.kind == 'matmul' else op.work.bytes / bandwidth",
        ),
        f"you count only the computing; {LIMIT}": (AT_BEST, "op.work.flops / peak"),
        f"you count only the moving; {LIMIT}": (AT_BEST, "op.work.bytes / bandwidth"),
        f"you take the longer of the step's two totals; {LIMIT}": (
            "return least",
            "return max(sum(op.work.flops for op in operations) / peak, "
            "sum(op.work.bytes for op in operations) / bandwidth)",
        ),
        "you take the longer of each kind's two totals; each operator has its own limit.": (
            "def explain(operations, peak, bandwidth):\n"
            "    least, lost = 0.0, {}\n"
            "    for kind in {op.kind for op in operations}:\n"
            "        ops = [op for op in operations if op.kind == kind]\n"
            "        computing = sum(op.work.flops for op in ops) / peak\n"
            "        moving = sum(op.work.bytes for op in ops) / bandwidth\n"
            "        least += max(computing, moving)\n"
            "        lost[kind] = sum(op.seconds for op in ops) - max(computing, moving)\n"
            "    return least, max(lost, key=lost.get)\n"
        ),
        "that is the longest operator; the step runs them one after the other.": (
            "least += at_best",
            "least = max(least, at_best)",
        ),
        "those are the seconds that were measured; the roofline's are expected.": (
            "least += at_best",
            "least += op.seconds",
        ),
        "that is the gap; first return the seconds by the roofline.": (
            "least += at_best",
            "least += op.seconds - at_best",
        ),
        "those are milliseconds; seconds are expected.": ("return least", "return 1e3 * least"),
        "you swapped peak and bandwidth: FLOPs are divided by the peak, bytes by the bandwidth.": (
            AT_BEST,
            "max(op.work.flops / bandwidth, op.work.bytes / peak)",
        ),
    },
    refused=[
        ("in operations:", "in operations[:-1]:"),
        (
            AT_BEST,
            "op.work.flops / peak if op.work.intensity > 1 else op.work.bytes / bandwidth",
        ),
        ("peak, op.work", "989.5e12, op.work"),
        ("peak, op.work.bytes / bandwidth", "100e12, op.work.bytes / 2e12"),
        (f"return least, {WORST}", "return least"),
        (f"return least, {WORST}", "return 1.0, 'norms'"),
        "from itertools import groupby\n"
        "def explain(operations, peak, bandwidth):\n"
        "    least, lost = 0.0, {}\n"
        "    for kind, ops in groupby(operations, key=lambda op: op.kind):\n"
        "        for op in ops:\n"
        "            at_best = max(op.work.flops / peak, op.work.bytes / bandwidth)\n"
        "            least += at_best\n"
        "            lost[kind] = op.seconds - at_best\n"
        "    return least, max(lost, key=lost.get)\n",
        ("lost[op.kind] = lost.get(op.kind,", "lost[op.name] = lost.get(op.name,"),
        edits(
            ("least, lost = 0.0, {}", "least, lost = 0.0, dict.fromkeys(('matmul', 'loss'), 0.0)"),
            ("lost.get(op.kind, 0.0)", "lost[op.kind]"),
        ),
        *((WORST, code) for code in ("'norms'", "'matmul'", "'GELU'", "''", "{'matmul': 1.0}")),
        (WORST, f"{WORST} if max(lost.values()) > 0 else ''"),
        edits(("least, lost = 0.0, {}", "least = 0.0"), ("def", "lost = {}\ndef")),
        ("return", "operations.clear()\n    return"),
        ("least, lost", "operations.sort(key=lambda op: op.kind)\n    least, lost"),
        lambda operations, peak, bandwidth: None,
        lambda operations, peak, bandwidth: 1 / 0,
    ],
    right=[
        blames(lambda ops, best: sum(gaps(ops, best))),
        by_roofline,
        by_counter,
        (WORST, f"np.array([{WORST}])[0]"),
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
