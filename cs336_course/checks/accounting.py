"""Exercise checks for notebook 04 on FLOPs, the roofline of a step, and sharding."""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar
from unittest import mock

import numpy as np
from torch import Tensor

from cs336_course.checks.draws import sizes
from cs336_course.checks.report import DiagnosisError, exercise, expect, expect_number
from cs336_course.demos.operator_costs import Operation
from cs336_course.demos.roofline import Work
from cs336_lib.accounting import BytesPerParameter

T = TypeVar("T")
Mistakes = dict[str, float]
COUNTS = 1e-12  # the relative tolerance of whole numbers, which float32 would round


class Found(NamedTuple):
    """An answer's number for a case.

    Attributes:
        got: The learner's number.
        want: The right number.
        case: The inputs, as in "batch 8 and widths (4, 3)".
        mistakes: Maps a diagnosis to the number that a known mistake gives for this case.
    """

    got: object
    want: float
    case: str
    mistakes: Mistakes


def is_number(got: object, want: float, rel_tol: float) -> bool:
    """Return whether `got` is the number `want`."""
    try:
        expect_number(got, want, "", {}, rel_tol)
    except DiagnosisError:
        return False
    return True


def expect_numbers(found: Sequence[Found], rel_tol: float = 1e-6) -> None:
    """Fail the check at the first wrong number.

    Two mistakes may give the same number by chance, so a mistake is named only if it gives the
    learner's number in every case that lists it.
    """
    excluded = {
        diagnosis
        for one in found
        for diagnosis, wrong in one.mistakes.items()
        if not is_number(one.got, wrong, rel_tol)
    }
    for got, want, case, mistakes in found:
        fitting = {key: wrong for key, wrong in mistakes.items() if key not in excluded}
        expect_number(got, want, case, fitting, rel_tol)


def gather(answers: Iterable[T]) -> tuple[list[T], Exception | None]:
    """Return the answers for all cases up to the first that raises an error, and that error."""
    got: list[T] = []
    try:
        for answer in answers:
            got.append(answer)
    except Exception as error:  # the learner's own code may raise anything
        return got, error
    return got, None


def items(got: object, count: int, wish: str) -> list:
    """Return the items of a tuple, list or array, and fail with `wish` unless there are `count`."""
    expect(isinstance(got, tuple | list | np.ndarray | Tensor), wish)
    found = list(got)  # type: ignore[call-overload]
    expect(len(found) == count, wish)
    return found


def narrow_mistakes(want: int) -> Mistakes:
    """Return what is left of a large whole number in 32 bits."""
    single, wrapped = float(np.float32(want)), (want + 2**31) % 2**32 - 2**31
    kept = {
        "Your numbers have only the 24 bits of float32; Python's own integers are exact.": single,
        "Your numbers don't fit into an int32; Python's own integers have no limit.": wrapped,
    }
    return {said: wrong for said, wrong in kept.items() if wrong != want}


# backward_flops


