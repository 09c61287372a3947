"""Checks of notebook 10 on sharing a batch, adding gradients, HellaSwag, and FSDP."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_lib.classroom.checks.report import DiagnosisError, exercise, expect, part
from cs336_lib.config import GPTConfig
from cs336_lib.data.loader import window_starts
from cs336_lib.model import GPT

T = TypeVar("T")
MicroBatches = Callable[..., Iterable[tuple[Tensor, Tensor]]]

__all__ = [
    "data_parallel",
    "fewest_gpus",
    "loss_scale",
    "micro_batches",
    "most_likely",
]


def close(got: float, want: float) -> bool:
    """Return whether two numbers are equal up to rounding."""
    return math.isclose(got, want, rel_tol=1e-6)


def near(got: Tensor, want: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding."""
    return got.shape == want.shape and torch.allclose(got, want, rtol=1e-4, atol=1e-5)


class Positions:
    """Token stream in which the value of each token is its position."""

    def __init__(self, length: int):
        self.length = length

    def __len__(self) -> int:
        return self.length

    def read(self, start: int, count: int) -> np.ndarray:
        """Return `count` tokens from position `start` on."""
        expect(start >= 0 and start + count <= self.length, "you read past the end of the tokens.")
        return np.arange(start, start + count, dtype=np.uint16)


@dataclass(frozen=True)
class Recipe:
    """The part of a config that decides which windows a process reads."""

    micro_batch_size: int
    block_size: int
    batch_tokens: int
    seed: int

    @property
    def windows(self) -> int:
        """Windows in a step's batch."""
        return self.batch_tokens // self.block_size


def starts_of(first: int, count: int, tokens: Any, config: Any) -> list[int]:
    """Return the start positions of windows `first` to `first + count - 1` of a run."""
    return window_starts(first, count, len(tokens), config.block_size, config.seed).tolist()


def library_micro_batches(
    tokens: Any, step: int, config: Any, rank: int, world: int
) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield this process's share of a step's micro-batches."""
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    for first in range(step * batch + rank * size, (step + 1) * batch, world * size):
        starts = starts_of(first, size, tokens, config)
        rows = np.stack([tokens.read(start, config.block_size + 1) for start in starts])
        both = torch.from_numpy(rows.astype(np.int64))
        yield both[:, :-1], both[:, 1:]


def read_pieces(answer: MicroBatches, *arguments: Any) -> list[list[int]]:
    """Return the start positions of this process's windows, grouped by micro-batch."""
    config: Recipe = arguments[2]
    pieces = answer(*arguments)
    expect(pieces is not None, "your function returns None; `yield` each micro-batch.")
    if isinstance(pieces, tuple) and len(pieces) == 2 and isinstance(pieces[0], Tensor):
        raise DiagnosisError("you return the first micro-batch; `yield` it, and go on to the next.")
    found = []
    for piece in pieces:
        is_pair = isinstance(piece, tuple | list) and len(piece) == 2
        expect(
            is_pair and all(isinstance(half, Tensor) for half in piece),
            "each micro-batch is a pair of inputs and targets, as `windows` returns it.",
        )
        x, y = piece
        expect(
            x.shape == y.shape and x.dim() == 2 and x.size(1) == config.block_size,
            f"inputs of shape {tuple(x.shape)} and targets of {tuple(y.shape)}; both are "
            f"(micro_batch_size, block_size), here {(config.micro_batch_size, config.block_size)}.",
        )
        expect(torch.equal(y, x + 1), "your targets are not the inputs moved by one token.")
        found.append(x[:, 0].tolist())
    return found


@part(library_micro_batches, "")
def micro_batches(answer: MicroBatches) -> None:
    """Check `micro_batches(tokens, step, config, rank, world)`, a process's share of a batch."""
    for world, step, config, length in (
        (1, 0, Recipe(3, 5, 30, seed=1), 211),
        (1, 2, Recipe(2, 7, 56, seed=5), 499),
        (2, 3, Recipe(3, 5, 60, seed=2), 400),
        (3, 1, Recipe(2, 4, 72, seed=3), 333),
        (4, 5, Recipe(1, 6, 48, seed=4), 100),  # more than one epoch
    ):
        tokens, batch = Positions(length), config.windows
        ranks = [read_pieces(answer, tokens, step, config, rank, world) for rank in range(world)]
        case = f"step {step} of a batch of {batch} windows on {world} process(es)"
        diagnose_share(ranks, tokens, step, config, case)


