"""Each check of notebook 04 passes the right answer and names the mistake of a wrong one."""

import itertools
import math

import numpy as np
from verdicts import assert_verdicts, stub, verdict

from cs336_lib.classroom.checks import accounting as checks

# The right answers.


def limit(flops, moved, peak, bandwidth):
    computing, moving = flops / peak, moved / bandwidth
    return ("compute" if computing > moving else "memory"), max(computing, moving)


def forward(batch, widths):
    return [2 * batch * a * b for a, b in itertools.pairwise(widths)]


def backward(batch, widths):
    return 2 * sum(forward(batch, widths)) - forward(batch, widths)[0]


def parameters(layers, width, vocab, seq):
    return layers * 12 * width**2 + vocab * width + seq * width


def flops(layers, width, vocab, seq):
    return 2 * (layers * 12 * width**2 + vocab * width) + layers * 4 * seq * width


def cost(*shape):
    return parameters(*shape), flops(*shape), 16 * parameters(*shape)


def days(params, tokens, gpus, peak, mfu):
    return 6 * params * tokens / (gpus * peak * mfu) / 86_400


def largest(gpus, memory, weights, gradient, master, state, reserved):
    return gpus * (memory - reserved) / (weights + gradient + master + state)


def sharded(per, gpus, stage):
    return per.sharded(gpus, stage)


def segments(layers, inside):
    divisors = [k for k in range(1, layers + 1) if layers % k == 0]
    return min(divisors, key=lambda k: k + inside * layers / k)


def nearest_root(layers, inside):
    divisors = [k for k in range(1, layers + 1) if layers % k == 0]
    return min(divisors, key=lambda k: abs(k - math.sqrt(layers)))


RIGHT = {
    checks.roofline_verdict: limit,
    checks.backward_flops: backward,
    checks.transformer_cost: cost,
    checks.training_days: days,
    checks.largest_model: largest,
    checks.zero_bytes: sharded,
    checks.best_segments: segments,
}


def test_a_whole_number_is_shown_to_its_last_digit():
    shown = [checks.shown(value) for value in (2_654_208, 2_654_209.0, 0.1234567, 1e20)]
    assert shown == ["2,654,208", "2,654,209", "0.123457", "1e+20"]


def test_right_untouched_and_broken():
    different = []
    for check, answer in RIGHT.items():
        cases = {
            "passed": answer,
            "not attempted yet": stub,
            "your code raised ZeroDivisionError": lambda *_: 1 / 0,
            "not right yet. ": lambda *_: None,
        }
        said = {expected: verdict(check, answer) for expected, answer in cases.items()}
        different += [line for expected, line in said.items() if f": {expected}" not in line]
    assert different == []


def test_roofline_verdict():
    cases = [
        (lambda f, m, p, b: max(f / p, m / b), "Return a pair"),
        (lambda f, m, p, b: ("cpu", max(f / p, m / b)), "'cpu'"),
        (lambda f, m, p, b: limit(f, m, p, b)[::-1], "first the limit, then the seconds"),
        (lambda f, m, p, b: (limit(f, m, p, b)[0], f / p + m / b), "You add the two times"),
        (lambda f, m, p, b: (limit(f, m, p, b)[0], min(f / p, m / b)), "the shorter time"),
        (lambda f, m, p, b: (limit(f, m, p, b)[0], min(p, f / m * b)), "the speed in FLOP/s"),
        (lambda f, m, p, b: ("compute" if f > m else "memory", max(f / p, m / b)), "FLOPs with"),
        (
            lambda f, m, p, b: ("memory" if f / p > m / b else "compute", max(f / p, m / b)),
            "the longer one is the limit",
        ),
    ]
    assert_verdicts(checks.roofline_verdict, cases)