def backward_mistakes(batch: int, widths: Sequence[int]) -> Mistakes:
    """Return the FLOPs that typical mistakes give."""
    forward = forward_flops(batch, widths)
    total, outputs = sum(forward), batch * sum(widths[1:])
    want = 2 * total - forward[0]
    like_the_first = [flops for flops in forward if flops == forward[0]]
    return {
        "You compute the input's gradient too, but we don't need it, so the first layer has one "
        "matmul in backward, not two.": 2 * total,
        "That is the forward pass. Each layer but the first has two matmuls in backward.": total,
        "You left the first layer out altogether; its weights need their gradient.": 2
        * sum(forward[1:]),
        "You save the matmul at the last layer; it is the first whose input needs no gradient.": 2
        * total
        - forward[-1],
        "You save the matmul at the largest layer; it is the first whose input needs no "
        "gradient.": 2 * total - max(forward),
        "You save the matmul at the smallest layer; it is the first whose input needs no "
        "gradient.": 2 * total - min(forward),
        "You recognize the first layer by its size, but a later layer may be as large; go by its "
        "position.": 2 * total - sum(like_the_first),
        "Layers of the same size are different layers; count each of them.": 2 * sum(set(forward))
        - forward[0],
        "You count a multiplication and an addition as one; each is a FLOP, so 2 m n p.": want / 2,
        "That is forward and backward together; count only backward.": want + total,
        "That is forward and backward together, 3 x forward; count only backward, where the first "
        "layer has one matmul.": 3 * total,
        "That is for one example; there are `batch` of them.": want / batch,
        "That is for one example, and has the gradient of the first layer's input, which nobody "
        "needs.": 2 * total / batch,
        "These layers have no biases, and only matmuls count.": want + outputs,
        "Only matmuls count; leave out the activations between the layers.": want
        + outputs
        - batch * widths[-1],
        "By convention a matmul takes 2 m n p; you take off one addition for each entry of a "
        "forward matmul.": want - 2 * outputs + batch * widths[1],
        "Only backward's matmuls count; you add the optimizer's update of the weights.": want
        + total / batch,
        "You save a matmul at the last layer, too; it is only the first whose input needs no "
        "gradient.": want - forward[-1],
        "You count the first two layers only; go through all of them.": forward[0]
        + 2 * sum(forward[1:2]),
        "You multiply by the batch twice; each matmul has it once.": want * batch,
        "You count one matmul for each layer but the first; those layers have two, and the first "
        "has one.": sum(forward[1:]),
    }


def forward_flops(batch: int, widths: Sequence[int]) -> list[int]:
    """Return the forward FLOPs of each layer."""
    return [2 * batch * rows * columns for rows, columns in itertools.pairwise(widths)]


