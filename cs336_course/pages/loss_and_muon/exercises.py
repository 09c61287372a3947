"""Exercises of notebook 05b on cross-entropy, initialization, Muon and factored state."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.overrides import TorchFunctionMode

from cs336_course.engine import Case, Exercise, edits, function, normal, sizes
from cs336_course.engine.observe import gradients
from cs336_course.engine.records import Record, plain

NOTEBOOK = "side_trips/loss_and_muon"

# cross_entropy

APART = "positions whose logits lie far apart"


def predictions() -> Iterator[Case]:
    """Yield logits [B, T, V] and targets [B, T], which are not contiguous."""
    yield Case("", **scores(2, 5, 7, seed=0))
    for size in sizes(6, batch=(1, 4), seq=(1, 6), vocab=(2, 9)):
        yield Case("other sizes", **scores(size.batch, size.seq, size.vocab, seed=size.vocab))
    for shape in ((3, 1, 4), (1, 4, 3), (1, 1, 2)):
        yield Case("an axis of size 1", **scores(*shape, seed=1))
    smallest = torch.zeros(2, 3, dtype=torch.int64)
    yield Case("targets that are all 0", logits=normal(2, 3, 4), targets=smallest)
    second = torch.tensor([[1]])
    yield Case("a logit of 1000", logits=torch.tensor([[[1000.0, 0.0]]]), targets=second)
    yield Case("a logit of 200", logits=torch.tensor([[[200.0, 0.0]]]), targets=second)
    low = torch.tensor([[[-1000.0, -1001.0]]])
    yield Case("logits of about -1000", logits=low, targets=second)
    apart = [[[1000.0, 0.0], [-1000.0, -1001.0]], [[3.0, 0.0], [0.0, 900.0]]]
    targets = torch.tensor([[0, 0], [0, 1]])
    yield Case(APART, logits=torch.tensor(apart), targets=targets)


def scores(batch: int, seq: int, vocab: int, seed: int) -> dict[str, Tensor]:
    """Draw logits and targets."""
    logits = 2 * normal(batch, vocab, seq, seed=seed).transpose(1, 2)
    generator = Generator().manual_seed(seed)
    return {"logits": logits, "targets": torch.randint(vocab, (seq, batch), generator=generator).T}


class Losses(TorchFunctionMode):
    """Note which of torch's losses are called, under whatever name they were imported."""

    def __init__(self) -> None:
        super().__init__()
        self.used: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function."""
        name = getattr(func, "__name__", "")
        if name in ("cross_entropy", "cross_entropy_loss", "nll_loss", "nll_loss_nd"):
            self.used.add(name)
        return func(*args, **(kwargs or {}))


def observe_loss(answer: Any, case: Case) -> Record:
    """Return a loss and its gradients, which may be computed in float64, and what is called."""
    with Losses() as losses:
        record = function()(answer, case)
        if not record["changed"] and case.what in ("", APART):
            record |= gradients(answer, case, ["logits"])
    if isinstance(record["result"], Tensor) and record["result"].is_floating_point():
        record["result"] = record["result"].float()
    return record | {"used": sorted(losses.used)}


def nll(logits: Tensor, targets: Tensor, dim: int = -1) -> Tensor:
    """Return the negative log-likelihood at each position, with an axis of size 1."""
    return -chosen(logits.log_softmax(dim), targets)


def chosen(values: Tensor, targets: Tensor) -> Tensor:
    """Return the values of the targets."""
    return values.gather(-1, targets[..., None])


def top(x: Tensor) -> Tensor:
    """Return the largest logit of each position."""
    return x.amax(-1, keepdim=True)


def by_one_hot(x: Tensor, y: Tensor) -> Tensor:
    """Multiply by one-hot vectors."""
    return -(F.one_hot(y, x.size(-1)) * F.log_softmax(x, dim=-1)).sum() / y.numel()


def by_index(x: Tensor, y: Tensor) -> Tensor:
    """Subtract the largest logit, and index."""
    x = x - x.max(dim=-1, keepdim=True).values
    rows, columns = torch.meshgrid(*map(torch.arange, y.shape), indexing="ij")
    return (x.exp().sum(-1).log() - x[rows, columns, y]).mean(dim=(0, 1))


def in_loops(x: Tensor, y: Tensor) -> Any:
    """Go through the positions."""
    losses = [
        torch.logsumexp(x[b, t], 0) - x[b, t, y[b, t]]
        for b in range(len(x))
        for t in range(x.shape[1])
    ]
    return sum(losses) / len(losses)


def by_numpy(x: Tensor, y: Tensor) -> Any:
    """Compute without PyTorch, so without a gradient."""
    values = x.numpy().astype(np.float64)
    picked = np.take_along_axis(values, y.numpy()[..., None], -1)[..., 0]
    return np.mean(np.logaddexp.reduce(values, axis=-1) - picked)


OVERFLOWS = (
    "a logit of 1000 breaks it. Either exp overflows, or a probability rounds to 0, whose log is "
    "infinite. Use log_softmax or logsumexp, which subtract the largest logit first."
)
LIMITED = (
    "a loss of 1000 comes out smaller. An eps inside the log, or a clamp, limits it; use "
    "log_softmax or logsumexp."
)
NUMPY = "NumPy doesn't record operations, so the gradient is lost. Use torch's functions."
LOST = (
    "the numbers are right, but no gradient flows back from your loss. Is something detached, "
    "computed under no_grad, or turned into a Python number by item()?"
)

cross_entropy = Exercise(
    NOTEBOOK,
    "cross_entropy",
    predictions,
    observe=observe_loss,
    answers=("loss",),
    smaller="A position has the logits 0 and ln 3, and its target is the second. What is its loss?",
    wrong={
        "the sign is wrong. The loss is minus the mean of the log-probabilities.": (
            lambda x, y: -nll(x, y).mean()
        ),
        "you sum over the positions; take the mean.": lambda x, y: nll(x, y).sum(),
        "a loss is one number; take the mean over all B * T positions.": (
            lambda x, y: nll(x, y).squeeze(-1)
        ),
        "you take the mean over the vocabulary, too. Divide by B * T, not by B * T * V.": (
            lambda x, y: nll(x, y).mean() / x.size(-1)
        ),
        "you divide by B only; the mean is over all B * T positions.": (
            lambda x, y: nll(x, y).sum() / x.size(0)
        ),
        "you divide by T only; the mean is over all B * T positions.": (
            lambda x, y: nll(x, y).sum() / x.size(1)
        ),
        "you take the targets' logits as if they were log-probabilities. Subtract the logsumexp "
        "over the vocabulary (log_softmax).": lambda x, y: -chosen(x, y).mean(),
        "you subtract the largest logit only; subtract the logsumexp of all logits.": (
            lambda x, y: (top(x) - chosen(x, y)).mean()
        ),
        "you subtract the largest logit before exp, but don't add it back after the log.": (
            lambda x, y: (nll(x, y) - top(x)).mean()
        ),
        "your softmax is over the positions (dim=1); the vocabulary is the last dimension.": (
            lambda x, y: nll(x, y, dim=1).mean()
        ),
        "your softmax is over the batch (dim=0); the vocabulary is the last dimension.": (
            lambda x, y: nll(x, y, dim=0).mean()
        ),
        "the logarithm is missing, so you average the probabilities.": (
            lambda x, y: -chosen(x.softmax(-1), y).mean()
        ),
        "you take the log of the mean probability; take the mean of the logs.": (
            lambda x, y: -chosen(x.softmax(-1), y).mean().log()
        ),
        "your logarithm has base 2 (bits); use the natural one (nats).": (
            lambda x, y: nll(x, y).mean() / math.log(2)
        ),
        "that is the perplexity, the exp of the loss; leave out the exp.": (
            lambda x, y: nll(x, y).mean().exp()
        ),
        "you shift the targets. `targets[b, t]` already belongs to `logits[b, t]`.": (
            lambda x, y: nll(x[:, :-1], y[:, 1:]).mean()
        ),
        "you leave out the targets that are 0; here, 0 is a token like any other.": (
            lambda x, y: nll(x, y)[y != 0].mean()
        ),
        "`logits[:, :, targets]` takes all targets at every position; gather takes each position's "
        "own.": lambda x, y: x.logsumexp(-1).mean() - x[:, :, y].mean(),
        "your logits are rounded to float16 on the way; compute in their own dtype.": (
            lambda x, y: nll(x.half(), y).mean().float()
        ),
        "your logits are rounded to bfloat16 on the way; compute in their own dtype.": (
            lambda x, y: nll(x.bfloat16(), y).mean().float()
        ),
        "a sigmoid looks at one logit alone; use a softmax, which compares them.": (
            lambda x, y: -chosen(x.sigmoid(), y).log().mean()
        ),
        "that is the loss at the last position only; take the mean over all T.": (
            lambda x, y: nll(x, y)[:, -1].mean()
        ),
        "that is the loss of the first row only; take the mean over the batch.": (
            lambda x, y: nll(x, y)[0].mean()
        ),
        OVERFLOWS: [
            lambda x, y: -chosen(x.exp() / x.exp().sum(-1, keepdim=True), y).log().mean(),
            lambda x, y: (x.exp().sum(-1, keepdim=True).log() - chosen(x, y)).mean(),
            lambda x, y: -chosen(x.softmax(-1), y).log().mean(),
            lambda x, y: -chosen(x.softmax(-1).log(), y).mean(),
            lambda x, y: -chosen((x.exp() / x.exp().sum(-1, keepdim=True)).log(), y).mean(),
        ],
        LIMITED: [
            lambda x, y, eps=eps: -(chosen(x.softmax(-1), y) + eps).log().mean()
            for eps in (1e-12, 1e-10, 1e-9, 1e-8)
        ],
        "a loss of 1000 is right, but one of 200 is not. Don't replace an infinite loss by a fixed "
        "number; use log_softmax or logsumexp, which subtract the largest logit first.": (
            lambda x, y: -chosen(x.softmax(-1), y).log().nan_to_num(neginf=-1000).mean()
        ),
        "it fails when all logits of a position are about -1000. Subtract the largest logit "
        "itself, not the largest absolute value.": lambda x, y: (
            (x - top(x.abs())).exp().sum(-1, keepdim=True).log() - chosen(x - top(x.abs()), y)
        ).mean(),
        "it fails when all logits of a position are about -1000. Subtract the largest logit, and "
        "limit nothing.": lambda x, y: nll(x.clamp(-1000, 1000), y).mean(),
        "it fails when the positions' logits lie far apart. Subtract each position's own largest "
        "logit (dim=-1, keepdim=True), not one maximum for all.": lambda x, y: (
            (x - x.max()).exp().sum(-1, keepdim=True).log() - chosen(x - x.max(), y)
        ).mean(),
        LOST: [
            lambda x, y: nll(x, y).mean().item(),
            lambda x, y: torch.tensor(nll(x, y).mean().item()),
            lambda x, y: nll(x, y).mean().detach(),
            torch.no_grad()(by_index),
        ],
        NUMPY: by_numpy,
        "the inputs aren't contiguous, so .view refuses them; use .reshape or .flatten.": [
            lambda x, y: nll(x, y).mean() + 0 * y.view(-1)[0],
        ],
    },
    refused=[
        lambda x, y: -(chosen(x.softmax(-1), y).clamp(min=1e-9)).log().mean(),
        lambda x, y: (x.clamp(-80, 80).logsumexp(-1) - chosen(x.clamp(-80, 80), y)[..., 0]).mean(),
        lambda x, y: nll(x, y).clamp(max=100).mean(),
        lambda x, y: nll(x, y).sum() / 10,
        lambda x, y: nll(x, y).mean() + 1,
        lambda x, y: nll(x, y).mean().half(),
        lambda x, y: nll(x, y).mean()[None],
        lambda x, y: -(F.one_hot(y) * x.log_softmax(-1)).sum(-1).mean(),
        lambda x, y: (x.detach().logsumexp(-1) - chosen(x, y).squeeze(-1)).mean(),
        lambda x, y: (x.logsumexp(-1) - chosen(x.detach(), y).squeeze(-1)).mean(),
        lambda x, y: nll(x.sub_(top(x)), y).mean(),
        lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten()),
        lambda x, y: F.nll_loss(x.log_softmax(-1).flatten(0, 1), y.flatten()),
        lambda x, y: nn.CrossEntropyLoss()(x.transpose(1, 2), y),
        lambda x, y: nn.NLLLoss()(x.log_softmax(-1).transpose(1, 2), y),
        lambda x, y, imported=F.cross_entropy: imported(x.flatten(0, 1), y.flatten()),
        lambda x, y, imported=F.nll_loss: imported(x.log_softmax(-1).flatten(0, 1), y.flatten()),
        lambda x, y: None,
        lambda x, y: 1 / 0,
    ],
    right=[
        lambda x, y: nll(x, y).mean(),
        lambda x, y: -torch.distributions.Categorical(logits=x).log_prob(y).mean(),
        lambda x, y: nll(x.double(), y).mean(),
        lambda x, y: (x.logsumexp(-1) - chosen(x, y).squeeze()).mean(),
        by_one_hot,
        by_index,
        in_loops,
    ],
)


# unit_output

ENOUGH = 10_000  # weights for a std that is precise to a few percent


def layers() -> Iterator[Case]:
    """Yield shapes of weights."""
    yield Case("", d_in=1024, d_out=256)
    for d_in, d_out in ((256, 256), (20_000, 1), (5, 4096)):
        yield Case("another shape", d_in=d_in, d_out=d_out)
    for size in sizes(4, d_in=(2, 40), d_out=(9000, 12_000)):
        yield Case("another shape", **vars(size))
    yield Case("one input", d_in=1, d_out=20_000)
    yield Case("a single weight", d_in=1, d_out=1)


def observe_init(init: Callable[[int, int, Generator], Any], case: Case) -> Record:
    """Return what all right weights have in common, since they may be drawn in several ways."""
    d_in, d_out = case.inputs.values()
    seeded = (init(d_in, d_out, Generator().manual_seed(seed)) for seed in (0, 0, 1))
    w, again, other = seeded
    if not isinstance(w, Tensor):
        return {"weights": plain(w)}
    record: Record = {"weights": "a tensor", "shape": list(w.shape), "dtype": str(w.dtype)}
    record["finite"] = bool(w.isfinite().all())
    if w.shape != (d_in, d_out) or w.numel() < ENOUGH:
        return record
    generator = Generator().manual_seed(0)
    first, second = (init(d_in, d_out, generator) for _ in range(2))
    record["drawn from the generator"] = torch.equal(w, again)
    record["another generator"] = not torch.equal(w, other)
    record["a second draw"] = not torch.equal(first, second)
    record["both signs"] = bool(w.min() < 0)
    if not case.what:
        row = (normal(1, d_in, seed=99) @ w.float()).std() / w.pow(2).sum(0).mean().sqrt()
        record["independent"] = bool(abs(row - 1) < 0.2)
    return record | {"std": w.pow(2).mean().sqrt().item() * math.sqrt(d_in)}


def scaled(code: str) -> tuple[str, str]:
    """Return an idea that multiplies standard normal weights by a factor."""
    return "/ math.sqrt(d_in)", f"* ({code})"


DRAW = "torch.randn(d_in, d_out, generator=generator)"
UNIFORM = "(2 * torch.rand(d_in, d_out, generator=generator) - 1)"
NOT_A_TENSOR = "return a tensor."
TURNED = "the shape should be (d_in, d_out), since y = x @ w."
UNSEEDED = (
    "two calls with equal generators differ; pass generator=generator to the random function."
)
SAME = "another generator gives the same weights; draw from `generator` and do not seed one."
RESTARTED = (
    "two layers drawn from one generator get equal weights. Don't start the generator again; a "
    "draw moves it on."
)
POSITIVE = (
    "no weight is negative, because torch.rand is uniform in [0, 1). So all outputs of a row are "
    "about the same multiple of its sum. Draw around 0, as torch.randn does."
)
ALIKE = (
    "the outputs of a single row of x are too much alike. Draw each weight separately, and around "
    "0."
)
NOT_FINITE = (
    "a weight is nan or infinite. Take the scale from the arguments; the std of the drawn numbers "
    "may be nan."
)

unit_output = Exercise(
    NOTEBOOK,
    "unit_output",
    layers,
    observe=observe_init,
    answers=("init",),
    tolerance=3e4,  # 3 %, because the weights are random
    smaller="You add 16 independent numbers with a variance of 1. What is the std of the sum?",
    says={
        "weights": NOT_A_TENSOR,
        "shape": TURNED,
        "dtype": "the weights have another dtype than x, so x @ w raises an error; keep "
        "torch.randn's float32.",
        "finite": NOT_FINITE,
        "drawn from the generator": UNSEEDED,
        "another generator": SAME,
        "a second draw": RESTARTED,
        "both signs": POSITIVE,
        "independent": ALIKE,
        "std": "the std of the output is not 1. Compute the scale from d_in, and neither round nor "
        "cut anything off.",
    },
    wrong={
        NOT_A_TENSOR: lambda d_in, d_out, generator: [[0.0] * d_out] * d_in,
        TURNED: ("d_in, d_out, generator=", "d_out, d_in, generator="),
        UNSEEDED: (", generator=generator", ""),
        SAME: (", generator=generator", ", generator=torch.Generator().manual_seed(0)"),
        RESTARTED: ("return", "generator.manual_seed(generator.initial_seed())\n    return"),
        POSITIVE: [
            ("randn", "rand"),
            (DRAW, "math.sqrt(3) * torch.rand(d_in, d_out, generator=generator)"),
        ],
        ALIKE: (DRAW, "torch.randn(d_in, 1, generator=generator).expand(d_in, d_out)"),
        "you multiply by sqrt(d_in); divide by it.": scaled("math.sqrt(d_in)"),
        "the weights have a std of 1, so the output has sqrt(d_in); divide them by that.": scaled(
            "1"
        ),
        "you divide by d_in. Variances add up and stds don't, so divide by its root.": scaled(
            "1 / d_in"
        ),
        "you divide by sqrt(d_out), but each output is a sum over d_in.": scaled("d_out**-0.5"),
        "this is Xavier's compromise 2 / (d_in + d_out), which gives an output std of 1 only for "
        "square matrices; divide by sqrt(d_in).": scaled("math.sqrt(2 / (d_in + d_out))"),
        "this is He's factor sqrt(2 / d_in), which makes up for a ReLU; there is none here.": (
            scaled("math.sqrt(2 / d_in)")
        ),
        "numbers uniform in [-1, 1) have a variance of 1/3; multiply them by sqrt(3), too.": (
            DRAW,
            UNIFORM,
        ),
        "you divide by the norm of the whole matrix; each column should have a norm of about 1.": [
            scaled("1 / math.sqrt(d_in * d_out)"),
            "def init(d_in, d_out, generator):\n"
            "    w = torch.randn(d_in, d_out, generator=generator)\n"
            "    return w / w.norm()\n",
        ],
    },
    refused=[
        scaled("3 / math.sqrt(d_in)"),
        scaled("1 / math.sqrt(768)"),
        scaled("1 / 32"),
        scaled("1 / 16"),
        scaled("0.02"),
        scaled("1 / math.isqrt(d_in)"),
        scaled("max(d_in, d_out) ** -0.5"),
        scaled("min(d_in, d_out) ** -0.5"),
        scaled("(d_in * d_out) ** -0.25"),
        (DRAW, f"math.sqrt(0.5) * (1 + {DRAW})"),
        (DRAW, f"{DRAW}.clamp(-1, 1)"),
        edits(
            ("return", "torch.manual_seed(generator.initial_seed())\n    return"),
            (", generator=generator", ""),
        ),
        ("generator=generator", "generator=generator, dtype=torch.float64"),
        "def init(d_in, d_out, generator):\n"
        "    w = torch.randn(d_in, d_out, generator=generator)\n"
        "    return w / w.std() / math.sqrt(d_in)\n",
        lambda d_in, d_out, generator: nn.init.trunc_normal_(
            torch.empty(d_in, d_out), std=d_in**-0.5, generator=generator
        ),
        lambda d_in, d_out, generator: nn.init.orthogonal_(
            torch.empty(d_in, d_out), generator=generator
        ),
        lambda d_in, d_out, generator: None,
        lambda d_in, d_out, generator: 1 / 0,
    ],
    right=[
        lambda i, o, g: torch.normal(0.0, i**-0.5, (i, o), generator=g),
        lambda i, o, g: nn.init.normal_(torch.empty(i, o), std=float(np.sqrt(1 / i)), generator=g),
        lambda i, o, g: nn.init.trunc_normal_(torch.empty(i, o), 0.0, i**-0.5, -9.0, 9.0, g),
        lambda i, o, g: torch.randn(o, i, generator=g).T / torch.tensor(i).sqrt(),
        lambda i, o, g: torch.stack([torch.randn(o, generator=g) for _ in range(i)]) / i**0.5,
        lambda i, o, g: nn.Parameter(torch.randn(i, o, generator=g) / math.sqrt(i)),
        lambda i, o, g: F.normalize(torch.randn(i, o, generator=g), dim=0),  # norms of exactly 1
        lambda i, o, g: (2 * torch.randint(2, (i, o), generator=g) - 1) / i**0.5,  # only signs
        (DRAW, f"math.sqrt(3) * {UNIFORM}"),
    ],
)


# newton_schulz


def matrices() -> Iterator[Case]:
    """Yield matrices and numbers of rounds."""
    yield Case("", matrix=3 * normal(4, 6), steps=25)
    yield Case("", matrix=3 * normal(4, 6), steps=2)
    for seed, size in enumerate(sizes(8, rows=(1, 6), cols=(1, 6), steps=(0, 6))):
        matrix = (1 + seed) * normal(size.cols, size.rows, seed=seed).T  # not contiguous
        what = "a matrix in float64" if seed % 2 else "a matrix that isn't contiguous"
        yield Case(what, matrix=matrix.double() if seed % 2 else matrix, steps=size.steps)


def transposed(matrix: Tensor, steps: int) -> Tensor:
    """Iterate on the wide matrix, whose products are smaller."""
    is_tall = matrix.size(0) > matrix.size(1)
    x = (matrix.T if is_tall else matrix) / torch.linalg.matrix_norm(matrix)
    for _ in range(steps):
        x = 1.5 * x - 0.5 * torch.linalg.multi_dot([x, x.T, x])
    return x.T if is_tall else x


def on_singular_values(matrix: Tensor, steps: int) -> Tensor:
    """Change the singular values only."""
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.square().sum().sqrt()
    for _ in range(steps):
        s = (3 * s - s**3) / 2
    return u * s @ vh


def with_identity(matrix: Tensor, steps: int) -> Tensor:
    """Factor x out."""
    x = matrix / (matrix.pow(2).sum() ** 0.5 + 1e-7)
    identity = torch.eye(matrix.size(1), dtype=matrix.dtype)
    while steps > 0:
        x, steps = x @ (1.5 * identity - 0.5 * (x.T @ x)), steps - 1
    return x


ROUND = "x = 1.5 * x - 0.5 * x @ x.T @ x"
DIVIDED = "x = matrix / matrix.norm()"
NORM = "matrix.norm()"
FROBENIUS = "divide by the Frobenius norm, matrix.norm()."

newton_schulz = Exercise(
    NOTEBOOK,
    "newton_schulz",
    matrices,
    answers=("classical",),
    smaller="A singular value is 0.5 after the division. What is it after one and two rounds?",
    wrong={
        "it diverges to infinity. Divide by the norm before the loop, so that no singular value is "
        "above 1.": (DIVIDED, "x = matrix"),
        "it diverges to infinity. Subtract the cubic term: 1.5 x - 0.5 x x^T x.": (
            "- 0.5",
            "+ 0.5",
        ),
        "x**3 cubes the entries; the cube of a matrix here is x @ x.T @ x.": (
            "x @ x.T @ x",
            "x**3",
        ),
        "you divide by the norm in every round; once, before the loop, is enough, and after it "
        "the singular values would be too small.": (ROUND, f"{ROUND}\n        x = x / x.norm()"),
        "you divide by the norm in every round, so the singular values can't reach 1; divide once, "
        "before the loop.": edits(
            (DIVIDED, "x = matrix"), (ROUND, f"x = x / x.norm()\n        {ROUND}")
        ),
        "you multiply the norm back in; leave it out.": ("return x", "return x * matrix.norm()"),
        "you return the matrix divided by its norm; the rounds are missing.": (
            "range(steps)",
            "range(0)",
        ),
        "that is one round more than `steps`.": ("range(steps)", "range(steps + 1)"),
        "that is one round fewer than `steps`.": ("range(steps)", "range(1, steps)"),
        "you do one round only; use all `steps`.": ("range(steps)", "range(1)"),
        "that is the result of many rounds; do exactly `steps` rounds.": [
            ("range(steps)", "range(25)"),
            "def classical(matrix, steps):\n"
            "    u, _, v = torch.linalg.svd(matrix, full_matrices=False)\n"
            "    return u @ v\n",
        ],
        "you divide by the largest singular value. That converges, too, but finding it takes an "
        "SVD, which these rounds avoid; divide by matrix.norm().": (
            NORM,
            "torch.linalg.matrix_norm(matrix, 2)",
        ),
        f"you divide by the largest entry; {FROBENIUS}": (NORM, "matrix.max()"),
        f"you divide by the largest magnitude; {FROBENIUS}": (NORM, "matrix.abs().max()"),
        f"you divide by the sum of the magnitudes; {FROBENIUS}": (NORM, "matrix.abs().sum()"),
        f"you divide by the sum of the squares; {FROBENIUS}": (NORM, "matrix.square().sum()"),
        "you divide each row by its own norm; divide by the norm of the whole matrix.": (
            NORM,
            "matrix.norm(dim=1, keepdim=True)",
        ),
        "you divide each column by its own norm; divide by the norm of the whole matrix.": (
            NORM,
            "matrix.norm(dim=0, keepdim=True)",
        ),
        "these are Muon's coefficients; here the polynomial is 1.5 x - 0.5 x x^T x.": (
            ROUND,
            "g = x @ x.T\n        x = 3.4445 * x + (-4.775 * g + 2.0315 * g @ g) @ x",
        ),
        "with steps=0 you skip the division by the norm, too; only the rounds go.": (
            DIVIDED,
            f"{DIVIDED} if steps else matrix",
        ),
        "you compute in 16 bits, which are too few here; keep the matrix's own dtype.": [
            edits(
                (DIVIDED, f"x = matrix.{dtype}() / matrix.{dtype}().norm()"),
                ("return x", "return x.to(matrix.dtype)"),
            )
            for dtype in ("half", "bfloat16")
        ],
        "a tall matrix comes back turned; turn it back, since the shape should stay.": (
            DIVIDED,
            f"{DIVIDED}\n    x = x.T if x.size(0) > x.size(1) else x",
        ),
    },
    refused=[
        ("range(steps)", "range(3)"),
        ("range(steps)", "range(min(steps, 5))"),
        ("range(steps)", "range(max(1, steps))"),
        ("range(steps)", "range(max(2, steps))"),
        ("range(steps)", "range(max(8, steps))"),
        edits((DIVIDED, "x = matrix"), ("return x", "return x / x.norm()")),
        (NORM, "torch.linalg.matrix_norm(matrix, 'nuc')"),
        (NORM, "matrix.numel() ** 0.5"),
        "def classical(matrix, steps):\n"
        "    s = torch.linalg.svdvals(matrix / matrix.norm())\n"
        "    for _ in range(steps):\n"
        "        s = 1.5 * s - 0.5 * s**3\n"
        "    return torch.diag(s)\n",
        ("x @ x.T @ x", "matrix @ matrix.T @ matrix / matrix.norm() ** 3"),
        (DIVIDED, "x = matrix.div_(matrix.norm())"),
        (DIVIDED, "x = matrix.float() / matrix.norm().float()"),
        edits(
            (DIVIDED, "x = matrix.half() / matrix.half().norm()"), ("return x", "return x.float()")
        ),
        lambda matrix, steps: torch.eye(*matrix.shape),
        lambda matrix, steps: matrix.T,
        lambda matrix, steps: None,
        lambda matrix, steps: 1 / 0,
    ],
    right=[transposed, on_singular_values, with_identity],
)


# factored


def means() -> Iterator[Case]:
    """Yield the row means and column means of matrices of squares."""
    yield Case("", **of_rows_and_columns(torch.tensor([[1.0, 2.0, 3.0], [5.0, 6.0, 1.0]])))
    for seed, size in enumerate(sizes(6, rows=(1, 7), cols=(1, 7))):
        v = normal(size.rows, size.cols, seed=seed) ** 2
        yield Case("another shape", **of_rows_and_columns(v.double() if seed % 2 else v))


def of_rows_and_columns(v: Tensor) -> dict[str, Tensor]:
    """Return the means along both axes."""
    return {"rows": v.mean(1), "columns": v.mean(0)}


OUTER = "torch.outer(rows, columns)"
TOTAL = "/ rows.mean()"

factored = Exercise(
    NOTEBOOK,
    "factored",
    means,
    smaller="All entries of v are 3. What are its row means and column means, and what should your "
    "function return?",
    wrong={
        "the product of two means has the wrong unit, a gradient to the fourth power; divide by "
        "the mean of all entries.": (f" {TOTAL}", ""),
        "you divide by the sum of the row means; that's right for sums, but these are means.": (
            TOTAL,
            "/ rows.sum()",
        ),
        "you divide by the sum of the column means; that's right for sums, but these are means.": (
            TOTAL,
            "/ columns.sum()",
        ),
        "you divide by the mean of all entries twice, so the unit is gone.": (
            TOTAL,
            "/ (rows.mean() * columns.mean())",
        ),
        "the root of the product has the right unit, but the row means come out wrong; divide the "
        "product by the mean of all entries.": (f"{OUTER} {TOTAL}", f"{OUTER}.sqrt()"),
        "you average a row mean and a column mean. A row that is all zero should stay zero, so "
        "multiply them.": (
            f"{OUTER} {TOTAL}",
            "(rows[:, None] + columns) / 2",
        ),
        "you add a row mean and a column mean. That keeps the means, but it may become negative, "
        "and v has a root to take; multiply them.": (
            f"{OUTER} {TOTAL}",
            "rows[:, None] + columns - rows.mean()",
        ),
        "rows and columns are swapped; entry [i, j] belongs to row i.": (
            OUTER,
            "torch.outer(columns, rows)",
        ),
        "you multiply by the mean of all entries; divide by it.": (TOTAL, "* rows.mean()"),
    },
    refused=[
        (TOTAL, "/ rows.max()"),
        (f"{OUTER} {TOTAL}", "rows[:, None].expand(-1, len(columns))"),
        (f"{OUTER} {TOTAL}", "columns.expand(len(rows), -1)"),
        lambda rows, columns: None,
        lambda rows, columns: 1 / 0,
    ],
    right=[
        (TOTAL, "/ columns.mean()"),
        lambda rows, columns: rows[:, None] / rows.mean() * columns,
        lambda rows, columns: torch.einsum("i,j->ij", rows, columns / columns.mean()),
    ],
)
