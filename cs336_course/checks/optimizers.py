"""Exercise checks for notebook 05 on AdaGrad, Adam and Muon.

This module also exports the checks on initialization and losses in `losses`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor

from cs336_course.checks import draws
from cs336_course.checks.losses import call, cross_entropy, unit_output
from cs336_course.checks.report import DiagnosisError, exercise, expect, expect_number

__all__ = [
    "adagrad_by_hand",
    "adam_step",
    "cross_entropy",
    "newton_schulz",
    "unit_output",
]


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of finite numbers agree to four digits."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def expect_tensor(
    got: Tensor, want: Tensor, name: str, mistakes: Mapping[str, Tensor], otherwise: str
) -> None:
    """Fail the check unless `got` is the tensor `want`.

    Args:
        got: The learner's answer.
        want: The right answer.
        name: What the answer is, as in "the new m".
        mistakes: Maps a diagnosis to the tensor that a known mistake gives.
        otherwise: The diagnosis of any other mistake.
    """
    expect(isinstance(got, Tensor), f"{name} should be a tensor; it is a {type(got).__name__}.")
    expect(
        got.shape == want.shape,
        f"{name} has shape {tuple(got.shape)}; keep the input's shape {tuple(want.shape)}.",
    )
    expect(got.dtype == want.dtype, f"{name} is {got.dtype}; keep the input's {want.dtype}.")
    if same(got, want):
        return
    for diagnosis, wrong in mistakes.items():
        expect(not same(got, wrong), diagnosis)
    raise DiagnosisError(otherwise)


# adagrad_by_hand


@exercise("The gradients are 3 and 4. What is the sum of squares after each step, and its root?")
def adagrad_by_hand(answer: Sequence[float]) -> None:
    """Check AdaGrad's sum of squares and weight after the gradients 8, 15 and 144.

    The initial weight is 1, the learning rate is 0.1, and eps is 0.
    """
    is_pair = hasattr(answer, "__len__") and not isinstance(answer, Mapping)
    numbers = list(answer) if is_pair else []
    expect(
        len(numbers) == 2 and not any(number is ... for number in numbers),
        "give two numbers, the accumulated state and the weight: answer = (..., ...).",
    )
    state, weight = numbers
    is_swapped = getattr(weight, "shape", ()) == () and weight == 21025
    expect(not is_swapped, "the two are swapped; the state comes first, then the weight.")
    states = {
        "you averaged the squares; AdaGrad sums them.": 21025 / 3,
        "you summed the gradients; sum their squares.": 167.0,
        "that is the square of the sum; sum the squares.": 167.0**2,
        "that is the last square alone; the state is the sum of all three.": 144.0**2,
        "the third square is missing; the state is the sum of all three.": 289.0,
        "145 is the square root of the state; the state is the sum itself.": 145.0,
    }
    expect_number(state, 21025, "the state", states)
    right = 1 - 0.1 * (8 / 8 + 15 / 17 + 144 / 145)
    # The exercise asks for four decimals, so 0.7125 is right and 0.7124 is not
    expect_number(weight, right, "the weight, though the state is right", wrong_weights(), 7e-5)


def wrong_weights() -> dict[str, float]:
    """Map a diagnosis to the weight that a known mistake in AdaGrad gives."""

    def walk(*denominators: float, lr: float = 0.1) -> float:
        return 1 - lr * sum(g / d for g, d in zip((8, 15, 144), denominators, strict=False))

    return {
        "the sign is wrong; a positive gradient lowers the weight.": walk(8, 17, 145, lr=-0.1),
        "you used the final sum for every step; each step divides by the root of the sum so "
        "far.": walk(145, 145, 145),
        "the root is missing, so you divided by the sums themselves.": walk(64, 289, 21025),
        "you divided by the root of the average; AdaGrad takes the root of the sum.": (
            walk(8, math.sqrt(289 / 2), math.sqrt(21025 / 3))
        ),
        "that is the third step alone, from w = 1; all three add up.": 1 - 0.1 * 144 / 145,
        "you divided each gradient by itself; the sum also holds the earlier squares.": (
            walk(8, 15, 144)
        ),
        "you divided by the sum of the gradients; take the root of the sum of squares.": (
            walk(8, 23, 167)
        ),
        "these are the first two steps; the third is missing.": walk(8, 17),
        "that is SGD, which has no denominator.": walk(1, 1, 1),
        "the learning rate is missing.": walk(8, 17, 145, lr=1),
        "that is how far the weight moves; it starts at 1.": walk(8, 17, 145) - 1,
        "that is how far the weight moves; it starts at 1, and moves down.": 1 - walk(8, 17, 145),
        "give four decimals.": 0.71,
        "three decimals are too few; give four.": 0.713,
        "you cut off the fifth decimal; round it.": 0.7124,
    }


# adam_step


UNCORRECTED = "bias correction is missing; divide m by 1 - beta1**t and v by 1 - beta2**t."


@dataclass(frozen=True)
class AdamCase:
    """Inputs of one step of Adam, in the order of the answer's arguments."""

    w: Tensor
    grad: Tensor
    m: Tensor
    v: Tensor
    t: int = 3
    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 0.4  # above the root of a corrected v in the first case

    @property
    def new_m(self) -> Tensor:
        """The running mean of the gradients."""
        return self.beta1 * self.m + (1 - self.beta1) * self.grad

    @property
    def new_v(self) -> Tensor:
        """The running mean of the squares."""
        return self.beta2 * self.v + (1 - self.beta2) * self.grad**2

    def corrections(self, t: int) -> tuple[float, float]:
        """Return the divisors of m and v at step t."""
        return 1 - self.beta1**t, 1 - self.beta2**t

    def moved(self, mean: Tensor, root: Tensor) -> Tensor:
        """Return the new weights."""
        return self.w - self.lr * mean / (root + self.eps)