def chains() -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield batches with the widths of linear layers."""
    yield 8, (4, 16, 16, 3)  # the first, the last and the largest layer differ
    yield 7, (5, 3, 2)
    yield 2, (3, 5, 7, 11)
    yield 3, (5, 7)
    yield 1, (9, 2, 2, 1, 6)
    yield 1, (32, 32, 16)
    yield 5, (8, 4, 8, 4)
    yield 3, (64, 64, 64, 64)
    yield 65_536, (12_289, 49_157, 12_301)  # more FLOPs than 32-bit numbers can count
    for size in sizes(4, batch=(2, 50), layers=(1, 6)):
        drawn = sizes(size.layers + 1, seed=size.batch, width=(2, 40))
        yield size.batch, tuple(one.width for one in drawn)


@exercise(
    "A layer maps 3 inputs to 5 outputs, for a batch of 8. Which gradients need a matmul, and how "
    "many FLOPs does each take?"
)
def backward_flops(count: Callable[[int, Sequence[int]], int]) -> None:
    """Check the FLOPs of the backward pass.

    The first layer needs one matmul, and every other layer needs two.
    """

    def answers() -> Iterator[Found]:
        for batch, widths in chains():
            forward = forward_flops(batch, widths)
            want = 2 * sum(forward) - forward[0]
            case = f"batch {batch} and widths {widths}"
            mistakes = backward_mistakes(batch, widths) | narrow_mistakes(want)
            yield Found(count(batch, widths), want, case, mistakes)

    found, error = gather(answers())
    expect_numbers(found, COUNTS)
    if error:
        raise error


# transformer_cost


def parameter_mistakes(layers: int, width: int, vocab: int, seq: int) -> Mistakes:
    """Return the numbers of parameters that typical mistakes give."""
    blocks, output, positions = layers * 12 * width**2, vocab * width, seq * width
    parameters = blocks + output + positions
    return {
        "The position embedding (seq x n_embd) has parameters too.": blocks + output,
        "The output matrix is the token embedding (tied): count it once.": parameters + output,
        "The embeddings are missing: vocab_size x n_embd and seq x n_embd.": blocks,
        "The token embedding is missing: vocab_size x n_embd.": blocks + positions,
        "Your attention has 3 C^2; its output projection makes it 4 C^2.": parameters
        - layers * width**2,
        "Your MLP has one matrix; it has two, each 4 C^2.": parameters - layers * 4 * width**2,
        "Those are one block's; there are n_layer of them.": blocks // layers + output + positions,
        "The embeddings aren't in every block; add them once.": layers
        * (12 * width**2 + output + positions),
        "You count biases; this model has none.": parameters + layers * 9 * width,
        "You count biases and norms; this model has neither.": parameters
        + (layers * 13 + 2) * width,
        "There are `seq` positions, whatever GPT-2 has.": blocks + output + 1024 * width,
        "Attention's T x T scores aren't parameters.": parameters + layers * seq**2,
        **narrow_mistakes(parameters),
    }


def flop_mistakes(layers: int, width: int, vocab: int, seq: int) -> Mistakes:
    """Return the forward FLOPs per token that typical mistakes give."""
    blocks, output = layers * 12 * width**2, vocab * width
    parameters = blocks + output + seq * width
    attention = layers * 4 * seq * width
    flops = 2 * (blocks + output) + attention
    lookup = "You count 2 FLOPs for each parameter, but a position look-up isn't a matmul"
    return {
        "Attention's own matmuls are missing: each block adds 2 seq C for the scores and 2 seq C "
        "for the weighted values.": 2 * (blocks + output),
        f"{lookup}.": 2 * parameters + attention,
        f"{lookup}, and attention's own matmuls have no parameters.": 2 * parameters,
        "A token look-up isn't a matmul; only the output matrix costs FLOPs.": flops + 2 * output,
        "The output matrix is missing: every token is multiplied by vocab_size x n_embd.": (
            2 * blocks + attention
        ),
        "That is a training step (3 x forward); count only the forward pass.": 3 * flops,
        "6 N is a training step without attention; count the forward pass, with attention.": 6
        * parameters,
        "Attention's matmuls run in every block; you count them once.": flops
        - attention
        + attention // layers,
        "A token's query meets `seq` keys; seq x seq is for the whole sequence.": flops
        - attention
        + attention * seq,
        "A multiply-add is two FLOPs, so 2 for each parameter of a matmul.": flops / 2,
        "You count a multiply-add as one FLOP in the matrices; it is two there, too.": blocks
        + output
        + attention,
        "That is for the whole sequence; divide by seq.": flops * seq,
        "Attention has two matmuls a block (scores, and weights times values), and the causal half "
        "is not subtracted; you count half.": flops - attention / 2,
        "You count the keys that a token sees on average, (seq + 1) / 2; the causal half is not "
        "subtracted here.": flops - attention + layers * 2 * (seq + 1) * width,
        "Only matmuls count; you count the softmax of attention, too.": flops + layers * 5 * seq,
        "Attention's share is three times too much: 12 layers seq C is for training, and forward "
        "takes a third.": flops + 2 * attention,
    }


def byte_mistakes(parameters: int) -> Mistakes:
    """Return the bytes that typical mistakes give."""
    return {
        "Those are the weights alone; gradients and AdamW's two moments come on top.": 4
        * parameters,
        "Four bytes are missing, the gradient's or one of AdamW's two: 4 + 4 + 8.": 12 * parameters,
        "The optimizer's state is missing, or your numbers take 2 bytes; in fp32 each parameter "
        "takes 4 + 4 + 8.": 8 * parameters,
        "That is twice too much; each parameter takes 4 + 4 + 8 = 16 bytes.": 32 * parameters,
        "fp32 needs no master copy; each parameter takes 4 + 4 + 8 bytes.": 20 * parameters,
        "That is the number of parameters; each takes 4 + 4 + 8 bytes.": parameters,
        "Those are bits; a byte has 8.": 128 * parameters,
        "That is mixed precision with a copy in fp32; in fp32 each parameter takes 4 + 4 + 8.": 18
        * parameters,
        "Those are billions of bytes (GB); return bytes.": 16 * parameters / 1e9,
        "Those are GiB; return bytes.": 16 * parameters / 2**30,
    }


def shapes() -> Iterator[tuple[int, int, int, int]]:
    """Yield the layers, width, vocabulary and sequence length of a model."""
    yield 3, 64, 256, 32
    yield 12, 768, 50304, 1024
    yield 1, 5, 3, 1
    yield 2, 7, 11, 300  # longer than wide
    yield 96, 12289, 50257, 2048  # more than 32-bit numbers can count
    for size in sizes(4, layers=(1, 9), width=(2, 99), vocab=(2, 999), seq=(1, 99)):
        yield size.layers, size.width, size.vocab, size.seq


@exercise(
    "Take n_layer = 1, n_embd = 2, vocab_size = 5 and seq = 3. Which matrices are there, and which "
    "of them multiplies a token?"
)
def transformer_cost(
    cost: Callable[[int, int, int, int], tuple[int, int, int]],
) -> None:
    """Check the parameters, the forward FLOPs per token, and the bytes of fp32 AdamW training."""

    def answers() -> Iterator[tuple[Found, ...]]:
        for layers, width, vocab, seq in shapes():
            wish = "Return three numbers: parameters, FLOPs per token, bytes."
            got = items(cost(layers, width, vocab, seq), 3, wish)
            blocks, output = layers * 12 * width**2, vocab * width
            parameters = blocks + output + seq * width
            flops = 2 * (blocks + output) + layers * 4 * seq * width
            case = f"n_layer={layers}, n_embd={width}, vocab_size={vocab}, seq={seq}"
            shape = layers, width, vocab, seq
            swapped = {"The parameters come first, then the FLOPs, then the bytes.": flops}
            mistakes = parameter_mistakes(*shape) | swapped
            yield (
                Found(got[0], parameters, f"the parameters of {case}", mistakes),
                Found(
                    got[1], flops, f"the forward FLOPs per token of {case}", flop_mistakes(*shape)
                ),
                Found(got[2], 16 * parameters, f"the bytes of {case}", byte_mistakes(parameters)),
            )

    found, error = gather(answers())
    for column in zip(*found, strict=True):
        expect_numbers(column, COUNTS)
    if error:
        raise error


# step_gap

# Kind, FLOPs, bytes and milliseconds of each operator, for 1e14 FLOP/s and 2e12 B/s, so 1e10 FLOPs
# or 2e8 bytes take 0.1 ms. In the first step, each mistake of `expect_kind` finds another kind.
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


def steps() -> Iterator[tuple[list[Operation], float, float]]:
    """Yield the operators of a step with a peak and a bandwidth."""
    for rows in STEPS:
        yield [operation(*row) for row in rows], 100e12, 2e12
    drawn = random.Random(0)
    for peak, bandwidth in ((2.5e11, 3e10), (989.5e12, 3.35e12), (60e12, 9e11)):
        step = []
        for _ in range(drawn.randint(12, 20)):
            kind = drawn.choice(("matmul", "attention", "loss", "element-wise, norms", "AdamW"))
            computing, moving = (10 ** drawn.uniform(-6, -3) for _ in range(2))
            milliseconds = 1e3 * drawn.uniform(1, 3) * max(computing, moving)
            step.append(operation(kind, computing * peak, moving * bandwidth, milliseconds))
        yield step, peak, bandwidth


def operation(kind: str, flops: float, moved: float, milliseconds: float) -> Operation:
    """Return an operator, whose name isn't its kind."""
    return Operation(f"aten_{kind[:2]}", kind, Work(flops, moved), milliseconds / 1e3)


