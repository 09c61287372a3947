"""Checks of notebook 08 on the parts of GPT-2's trainer, from batches to evaluation."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from numbers import Real
from types import SimpleNamespace
from typing import Any
from unittest import mock
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from cs336_course.checks.draws import normal, sizes
from cs336_course.checks.report import DiagnosisError, expect, expect_number, part, shown
from cs336_course.checks.witness import watch_forward
from cs336_lib import optim, schedule
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
NO_WINDOW = "this process has no window, because there are too few; its share is a tensor of 0."


@contextmanager
def later(case: str) -> Iterator[None]:
    """Name the case at the start of a diagnosis. All cases before it were right."""
    try:
        yield
    except DiagnosisError as error:
        raise DiagnosisError(f"right so far, but {case}, {error}", error.figures) from None


def compared(got: float, right: float) -> str:
    """Compare the learner's number with the right one, for the third attempt."""
    return f"You get {shown(got)}, and {shown(right)} is right."


def little_gpt(seed: int, device: str = "cpu", **changes: Any) -> GPT:
    """Make a GPT of odd sizes with large weights, so that the losses of windows differ."""
    shape = {"block_size": 7, "vocab_size": 23, "n_layer": 1, "n_head": 3, "n_embd": 12}
    with torch.random.fork_rng(devices=[]), torch.device(device), torch.no_grad():
        torch.manual_seed(seed)
        model = GPT(GPTConfig(**{**shape, **changes}))
        for p in model.parameters():
            p *= 6
    return model


# windows


class Stream:
    """Tokens with the methods of the notebook's `Tokens`. It counts the tokens that are read.

    Args:
        ids: The tokens.
        too_far: The diagnosis for a read beyond the last token.
    """

    def __init__(self, ids: np.ndarray, too_far: str):
        self.ids, self.too_far = ids, too_far
        self.taken = 0
        self.begins: list[int] = []

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, count: int) -> np.ndarray:
        """Return `count` tokens from position `start` on."""
        self.begins.append(start)
        expect(start >= 0 and start + count <= len(self), self.too_far)
        self.taken += count
        return self.ids[start : start + count].copy()


TOO_FAR = (
    "you read past the end of the tokens. A window takes block_size + 1 tokens from its start on."
)


def different_tokens(count: int, below: int = 2**16) -> np.ndarray:
    """Draw different tokens, which tell their position."""
    order = torch.randperm(below, generator=torch.Generator().manual_seed(count))
    return order[:count].numpy().astype(np.uint16)


