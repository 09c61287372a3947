"""Each check of notebook 04 passes the right answer and names the mistake of a wrong one."""

import itertools
from collections import Counter, defaultdict, namedtuple
from fractions import Fraction

import numpy as np
import pytest
import torch
from verdicts import assert_verdicts, stub, verdict

from cs336_course.checks import accounting as checks
from cs336_course.checks.report import DiagnosisError
from cs336_course.demos.roofline import roofline

# The right answers.


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


def at_best(op, peak, bandwidth):
    return max(op.work.flops / peak, op.work.bytes / bandwidth)


def explain(step, peak, bandwidth, found_by=lambda op, best: op.seconds - best, combine=sum):
    figures = {}
    for op in step:
        figures.setdefault(op.kind, []).append(found_by(op, at_best(op, peak, bandwidth)))
    least = sum(at_best(op, peak, bandwidth) for op in step)
    return least, max(figures, key=lambda kind: combine(figures[kind]))


def sharded(per, gpus, stage):
    parts = (per.master + per.state, per.gradient, per.weights)
    return sum(part / gpus for part in parts[:stage]) + sum(parts[stage:])


# Right answers that are written differently


def backward_by_layer(batch, widths):
    flops = 0
    for layer in range(len(widths) - 1):
        matmuls = 1 if layer == 0 else 2
        flops += matmuls * 2 * batch * widths[layer] * widths[layer + 1]
    return flops


def backward_from_the_end(batch, widths):
    *hidden, first = forward(batch, widths)[::-1]
    return np.int64(2 * sum(hidden)) + first


Bill = namedtuple("Bill", "parameters flops bytes")


def cost_by_matrix(n_layer, n_embd, vocab_size, seq):
    c = n_embd
    matrices = [(c, 3 * c), (c, c), (c, 4 * c), (4 * c, c)] * n_layer + [(c, vocab_size)]
    flops = sum(2 * a * b for a, b in matrices) + n_layer * 2 * (2 * seq * c)
    parameters = sum(a * b for a, b in matrices) + seq * c
    weights = gradients = 4 * parameters
    return Bill(parameters, flops, weights + gradients + 2 * 4 * parameters)


def explain_by_kind(operations, peak, bandwidth):
    """The speed by the roofline, and a list for each kind."""
    gaps, least = defaultdict(list), []
    for op in operations:
        seconds = op.work.flops / roofline(op.work.intensity, peak, bandwidth)
        least.append(seconds)
        gaps[op.kind].append(op.seconds - seconds)
    return [np.float64(np.sum(least)), sorted(gaps, key=lambda kind: -sum(gaps[kind]))[0]]


def explain_by_counter(operations, peak, bandwidth):
    """An operator faster than its roofline loses nothing."""
    lost, least = Counter(), torch.tensor(0.0, dtype=torch.float64)
    for op in reversed(operations):
        seconds = max(op.work.flops / peak, op.work.bytes / bandwidth)
        least += seconds
        lost[op.kind] += max(0, op.seconds - seconds)
    return least, lost.most_common(1)[0][0]


def sharded_by_branches(per, gpus, stage):
    if stage == 0:
        return per.total
    if stage == 1:
        return per.weights + per.gradient + (per.master + per.state) / gpus
    if stage == 2:
        return per.weights + (per.total - per.weights) / gpus
    return per.total / gpus


def sharded_by_saving(per, gpus, stage):
    saved = 0
    for part in (per.master + per.state, per.gradient, per.weights)[:stage]:
        saved += part - part / gpus
    return np.float64(per.total - saved)


