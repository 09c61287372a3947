"""Exercise checks for notebook 06 on batches and gradient accumulation."""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_lib.classroom.checks.report import exercise, expect

Batch = tuple[Tensor, Tensor]


@exercise("")
def epoch_batch(batch: Callable[[np.ndarray, int, int, int], Batch]) -> None:
    """Check `batch(tokens, number, batch_size, block_size)`, which returns inputs and targets."""
    block = 4
    exact = np.arange(1000, 1041, dtype=np.uint16)  # exactly 10 windows and the last target
    got = batch(exact, 0, 3, block)
    expect(isinstance(got, (tuple, list)) and len(got) == 2, "return two tensors: inputs, targets.")
    x, y = got
    expect(isinstance(x, Tensor) and isinstance(y, Tensor), "inputs and targets must be tensors.")
    expect(
        x.dtype == y.dtype == torch.int64,
        f"the dtypes are {x.dtype} and {y.dtype}; embeddings and cross-entropy want int64.",
    )
    expect(
        x.shape == (3, block) and y.shape == (3, block),
        f"shapes {tuple(x.shape)} and {tuple(y.shape)}; both must be (3, {block}) here.",
    )
    expect(x[0, 0] == 1000, "the first window must begin with the file's first token.")
    expect(not torch.equal(x, y), "the targets equal the inputs: shift them by one.")
    expect(
        not torch.equal(y[:, 1:], x[:, :-1]),
        "the targets are shifted the wrong way: y[t] must be what comes AFTER x[t].",
    )
    expect(torch.equal(y, x + 1), "a target must be the token right after its input.")
    step = int(x[1, 0] - x[0, 0])
    expect(
        step != block + 1,
        f"the second window begins {step} tokens after the first: one token is never an input. A "
        "window reads block_size + 1 tokens, but the next one begins block_size on; its first "
        "input is the last one's last target.",
    )
    expect(step == block, f"the second window begins {step} tokens after the first, not {block}.")
    second = batch(exact, 1, 3, block)[0]
    expect(not torch.equal(second, x), "batch 1 repeats batch 0: `number` is ignored.")
    expect(
        second[0, 0] == 1000 + 3 * block,
        f"batch 1 must continue where batch 0 ended, at token {3 * block}; yours begins at "
        f"{int(second[0, 0]) - 1000}.",
    )
    last = None
    try:
        last = batch(exact, 3, 3, block)
        yours = f"has {len(last[0])}"
    except (ValueError, RuntimeError, IndexError) as error:
        yours = f"raises {type(error).__name__} ({error})"
    expect(
        last is not None and len(last[0]) == 1,
        f"41 tokens hold 10 windows of {block} inputs and a target, so batch 3 has one window; "
        f"yours {yours}. Window 9 ends with the file's very last token as its target: "
        "(len(tokens) - 1) // block_size windows, and a last batch that is not full.",
    )
    expect(torch.equal(last[1][0], torch.arange(1037, 1041)), "the last window is wrong.")
    short = exact[:40]
    try:
        ends = batch(short, 2, 4, block)
        fits = ends[0].shape == ends[1].shape == (1, block)
    except (ValueError, RuntimeError, IndexError):
        fits = False
    expect(
        fits,
        "with 40 tokens the tenth window has no last target: only 9 windows are full. "
        "len(tokens) // block_size counts one too many; (len(tokens) - 1) // block_size.",
    )


@exercise("")
def accumulate(run: Callable[[nn.Module, list[Batch], Callable], float]) -> None:
    """Check `run(model, micro_batches, loss_function)`, which accumulates gradients."""
    generator = torch.Generator().manual_seed(6)
    x, y = (torch.randn(8, 3, generator=generator) for _ in range(2))
    y = y[:, :1] * torch.arange(1.0, 9.0)[:, None]  # so that the pieces' losses differ a lot
    weight = torch.randn(1, 3, generator=generator)
    pieces = list(zip(x.split([4, 3, 1]), y.split([4, 3, 1]), strict=True))

    def fresh() -> nn.Linear:
        model = nn.Linear(3, 1, bias=False)
        model.weight.data.copy_(weight)
        return model

    def gradient(factor: Callable[[int], float]) -> Tensor:
        """Accumulate the gradients of all micro-batch losses, each multiplied by `factor(size)`."""
        model = fresh()
        for a, b in pieces:
            (F.mse_loss(model(a), b) * factor(len(a))).backward()
        return model.weight.grad

    model, passes = fresh(), []
    model.register_forward_hook(lambda *_: passes.extend(["forward"] * torch.is_grad_enabled()))
    model.weight.register_hook(lambda _: passes.append("backward"))
    loss = run(model, pieces, F.mse_loss)
    got = model.weight.grad
    expect(got is not None, "model.weight.grad is None: call backward, and leave the gradients.")
    alone = fresh()
    F.mse_loss(alone(pieces[-1][0]), pieces[-1][1]).backward()
    wrong = {
        "that is the sum of the pieces' mean gradients: each loss must be scaled down before "
        "backward.": gradient(lambda count: 1.0),
        "you divide by the number of micro-batches, so the last one's single example counts as "
        "much as the first one's four. Weigh by size: count / total.": gradient(
            lambda count: 1 / 3
        ),
        "you divide each mean by the number of examples; a mean of `count` examples must be "
        "multiplied by count as well.": gradient(lambda count: 1 / 8),
        "that is the sum over all examples: multiplied by count, but not divided by the total.": (
            gradient(lambda count: float(count))
        ),
        "only the last micro-batch is left: do not zero the gradients in between.": (
            alone.weight.grad
        ),
        "only the last micro-batch is left (weighed by its size): do not zero the gradients in "
        "between.": alone.weight.grad / 8,
    }
    want = gradient(lambda count: count / 8)
    for diagnosis, value in wrong.items():
        expect(not torch.allclose(got, value, rtol=1e-4), diagnosis)
    expect(torch.allclose(got, want, rtol=1e-4), f"the gradient is {got}; it should be {want}.")
    expect(
        passes == ["forward", "backward"] * len(pieces),
        "the gradient is right, but all pieces were in memory at once: call backward for each one "
        "before the next goes forward.",
    )
    expect(torch.equal(model.weight, weight), "the weights have moved: take no optimizer step.")
    expect(loss is not None, "the gradient is right; return the batch's mean loss as well.")
    expect(
        not (isinstance(loss, Tensor) and loss.requires_grad),
        "the gradient is right, but the loss you return still holds the graph and all "
        "activations: add up loss.item() (or loss.detach()).",
    )
    true_loss = F.mse_loss(fresh()(x), y).item()
    of_means = sum(F.mse_loss(fresh()(a), b).item() for a, b in pieces) / len(pieces)
    expect(
        not math.isclose(float(loss), of_means, rel_tol=1e-4),
        "the gradient is right; the loss you return is the mean of the pieces' means: weigh each "
        "by its size here, too.",
    )
    expect(
        math.isclose(float(loss), true_loss, rel_tol=1e-4),
        f"the gradient is right; the loss is {true_loss:.4f}, you return {float(loss):.4f}.",
    )
