"""Checks of notebook 04 on rooflines, FLOPs, training days, memory, sharding and checkpointing."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real

from cs336_lib.accounting import BytesPerParameter, checkpointed_values
from cs336_lib.classroom.checks.report import DiagnosisError, exercise, expect


def close(got: float, want: float) -> bool:
    """Return whether two numbers agree to nine digits, whatever the order of arithmetic."""
    return math.isclose(got, want, rel_tol=1e-9)


def expect_number(got: object, want: float, case: str, mistakes: Mapping[str, float]) -> None:
    """Fail unless `got` is `want`, with the diagnosis of a known mistake if one fits."""
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
    """Format a whole number in full (its last digit may be wrong), and others to six digits."""
    whole = abs(value) < 1e15 and float(value).is_integer()
    return f"{value:,.0f}" if whole else f"{value:,.6g}"


@exercise
def roofline_verdict(
    verdict: Callable[[float, float, float, float], tuple[str, float]],
) -> None:
    """Check the limiting resource and the minimum time in seconds."""
    for flops, moved, peak, bandwidth in (
        (1e9, 4e9, 100e12, 2e12),
        (8e12, 4e9, 100e12, 2e12),
        (1e6, 2e6, 5e9, 40e9),
    ):
        got = verdict(flops, moved, peak, bandwidth)
        expect(
            isinstance(got, tuple | list) and len(got) == 2,
            'Return a pair, such as ("memory", 0.002).',
        )
        limit, seconds = got
        expect(
            not isinstance(seconds, str), "The other way round: first the limit, then the seconds."
        )
        expect(limit in ("compute", "memory"), f'"compute" or "memory" is expected, not {limit!r}.')
        computing, moving = flops / peak, moved / bandwidth
        truth = "compute" if computing > moving else "memory"
        case = f"{flops:g} FLOPs and {moved:g} bytes at {peak:g} FLOP/s and {bandwidth:g} B/s"
        if limit != truth:
            by_intensity = "compute" if flops > moved else "memory"
            expect(
                limit != by_intensity,
                "You compare FLOPs with bytes; compare the times they take, or the intensity "
                "with the ridge peak / bandwidth.",
            )
            raise DiagnosisError(
                f"For {case}, computing takes {computing:.3g} s and moving {moving:.3g} s; the "
                f"longer one is the limit, so it is {truth}-bound."
            )
        mistakes = {
            "You add the two times; computing and moving overlap, so the longer one counts.": (
                computing + moving
            ),
            "That is the shorter time; the kernel ends when the slower of the two is done.": min(
                computing, moving
            ),
            "That is the speed in FLOP/s; the seconds are the FLOPs divided by it.": min(
                peak, flops / moved * bandwidth
            ),
        }
        expect_number(seconds, max(computing, moving), case, mistakes)


@exercise
def backward_flops(count: Callable[[int, Sequence[int]], int]) -> None:
    """Check the backward FLOPs, two matmuls per layer except one for the first layer."""
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


@exercise
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


@exercise
def training_days(days: Callable[[float, float, int, float, float], float]) -> None:
    """Check the training days, 6 P D / (N F mfu) / 86,400."""
    for case in ((70e9, 15e12, 1024, 989.5e12, 0.5), (7e9, 2e12, 64, 312e12, 0.4)):
        parameters, tokens, gpus, peak, mfu = case
        want = 6 * parameters * tokens / (gpus * peak * mfu) / 86_400
        mistakes = {
            "Those are seconds: a day has 86,400 of them.": want * 86_400,
            "Those are hours: divide by 24.": want * 24,
            "You count the forward pass only (2 P D); training takes 6 P D.": want / 3,
            "You count the backward pass only (4 P D); training takes 6 P D.": want * 2 / 3,
            "MFU is missing: the machine reaches only a part of its peak.": want * mfu,
            "You multiply by MFU; it lowers the speed, so it belongs in the denominator.": want
            * mfu**2,
            "The number of GPUs is missing.": want * gpus,
            "You divide the seconds by 60 x 24; a day has 60 x 60 x 24 = 86,400.": want * 60,
            "Those are minutes: divide by 60 x 24.": want * 1440,
            "12 P D / (N F) holds for an MFU of 0.5 only; use `mfu`.": want * mfu * 2,
            "6 P D / (N F mfu): 12 is 6 / 0.5, so it has an MFU in it already.": want * 2,
            "The 6 is missing: training takes six FLOPs for each parameter and token.": want / 6,
            "a / b * c multiplies by c: put the GPUs, their peak and MFU in brackets.": want
            * (peak * mfu) ** 2,
        }
        text = f"P={parameters:g}, D={tokens:g}, N={gpus}, F={peak:g}, MFU={mfu}"
        expect_number(days(*case), want, text, mistakes)


@exercise
def largest_model(
    largest: Callable[[int, float, float, float, float, float, float], float],
) -> None:
    """Check the largest model, which is the free memory divided by the bytes per parameter."""
    for case in (
        (8, 80e9, 4, 4, 0, 8, 0.0),
        (8, 80e9, 2, 2, 4, 8, 17e9),
        (4, 141e9, 2, 2, 4, 4, 37e9),
    ):
        gpus, memory, weights, gradient, master, state, reserved = case
        per = weights + gradient + master + state
        want = gpus * (memory - reserved) / per
        mistakes = {
            "You leave no memory for activations; subtract them from each GPU's memory.": gpus
            * memory
            / per,
            "Every GPU reserves memory for activations, so use gpus * (memory - reserved).": (
                gpus * memory - reserved
            )
            / per,
            "That is one GPU's memory; there are `gpus` of them.": (memory - reserved) / per,
            "The gradients are missing in the sum.": gpus * (memory - reserved) / (per - gradient),
            "The master weights are missing in the sum.": gpus
            * (memory - reserved)
            / (per - master),
            "The optimizer's state is missing in the sum.": gpus
            * (memory - reserved)
            / (per - state),
            "Those are bytes; divide by the bytes of a parameter.": gpus * (memory - reserved),
            "You count only the weights.": gpus * (memory - reserved) / weights,
            "Those are billions of parameters; return the number itself.": want / 1e9,
            "You multiply GB by 2^30; the arguments are bytes already.": want * 2**30,
        }
        text = (
            f"{gpus} GPUs of {memory:g} bytes, {weights} + {gradient} + {master} + {state} bytes a "
            f"parameter, {reserved:g} bytes reserved"
        )
        expect_number(largest(*case), want, text, mistakes)


@exercise
def zero_bytes(sharded: Callable[[BytesPerParameter, int, int], float]) -> None:
    """Check the bytes per parameter on each GPU at each ZeRO stage."""
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


@exercise
def best_segments(best: Callable[[int, float], int]) -> None:
    """Check the number of segments, the divisor of `layers` with the lowest peak memory."""
    for layers, inside in ((16, 1), (64, 1), (36, 4), (64, 16), (48, 25), (12, 100), (48, 16)):
        got = best(layers, inside)
        expect(
            isinstance(got, Integral) and not isinstance(got, bool),
            f"Return the number of segments, a whole number, not {got}. (Is that their peak?)",
        )
        expect(
            1 <= got <= layers and layers % got == 0,
            f"For {layers} layers, {got} segments are not equally long; return a divisor.",
        )
        divisors = [k for k in range(1, layers + 1) if layers % k == 0]
        peaks = {k: checkpointed_values(layers, k, inside) for k in divisors}
        if peaks[got] == min(peaks.values()):
            continue
        case = f"{layers} layers, {inside} values inside each: {got} segments"
        nearest_root = min(divisors, key=lambda k: abs(k - math.sqrt(layers)))
        expect(
            got != max(peaks, key=lambda k: peaks[k]),
            f"For {case} have the highest peak of all; find the lowest.",
        )
        expect(
            got != nearest_root or inside == 1,
            f"For {case} would be right if a layer kept no more than its input; with {inside} "
            f"values inside, the minimum of k + {inside} * {layers} / k lies elsewhere.",
        )
        least = min(peaks, key=lambda k: peaks[k])
        expect(
            got * least != layers,
            f"For {layers} layers, {inside} values inside each: {got} is the length of the best "
            "segments; return how many segments there are.",
        )
        root = math.sqrt(inside * layers)
        expect(
            got != min(divisors, key=lambda k: abs(k - root)),
            f"For {case} are nearest to the root {root:.1f}, and yet {least} have a lower peak "
            f"({peaks[least]:g} instead of {peaks[got]:g}); compare the peaks themselves.",
        )
        raise DiagnosisError(
            f"For {case} give a peak of {peaks[got]:g}; {least} give {peaks[least]:g}."
        )