def time_mistakes(step: Sequence[Operation], peak: float, bandwidth: float) -> Mistakes:
    """Return the seconds that typical mistakes give."""
    computing = [op.work.flops / peak for op in step]
    moving = [op.work.bytes / bandwidth for op in step]
    at_best = [max(pair) for pair in zip(computing, moving, strict=True)]
    measured = sum(op.seconds for op in step)
    by_kind = 0.0
    for kind in dict.fromkeys(op.kind for op in step):
        mine = [number for number, op in enumerate(step) if op.kind == kind]
        by_kind += max(sum(computing[n] for n in mine), sum(moving[n] for n in mine))
    dense = ("matmul", "attention")
    by_matmul_or_attention, by_matmul = (
        sum(c if op.kind in kinds else m for op, c, m in zip(step, computing, moving, strict=True))
        for kinds in (dense, dense[:1])
    )
    own_limit = "each operator has its own limit, so take the longer time of each and then the sum."
    return {
        "You add the two times of an operator; computing and moving overlap, so the longer one "
        "counts.": sum(computing) + sum(moving),
        "You take the shorter of an operator's two times; it ends when the slower is done.": (
            sum(map(min, computing, moving))
        ),
        "You count the computing of matmuls and attention, and the moving of the rest; "
        f"{own_limit}": by_matmul_or_attention,
        f"You count the computing of matmuls, and the moving of the rest; {own_limit}": by_matmul,
        f"You count only the computing; {own_limit}": sum(computing),
        f"You count only the moving; {own_limit}": sum(moving),
        f"You take the longer of the step's two totals; {own_limit}": max(
            sum(computing), sum(moving)
        ),
        "You take the longer of each kind's two totals; each operator has its own limit.": by_kind,
        "That is the longest operator; the step runs them one after the other.": max(at_best),
        "Those are the seconds that were measured; the roofline's are expected.": measured,
        "That is the gap; first return the seconds by the roofline.": measured - sum(at_best),
        "Those are milliseconds; seconds are expected.": 1e3 * sum(at_best),
        "You swapped peak and bandwidth: FLOPs are divided by the peak, bytes by the bandwidth.": (
            sum(max(op.work.flops / bandwidth, op.work.bytes / peak) for op in step)
        ),
    }


