"""Every check of notebook 05: silent stub, right answer, and each mistake with its diagnosis."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import cross_entropy as from_torch
from torch.nn.functional import nll_loss as the_nll
from verdicts import assert_untouched, assert_verdicts

from cs336_course.checks import optimizers as checks
from cs336_course.demos.short_optimizers import orthogonalise


def test_untouched_stubs():
    assert_untouched(checks, checks.__all__, adagrad_by_hand=...)


# --- unit_output -------------------------------------------------------------------------------


def draw(scale):
    return lambda i, o, g: torch.randn(i, o, generator=g) * scale(i, o)


def column_norms(i, o, g):
    """Weights whose columns have a norm of exactly 1."""
    return F.normalize(torch.randn(i, o, generator=g), dim=0)


def by_own_std(i, o, g):
    w = torch.randn(i, o, generator=g)
    variance = (w - w.mean()).square().sum() / (w.numel() - 1)
    return w / variance.sqrt() / math.sqrt(i)


def signs(i, o, g):
    """Weights of one size and random signs."""
    return (2 * torch.randint(2, (i, o), generator=g) - 1) / i**0.5


RIGHT_INITS = [
    draw(lambda i, o: i**-0.5),
    lambda i, o, g: torch.normal(0.0, i**-0.5, (i, o), generator=g),
    lambda i, o, g: torch.empty(i, o).normal_(std=1 / math.sqrt(i), generator=g),
    lambda i, o, g: nn.init.normal_(torch.empty(i, o), std=float(np.sqrt(1 / i)), generator=g),
    lambda i, o, g: nn.init.trunc_normal_(torch.empty(i, o), 0.0, i**-0.5, -9.0, 9.0, g),
    lambda i, o, g: torch.randn(o, i, generator=g).T / torch.tensor(i).sqrt(),
    lambda i, o, g: (2 * torch.rand(i, o, generator=g) - 1) * math.sqrt(3 / i),
    lambda i, o, g: torch.stack([torch.randn(o, generator=g) for _ in range(i)]) / i**0.5,
    lambda i, o, g: nn.Parameter(torch.randn(i, o, generator=g).div(math.sqrt(i))),
    column_norms,
    signs,
]
INITS = {
    "multiply by sqrt(d_in)": draw(lambda i, o: math.sqrt(i)),
    "the weights have a std of 1": draw(lambda i, o: 1),
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
    "the output's std is not 1": draw(lambda i, o: 3 / math.sqrt(i)),
    "not for d_in = 256 and d_out = 256": draw(lambda i, o: 1 / math.sqrt(1024)),
    "not for d_in = 1 and d_out = 20000": lambda i, o, g: nn.init.trunc_normal_(
        torch.empty(i, o), std=i**-0.5, generator=g
    ),
    "a matrix of shape (1, 1) gets the weight nan": lambda i, o, g: by_own_std(i, o, g),
    "not for d_in = 5 and d_out = 4096": draw(lambda i, o: 1 / math.isqrt(i)),
    "variance of 1/3": lambda i, o, g: (2 * torch.rand(i, o, generator=g) - 1) / math.sqrt(i),
    "the norm of the whole matrix": lambda i, o, g: F.normalize(
        torch.randn(i * o, generator=g), dim=0
    ).view(i, o),
    "too much alike": lambda i, o, g: torch.randn(i, 1, generator=g).expand(i, o) / math.sqrt(i),
    "a draw moves it on": lambda i, o, g: (
        torch.randn(i, o, generator=g.manual_seed(g.initial_seed())) / math.sqrt(i)
    ),
    "the weights are torch.float64": lambda i, o, g: column_norms(i, o, g).double(),
    "return a tensor": lambda i, o, g: None,
}


def test_unit_output():
    assert_verdicts(checks.unit_output, [(init, "passed") for init in RIGHT_INITS])
    assert_verdicts(checks.unit_output, INITS)
    # At 1024 x 256 these are the scales of He or of a division by sqrt(d_out), or right
    coincidences = [
        (draw(lambda i, o: (i * o) ** -0.25), "the output's std is not 1"),
        (draw(lambda i, o: min(i, o) ** -0.5), "the output's std is not 1"),
        (draw(lambda i, o: 256**-0.5), "the output's std is not 1"),
        (draw(lambda i, o: max(i, o) ** -0.5), "not for d_in = 5 and d_out = 4096"),
        (
            lambda i, o, g: nn.init.orthogonal_(torch.empty(i, o), generator=g),
            "not for d_in = 5 and d_out = 4096",
        ),
    ]
    assert_verdicts(checks.unit_output, coincidences)


# --- cross_entropy -----------------------------------------------------------------------------


def chosen(values, targets):
    return values.gather(-1, targets[..., None])


def nll(logits, targets):
    return -chosen(logits.log_softmax(-1), targets)


def top(x):
    return x.abs().amax(-1, keepdim=True)


def one_hot_loss(x, y):
    one_hot = F.one_hot(y, x.size(-1))
    return -(one_hot * F.log_softmax(x, dim=-1)).sum() / y.numel()


def shifted_loss(x, y):
    x = x - x.max(dim=-1, keepdim=True).values
    rows, columns = torch.meshgrid(*map(torch.arange, y.shape), indexing="ij")
    return (x.exp().sum(-1).log() - x[rows, columns, y]).mean(dim=(0, 1))


def loop_loss(x, y):
    losses = [
        torch.logsumexp(x[b, t], 0) - x[b, t, y[b, t]]
        for b in range(len(x))
        for t in range(x.shape[1])
    ]
    return sum(losses) / len(losses)


def numpy_loss(x, y):
    x = x.numpy().astype(np.float64)
    chosen = np.take_along_axis(x, y.numpy()[..., None], -1)[..., 0]
    return np.mean(np.logaddexp.reduce(x, axis=-1) - chosen)


RIGHT_LOSSES = [
    lambda x, y: nll(x, y).mean(),
    lambda x, y: -torch.distributions.Categorical(logits=x).log_prob(y).mean(),
    one_hot_loss,
    shifted_loss,
    loop_loss,
    lambda x, y: (x.logsumexp(-1) - chosen(x, y).squeeze()).mean(),
]
OTHER_LOSSES = [
    (lambda x, y: from_torch(x.flatten(0, 1), y.flatten()), "cross_entropy does all"),
    (lambda x, y: the_nll(x.log_softmax(-1).flatten(0, 1), y.flatten()), "nll_loss does all"),
    (lambda x, y: x.logsumexp(-1).mean() - x[:, :, y].mean(), "takes all targets"),
    (lambda x, y: nll(x.half(), y).mean().float(), "rounded to float16"),
    (lambda x, y: nll(x.bfloat16(), y).mean().float(), "rounded to bfloat16"),
    (lambda x, y: -chosen(x.sigmoid(), y).log().mean(), "a sigmoid"),
    (lambda x, y: nll(x, y).mean().item(), "the gradient is lost"),
    (lambda x, y: nll(x, y).mean().detach(), "the gradient is lost"),
    (torch.no_grad()(shifted_loss), "the gradient is lost"),
    (numpy_loss, "the gradient is lost, because NumPy"),
    (
        lambda x, y: (x.detach().logsumexp(-1) - chosen(x, y).squeeze(-1)).mean(),
        "the values are right, but the gradient of logits isn't",
    ),
    (
        lambda x, y: (x.logsumexp(-1) - chosen(x.detach(), y).squeeze(-1)).mean(),
        "the values are right, but the gradient of logits isn't",
    ),
]
LOSSES = {
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
    "for random logits": lambda x, y: nll(x, y).mean() + 1,
    "logits of shape": lambda x, y: nll(x, y).sum() / 10,
    "you divide by T only": lambda x, y: nll(x, y).sum() / x.size(1),
    "softmax is over the batch": lambda x, y: -chosen(x.log_softmax(0), y).mean(),
    "the largest logit only": lambda x, y: (x.amax(-1, keepdim=True) - chosen(x, y)).mean(),
    "you shift the targets": lambda x, y: nll(x[:, :-1], y[:, 1:]).mean(),
    "you leave out the targets that are 0": lambda x, y: nll(x, y)[y != 0].mean(),
    "the last position only": lambda x, y: nll(x, y)[:, -1].mean(),
    "the first row only": lambda x, y: nll(x, y)[0].mean(),
    "a loss of 1000 comes out smaller": lambda x, y: (
        -(chosen(x.softmax(-1), y) + 1e-12).log().mean()
    ),
    "not one maximum for all": lambda x, y: (
        (x - x.max()).exp().sum(-1, keepdim=True).log() - chosen(x - x.max(), y)
    ).mean(),
    "changes its input logits": lambda x, y: nll(x.sub_(x.amax(-1, keepdim=True)), y).mean(),
    "is the `return` missing": lambda x, y: None,
    "one of 200 is not": lambda x, y: (
        -chosen(x.softmax(-1), y).log().nan_to_num(neginf=-1000).mean()
    ),
    "not the largest absolute value": lambda x, y: (
        (x - top(x)).exp().sum(-1, keepdim=True).log() - chosen(x - top(x), y)
    ).mean(),
    "limit nothing": lambda x, y: nll(x.clamp(-1000, 1000), y).mean(),
    "don't add it back": lambda x, y: (nll(x, y) - x.amax(-1, keepdim=True)).mean(),
    "that is the perplexity": lambda x, y: nll(x, y).mean().exp(),
    "use .reshape": lambda x, y: nll(x, y).mean() + 0 * y.view(-1)[0],
}


def test_cross_entropy():
    assert_verdicts(checks.cross_entropy, [(loss, "passed") for loss in RIGHT_LOSSES])
    assert_verdicts(checks.cross_entropy, LOSSES)
    assert_verdicts(checks.cross_entropy, OTHER_LOSSES)


# --- adagrad_by_hand ---------------------------------------------------------------------------

RIGHT_WEIGHT = 1 - 0.1 * (8 / 8 + 15 / 17 + 144 / 145)
RIGHT_PAIRS = [
    (21025, round(RIGHT_WEIGHT, 4)),
    [21025.0, RIGHT_WEIGHT],
    (np.int64(21025), np.float32(RIGHT_WEIGHT)),
    torch.tensor([21025, RIGHT_WEIGHT]),
    (8 * 8 + 15 * 15 + 144 * 144, torch.tensor(0.9 - 0.1 * (15 / 17 + 144 / 145))),
    (145**2, 0.7125),
]
BY_HAND = {
    "you averaged the squares": (21025 / 3, RIGHT_WEIGHT),
    "you summed the gradients": (167, RIGHT_WEIGHT),
    "the last square alone": (20736, RIGHT_WEIGHT),
    "145 is the square root of the state": (145, RIGHT_WEIGHT),
    "the square of the sum": (167**2, RIGHT_WEIGHT),
    "the third square is missing": (289, RIGHT_WEIGHT),
    "off for the state": (1, RIGHT_WEIGHT),
    "a number is expected": ("21025", RIGHT_WEIGHT),
    "the sign is wrong": (21025, 2 - RIGHT_WEIGHT),
    "you used the final sum for every step": (21025, 1 - 0.1 * 167 / 145),
    "the root is missing": (21025, 1 - 0.1 * (8 / 64 + 15 / 289 + 144 / 21025)),
    "the root of the average": (
        21025,
        1 - 0.1 * (1 + 15 / math.sqrt(289 / 2) + 144 / math.sqrt(21025 / 3)),
    ),
    "the third step alone": (21025, 1 - 0.1 * 144 / 145),
    "you divided each gradient by itself": (21025, 0.7),
    "off for the weight, though the state is right": (21025, 0.5),
    "you divided by the sum of the gradients": (21025, 0.9 - 0.1 * (15 / 23 + 144 / 167)),
    "the first two steps": (21025, 0.9 - 0.1 * 15 / 17),
    "that is SGD": (21025, 1 - 16.7),
    "the learning rate is missing": (21025, -(15 / 17 + 144 / 145)),
    "it starts at 1.": (21025, RIGHT_WEIGHT - 1),
    "it starts at 1, and moves down": (21025, 1 - RIGHT_WEIGHT),
    "give four decimals": (21025, 0.71),
    "you cut off the fifth decimal": (21025, 0.7124),
    "off for the state.": (21026, RIGHT_WEIGHT),
    "three decimals": (21025, 0.713),
    "give two numbers, the": {"state": 21025, "weight": 0.7125},
    "give two numbers": 21025,
    "give two numbers, the accumulated": (21025, ...),
    "the two are swapped": (0.7125, 21025),
    "by the root of the sum so far": (21025, 0.8848),  # rounded, as the task asks
}


def test_adagrad_by_hand():
    assert_verdicts(checks.adagrad_by_hand, [(pair, "passed") for pair in RIGHT_PAIRS])
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


def fused(w, grad, m, v, t, lr, beta1, beta2, eps):
    m, v = m.lerp(grad, 1 - beta1), torch.addcmul(beta2 * v, grad, grad, value=1 - beta2)
    root = (v / (1 - beta2**t)).sqrt().add_(eps)
    return [torch.addcdiv(w, m, root, value=-lr / (1 - beta1**t)), m, v]


def corrected_rate(w, grad, m, v, t, lr, beta1, beta2, eps):
    """Adam as in the paper's section 2, with eps scaled to match."""
    m, v = m + (1 - beta1) * (grad - m), v + (1 - beta2) * (grad.square() - v)
    root = np.sqrt(1 - beta2**t)
    return w - lr * root / (1 - beta1**t) * m / (v.sqrt() + eps * root), m, v


