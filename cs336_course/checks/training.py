"""Exercise checks for notebook 06 on batches and gradient accumulation."""

import copy
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from cs336_course.checks import draws
from cs336_course.checks.report import DiagnosisError, exercise, expect, expect_number

Batch = tuple[Tensor, Tensor]
GetBatch = Callable[[np.ndarray, int, int, int], Batch]
Loss = Callable[[Tensor, Tensor], Tensor]


# epoch_batch


@exercise("How many windows of 4 inputs do 9 tokens hold, and how many do 8 tokens hold?")
def epoch_batch(batch: GetBatch) -> None:
    """Check `batch(tokens, number, batch_size, block_size)`, which returns inputs and targets."""
    block = 4
    tokens = np.arange(1000, 1041, dtype=np.uint16)  # exactly 10 windows and the last target
    x, y = read(batch, tokens, 0, 3, block)
    expect_first_batch(x, y, block)
    second, _ = read(batch, tokens, 1, 3, block)
    expect(not torch.equal(second, x), "batch 1 repeats batch 0, so `number` is ignored.")
    expect(
        second.shape == x.shape,
        f"batch 1 has shape {tuple(second.shape)}; 41 tokens are enough for {tuple(x.shape)}.",
    )
    expect(
        second[0, 0] == 1000 + 3 * block,
        f"batch 1 must continue where batch 0 ended, at token {3 * block}; yours begins at "
        f"{int(second[0, 0]) - 1000}.",
    )
    expect_last_window(batch, tokens, block)
    for seed, case in enumerate(draws.sizes(12, more=(1, 60), rows=(1, 5), block=(1, 7))):
        ids = np.random.default_rng(seed).integers(0, 2**16, case.block + case.more)
        expect_epoch(batch, ids.astype(np.uint16), case.rows, case.block)
    expect_small_copies(batch)


def read(batch: GetBatch, tokens: np.ndarray, number: int, rows: int, block: int) -> Batch:
    """Call the answer, and expect two int64 tensors and unchanged tokens."""
    before = tokens.copy()
    got = batch(tokens, number, rows, block)
    expect(
        got is not None or not number,
        f"batch {number} of {len(tokens)} tokens comes back as None. An epoch's last batch may "
        "have fewer rows; return it, too.",
    )
    expect(isinstance(got, tuple | list) and len(got) == 2, "return two tensors: inputs, targets.")
    x, y = got
    expect(isinstance(x, Tensor) and isinstance(y, Tensor), "inputs and targets must be tensors.")
    expect(
        x.dtype == y.dtype == torch.int64,
        f"the dtypes are {x.dtype} and {y.dtype}; embeddings and cross-entropy want int64.",
    )
    expect(np.array_equal(tokens, before), "your function changes its input tokens in place.")
    return x, y


def expect_first_batch(x: Tensor, y: Tensor, block: int) -> None:
    """Expect the first three windows of the tokens 1000, 1001 and so on."""
    expect(
        x.shape == (3, block) and y.shape == (3, block),
        f"shapes {tuple(x.shape)} and {tuple(y.shape)}; both must be (3, {block}) here.",
    )
    ids = torch.arange(1000, 1000 + 3 * block).view(3, block)
    expect(
        not torch.equal(x, ids % 256),
        "ids above 255 come out too small. The tokens are uint16, so convert them to int64 at "
        "once, and not by way of uint8.",
    )
    expect(
        not (torch.equal(x, ids + 1) and torch.equal(y, ids)),
        "the inputs and the targets are swapped; return the inputs first.",
    )
    expect(x[0, 0] == 1000, "the first window must begin with the file's first token.")
    expect(not torch.equal(x, y), "the targets equal the inputs; shift them by one.")
    expect(
        not torch.equal(y[:, 1:], x[:, :-1]),
        "the targets are shifted the wrong way; y[t] must be what comes after x[t].",
    )
    expect(
        not (torch.equal(y[:, :-1], x[:, 1:]) and torch.equal(y[:, -1], x[:, 0])),
        "the last target of a window is the window's own first token, as torch.roll leaves it. It "
        "must be the next token of the file, so read block_size + 1 tokens.",
    )
    expect(torch.equal(y, x + 1), "a target must be the token right after its input.")
    step = int(x[1, 0] - x[0, 0])
    expect(
        step != block + 1,
        f"the second window begins {step} tokens after the first, so one token is never an input. "
        "A window reads block_size + 1 tokens, but the next one begins block_size on; its first "
        "input is the last one's last target.",
    )
    expect(
        step != 1,
        "the second window begins 1 token after the first, so the windows overlap. Each one begins "
        "where the inputs of the one before ended.",
    )
    expect(
        step == block,
        f"the second window begins {step} tokens after the first. Windows follow each other in the "
        "batch as in the file.",
    )


