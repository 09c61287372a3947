"""Exercises of notebook 05 on AdaGrad and Adam."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits, normal, sizes
from cs336_course.engine.records import Record, plain
from cs336_course.engine.several_results import one_of

NOTEBOOK = "05_adagrad"

# adagrad_by_hand

ASKED = ("the state", "the weight")


def pair() -> Iterator[Case]:
    """Yield the two numbers that are asked for."""
    for name in ASKED:
        yield Case(name)


def observe_pair(answer: Any, case: Case) -> Record:
    """Return one number of a pair."""
    numbers = plain(answer)
    numbers = numbers.tolist() if isinstance(numbers, Tensor) else numbers
    is_pair = isinstance(numbers, list) and len(numbers) == 2 and ... not in list(answer)
    if not is_pair:
        return {"form": numbers}
    return {"form": "a pair", "number": numbers[ASKED.index(case.what)]}


def walk(*denominators: float, lr: float = 0.1) -> tuple[int, float]:
    """Return a right state, and the weight after three steps with wrong denominators."""
    gradients = (8, 15, 144)
    return 21025, 1 - lr * sum(g / d for g, d in zip(gradients, denominators, strict=False))


STATE = "8**2 + 15**2 + 144**2"

adagrad_by_hand = Exercise(
    NOTEBOOK,
    "adagrad_by_hand",
    pair,
    observe=observe_pair,
    answers=("answer",),
    is_quiz=True,
    tolerance=70,  # 0.7125 is right and 0.7124 is not
    smaller="The gradients are 3 and 4. What is the sum of squares after each step, and its root?",
    says={
        "form": "give two numbers, the accumulated state and the weight: answer = (..., ...).",
    },
    wrong={
        "the two are swapped; the state comes first, then the weight.": "answer = (0.7125, 21025)",
        "you averaged the squares; AdaGrad sums them.": (STATE, "21025 / 3"),
        "you summed the gradients; sum their squares.": (STATE, "8 + 15 + 144"),
        "that is the square of the sum; sum the squares.": (STATE, "167**2"),
        "that is the last square alone; the state is the sum of all three.": (STATE, "144**2"),
        "the third square is missing; the state is the sum of all three.": (STATE, "289"),
        "145 is the square root of the state; the state is the sum itself.": (STATE, "145"),
        "the sign is wrong; a positive gradient lowers the weight.": ("1 - 0.1", "1 + 0.1"),
        "you used the final sum for every step; each step divides by the root of the sum so far.": [
            walk(145, 145, 145),
            (21025, 0.8848),
        ],
        "the root is missing, so you divided by the sums themselves.": walk(64, 289, 21025),
        "you divided by the root of the average; AdaGrad takes the root of the sum.": walk(
            8, math.sqrt(289 / 2), math.sqrt(21025 / 3)
        ),
        "that is the third step alone, from w = 1; all three add up.": ("8 / 8 + 15 / 17 + ", ""),
        "you divided each gradient by itself; the sum also holds the earlier squares.": walk(
            8, 15, 144
        ),
        "you divided by the sum of the gradients; take the root of the sum of squares.": walk(
            8, 23, 167
        ),
        "these are the first two steps; the third is missing.": (" + 144 / 145", ""),
        "that is SGD, which has no denominator.": walk(1, 1, 1),
        "the learning rate is missing.": ("0.1 * ", ""),
        "that is how far the weight moves; it starts at 1.": ("1 - 0.1", "-0.1"),
        "that is how far the weight moves; it starts at 1, and moves down.": ("1 - 0.1", "0.1"),
        "give four decimals.": (21025, 0.71),
        "three decimals are too few; give four.": (21025, 0.713),
        "you cut off the fifth decimal; round it.": (21025, 0.7124),
    },
    refused=[
        (STATE, "21026"),
        (STATE, "1"),
        (21025, 0.5),
        ("21025", 0.7125),
        (21025, ...),
        [21025, 0.7125, 0],
        {"state": 21025, "weight": 0.7125},
        21025,
        None,
    ],
    right=[
        (21025, 0.7125),
        [21025.0, walk(8, 17, 145)[1]],
        (np.int64(21025), np.float32(0.7124544)),
        torch.tensor([21025, 0.7124544]),
        np.array([21025, 0.7125]),
        (21025, torch.tensor([0.7124544])),
    ],
)


# adam_step

UPDATED = ("w", "m", "v")
SETTINGS: dict[str, Any] = {"t": 3, "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 0.4}


def updated() -> Iterator[Case]:
    """Yield what is returned. The weights come last, because they depend on m and v."""
    for name in ("m", "v", "w"):
        yield Case(name)


def moments() -> Iterator[Case]:
    """Yield the arguments of Adam's step."""
    w, grad = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.3, -4.0, 0.05])
    m, v = torch.tensor([0.2, 1.0, -0.1]), torch.tensor([0.01, 2.0, 0.003])
    # eps is above the root of a corrected v.
    yield Case("three weights at t = 3", w=w, grad=grad, m=m, v=v, **SETTINGS)
    rare = grad * torch.tensor([1, 0, 1])
    yield Case(
        "a gradient of 0, with the old ones in m and v", w=w, grad=rare, m=m, v=v, **SETTINGS
    )
    bounds: dict[str, Any] = {
        "lr": (10, 300),
        "beta1": (500, 950),
        "beta2": (900, 990),
        "eps": (5, 100),
    }
    for seed, size in enumerate(sizes(6, rows=(1, 4), cols=(1, 5), t=(1, 40), **bounds)):
        w, m, v = normal(3, size.rows, size.cols, seed=seed)
        grad = normal(size.cols, size.rows, seed=100 + seed).T  # not contiguous
        settings = {"t": size.t} | {name: getattr(size, name) / 1000 for name in bounds}
        what = f"weights of shape {tuple(w.shape)} at t = {size.t}, with other settings"
        yield Case(what, w=w, grad=grad, m=m, v=v**2, **settings)
    w, zeros = torch.tensor([1.0, -2.0, 0.5]), torch.zeros(3)
    at_rest = SETTINGS | {"t": 1, "eps": 1e-8}
    yield Case("gradients that were all 0", w=w, grad=zeros, m=zeros, v=zeros, **at_rest)
    one = torch.tensor(1.0)
    first = SETTINGS | {"t": 1}
    yield Case("a single weight, without axes", w=one, grad=-one, m=one / 2, v=one, **first)
    w, m, v = normal(3, 4).double()
    grad = torch.tensor(0.5).double().expand(4)
    late = SETTINGS | {"t": 1000}
    yield Case("float64 weights at t = 1000", w=w, grad=grad, m=m, v=v**2, **late)