@exercise("m and v start at 0, and the first gradient is 3. What should the corrected m and v be?")
def adam_step(step: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> None:
    """Check `step(w, grad, m, v, t, lr, beta1, beta2, eps)`, which computes one step of Adam.

    It returns the new `(w, m, v)`. The first step has t = 1.
    """
    w, grad = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.3, -4.0, 0.05])
    m, v = torch.tensor([0.2, 1.0, -0.1]), torch.tensor([0.01, 2.0, 0.003])
    expect_adam(step, AdamCase(w, grad, m, v), "")  # t = 3
    rare = AdamCase(w, grad * torch.tensor([1, 0, 1]), m, v)
    expect_adam(step, rare, " where a gradient is 0. The old gradients are still in m and v")
    bounds = {"lr": (10, 300), "beta1": (500, 950), "beta2": (900, 990), "eps": (5, 100)}
    for seed, case in enumerate(draws.sizes(6, rows=(1, 4), cols=(1, 5), t=(1, 40), **bounds)):
        w, m, v = draws.normal(3, case.rows, case.cols, seed=seed)
        grad = draws.normal(case.cols, case.rows, seed=100 + seed).T  # not contiguous
        settings = {name: getattr(case, name) / 1000 for name in bounds}
        where = f" for weights of shape {tuple(w.shape)} at t = {case.t}, with other settings"
        expect_adam(step, AdamCase(w, grad, m, v**2, case.t, **settings), where)
    at_rest = AdamCase(w, *torch.zeros(3, *w.shape), t=1, eps=1e-8)
    expect(
        torch.as_tensor(step(*astuple(at_rest))[0]).isfinite().all(),
        "weights whose gradients were all 0 become nan; eps has to keep 0 / 0 away.",
    )
    expect_adam(step, at_rest, " when all gradients were 0")
    one = torch.tensor(1.0)
    expect_adam(step, AdamCase(one, -one, one / 2, one, t=1), " for a single weight, without axes")
    w, m, v = draws.normal(3, 4).double()
    grad = torch.tensor(0.5).double().expand(4)
    expect_adam(step, AdamCase(w, grad, m, v**2, t=1000), " for float64 weights at t = 1000")


