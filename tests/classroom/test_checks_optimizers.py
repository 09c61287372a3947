"""Every check of notebook 05: silent stub, right answer, and each mistake with its diagnosis."""

import math

import torch
import torch.nn.functional as F
from verdicts import assert_untouched, assert_verdicts

from cs336_lib.classroom.checks import optimizers as checks


def test_untouched_stubs():
    assert_untouched(checks, checks.__all__, adagrad_by_hand=...)


# --- unit_output -------------------------------------------------------------------------------


def draw(scale):
    return lambda i, o, g: torch.randn(i, o, generator=g) * scale(i, o)


INITS = {
    "passed": draw(lambda i, o: 1 / math.sqrt(i)),
    "multiply by sqrt(d_in)": draw(lambda i, o: math.sqrt(i)),
    "the weights have std 1": draw(lambda i, o: 1),
    "you divide by d_in": draw(lambda i, o: 1 / i),
    "divide by sqrt(d_out)": draw(lambda i, o: 1 / math.sqrt(o)),
    "Xavier's compromise": draw(lambda i, o: math.sqrt(2 / (i + o))),
    "He's factor": draw(lambda i, o: math.sqrt(2 / i)),
    "no weight is negative": lambda i, o, g: torch.rand(i, o, generator=g) / math.sqrt(i),
    "the shape should be": lambda i, o, g: torch.randn(o, i, generator=g) / math.sqrt(i),
    "two calls with equal generators differ": lambda i, o, g: torch.randn(i, o) / math.sqrt(i),
    "do not seed one": lambda i, o, g: (
        torch.randn(i, o, generator=torch.Generator().manual_seed(0)) / math.sqrt(i)
    ),
    "the output's std would be 3.00": draw(lambda i, o: 3 / math.sqrt(i)),
    "return a tensor": lambda i, o, g: None,
}


def test_unit_output():
    assert_verdicts(checks.unit_output, INITS)


# --- cross_entropy -----------------------------------------------------------------------------


def chosen(values, targets):
    return values.gather(-1, targets[..., None])


def nll(logits, targets):
    return -chosen(logits.log_softmax(-1), targets)


LOSSES = {
    "passed": lambda x, y: nll(x, y).mean(),
    "the sign is wrong": lambda x, y: -nll(x, y).mean(),
    "you sum over the positions": lambda x, y: nll(x, y).sum(),
    "not by B * T * V": lambda x, y: nll(x, y).mean() / x.size(-1),
    "functional.cross_entropy does all": lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten()),
    "functional.nll_loss does all": lambda x, y: F.nll_loss(
        x.log_softmax(-1).flatten(0, 1), y.flatten()
    ),
    "you divide by B only": lambda x, y: nll(x, y).sum() / x.size(0),
    "as if they were log-probabilities": lambda x, y: -chosen(x, y).mean(),
    "softmax is over the positions": lambda x, y: -chosen(x.log_softmax(1), y).mean(),
    "the logarithm is missing": lambda x, y: -chosen(x.softmax(-1), y).mean(),
    "the log of the mean probability": lambda x, y: -chosen(x.softmax(-1), y).mean().log(),
    "base 2": lambda x, y: nll(x, y).mean() / math.log(2),
    "exp overflows": lambda x, y: -chosen((x.exp() / x.exp().sum(-1, True)).log(), y).mean(),
    "a probability rounds to 0": lambda x, y: -chosen(x.softmax(-1).log(), y).mean(),
    "a loss is one number": lambda x, y: nll(x, y).squeeze(-1),
    "for random logits it should be": lambda x, y: nll(x, y).mean() + 1,
}


def test_cross_entropy():
    assert_verdicts(checks.cross_entropy, LOSSES)


# --- adagrad_by_hand ---------------------------------------------------------------------------

RIGHT_WEIGHT = 1 - 0.1 * (8 / 8 + 15 / 17 + 144 / 145)
BY_HAND = {
    "passed": (21025, round(RIGHT_WEIGHT, 4)),
    "you averaged the squares": (21025 / 3, RIGHT_WEIGHT),
    "you summed the gradients": (167, RIGHT_WEIGHT),
    "the last square alone": (20736, RIGHT_WEIGHT),
    "145 is the square root of the state": (145, RIGHT_WEIGHT),
    "add 225, then 20736": (1, RIGHT_WEIGHT),
    "the sign is wrong": (21025, 2 - RIGHT_WEIGHT),
    "you used the final sum for every step": (21025, 1 - 0.1 * 167 / 145),
    "the root is missing": (21025, 1 - 0.1 * (8 / 64 + 15 / 289 + 144 / 21025)),
    "the root of the average": (
        21025,
        1 - 0.1 * (1 + 15 / math.sqrt(289 / 2) + 144 / math.sqrt(21025 / 3)),
    ),
    "the third step alone": (21025, 1 - 0.1 * 144 / 145),
    "you divided each gradient by itself": (21025, 0.7),
    "the state is right; the weight is": (21025, 0.5),
    "give two numbers": 21025,
    "give two numbers, the accumulated": (21025, ...),
    "the two are swapped": (0.7125, 21025),
    "8, then 17, then 145": (21025, 0.8848),  # rounded, as the task asks
}


def test_adagrad_by_hand():
    assert_verdicts(checks.adagrad_by_hand, BY_HAND)


# --- adam_step ---------------------------------------------------------------------------------


def first_moment(m, g, b1, b2):
    return b1 * m + (1 - b1) * g


def second_moment(v, g, b1, b2, m):
    return b2 * v + (1 - b2) * g * g


