"""Checks of notebook 08 on the parts of GPT-2's trainer, from batches to evaluation."""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cs336_lib import optim, schedule
from cs336_lib.classroom.checks.report import expect, part
from cs336_lib.config import GPTConfig, TrainConfig
from cs336_lib.model import GPT

__all__ = [
    "backward",
    "evaluate",
    "learning_rate",
    "parameter_groups",
    "update",
    "windows",
]

Piece = tuple[Tensor, Tensor]  # inputs and targets of a micro-batch
Pieces = Iterable[Piece]

NO_RETURN = "your function returns None; is the `return` missing?"


# windows


class Stream:
    """Tokens in two shards with the methods of the notebook's `Tokens`, which notes every read.

    Args:
        ids: The tokens.
        too_far: The diagnosis for a read beyond the last token.
    """

    def __init__(self, ids: np.ndarray, too_far: str):
        cut = len(ids) // 3
        self.ids, self.too_far = ids, too_far
        self.shards, self.begins = [ids[:cut], ids[cut:]], [0, cut, len(ids)]
        self.reads: list[int] = []  # the position of each one

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, count: int) -> np.ndarray:
        """Return `count` tokens from position `start` on."""
        expect(start >= 0 and start + count <= len(self), self.too_far)
        self.reads.append(int(start))
        return self.ids[start : start + count].copy()


