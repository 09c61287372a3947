"""Checks of notebook 06 on data order, shards, batches, clipping, accumulation and autocast.

The checks of its checkpoints live in `checkpoints` and can also be imported from here.
"""

import math
import pickle
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_lib.classroom.checks.checkpoints import missing_pieces, resume
from cs336_lib.classroom.checks.report import by_hand, exercise, expect
from cs336_lib.data.shards import HEADER_BYTES, write_shard

__all__ = [
    "accumulate",
    "autocast_dtypes",
    "clip_by_hand",
    "epoch_batch",
    "epoch_order",
    "missing_pieces",
    "read_shard",
    "resume",
]

Batch = tuple[Tensor, Tensor]


def global_randomness() -> list[Any]:
    """Return the states of the global generators in a form that can be compared."""
    return [random.getstate(), pickle.dumps(np.random.get_state()), torch.get_rng_state().tolist()]


@exercise
def epoch_order(order: Callable[[int, int, int], Sequence[int]]) -> None:
    """Check `order(seed, epoch, n)`, a shuffle of 0..n-1 that depends only on its arguments."""
    before = global_randomness()
    first = order(0, 0, 50)
    expect(first is not None, "your function returns None; is the `return` missing?")
    untouched = global_randomness() == before
    numbers = [int(i) for i in first]
    expect(
        sorted(numbers) == list(range(50)),
        "order(0, 0, 50) must hold each of 0..49 exactly once, so permute instead of drawing "
        "50 times.",
    )
    expect(numbers != list(range(50)), "nothing was shuffled: order(0, 0, 50) is 0, 1, 2, ...")
    torch.rand(1), np.random.rand(), random.random()  # advance the global generators
    again = [int(i) for i in order(0, 0, 50)]
    expect(
        again == numbers,
        "the same arguments gave two orders: you draw from a global generator. Make your own, "
        "seeded from the arguments.",
    )
    expect(
        untouched,
        "the order is right, but your function re-seeded or advanced a global generator, which "
        "changes the random numbers of all other code. Make your own generator "
        "(torch.Generator, np.random.default_rng, random.Random).",
    )
    expect(
        [int(i) for i in order(0, 1, 50)] != numbers,
        "epoch 1 has the order of epoch 0: the epoch must go into the seed.",
    )
    expect([int(i) for i in order(1, 0, 50)] != numbers, "the seed makes no difference.")
    for a, b in (((0, 1), (1, 0)), ((1, 2), (2, 1)), ((0, 5), (0, 7)), ((1, 11), (11, 1))):
        expect(
            [int(i) for i in order(*a, 50)] != [int(i) for i in order(*b, 50)],
            f"(seed, epoch) = {a} and {b} give the same order, because sums, products and joined "
            "digits collide. Mix them with np.random.default_rng([seed, epoch]).",
        )


@exercise
def read_shard(read: Callable[[Path], np.ndarray]) -> None:
    """Check `read(path)`, the tokens of an llm.c shard as a read-only uint16 memmap."""
    ids = np.concatenate([np.arange(7, 700), [50256, 40000, 0]]).astype(np.uint16)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "train_000.bin"
        write_shard(path, ids)
        got = read(path)
        expect(got is not None, "your function returns None; is the `return` missing?")
        values, mapped, dtype = np.array(got), isinstance(got, np.memmap), got.dtype
        writable = got.flags.writeable
        del got
    n, extra = len(ids), HEADER_BYTES // 2
    expect(
        dtype not in (np.int32, np.uint32) or len(values) in (n, n + extra),
        f"{len(values)} numbers for {n} tokens: only the header is int32; a token is a uint16.",
    )
    expect(
        len(values) != n + extra,
        f"{extra} numbers too many at the front: that is the header of {HEADER_BYTES} bytes, read "
        "as tokens. np.memmap takes an offset.",
    )
    expect(
        len(values) not in (n + extra - 128, n + extra - 256),
        "part of the header is still there: np.memmap's offset counts bytes, and the header is "
        "256 int32 = 1024 bytes.",
    )
    expect(
        len(values) != 2 * n,
        "there are twice as many numbers as tokens; np.memmap's default dtype is uint8, and a "
        "token is "
        "a uint16.",
    )
    expect(len(values) == n, f"{len(values)} numbers, but the file holds {n} tokens.")
    expect(
        not (values.astype(np.int64) < 0).any(),
        "some ids are negative: int16 ends at 32,767 and GPT-2's last id is 50,256; use uint16.",
    )
    expect(np.array_equal(values, ids), "the length is right, but the ids are not.")
    expect(
        dtype == np.uint16,
        f"the ids are right, but as {dtype}: converting copies the whole file into memory; return "
        "the uint16 map itself.",
    )
    expect(
        mapped,
        "the ids are right, but the whole file was loaded; np.memmap reads only what you index.",
    )
    expect(
        not writable, 'the map is writable, so a stray assignment changes the file; use mode="r".'
    )