def expect_last_window(batch: GetBatch, tokens: np.ndarray, block: int) -> None:
    """Expect that an epoch ends with the last window that has all its targets."""
    last = None
    try:
        last = read(batch, tokens, 3, 3, block)
        yours = f"has {len(last[0])}"
    except (ValueError, RuntimeError, IndexError) as error:
        yours = f"raises {type(error).__name__} ({error})"
    else:
        expect(
            last[0].dim() == last[1].dim() == 2,
            f"batch 3 has shapes {tuple(last[0].shape)} and {tuple(last[1].shape)}; with a single "
            f"window both must be (1, {block}). Does `squeeze` remove the axis?",
        )
    expect(
        last is not None and len(last[0]) == 1,
        f"41 tokens hold 10 windows of {block} inputs and a target, so batch 3 has one window; "
        f"yours {yours}. Window 9 ends with the file's very last token as its target, and the last "
        "batch may have fewer rows.",
    )
    expect(torch.equal(last[1][0], torch.arange(1037, 1041)), "the last window is wrong.")
    try:
        ends = read(batch, tokens[:36], 2, 3, block)
        fits = ends[0].shape == ends[1].shape == (2, block)
    except (ValueError, RuntimeError, IndexError):
        fits = False
    expect(
        fits,
        "with 36 tokens the ninth window has no last target, so only 8 windows are full. "
        "len(tokens) // block_size counts one too many.",
    )