def windows_of(tokens: Any, starts: Sequence[int], block_size: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets (len(starts), block_size) from these positions on."""
    rows = np.stack([tokens.read(start, block_size + 1) for start in starts])
    both = torch.from_numpy(rows.astype(np.int64))
    return both[:, :-1], both[:, 1:]


def batch_of(answer: Callable, tokens: Stream, starts: list[int], block_size: int) -> Any:
    """Call the learner's `windows`, and diagnose shards that are read without `read`."""
    try:
        got = answer(tokens, starts, block_size)
    except NotImplementedError:
        raise
    except (ValueError, RuntimeError, AttributeError, TypeError, IndexError):
        expect(tokens.reads, "call tokens.read(start, count), which also reads across two shards.")
        raise
    expect(got is not None, NO_RETURN)
    expect(
        isinstance(got, (tuple, list)) and len(got) == 2,
        "return two tensors, the inputs and the targets.",
    )
    return got


@part(windows_of, "")
def windows(answer: Callable[[Stream, list[int], int], tuple[Tensor, Tensor]]) -> None:
    """Check inputs and targets of windows, which are shifted by one token, as int64."""
    ids = np.arange(40_000, 40_101, dtype=np.uint16)  # tokens that tell their position
    too_far = (
        "you read past the end of the tokens. `starts` are positions, not window numbers, and a "
        "window takes block_size + 1 tokens."
    )
    for starts, block_size in (([7, 31, 0, 95], 5), ([2, 90], 7), ([12], 1), ([3, 3, 60], 40)):
        tokens = Stream(ids, too_far)
        x, y = batch_of(answer, tokens, list(starts), block_size)
        expect(
            isinstance(x, Tensor) and isinstance(y, Tensor),
            "inputs and targets must be tensors; torch.from_numpy makes one of an array.",
        )
        expect(
            x.dtype == y.dtype == torch.int64,
            f"the dtypes are {x.dtype} and {y.dtype}; embeddings and cross_entropy need int64.",
        )
        wanted = (len(starts), block_size)
        expect(
            x.shape == y.shape == wanted,
            f"shapes {tuple(x.shape)} and {tuple(y.shape)}; both must be {wanted} here, and each "
            "row reads block_size + 1 tokens.",
        )
        expect(min(x.min(), y.min()) >= 0, "a token became negative; int16 ends at 32,767.")
        right_x, right_y = windows_of(Stream(ids, too_far), starts, block_size)
        expect(
            not torch.equal(x, right_y),
            "inputs and targets are swapped: a target comes one token after its input.",
        )
        expect(not torch.equal(y, right_x), "the targets are the inputs; shift them by one token.")
        expect(
            torch.equal(x[:, 0], right_x[:, 0]),
            "a row doesn't begin at its position in `starts`, in the given order.",
        )
        expect(torch.equal(x, right_x), "the inputs of a row must be consecutive tokens.")
        expect(torch.equal(y, right_y), "a target must be the token right after its input.")


# learning_rate


@part(schedule.learning_rate, "")
def learning_rate(answer: Callable[[int, TrainConfig], float]) -> None:
    """Check the rate of every step, with a warm-up, half a cosine, and the minimum after it."""
    base = {"learning_rate": 3e-3, "min_learning_rate": 5e-4}
    config = TrainConfig(max_steps=31, warmup_steps=7, **base)
    given = [answer(step, config) for step in range(31)]
    expect(None not in given, "your function returns None for a step; is a `return` missing?")
    rates = [float(rate) for rate in given]
    right = [schedule.learning_rate(step, config) for step in range(31)]
    check_warmup(rates, config)
    check_decay(rates, right, config)
    beyond = float(answer(40, config))
    expect(
        math.isclose(beyond, 5e-4, rel_tol=1e-9),
        f"step 40 of 31 has the rate {beyond:.2e}; after the last step the rate stays at the "
        "minimum. A cosine rises again, so limit the progress to 1.",
    )
    shapes = ((20, 0), (20, 1), (5, 5), (1, 0), (1, 1), (103, 12))
    for steps, warmup in shapes:
        other = TrainConfig(max_steps=steps, warmup_steps=warmup, learning_rate=2.0)
        for step in range(steps):
            wanted = schedule.learning_rate(step, other)
            where = f"with max_steps={steps} and warmup_steps={warmup}, step {step}"
            try:
                rate = float(answer(step, other))
            except ZeroDivisionError:
                expect(False, f"{where} divides by zero.")
            expect(
                math.isclose(rate, wanted, rel_tol=1e-9),
                f"{where} should have {wanted:.4g}, not {rate:.4g}.",
            )


def check_warmup(rates: list[float], config: TrainConfig) -> None:
    """Check the steps of a warm-up of 7 steps, and that the next one has a lower rate."""
    peak = config.learning_rate
    expect(rates[0] != 0, "step 0 has the rate 0, so it is wasted; let it have peak / 7.")
    expect(
        not math.isclose(rates[6], peak * 7 / 8) and not math.isclose(rates[7] / rates[6], 7 / 6),
        "the warm-up ends a step late: of 7 warm-up steps, the last is step 6 and has the peak.",
    )
    expect(
        not any(rate > peak * (1 + 1e-9) for rate in rates),
        "a rate is above the peak. The factor (1 + cos) / 2 goes from 1 to 0, and it scales "
        "peak - minimum.",
    )
    expect(
        math.isclose(rates[6], peak, rel_tol=1e-9),
        f"of 7 warm-up steps, step 6 is the last and has the peak, not {rates[6]:.3g}.",
    )
    for step in range(7):
        wanted = peak * (step + 1) / 7
        expect(
            math.isclose(rates[step], wanted, rel_tol=1e-9),
            f"the warm-up is a straight line; step {step} has {wanted:.3g}, not {rates[step]:.3g}.",
        )
    expect(
        not math.isclose(rates[7], peak, rel_tol=1e-9),
        "steps 6 and 7 both have the peak; the cosine begins at step 6, the last of the warm-up.",
    )


def check_decay(rates: list[float], right: list[float], config: TrainConfig) -> None:
    """Check that the rates follow half a cosine, of which the last step has the minimum."""
    peak, lowest = config.learning_rate, config.min_learning_rate
    line = [peak + (lowest - peak) * (step - 6) / 24 for step in range(6, 31)]
    expect(
        not np.allclose(rates[6:], line, rtol=1e-9),
        "the rate falls in a straight line; use (1 + cos(pi * progress)) / 2.",
    )
    expect(rates[30] > lowest / 2, "the last step has the rate 0; it should have the minimum.")
    expect(
        math.isclose(rates[30], lowest, rel_tol=1e-9),
        f"the last step, 30, has {rates[30]:.4g}, and not the minimum {lowest:.4g}. From step 6 "
        "to step 30 there are 24 steps.",
    )
    for step, (rate, wanted) in enumerate(zip(rates, right, strict=True)):
        expect(
            math.isclose(rate, wanted, rel_tol=1e-9),
            f"step {step} should have {wanted:.4g}, not {rate:.4g}.",
        )


# parameter_groups


def names_of(parameters: Iterable[nn.Parameter], model: nn.Module) -> list[str]:
    """Return the names of parameters. A parameter that occurs twice gives two names."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [names.get(id(p), "?") for p in parameters]


@part(optim.parameter_groups, "")
def parameter_groups(answer: Callable[[nn.Module, float], list[dict]]) -> None:
    """Check the groups, where matrices and larger are decayed but biases and norms are not."""
    model = GPT(GPTConfig(block_size=5, vocab_size=9, n_layer=2, n_head=1, n_embd=6))
    everything = dict(model.named_parameters())
    groups = answer(model, 0.3)
    expect(groups is not None, NO_RETURN)
    expect(
        isinstance(groups, (list, tuple)) and all(isinstance(group, dict) for group in groups),
        'return a list of dicts, such as {"params": [...], "weight_decay": 0.1}.',
    )
    expect(
        all("params" in group and "weight_decay" in group for group in groups),
        'each group needs the keys "params" and "weight_decay".',
    )
    groups = [{**group, "params": list(group["params"])} for group in groups]
    expect(
        all(isinstance(p, Tensor) for group in groups for p in group["params"]),
        "the groups must hold the parameters; named_parameters() yields pairs of a name and one.",
    )
    listed = [name for group in groups for name in names_of(group["params"], model)]
    expect("?" not in listed, "a group contains something that is not a parameter of the model.")
    expect(
        len(listed) == len(set(listed)),
        "a parameter is in two groups; the tied lm_head.weight IS wte.weight. "
        "model.parameters() lists it once.",
    )
    decay = {
        name: group["weight_decay"] for group in groups for name in names_of(group["params"], model)
    }
    missing = [name for name in everything if name not in decay]
    expect(not missing, f"these are not in a group, so they never train: {', '.join(missing[:3])}.")
    check_decayed({name: (p.dim(), decay[name]) for name, p in everything.items()})
    expect(
        {group["weight_decay"] for group in answer(model, 0.25)} == {0.25, 0.0},
        "the decay is always the same; use the argument weight_decay.",
    )


def check_decayed(found: dict[str, tuple[int, float]]) -> None:
    """Check the weight decay of each parameter for a config value of 0.3."""
    matrices = {name: decay for name, (dim, decay) in found.items() if dim >= 2}
    vectors = {name: decay for name, (dim, decay) in found.items() if dim < 2}
    expect(
        any(matrices.values()) or not all(vectors.values()),
        "the groups are swapped: decay the matrices, leave the vectors.",
    )
    norms = [decay for name, decay in vectors.items() if name.endswith("weight")]
    expect(
        any(decay == 0 for decay in norms),
        "the norms' weights are decayed. They are called weight but are vectors, so go by dim(), "
        "not by the name.",
    )
    biases = [decay for name, decay in vectors.items() if name.endswith("bias")]
    expect(all(decay == 0 for decay in biases), "biases are decayed; they only shift.")
    embeddings = [decay for name, decay in matrices.items() if ".wte." in name or ".wpe." in name]
    expect(
        all(decay > 0 for decay in embeddings),
        "the embeddings are not decayed; GPT-2's recipe decays every matrix, these two as well.",
    )
    expect(
        set(matrices.values()) == {0.3} and set(vectors.values()) == {0.0},
        "every matrix should have the weight decay 0.3 that was passed, every vector 0.0.",
    )


# backward


class Autocast(AbstractContextManager):
    """Substitute for autocast. `is_open` is true within the block."""

    is_open = False

    def __enter__(self) -> None:
        self.is_open = True

    def __exit__(self, *error: object) -> None:
        self.is_open = False


def little_gpt(seed: int, dropout: float = 0.0) -> GPT:
    """Make a GPT of odd sizes."""
    torch.manual_seed(seed)
    shape = {"block_size": 7, "vocab_size": 23, "n_layer": 1, "n_head": 3, "n_embd": 12}
    return GPT(GPTConfig(**shape, dropout=dropout))


def flat_gradient(model: nn.Module) -> Tensor:
    """Concatenate all gradients to one vector. Missing gradients are zeros."""
    gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())
    return torch.cat([gradient.flatten() for gradient in gradients])


def backward_of(
    model: nn.Module, pieces: Pieces, count: int, autocast: AbstractContextManager
) -> Tensor:
    """Accumulate the gradients of the micro-batches, and return the loss."""
    device = next(model.parameters()).device
    losses = []
    for x, y in pieces:
        with autocast:
            loss = model(x.to(device), y.to(device)) / count
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


@part(backward_of, "")
def backward(answer: Callable[[nn.Module, Pieces, int, AbstractContextManager], Tensor]) -> None:
    """Check the gradient and the loss of micro-batches, of a whole batch and of a share of it."""
    for seed, number, rows, count in ((0, 3, 2, 3), (1, 2, 3, 5), (2, 1, 1, 1)):
        model, autocast, graphs = little_gpt(seed), Autocast(), []
        drawn = torch.randint(23, (number, 2, rows, 7))
        pieces = [(x, y) for x, y in drawn]

        def look(model: GPT, *_: object, autocast=autocast, graphs=graphs) -> None:
            expect(autocast.is_open, "the forward pass must be inside `with autocast:`.")
            expect(torch.is_grad_enabled(), "no_grad is on, so there is no gradient to add up.")
            graphs.append(model.lm_head.weight.grad is None)

        model.register_forward_pre_hook(look)
        try:
            loss = answer(model, iter(pieces), count, autocast)
        except TypeError as error:
            expect(
                "len()" not in str(error) and "subscriptable" not in str(error),
                "`pieces` is an iterator without a length; loop over it, and divide by `count`.",
            )
            raise
        check_gradient(flat_gradient(model), seed, pieces, count)
        expect(
            not any(graphs[1:]),
            "you go backward only after the last forward pass, so the activations of all pieces "
            "are in memory at once. Go backward after each piece.",
        )
        check_loss(loss, backward_of(little_gpt(seed), pieces, count, Autocast()), count)


def check_gradient(got: Tensor, seed: int, pieces: list[Piece], count: int) -> None:
    """Compare the accumulated gradient with the correct gradient."""
    right = {}
    for name, given in {"all": pieces, "last": pieces[-1:]}.items():
        model = little_gpt(seed)
        backward_of(model, given, count, Autocast())
        right[name] = flat_gradient(model)
    expect(got.any(), "there is no gradient. Does every piece go backward, without a zero_grad?")
    times = (got.norm() / right["all"].norm()).item()
    expect(
        count == 1 or not math.isclose(times, count, rel_tol=1e-3),
        f"the gradient of {count} micro-batches is {count} times too long; divide each loss by "
        "`count`.",
    )
    expect(
        count == len(pieces) or not math.isclose(times, count / len(pieces), rel_tol=1e-3),
        f"your process got {len(pieces)} of the batch's {count} micro-batches, and the gradient is "
        f"{times:.1f} times too long. Divide by `count`, not by the number of pieces you got.",
    )
    expect(
        len(pieces) == 1 or not torch.allclose(got, right["last"], rtol=1e-4, atol=1e-7),
        "only the last micro-batch's gradient is left. Let .grad add up; don't zero it here.",
    )
    expect(
        torch.allclose(got, right["all"], rtol=1e-4, atol=1e-6),
        f"with {len(pieces)} of {count} micro-batches, the gradient isn't the sum of the gradients "
        "of loss / count.",
    )


def check_loss(got: Any, right: Tensor, count: int) -> None:
    """Compare the returned loss with the right one."""
    expect(got is not None, "your function returns None; return the sum of the losses / count.")
    expect(
        isinstance(got, Tensor),
        "return a tensor. A number from .item() makes the GPU wait, and can't be summed over "
        "processes.",
    )
    expect(
        not got.requires_grad,
        "the returned loss still holds a graph, and with it the activations; add loss.detach().",
    )
    expect(got.numel() == 1, f"return one number, not a tensor of shape {tuple(got.shape)}.")
    expect(
        count == 1 or not math.isclose(got.item(), right.item() * count, rel_tol=1e-3),
        f"the returned loss is {count} times too large; return the sum of loss / count.",
    )
    expect(
        math.isclose(got.item(), right.item(), rel_tol=1e-4),
        f"you return {got.item():.4f}, and the sum of loss / count is {right.item():.4f}.",
    )


# update


def update_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, rate: float, grad_clip: float
) -> Tensor:
    """Clip the gradient, step with this learning rate, and return the norm before clipping."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    schedule.set_learning_rate(optimizer, rate)
    optimizer.step()
    optimizer.zero_grad()
    return norm


class TwoGroups:
    """A small model, an optimizer with two groups of it, and gradients of a given norm."""

    def __init__(self, make: Callable[..., torch.optim.Optimizer]):
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3))
        matrix, *vectors = self.model.parameters()
        self.optimizer = make([{"params": [matrix]}, {"params": vectors}], lr=7.0)

    def weights(self) -> Tensor:
        """Return all weights as one vector."""
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    def give_gradient(self, norm: float, seed: int) -> Tensor:
        """Set gradients that have this norm together, and return them as one vector."""
        torch.manual_seed(seed)
        for p in self.model.parameters():
            p.grad = torch.randn_like(p)
        long = flat_gradient(self.model)
        for p in self.model.parameters():
            p.grad *= norm / long.norm()
        return flat_gradient(self.model)