def diagnose_share(
    ranks: list[list[list[int]]], tokens: Positions, step: int, config: Recipe, case: str
) -> None:
    """Fail unless the micro-batches of all ranks together form the batch of the step."""
    batch, world, size = config.windows, len(ranks), config.micro_batch_size
    whole = starts_of(step * batch, batch, tokens, config)
    read = sorted(start for pieces in ranks for piece in pieces for start in piece)
    own = [sorted(start for piece in pieces for start in piece) for pieces in ranks]
    numbers = [config.block_size * (step * batch + n) for n in range(batch)]
    expect(
        world == 1 or any(each != sorted(whole) for each in own),
        f"{case}: every process reads the whole batch, so each window counts {world} times.",
    )
    expect(
        world == 1 or own[0] != own[1],
        f"{case}: all processes read the same windows; `rank` must say which are theirs.",
    )
    expect(
        not step or read != sorted(starts_of(0, batch, tokens, config)),
        f"{case}: those are the windows of step 0. Each step begins {batch} windows later.",
    )
    expect(
        read != numbers and read != list(range(step * batch, (step + 1) * batch)),
        f"{case}: you read windows in the order of the file. `window_start(number, len(tokens), "
        "config)` is where a window begins in training's order.",
    )
    expect(
        world == 1 or len(read) != world * batch,
        f"{case}: the processes read {len(read)} windows. The batch doesn't grow with `world`, so "
        "each process takes its part of it.",
    )
    expect(
        len(read) != config.batch_tokens,
        f"{case}: {len(read)} windows are read. batch_tokens counts tokens, and a step has "
        "batch_tokens // block_size windows.",
    )
    sizes = {len(piece) for pieces in ranks for piece in pieces}
    expect(
        sizes <= {size},
        f"{case}: your micro-batches have {sorted(sizes)} windows; micro_batch_size is {size}.",
    )
    missing = set(whole) - set(read)
    expect(
        not missing or len(read) >= len(whole),
        f"{case}: {len(whole) - len(read)} of the windows aren't read by any process.",
    )
    twice = len(read) - len(set(read))
    expect(
        twice <= len(whole) - len(set(whole)),
        f"{case}: {twice} windows are read twice. Neighbouring processes begin micro_batch_size "
        "windows apart, and each continues world * micro_batch_size windows later.",
    )
    expect(
        len(read) <= len(whole),
        f"{case}: {len(read) - len(whole)} windows too many are read.",
    )
    expect(
        read == sorted(whole),
        f"{case}: the windows aren't those of numbers {step * batch} to {(step + 1) * batch - 1}.",
    )
    counts = [len(pieces) for pieces in ranks]
    expect(
        len(set(counts)) == 1,
        f"{case}: the processes get {counts} micro-batches. All must get equally many, because "
        "they wait for each other.",
    )