def expect_adam(
    step: Callable[..., tuple[Tensor, Tensor, Tensor]], case: AdamCase, where: str
) -> None:
    """Expect one step of Adam. `where` tells what is special about this case."""
    result = call(step, **vars(case))
    expect(
        isinstance(result, tuple | list) and len(result) == 3,
        "return three tensors: the new weights, m and v.",
    )
    new_w, new_m, new_v = result
    otherwise = f"m should be beta1 * m + (1 - beta1) * grad; yours is not{where}."
    expect_tensor(new_m, case.new_m, "the new m", wrong_means(case), otherwise)
    otherwise = f"v should be beta2 * v + (1 - beta2) * grad**2; yours is not{where}."
    expect_tensor(new_v, case.new_v, "the new v", wrong_squares(case), otherwise)
    otherwise = f"m and v are right, but w should lose lr * m^ / (sqrt(v^) + eps){where}."
    c1, c2 = case.corrections(case.t)
    expect(
        torch.as_tensor(new_w).isfinite().all(),
        "the new w is not finite. Is there a negative number under your root? The correction is "
        "1 - beta**t, a power.",
    )
    want = case.moved(case.new_m / c1, (case.new_v / c2).sqrt())
    try:
        expect_tensor(new_w, want, "the new w", wrong_steps(case), otherwise)
    except DiagnosisError as error:
        expect(
            str(error) != UNCORRECTED or case.t == 1 or not corrects_the_first(step, case),
            f"right at t = 1, but at t = {case.t} the bias correction is missing; divide m by "
            "1 - beta1**t and v by 1 - beta2**t at every step.",
        )
        raise


def corrects_the_first(step: Callable[..., tuple[Tensor, Tensor, Tensor]], case: AdamCase) -> bool:
    """Return whether an answer would be right for this case if its t were 1."""
    first = replace(case, t=1)
    c1, c2 = first.corrections(1)
    new_w = call(step, **vars(first))[0]
    return same(new_w, first.moved(first.new_m / c1, (first.new_v / c2).sqrt()))


def wrong_means(case: AdamCase) -> dict[str, Tensor]:
    """Map a diagnosis to the m that a known mistake gives."""
    m, grad, beta1, beta2 = case.m, case.grad, case.beta1, case.beta2
    return {
        "m lacks the factor (1 - beta1) on the gradient. It's a running mean, not a sum.": (
            beta1 * m + grad
        ),
        "in m, beta1 and 1 - beta1 are swapped.": (1 - beta1) * m + beta1 * grad,
        "you return the corrected m; use the correction in this step only and keep m as the "
        "state.": case.new_m / case.corrections(case.t)[0],
        "m and v are swapped; return w, m and v in this order.": case.new_v,
        "m uses beta2; it takes beta1.": beta2 * m + (1 - beta2) * grad,
        "you return the old m; the next step needs the new one.": m,
    }


def wrong_squares(case: AdamCase) -> dict[str, Tensor]:
    """Map a diagnosis to the v that a known mistake gives."""
    v, grad, beta1, beta2 = case.v, case.grad, case.beta1, case.beta2
    return {
        "v takes the gradient where it needs its square, grad**2.": beta2 * v + (1 - beta2) * grad,
        "v lacks the factor (1 - beta2) on the square.": beta2 * v + grad**2,
        "in v, beta2 and 1 - beta2 are swapped.": (1 - beta2) * v + beta2 * grad**2,
        "you return the corrected v; keep v itself as the state.": (
            case.new_v / case.corrections(case.t)[1]
        ),
        "v sums up the squares of all weights; each weight has its own.": (
            beta2 * v + (1 - beta2) * (grad**2).sum()
        ),
        "v takes the gradient's size where it needs its square, grad**2.": (
            beta2 * v + (1 - beta2) * grad.abs()
        ),
        "v uses beta1; it takes beta2.": beta1 * v + (1 - beta1) * grad**2,
        "v squares m; it takes the square of the gradient.": (
            beta2 * v + (1 - beta2) * case.new_m**2
        ),
        "v squares the factor 1 - beta2, too; only the gradient is squared.": (
            beta2 * v + ((1 - beta2) * grad) ** 2
        ),
        "you return the old v; the next step needs the new one.": v,
    }