@part(update_of, "")
def update(answer: Callable[[nn.Module, torch.optim.Optimizer, float, float], Tensor]) -> None:
    """Check one step of SGD with a long gradient, one with a short one, and three of AdamW."""
    two = TwoGroups(torch.optim.SGD)
    before, gradient = two.weights(), two.give_gradient(6.0, seed=0)
    norm = answer(two.model, two.optimizer, 0.25, 2.0)
    check_norm(norm)
    check_move(before - two.weights(), gradient)
    expect(
        not flat_gradient(two.model).any(),
        "the gradient is still there, so the next one would add to it; call optimizer.zero_grad().",
    )
    before, gradient = two.weights(), two.give_gradient(0.5, seed=1)
    answer(two.model, two.optimizer, 0.125, 2.0)
    expect(
        torch.allclose(before - two.weights(), 0.125 * gradient, atol=1e-6),
        "right for a gradient of norm 6, but not for one of 0.5, which is shorter than the limit "
        "of 2. Clipping must leave it as it is, and each step has its own rate.",
    )
    mine, theirs = TwoGroups(torch.optim.AdamW), TwoGroups(torch.optim.AdamW)
    for step, rate in enumerate((0.1, 0.2, 0.05)):
        for pair, function in ((mine, answer), (theirs, update_of)):
            pair.give_gradient(3.0 * (step + 1), seed=step)
            function(pair.model, pair.optimizer, rate, 5.0)
    expect(
        torch.allclose(mine.weights(), theirs.weights(), atol=1e-5),
        "right for SGD, but three steps of AdamW end elsewhere. Is there one optimizer.step()?",
    )