class Tied(nn.Module):
    """A model with a tied matrix, as GPT-2 has, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(5, 3)
        self.lm_head = nn.Linear(3, 5)
        self.lm_head.weight = self.wte.weight


def library_sum(tensor: Tensor) -> Tensor:
    """Add up a tensor over all processes, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def library_sum_gradients(model: nn.Module) -> None:
    """Add up the gradients of all processes, once a step."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            library_sum(parameter.grad)


def on_processes(world: int, work: Callable[[int], T], seconds: float = 6) -> list[T]:
    """Call `work(rank)` on `world` threads, which are the ranks of a real process group.

    PyTorch's own tests use these threads for processes, since a notebook's functions can't be sent
    to other processes. A deadlock ends after `seconds` with a diagnosis.
    """
    # It is imported here because it takes a second, and registers a backend.
    from torch.testing._internal.distributed import multi_threaded_pg as threads

    store, group = dist.HashStore(), threads.ProcessLocalGroup
    isolate = torch._C._distributed_c10d._set_thread_isolation_mode  # a group for each thread
    results: dict[int, T] = {}
    errors: list[Exception] = []

    def run(rank: int) -> None:
        dist.init_process_group("threaded", rank=rank, world_size=world, store=store)
        try:
            results[rank] = work(rank)
        except SystemExit:
            pass  # the end of a thread that waited for the others
        except Exception as error:
            errors.append(error)
            group.exception_handle(error)  # the others need not wait any longer
        finally:
            dist.destroy_process_group()

    group.reset()
    isolate(True)
    threads._install_threaded_pg()
    try:
        ranks = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join(seconds / world)
        is_stuck = any(thread.is_alive() for thread in ranks)
        if is_stuck:
            group.exception_handle(TimeoutError())
            for thread in ranks:
                thread.join(1)
    finally:
        threads._uninstall_threaded_pg()
        isolate(False)
        group.reset()
    if errors:
        raise errors[0]
    expect(
        not is_stuck and len(results) == world,
        f"your {world} processes wait for each other forever. Each of them must call all_reduce "
        "equally often, whatever its rank is.",
    )
    return [results[rank] for rank in range(world)]


def diagnose_sum(own: list[Tensor], after: list[Tensor], what: str, mean: str) -> None:
    """Fail unless each rank has the sum of the tensors of all ranks. Diagnose known mistakes."""
    total, world = torch.stack(own).sum(0), len(own)
    if all(near(got, total) for got in after):
        return
    expect(
        not all(near(got, total / world) for got in after),
        f"{what}: each process has the mean over the processes. {mean}",
    )
    expect(
        not all(near(got, mine) for got, mine in zip(after, own, strict=True)),
        f"{what}: each process still has its own. The tensor must change in place, as "
        "dist.all_reduce does it.",
    )
    expect(
        not near(after[0], total),
        f"{what}: only rank 0 has the sum of all {world} processes. dist.all_reduce gives it to "
        "all of them.",
    )
    expect(
        not any(near(got, total * world) for got in after),
        f"{what}: it comes out {world} times too large, because it is added up twice.",
    )
    raise DiagnosisError(f"{what}: after the call it isn't the sum over the {world} processes.")


@part((library_sum, library_sum_gradients), "")
def data_parallel(
    answers: tuple[Callable[[Tensor], Tensor], Callable[[nn.Module], None]],
) -> None:
    """Check `sum_over_processes(tensor)` and `sum_gradients(model)` on one and more processes."""
    sum_over_processes, sum_gradients = answers
    check_alone(sum_over_processes, sum_gradients)
    for world, shape in ((2, ()), (3, (4, 1)), (2, (3, 5))):
        torch.manual_seed(world)
        own = [torch.randn(shape) for _ in range(world)]

        def share(rank: int, own: list[Tensor] = own) -> tuple[Tensor, Tensor]:
            mine = own[rank].clone()
            return mine, sum_over_processes(mine)

        pairs = on_processes(world, share)
        expect(
            all(returned is not None for _, returned in pairs),
            "sum_over_processes returns None; the loop uses `loss = sum_over_processes(...)`.",
        )
        diagnose_sum(
            own,
            [tensor for tensor, _ in pairs],
            "sum_over_processes",
            "The task asks for the sum.",
        )
        diagnose_sum(
            own, [got for _, got in pairs], "the tensor that sum_over_processes returns", ""
        )
    for world in (2, 3):
        check_gradients(sum_gradients, world)


def check_alone(sum_over_processes: Callable, sum_gradients: Callable) -> None:
    """Check both functions in a process that torchrun did not start."""
    tensor, model = torch.tensor([2.0, -1.0]), Tied()
    F.cross_entropy(model.lm_head(model.wte(torch.arange(4))), torch.arange(4)).backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    try:
        got = sum_over_processes(tensor)
        sum_gradients(model)
    except (ValueError, RuntimeError) as error:
        expect(
            "process group" not in str(error),
            "without torchrun there is no process group, and PyTorch's collectives raise an error. "
            "Ask dist.is_initialized() first.",
        )
        raise
    expect(
        got is not None,
        "sum_over_processes returns None; the loop uses `loss = sum_over_processes(...)`.",
    )
    expect(
        near(got, torch.tensor([2.0, -1.0]))
        and all(
            near(parameter.grad, old)
            for parameter, old in zip(model.parameters(), before, strict=True)
        ),
        "on one process, the sum over all processes is the tensor itself; yours changes it.",
    )


def check_gradients(sum_gradients: Callable[[nn.Module], None], world: int) -> None:
    """Check that gradients are summed over the processes, and that weights don't change."""
    generator = torch.Generator().manual_seed(world)
    torch.manual_seed(world)
    weights = [parameter.detach().clone() for parameter in Tied().parameters()]
    own = [[torch.randn(w.shape, generator=generator) for w in weights] for _ in range(world)]

    def step(rank: int) -> tuple[list[Tensor], list[Tensor]]:
        model = Tied()
        for parameter, weight, gradient in zip(model.parameters(), weights, own[rank], strict=True):
            parameter.data.copy_(weight)
            parameter.grad = gradient.clone()
        sum_gradients(model)
        parameters = list(model.parameters())
        return [p.detach() for p in parameters], [p.grad for p in parameters]

    found = on_processes(world, step)
    expect(
        all(
            near(got, weight)
            for after, _ in found
            for got, weight in zip(after, weights, strict=True)
        ),
        "sum_gradients changes the weights; add up `parameter.grad`, not the parameter.",
    )
    for number, name in enumerate(("a tied matrix's gradient", "a bias's gradient")):
        gradients = [after[number] for _, after in found]
        if number == 0 and near(gradients[0], world * sum(each[0] for each in own)):
            raise DiagnosisError(
                "the tied matrix is added up twice, once by each of its names; "
                "model.parameters() lists it once."
            )
        diagnose_sum(
            [each[number] for each in own],
            gradients,
            name,
            "But `backward` has divided by the number of micro-batches of the whole batch, so the "
            "gradients must be added up.",
        )