def by_loop(w, grad, m, v, t, lr, beta1, beta2, eps):
    m, v = torch.empty_like(m).copy_(m), torch.empty_like(v).copy_(v)
    new = torch.empty_like(w)
    for i in np.ndindex(*w.shape):
        m[i] = beta1 * m[i] + (1 - beta1) * grad[i]
        v[i] = beta2 * v[i] + (1 - beta2) * grad[i] ** 2
        new[i] = w[i] - lr * m[i] / (1 - beta1**t) / ((v[i] / (1 - beta2**t)) ** 0.5 + eps)
    return new, m, v


def by_pytorch(w, grad, m, v, t, lr, beta1, beta2, eps):
    p = nn.Parameter(w.clone())
    p.grad = grad.clone()
    optimizer = torch.optim.Adam([p], lr, (beta1, beta2), eps)
    state = {"step": torch.tensor(float(t - 1)), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    optimizer.state[p] = state
    optimizer.step()
    return p.detach(), state["exp_avg"], state["exp_avg_sq"]


def in_place(w, grad, m, v, t, lr, beta1, beta2, eps):
    new, *state = adam()(w, grad, m, v, t, lr, beta1, beta2, eps)
    return w.copy_(new), *state


def average_weight(w, *rest):
    w, m, v = adam()(w, *rest)
    return w.mean(), m, v


def in_float32(*inputs):
    return tuple(x.float() for x in adam()(*inputs))


def with_corrections(correction):
    def step(w, g, m, v, t, lr, b1, b2, eps):
        _, m, v = adam()(w, g, m, v, t, lr, b1, b2, eps)
        return w - lr * direction(g, m, v, correction(b1, t), correction(b2, t), eps), m, v

    return step


def with_old_state(which):
    def step(w, g, m, v, t, lr, b1, b2, eps):
        _, new_m, new_v = adam()(w, g, m, v, t, lr, b1, b2, eps)
        used = (m, new_v) if which == "m" else (new_m, v)
        return w - lr * direction(g, *used, 1 - b1**t, 1 - b2**t, eps), new_m, new_v

    return step


def with_tensors(w, grad, m, v, *settings):
    return adam()(w, grad, m, v, *map(torch.tensor, settings))


RIGHT_ADAMS = [adam(), with_tensors, fused, corrected_rate, by_loop, by_pytorch]
ADAMS = {
    "m lacks the factor": adam(mean=lambda m, g, b1, b2: b1 * m + g),
    "in m, beta1 and 1 - beta1": adam(mean=lambda m, g, b1, b2: (1 - b1) * m + b1 * g),
    "you return the corrected m": returns_corrected("m"),
    "m uses beta2": adam(mean=lambda m, g, b1, b2: b2 * m + (1 - b2) * g),
    "you return the old m": adam(mean=lambda m, g, b1, b2: m),
    "m should be": adam(mean=lambda m, g, b1, b2: b1 * m - (1 - b1) * g),
    "for weights of shape (4, 4) at t = 3": adam(mean=lambda m, g, b1, b2: 0.9 * m + 0.1 * g),
    "v takes the gradient where it needs its square": adam(
        square=lambda v, g, b1, b2, m: b2 * v + (1 - b2) * g
    ),
    "v lacks the factor": adam(square=lambda v, g, b1, b2, m: b2 * v + g * g),
    "in v, beta2 and 1 - beta2": adam(square=lambda v, g, b1, b2, m: (1 - b2) * v + b2 * g * g),
    "you return the corrected v": returns_corrected("v"),
    "v uses beta1": adam(square=lambda v, g, b1, b2, m: b1 * v + (1 - b1) * g * g),
    "v squares m": adam(square=lambda v, g, b1, b2, m: b2 * v + (1 - b2) * m * m),
    "you return the old v": adam(square=lambda v, g, b1, b2, m: v),
    "v should be": adam(square=lambda v, g, b1, b2, m: b2 * v + (1 - b2) * g**4),
    "v takes the gradient's size": adam(square=lambda v, g, b1, b2, m: b2 * v + (1 - b2) * g.abs()),
    "v sums up the squares": adam(square=lambda v, g, b1, b2, m: b2 * v + (1 - b2) * (g @ g)),
    "m and v are swapped": lambda *case: tuple(adam()(*case)[n] for n in (0, 2, 1)),
    "m is corrected with beta2": adam(
        move=lambda g, m, v, c1, c2, e: direction(g, m, v, c2, c2, e)
    ),
    "v is corrected with beta1": adam(
        move=lambda g, m, v, c1, c2, e: direction(g, m, v, c1, c1, e)
    ),
    "v squares the factor": adam(square=lambda v, g, b1, b2, m: b2 * v + ((1 - b2) * g) ** 2),
    "you climb": adam(sign=-1),
    "bias correction is missing; divide": adam(
        move=lambda g, m, v, c1, c2, e: direction(g, m, v, 1, 1, e)
    ),
    "right at t = 1, but at t = 3 the bias correction is missing": with_corrections(
        lambda beta, t: 1 - beta if t == 1 else 1
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
    "the two corrections are swapped": adam(
        move=lambda g, m, v, c1, c2, e: direction(g, m, v, c2, c1, e)
    ),
    "eps has no effect": adam(move=lambda g, m, v, c1, c2, e: direction(g, m, v, c1, c2, 0)),
    "as a lower limit of the root": adam(
        move=lambda g, m, v, c1, c2, e: (m / c1) / (v / c2).sqrt().clamp(min=e)
    ),
    "m should be beta1 * m + (1 - beta1) * grad; yours is not where a gradient is 0": adam(
        mean=lambda m, g, b1, b2: torch.where(g == 0, m, first_moment(m, g, b1, b2))
    ),
    "(sqrt(v^) + eps) where a gradient is 0": adam(
        move=lambda g, m, v, c1, c2, e: direction(g, m, v, c1, c2, e) * (g != 0)
    ),
    "become nan": adam(move=lambda g, m, v, c1, c2, e: direction(g, m, v, c1, c2, round(e, 3))),
    "the power t is missing": with_corrections(lambda beta, t: 1 - beta),
    "not finite": with_corrections(lambda beta, t: 1 - beta * t),
    "you divide the old m": with_old_state("m"),
    "the root of the old v": with_old_state("v"),
    "you count steps from 0": adam(late=1),
    "you count one step too many": adam(late=-1),
    "the learning rate is missing": lambda w, g, m, v, t, lr, *rest: adam()(
        w, g, m, v, t, 1, *rest
    ),
    "you return the change of the weights": lambda w, *rest: adam()(0 * w, *rest),
    "changes its input w in place": in_place,
    "the new m is torch.float32": in_float32,
    "the new w has shape ()": average_weight,
}


def test_adam_step():
    assert_verdicts(checks.adam_step, [(step, "passed") for step in RIGHT_ADAMS])
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


def transposed(matrix, steps):
    """Iterate on the wide matrix, whose products are smaller."""
    tall = matrix.size(0) > matrix.size(1)
    x = iterate(matrix.T if tall else matrix, steps)
    return x.T if tall else x


def divides_in_every_round(matrix, steps):
    x = matrix
    for _ in range(steps):
        x = x / x.norm()
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


def on_singular_values(matrix, steps):
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.square().sum().sqrt()
    for _ in range(steps):
        s = (3 * s - s**3) / 2
    return u * s @ vh


def with_identity(matrix, steps):
    x = matrix / (matrix.pow(2).sum() ** 0.5 + 1e-7)
    identity = torch.eye(matrix.size(1), dtype=matrix.dtype)
    while steps > 0:
        x, steps = x @ (1.5 * identity - 0.5 * (x.T @ x)), steps - 1
    return x


RIGHT_SCHULZES = [
    variant(),
    variant(cube=lambda x: torch.linalg.multi_dot([x, x.T, x])),
    variant(divide=lambda x: torch.linalg.matrix_norm(x)),
    transposed,
    on_singular_values,
    with_identity,
]
SCHULZES = {
    "it diverges to infinity": variant(divide=False),
    "x**3 cubes the entries": variant(cube=lambda x: x**3),
    "in every round": variant(each=True),
    "so the singular values can't reach 1": divides_in_every_round,
    "only the bits of torch.bfloat16": lambda matrix, steps: variant()(
        matrix.bfloat16(), steps
    ).float(),
    "only the bits of torch.float16": lambda matrix, steps: variant()(matrix.half(), steps).float(),
    "you multiply the norm back in": variant(back=True),
    "you do one round only": variant(fixed=1),
    "the rounds are missing": variant(fixed=0),
    "the result of many rounds": variant(fixed=25),
    "Is the number of rounds fixed": lambda matrix, steps: iterate(matrix, max(steps, 8)),
    "but not for one of shape": lambda matrix, steps: iterate(matrix, max(steps, 2)),
    "each row by its own norm": variant(divide=lambda x: x.norm(dim=1, keepdim=True)),
    "each column by its own norm": variant(divide=lambda x: x.norm(dim=0, keepdim=True)),
    "Muon's coefficients": orthogonalise,
    "changes its input matrix": lambda matrix, steps: iterate(matrix.div_(matrix.norm()), steps),
    "the result is torch.float32": lambda matrix, steps: iterate(matrix.float(), steps),
    "one round more than": lambda matrix, steps: iterate(matrix, steps + 1),
    "one round fewer than": lambda matrix, steps: iterate(matrix, steps - 1),
    "the largest singular value": variant(divide=lambda x: torch.linalg.matrix_norm(x, 2)),
    "not all singular values are 1": variant(fixed=3),
    "by the largest entry": variant(divide=lambda x: x.max()),
    "by the largest magnitude": variant(divide=lambda x: x.abs().max()),
    "by the sum of the magnitudes": variant(divide=lambda x: x.abs().sum()),
    "by the sum of the squares": variant(divide=lambda x: x.square().sum()),
    "not the matrix's own": lambda matrix, steps: torch.eye(*matrix.shape),
    "with steps=0 you skip the division": lambda matrix, steps: (
        iterate(matrix, steps) if steps else matrix
    ),
    "return a matrix of the shape": lambda matrix, steps: matrix.T,
}


def test_newton_schulz():
    assert_verdicts(checks.newton_schulz, [(answer, "passed") for answer in RIGHT_SCHULZES])
    assert_verdicts(checks.newton_schulz, SCHULZES)
    cubic_term_added = variant(minus=-0.5)
    assert_verdicts(checks.newton_schulz, {"it diverges to infinity": cubic_term_added})
