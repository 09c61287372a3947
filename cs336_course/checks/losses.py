"""Exercise checks for notebook 05 on initialization and cross-entropy."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode

from cs336_course.checks import draws
from cs336_course.checks.gradients import expect_same_gradients
from cs336_course.checks.report import DiagnosisError, by_hand, exercise, expect, expect_number

Init = Callable[[int, int, Generator], Tensor]


def call(answer: Callable[..., Any], **inputs: Any) -> Any:
    """Call an answer with the inputs in this order, and expect that it doesn't change them."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    before = {name: value.clone() for name, value in tensors.items()}
    result = answer(*inputs.values())
    for name, value in tensors.items():
        expect(
            torch.equal(value, before[name]),
            f"your function changes its input {name} in place; compute a new tensor instead.",
        )
    return result


# unit_output


@exercise("You add 16 independent numbers with a variance of 1. What is the std of the sum?")
def unit_output(init: Init) -> None:
    """Check `init(d_in, d_out, generator)`. The weights must preserve the scale of the input."""
    d_in, d_out = 1024, 256
    w = init_weights(init, d_in, d_out)
    expect_draws_from_generator(init, d_in, d_out)
    expect(
        w.min() < 0,
        "no weight is negative, because torch.rand is uniform in [0, 1). So all outputs of a row "
        "are about the same multiple of its sum. Draw around 0, as torch.randn does.",
    )
    expect_independent(w)
    expect_scales(init)
    single = init_weights(init, 1, 1)
    expect(
        single.isfinite().all(),
        f"a matrix of shape (1, 1) gets the weight {single.item():.3g}. Take the scale from the "
        "arguments; the std of the drawn numbers may be nan.",
    )


def init_weights(init: Init, d_in: int, d_out: int, seed: int = 0) -> Tensor:
    """Draw weights with the answer, and expect a tensor that a layer can use."""
    w = init(d_in, d_out, Generator().manual_seed(seed))
    expect(isinstance(w, Tensor), f"return a tensor; this is a {type(w).__name__}.")
    expect(
        tuple(w.shape) == (d_in, d_out),
        f"the shape should be (d_in, d_out) = ({d_in}, {d_out}), since y = x @ w; "
        f"yours is {tuple(w.shape)}.",
    )
    x = draws.normal(1, d_in)
    expect(
        w.dtype == x.dtype,
        f"the weights are {w.dtype}, so x @ w raises an error; keep torch.randn's {x.dtype}.",
    )
    return w


def expect_draws_from_generator(init: Init, d_in: int, d_out: int) -> None:
    """Expect that the weights depend only on the generator's state."""
    one, again, other = (init(d_in, d_out, Generator().manual_seed(seed)) for seed in (0, 0, 1))
    expect(
        torch.equal(one, again),
        "two calls with equal generators differ; pass generator=generator to the random function.",
    )
    expect(
        not torch.equal(one, other),
        "another generator gives the same weights; draw from `generator` and do not seed one.",
    )
    generator = Generator().manual_seed(0)
    first, second = (init(d_in, d_out, generator) for _ in range(2))
    expect(
        not torch.equal(first, second),
        "two layers drawn from one generator get equal weights. Don't start the generator again; "
        "a draw moves it on.",
    )


def expect_scales(init: Init) -> None:
    """Expect that `x @ w` has a std of 1 for every shape of w.

    A mistake is named only if it explains the scale of all shapes.
    """
    shapes = [(1024, 256), (256, 256), (20_000, 1), (5, 4096)]  # enough weights for a precise std
    drawn = draws.sizes(4, d_in=(2, 40), d_out=(9000, 12_000))
    shapes += [*((case.d_in, case.d_out) for case in drawn), (1, 20_000)]
    found = {shape: init_weights(init, *shape).pow(2).mean().sqrt().item() for shape in shapes}

    def is_scale(scale: Callable[[int, int], float]) -> bool:
        return all(abs(rms / scale(*shape) - 1) <= 0.03 for shape, rms in found.items())

    if is_scale(lambda d_in, d_out: 1 / math.sqrt(d_in)):
        return
    for diagnosis, wrong in wrong_scales().items():
        expect(not is_scale(wrong), diagnosis)
    stds = {shape: rms / (1 / math.sqrt(shape[0])) for shape, rms in found.items()}
    d_in, d_out = next(shape for shape, std in stds.items() if not abs(std - 1) <= 0.03)
    figures = f"Your output would have a std of {stds[d_in, d_out]:.2f}, and 1 is right."
    if (d_in, d_out) == shapes[0]:
        raise DiagnosisError("the output's std is not 1.", figures)
    raise DiagnosisError(
        "the scale is right for d_in = 1024 and d_out = 256, but not for "
        f"d_in = {d_in} and d_out = {d_out}. Compute it from d_in, and neither round nor cut "
        "anything off.",
        figures,
    )