def check_norm(norm: Any) -> None:
    """Check the returned gradient norm. It must be 6, the norm before clipping."""
    expect(norm is not None, "your function returns None; return the norm before clipping.")
    expect(
        isinstance(norm, Tensor),
        "return a tensor. A number from .item() would make the GPU wait in every step.",
    )
    expect(
        not math.isclose(norm.item(), 2.0, rel_tol=1e-3),
        "you return the norm after clipping, which is never above the limit. "
        "clip_grad_norm_ returns the one before.",
    )
    expect(
        math.isclose(norm.item(), 6.0, rel_tol=1e-4),
        f"the gradient's norm over all parameters was 6, and you return {norm.item():.3f}.",
    )


def check_move(moved: Tensor, gradient: Tensor) -> None:
    """Check the update of SGD for learning rate 0.25, gradient norm 6 and clipping limit 2."""
    groups = zip(moved.tensor_split([15]), gradient.tensor_split([15]), strict=True)
    expect(
        moved.any(),
        "the weights didn't move. Is optimizer.step() there, and zero_grad() only after it?",
    )
    times = [(m @ g / (g @ g)).item() for m, g in groups]
    old = [math.isclose(t, 7 / 3, rel_tol=1e-3) or math.isclose(t, 7, rel_tol=1e-3) for t in times]
    expect(
        not all(old),
        'the step was taken with the old learning rate; set group["lr"] of each group before '
        "optimizer.step().",
    )
    expect(
        not any(old),
        "one group kept its old learning rate; set the rate of every group in "
        "optimizer.param_groups.",
    )
    cosine = (moved @ gradient / (moved.norm() * gradient.norm())).item()
    expect(
        cosine > 0.9999,
        "the step has another direction than the gradient. Clip the norm over all parameters "
        "together, not each number or each tensor.",
    )
    expect(
        not math.isclose(times[0], 0.25, rel_tol=1e-3),
        "the gradient wasn't clipped before the step; clip first, then call optimizer.step().",
    )
    expect(
        not math.isclose(times[0], 0.25 / 6, rel_tol=1e-3),
        "the gradient was clipped at 1 although the limit is 2; use the argument grad_clip.",
    )
    expect(
        math.isclose(times[0], 0.25 / 3, rel_tol=1e-3),
        f"the weights should move by rate x gradient x 2/6, which is 0.083 x gradient, and not by "
        f"{times[0]:.3f} x gradient.",
    )