RIGHT = {
    checks.backward_flops: [
        backward,
        backward_by_layer,
        backward_from_the_end,
        lambda batch, widths: torch.tensor(backward(batch, widths)),
        lambda batch, widths: float(backward(batch, widths)),
    ],
    checks.transformer_cost: [
        cost,
        cost_by_matrix,
        lambda *shape: list(cost(*shape)),
        lambda *shape: np.array(cost(*shape)),
        lambda *shape: torch.tensor(cost(*shape)),
    ],
    checks.step_gap: [explain, explain_by_kind, explain_by_counter],
    checks.zero_bytes: [
        sharded,
        sharded_by_branches,
        sharded_by_saving,
        lambda per, gpus, stage: sharded(per, Fraction(gpus), stage),
    ],
}


@pytest.mark.parametrize("check", RIGHT)
def test_answers_that_are_written_differently(check):
    assert_verdicts(check, [(answer, "passed") for answer in RIGHT[check]])


def test_no_two_mistakes_give_the_same_numbers_for_all_inputs():
    shapes, shardings = list(checks.shapes()), itertools.product(checks.shardings(), (0, 1, 2, 3))
    tables = {
        "backward_flops": [
            checks.backward_mistakes(b, w) | {"": backward(b, w)} for b, w in checks.chains()
        ],
        "parameters": [checks.parameter_mistakes(*s) | {"": parameters(*s)} for s in shapes],
        "flops": [checks.flop_mistakes(*s) | {"": flops(*s)} for s in shapes],
        "bytes": [checks.byte_mistakes(parameters(*s)) | {"": 16 * parameters(*s)} for s in shapes],
        "step_gap": [
            checks.time_mistakes(*step) | {"": explain(*step)[0]} for step in checks.steps()
        ],
        "zero_bytes": [
            checks.sharding_mistakes(per, gpus, stage) | {"": sharded(per, gpus, stage)}
            for (per, gpus), stage in shardings
        ],
    }
    for name, cases in tables.items():
        diagnoses = {diagnosis for mistakes in cases for diagnosis in mistakes}
        columns = [tuple(m.get(diagnosis) for m in cases) for diagnosis in diagnoses]
        assert len(set(columns)) == len(columns) > 5, name


def test_right_untouched_and_broken():
    different = []
    for check, (answer, *_) in RIGHT.items():
        cases = {
            "passed": answer,
            "not attempted yet": stub,
            "your code raised ZeroDivisionError": lambda *_: 1 / 0,
            "not right yet. ": lambda *_: None,
        }
        said = {expected: verdict(check, answer) for expected, answer in cases.items()}
        different += [line for expected, line in said.items() if f": {expected}" not in line]
    assert different == []


def in_32_bits(batch, widths):
    flops = backward(batch, widths)
    return (flops + 2**31) % 2**32 - 2**31


def in_float32(batch, widths):
    w = torch.tensor(widths, dtype=torch.float32)
    flops = 2 * batch * w[:-1] * w[1:]
    return int(2 * flops.sum() - flops[0])


def by_first_size(batch, widths):
    flops = forward(batch, widths)
    return sum(layer if layer == flops[0] else 2 * layer for layer in flops)