def wrong_scales() -> dict[str, Callable[[int, int], float]]:
    """Map a diagnosis to the std of the weights that a known mistake gives."""
    return {
        "you multiply by sqrt(d_in); divide by it.": lambda d_in, d_out: math.sqrt(d_in),
        "the weights have a std of 1, so the output has sqrt(d_in); divide them by that.": (
            lambda d_in, d_out: 1.0
        ),
        "you divide by d_in. Variances add up and stds don't, so divide by its root.": (
            lambda d_in, d_out: 1 / d_in
        ),
        "you divide by sqrt(d_out), but each output is a sum over d_in.": (
            lambda d_in, d_out: d_out**-0.5
        ),
        "this is Xavier's compromise 2 / (d_in + d_out), which gives an output std of 1 only for "
        "square matrices; divide by sqrt(d_in).": lambda d_in, d_out: math.sqrt(2 / (d_in + d_out)),
        "this is He's factor sqrt(2 / d_in), which makes up for a ReLU; there is none here.": (
            lambda d_in, d_out: math.sqrt(2 / d_in)
        ),
        "numbers uniform in [-1, 1) have a variance of 1/3; multiply them by sqrt(3), too.": (
            lambda d_in, d_out: math.sqrt(1 / 3 / d_in)
        ),
        "you divide by the norm of the whole matrix; each column should have a norm of about 1.": (
            lambda d_in, d_out: 1 / math.sqrt(d_in * d_out)
        ),
    }


def expect_independent(w: Tensor) -> None:
    """Expect that the outputs of a single row vary as much as those of many rows."""
    row = draws.normal(1, len(w), seed=99) @ w
    many = w.pow(2).sum(0).mean().sqrt()
    expect(
        abs(row.std() / many - 1) < 0.2,
        "the outputs of a single row of x are too much alike. Draw each weight separately, and "
        "around 0.",
    )


# cross_entropy