def expect_epoch(batch: GetBatch, tokens: np.ndarray, rows: int, block: int) -> None:
    """Expect all batches of an epoch."""
    case = f"{len(tokens)} tokens with batch_size={rows} and block_size={block}"
    windows = (len(tokens) - 1) // block
    ids = torch.from_numpy(tokens.astype(np.int64))
    inputs, targets = (ids[i : i + windows * block].view(-1, block) for i in range(2))
    for number in range(-(-windows // rows)):
        x, y = read(batch, tokens, number, rows, block)
        here = slice(number * rows, (number + 1) * rows)
        where = f"batch {number} of {case}"
        expect(
            x.shape == inputs[here].shape and y.shape == inputs[here].shape,
            f"{where} has shapes {tuple(x.shape)} and {tuple(y.shape)}; both should be "
            f"{tuple(inputs[here].shape)}.",
        )
        expect(
            min(x.min(), y.min()) >= 0,
            "large ids come out negative. The tokens are uint16, so convert them to int64 at once, "
            "and not by way of int16.",
        )
        expect(torch.equal(x, inputs[here]), f"the inputs are wrong in {where}.")
        expect(torch.equal(y, targets[here]), f"the targets are wrong in {where}.")


class Copies(TorchFunctionMode):
    """Note the largest tensor that doesn't share the memory of an array."""

    def __init__(self, array: np.ndarray):
        super().__init__()
        self.shared, self.largest = array.ctypes.data, 0

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        """Run a function of PyTorch."""
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.untyped_storage().data_ptr() != self.shared:
            self.largest = max(self.largest, out.untyped_storage().nbytes())
        return out


def expect_small_copies(batch: GetBatch) -> None:
    """Expect that a batch copies its own tokens, and not the whole file."""
    tokens = np.zeros(1_000_001, dtype=np.uint16)
    for number, what in ((3, "the whole file"), (490, "everything before it")):
        tracemalloc.start()  # which sees NumPy's arrays and Python's lists
        try:
            with Copies(tokens) as copies:
                batch(tokens, number, 2, 1000)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        expect(
            max(peak, copies.largest) < tokens.nbytes // 2,
            f"the batches are right, but for batch {number} you copy {what}. Slice the tokens at "
            "both ends first, and convert only the slices.",
        )


# accumulate


@dataclass(frozen=True)
class Accumulation:
    """A model, pieces of a batch and a loss.

    Attributes:
        model: The model. An answer gets a copy.
        pieces: Micro-batches.
        loss_function: Returns the mean loss over a piece.
        name: What is special about them.
    """

    model: nn.Module
    pieces: list[Batch]
    loss_function: Loss
    name: str

    @property
    def sizes(self) -> list[int]:
        """Number of examples in each piece."""
        return [len(x) for x, _ in self.pieces]

    def losses(self) -> list[float]:
        """Return the mean loss of each piece."""
        with torch.no_grad():
            return [self.loss_function(self.model(x), y).item() for x, y in self.pieces]

    def gradient(self, factors: list[float]) -> Tensor:
        """Return the gradient of the pieces' losses, each multiplied by its factor."""
        model = copy.deepcopy(self.model)
        for (x, y), factor in zip(self.pieces, factors, strict=True):
            (self.loss_function(model(x), y) * factor).backward()
        return gradient_of(model)


def gradient_of(model: nn.Module) -> Tensor:
    """Return the gradient of all parameters as one vector, with 0 for a missing gradient."""
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([grad.flatten() for grad in grads])


class Activations:
    """Note whether activations stay in memory while a later piece goes forward."""

    def __init__(self, model: nn.Module):
        self.weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.is_inside, self.is_kept = False, False
        self.saved: list[StorageWeakRef] = []
        self.outputs: list[StorageWeakRef] = []

    def before(self, inputs: tuple[Tensor, ...]) -> None:
        """Look at what is left of the earlier pieces."""
        # The last output may still have a name, until the next one takes it
        left = [ref for ref in [*self.saved, *self.outputs[:-1]] if not ref.expired()]
        self.is_kept |= bool(left)
        self.given = self.weights | {x.untyped_storage().data_ptr() for x in inputs}
        self.is_inside = True

    def after(self, output: Tensor) -> None:
        """Note the output."""
        self.is_inside = False
        if output.requires_grad:
            self.outputs.append(StorageWeakRef(output.untyped_storage()))

    def save(self, tensor: Tensor) -> Tensor:
        """Note what the model saves for its backward pass."""
        storage = tensor.untyped_storage()
        if self.is_inside and storage.data_ptr() not in self.given:
            self.saved.append(StorageWeakRef(storage))
        return tensor


@exercise(
    "The pieces have losses (1, 3) and (8). Which weights turn their means, 2 and 8, into the mean "
    "of all three?"
)
def accumulate(run: Callable[[nn.Module, list[Batch], Loss], float]) -> None:
    """Check `run(model, micro_batches, loss_function)`, which accumulates gradients."""
    line = filled(nn.Linear(3, 1, bias=False), seed=0)
    x, y = draws.normal(8, 3, seed=1), draws.normal(8, 1, seed=2)
    y = y * torch.arange(1.0, 9.0)[:, None]  # so that the pieces' losses differ a lot
    expect_accumulated(run, Accumulation(line, split(x, y, [4, 3, 1]), F.mse_loss, "this batch"))
    x, y = draws.normal(6, 2, 3, seed=5), draws.normal(6, 2, 1, seed=6)
    for sizes, name in (([6], "a single piece"), ([2, 2, 2], "pieces of one length")):
        pieces = split(x, y, sizes)
        expect_accumulated(run, Accumulation(line, pieces, F.l1_loss, f"{name} and an L1 loss"))
    for seed, case in enumerate(draws.sizes(3, pieces=(2, 5), inputs=(1, 4), classes=(2, 5))):
        net = nn.Sequential(nn.Linear(case.inputs, 3), nn.Tanh(), nn.Linear(3, case.classes))
        sizes = [size.length for size in draws.sizes(case.pieces, seed, length=(1, 6))]
        x = draws.normal(sum(sizes), case.inputs, seed=seed)
        y = torch.arange(len(x)) % case.classes
        name = f"two layers, cross-entropy and pieces of {sizes}"
        pieces = split(x, y, sizes)
        expect_accumulated(run, Accumulation(filled(net, seed), pieces, F.cross_entropy, name))
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    pieces = split(draws.normal(6, 3, seed=5), draws.normal(6, 1, seed=6), [3, 1, 2])
    expect_accumulated(
        run, Accumulation(filled(net, 7).eval(), pieces, F.mse_loss, "a model in eval mode")
    )
    expect_one_mask(run, net.train(), pieces)
    expect_parts_without_gradient(run, pieces)


def filled(model: nn.Module, seed: int) -> nn.Module:
    """Fill the parameters with numbers that are the same in every run."""
    for number, p in enumerate(model.parameters()):
        p.data.copy_(draws.normal(*p.shape, seed=10 * seed + number))
    return model


def split(x: Tensor, y: Tensor, sizes: list[int]) -> list[Batch]:
    """Split a batch into pieces of these sizes."""
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def expect_accumulated(
    run: Callable[[nn.Module, list[Batch], Loss], float], case: Accumulation
) -> None:
    """Expect the gradient and the loss of the whole batch."""
    model, pieces, passes = copy.deepcopy(case.model), copy.deepcopy(case.pieces), []
    activations, modes = Activations(model), set()
    kind = type(model)

    def observed(self: nn.Module, *inputs: Tensor) -> Tensor:
        activations.before(inputs)
        output = kind.forward(self, *inputs)
        activations.after(output)
        modes.add(self.training)
        passes.extend(["forward"] * torch.is_grad_enabled())
        return output

    # A class of its own, because model.forward(x) would skip hooks
    model.__class__ = type(kind.__name__, (kind,), {"forward": observed})
    next(model.parameters()).register_hook(lambda _: passes.append("backward"))
    with saved_tensors_hooks(activations.save, lambda tensor: tensor):
        loss = run(model, pieces, case.loss_function)
    parameters = dict(model.named_parameters())
    if all(p.grad is None for p in parameters.values()):
        raise DiagnosisError("every .grad is None; call backward, and keep the gradients.")
    expect(
        modes <= {case.model.training},
        "you change the model's mode. Leave model.train() and model.eval() to the caller.",
    )
    expect_trainable(parameters, case)
    expect_gradient(gradient_of(model), case)
    expect_missing(parameters, case)
    expect(
        passes == ["forward", "backward"] * len(case.pieces),
        "the gradient is right, but all pieces were in memory at once. Call backward for each one "
        "before the next goes forward.",
    )
    expect(
        not activations.is_kept,
        "the gradient is right, but activations of earlier pieces stay in memory. Collect neither "
        "outputs nor graphs, and call backward without retain_graph.",
    )
    for p, before in zip(parameters.values(), case.model.parameters(), strict=True):
        expect(torch.equal(p, before), "the weights have moved; take no optimizer step.")
    same_pieces = len(pieces) == len(case.pieces) and all(
        torch.equal(got, before)
        for piece, old in zip(pieces, case.pieces, strict=True)
        for got, before in zip(piece, old, strict=True)
    )
    expect(same_pieces, "your function changes its input micro_batches in place.")
    expect(
        not any(x.requires_grad or y.requires_grad for x, y in pieces),
        "your function lets the inputs require a gradient; only the parameters need one.",
    )
    expect_mean_loss(loss, case)


def expect_trainable(parameters: Mapping[str, nn.Parameter], case: Accumulation) -> None:
    """Expect that as many parameters require a gradient as before."""
    for (name, p), before in zip(parameters.items(), case.model.parameters(), strict=True):
        said = (
            "a frozen parameter gets a gradient" if p.grad is not None else "you change the model"
        )
        expect(
            p.requires_grad == before.requires_grad,
            f"{said}: {name}.requires_grad was {before.requires_grad} and is {p.requires_grad} "
            "now. Leave it to the caller.",
        )


def expect_missing(parameters: Mapping[str, nn.Parameter], case: Accumulation) -> None:
    """Expect that a parameter without a gradient keeps None, which an optimizer skips."""
    model = copy.deepcopy(case.model)
    for x, y in case.pieces:
        case.loss_function(model(x), y).backward()
    for (name, p), right in zip(parameters.items(), model.parameters(), strict=True):
        expect(
            right.grad is not None or p.grad is None,
            f"a frozen or unused parameter gets a .grad of zeros ({name}). It should stay None, "
            "because AdamW would still decay it.",
        )


def expect_gradient(got: Tensor, case: Accumulation) -> None:
    """Expect the gradient of the mean over all examples."""
    sizes, total, count = case.sizes, sum(case.sizes), len(case.sizes)
    want = case.gradient([n / total for n in sizes])
    if torch.allclose(got, want, rtol=1e-4, atol=1e-6):
        return
    mistakes = {
        "that is the sum of the pieces' mean gradients. Each loss must be scaled down before "
        "backward.": [1.0] * count,
        "you divide by the number of micro-batches, so an example in a short piece counts more "
        "than one in a long piece. Weigh by size, count / total.": [1 / count] * count,
        "you divide each mean by the number of examples. A mean of `count` examples must be "
        "multiplied by count as well.": [1 / total] * count,
        "you divide each mean by its own piece's count; multiply by it, and divide by the total.": [
            1 / n for n in sizes
        ],
        "that is the sum over all examples, multiplied by count, but not divided by the total.": (
            sizes
        ),
        "you weigh each piece by count / total and divide by the number of pieces, too; the "
        "weights already add up to 1.": [n / total / count for n in sizes],
        "every piece is weighed as if it were as long as the first.": [sizes[0] / total] * count,
        "only the last micro-batch is left; do not zero the gradients in between.": (
            [0.0] * (count - 1) + [1.0]
        ),
        "only the last micro-batch is left (weighed by its size); do not zero the gradients in "
        "between.": [0.0] * (count - 1) + [sizes[-1] / total],
        "the last micro-batch is missing.": [*(n / total for n in sizes[:-1]), 0.0],
        "the gradients are all 0. Do you zero them at the end, or is a factor rounded down to 0 by "
        "//?": [0.0] * count,
    }
    for diagnosis, factors in mistakes.items():
        expect(not torch.allclose(got, case.gradient(factors), rtol=1e-4), diagnosis)
    factor = (got @ want) / (want @ want)
    expect(
        factor < 0 or not torch.allclose(got, factor * want, rtol=1e-4, atol=1e-6),
        f"the gradient has the right direction for {case.name}, but not the right length. Is your "
        "total the number of all examples, and do you leave the gradient unclipped?",
    )
    raise DiagnosisError(f"the gradient is off for {case.name}.")


def expect_mean_loss(loss: object, case: Accumulation) -> None:
    """Expect the mean loss over all examples, as a number."""
    expect(loss is not None, "the gradient is right; return the batch's mean loss as well.")
    expect(
        not (isinstance(loss, Tensor) and loss.requires_grad),
        "the gradient is right, but the loss you return still holds the graph and all "
        "activations. Add up loss.item() (or loss.detach()).",
    )
    losses, total = case.losses(), sum(case.sizes)
    summed = sum(n * value for n, value in zip(case.sizes, losses, strict=True))
    mistakes = {
        "the gradient is right, but the loss you return is the mean of the pieces' means. Weigh "
        "each by its size here, too.": sum(losses) / len(losses),
        "the gradient is right, but the loss you return is the sum of the pieces' means.": (
            sum(losses)
        ),
        "the gradient is right, but the loss you return is the sum over all examples; divide it by "
        "their number.": summed,
        "the gradient is right, but you divide the loss by the number of examples twice.": (
            summed / total**2
        ),
        "the gradient is right, but the loss you return is that of the last piece.": losses[-1],
        "the gradient is right, but the loss you return is the last piece's share of the mean; add "
        "up all of them.": losses[-1] * case.sizes[-1] / total,
    }
    where = f"the loss of {case.name}, though the gradient is right"
    expect_number(loss, summed / total, where, mistakes, rel_tol=1e-4)


def expect_one_mask(
    run: Callable[[nn.Module, list[Batch], Loss], float], model: nn.Module, pieces: list[Batch]
) -> None:
    """Expect the loss of those dropout masks that the gradient belongs to."""
    weighed, modes = [], set()
    total = sum(len(x) for x, _ in pieces)

    def noted(output: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(output, y)
        modes.add(model.training)
        if loss.requires_grad:
            weighed.append(loss.item() * len(y) / total)
        return loss

    loss = float(run(model, pieces, noted))
    expect(
        modes == {True},
        "you change the model's mode, which switches dropout off. Leave model.train() and "
        "model.eval() to the caller.",
    )
    expect(
        abs(loss - sum(weighed)) < 1e-4 * sum(weighed),
        "with dropout, the loss you return isn't the one whose gradient you take, since each pass "
        "has another mask. Go forward once per piece.",
    )


def expect_parts_without_gradient(
    run: Callable[[nn.Module, list[Batch], Loss], float], pieces: list[Batch]
) -> None:
    """Expect that a frozen parameter and an unused one do no harm."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    net[0].bias.requires_grad_(False)
    net[1].register_parameter("unused", nn.Parameter(torch.ones(2)))
    name = "a model with a frozen and an unused parameter"
    try:
        expect_accumulated(run, Accumulation(filled(net, 8), pieces, F.mse_loss, name))
    except DiagnosisError:
        raise
    except Exception as error:
        raise DiagnosisError(
            f"your code raises {type(error).__name__} for {name}. Their .grad stays None; leave "
            "them out."
        ) from error