def library_most_likely(model: nn.Module, context: list[int], endings: list[list[int]]) -> int:
    """Return the index of the ending with the lowest mean loss per token."""
    means = [losses_of(model, context, ending).mean().item() for ending in endings]
    return means.index(min(means))


def losses_of(model: Any, context: list[int], ending: list[int], first: bool = False) -> Tensor:
    """Return the loss of each token of an ending.

    A row that is too long loses tokens at its beginning, or at its end if `first` holds.
    """
    row = torch.tensor([context + ending], device=model.lm_head.weight.device)
    room = model.config.block_size + 1
    row = row[:, :room] if first else row[:, -room:]
    logits = model(row[:, :-1])[0, -len(ending) :].float()
    return F.cross_entropy(logits, row[0, -len(ending) :], reduction="none")


def slip_losses(model: Any, context: list[int], ending: list[int]) -> dict[str, float]:
    """Return the values that typical mistakes compute instead of the mean loss, by diagnosis."""
    right = losses_of(model, context, ending)
    room = model.config.block_size + 1
    row = torch.tensor([context + ending])[:, -room:]
    whole = F.cross_entropy(model(row[:, :-1])[0].float(), row[0, 1:])
    here = F.cross_entropy(
        model(row[:, -room + 1 :])[0, -len(ending) :].float(), row[0, -len(ending) :]
    )
    return {
        "you compare the sums of the losses, so a short ending wins. Compare the means.": (
            right.sum().item()
        ),
        "you choose the ending with the highest loss; the likeliest one has the lowest.": (
            -right.mean().item()
        ),
        "the context's losses count too. Take the losses of the ending's tokens only.": (
            whole.item()
        ),
        "you divide by the length of the ending, but the sum has the context's losses too. Add up "
        "the losses of the ending's tokens only.": (whole.item() * (row.size(1) - 1) / len(ending)),
        "you compare each token with the logits at its own place. The logits at position i predict "
        "token i + 1.": here.item(),
        "your endings come without their context, but the question is what follows it.": (
            losses_of(model, context[:0] + ending[:1], ending[1:]).mean().item()
            if len(ending) > 1
            else math.inf
        ),
        "the loss of the ending's first token is missing. The context's last logits predict it.": (
            right[1:].mean().item() if len(ending) > 1 else math.inf
        ),
    }


