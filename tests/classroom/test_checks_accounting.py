"""Each check of notebook 04 passes the right answer and names the mistake of a wrong one."""

import itertools

from verdicts import assert_verdicts, stub, verdict

from cs336_lib.classroom.checks import accounting as checks

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
    return per.sharded(gpus, stage)


RIGHT = {
    checks.backward_flops: backward,
    checks.transformer_cost: cost,
    checks.step_gap: explain,
    checks.zero_bytes: sharded,
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
        (lambda s, p, b: 1.0, "you get 1"),
    ]
    assert_verdicts(checks.step_gap, [(answer(wrong), said) for wrong, said in cases])


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
        (by(lambda op, best: best - op.seconds), "loses"),
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