def lost_seconds(step: Sequence[Operation], at_best: Sequence[float]) -> dict[str, list[float]]:
    """Return the seconds that each operator loses, by kind."""
    gaps: dict[str, list[float]] = {op.kind: [] for op in step}
    for op, seconds in zip(step, at_best, strict=True):
        gaps[op.kind].append(op.seconds - seconds)
    return gaps


def kind_mistakes(
    step: Sequence[Operation], at_best: Sequence[float], peak: float, bandwidth: float
) -> dict[str, str]:
    """Return the kinds that typical mistakes find."""
    gaps = lost_seconds(step, at_best)
    took, least, computing, moving = (dict.fromkeys(gaps, 0.0) for _ in range(4))
    ratios: dict[str, list[float]] = {kind: [] for kind in gaps}
    for op, seconds in zip(step, at_best, strict=True):
        took[op.kind] += op.seconds
        least[op.kind] += seconds
        computing[op.kind] += op.work.flops / peak
        moving[op.kind] += op.work.bytes / bandwidth
        ratios[op.kind].append(op.seconds / seconds)
    figures: dict[str, Callable[[str], float]] = {
        "takes the longest; ask which loses the most, measured less roofline": took.__getitem__,
        "has the largest ratio of measured to roofline; ask for the most seconds lost": (
            lambda kind: took[kind] / least[kind]
        ),
        "has the operator with the largest ratio of measured to roofline; ask for the most seconds "
        "lost": lambda kind: max(ratios[kind]),
        "has the operator with the longest gap; add up the gaps of each kind": (
            lambda kind: max(gaps[kind])
        ),
        "has the largest mean gap; add up the gaps of each kind, and don't divide": (
            lambda kind: sum(gaps[kind]) / len(gaps[kind])
        ),
        "leads if only the last operator of each kind counts; add up their gaps": (
            lambda kind: gaps[kind][-1]
        ),
        "is farthest from its roofline, but it's faster; ask for the seconds lost": (
            lambda kind: sum(map(abs, gaps[kind]))
        ),
        "leads if each kind has one roofline; take each operator's, and add up the gaps": (
            lambda kind: took[kind] - max(computing[kind], moving[kind])
        ),
        "loses the least": lambda kind: -sum(gaps[kind]),
        "has the slowest operator; add up the seconds lost of each kind": (
            lambda kind: max(op.seconds for op in step if op.kind == kind)
        ),
        "leads if only the first operator of each kind counts; add up their gaps": (
            lambda kind: gaps[kind][0]
        ),
        "leads if you add up the ratios of measured to roofline; add up the seconds lost": (
            lambda kind: sum(ratios[kind])
        ),
        "has the most operators; ask which loses the most seconds": lambda kind: len(gaps[kind]),
        "has the most FLOPs; ask which loses the most seconds": (
            lambda kind: sum(op.work.flops for op in step if op.kind == kind)
        ),
        "comes last in the alphabet; max(lost) compares names, max(lost, key=lost.get) "
        "seconds": lambda kind: sorted(gaps).index(kind),
    }
    return {diagnosis: max(gaps, key=figure) for diagnosis, figure in figures.items()}