def direction(g, m, v, c1, c2, e):
    return (m / c1) / ((v / c2).sqrt() + e)


def adam(mean=first_moment, square=second_moment, move=direction, sign=1, late=0):
    def step(w, g, m, v, t, lr, b1, b2, eps):
        new_m = mean(m, g, b1, b2)
        new_v = square(v, g, b1, b2, new_m)
        c1, c2 = 1 - b1 ** (t - late), 1 - b2 ** (t - late)
        return w - sign * lr * move(g, new_m, new_v, c1, c2, eps), new_m, new_v

    return step


def returns_corrected(which):
    def step(w, g, m, v, t, lr, b1, b2, eps):
        w, m, v = adam()(w, g, m, v, t, lr, b1, b2, eps)
        return (w, m / (1 - b1**t), v) if which == "m" else (w, m, v / (1 - b2**t))

    return step


ADAMS = {
    "passed": adam(),
    "m lacks the factor": adam(mean=lambda m, g, b1, b2: b1 * m + g),
    "in m, beta1 and 1 - beta1": adam(mean=lambda m, g, b1, b2: (1 - b1) * m + b1 * g),
    "you return the corrected m": returns_corrected("m"),
    "m uses beta2": adam(mean=lambda m, g, b1, b2: b2 * m + (1 - b2) * g),
    "m should be": adam(mean=lambda m, g, b1, b2: m),
    "v takes the gradient where it needs its square": adam(
        square=lambda v, g, b1, b2, m: b2 * v + (1 - b2) * g
    ),
    "v lacks the factor": adam(square=lambda v, g, b1, b2, m: b2 * v + g * g),
    "in v, beta2 and 1 - beta2": adam(square=lambda v, g, b1, b2, m: (1 - b2) * v + b2 * g * g),
    "you return the corrected v": returns_corrected("v"),
    "v uses beta1": adam(square=lambda v, g, b1, b2, m: b1 * v + (1 - b1) * g * g),
    "v squares m": adam(square=lambda v, g, b1, b2, m: b2 * v + (1 - b2) * m * m),
    "v should be": adam(square=lambda v, g, b1, b2, m: v),
    "you climb": adam(sign=-1),
    "bias correction is missing: divide": adam(
        move=lambda g, m, v, c1, c2, e: direction(g, m, v, 1, 1, e)
    ),
    "bias correction of m is missing": adam(
        move=lambda g, m, v, c1, c2, e: direction(g, m, v, 1, c2, e)
    ),
    "bias correction of v is missing": adam(
        move=lambda g, m, v, c1, c2, e: direction(g, m, v, c1, 1, e)
    ),
    "your eps is inside the root; it belongs outside": adam(
        move=lambda g, m, v, c1, c2, e: (m / c1) / (v / c2 + e).sqrt()
    ),
    "your eps is inside the root and bias correction is missing": adam(
        move=lambda g, m, v, c1, c2, e: m / (v + e).sqrt()
    ),
    "you divide the gradient, which is RMSProp": adam(
        move=lambda g, m, v, c1, c2, e: g / ((v / c2).sqrt() + e)
    ),
    "the root is missing": adam(move=lambda g, m, v, c1, c2, e: (m / c1) / (v / c2 + e)),
    "you count steps from 0": adam(late=1),
    "you multiply by 1 - beta**t": adam(
        move=lambda g, m, v, c1, c2, e: direction(g, m, v, 1 / c1, 1 / c2, e)
    ),
    "your eps is added before v is corrected": adam(
        move=lambda g, m, v, c1, c2, e: (m / c1) / ((v.sqrt() + e) / c2**0.5)
    ),
    "m and v are right": adam(sign=3),
    "return three tensors": lambda w, g, m, v, *_: (w, m),
}


def test_adam_step():
    assert_verdicts(checks.adam_step, ADAMS)


# --- newton_schulz -----------------------------------------------------------------------------


def iterate(
    x, steps, divide=True, each=False, cube=lambda x: x @ x.T @ x, minus=0.5, back=False, fixed=None
):
    norm = x.norm()
    x = x / (divide(x) if callable(divide) else norm) if divide else x
    for _ in range(fixed if fixed is not None else steps):
        x = 1.5 * x - minus * cube(x)
        x = x / x.norm() if each else x
    return x * norm if back else x


def variant(**changes):
    return lambda matrix, steps: iterate(matrix, steps, **changes)


SCHULZES = {
    "passed": variant(),
    "it diverges to infinity": variant(divide=False),
    "x**3 cubes the entries": variant(cube=lambda x: x**3),
    "in every round": variant(each=True),
    "you multiply the norm back in": variant(back=True),
    "you do one round only": variant(fixed=1),
    "the rounds are missing": variant(fixed=0),
    "is the number of rounds fixed": variant(fixed=25),
    "one round more than": lambda matrix, steps: iterate(matrix, steps + 1),
    "one round fewer than": lambda matrix, steps: iterate(matrix, steps - 1),
    "the largest singular value": variant(divide=lambda x: torch.linalg.matrix_norm(x, 2)),
    "the singular values run from": variant(fixed=3),
    "not the matrix's own": lambda matrix, steps: torch.eye(*matrix.shape),
    "return a matrix of the shape": lambda matrix, steps: matrix.T,
}


def test_newton_schulz():
    assert_verdicts(checks.newton_schulz, SCHULZES)
    cubic_term_added = variant(minus=-0.5)
    assert_verdicts(checks.newton_schulz, {"it diverges to infinity": cubic_term_added})