def wrong_steps(case: AdamCase) -> dict[str, Tensor]:
    """Map a diagnosis to the weights that a known mistake gives, if m and v are right."""
    w, lr, eps, m, v = case.w, case.lr, case.eps, case.new_m, case.new_v
    c1, c2 = case.corrections(case.t)
    late, early = case.corrections(case.t - 1), case.corrections(case.t + 1)
    mean, root = m / c1, (v / c2).sqrt()
    right = case.moved(mean, root)
    inside, inside_uncorrected = (v / c2 + eps).sqrt(), (v + eps).sqrt()
    return {
        "the sign is wrong, so you climb.": 2 * w - right,
        UNCORRECTED: case.moved(m, v.sqrt()),
        "bias correction of m is missing.": case.moved(m, root),
        "bias correction of v is missing.": case.moved(mean, v.sqrt()),
        "the two corrections are swapped; m takes beta1, and v takes beta2.": (
            case.moved(m / c2, (v / c1).sqrt())
        ),
        "m is corrected with beta2; it takes beta1.": case.moved(m / c2, root),
        "v is corrected with beta1; it takes beta2.": case.moved(mean, (v / c1).sqrt()),
        "you divide by 1 - beta; the power t is missing.": (
            case.moved(m / (1 - case.beta1), (v / (1 - case.beta2)).sqrt())
        ),
        "your eps is inside the root; it belongs outside, as in sqrt(v) + eps.": (
            w - lr * mean / inside
        ),
        "your eps is inside the root and bias correction is missing.": (
            w - lr * m / inside_uncorrected
        ),
        "eps has no effect in your step; add the argument eps to the root of v.": (
            w - lr * mean / root
        ),
        "you take eps as a lower limit of the root; add it to the root.": (
            w - lr * mean / root.clamp(min=eps)
        ),
        "you divide the gradient, which is RMSProp; Adam divides its running mean m.": (
            case.moved(case.grad, root)
        ),
        "you divide the old m; the step takes the new one.": case.moved(case.m / c1, root),
        "you divide by the root of the old v; the step takes the new one.": (
            case.moved(mean, (case.v / c2).sqrt())
        ),
        "the root is missing; divide by the root of v.": case.moved(mean, v / c2),
        "you count steps from 0; t is already 1 at the first step.": (
            case.moved(m / (late[0] or 1), (v / (late[1] or 1)).sqrt())
        ),
        "you count one step too many; t is already 1 at the first step.": (
            case.moved(m / early[0], (v / early[1]).sqrt())
        ),
        "you multiply by 1 - beta**t; divide by it.": case.moved(m * c1, (v * c2).sqrt()),
        "your eps is added before v is corrected; correct v, take the root, then add eps.": (
            w - lr * mean / ((v.sqrt() + eps) / math.sqrt(c2))
        ),
        "the learning rate is missing.": w - (w - right) / lr,
        "you return the change of the weights; return the new weights.": right - w,
    }


# newton_schulz


@exercise("A singular value is 0.5 after the division. What is it after one and two rounds?")
def newton_schulz(orthogonalise: Callable[[Tensor, int], Tensor]) -> None:
    """Check `orthogonalise(matrix, steps)`, which iterates x <- 1.5 x - 0.5 x x^T x.

    The matrix is divided by its norm before the first step.
    """
    matrix = 3 * draws.normal(4, 6)
    expect_orthogonal(orthogonalised(orthogonalise, matrix, 25), matrix, 25)
    two = orthogonalised(orthogonalise, matrix, 2)
    expect_tensor(
        two,
        iterate(matrix / matrix.norm(), 2),
        "the result",
        wrong_rounds(matrix, 2),
        "the result for steps=2 is not that of two rounds after dividing by matrix.norm(). Is the "
        "number of rounds fixed?",
    )
    for seed, case in enumerate(draws.sizes(8, rows=(1, 6), cols=(1, 6), steps=(0, 6))):
        matrix = (1 + seed) * draws.normal(case.cols, case.rows, seed=seed).T  # not contiguous
        matrix = matrix.double() if seed % 2 else matrix
        expect_tensor(
            orthogonalised(orthogonalise, matrix, case.steps),
            iterate(matrix / matrix.norm(), case.steps),
            "the result",
            wrong_rounds(matrix, case.steps),
            "the result is right for a matrix of shape (4, 6), but not for one of shape "
            f"({case.rows}, {case.cols}) with steps={case.steps}.",
        )


def orthogonalised(
    orthogonalise: Callable[[Tensor, int], Tensor], matrix: Tensor, steps: int
) -> Tensor:
    """Call the answer, and expect a matrix of the same shape and dtype."""
    answer = call(orthogonalise, matrix=matrix, steps=steps)
    expect(
        isinstance(answer, Tensor) and answer.shape == matrix.shape,
        "return a matrix of the shape that came in.",
    )
    expect(
        answer.dtype == matrix.dtype,
        f"the result is {answer.dtype}; keep the matrix's {matrix.dtype}.",
    )
    return answer