@exercise
def epoch_batch(batch: Callable[[np.ndarray, int, int, int], Batch]) -> None:
    """Check `batch(tokens, number, batch_size, block_size)`, the inputs and targets of a batch."""
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


def with_gradients(gradients: Sequence[Tensor | None]) -> list[nn.Parameter]:
    """Return parameters that hold copies of these gradients."""
    parameters = []
    for gradient in gradients:
        size = 2 if gradient is None else gradient.shape
        parameters.append(nn.Parameter(torch.ones(size)))
        parameters[-1].grad = None if gradient is None else gradient.clone()
    return parameters


def all_close(got: Sequence[Tensor], want: Sequence[Tensor]) -> bool:
    """Return whether the tensors agree, apart from the 1e-6 that torch's clipping adds."""
    return all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(got, want, strict=True))


@exercise
def clip_by_hand(clip: Callable[[list[nn.Parameter], float], Tensor | float]) -> None:
    """Check `clip(parameters, limit)`, which scales all gradients and returns their old norm."""
    gradients = [
        torch.tensor([3.0, -4.0]),
        torch.tensor([[7.2, 9.6]]),
    ]  # norms 5 and 12, together 13
    parameters = with_gradients(gradients)
    with by_hand(nn.utils, "clip_grad_norm_", "clip_grads_with_norm_", "get_total_norm"):
        norm = clip(parameters, 6.5)
    got = [p.grad for p in parameters]
    expect(norm is not None, "your function returns None; it must return the norm.")
    norm = float(torch.as_tensor(norm).detach())
    expect(
        not math.isclose(norm, 2, rel_tol=1e-4),
        "that is the norm of the weights; compute that of the gradients, p.grad.",
    )
    small, large = gradients
    wrong = {
        "the gradients did not change; write into p.grad (p.grad *= scale), since `g = g * scale` "
        "only makes a new tensor.": gradients,
        "you clip each number at the limit, which changes the gradient's direction. "
        "Multiply all of "
        "it by one factor.": [small, large.clamp(-6.5, 6.5)],
        "you clip each parameter by its own norm; there is one norm, of all gradients together.": (
            [small, large * 6.5 / 12]
        ),
        "you add the norms (5 + 12). Add the squares and take the root: 13.": (
            [small * 6.5 / 17, large * 6.5 / 17]
        ),
        "you divide by the squared norm, 169; the root is missing.": (
            [small * 6.5 / 169, large * 6.5 / 169]
        ),
    }
    for diagnosis, values in wrong.items():
        expect(not all_close(got, values), diagnosis)
    expect(
        all_close(got, [small / 2, large / 2]),
        f"gradients of norm 13 and limit 6.5 must be halved; yours are {got}.",
    )
    expect(
        not math.isclose(norm, 6.5, rel_tol=1e-4),
        "you return the norm after clipping; return the one before, which is worth watching.",
    )
    expect(math.isclose(norm, 13, rel_tol=1e-4), f"the norm was 13; you return {norm}.")
    within = with_gradients(gradients)
    clip(within, 100.0)
    expect(
        all_close([p.grad for p in within], gradients),
        "a gradient of norm 13 under a limit of 100 was changed; clipping only makes it smaller.",
    )
    partly = with_gradients([None, gradients[0]])
    try:
        clip(partly, 1.0)
    except (AttributeError, TypeError):
        expect(False, "an unused parameter has .grad None; leave it out.")


@exercise
def accumulate(run: Callable[[nn.Module, list[Batch], Callable], float]) -> None:
    """Check `run(model, micro_batches, loss_function)`, the batch's gradient piece by piece."""
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
        """Accumulate the pieces' mean losses, each multiplied by `factor(its size)`."""
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


AUTOCAST: dict[str, tuple[str, str]] = {
    "linear(x)": ("bf16", "matmuls are what autocast is for"),
    "x + x": ("fp32", "addition keeps the dtype of its inputs, and x is fp32"),
    "linear(x) + x": ("fp32", "bf16 + fp32 is promoted to the wider one"),
    "gelu(linear(x))": ("bf16", "gelu keeps the dtype of its input, and a linear layer made that"),
    "cross_entropy(linear(x), ids)": ("fp32", "losses are on the fp32 list; the input is cast up"),
    "linear.weight": ("fp32", "autocast casts a copy for the matmul; the parameter stays"),
    "linear.weight.grad": ("fp32", "a gradient has the dtype of its parameter"),
    "embedding(ids)": (
        "fp32",
        "a table look-up isn't a matmul; rows keep the dtype they are stored in",
    ),
}


@exercise
def autocast_dtypes(answer: Mapping[str, str]) -> None:
    """Check the dtype, "bf16" or "fp32", of each expression under bf16 autocast."""
    if all(value is ... for value in answer.values()):
        raise NotImplementedError
    for expression, (truth, why) in AUTOCAST.items():
        given = answer.get(expression, ...)
        expect(given is not ..., f"{expression} has no answer yet.")
        expect(given in ("bf16", "fp32"), f'{expression}: answer "bf16" or "fp32".')
        expect(given == truth, f"{expression} is not {given}: {why}.")