def by_first_width(batch, widths):
    pairs = itertools.pairwise(widths)
    return sum((2 if a == widths[0] else 4) * batch * a * b for a, b in pairs)


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
        (lambda b, w: 7, "the number is off for batch 8 and widths (4, 16, 16, 3)."),
        (lambda b, w: "many", "not str"),
        (lambda b, w: (backward(b, w), b), "not tuple"),
        (lambda b, w: 2 * sum(forward(b, w)) - max(forward(b, w)), "at the largest layer"),
        (lambda b, w: b * backward(b, w), "multiply by the batch twice"),
        (lambda b, w: backward(8, w), "the number is off for batch 7 and widths (5, 3, 2)."),
        (in_32_bits, "don't fit into an int32"),
        (lambda b, w: int(np.float32(backward(b, w))), "only the 24 bits of float32"),
        (lambda b, w: backward(b, w) + b * sum(w[1:]), "have no biases"),
        (lambda b, w: backward(b, w) + b * sum(w[1:-1]), "leave out the activations"),
        (
            lambda b, w: sum(
                (4 if n else 2) * b * x * y - (2 if n else 1) * b * y
                for n, (x, y) in enumerate(itertools.pairwise(w))
            ),
            "By convention a matmul takes 2 m n p",
        ),
        (lambda b, w: 2 * sum(forward(1, w)), "for one example, and has the gradient"),
        (lambda b, w: backward(b, w) + sum(forward(1, w)), "the optimizer's update"),
        (lambda b, w: backward(b, w) - forward(b, w)[-1], "at the last layer, too"),
        (lambda b, w: backward(b, w) * (1 + 1e-7), "the number is off for batch 8"),
        (
            lambda b, w: 2 * b * w[0] * w[1] + 4 * b * w[1] * w[2],
            "You count the first two layers only",
        ),
        (lambda b, w: backward(b, w[:3]), "You count the first two layers only"),
        (in_float32, "right to six digits, but not exact for batch 65536"),
        (
            lambda b, w: backward(b, w) if len(w) > 2 else None,
            "returns None for batch 3 and widths (5, 7)",
        ),
        (by_first_size, "go by its position"),
        (by_first_width, "off for batch 1 and widths (32, 32, 16)"),
        (lambda b, w: 2 * sum(set(forward(b, w))) - forward(b, w)[0], "Layers of the same size"),
        (lambda b, w: 2 * sum(forward(b, w)) - min(forward(b, w)), "at the smallest layer"),
        (lambda b, w: backward(64, w), "off for batch 8 and widths (4, 16, 16, 3)"),
        (lambda b, w: backward(b, w[:4]), "off for batch 1 and widths (9, 2, 2, 1, 6)"),
        (lambda b, w: backward(b, w) if len(w) > 2 else 0, "off for batch 3 and widths (5, 7)"),
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
        (lambda n, c, v, t: parameters(n, c, v, t) - v * c, "The token embedding is missing"),
        (lambda n, c, v, t: n * parameters(1, c, v, t), "aren't in every block"),
        (lambda n, c, v, t: parameters(n, c, v, t) + 9 * n * c, "You count biases; this"),
        (lambda n, c, v, t: parameters(n, c, v, t) + 13 * n * c + 2 * c, "biases and norms"),
        (lambda n, c, v, t: parameters(n, c, v, t) + n * t * t, "T x T scores"),
        (lambda n, c, v, t: parameters(n, c, v, 1024), "There are `seq` positions"),
        (lambda n, c, v, t: flops(n, c, v, t), "The parameters come first"),
        (lambda *shape: int(np.float32(parameters(*shape))), "only the 24 bits of float32"),
        (lambda n, c, v, t: parameters(n, c, v, 32), "off for the parameters of n_layer=12"),
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
        (lambda n, c, v, t: flops(n, c, v, t) + 8 * n * t * c, "three times too much"),
        (lambda n, c, v, t: n * (12 * c * c + 4 * t * c) + v * c, "two there, too"),
        (lambda n, c, v, t: flops(n, c, v, t) - 2 * n * (t - 1) * c, "sees on average"),
        (lambda n, c, v, t: flops(n, c, v, t) + 5 * n * t, "the softmax of attention"),
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
        (20, "needs no master copy"),
        (1, "the number of parameters"),
        (128, "a byte has 8"),
        (18, "mixed precision"),
        (16e-9, "billions of bytes"),
        (2.0**-26, "GiB"),
        (8, "or your numbers take 2 bytes"),
        (7, "the number is off for the bytes of n_layer=3"),
    ]
    assert_verdicts(checks.transformer_cost, [(answer(factor), said) for factor, said in cases])


def test_three_numbers():
    cases = [
        (lambda *shape: parameters(*shape), "Return three numbers"),
        (lambda *shape: cost(*shape)[:2], "Return three numbers"),
        (lambda *shape: dict(enumerate(cost(*shape))), "Return three numbers"),
        (lambda *shape: (cost(*shape), 0, 0), "a number is expected, not tuple"),
    ]
    assert_verdicts(checks.transformer_cost, cases)