def fused(w, grad, m, v, t, lr, beta1, beta2, eps):
    """Use functions that do several operations at once."""
    m, v = m.lerp(grad, 1 - beta1), torch.addcmul(beta2 * v, grad, grad, value=1 - beta2)
    root = (v / (1 - beta2**t)).sqrt().add_(eps)
    return [torch.addcdiv(w, m, root, value=-lr / (1 - beta1**t)), m, v]


def corrected_rate(w, grad, m, v, t, lr, beta1, beta2, eps):
    """Correct the rate, as in section 2 of Adam's paper, with eps scaled to match."""
    m, v = m + (1 - beta1) * (grad - m), v + (1 - beta2) * (grad.square() - v)
    root = np.sqrt(1 - beta2**t)
    return w - lr * root / (1 - beta1**t) * m / (v.sqrt() + eps * root), m, v


def by_weight(w, grad, m, v, t, lr, beta1, beta2, eps):
    """Go through the weights."""
    m, v = torch.empty_like(m).copy_(m), torch.empty_like(v).copy_(v)
    new = torch.empty_like(w)
    for i in np.ndindex(*w.shape):
        m[i] = beta1 * m[i] + (1 - beta1) * grad[i]
        v[i] = beta2 * v[i] + (1 - beta2) * grad[i] ** 2
        new[i] = w[i] - lr * m[i] / (1 - beta1**t) / ((v[i] / (1 - beta2**t)) ** 0.5 + eps)
    return new, m, v


