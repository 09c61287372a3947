"""Exercise checks for notebook 04 on FLOPs, the roofline of a step, and sharding."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real

from cs336_lib.accounting import BytesPerParameter
from cs336_lib.classroom.checks.report import DiagnosisError, exercise, expect
from cs336_lib.classroom.operator_times import Operation
from cs336_lib.classroom.roofline import Work


def close(got: float, want: float) -> bool:
    """Return whether two numbers agree to nine digits.

    The tolerance permits a different order of arithmetic operations.
    """
    return math.isclose(got, want, rel_tol=1e-9)


def expect_number(got: object, want: float, case: str, mistakes: Mapping[str, float]) -> None:
    """Fail unless `got` equals `want`. If a known mistake gives `got`, explain the mistake."""
    expect(got is not None, "Your function returns None; is the `return` missing?")
    expect(
        isinstance(got, Real) and not isinstance(got, bool),
        f"A number is expected, not {type(got).__name__}.",
    )
    if close(got, want):
        return
    for diagnosis, wrong in mistakes.items():
        if close(got, wrong):
            raise DiagnosisError(diagnosis)
    raise DiagnosisError(f"For {case} it is {shown(want)}, and you get {shown(got)}.")


def shown(value: float) -> str:
    """Format a whole number with all digits, and any other number with six digits.

    With all digits, an error in the last digit is visible.
    """
    whole = abs(value) < 1e15 and float(value).is_integer()
    return f"{value:,.0f}" if whole else f"{value:,.6g}"


@exercise("")
def backward_flops(count: Callable[[int, Sequence[int]], int]) -> None:
    """Check the FLOPs of the backward pass.

    The first layer needs one matmul, and every other layer needs two.
    """
    for batch, widths in ((8, (16, 16, 4)), (2, (3, 5, 7, 11)), (3, (5, 7))):
        pairs = list(itertools.pairwise(widths))
        forward = [2 * batch * rows * columns for rows, columns in pairs]
        want = 2 * sum(forward) - forward[0]
        mistakes = {
            "You compute the input's gradient too, but we don't need it, so the first layer has "
            "one matmul in backward, not two.": 2 * sum(forward),
            "That is the forward pass. Each layer but the first has two matmuls in backward.": sum(
                forward
            ),
            "You left the first layer out altogether; its weights need their gradient.": 2
            * sum(forward[1:]),
            "You save the matmul at the last layer; it is the first whose input needs no "
            "gradient.": 2 * sum(forward) - forward[-1],
            "You count a multiplication and an addition as one; each is a FLOP, so 2 m n p.": want
            / 2,
            "That is forward and backward together; count only backward.": want + sum(forward),
            "That is forward and backward together, 3 x forward; count only backward, where "
            "the first layer has one matmul.": 3 * sum(forward),
            "That is for one example; there are `batch` of them.": want / batch,
            "You count one matmul for each layer but the first; those layers have two, and the "
            "first has one.": sum(forward[1:]),
        }
        expect_number(
            count(batch, widths), want, f"batch {batch} and widths {tuple(widths)}", mistakes
        )


@exercise("")
def transformer_cost(
    cost: Callable[[int, int, int, int], tuple[int, int, int]],
) -> None:
    """Check the parameters, the forward FLOPs per token, and the bytes of fp32 AdamW training."""
    for layers, width, vocab, seq in ((3, 64, 256, 32), (12, 768, 50304, 1024)):
        got = cost(layers, width, vocab, seq)
        expect(
            isinstance(got, tuple | list) and len(got) == 3,
            "Return three numbers: parameters, FLOPs per token, bytes.",
        )
        blocks, output, attention = (
            layers * 12 * width**2,
            vocab * width,
            layers * 4 * seq * width,
        )
        case = f" at n_layer={layers}, n_embd={width}, vocab_size={vocab}, seq={seq}"
        parameters = blocks + output + seq * width
        expect_number(
            got[0],
            parameters,
            "the number of parameters" + case,
            {
                "The position embedding (seq x n_embd) has parameters too.": blocks + output,
                "The output matrix is the token embedding (tied): count it once.": parameters
                + output,
                "The embeddings are missing: vocab_size x n_embd and seq x n_embd.": blocks,
                "Your attention has 3 C^2; its output projection makes it 4 C^2.": parameters
                - layers * width**2,
                "Your MLP has one matrix; it has two, each 4 C^2.": parameters
                - layers * 4 * width**2,
                "Those are one block's; there are n_layer of them.": blocks // layers
                + output
                + seq * width,
            },
        )
        flops = 2 * (blocks + output) + attention
        expect_number(
            got[1],
            flops,
            "the forward FLOPs per token" + case,
            {
                "Attention's own matmuls are missing: each block adds 2 seq C for the scores and "
                "2 seq C for the weighted values.": 2 * (blocks + output),
                "You count 2 FLOPs for each parameter, but a position look-up isn't a matmul.": 2
                * parameters
                + attention,
                "You count 2 FLOPs for each parameter, but a position look-up isn't a matmul, and "
                "attention's own matmuls have no parameters.": 2 * parameters,
                "A token look-up isn't a matmul; only the output matrix costs FLOPs.": flops
                + 2 * output,
                "The output matrix is missing: every token is multiplied by vocab_size x n_embd.": (
                    2 * blocks + attention
                ),
                "That is a training step (3 x forward); count only the forward pass.": 3 * flops,
                "6 N is a training step without attention; count the forward pass, with "
                "attention.": 6 * parameters,
                "Attention's matmuls run in every block; you count them once.": flops
                - attention
                + attention // layers,
                "A token's query meets `seq` keys; seq x seq is for the whole sequence.": flops
                - attention
                + attention * seq,
                "A multiply-add is two FLOPs, so 2 for each parameter of a matmul.": blocks
                + output
                + attention // 2,
                "That is for the whole sequence; divide by seq.": flops * seq,
                "Attention has two matmuls a block (scores, and weights times values), and the "
                "causal half is not subtracted; you count half.": flops - attention // 2,
            },
        )
        expect_number(
            got[2],
            16 * parameters,
            "the bytes" + case,
            {
                "Those are the weights alone; gradients and AdamW's two moments come on top.": 4
                * parameters,
                "Four bytes are missing, the gradient's or one of AdamW's two: 4 + 4 + 8.": (
                    12 * parameters
                ),
                "The optimizer's state is missing: 4 + 4 + 8 bytes.": 8 * parameters,
                "That is twice too much; each parameter takes 4 + 4 + 8 = 16 bytes.": 32
                * parameters,
            },
        )


# Kind, FLOPs, bytes and milliseconds of each operator. The kinds that one finds by the longest
# time, by the largest ratio, by the longest single gap and by the largest sum of gaps differ.
STEPS = (
    (
        ("matmul", 8e10, 2e8, 1.0),
        ("norms", 1e6, 2e8, 0.3),
        ("norms", 1e6, 2e8, 0.3),
        ("loss", 1e6, 2e7, 0.1),
        ("embedding", 1e6, 2e7, 0.011),
        ("AdamW", 1e7, 4e8, 0.45),
    ),
    (
        ("AdamW", 1e6, 1e8, 0.06),
        ("matmul", 2e10, 8e8, 0.9),
        ("matmul", 5e9, 1e7, 0.1),
        ("loss", 1e6, 2e6, 0.05),
    ),
)


@exercise("")
def step_gap(explain: Callable[[Sequence[Operation], float, float], tuple[float, str]]) -> None:
    """Check the roofline time of a step, and the kind of operator that loses the most time."""
    peak, bandwidth = 100e12, 2e12  # 1e10 FLOPs or 2e8 bytes take 0.1 ms
    for rows in STEPS:
        step = [Operation("op", kind, Work(f, b), ms / 1e3) for kind, f, b, ms in rows]
        got = explain(step, peak, bandwidth)
        expect(
            isinstance(got, tuple | list) and len(got) == 2,
            'Return a pair, such as (0.002, "AdamW").',
        )
        least, kind = got
        expect(not isinstance(least, str), "The other way round: first the seconds, then the kind.")
        computing = [op.work.flops / peak for op in step]
        moving = [op.work.bytes / bandwidth for op in step]
        at_best = [max(pair) for pair in zip(computing, moving, strict=True)]
        measured = sum(op.seconds for op in step)
        mistakes = {
            "You add the two times of an operator; computing and moving overlap, so the longer "
            "one counts.": sum(computing) + sum(moving),
            "You take the shorter of an operator's two times; it ends when the slower is done.": (
                sum(map(min, computing, moving))
            ),
            "You count only the computing, or the longer of the step's two totals; each operator "
            "has its own limit, so take the longer time of each and then the sum.": sum(computing),
            "You count only the moving, or the longer of the step's two totals; each operator "
            "has its own limit, so take the longer time of each and then the sum.": sum(moving),
            "Those are the seconds that were measured; the roofline's are expected.": measured,
            "That is the gap; first return the seconds by the roofline.": measured - sum(at_best),
            "Those are milliseconds; seconds are expected.": 1e3 * sum(at_best),
        }
        case = f"{len(step)} operators at {peak:g} FLOP/s and {bandwidth:g} B/s"
        expect_number(least, sum(at_best), case, mistakes)
        expect_kind(kind, step, at_best)


def expect_kind(kind: object, step: Sequence[Operation], at_best: Sequence[float]) -> None:
    """Fail unless operators of the kind `kind` lose the most time in total."""
    kinds = dict.fromkeys(op.kind for op in step)
    expect(kind in kinds, f"One of the kinds {', '.join(kinds)} is expected, not {kind!r}.")
    lost, took, least = (dict.fromkeys(kinds, 0.0) for _ in range(3))
    single: dict[str, float] = dict.fromkeys(kinds, 0.0)
    for op, seconds in zip(step, at_best, strict=True):
        lost[op.kind] += op.seconds - seconds
        took[op.kind] += op.seconds
        least[op.kind] += seconds
        single[op.kind] = max(single[op.kind], op.seconds - seconds)
    most = max(kinds, key=lambda name: lost[name])
    if kind == most:
        return
    wrong = {
        "takes the longest; ask which loses the most, measured less roofline": took,
        "has the largest ratio of measured to roofline; ask for the most seconds lost": {
            name: took[name] / least[name] for name in kinds
        },
        "has the operator with the longest gap; add up the gaps of each kind": single,
    }
    for diagnosis, figures in wrong.items():
        expect(kind != max(kinds, key=lambda name: figures[name]), f"{kind} {diagnosis}.")
    raise DiagnosisError(
        f"{kind} loses {1e3 * lost[str(kind)]:.2f} ms, and {most} {1e3 * lost[most]:.2f} ms."
    )


@exercise("")
def zero_bytes(sharded: Callable[[BytesPerParameter, int, int], float]) -> None:
    """Check the bytes per parameter and GPU for each ZeRO stage."""
    per = BytesPerParameter(weights=2, gradient=3, master=4, state=8)  # all sizes differ
    for gpus in (1, 8, 64):
        for stage in (0, 1, 2, 3):
            want = per.sharded(gpus, stage)
            parts = (per.master + per.state, per.gradient, per.weights)
            held = {
                "The master weights are missing; they belong to the optimizer.": want
                - per.master / (gpus if stage >= 1 else 1),
                "Stages build on each other; each shards one part more than the stage before it.": (
                    per.total
                    - sum(part * (1 - 1 / gpus) for part in parts[max(stage - 1, 0) : stage])
                ),
                "Stage 1 shards the master weights as well as the moments: both belong to the "
                "optimizer.": per.weights + per.gradient + per.master + per.state / gpus,
                "Your stages are off by one; stage 0 doesn't shard.": per.sharded(
                    gpus, min(stage + 1, 3)
                ),
                "Your stages are off by one; stage 1 shards the optimizer's part.": per.sharded(
                    gpus, max(stage - 1, 0)
                ),
                "Stage 2 shards gradients, stage 3 the weights; you have them the other way "
                "round.": (per.master + per.state + per.weights) / gpus + per.gradient,
                "Stage 1 shards the optimizer's part; you begin with the weights.": sum(
                    part / gpus for part in parts[::-1][:stage]
                )
                + sum(parts[::-1][stage:]),
                "You divide everything at every stage; what a stage does not shard stays whole on "
                "each GPU.": per.total / gpus,
                "That is the sum over all GPUs; return one GPU's share.": want * gpus,
            }
            expect_number(sharded(per, gpus, stage), want, f"stage {stage}, {gpus} GPUs", held)