def by_kinds(step, peak, bandwidth):
    totals = 0
    for kind in {op.kind for op in step}:
        work = [op.work for op in step if op.kind == kind]
        computing, moving = sum(w.flops for w in work), sum(w.bytes for w in work)
        totals += max(computing / peak, moving / bandwidth)
    return totals


def by_intensity(op, peak, bandwidth):
    """The seconds if the ridge were at one FLOP per byte."""
    return op.work.flops / peak if op.work.intensity > 1 else op.work.bytes / bandwidth


def by_its_kind(op, peak, bandwidth):
    """The seconds if matmuls only compute, and everything else only moves."""
    is_matmul = op.kind in ("matmul", "attention")
    return op.work.flops / peak if is_matmul else op.work.bytes / bandwidth


def test_seconds_of_a_step():
    def answer(seconds):
        return lambda step, p, b: (seconds(step, p, b), explain(step, p, b)[1])

    cases = [
        (lambda s, p, b: sum(o.work.flops / p + o.work.bytes / b for o in s), "add the two times"),
        (lambda s, p, b: sum(min(o.work.flops / p, o.work.bytes / b) for o in s), "the shorter"),
        (lambda s, p, b: sum(o.work.flops for o in s) / p, "only the computing"),
        (lambda s, p, b: sum(o.work.bytes for o in s) / b, "only the moving"),
        (
            lambda s, p, b: max(sum(o.work.flops for o in s) / p, sum(o.work.bytes for o in s) / b),
            "the step's two totals",
        ),
        (lambda s, p, b: sum(o.seconds for o in s), "that were measured"),
        (lambda s, p, b: sum(o.seconds - at_best(o, p, b) for o in s), "That is the gap"),
        (lambda s, p, b: 1e3 * explain(s, p, b)[0], "milliseconds"),
        (lambda s, p, b: 1.0, "the number is off for 12 operators"),
        (lambda s, p, b: sum(at_best(o, b, p) for o in s), "swapped peak and bandwidth"),
        (lambda s, p, b: max(at_best(o, p, b) for o in s), "the longest operator"),
        (by_kinds, "each kind's two totals"),
        (lambda s, p, b: sum(at_best(o, 100e12, 2e12) for o in s), "2.5e+11 FLOP/s"),
    ]
    first = "the number is off for 12 operators at 1e+14"
    cases += [
        (lambda s, p, b: explain(s[:-1] or s, p, b)[0], first),
        (lambda s, p, b: sum(by_intensity(o, p, b) for o in s), first),
        (
            lambda s, p, b: sum(by_its_kind(o, p, b) for o in s),
            "the computing of matmuls and attention, and the moving of the rest; each",
        ),
    ]
    assert_verdicts(checks.step_gap, [(answer(wrong), said) for wrong, said in cases])


def of_kinds(step, peak, bandwidth):
    """The kind that loses the most if each kind has one roofline."""
    lost = {}
    for kind in {op.kind for op in step}:
        ops = [op for op in step if op.kind == kind]
        lost[kind] = sum(op.seconds for op in ops) - by_kinds(ops, peak, bandwidth)
    return max(lost, key=lost.get)


def nothing_lost(step, peak, bandwidth):
    """Explain a step in which some kind is slower than its roofline."""
    least, kind = explain(step, peak, bandwidth)
    gaps = [op.seconds - at_best(op, peak, bandwidth) for op in step if op.kind == kind]
    return least, kind if sum(gaps) > 0 else ""


def by_name(step, peak, bandwidth):
    lost = Counter()
    for op in step:
        lost[op.name] += op.seconds - at_best(op, peak, bandwidth)
    return explain(step, peak, bandwidth)[0], lost.most_common(1)[0][0]


def emptied(step, peak, bandwidth):
    found = explain(step, peak, bandwidth)
    step.clear()
    return found