def test_backward_flops():
    cases = [
        (lambda b, w: 2 * sum(forward(b, w)), "we don't need it"),
        (lambda b, w: sum(forward(b, w)), "That is the forward pass"),
        (lambda b, w: 2 * sum(forward(b, w)[1:]), "left the first layer out"),
        (lambda b, w: 2 * sum(forward(b, w)) - forward(b, w)[-1], "at the last layer"),
        (lambda b, w: backward(b, w) // 2, "a multiplication and an addition as one"),
        (lambda b, w: backward(b, w) + sum(forward(b, w)), "forward and backward together"),
        (lambda b, w: 3 * sum(forward(b, w)), "3 x forward"),
        (lambda b, w: backward(1, w), "for one example"),
        (lambda b, w: sum(forward(b, w)[1:]), "those layers have two"),
        (lambda b, w: 7, "and you get 7"),
        (lambda b, w: "many", "not str"),
    ]
    assert_verdicts(checks.backward_flops, cases)


def test_transformer_parameters():
    def answer(wrong):
        return lambda *shape: (wrong(*shape), flops(*shape), 16 * parameters(*shape))

    cases = [
        (lambda n, c, v, t: n * 12 * c * c + v * c, "position embedding"),
        (lambda n, c, v, t: parameters(n, c, v, t) + v * c, "count it once"),
        (lambda n, c, v, t: n * 12 * c * c, "embeddings are missing"),
        (lambda n, c, v, t: parameters(n, c, v, t) - n * c * c, "its output projection"),
        (lambda n, c, v, t: parameters(n, c, v, t) - 4 * n * c * c, "it has two"),
        (lambda n, c, v, t: parameters(1, c, v, t), "there are n_layer of them"),
    ]
    assert_verdicts(checks.transformer_cost, [(answer(wrong), said) for wrong, said in cases])


def test_transformer_flops():
    def answer(wrong):
        return lambda *shape: (parameters(*shape), wrong(*shape), 16 * parameters(*shape))

    cases = [
        (lambda n, c, v, t: 2 * (n * 12 * c * c + v * c), "own matmuls are missing"),
        (
            lambda n, c, v, t: 2 * parameters(n, c, v, t) + 4 * n * t * c,
            "a position look-up isn't a matmul",
        ),
        (lambda n, c, v, t: 24 * n * c * c + 4 * n * t * c, "output matrix is missing"),
        (lambda n, c, v, t: 3 * flops(n, c, v, t), "That is a training step"),
        (lambda n, c, v, t: flops(n, c, v, t) // 2, "two FLOPs"),
        (lambda n, c, v, t: flops(n, c, v, t) * t, "whole sequence"),
        (lambda n, c, v, t: 2 * parameters(n, c, v, t), "have no parameters"),
        (lambda n, c, v, t: 6 * parameters(n, c, v, t), "training step without attention"),
        (lambda n, c, v, t: flops(n, c, v, t) + 2 * v * c, "A token look-up"),
        (lambda n, c, v, t: 2 * (n * 12 * c * c + v * c) + 4 * t * c, "you count them once"),
        (lambda n, c, v, t: 2 * (n * 12 * c * c + v * c) + 4 * n * t * t * c, "seq x seq"),
        (lambda n, c, v, t: flops(n, c, v, t) - 2 * n * t * c, "two matmuls a block"),
    ]
    assert_verdicts(checks.transformer_cost, [(answer(wrong), said) for wrong, said in cases])


def test_transformer_bytes():
    def answer(factor):
        return lambda *shape: (parameters(*shape), flops(*shape), factor * parameters(*shape))

    cases = [
        (4, "weights alone"),
        (12, "gradient's or one of AdamW's two"),
        (8, "state is missing"),
        (32, "twice too much"),
    ]
    assert_verdicts(checks.transformer_cost, [(answer(factor), said) for factor, said in cases])


def test_training_days():
    cases = [
        (lambda p, t, n, f, u: days(p, t, n, f, u) * 86_400, "Those are seconds"),
        (lambda p, t, n, f, u: days(p, t, n, f, u) * 24, "Those are hours"),
        (lambda p, t, n, f, u: days(p, t, n, f, u) / 3, "forward pass only"),
        (lambda p, t, n, f, u: days(p, t, n, f, u) * 4 / 6, "backward pass only"),
        (lambda p, t, n, f, u: days(p, t, n, f, 1), "MFU is missing"),
        (lambda p, t, n, f, u: days(p, t, n, f, 1) * u, "You multiply by MFU"),
        (lambda p, t, n, f, u: days(p, t, 1, f, u), "number of GPUs is missing"),
        (lambda p, t, n, f, u: days(p, t, n, f, u) * 60, "60 x 60 x 24"),
        (lambda p, t, n, f, u: days(p, t, n, f, u) * 1440, "Those are minutes"),
        (lambda p, t, n, f, u: 12 * p * t / (n * f) / 86_400, "an MFU of 0.5 only"),
        (lambda p, t, n, f, u: 2 * days(p, t, n, f, u), "has an MFU in it already"),
        (lambda p, t, n, f, u: days(p, t, n, f, u) / 6, "The 6 is missing"),
        (lambda p, t, n, f, u: 6 * p * t / n * f * u / 86_400, "in brackets"),
    ]
    assert_verdicts(checks.training_days, cases)


def test_largest_model():
    cases = [
        (lambda n, m, w, g, a, s, r: n * m / (w + g + a + s), "no memory for activations"),
        (lambda n, m, w, g, a, s, r: (n * m - r) / (w + g + a + s), "Every GPU reserves memory"),
        (lambda n, m, w, g, a, s, r: (m - r) / (w + g + a + s), "one GPU's memory"),
        (lambda n, m, w, g, a, s, r: n * (m - r) / (w + a + s), "gradients are missing"),
        (lambda n, m, w, g, a, s, r: n * (m - r) / (w + g + s), "master weights are missing"),
        (lambda n, m, w, g, a, s, r: n * (m - r) / (w + g + a), "state is missing"),
        (lambda n, m, w, g, a, s, r: n * (m - r), "divide by the bytes"),
        (lambda n, m, w, g, a, s, r: n * (m - r) / w, "only the weights"),
        (lambda n, m, w, g, a, s, r: largest(n, m, w, g, a, s, r) * 2**30, "bytes already"),
        (lambda n, m, w, g, a, s, r: largest(n, m, w, g, a, s, r) / 1e9, "Those are billions"),
    ]
    assert_verdicts(checks.largest_model, cases)


def weights_before_gradients(per, gpus, stage):
    optimizer = (per.master + per.state) / (gpus if stage >= 1 else 1)
    weights = per.weights / (gpus if stage >= 2 else 1)
    return optimizer + weights + per.gradient / (gpus if stage >= 3 else 1)


def gradients_before_master_weights(per, gpus, stage):
    moments = (per.gradient + per.state) / (gpus if stage >= 1 else 1)
    master = per.master / (gpus if stage >= 2 else 1)
    return moments + master + per.weights / (gpus if stage >= 3 else 1)


def test_zero_bytes():
    cases = [
        (lambda per, n, s: per.total / n, "divide everything at every stage"),
        (lambda per, n, s: per.sharded(n, min(s + 1, 3)), "stage 0 doesn't shard"),
        (lambda per, n, s: per.sharded(n, max(s - 1, 0)), "stage 1 shards the optimizer's part"),
        (lambda per, n, s: per.sharded(n, s) * n, "sum over all GPUs"),
        (
            lambda per, n, s: per.sharded(n, s) if s != 1 else per.total - 8 + 8 / n,
            "the master weights as well",
        ),
        (lambda per, n, s: per.sharded(n, s) - per.master / (n if s else 1), "are missing"),
        (
            lambda per, n, s: (
                (per.master + per.state) / (n if s == 1 else 1)
                + per.gradient / (n if s == 2 else 1)
                + per.weights / (n if s == 3 else 1)
            ),
            "Stages build on each other",
        ),
        (
            lambda per, n, s: (
                per.weights / (n if s >= 1 else 1)
                + per.gradient / (n if s >= 2 else 1)
                + (per.master + per.state) / (n if s >= 3 else 1)
            ),
            "you begin with the weights",
        ),
        (weights_before_gradients, "the other way round"),
        (gradients_before_master_weights, "not right yet"),
    ]
    assert_verdicts(checks.zero_bytes, cases)


def nearest_minimum(layers, inside):
    divisors = [k for k in range(1, layers + 1) if layers % k == 0]
    return min(divisors, key=lambda k: abs(k - math.sqrt(inside * layers)))


def test_best_segments():
    cases = [
        (lambda n, a: math.sqrt(n), "whole number"),
        (lambda n, a: 5, "not equally long"),
        (nearest_root, "no more than its input"),
        (nearest_minimum, "compare the peaks themselves"),
        (lambda n, a: n // segments(n, a), "the length of the best segments"),
        (lambda n, a: 1, "highest peak of all"),
        (lambda n, a: n // 2, "give a peak of"),
        (lambda n, a: 12.5, "whole number, not 12.5"),
        (lambda n, a: np.int64(segments(n, a)), "passed"),
    ]
    assert_verdicts(checks.best_segments, cases)
