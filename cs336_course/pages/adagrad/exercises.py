"""Exercises of the page on AdaGrad: a step of Adam, and the betas that can't take a shock."""

from collections.abc import Iterator
from typing import Any

import torch

from cs336_course.engine import Case, Exercise, edits, normal, sizes
from cs336_course.engine.records import Record
from cs336_course.engine.several_results import one_of
from cs336_course.shared.named_letters import named_letters, says

NOTEBOOK = "05_adagrad"

UPDATED = ("w", "m", "v")
SETTINGS: dict[str, Any] = {"t": 3, "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 0.4}


def updated() -> Iterator[Case]:
    """Yield what is returned. The weights come last, because they depend on m and v."""
    yield from map(Case, ("m", "v", "w"))


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
    for seed, size in enumerate(sizes(4, rows=(1, 4), cols=(1, 5), t=(1, 40), **bounds)):
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


M = "m = beta1 * m + (1 - beta1) * grad\n"
V = "v = beta2 * v + (1 - beta2) * grad**2\n"
HATS = "m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)"
ROOT = "(v_hat.sqrt() + eps)"
RETURNED = "eps), m, v"

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
        "state.": (RETURNED, "eps), m_hat, v"),
        "the order is wrong; return w, m and v in this order.": (RETURNED, "eps), v, m"),
        "m uses beta2; it takes beta1.": (M, "m = beta2 * m + (1 - beta2) * grad\n"),
        "you return the old m; the next step needs the new one.": edits(
            (M, "old = m\n    " + M), (RETURNED, "eps), old, v")
        ),
        "v takes the gradient where it needs its square, grad**2.": [
            ("grad**2", "grad"),
            ("grad**2", "grad.abs()"),
        ],
        "v lacks the factor (1 - beta2) on the square.": [
            (V, "v = beta2 * v + grad**2\n"),
            (V, "v = v + grad**2\n"),
        ],
        "in v, beta2 and 1 - beta2 are swapped.": (V, "v = (1 - beta2) * v + beta2 * grad**2\n"),
        "you return the corrected v; keep v itself as the state.": (RETURNED, "eps), m, v_hat"),
        "v sums up the squares of all weights; each weight has its own.": [
            ("grad**2", "(grad**2).sum()"),
            ("grad**2", "grad.norm() ** 2"),
        ],
        "v uses beta1; it takes beta2.": (V, "v = beta1 * v + (1 - beta1) * grad**2\n"),
        "v squares m; it takes the square of the gradient.": ("grad**2", "m**2"),
        "v squares the factor 1 - beta2, too; only the gradient is squared.": (
            V,
            "v = beta2 * v + ((1 - beta2) * grad) ** 2\n",
        ),
        "you return the old v; the next step needs the new one.": edits(
            (V, "old = v\n    " + V), (RETURNED, "eps), m, old")
        ),
        "the sign is wrong, so you climb.": ("w - lr", "w + lr"),
        "bias correction is missing; divide m by 1 - beta1**t and v by 1 - beta2**t.": (
            HATS,
            "m_hat, v_hat = m, v",
        ),
        "bias correction of m is missing.": ("m / (1 - beta1**t)", "m"),
        "bias correction of v is missing.": ("v / (1 - beta2**t)", "v"),
        "the corrections are mixed up; m takes beta1, and v takes beta2.": [
            (HATS, "m_hat, v_hat = m / (1 - beta2**t), v / (1 - beta1**t)"),
            ("beta1**t", "beta2**t"),
            ("beta2**t", "beta1**t"),
        ],
        "the correction is 1 - beta**t, with t as the power of beta.": [
            ("**t", ""),
            ("**t", " * t"),
            (HATS, HATS.replace("**t)", ")**t")),
        ],
        "your eps is inside the root; it belongs outside, as in sqrt(v) + eps.": (
            ROOT,
            "(v_hat + eps).sqrt()",
        ),
        "your eps is inside the root and bias correction is missing.": edits(
            (HATS, "m_hat, v_hat = m, v"), (ROOT, "(v_hat + eps).sqrt()")
        ),
        "eps has no effect in your step; add the argument eps to the root of v.": [
            (" + eps", ""),
            ("+ eps)", "+ 1e-8)"),
            (ROOT, "v_hat.sqrt().clamp(min=eps)"),
        ],
        "you divide the gradient, which is RMSProp; Adam divides its running mean m.": (
            "lr * m_hat",
            "lr * grad",
        ),
        "you divide the old m, or by the root of the old v; the step takes the new ones.": [
            edits((M, "old = m\n    " + M), ("m / (1", "old / (1")),
            edits((V, "old = v\n    " + V), ("v / (1", "old / (1")),
        ],
        "the root is missing; divide by the root of v.": ("v_hat.sqrt()", "v_hat"),
        "the power is t itself, neither t - 1 nor t + 1; t is already 1 at the first step.": [
            ("**t", "**(t - 1)"),
            (HATS, HATS.replace("**t)", "**(t - 1) or 1)")),
            ("**t", "**(t + 1)"),
        ],
        "you multiply by 1 - beta**t; divide by it.": (HATS, HATS.replace("/", "*")),
        "v and eps come in another order; correct v, take the root, then add eps.": [
            (ROOT, "((v.sqrt() + eps) / (1 - beta2**t) ** 0.5)"),
            (ROOT, "(v.sqrt() / (1 - beta2**t) + eps)"),
        ],
        "the learning rate is missing.": ("lr * ", ""),
        "you return the change of the weights; return the new weights.": [
            ("w - lr", "-lr"),
            ("w - lr", "lr"),
        ],
        "weights whose gradient is 0 move, too, because m remembers older gradients.": (
            "lr * m_hat",
            "lr * (grad != 0) * m_hat",
        ),
    },
)


# shocks

PAIRS = [(0.9, 0.95), (0.9, 0.85), (0.9, 0.5), (0.5, 0.3)]
PAIRS += [(0.8, 0.6), (0.95, 0.85), (0.99, 0.95), (0.99, 0.999)]
FATES = {
    f"{beta1} and {beta2}": "cancel" if beta1 > beta2**0.5 else "keep" for beta1, beta2 in PAIRS
}


def why_not_that_fate(pair: str, fate: str) -> Record:
    """Return what to ask about a pair that is judged wrongly."""
    beta1, beta2 = pair.split(" and ")
    said = f"m is multiplied by {beta1} a step. By how much is the root of v, if v is by {beta2}?"
    return {} if fate == FATES[pair] else {"said": said}


shocks = Exercise(
    NOTEBOOK,
    "shocks",
    lambda: map(Case, FATES),
    observe=named_letters(("keep", "cancel"), why_not_that_fate),
    answers=("answer",),
    is_quiz=True,
    smaller="m fades by 0.5 a step, and v by 0.16. What happens to m / sqrt(v)?",
    says=says(("keep", "cancel")) | {"form": "keep the dictionary, and replace each `...` in it."},
    wrong={},
)