def test_each_mistake_finds_another_kind_in_the_first_step():
    step, peak, bandwidth = next(checks.steps())
    gaps, took, ratios = defaultdict(list), Counter(), Counter()
    for op in step:
        best = at_best(op, peak, bandwidth)
        gaps[op.kind].append(op.seconds - best)
        took[op.kind] += op.seconds
        ratios[op.kind] = max(ratios[op.kind], op.seconds / best)
    found = [max(figures, key=figures.get) for figures in (took, ratios)]
    found += [max(gaps, key=lambda kind: by(gaps[kind])) for by in (sum, max, np.mean)]
    found += [
        max(gaps, key=lambda kind: gaps[kind][-1]),
        min(gaps, key=lambda kind: sum(gaps[kind])),
    ]
    assert len(set(found)) == len(found)


def test_the_seconds_that_kinds_lose_are_figures_for_a_later_attempt():
    rows = [("A", 0.3), ("A", 0.3), ("B", 3.35), ("C", 0.25), ("D", 0.06)]
    step = [checks.operation(kind, 1e6, 1e8, milliseconds) for kind, milliseconds in rows]
    best = [0.05e-3, 0.05e-3, 3.05e-3, 0.05e-3, 0.05e-3]
    with pytest.raises(DiagnosisError, match=r"^C isn't the kind that loses the most") as error:
        checks.expect_kind("C", step, best, {"takes the longest": "B"})
    assert error.value.figures == "C loses 0.20 ms, and A 0.50 ms."
    assert checks.expect_kind("A", step, best, {}) is None


def test_kind_that_explains_a_step():
    def by(found_by, combine=sum):
        return lambda *step: explain(*step, found_by, combine)

    cases = [
        (lambda *step: explain(*step)[0], "Return a pair"),
        (lambda *step: explain(*step)[::-1], "first the seconds, then the kind"),
        (lambda *step: (explain(*step)[0], "GELU"), "not 'GELU'"),
        (by(lambda op, best: op.seconds), "takes the longest"),
        (by(lambda op, best: op.seconds / best, max), "largest ratio"),
        (by(lambda op, best: op.seconds - best, max), "longest gap"),
        (by(lambda op, best: op.seconds - best, np.mean), "largest mean gap"),
        (by(lambda op, best: op.seconds - best, lambda gaps: gaps[-1]), "only the last operator"),
        (by(lambda op, best: abs(op.seconds - best)), "but it's faster"),
        (by(lambda op, best: best - op.seconds), "loses the least"),
        (lambda *step: (explain(*step)[0], "matmul"), "isn't the kind that loses the most"),
        (lambda *step: (explain(*step)[0], of_kinds(*step)), "if each kind has one roofline"),
        (by(lambda op, best: op.seconds, max), "has the slowest operator"),
        (by(lambda op, best: op.seconds - best, lambda gaps: gaps[0]), "only the first operator"),
        (by(lambda op, best: op.seconds / best), "add up the ratios"),
        (by(lambda op, best: op.seconds, len), "has the most operators"),
        (by(lambda op, best: op.work.flops), "has the most FLOPs"),
        (lambda *step: (explain(*step)[0], max(op.kind for op in step[0])), "compares names"),
        (lambda *step: (explain(*step)[0], {"matmul": 1.0}), "is expected, not {'matmul'"),
        (nothing_lost, "One of the kinds one is expected, not ''"),
        (lambda *step: (explain(*step)[0], "norms"), "One of the kinds AdamW, matmul, loss"),
        (by_name, "is expected, not 'aten_no'"),
        (emptied, "changes its list of operations"),
    ]
    assert_verdicts(checks.step_gap, cases)


def weights_before_gradients(per, gpus, stage):
    optimizer = (per.master + per.state) / (gpus if stage >= 1 else 1)
    weights = per.weights / (gpus if stage >= 2 else 1)
    return optimizer + weights + per.gradient / (gpus if stage >= 3 else 1)


