"""Exercise checks for notebook 05 on initialization and cross-entropy."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cs336_lib.classroom.checks.report import by_hand, exercise, expect


def same(a: object, b: object) -> bool:
    """Return whether two finite values agree to five digits."""
    try:
        a, b = torch.as_tensor(a).float(), torch.as_tensor(b).float()
    except (TypeError, ValueError, RuntimeError):
        return False
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-7)


def refuse(answer: object, mistakes: dict[str, object]) -> None:
    """Fail with a diagnosis if `answer` results from one of the known mistakes."""
    for diagnosis, wrong in mistakes.items():
        expect(not same(answer, wrong), diagnosis)


@exercise("")
def unit_output(init: Callable[[int, int, torch.Generator], Tensor]) -> None:
    """Check `init(d_in, d_out, generator)`. The weights must preserve the scale of the input."""
    d_in, d_out = 1024, 256
    w = init(d_in, d_out, torch.Generator().manual_seed(0))
    expect(isinstance(w, Tensor), f"return a tensor; this is a {type(w).__name__}.")
    expect(
        tuple(w.shape) == (d_in, d_out),
        f"the shape should be (d_in, d_out) = ({d_in}, {d_out}), since y = x @ w; "
        f"yours is {tuple(w.shape)}.",
    )
    again = init(d_in, d_out, torch.Generator().manual_seed(0))
    expect(
        torch.equal(w, again),
        "two calls with equal generators differ; pass generator=generator to the random function.",
    )
    other = init(d_in, d_out, torch.Generator().manual_seed(1))
    expect(
        not torch.equal(w, other),
        "another generator gives the same weights; draw from `generator` and do not seed one.",
    )
    expect(
        w.min() < 0,
        "no weight is negative: torch.rand is uniform in [0, 1). Signs must be mixed, or the "
        "terms of the sum do not cancel and it grows as d_in; use torch.randn.",
    )
    rms = w.pow(2).mean().sqrt().item()
    mistakes = {
        "you multiply by sqrt(d_in); divide by it.": math.sqrt(d_in),
        "the weights have std 1, so the output has sqrt(d_in); divide them by that.": 1.0,
        "you divide by d_in. Variances add up, stds do not: divide by its square root.": 1 / d_in,
        "you divide by sqrt(d_out); what is summed over is d_in.": d_out**-0.5,
        "this is Xavier's compromise 2 / (d_in + d_out), which gives an output std of 1 only for "
        "square matrices; divide by sqrt(d_in).": math.sqrt(2 / (d_in + d_out)),
        "this is He's factor sqrt(2 / d_in), which makes up for a ReLU; there is none here.": (
            math.sqrt(2 / d_in)
        ),
    }
    for diagnosis, wrong in mistakes.items():
        expect(abs(rms / wrong - 1) > 0.03, diagnosis)
    expect(
        abs(rms * math.sqrt(d_in) - 1) < 0.03,
        f"the output's std would be {rms * math.sqrt(d_in):.2f}; it should be 1.",
    )


@exercise("")
def cross_entropy(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Check `loss(logits[B, T, V], targets[B, T])`, the mean negative log-likelihood."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 7, generator=generator)
    targets = torch.randint(0, 7, (2, 5), generator=generator)
    with by_hand(F, "cross_entropy", "nll_loss"):
        answer = loss(logits.clone(), targets.clone())
    chosen = logits.gather(-1, targets[..., None])
    log_p = logits.log_softmax(-1).gather(-1, targets[..., None])
    right = -log_p.mean()
    expect(
        torch.as_tensor(answer).dim() == 0,
        f"a loss is one number; yours has shape {tuple(torch.as_tensor(answer).shape)}. "
        f"Take the mean over all B * T positions.",
    )
    mistakes = {
        "the sign is wrong: log-probabilities are negative, the loss is minus their mean.": -right,
        "you sum over the positions; take the mean.": right * targets.numel(),
        "you take the mean over the vocabulary, too: divide by B * T, not by B * T * V.": (
            right / logits.size(-1)
        ),
        "you divide by B only; the mean is over all B * T positions.": right * targets.size(1),
        "you take the targets' logits as if they were log-probabilities: subtract the logsumexp "
        "over the vocabulary (log_softmax).": -chosen.mean(),
        "your softmax is over the positions (dim=1); the vocabulary is the last dimension.": (
            -logits.log_softmax(1).gather(-1, targets[..., None]).mean()
        ),
        "the logarithm is missing: you average the probabilities.": -log_p.exp().mean(),
        "you take the log of the mean probability; take the mean of the logs.": (
            -log_p.exp().mean().log()
        ),
        "your logarithm has base 2 (bits); use the natural one (nats).": right / math.log(2),
    }
    refuse(answer, mistakes)
    expect(same(answer, right), f"for random logits it should be {right:.4f}, not {answer:.4f}.")
    large = torch.tensor([[[1000.0, 0.0]]])
    expect(
        same(loss(large, torch.tensor([[1]])), 1000.0),
        "a logit of 1000 breaks it: exp overflows, or a probability rounds to 0, whose log is "
        "infinite. Use log_softmax or logsumexp, which subtract the largest logit first.",
    )