def scenes(lengths: tuple[int, int], count: int, seed: int) -> list[tuple[list[int], list]]:
    """Draw contexts, with lengths in this range, and endings of 2 to 6 tokens."""
    generator = np.random.default_rng(seed)

    def tokens(low: int, high: int) -> list[int]:
        return generator.integers(0, 37, generator.integers(low, high + 1)).tolist()

    return [
        (tokens(*lengths), [tokens(2, 6) for _ in range(generator.integers(3, 6))])
        for _ in range(count)
    ]


@part(library_most_likely, "")
def most_likely(answer: Callable[[nn.Module, list[int], list[list[int]]], int]) -> None:
    """Check `most_likely(model, context, endings)`, which returns the index of an ending."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=13, vocab_size=37, n_layer=1, n_head=2, n_embd=24)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)  # so that endings differ in more than their lengths
        short, long = scenes((1, 7), 25, seed=1), scenes((11, 25), 40, seed=2)
        right, chosen = choices(model, answer, short)
        if chosen != right:
            diagnose_choice(model, short, right, chosen)
        try:
            right, chosen = choices(model, answer, long)
        except (ValueError, IndexError, RuntimeError) as error:
            raise DiagnosisError(
                "a context and ending of more than block_size + 1 tokens raise an error "
                f"({error}). Keep the row's last block_size + 1 tokens."
            ) from error
        expect(
            chosen == right,
            "with rows of more than block_size + 1 tokens your choices are wrong. Keep the last "
            "block_size + 1 tokens, because the ending is there.",
        )


def choices(
    model: GPT, answer: Callable[..., int], examples: list[tuple[list[int], list]]
) -> tuple[list[int], list[int]]:
    """Return the right choices and the learner's."""
    right, chosen = [], []
    for context, endings in examples:
        given = (list(context), [list(ending) for ending in endings])
        got: Any = answer(model, *given)
        expect(got is not None, "your function returns None; is the `return` missing?")
        expect(given == (context, endings), "you change the lists; build a new one: a + b.")
        try:
            chosen.append(index(got))
        except TypeError:
            raise DiagnosisError(
                f"return the number of the ending, from 0, not {got!r:.60}."
            ) from None
        right.append(library_most_likely(model, context, endings))
    return right, chosen


def diagnose_choice(
    model: GPT, examples: list[tuple[list[int], list]], right: list[int], chosen: list[int]
) -> None:
    """Fail with a diagnosis if a known mistake leads to the same choices."""
    by_slip: dict[str, list[int]] = {}
    for context, endings in examples:
        values = [slip_losses(model, context, ending) for ending in endings]
        for name in values[0]:
            losses = [value[name] for value in values]
            by_slip.setdefault(name, []).append(losses.index(min(losses)))
    for diagnosis, picks in by_slip.items():
        expect(chosen != picks, diagnosis)
    expect(
        chosen != [pick + 1 for pick in right],
        "you count the endings from 1; Python counts from 0.",
    )
    wrong = sum(a != b for a, b in zip(right, chosen, strict=True))
    raise DiagnosisError(
        f"{wrong} of {len(right)} choices are not the ending with the lowest mean loss per token."
    )


def expect_number(got: object, want: float, case: str, mistakes: Mapping[str, float]) -> None:
    """Fail unless `got` is `want`, with the diagnosis of a known mistake if one fits."""
    expect(got is not None, "your function returns None; is the `return` missing?")
    expect(
        isinstance(got, int | float) and not isinstance(got, bool),
        f"a number is expected, not {type(got).__name__}.",
    )
    if close(got, want):
        return
    for diagnosis, wrong in mistakes.items():
        if close(got, wrong):
            raise DiagnosisError(diagnosis)
    raise DiagnosisError(f"for {case} it is {want:,.6g}, and you get {got:,.6g}.")