def by_pytorch(w, grad, m, v, t, lr, beta1, beta2, eps):
    """Give PyTorch's Adam the state."""
    p = nn.Parameter(w.clone())
    p.grad = grad.clone()
    optimizer = torch.optim.Adam([p], lr, (beta1, beta2), eps)
    state = {"step": torch.tensor(float(t - 1)), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    optimizer.state[p] = state
    optimizer.step()
    return p.detach(), state["exp_avg"], state["exp_avg_sq"]


M = "m = beta1 * m + (1 - beta1) * grad\n"
V = "v = beta2 * v + (1 - beta2) * grad**2\n"
HATS = "m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)"
MOVED = "w - lr * m_hat / (v_hat.sqrt() + eps)"
ROOT = "(v_hat.sqrt() + eps)"
NEW = "return w"

adam_step = Exercise(
    NOTEBOOK,
    "adam_step",
    updated,
    observe=one_of(UPDATED, moments),
    is_quiz=True,
    smaller="m and v start at 0, and the first gradient is 3. What should the corrected m and v "
    "be?",
    says={"form": "return three tensors: the new weights, m and v."},
    wrong={
        "m lacks the factor (1 - beta1) on the gradient. It's a running mean, not a sum.": (
            M,
            "m = beta1 * m + grad\n",
        ),
        "in m, beta1 and 1 - beta1 are swapped.": (M, "m = (1 - beta1) * m + beta1 * grad\n"),
        "you return the corrected m; use the correction in this step only and keep m as the "
        "state.": ("eps), m, v", "eps), m_hat, v"),
        "m and v are swapped; return w, m and v in this order.": ("eps), m, v", "eps), v, m"),
        "m uses beta2; it takes beta1.": (M, "m = beta2 * m + (1 - beta2) * grad\n"),
        "you return the old m; the next step needs the new one.": edits(
            (M, "old = m\n    " + M), ("eps), m, v", "eps), old, v")
        ),
        "v takes the gradient where it needs its square, grad**2.": ("grad**2", "grad"),
        "v lacks the factor (1 - beta2) on the square.": (V, "v = beta2 * v + grad**2\n"),
        "in v, beta2 and 1 - beta2 are swapped.": (V, "v = (1 - beta2) * v + beta2 * grad**2\n"),
        "you return the corrected v; keep v itself as the state.": ("eps), m, v", "eps), m, v_hat"),
        "v sums up the squares of all weights; each weight has its own.": [
            ("grad**2", "(grad**2).sum()"),
            ("grad**2", "grad.norm() ** 2"),
        ],
        "v takes the gradient's size where it needs its square, grad**2.": (
            "grad**2",
            "grad.abs()",
        ),
        "v uses beta1; it takes beta2.": (V, "v = beta1 * v + (1 - beta1) * grad**2\n"),
        "v squares m; it takes the square of the gradient.": ("grad**2", "m**2"),
        "v squares the factor 1 - beta2, too; only the gradient is squared.": (
            V,
            "v = beta2 * v + ((1 - beta2) * grad) ** 2\n",
        ),
        "you return the old v; the next step needs the new one.": edits(
            (V, "old = v\n    " + V), ("eps), m, v", "eps), m, old")
        ),
        "the sign is wrong, so you climb.": ("w - lr", "w + lr"),
        "bias correction is missing; divide m by 1 - beta1**t and v by 1 - beta2**t.": (
            HATS,
            "m_hat, v_hat = m, v",
        ),
        "right at t = 1, but later the bias correction is missing; divide m by 1 - beta1**t and v "
        "by 1 - beta2**t at every step.": (
            HATS,
            f"{HATS}\n    if t > 1:\n        m_hat, v_hat = m, v",
        ),
        "bias correction of m is missing.": ("m / (1 - beta1**t)", "m"),
        "bias correction of v is missing.": ("v / (1 - beta2**t)", "v"),
        "the two corrections are swapped; m takes beta1, and v takes beta2.": (
            HATS,
            "m_hat, v_hat = m / (1 - beta2**t), v / (1 - beta1**t)",
        ),
        "m is corrected with beta2; it takes beta1.": ("beta1**t", "beta2**t"),
        "v is corrected with beta1; it takes beta2.": ("beta2**t", "beta1**t"),
        "you divide by 1 - beta; the power t is missing.": ("**t", ""),
        "the correction is 1 - beta**t, a power; 1 - beta * t may be negative, and its root is "
        "nan.": ("**t", " * t"),
        "your eps is inside the root; it belongs outside, as in sqrt(v) + eps.": (
            ROOT,
            "(v_hat + eps).sqrt()",
        ),
        "your eps is inside the root and bias correction is missing.": edits(
            (HATS, "m_hat, v_hat = m, v"), (ROOT, "(v_hat + eps).sqrt()")
        ),
        "eps has no effect in your step; add the argument eps to the root of v.": (" + eps", ""),
        "you add 1e-8, whatever eps is; add the argument eps to the root of v.": (
            "+ eps)",
            "+ 1e-8)",
        ),
        "you take eps as a lower limit of the root; add it to the root.": (
            ROOT,
            "v_hat.sqrt().clamp(min=eps)",
        ),
        "you divide the gradient, which is RMSProp; Adam divides its running mean m.": (
            "lr * m_hat",
            "lr * grad",
        ),
        "you divide the old m; the step takes the new one.": edits(
            (M, "old = m\n    " + M), ("m / (1", "old / (1")
        ),
        "you divide by the root of the old v; the step takes the new one.": edits(
            (V, "old = v\n    " + V), ("v / (1", "old / (1")
        ),
        "the root is missing; divide by the root of v.": ("v_hat.sqrt()", "v_hat"),
        "you count steps from 0; t is already 1 at the first step.": [
            ("**t", "**(t - 1)"),
            (HATS, HATS.replace("**t)", "**(t - 1) or 1)")),
        ],
        "you count one step too many; t is already 1 at the first step.": ("**t", "**(t + 1)"),
        "you multiply by 1 - beta**t; divide by it.": (HATS, HATS.replace("/", "*")),
        "your eps is added before v is corrected; correct v, take the root, then add eps.": (
            ROOT,
            "((v.sqrt() + eps) / (1 - beta2**t) ** 0.5)",
        ),
        "the learning rate is missing.": ("lr * ", ""),
        "you return the change of the weights; return the new weights.": ("w - lr", "-lr"),
        "weights whose gradients were all 0 become nan; eps has to keep 0 / 0 away.": (
            "+ eps",
            "+ round(eps, 3)",
        ),
        "weights whose gradient is 0 move, too, because m remembers older gradients.": (
            "lr * m_hat",
            "lr * (grad != 0) * m_hat",
        ),
        "m changes where the gradient is 0, too; it fades there.": (
            M,
            f"old = m\n    {M}    m = torch.where(grad == 0, old, m)\n",
        ),
        "v changes where the gradient is 0, too; it fades there.": (
            V,
            f"old = v\n    {V}    v = torch.where(grad == 0, old, v)\n",
        ),
    },
    refused=[
        (M, "m = beta1 * m - (1 - beta1) * grad\n"),
        (M, "m = 0.9 * m + 0.1 * grad\n"),
        (M, f"beta1, beta2 = 0.9, 0.99\n    {M}"),
        (M, f"beta1, beta2 = beta2, beta1\n    {M}"),
        (M, f"grad = grad.clamp(-1, 1)\n    {M}"),
        ("grad**2", "grad**4"),
        ("**t", "**3"),
        (HATS, f"{HATS}\n    if t > 3:\n        m_hat, v_hat = m, v"),
        ("lr *", "0.1 *"),
        ("m_hat, v_hat =", "old, v = v, v\n    v = v.maximum(old / beta2)\n    m_hat, v_hat ="),
        ("return w -", "return w * (1 - 0.1 * lr) -"),
        ("return w -", "w, m, v = w.float(), m.float(), v.float()\n    return w -"),
        (MOVED, f"w.copy_({MOVED})"),
        (MOVED, f"({MOVED}).mean()"),
        (MOVED, "w.sub_(lr * m_hat / (v_hat.sqrt() + eps))"),
        edits((M, "m.mul_(beta1).add_(grad, alpha=1 - beta1)\n")),
        edits((V, "v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)\n")),
        ("eps), m, v", "eps)"),
        ("eps), m, v", "eps), m"),
        ("return w", "return None and w"),
        lambda *inputs: 1 / 0,
    ],
    right=[
        fused,
        corrected_rate,
        by_weight,
        by_pytorch,
        lambda w, grad, m, v, *settings: fused(w, grad, m, v, *map(torch.tensor, settings)),
    ],
)