# evaluate


def evaluate_of(
    model: nn.Module,
    tokens: Any,
    config: TrainConfig,
    autocast: AbstractContextManager,
    rank: int = 0,
    world: int = 1,
) -> Tensor:
    """Return this process's share of the mean loss over evenly spaced windows."""
    available = (len(tokens) - 1) // config.block_size
    count = max(1, min(available, config.eval_tokens // config.block_size))
    starts = [i * available // count * config.block_size for i in range(rank, count, world)]
    return mean_loss(model, tokens, starts, config, autocast) * len(starts) / count


@torch.no_grad()
def mean_loss(
    model: nn.Module,
    tokens: Any,
    starts: Sequence[int],
    config: TrainConfig,
    autocast: AbstractContextManager,
) -> Tensor:
    """Return the mean loss of the windows at these positions."""
    device = next(model.parameters()).device
    total = torch.zeros((), device=device)
    model.eval()
    for first in range(0, len(starts), config.micro_batch_size):
        some = starts[first : first + config.micro_batch_size]
        x, y = windows_of(tokens, some, config.block_size)
        with autocast:
            total += model(x.to(device), y.to(device)) * len(some)
    model.train()
    return total / max(1, len(starts))


class Evaluation:
    """One call of the learner's `evaluate`, with the recorded inputs of the model.

    Args:
        answer: The learner's function.
        ids: The validation tokens.
        windows: How many windows `eval_tokens` asks for.
        rank: This process.
        world: The number of processes.
    """

    too_far = (
        "you read past the end of the tokens. A window takes block_size + 1 of them, so there are "
        "(len(tokens) - 1) // block_size windows."
    )

    def __init__(self, answer: Callable, ids: int, windows: int, rank: int = 0, world: int = 1):
        shape = {"block_size": 7, "batch_tokens": 21, "micro_batch_size": 3, "warmup_steps": 0}
        self.config = TrainConfig(eval_tokens=7 * windows + 2, **shape)
        numbers = torch.randint(23, (ids,), generator=torch.Generator().manual_seed(ids))
        self.ids = numbers.numpy().astype(np.uint16)
        self.model, self.autocast = little_gpt(4, dropout=0.4), Autocast()
        with torch.no_grad():  # losses of windows should differ by more than rounding
            for p in self.model.parameters():
                p *= 6
        self.sizes: list[int] = []
        self.model.register_forward_pre_hook(self.look)
        self.stream = Stream(self.ids, self.too_far)
        where = (rank, world) if world > 1 else ()
        self.loss = answer(self.model.train(), self.stream, self.config, self.autocast, *where)

    def look(self, model: GPT, given: tuple[Tensor, ...]) -> None:
        """Note the size of a micro-batch, and check the state in which the model is called."""
        expect(
            not model.training,
            "the model is in training mode, so dropout changes its loss; call model.eval() first.",
        )
        expect(
            not torch.is_grad_enabled(),
            "every forward pass keeps its activations for a backward pass; use torch.no_grad().",
        )
        expect(self.autocast.is_open, "the forward pass must be inside `with autocast:`.")
        self.sizes.append(len(given[0]))

    def of(self, starts: Sequence[int]) -> float:
        """Return the mean loss of the windows at these positions."""
        model = copy.deepcopy(self.model)
        model._forward_pre_hooks.clear()
        stream = Stream(self.ids, self.too_far)
        return mean_loss(model, stream, starts, self.config, Autocast()).item()


@part(evaluate_of, "")
def evaluate(answer: Callable[..., Tensor]) -> None:
    """Check the mean loss over evenly spaced windows, whole and as the shares of processes."""
    for ids, wanted in ((200, 8), (147, 100), (30, 0)):  # some, all 20, at least one
        check_evaluation(Evaluation(answer, ids, wanted))
    whole = Evaluation(evaluate_of, 200, 8)
    shares = [float(Evaluation(answer, 200, 8, rank, 3).loss) for rank in range(3)]
    expect(
        len({round(share, 5) for share in shares}) > 1,
        "each of three processes returns the same loss; process `rank` takes windows rank, "
        "rank + world, rank + 2 * world and so on.",
    )
    expect(
        sum(shares) < 2 * float(whole.loss),
        "the losses of three processes add up to about three times the mean. Divide by the number "
        "of all windows, not of this process's windows.",
    )
    expect(
        math.isclose(sum(shares), float(whole.loss), rel_tol=1e-4),
        f"the shares of three processes add up to {sum(shares):.4f}, and the mean loss is "
        f"{float(whole.loss):.4f}.",
    )


def check_evaluation(run: Evaluation) -> None:
    """Compare an evaluation by one process with the right one."""
    loss, block = run.loss, run.config.block_size
    available = (len(run.ids) - 1) // block
    count = max(1, min(available, run.config.eval_tokens // block))
    starts = [i * available // count * block for i in range(count)]
    expect(loss is not None, NO_RETURN)
    expect(
        isinstance(loss, Tensor) and loss.numel() == 1,
        "return the loss as a tensor with one number; other processes' shares are added to it.",
    )
    expect(
        run.sizes or run.config.eval_tokens >= block,
        "eval_tokens is smaller than a window here, and you evaluated no window; take at least 1.",
    )
    expect(run.sizes, "the model was never called.")
    expect(
        max(run.sizes) <= run.config.micro_batch_size,
        f"{max(run.sizes)} windows went through the model at once; take at most "
        f"config.micro_batch_size, which is {run.config.micro_batch_size}.",
    )
    expect(run.model.training, "the model is left in evaluation mode; call model.train() again.")
    expect(
        sum(run.sizes) == count,
        f"{sum(run.sizes)} windows were evaluated, and it should be {count}: at least 1 and at "
        f"most {available}, else eval_tokens // block_size. The last micro-batch may be smaller.",
    )
    reads = set(run.stream.reads)
    begun = sorted(at for at in reads if at - 1 not in reads)  # targets may be read separately
    first = [i * block for i in range(count)]
    expect(
        begun != first or first == starts,
        "you took the first windows of the stream; spread them evenly over it.",
    )
    expect(
        begun == starts,
        f"the windows begin at {begun[:4]}..., and it should be {starts[:4]}...: window i at "
        "i * available // count * block_size.",
    )
    by_batch = [starts[i : i + 3] for i in range(0, count, 3)]
    mean_of_means = sum(run.of(batch) for batch in by_batch) / len(by_batch)
    right, got = run.of(starts), loss.item()
    expect(
        math.isclose(right, mean_of_means, rel_tol=1e-4)
        or not math.isclose(got, mean_of_means, rel_tol=1e-5),
        "you took the mean of the micro-batches' means, but the last one has fewer windows; weight "
        "each mean by its number of windows.",
    )
    expect(
        count == 1 or not math.isclose(got, right * count, rel_tol=1e-4),
        f"the loss of {count} windows is {count} times too large; divide by the number of windows.",
    )
    expect(
        math.isclose(got, right, rel_tol=1e-4),
        f"the mean loss over {count} windows is {right:.4f}, and yours is {got:.4f}.",
    )