def windows_of(tokens: Any, starts: Sequence[int], block_size: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets (len(starts), block_size) from these positions on."""
    rows = np.stack([tokens.read(start, block_size + 1) for start in starts])
    both = torch.from_numpy(rows.astype(np.int64))
    return both[:, :-1], both[:, 1:]


@part(
    windows_of,
    "A stream is 5, 8, 2, 9, 4. With block_size 3 and start 1, which tokens are the inputs, and "
    "which are the targets?",
)
def windows(answer: Callable[[Stream, list[int], int], tuple[Tensor, Tensor]]) -> None:
    """Check inputs and targets of windows, which are shifted by one token, as int64."""
    check_windows(answer, 101, [7, 31, 0, 95], 5)
    with later("with one window of one token"):
        check_windows(answer, 9, [4], 1)
    with later("with a window that takes the whole stream"):
        check_windows(answer, 7, [0], 6)
    with later("with a start that occurs twice"):
        check_windows(answer, 120, [3, 60, 3], 40)
    for n, case in enumerate(sizes(3, rows=(2, 6), size=(2, 9), spare=(1, 80))):
        drawn = normal(case.rows, seed=n).sigmoid() * (case.spare + 1)
        with later(f"with {case.rows} windows of {case.size} tokens"):
            check_windows(answer, case.size + 1 + case.spare, drawn.int().tolist(), case.size)


def check_windows(answer: Callable, length: int, starts: list[int], size: int) -> None:
    """Check a batch of windows from a stream of this length."""
    ids = different_tokens(length)
    tokens, given = Stream(ids, TOO_FAR), list(starts)
    try:
        x, y = batch_of(answer, tokens, given, size)
    except DiagnosisError as error:
        expect(str(error) != TOO_FAR, past_the_end(tokens.begins, starts, size))
        raise
    right_x, right_y = windows_of(Stream(ids, TOO_FAR), starts, size)
    expect(min(x.min(), y.min()) >= 0, "a token became negative; int16 ends at 32,767.")
    expect(
        not torch.equal(x, right_y),
        "inputs and targets are swapped; a target comes one token after its input.",
    )
    expect(not torch.equal(y, right_x), "the targets are the inputs; shift them by one token.")
    expect(
        torch.equal(x[:, 0], right_x[:, 0]),
        "a row doesn't begin at its position in `starts`, in the given order.",
    )
    expect(torch.equal(x, right_x), "the inputs of a row must be consecutive tokens.")
    expect(
        size == 1 or torch.equal(y, right_y) or not torch.equal(y[:, :-1], right_y[:, :-1]),
        "only the last target of a row is wrong. It is the token after the last input, so read "
        "block_size + 1 tokens.",
    )
    expect(torch.equal(y, right_y), "a target must be the token right after its input.")
    expect(given == starts, "your function changes its input `starts` in place.")
    expect(
        tokens.taken <= 2 * len(starts) * (size + 1),
        f"you read {tokens.taken} tokens for a batch of {x.numel()}. A stream may hold ten "
        "billion, so read only block_size + 1 for each window.",
    )


def past_the_end(begins: list[int], starts: list[int], size: int) -> str:
    """Return the diagnosis for reads from `begins`, of which the last is beyond the stream."""
    if set(begins) <= {start * size for start in starts} and not set(begins) <= set(starts):
        return "you read past the end of the tokens. `starts` are positions, not window numbers."
    if set(begins) & set(starts) and begins[-1] - size in starts and begins[-1] not in starts:
        return (
            "your targets begin block_size tokens after the inputs; they should begin one token "
            "after them."
        )
    return TOO_FAR


def batch_of(answer: Callable, tokens: Stream, starts: list[int], size: int) -> Piece:
    """Call the learner's `windows`, and check types and shapes of the result."""
    use_read = (
        "call tokens.read(start, count), which reads across shards and never copies a whole one."
    )
    wanted = (len(starts), size)
    try:
        got = answer(tokens, starts, size)
    except (ValueError, AttributeError, TypeError, IndexError):
        expect(tokens.taken, use_read)
        raise
    expect(got is not None, NO_RETURN)
    expect(
        isinstance(got, (tuple, list)) and len(got) == 2,
        "return two tensors, the inputs and the targets.",
    )
    x, y = got
    expect(
        isinstance(x, Tensor) and isinstance(y, Tensor),
        "inputs and targets must be tensors; torch.from_numpy makes one of an array.",
    )
    expect(
        x.dtype == y.dtype == torch.int64,
        f"the dtypes are {x.dtype} and {y.dtype}; embeddings and cross_entropy need int64.",
    )
    expect(
        x.shape == y.shape == wanted,
        f"shapes {tuple(x.shape)} and {tuple(y.shape)}; both must be (len(starts), block_size). "
        "Each row reads block_size + 1 tokens.",
    )
    expect(tokens.taken, use_read)
    return x, y


# learning_rate


@part(
    schedule.learning_rate,
    "With max_steps=5, warmup_steps=2, a peak of 4 and a minimum of 0, which rates do steps 0 to "
    "4 have?",
)
def learning_rate(answer: Callable[[int, TrainConfig], float]) -> None:
    """Check the rate of every step, with a warm-up, half a cosine, and the minimum after it."""
    config = TrainConfig(max_steps=31, warmup_steps=7, learning_rate=3e-3, min_learning_rate=5e-4)
    rates = [rate_of(answer, step, config) for step in range(31)]
    check_warmup(rates, config)
    check_decay(rates, config)
    for step in (31, 40, 54, 300):
        expect(
            math.isclose(rate_of(answer, step, config), 5e-4, rel_tol=1e-6),
            "after the last step the rate isn't the minimum. A cosine rises again, so limit the "
            "progress to 1.",
        )
    runs = {
        "without a warm-up": (20, 0),
        "with one step of warm-up": (20, 1),
        "when all steps are warm-up": (5, 5),
        "when only one step follows the warm-up": (8, 7),
        "in a run of one step": (1, 0),
        "in a run of one step, which is the warm-up": (1, 1),
        "in a run of two steps": (2, 0),
    }
    for number, (case, (steps, warmup)) in enumerate(runs.items()):
        with later(case):
            check_run(answer, number, steps, warmup)
    with later("with a minimum of 0"):
        check_run(answer, 10, 24, 4, lowest=0.0)
    for number, run in enumerate(sizes(4, seed=1, warmup=(2, 30), rest=(2, 90))):
        with later("with other numbers"):
            check_run(answer, 20 + number, run.warmup + run.rest, run.warmup)


def check_run(answer: Callable, number: int, steps: int, warmup: int, lowest: float = 0.75) -> None:
    """Check the rates of all steps of a run, and of steps after its end.

    Args:
        answer: The learner's schedule.
        number: Every run has another number, and with it another peak.
        steps: Number of steps.
        warmup: Number of steps in the warm-up.
        lowest: The minimum divided by the peak.
    """
    peak = 2.0 + number
    config = TrainConfig(
        max_steps=steps,
        warmup_steps=warmup,
        learning_rate=peak,
        min_learning_rate=lowest * peak,
    )
    for step in (*range(steps), steps, 2 * steps, 5 * steps + 3):
        where = f"step {step} with max_steps={steps} and warmup_steps={warmup}"
        wanted = schedule.learning_rate(step, config)
        rate = rate_of(answer, step, config)
        if not math.isclose(rate, wanted, abs_tol=1e-6 * peak):
            expect_number(rate, wanted, where, {})


def rate_of(answer: Callable, step: int, config: TrainConfig) -> float:
    """Return a step's rate by the learner's schedule."""
    try:
        rate = answer(step, config)
    except ZeroDivisionError:
        raise DiagnosisError(f"step {step} divides by zero.") from None
    expect(rate is not None, "your function returns None for a step; is a `return` missing?")
    if isinstance(rate, (Tensor, np.ndarray)) and rate.ndim == 0:
        rate = rate.item()
    is_number = isinstance(rate, Real) and not isinstance(rate, bool)
    expect(is_number, f"a rate is a number, not {type(rate).__name__}.")
    return float(rate)


def check_warmup(rates: list[float], config: TrainConfig) -> None:
    """Check the steps of a warm-up of 7 steps, and that the next one has a lower rate."""
    peak = config.learning_rate
    recipe = TrainConfig()
    expect(
        not math.isclose(rates[0], peak / recipe.warmup_steps, rel_tol=1e-6)
        and not math.isclose(rates[6], recipe.learning_rate, rel_tol=1e-6)
        and not math.isclose(rates[30], recipe.min_learning_rate, rel_tol=1e-6),
        "you use numbers of the recipe; the schedule must take all of them from `config`.",
    )
    expect(any(rates[:6]), "the warm-up is 0 before its last step; // rounds down, so use /.")
    expect(rates[0] != 0, "step 0 has the rate 0, so it is wasted; let it have peak / 7.")
    expect(
        not math.isclose(rates[6], peak * 7 / 8, rel_tol=1e-6)
        and not math.isclose(rates[7] / rates[6], 7 / 6, rel_tol=1e-6),
        "the warm-up ends a step late. Of 7 warm-up steps, the last is step 6 and has the peak.",
    )
    expect(
        not any(rate > peak * (1 + 1e-6) for rate in rates),
        "a rate is above the peak. The factor (1 + cos) / 2 goes from 1 to 0, and it scales "
        "peak - minimum.",
    )
    late = "of 7 warm-up steps, step 6 is the last and has the peak."
    if not math.isclose(rates[6], peak, rel_tol=1e-6):
        raise DiagnosisError(late, compared(rates[6], peak))
    for step in range(7):
        wanted = peak * (step + 1) / 7
        if not math.isclose(rates[step], wanted, rel_tol=1e-6):
            line = f"the warm-up is a straight line, but step {step} is not on it."
            raise DiagnosisError(line, compared(rates[step], wanted))
    expect(
        min(rates[6:30]) < peak * 0.99,
        "after the warm-up, the rate stays at the peak. Is there a // for /, or another number of "
        "steps than config.max_steps?",
    )
    expect(
        not math.isclose(rates[7], peak, rel_tol=1e-6),
        "steps 6 and 7 both have the peak; the cosine begins at step 6, the last of the warm-up.",
    )


def check_decay(rates: list[float], config: TrainConfig) -> None:
    """Check that the rates follow half a cosine, of which the last step has the minimum."""
    peak, lowest = config.learning_rate, config.min_learning_rate
    line = [peak + (lowest - peak) * (step - 6) / 24 for step in range(6, 31)]
    expect(
        not np.allclose(rates[6:], line, rtol=1e-6),
        "the rate falls in a straight line; use (1 + cos(pi * progress)) / 2.",
    )
    expect(rates[30] >= 0, "a rate is negative, because cos goes from 1 to -1; use (1 + cos) / 2.")
    expect(
        rates[30] > lowest / 1000,
        "the last step has the rate 0; it should have config.min_learning_rate.",
    )

    def at(angle: float) -> float:
        return lowest + (peak - lowest) * (1 + math.cos(angle)) / 2

    steps = "from step 6 to step 30 there are 24 steps, so the progress of step 30 must be 1."
    mistakes = {
        "the last step has a tenth of the peak; use config.min_learning_rate.": peak / 10,
        "math.cos takes radians, in which half a turn is math.pi.": at(180),
        steps: at(math.pi * 24 / 25),
        f"right up to the peak, but {steps}": at(math.pi * 23 / 24),
    }
    expect_number(rates[30], lowest, "the last step, which has the minimum", mistakes)
    middle = {
        "the cosine begins at step 0, but it must begin at the peak, which is at step 6.": (
            at(math.pi * 18 / 30)
        ),
        "the rate falls along a quarter of a cosine; use (1 + cos(pi * progress)) / 2.": (
            lowest + (peak - lowest) * math.cos(math.pi / 4)
        ),
        "the cosine ends at 0 and is cut off at the minimum; it must end at the minimum.": peak / 2,
    }
    expect_number(rates[18], at(math.pi / 2), "step 18, which is half-way", middle)
    for step, rate in enumerate(rates):
        expect_number(rate, schedule.learning_rate(step, config), f"step {step}", {})


# parameter_groups


@part(
    optim.parameter_groups,
    "How many dimensions do a LayerNorm's weight, a linear layer's weight and its bias have? "
    "Which of them should shrink?",
)
def parameter_groups(answer: Callable[[nn.Module, float], list[dict]]) -> None:
    """Check the groups, where matrices and larger are decayed but biases and norms are not."""
    check_groups(answer, little_gpt(0, n_layer=2), 0.3)
    with later("with a weight decay of 0.25"):
        check_groups(answer, little_gpt(1, n_layer=2), 0.25)
    with later("with block_size=1, where wpe is a matrix of one row"):
        check_groups(answer, little_gpt(2, block_size=1, n_layer=3), 0.125)
    with later("in a model that is one number wide"):
        check_groups(answer, little_gpt(3, n_embd=1, n_head=1), 2.0)
    with later("in a larger model"):
        check_groups(answer, little_gpt(4, vocab_size=301, n_embd=48, n_layer=4), 0.5)


def check_groups(answer: Callable, model: GPT, weight_decay: float) -> None:
    """Check the groups of a model."""
    everything = dict(model.named_parameters())
    made = answer(model, weight_decay)
    check_form(made)
    groups = [{**group, "params": list(group["params"])} for group in made]
    expect(
        all(isinstance(p, Tensor) for group in groups for p in group["params"]),
        "the groups must hold the parameters; named_parameters() yields pairs of a name and one.",
    )
    listed = [name for group in groups for name in names_of(group["params"], model)]
    expect("?" not in listed, "a group contains something that is not a parameter of the model.")
    expect_once(groups, model)
    decay = {
        name: group["weight_decay"] for group in groups for name in names_of(group["params"], model)
    }
    missing = [name for name in everything if name not in decay]
    expect(
        missing != [name for name, p in everything.items() if p.dim() < 2],
        "the vectors are in no group. model.parameters() is an iterator that ends after the first "
        "loop; make a list of it.",
    )
    expect(not missing, f"these are not in a group, so they never train: {', '.join(missing[:3])}.")
    check_decayed({name: (p.dim(), decay[name]) for name, p in everything.items()}, weight_decay)
    expect(
        len(made) == 2,
        f"every parameter has the right decay, but in {len(made)} dicts; make two, one for each "
        "decay.",
    )
    lists = [made, *(group["params"] for group in made)]
    expect(
        all(isinstance(one, list) for one in lists),
        "right, but a tuple; the task asks for a list of dicts, whose params are lists.",
    )


def expect_once(groups: list[dict], model: GPT) -> None:
    """Expect no parameter twice, neither in one group nor in two."""
    [tied] = names_of([model.lm_head.weight], model)
    seen: set[str] = set()
    for group in groups:
        names = names_of(group["params"], model)
        for name in names:
            within = names.count(name) > 1
            what = "the tied matrix" if name == tied else name
            where = "in one group twice" if within else "in two groups"
            why = "lm_head.weight IS wte.weight, and " if name == tied else ""
            expect(
                not within and name not in seen,
                f"{what} is {where}; {why}model.parameters() lists it once.",
            )
        seen.update(names)


def check_form(groups: Any) -> None:
    """Check that the groups are dicts with the right keys."""
    expect(groups is not None, NO_RETURN)
    expect(
        isinstance(groups, (list, tuple)) and all(isinstance(group, dict) for group in groups),
        'return a list of dicts, such as {"params": [...], "weight_decay": 0.1}.',
    )
    expect(
        all("params" in group and "weight_decay" in group for group in groups),
        'each group needs the keys "params" and "weight_decay".',
    )
    expect(
        not any(isinstance(group["params"], (set, frozenset)) for group in groups),
        "AdamW refuses a set of parameters, because it has no order; use a list.",
    )
    expect(
        all(isinstance(group["params"], (list, tuple)) for group in groups),
        "params must be a list. A generator or filter object is empty after the first loop over "
        "it.",
    )


def names_of(parameters: Iterable[nn.Parameter], model: nn.Module) -> list[str]:
    """Return the names of parameters. A parameter that occurs twice gives two names."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [names.get(id(p), "?") for p in parameters]


def check_decayed(found: dict[str, tuple[int, float]], weight_decay: float) -> None:
    """Check the weight decay of each parameter. `found` has its dimensions and decay by name."""
    matrices = {name: decay for name, (dim, decay) in found.items() if dim >= 2}
    vectors = {name: decay for name, (dim, decay) in found.items() if dim < 2}
    expect(
        any(matrices.values()) or not all(vectors.values()),
        "the groups are swapped; decay the matrices, leave the vectors.",
    )
    expect(any(matrices.values()), "no matrix is decayed; give them the argument weight_decay.")
    expect(not all(vectors.values()), "gains and biases are decayed, too; give them 0.")
    norms = [decay for name, decay in vectors.items() if name.endswith("weight")]
    expect(
        all(decay == 0 for decay in norms),
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
    expect(all(matrices.values()), "a matrix is not decayed; every parameter of two dimensions is.")
    expect(
        all(math.isclose(decay, weight_decay, rel_tol=1e-6) for decay in matrices.values()),
        "the decay of the matrices is not the one that was passed; use the argument weight_decay.",
    )
    expect(set(vectors.values()) == {0}, "every vector should have the weight decay 0.")


# backward


STAYS_OPEN = "your code enters `autocast` and never leaves it; write `with autocast:`."


class Autocast(AbstractContextManager):
    """Substitute for autocast. `is_open` is true within the block."""

    is_open = False

    def __enter__(self) -> None:
        self.is_open = True

    def __exit__(self, *error: object) -> None:
        self.is_open = False


class Kept:
    """An activation that a graph keeps for its backward pass."""

    def __init__(self, value: Tensor):
        self.value = value.detach()  # an output's own graph would keep it forever


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


@part(
    backward_of,
    "A batch has two pieces with the mean losses 2 and 4. What does each piece contribute to the "
    "mean loss of the batch?",
)
def backward(answer: Callable[[nn.Module, Pieces, int, AbstractContextManager], Tensor]) -> None:
    """Check the gradient and the loss of micro-batches, of a whole batch and of a share of it."""
    check_backward(answer, 0, SimpleNamespace(pieces=3, others=0, rows=2, seq=7))
    with later("with 2 of the batch's 5 pieces"):
        check_backward(answer, 1, SimpleNamespace(pieces=2, others=3, rows=3, seq=5))
    with later("with one piece of one token"):
        check_backward(answer, 2, SimpleNamespace(pieces=1, others=0, rows=1, seq=1))
    drawn = sizes(3, pieces=(1, 5), others=(0, 6), rows=(1, 4), seq=(2, 7))
    for seed, case in enumerate(drawn, start=3):
        with later(f"with {case.pieces} of the batch's {case.pieces + case.others} pieces"):
            check_backward(answer, seed, case)
    check_device(lambda model: answer(model, iter(pieces_of(0, case)), 9, Autocast()))


def pieces_of(seed: int, case: SimpleNamespace) -> list[Piece]:
    """Draw micro-batches of little GPT's tokens."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(23, (case.pieces, 2, case.rows, case.seq), generator=generator)
    return [(x.clone(), y.clone()) for x, y in drawn]


def check_backward(answer: Callable, seed: int, case: SimpleNamespace) -> None:
    """Check the gradient and the loss of some pieces, and what is in memory at once."""
    model, autocast, alive = little_gpt(seed), Autocast(), WeakSet()
    pieces, count = pieces_of(seed, case), case.pieces + case.others

    def look(model: GPT, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        rows = len(named["idx"] if "idx" in named else given[0])
        expect(
            rows <= case.rows,
            f"{rows} rows went through the model at once, but a piece has {case.rows}. Give the "
            "model one piece at a time, because joined pieces keep all their activations.",
        )
        expect(autocast.is_open, "the forward pass must be inside `with autocast:`.")
        expect(torch.is_grad_enabled(), "no_grad is on, so there is no gradient to add up.")
        expect(model.training, "model.eval() turns dropout off; train in training mode.")
        expect(
            not alive,
            "a forward pass begins while the activations of the last piece are still in memory. "
            "Go backward right after each piece, without retain_graph.",
        )

    def pack(value: Tensor) -> Kept:
        alive.add(kept := Kept(value))
        return kept

    watch_forward(model, look)
    before = [p.detach().clone() for p in model.parameters()]
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.value):
            loss = answer(model, iter(pieces), count, autocast)
    except TypeError as error:
        expect(
            "len()" not in str(error) and "subscriptable" not in str(error),
            "`pieces` is an iterator without a length; loop over it, and divide by `count`.",
        )
        raise
    expect(not autocast.is_open, STAYS_OPEN)
    expect(
        all(map(torch.equal, before, model.parameters())),
        "the weights have moved; only the update in exercise 4 may change them.",
    )
    given = pieces_of(seed, case)
    right, last = right_of(seed, given, count), right_of(seed, given[-1:], count)
    check_gradient(flat_gradient(model), right[0], last[0], case.pieces, count)
    check_loss(loss, right[1], last[1], case.pieces, count)
    expect(
        all(map(torch.equal, sum(pieces, ()), sum(given, ()))),
        "your function changes the tokens in its input `pieces` in place.",
    )


def right_of(seed: int, pieces: list[Piece], count: int) -> tuple[Tensor, float]:
    """Return the right gradient and loss of some pieces."""
    model = little_gpt(seed)
    loss = backward_of(model, pieces, count, Autocast())
    return flat_gradient(model), loss.item()


def is_close(got: Tensor, right: Tensor) -> bool:
    """Return whether two vectors are equal, up to rounding errors."""
    return bool((got - right).norm() <= 1e-4 * right.norm())


def check_gradient(got: Tensor, right: Tensor, last: Tensor, pieces: int, count: int) -> None:
    """Compare a gradient with the right one, and with the one of the last piece alone."""
    expect(got.any(), "there is no gradient. Does every piece go backward, without a zero_grad?")
    expect(
        count == 1 or not is_close(got, right * count),
        f"the gradient of {count} micro-batches is {count} times too long; divide each loss by "
        "`count`.",
    )
    expect(
        count == pieces or not is_close(got, right * count / pieces),
        f"your process got {pieces} of the batch's {count} micro-batches, and the gradient is "
        f"{count / pieces:.1f} times too long. Divide by `count`, not by the number of pieces you "
        "got.",
    )
    expect(
        pieces == 1 or not is_close(got, last),
        "only the last micro-batch's gradient is left. Let .grad add up; don't zero it here.",
    )
    expect(
        count == 1 or not is_close(got * count, right),
        f"the gradient is {count} times too short. Divide the loss by `count` once.",
    )
    expect(
        is_close(got, right) or not is_close(got / got.norm(), right / right.norm()),
        "the gradient has the right direction and the wrong length. Dividing each loss by `count` "
        "is enough, and clipping comes in the update.",
    )
    expect(
        is_close(got, right),
        f"with {pieces} of {count} micro-batches, the gradient isn't the sum of the gradients of "
        "loss / count.",
    )


def check_loss(got: Any, right: float, last: float, pieces: int, count: int) -> None:
    """Compare the returned loss with the right one, and with the one of the last piece alone."""
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
    mistakes = {
        f"the returned loss is {count} times too large; return the sum of loss / count.": (
            right * count
        ),
        f"the returned loss is {count} times too small; divide by `count` once.": right / count,
        "you return the loss of the last piece only; add up the losses of all pieces.": last,
        "you return the mean loss of the last piece; return the sum of all loss / count.": (
            last * count
        ),
        "you divide the returned loss by the number of pieces you got, not by `count`.": (
            right * count / pieces
        ),
    }
    expect_number(got.item(), right, "the returned sum of loss / count", mistakes, 1e-4)


STAYS = (
    "on a GPU this fails, because a tensor stays on the CPU; move x and y to the model's device."
)


def without_numbers(call: Callable[[], Any]) -> Any:
    """Call an answer on the meta device, whose tensors have a shape but no numbers.

    Where the answer asks for a number, it gets 1, so an answer that ends in an error isn't judged;
    its result is None.
    """
    move = Tensor.to

    def to(x: Tensor, *where: Any, **named: Any) -> Tensor:
        try:
            return move(x, *where, **named)
        except NotImplementedError:  # from the meta device to the CPU
            return torch.ones(x.shape)

    asked = {"item": lambda x: 1.0, "__float__": lambda x: 1.0, "__bool__": lambda x: True}
    try:
        with mock.patch.multiple(Tensor, **asked, cpu=lambda x: torch.ones(x.shape), to=to):
            return call()
    except DiagnosisError:
        raise
    except Exception as error:
        expect("expected device" not in str(error), STAYS)
        return None


def check_device(call: Callable[[GPT], Any]) -> None:
    """Run an answer with a model on the meta device, and check where its tensors are.

    Args:
        call: Calls the answer with the model.
    """
    model = little_gpt(0, device="meta")

    def look(model: GPT, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        tensors = [x for x in (*given, *named.values()) if isinstance(x, Tensor)]
        expect(all(x.is_meta for x in tensors), STAYS)

    watch_forward(model, look)
    loss = without_numbers(lambda: call(model))
    expect(
        loss is None or loss.is_meta,
        "the result is on the CPU, though the model may be on a GPU; add the losses up on the "
        "model's device.",
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


class Groups:
    """A small model, an optimizer with groups of it, and gradients of a given norm.

    Args:
        make: The optimizer's class.
        size: Number of inputs.
        count: Number of groups, at most 4. The last one has the rest of the parameters.
    """

    def __init__(self, make: Callable[..., torch.optim.Optimizer], size: int = 5, count: int = 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.model = nn.Sequential(nn.Linear(size, 3), nn.LayerNorm(3))
        parameters, last = list(self.model.parameters()), count - 1
        parts = [*([p] for p in parameters[:last]), parameters[last:]]
        self.optimizer = make([{"params": part} for part in parts], lr=7.0)

    def weights(self) -> Tensor:
        """Return all weights as one vector."""
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    def give_gradient(self, norm: float, seed: int) -> Tensor:
        """Set gradients that have this norm together, and return them as one vector."""
        for n, p in enumerate(self.model.parameters()):
            p.grad = normal(*p.shape, seed=10 * seed + n)
        long = flat_gradient(self.model)
        for p in self.model.parameters():
            p.grad *= norm / long.norm()
        return flat_gradient(self.model)


@part(
    update_of,
    "A gradient is (3, 4), and the limit is 1. What is its norm, and which gradient is left after "
    "clipping?",
)
def update(answer: Callable[[nn.Module, torch.optim.Optimizer, float, float], Tensor]) -> None:
    """Check one step with a long gradient, and steps of SGD and AdamW with other gradients."""
    two = Groups(torch.optim.SGD)
    before, gradient = two.weights(), two.give_gradient(6.0, seed=0)
    norm = answer(two.model, two.optimizer, 0.25, 2.0)
    check_norm(norm, gradient, before)
    check_move(before - two.weights(), gradient)
    expect(
        not flat_gradient(two.model).any(),
        "the gradient is still there, so the next one would add to it; call optimizer.zero_grad().",
    )
    steps = {
        "for a gradient shorter than the limit, which must stay as it is": (0.5, 0.125, 2.0),
        "for another long gradient and another limit": (40.0, 0.5, 3.0),
        "for a gradient of zeros": (0.0, 1.0, 1.0),
        "for a gradient as long as the limit": (1.0, 2.0, 1.0),
        "for a learning rate of 0": (2.0, 0.0, 1.5),
        "for the last of six steps": (30.0, 0.03, 9.0),
    }
    for where, size, make, count in (
        ("with SGD", 5, torch.optim.SGD, 2),
        ("with AdamW", 1, torch.optim.AdamW, 2),
        ("with four groups of parameters", 2, torch.optim.SGD, 4),
    ):
        mine, right = Groups(make, size, count), Groups(make, size, count)
        check_calls(answer, steps, where, mine, right)
    check_waiting(answer)


def check_calls(
    answer: Callable,
    steps: dict[str, tuple[float, float, float]],
    where: str,
    mine: Groups,
    right: Groups,
) -> None:
    """Check calls one after the other, which have a gradient's norm, a rate and a limit each."""
    for seed, (case, (length, rate, limit)) in enumerate(steps.items(), start=1):
        mine.give_gradient(length, seed)
        right.give_gradient(length, seed)
        with later(f"{case}, {where}"):
            norm = answer(mine.model, mine.optimizer, rate, limit)
            wanted = update_of(right.model, right.optimizer, rate, limit)
            check_next(norm, wanted, mine.weights(), right.weights())


def check_next(norm: Any, wanted: Tensor, weights: Tensor, right: Tensor) -> None:
    """Compare a later step's norm and weights with the right ones."""
    expect(isinstance(norm, Tensor), "return the norm as a tensor.")
    if not torch.allclose(norm.float(), wanted, rtol=1e-4):
        figures = compared(norm.item(), wanted.item())
        raise DiagnosisError("the returned norm is off.", figures)
    expect(not weights.isnan().any(), "the weights become NaN; is there a division by the norm?")
    expect(
        torch.allclose(weights, right, atol=1e-5),
        "the weights end elsewhere. Each call clips at its own limit, sets its own rate, and takes "
        "one optimizer.step().",
    )


def check_waiting(answer: Callable) -> None:
    """Check on the meta device that the returned norm doesn't leave the model's device."""
    with torch.device("meta"):
        run = Groups(torch.optim.SGD)
    for p in run.model.parameters():
        p.grad = torch.zeros_like(p)
    norm = without_numbers(lambda: answer(run.model, run.optimizer, 0.25, 2.0))
    expect(
        norm is None or norm.is_meta,
        "you return a copy of the norm on the CPU, for which a GPU would have to wait in every "
        "step; return the tensor itself.",
    )


def check_norm(norm: Any, gradient: Tensor, weights: Tensor) -> None:
    """Check the returned gradient norm. It must be 6, the norm before clipping."""
    expect(norm is not None, "your function returns None; return the norm before clipping.")
    expect(
        isinstance(norm, Tensor),
        "return a tensor. A number from .item() would make the GPU wait in every step.",
    )
    expect(norm.numel() == 1, f"return one number, not a tensor of shape {tuple(norm.shape)}.")
    mistakes = {
        "you return the norm after clipping, which is never above the limit. "
        "clip_grad_norm_ returns the one before.": 2.0,
        "you return the square of the norm; take the root of the sum of squares.": 36.0,
        "you return the sum of the gradient's absolute values; the norm is the root of the sum of "
        "squares.": gradient.abs().sum().item(),
        "you return the largest gradient; the norm is the root of the sum of squares.": (
            gradient.abs().max().item()
        ),
        "you return the norm of the first parameter's gradient; take all parameters together.": (
            gradient[:15].norm().item()
        ),
        "you return the norm of the weights; take the gradients.": weights.norm().item(),
        "the norm is 0; call zero_grad() at the end.": 0.0,
    }
    expect_number(norm.item(), 6.0, "the gradient's norm over all parameters", mistakes, 1e-4)


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
        "together, not each number, tensor or group.",
    )
    mistakes = {
        "the gradient wasn't clipped before the step; clip first, then call optimizer.step().": (
            0.25
        ),
        "the gradient was clipped at 1 although the limit is 2; use the argument grad_clip.": (
            0.25 / 6
        ),
        "the weights moved twice as far as they should. Clip at grad_clip, and call "
        "optimizer.step() once.": 0.25 * 4 / 6,
        "the step uses the old rate times the new one; replace the old rate.": 0.25 * 7 * 2 / 6,
    }
    case = "the step's length, which is rate x clipped gradient"
    expect_number(times[0], 0.25 * 2 / 6, case, mistakes, 1e-3)


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
    starts = starts_of(len(tokens), config)
    mine = starts[rank::world]
    return mean_loss(model, tokens, mine, config, autocast) * len(mine) / len(starts)


def starts_of(length: int, config: TrainConfig) -> list[int]:
    """Return where the windows of all processes begin."""
    available = (length - 1) // config.block_size
    count = max(1, min(available, config.eval_tokens // config.block_size))
    return [i * available // count * config.block_size for i in range(count)]


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
        case: Number of `tokens`, `size` of a window, windows of a micro-batch (`micro`), and the
            `windows` that eval_tokens asks for, with the `rest` of a window.
        rank: This process.
        world: Number of processes.
    """

    too_far = (
        "you read past the end of the tokens. A window takes block_size + 1 of them, so there are "
        "(len(tokens) - 1) // block_size windows."
    )

    def __init__(self, answer: Callable, case: SimpleNamespace, rank: int = 0, world: int = 1):
        self.config = TrainConfig(
            block_size=case.size,
            micro_batch_size=case.micro,
            batch_tokens=case.size * case.micro,
            eval_tokens=case.size * case.windows + case.rest,
            warmup_steps=0,
        )
        self.ids = different_tokens(case.tokens, below=case.tokens)
        self.model = little_gpt(4, block_size=case.size, vocab_size=case.tokens, dropout=0.4)
        self.autocast, self.world = Autocast(), world
        self.starts = starts_of(case.tokens, self.config)
        self.mine = self.starts[rank::world]
        self.seen: list[list[int]] = []  # where the windows of each micro-batch begin
        end = watch_forward(self.model, self.look)
        stream, where = Stream(self.ids, self.too_far), (rank, world) if world > 1 else ()
        try:
            self.loss = answer(self.model.train(), stream, self.config, self.autocast, *where)
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError) as error:
            expect(
                self.mine,
                f"your function raises {type(error).__name__}. {NO_WINDOW.capitalize()}",
            )
            raise
        end()
        expect(not self.autocast.is_open, STAYS_OPEN)
        self.trains = self.model.training

    def look(self, model: GPT, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Note the windows of a micro-batch, and check the state in which the model is called."""
        expect(
            not model.training,
            "the model is in training mode, so dropout changes its loss; call model.eval() first.",
        )
        expect(
            not torch.is_grad_enabled(),
            "every forward pass keeps its activations for a backward pass; use torch.no_grad().",
        )
        expect(self.autocast.is_open, "the forward pass must be inside `with autocast:`.")
        x = named["idx"] if "idx" in named else given[0]
        places = {token: place for place, token in enumerate(self.ids.tolist())}
        self.seen.append([places[token] for token in x[:, 0].tolist()])

    def of(self, starts: Sequence[int]) -> float:
        """Return the mean loss of the windows at these positions."""
        stream = Stream(self.ids, self.too_far)
        return mean_loss(self.model, stream, starts, self.config, Autocast()).item()


@part(
    evaluate_of,
    "A stream has 20 tokens, block_size is 3 and eval_tokens is 9. How many windows fit, and where "
    "do the chosen ones begin?",
)
def evaluate(answer: Callable[..., Tensor]) -> None:
    """Check the mean loss over evenly spaced windows, whole and as the shares of processes."""
    some = SimpleNamespace(tokens=200, size=7, micro=3, windows=8, rest=2)
    check_evaluation(Evaluation(answer, some))
    special = {
        "with 147 tokens, of which the last 7 lack a target": (147, 7, 3, 100, 2),
        "with 148 tokens, which hold exactly 21 windows of 7": (148, 7, 3, 100, 2),
        "with eval_tokens smaller than a window": (30, 7, 3, 0, 2),
        "with windows of one token": (12, 1, 2, 5, 0),
        "with micro-batches of one window": (90, 6, 1, 4, 5),
        "with tokens for one window only": (6, 5, 2, 3, 1),
        "with 22 of 30 windows": (62, 2, 5, 22, 1),
        "with all of 22 windows": (45, 2, 5, 22, 0),
    }
    for where, numbers in special.items():
        case = SimpleNamespace(**dict(zip(vars(some), numbers, strict=True)))
        with later(where):
            check_evaluation(Evaluation(answer, case))
    check_shares(answer, some, 3)
    check_shares(answer, SimpleNamespace(**{**vars(some), "windows": 3}), 5)
    drawn = sizes(3, tokens=(40, 150), size=(2, 7), micro=(1, 5), windows=(3, 30), world=(2, 4))
    for case in drawn:
        case.rest = case.size - 1
        with later(f"with {case.tokens} tokens and block_size={case.size}"):
            check_evaluation(Evaluation(answer, case))
        check_shares(answer, case, case.world)
    config = Evaluation(evaluate_of, SimpleNamespace(**{**vars(some), "windows": 3})).config
    stream = Stream(different_tokens(23, below=23), Evaluation.too_far)
    check_device(lambda model: answer(model, stream, config, Autocast(), 1, 2))


def check_shares(answer: Callable, case: SimpleNamespace, world: int) -> None:
    """Check the share of each process."""
    for rank in range(world):
        with later(f"in process {rank} of {world}"):
            check_evaluation(Evaluation(answer, case, rank, world))


def check_evaluation(run: Evaluation) -> None:
    """Compare an evaluation by one process with the right one."""
    loss, config = run.loss, run.config
    expect(run.mine or run.seen or isinstance(loss, Tensor), NO_WINDOW)
    expect(loss is not None, NO_RETURN)
    expect(
        isinstance(loss, Tensor) and loss.numel() == 1,
        "return the loss as a tensor with one number; other processes' shares are added to it.",
    )
    expect(
        run.seen or config.eval_tokens >= config.block_size,
        "you evaluated no window; take at least 1.",
    )
    expect(run.seen or not run.mine, "the model was never called.")
    most = max(map(len, run.seen), default=0)
    expect(
        most <= config.micro_batch_size,
        f"{most} windows went through the model at once; take at most "
        f"config.micro_batch_size, which is {config.micro_batch_size}.",
    )
    expect(run.trains, "the model is left in evaluation mode; call model.train() again.")
    check_places(run)
    check_mean(run)


def check_places(run: Evaluation) -> None:
    """Check which windows were evaluated."""
    seen = sorted(start for starts in run.seen for start in starts)
    first = [i * run.config.block_size for i in range(len(run.starts))]
    expect(run.mine or not seen, NO_WINDOW)
    expect(
        run.world == 1 or seen != run.starts or seen == run.mine,
        "you evaluate the windows of all processes; process `rank` takes windows rank, "
        "rank + world, rank + 2 * world and so on.",
    )
    expect(
        run.world == 1 or seen == run.mine,
        "these aren't the windows of this process, which are every `world`-th one from `rank` on.",
    )
    if len(seen) != len(run.mine):
        many = (
            "the number of windows is not right. Take eval_tokens // block_size, but at least 1 "
            "and at most all. The last micro-batch may be smaller."
        )
        raise DiagnosisError(many, compared(len(seen), len(run.mine)))
    expect(
        seen != first or seen == run.mine,
        "you took the first windows of the stream; spread them evenly over it.",
    )
    expect(
        seen == run.mine,
        f"the windows begin at {seen[:4]}..., but window i is at i * available // count * "
        "block_size.",
    )


def check_mean(run: Evaluation) -> None:
    """Compare the returned share of the mean loss with the right one."""
    size, all_windows = run.config.micro_batch_size, len(run.starts)
    by_batch = [run.mine[i : i + size] for i in range(0, len(run.mine), size)]
    means = [run.of(batch) for batch in by_batch]
    mean = run.of(run.mine)
    right = mean * len(run.mine) / all_windows
    if not run.mine:
        return expect(not run.loss.item(), NO_WINDOW)
    mistakes = {
        f"the loss of {all_windows} windows is {all_windows} times too large; divide by the number "
        "of windows.": right * all_windows,
        "you return the mean over this process's windows. Divide by `count`, which counts the "
        "windows of all processes.": mean,
        "the shares have different numbers of windows, so don't divide their means by `world`; "
        "divide the sum of losses by `count`.": mean / run.world,
        "you took the mean of the micro-batches' means, but the last one has fewer windows; weight "
        "each mean by its number of windows.": sum(means) / len(means),
        "you add up the means of the micro-batches; weight each by its number of windows and "
        "divide by `count`.": sum(means),
        "you divide the sum of the micro-batches' means by `count`; weight each mean by its number "
        "of windows.": sum(means) / all_windows,
        "you weight each micro-batch by micro_batch_size, but the last one has fewer windows.": (
            sum(means) * size / all_windows
        ),
        "you return the loss of the last micro-batch only.": means[-1],
        "you return only the last micro-batch's share; add up all.": (
            means[-1] * len(by_batch[-1]) / all_windows
        ),
    }
    case = f"the share of {len(run.mine)} of {all_windows} windows"
    if run.world == 1:
        case = f"the mean loss of {all_windows} windows"
    expect_number(run.loss.item(), right, case, mistakes, 1e-4)
    return None