def averaged_gradient(scale: Callable[[int, int, int], float], sizes: list[list[int]]) -> float:
    """Return the gradient after DDP's average, in units of the whole batch's gradient.

    `sizes` holds each rank's micro-batches. Every example has a gradient of 1, and so does the
    batch.
    """
    weight = nn.Parameter(torch.zeros(()))
    total, world = sum(map(sum, sizes)), len(sizes)
    per_rank = []
    for pieces in sizes:
        weight.grad = None
        for size in pieces:
            loss = (weight * torch.ones(size)).mean()
            (loss * scale(size, total, world)).backward()
        per_rank.append(weight.grad.item())
    return sum(per_rank) / world  # what DDP does


@exercise("")
def loss_scale(scale: Callable[[int, int, int], float]) -> None:
    """Check `scale(size, total, world)`, the factor of a micro-batch's mean loss on a rank."""
    got = scale(3, 12, 2)
    expect_number(
        got,
        3 / 12 * 2,
        "scale(3, 12, 2)",
        {
            "size / total is right on one process. DDP then divides the sum over the ranks by "
            "their number, so the gradient comes out `world` times too small: undo that.": 3 / 12,
            "you divide by the number of processes; DDP does that already, so undo it instead: "
            "multiply.": 3 / 12 / 2,
            "that weighs all micro-batches alike, which is right only if their sizes "
            "are equal.": 1.0,
            "that is total / size, which is inverted; a small micro-batch must count little.": 12
            / 3,
            "that has the size of the micro-batch, but not that of the whole batch.": 3 * 2,
            "that has the whole batch, but not the micro-batch: its loss is a mean, so one of "
            "`size` windows must count `size` times.": 2 / 12,
            "neither size nor world: the micro-batch's loss is a mean already (of `size` windows), "
            "and DDP divides once more.": 1 / 12,
            "that divides by the number of processes; the micro-batch is a part of `total`.": (
                3 / 2
            ),
        },
    )
    for sizes in ([[3, 3], [3, 3]], [[4, 2], [3, 3]], [[2], [2], [1]], [[5, 5, 2]]):
        length = averaged_gradient(scale, sizes)
        expect(
            close(length, 1.0),
            f"with micro-batches of {sizes} the gradient is {length:.3g} times the batch's.",
        )


@exercise("")
def fewest_gpus(gpus: Callable[[float, float, float], int]) -> None:
    """Check `gpus(parameters, memory, reserved)`, the fewest GPUs for FSDP with fp32 AdamW."""
    for parameters, memory, reserved in (
        (100e9, 80e9, 10e9),
        (19e9, 40e9, 10e9),  # 10.1 GPUs, so rounding to the nearest number gives too few
        (7e9, 80e9, 20e9),
        (5e9, 80e9, 0),
    ):
        per = 16 * parameters
        room = memory - reserved
        want = math.ceil(per / room)
        case = f"{parameters:g} parameters, {memory:g} bytes of which {reserved:g} are reserved"
        got = gpus(parameters, memory, reserved)
        expect_number(
            got,
            want,
            case,
            {
                f"for {case}: you forgot what is reserved on each GPU for activations.": (
                    math.ceil(per / memory) if reserved else -1
                ),
                f"for {case}: you round down, so a little does not fit; round up.": per // room,
                f"for {case}: it fits exactly; one more than the quotient is one too many. Use "
                "math.ceil.": per // room + 1,
                f"for {case}: you reserve that much only once; reserve it on every GPU.": math.ceil(
                    (per + reserved) / memory
                ),
                f"for {case}: 4 bytes a parameter are the weights alone; AdamW in fp32 has a "
                "gradient and two moments as well: 16.": math.ceil(4 * parameters / room),
                f"for {case}: 8 bytes a parameter leave out the two moments.": math.ceil(
                    8 * parameters / room
                ),
                f"for {case}: 12 bytes a parameter leave something out: weights, gradient and two "
                "moments are 16.": math.ceil(12 * parameters / room),
                f"for {case}: the number of GPUs must be whole; round up.": per / room,
            },
        )
    whole = gpus(1e9, 16e9, 0.0)
    expect(whole == 1, f"1e9 parameters fill 16e9 bytes exactly; that is 1 GPU, not {whole}.")