def iterate(x: Tensor, rounds: int) -> Tensor:
    """Do rounds of Newton-Schulz."""
    for _ in range(rounds):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


def expect_orthogonal(answer: Tensor, matrix: Tensor, steps: int) -> None:
    """Expect that all singular values are 1 after many steps."""
    expect(
        answer.isfinite().all(),
        "it diverges to infinity. Divide by the norm before the loop, so that no singular value is "
        "above 1, and subtract the cubic term: 1.5 x - 0.5 x x^T x.",
    )
    want = iterate(matrix / matrix.norm(), steps)
    for dtype in (torch.bfloat16, torch.float16):
        is_short = torch.equal(answer, answer.to(dtype).to(answer.dtype))
        expect(
            not is_short or (answer - want).abs().max() > 0.1,
            f"your result has only the bits of {dtype}; compute in the matrix's own dtype.",
        )
    if torch.allclose(answer, want, atol=1e-3):
        return
    for diagnosis, wrong in wrong_rounds(matrix, steps).items():
        expect(not torch.allclose(answer, wrong, atol=1e-3), diagnosis)
    values = torch.linalg.svdvals(answer)
    expect(
        (values - 1).abs().max() > 1e-3,
        "the singular values are 1, but the singular vectors are not the matrix's own.",
    )
    figures = f"The singular values run from {values.min():.2f} to {values.max():.2f}."
    raise DiagnosisError(f"not all singular values are 1 after {steps} rounds.", figures)


def wrong_rounds(matrix: Tensor, steps: int) -> dict[str, Tensor]:
    """Map a diagnosis to the matrix that a known mistake gives."""
    unit = matrix / matrix.norm()
    cubed = before = each = muon = unit
    for _ in range(steps):
        cubed = 1.5 * cubed - 0.5 * cubed**3
        before = iterate(each, 1)
        each = before / before.norm()
        gram = muon @ muon.T
        muon = 3.4445 * muon + (-4.7750 * gram + 2.0315 * gram @ gram) @ muon
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    rows = matrix / matrix.norm(dim=1, keepdim=True)
    columns = matrix / matrix.norm(dim=0, keepdim=True)
    largest = torch.linalg.matrix_norm(matrix, 2)
    frobenius = "divide by the Frobenius norm, matrix.norm()."
    if steps == 0:
        return {"with steps=0 you skip the division by the norm, too; only the rounds go.": matrix}
    return {
        "x**3 cubes the entries; the cube of a matrix here is x @ x.T @ x.": cubed,
        "you divide by the norm in every round; once, before the loop, is enough, and after it "
        "the singular values would be too small.": each,
        "you divide by the norm in every round, so the singular values can't reach 1; divide once, "
        "before the loop.": before,
        "you multiply the norm back in; leave it out.": iterate(unit, steps) * matrix.norm(),
        "you return the matrix divided by its norm; the rounds are missing.": unit,
        "that is one round more than `steps`.": iterate(unit, steps + 1),
        "that is one round fewer than `steps`.": iterate(unit, steps - 1),
        "you do one round only; use all `steps`.": iterate(unit, 1),
        "that is the result of many rounds; do exactly `steps` rounds.": u @ vh,
        "you divide by the largest singular value. That converges, too, but finding it takes "
        "an SVD, which these rounds avoid; divide by matrix.norm().": (
            iterate(matrix / largest, steps)
        ),
        f"you divide by the largest entry; {frobenius}": iterate(matrix / matrix.max(), steps),
        f"you divide by the largest magnitude; {frobenius}": (
            iterate(matrix / matrix.abs().max(), steps)
        ),
        f"you divide by the sum of the magnitudes; {frobenius}": (
            iterate(matrix / matrix.abs().sum(), steps)
        ),
        f"you divide by the sum of the squares; {frobenius}": (
            iterate(matrix / matrix.square().sum(), steps)
        ),
        "you divide each row by its own norm; divide by the norm of the whole matrix.": (
            iterate(rows, steps)
        ),
        "you divide each column by its own norm; divide by the norm of the whole matrix.": (
            iterate(columns, steps)
        ),
        "these are Muon's coefficients; here the polynomial is 1.5 x - 0.5 x x^T x.": muon,
    }