def gradients_before_master_weights(per, gpus, stage):
    moments = (per.gradient + per.state) / (gpus if stage >= 1 else 1)
    master = per.master / (gpus if stage >= 2 else 1)
    return moments + master + per.weights / (gpus if stage >= 3 else 1)


def whole_bytes(per, gpus, stage):
    parts = (per.master + per.state, per.gradient, per.weights)
    return sum(part // gpus for part in parts[:stage]) + sum(parts[stage:])


def whole_bytes_of_each_part(per, gpus, stage):
    optimizer = (per.master + per.state) // (gpus if stage >= 1 else 1)
    gradient = per.gradient // (gpus if stage >= 2 else 1)
    return optimizer + gradient + per.weights // (gpus if stage >= 3 else 1)


def only_shards(per, gpus, stage):
    parts = (per.master + per.state, per.gradient, per.weights)
    return sum(parts[:stage]) / gpus if stage else per.total


def whole_gradient(per, gpus, is_whole):
    """The bytes that a GPU holds more if the gradient isn't sharded."""
    return per.gradient * (1 - 1 / gpus) if is_whole else 0


def test_zero_bytes():
    cases = [
        (lambda per, n, s: per.total / n, "divide everything at every stage"),
        (lambda per, n, s: per.total / n if s else per.total, "divide everything from stage 1 on"),
        (lambda per, n, s: per.total / n**s, "once more at each stage"),
        (
            lambda per, n, s: sharded(checks.BytesPerParameter(2, 2, 4, 8), n, s),
            "You always count 2, 2, 4 and 8 bytes; read the fields of `per`",
        ),
        (
            lambda per, n, s: sharded(per, n, s) if s else None,
            "returns None for stage=0, gpus=8 and a per of",
        ),
        (only_shards, "What your stage doesn't shard is missing"),
        (lambda per, n, s: sharded(per, n, min(s, 2)), "Your weights are never sharded"),
        (lambda per, n, s: 8 * sharded(per, n, s), "Those are bits"),
        (lambda per, n, s: round(sharded(per, n, s), 2), "You round; keep"),
        (lambda per, n, s: round(sharded(per, n, s)), "You round to whole numbers"),
        (lambda per, n, s: per.sharded(n, s), "write it by hand"),
        (lambda per, n, s: sharded(per, n, min(s + 1, 3)), "stage 0 doesn't shard"),
        (lambda per, n, s: sharded(per, n, max(s - 1, 0)), "stage 1 shards the optimizer's part"),
        (lambda per, n, s: sharded(per, n, s) * n, "sum over all GPUs"),
        (lambda per, n, s: per.total - sharded(per, n, s), "what sharding saves"),
        (
            lambda per, n, s: (
                sharded(per, n, s) if s != 1 else per.total - per.state + per.state / n
            ),
            "the master weights as well",
        ),
        (lambda per, n, s: sharded(per, n, s) - per.master / (n if s else 1), "are missing"),
        (lambda per, n, s: sharded(per, n, s) - per.state / (n if s else 1), "state is missing"),
        (whole_bytes, "// drops the fraction"),
        (whole_bytes_of_each_part, "// drops the fraction"),
        (lambda per, n, s: sharded(per, 8, s), "off for stage=1, gpus=1"),
        (lambda per, n, s: "whole", "not str"),
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
        (gradients_before_master_weights, "the number is off for stage=1"),
        (lambda per, n, s: checks.BytesPerParameter.sharded(per, n, s), "write it by hand"),
        (lambda per, n, s: sharded(per, min(n, 64), s), "off for stage=1, gpus=1024"),
        (lambda per, n, s: int(sharded(per, n, s)), "round to whole bytes"),
        (lambda per, n, s: sharded(per, n, s) + whole_gradient(per, n, s >= 2), "never sharded"),
        (lambda per, n, s: sharded(per, n, s) + whole_gradient(per, n, s == 3), "at stage 2 only"),
    ]
    assert_verdicts(checks.zero_bytes, cases)
