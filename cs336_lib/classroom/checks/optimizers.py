"""Exercise checks for notebook 05 on AdaGrad, Adam and Muon.

This module also exports the checks on initialization and losses in `losses`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cs336_lib.classroom.checks.losses import cross_entropy, refuse, same, unit_output
from cs336_lib.classroom.checks.report import exercise, expect

__all__ = [
    "adagrad_by_hand",
    "adam_step",
    "cross_entropy",
    "newton_schulz",
    "unit_output",
]


@exercise("")
def adagrad_by_hand(answer: tuple[float, float]) -> None:
    """Check AdaGrad's sum of squares and weight after the gradients 8, 15 and 144.

    The initial weight is 1, the learning rate is 0.1, and eps is 0.
    """
    expect(
        isinstance(answer, tuple | list) and len(answer) == 2 and ... not in answer,
        "give two numbers, the accumulated state and the weight: answer = (..., ...).",
    )
    total, weight = map(float, answer)
    gradients = (8.0, 15.0, 144.0)
    refuse(
        round(total, 4),
        {
            "the two are swapped; the state comes first, then the weight.": 0.7125,
            "you averaged the squares; AdaGrad sums them.": round(21025 / 3, 4),
            "you summed the gradients; sum their squares.": 167.0,
            "that is the last square alone; the state is the sum of all three.": 144.0**2,
            "145 is the square root of the state; the state is the sum itself.": 145.0,
        },
    )
    expect(same(total, 21025.0), "the state is 64 after one step; add 225, then 20736.")

    def walk(denominators: tuple[float, ...], sign: float = -1.0) -> float:
        path = sum(g / d for g, d in zip(gradients, denominators, strict=True))
        return round(1 + sign * 0.1 * path, 4)  # the exercise asks for four decimals

    refuse(
        round(weight, 4),
        {
            "the sign is wrong: a positive gradient lowers the weight.": walk((8, 17, 145), 1.0),
            "you used the final sum for every step; each step divides by the root of the sum so "
            "far: 8, then 17, then 145.": walk((145, 145, 145)),
            "the root is missing: you divided by 64, 289 and 21025.": walk((64, 289, 21025)),
            "you divided by the root of the average; AdaGrad takes the root of the sum.": (
                walk((8, math.sqrt(289 / 2), math.sqrt(21025 / 3)))
            ),
            "that is the third step alone, from w = 1; all three add up.": 0.9007,
            "you divided each gradient by itself; the sum also holds the earlier squares.": (
                walk((8, 15, 144))
            ),
        },
    )
    expect(
        abs(weight - 0.71245) < 1e-4,
        f"the state is right; the weight is 1 - 0.1 * (8/8 + 15/17 + 144/145), not {weight:g}.",
    )


@exercise("")
def adam_step(step: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> None:
    """Check `step(w, grad, m, v, t, lr, beta1, beta2, eps)`, which computes one step of Adam.

    It returns the new `(w, m, v)`. The first step has t = 1.
    """
    w, g = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.3, -4.0, 0.05])
    m0, v0 = torch.tensor([0.2, 1.0, -0.1]), torch.tensor([0.01, 2.0, 0.003])
    t, lr, b1, b2, eps = 3, 0.1, 0.9, 0.99, 0.02
    result = step(w.clone(), g.clone(), m0.clone(), v0.clone(), t, lr, b1, b2, eps)
    expect(
        isinstance(result, tuple | list) and len(result) == 3,
        "return three tensors: the new weights, m and v.",
    )
    new_w, new_m, new_v = result
    m, v = b1 * m0 + (1 - b1) * g, b2 * v0 + (1 - b2) * g * g
    c1, c2 = 1 - b1**t, 1 - b2**t
    refuse(
        new_m,
        {
            "m lacks the factor (1 - beta1) on the gradient: a running mean, not a sum.": (
                b1 * m0 + g
            ),
            "in m, beta1 and 1 - beta1 are swapped.": (1 - b1) * m0 + b1 * g,
            "you return the corrected m; use the correction in this step only and keep m as the "
            "state.": m / c1,
            "m uses beta2; it takes beta1.": b2 * m0 + (1 - b2) * g,
        },
    )
    expect(same(new_m, m), "m should be beta1 * m + (1 - beta1) * grad.")
    refuse(
        new_v,
        {
            "v takes the gradient where it needs its square: grad**2.": b2 * v0 + (1 - b2) * g,
            "v lacks the factor (1 - beta2) on the square.": b2 * v0 + g * g,
            "in v, beta2 and 1 - beta2 are swapped.": (1 - b2) * v0 + b2 * g * g,
            "you return the corrected v; keep v itself as the state.": v / c2,
            "v uses beta1; it takes beta2.": b1 * v0 + (1 - b1) * g * g,
            "v squares m; it takes the square of the gradient.": b2 * v0 + (1 - b2) * m * m,
        },
    )
    expect(same(new_v, v), "v should be beta2 * v + (1 - beta2) * grad**2.")

    def moved(
        mean: Tensor = m / c1, square: Tensor = v / c2, inside: bool = False, sign: float = -1.0
    ) -> Tensor:
        root = (square + eps).sqrt() if inside else square.sqrt() + eps
        return w + sign * lr * mean / root

    late1, late2 = 1 - b1 ** (t - 1), 1 - b2 ** (t - 1)
    refuse(
        new_w,
        {
            "the sign is wrong, so you climb.": moved(sign=1.0),
            "bias correction is missing: divide m by 1 - beta1**t and v by 1 - beta2**t.": (
                moved(m, v)
            ),
            "bias correction of m is missing.": moved(mean=m),
            "bias correction of v is missing.": moved(square=v),
            "your eps is inside the root; it belongs outside: sqrt(v) + eps.": moved(inside=True),
            "your eps is inside the root and bias correction is missing.": moved(m, v, True),
            "you divide the gradient, which is RMSProp; Adam divides its running mean m.": (
                moved(mean=g)
            ),
            "the root is missing: divide by the root of v.": w - lr * (m / c1) / (v / c2 + eps),
            "you count steps from 0; t is already 1 at the first step.": (
                moved(m / late1, v / late2)
            ),
            "you multiply by 1 - beta**t; divide by it.": moved(m * c1, v * c2),
            "your eps is added before v is corrected; correct v, take the root, then add eps.": (
                w - lr * (m / c1) / ((v.sqrt() + eps) / math.sqrt(c2))
            ),
        },
    )
    expect(same(new_w, moved()), "m and v are right; w should lose lr * m^ / (sqrt(v^) + eps).")


@exercise("")
def newton_schulz(orthogonalise: Callable[[Tensor, int], Tensor]) -> None:
    """Check `orthogonalise(matrix, steps)`, which iterates x <- 1.5 x - 0.5 x x^T x.

    The matrix is divided by its norm before the first step.
    """
    matrix = 3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    answer, steps = orthogonalise(matrix.clone(), 25), 25

    def iterate(
        x: Tensor, rounds: int = steps, plus: float = -0.5, each: bool = False, cube: bool = False
    ) -> Tensor:
        for _ in range(rounds):
            x = 1.5 * x + plus * (x**3 if cube else x @ x.T @ x)
            x = x / x.norm() if each else x
        return x

    unit = matrix / matrix.norm()
    expect(
        isinstance(answer, Tensor) and answer.shape == matrix.shape,
        "return a matrix of the shape that came in.",
    )
    expect(
        answer.isfinite().all(),
        "it diverges to infinity. Divide by the norm before the loop, so that no singular value is "
        "above 1, and subtract the cubic term: 1.5 x - 0.5 x x^T x.",
    )
    refuse(
        answer,
        {
            "x**3 cubes the entries; the cube of a matrix here is x @ x.T @ x.": (
                iterate(unit, cube=True)
            ),
            "you divide by the norm in every round; once, before the loop, is enough, and after it "
            "the singular values would be too small.": iterate(unit, each=True),
            "you multiply the norm back in; leave it out.": (iterate(unit) * matrix.norm()),
            "you do one round only; use all `steps`.": iterate(unit, 1),
            "you return the matrix divided by its norm; the rounds are missing.": unit,
        },
    )
    values = torch.linalg.svdvals(answer)
    expect(
        (values - 1).abs().max() < 1e-3,
        f"the singular values run from {values.min():.2f} to {values.max():.2f}; all should be 1.",
    )
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    expect(
        torch.allclose(answer, u @ v, atol=1e-2),
        "the singular values are 1, but the singular vectors are not the matrix's own.",
    )
    two = orthogonalise(matrix.clone(), 2)
    refuse(
        two,
        {
            "that is one round more than `steps`.": iterate(unit, 3),
            "that is one round fewer than `steps`.": iterate(unit, 1),
            "you divide by the largest singular value. That converges, too, but finding it takes "
            "an SVD, which these rounds avoid; divide by matrix.norm().": (
                iterate(matrix / torch.linalg.matrix_norm(matrix, 2), 2)
            ),
        },
    )
    expect(
        same(two, iterate(unit, 2)),
        "the result for steps=2 is not that of two rounds after dividing by matrix.norm(): is the "
        "number of rounds fixed?",
    )