@exercise("A position has the logits 0 and ln 3, and its target is the second. What is its loss?")
def cross_entropy(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Check `loss(logits[B, T, V], targets[B, T])`, the mean negative log-likelihood."""
    with by_hand(F, "cross_entropy", "nll_loss"), NoLoss():
        logits, targets = scores(2, 5, 7, seed=0)
        expect_mean_nll(loss, logits, targets, "random logits")
        for case in draws.sizes(6, batch=(1, 4), seq=(1, 6), vocab=(2, 9)):
            shape = (case.batch, case.seq, case.vocab)
            logits, targets = scores(*shape, seed=sum(shape))
            expect_mean_nll(loss, logits, targets, f"logits of shape {shape}, not (2, 5, 7)")
        for shape in ((3, 1, 4), (1, 4, 3), (1, 1, 2)):
            logits, targets = scores(*shape, seed=1)
            said = (
                f"logits of shape {shape}; does `squeeze` without a dim remove an axis of size 1?"
            )
            expect_mean_nll(loss, logits, targets, said)
        smallest = torch.zeros(2, 3, dtype=torch.int64)
        expect_mean_nll(loss, draws.normal(2, 3, 4), smallest, "targets that are all 0")
        expect_stable(loss)
        for logits, targets in (scores(2, 5, 7, seed=0), far_apart()):
            expect_same_gradients(loss, mean_nll, {"logits": logits, "targets": targets})


class NoLoss(TorchFunctionMode):
    """Refuse torch's losses within the block, under whatever name they were imported."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Call any other function."""
        name = getattr(func, "__name__", "")
        is_loss = name in ("cross_entropy", "cross_entropy_loss", "nll_loss", "nll_loss_nd")
        expect(not is_loss, f"{name} does all the work here; write it by hand.")
        return func(*args, **(kwargs or {}))


def far_apart() -> tuple[Tensor, Tensor]:
    """Return positions whose logits lie far apart, and their targets."""
    logits = [[[1000.0, 0.0], [-1000.0, -1001.0]], [[3.0, 0.0], [0.0, 900.0]]]
    return torch.tensor(logits), torch.tensor([[0, 0], [0, 1]])


def mean_nll(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean negative log-likelihood."""
    return -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()


def scores(batch: int, seq: int, vocab: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw logits and targets, which are not contiguous."""
    logits = 2 * draws.normal(batch, vocab, seq, seed=seed).transpose(1, 2)
    generator = Generator().manual_seed(seed)
    return logits, torch.randint(vocab, (seq, batch), generator=generator).T


def expect_mean_nll(
    loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, targets: Tensor, case: str
) -> None:
    """Expect the mean negative log-likelihood."""
    answer = call(loss, logits=logits, targets=targets)
    shape = tuple(getattr(answer, "shape", ()))
    expect(
        shape == (),
        f"a loss is one number; yours has shape {shape}. Take the mean over all B * T positions.",
    )
    nll = -logits.log_softmax(-1).gather(-1, targets[..., None])
    mistakes = wrong_losses(logits, targets, nll)
    expect_number(answer, nll.mean().item(), case, mistakes, rel_tol=1e-5)


def wrong_losses(logits: Tensor, targets: Tensor, nll: Tensor) -> dict[str, float]:
    """Map a diagnosis to the loss that a known mistake gives."""
    batch, seq, vocab = logits.shape
    right = nll.mean()
    chosen = logits.gather(-1, targets[..., None])
    over_time = logits.log_softmax(1).gather(-1, targets[..., None])
    over_batch = logits.log_softmax(0).gather(-1, targets[..., None])
    shifted = logits[:, :-1].log_softmax(-1).gather(-1, targets[:, 1:, None])
    mistakes = {
        "the sign is wrong. The loss is minus the mean of the log-probabilities.": -right,
        "you sum over the positions; take the mean.": nll.sum(),
        "you take the mean over the vocabulary, too. Divide by B * T, not by B * T * V.": (
            right / vocab
        ),
        "you divide by B only; the mean is over all B * T positions.": nll.sum() / batch,
        "you divide by T only; the mean is over all B * T positions.": nll.sum() / seq,
        "you take the targets' logits as if they were log-probabilities. Subtract the logsumexp "
        "over the vocabulary (log_softmax).": -chosen.mean(),
        "you subtract the largest logit only; subtract the logsumexp of all logits.": (
            (logits.amax(-1, keepdim=True) - chosen).mean()
        ),
        "you subtract the largest logit before exp, but don't add it back after the log.": (
            (logits.logsumexp(-1, keepdim=True) - logits.amax(-1, keepdim=True) - chosen).mean()
        ),
        "your softmax is over the positions (dim=1); the vocabulary is the last dimension.": (
            -over_time.mean()
        ),
        "your softmax is over the batch (dim=0); the vocabulary is the last dimension.": (
            -over_batch.mean()
        ),
        "the logarithm is missing, so you average the probabilities.": -(-nll).exp().mean(),
        "you take the log of the mean probability; take the mean of the logs.": (
            -(-nll).exp().mean().log()
        ),
        "your logarithm has base 2 (bits); use the natural one (nats).": right / math.log(2),
        "that is the perplexity, the exp of the loss; leave out the exp.": right.exp(),
        "you shift the targets. `targets[b, t]` already belongs to `logits[b, t]`.": (
            -shifted.mean()
        ),
        "you leave out the targets that are 0; here, 0 is a token like any other.": (
            nll.squeeze(-1)[targets != 0].mean()
        ),
        "`logits[:, :, targets]` takes all targets at every position; gather takes each position's "
        "own.": logits.logsumexp(-1).mean() - logits[:, :, targets].mean(),
        "your logits are rounded to float16 on the way; compute in their own dtype.": (
            mean_nll(logits.half(), targets)
        ),
        "your logits are rounded to bfloat16 on the way; compute in their own dtype.": (
            mean_nll(logits.bfloat16(), targets)
        ),
        "a sigmoid looks at one logit alone; use a softmax, which compares them.": (
            -logits.sigmoid().gather(-1, targets[..., None]).log().mean()
        ),
        "that is the loss at the last position only; take the mean over all T.": nll[:, -1].mean(),
        "that is the loss of the first row only; take the mean over the batch.": nll[0].mean(),
    }
    return {diagnosis: float(wrong) for diagnosis, wrong in mistakes.items()}


def expect_stable(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Expect that large logits neither overflow nor underflow."""
    second = torch.tensor([[1]])
    large, less = (float(loss(torch.tensor([[[top, 0.0]]]), second)) for top in (1000.0, 200.0))
    expect(
        math.isfinite(large),
        "a logit of 1000 breaks it. Either exp overflows, or a probability rounds to 0, whose log "
        "is infinite. Use log_softmax or logsumexp, which subtract the largest logit first.",
    )
    expect(
        math.isclose(large, 1000, rel_tol=1e-5),
        "a loss of 1000 comes out smaller. An eps inside the log, or a clamp, limits it; use "
        "log_softmax or logsumexp.",
    )
    expect(
        math.isclose(less, 200, rel_tol=1e-5),
        "a loss of 1000 is right, but one of 200 is not. Don't replace an infinite loss by a fixed "
        "number; use log_softmax or logsumexp, which subtract the largest logit first.",
    )
    low = float(loss(torch.tensor([[[-1000.0, -1001.0]]]), second))
    expect(
        math.isclose(low, 1 + math.log1p(math.exp(-1)), rel_tol=1e-3),
        "it fails when all logits of a position are about -1000. Subtract the largest logit "
        "itself, not the largest absolute value, and limit nothing.",
    )
    got = float(loss(*far_apart()))
    want = (math.log1p(math.exp(-1)) + math.log1p(math.exp(-3))) / 4
    expect(
        math.isclose(got, want, rel_tol=1e-3),
        "it fails when the positions' logits lie far apart. Subtract each position's own largest "
        "logit (dim=-1, keepdim=True), not one maximum for all.",
    )