def expect_kind(
    kind: object, step: Sequence[Operation], at_best: Sequence[float], mistakes: Mapping[str, str]
) -> None:
    """Fail unless operators of the kind `kind` lose the most time in total.

    Args:
        kind: The learner's answer.
        step: The operators.
        at_best: Their seconds by the roofline.
        mistakes: Maps a diagnosis to the kind that a known mistake finds.
    """
    lost = {name: sum(gaps) for name, gaps in lost_seconds(step, at_best).items()}
    is_kind = isinstance(kind, str) and kind in lost
    expect(is_kind, f"One of the kinds {', '.join(lost)} is expected, not {kind!r}.")
    most = max(lost, key=lost.__getitem__)
    if kind == most:
        return
    for diagnosis, wrong in mistakes.items():
        expect(kind != wrong, f"{kind} {diagnosis}.")
    loses = f"{kind} loses {1e3 * lost[str(kind)]:.2f} ms, and {most} {1e3 * lost[most]:.2f} ms."
    raise DiagnosisError(f"{kind} isn't the kind that loses the most seconds.", loses)


@exercise(
    "An operator takes 3 s. Its FLOPs need 1 s, its bytes 2 s. How long must it take, and how much "
    "is lost?"
)
def step_gap(explain: Callable[[Sequence[Operation], float, float], tuple[float, str]]) -> None:
    """Check the roofline time of a step, and the kind of operator that loses the most time."""

    def answers() -> Iterator[tuple[Found, object, list[Operation], list[float], dict[str, str]]]:
        for step, peak, bandwidth in steps():
            before = list(step)
            got = explain(step, peak, bandwidth)
            least, kind = items(got, 2, 'Return a pair, such as (0.002, "AdamW").')
            swapped = "The other way round: first the seconds, then the kind."
            expect(not isinstance(least, str), swapped)
            expect(step == before, "Your function changes its list of operations; work on a copy.")
            at_best = [max(op.work.flops / peak, op.work.bytes / bandwidth) for op in step]
            case = f"{len(step)} operators at {peak:g} FLOP/s and {bandwidth:g} B/s"
            seconds = Found(least, sum(at_best), case, time_mistakes(step, peak, bandwidth))
            yield seconds, kind, step, at_best, kind_mistakes(step, at_best, peak, bandwidth)

    found, error = gather(answers())
    expect_numbers([seconds for seconds, *_ in found])
    excluded = {
        diagnosis
        for _, kind, *_, mistakes in found
        for diagnosis, wrong in mistakes.items()
        if kind != wrong
    }
    for _, kind, step, at_best, mistakes in found:
        fitting = {key: wrong for key, wrong in mistakes.items() if key not in excluded}
        expect_kind(kind, step, at_best, fitting)
    if error:
        raise error


# zero_bytes


def share(per: BytesPerParameter, gpus: int, stage: int) -> float:
    """Compute the bytes per parameter on one GPU."""
    parts = (per.master + per.state, per.gradient, per.weights)
    return sum(part / gpus for part in parts[:stage]) + sum(parts[stage:])


def sharding_mistakes(per: BytesPerParameter, gpus: int, stage: int) -> Mistakes:
    """Return the bytes that typical mistakes give."""
    want = share(per, gpus, stage)
    parts = (per.master + per.state, per.gradient, per.weights)
    mistakes = {
        "The master weights are missing; they belong to the optimizer.": want
        - per.master / (gpus if stage >= 1 else 1),
        "The optimizer's state is missing.": want - per.state / (gpus if stage >= 1 else 1),
        "Stages build on each other; each shards one part more than the stage before it.": (
            per.total - sum(part * (1 - 1 / gpus) for part in parts[max(stage - 1, 0) : stage])
        ),
        "Your stages are off by one; stage 0 doesn't shard.": share(per, gpus, min(stage + 1, 3)),
        "Your stages are off by one; stage 1 shards the optimizer's part.": share(
            per, gpus, max(stage - 1, 0)
        ),
        "Stage 1 shards the optimizer's part; you begin with the weights.": sum(
            part / gpus for part in parts[::-1][:stage]
        )
        + sum(parts[::-1][stage:]),
        "You divide everything at every stage; what a stage does not shard stays whole on each "
        "GPU.": per.total / gpus,
        "You divide everything from stage 1 on; what a stage does not shard stays whole on each "
        "GPU.": per.total / gpus if stage else per.total,
        "You divide everything once more at each stage; a stage shards one part more, and each "
        "part once.": per.total / gpus**stage,
        "What your stage doesn't shard is missing; it stays whole on each GPU.": (
            sum(part / gpus for part in parts[:stage]) if stage else per.total
        ),
        "Your weights are never sharded; they are at stage 3.": want
        + (per.weights * (1 - 1 / gpus) if stage == 3 else 0),
        "You always count 2, 2, 4 and 8 bytes; read the fields of `per`.": share(
            BytesPerParameter(weights=2, gradient=2, master=4, state=8), gpus, stage
        ),
        "Those are bits; return bytes.": 8 * want,
        "You round; keep the fraction.": round(want, 2),
        "You round to whole numbers; keep the fraction.": round(want),
        "That is the sum over all GPUs; return one GPU's share.": want * gpus,
        "That is what sharding saves; return what a GPU still holds.": per.total - want,
        "You round to whole bytes; keep the fraction.": math.floor(want),
        "Your gradients are never sharded; they are from stage 2 on.": want
        + (per.gradient * (1 - 1 / gpus) if stage >= 2 else 0),
        "Your gradients are sharded at stage 2 only; stages build on each other.": want
        + (per.gradient * (1 - 1 / gpus) if stage == 3 else 0),
    }
    if all(float(part).is_integer() for part in parts):  # "// 1" drops a fraction, too
        wrong = sum(part // gpus for part in parts[:stage]) + sum(parts[stage:])
        mistakes["// drops the fraction of a byte; divide with /."] = wrong
    if stage == 1:
        wrong = per.weights + per.gradient + per.master + per.state / gpus
        mistakes[
            "Stage 1 shards the master weights as well as the moments: both belong to the "
            "optimizer."
        ] = wrong
    if stage == 2:
        wrong = (per.master + per.state + per.weights) / gpus + per.gradient
        mistakes[
            "Stage 2 shards gradients, stage 3 the weights; you have them the other way round."
        ] = wrong
    return mistakes


def shardings() -> Iterator[tuple[BytesPerParameter, int]]:
    """Yield bytes per parameter with a number of GPUs."""
    first = BytesPerParameter(weights=2, gradient=3, master=5, state=9)  # all sizes differ
    yield from ((first, gpus) for gpus in (8, 1, 64, 7, 1024))
    yield BytesPerParameter(weights=4, gradient=4, master=0, state=8), 3  # fp32
    yield BytesPerParameter(weights=2, gradient=2, master=4, state=2.03125), 5  # 8-bit AdamW
    bounds = (1, 16)
    drawn = sizes(2, gpus=(2, 99), weights=bounds, gradient=bounds, master=bounds, state=bounds)
    for size in drawn:
        yield BytesPerParameter(size.weights, size.gradient, size.master, size.state), size.gpus


@exercise(
    "Weights, gradient, master and state take 2, 2, 4 and 8 bytes. With 4 GPUs, which of them does "
    "stage 1 divide?"
)
def zero_bytes(sharded: Callable[[BytesPerParameter, int, int], float]) -> None:
    """Check the bytes per parameter and GPU for each ZeRO stage."""

    def answers() -> Iterator[Found]:
        for per, gpus in shardings():
            for stage in (0, 1, 2, 3):
                fields = (
                    f"{per.weights:g}, {per.gradient:g}, {per.master:g} and {per.state:g} bytes"
                )
                case = f"stage={stage}, gpus={gpus} and a per of {fields}"
                mistakes = sharding_mistakes(per, gpus, stage)
                got = sharded(per, gpus, stage)
                yield Found(got, share(per, gpus, stage), case, mistakes)

    refusal = DiagnosisError("`per.sharded` does all the work here; write it by hand.")
    with mock.patch.object(BytesPerParameter, "sharded", side_effect=refusal):
        found, error = gather(answers())
    expect_numbers(found)
    if error:
        raise error
