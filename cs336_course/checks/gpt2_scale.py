"""Checks of notebook 10 on sharing a batch, adding gradients, HellaSwag, and FSDP."""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from operator import index
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_course.checks import draws
from cs336_course.checks.ranks import expecting_waits, on_processes
from cs336_course.checks.report import DiagnosisError, exercise, expect, expect_number, part
from cs336_course.checks.surroundings import seeded
from cs336_lib.config import GPTConfig
from cs336_lib.data.loader import window_starts
from cs336_lib.model import GPT

Ranks = list[list[list[int]]]  # the windows of each rank's micro-batches
Scene = tuple[list[int], list[list[int]]]  # a context and its endings
MicroBatches = Callable[..., Iterable[tuple[Tensor, Tensor]]]

__all__ = [
    "data_parallel",
    "fewest_gpus",
    "loss_scale",
    "micro_batches",
    "most_likely",
]


def near(got: Tensor, want: Tensor) -> bool:
    """Return whether two tensors have the same shape and dtype, and numbers up to rounding."""
    is_alike = got.shape == want.shape and got.dtype == want.dtype
    return is_alike and torch.allclose(got, want, rtol=1e-4, atol=1e-5)


class Positions:
    """Token stream in which the value of each token is its position.

    Attributes:
        seen: Positions of the tokens that were read.
    """

    def __init__(self, length: int):
        self.length = length
        self.seen: set[int] = set()

    def __len__(self) -> int:
        return self.length

    def read(self, start: int, count: int) -> np.ndarray:
        """Return `count` tokens from position `start` on."""
        expect(start >= 0 and start + count <= self.length, "you read past the end of the tokens.")
        self.seen.update(range(start, start + count))
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
        expect(
            x.dtype == y.dtype == torch.int64,
            f"ids of {x.dtype} and {y.dtype}; the model and its loss take int64, as `windows` "
            "returns them.",
        )
        expect(torch.equal(y, x + 1), "your targets are not the inputs moved by one token.")
        found.append(x[:, 0].tolist())
    return found


@part(
    library_micro_batches,
    "A step has 12 windows, in micro-batches of 2. Two processes share it. Which windows can "
    "process 1 read in step 0? In step 1?",
)
def micro_batches(answer: MicroBatches) -> None:
    """Check `micro_batches(tokens, step, config, rank, world)`, a process's share of a batch."""
    first = [
        (1, 0, Recipe(3, 5, 30, seed=1), 211),
        (1, 2, Recipe(2, 7, 56, seed=5), 499),
        (2, 3, Recipe(3, 5, 60, seed=2), 400),
        (3, 1, Recipe(2, 4, 72, seed=3), 333),
        (4, 5, Recipe(1, 6, 48, seed=4), 100),  # more than one epoch
    ]
    drawn = draws.sizes(
        8, world=(1, 5), step=(0, 9), size=(1, 4), block=(1, 9), each=(1, 3), length=(60, 900)
    )
    for world, step, config, length in [*first, *map(share_of, drawn)]:
        tokens, streams = Positions(length), [Positions(length) for _ in range(world)]
        ranks = [
            read_pieces(answer, stream, step, config, rank, world)
            for rank, stream in enumerate(streams)
        ]
        batch = config.windows
        case = f"step {step} of a batch of {batch} windows on {world} process(es)"
        if batch * step + batch > (length - 1) // config.block_size:
            case += ", in more than one epoch"
        whole = starts_of(step * batch, batch, tokens, config)
        diagnose_ranks(ranks, whole, case)
        diagnose_order(ranks, whole, tokens, step, config, case)
        diagnose_number(ranks, whole, config, case)
        places = {start % config.block_size for start in whole}
        stray = [start for start in flat(ranks) if start % config.block_size not in places]
        expect(
            not stray,
            f"{case}: you read a window at token {(stray or [0])[0]}, where none of this step "
            "begins. `window_start(number, len(tokens), config)` says where each begins.",
        )
        expect(
            flat(ranks) == sorted(whole),
            f"{case}: the windows aren't those of numbers {step * batch} to "
            f"{(step + 1) * batch - 1}.",
        )
        counts = [len(pieces) for pieces in ranks]
        expect(
            len(set(counts)) == 1,
            f"{case}: the processes get {counts} micro-batches. All must get equally many, because "
            "they wait for each other.",
        )
        expect_own_reads(ranks, streams, config, case)


def expect_own_reads(ranks: Ranks, streams: list[Positions], config: Recipe, case: str) -> None:
    """Fail if a process reads tokens outside the windows that it yields."""
    for rank, (pieces, stream) in enumerate(zip(ranks, streams, strict=True)):
        starts = flat([pieces])
        own = {start + place for start in starts for place in range(config.block_size + 1)}
        expect(
            stream.seen <= own,
            f"{case}: process {rank} yields its own {len(starts)} windows, but it reads others, "
            "too. First choose the numbers of its windows, then read only those.",
        )


def share_of(case: SimpleNamespace) -> tuple[int, int, Recipe, int]:
    """Return the world, the step, the recipe and the tokens of a drawn case."""
    tokens = case.size * case.world * case.each * case.block
    recipe = Recipe(case.size, case.block, tokens, seed=case.step + case.block)
    return case.world, case.step, recipe, case.length


def flat(ranks: Ranks) -> list[int]:
    """Return the sorted start positions of all windows of all ranks."""
    return sorted(start for pieces in ranks for piece in pieces for start in piece)


def diagnose_ranks(ranks: Ranks, whole: list[int], case: str) -> None:
    """Fail if ranks read the same windows."""
    own, world = [flat([pieces]) for pieces in ranks], len(ranks)
    is_new = len(set(whole)) == len(whole)
    expect(
        world == 1 or any(each != sorted(whole) for each in own),
        f"{case}: every process reads the whole batch, so each window counts {world} times.",
    )
    expect(
        world == 1 or not is_new or own[0] != own[1],
        f"{case}: all processes read the same windows; `rank` must say which are theirs.",
    )


def diagnose_order(
    ranks: Ranks, whole: list[int], tokens: Positions, step: int, config: Recipe, case: str
) -> None:
    """Fail if the windows are those of another step, epoch or order."""
    batch, read = config.windows, flat(ranks)
    numbers = range(step * batch, (step + 1) * batch)
    expect(
        not step or read != sorted(starts_of(0, batch, tokens, config)) or read == sorted(whole),
        f"{case}: those are the windows of step 0. Each step begins {batch} windows later.",
    )
    in_file = [config.block_size * number for number in numbers]
    expect(
        read not in (in_file, list(numbers)) or read == sorted(whole),
        f"{case}: you read windows in the order of the file. `window_start(number, len(tokens), "
        "config)` is where a window begins in training's order.",
    )
    an_epoch = max(1, (len(tokens) - 1) // config.block_size)
    again = [starts_of(number % an_epoch, 1, tokens, config)[0] for number in numbers]
    expect(
        read != sorted(again) or read == sorted(whole),
        f"{case}: you repeat the order of the first epoch. `window_start` takes numbers of later "
        "epochs, too, and shuffles each anew.",
    )


def diagnose_number(ranks: Ranks, whole: list[int], config: Recipe, case: str) -> None:
    """Fail if windows are missing, or read too often."""
    world, size, read = len(ranks), config.micro_batch_size, flat(ranks)
    expect(
        world == 1 or len(read) != world * config.windows,
        f"{case}: the processes read {len(read)} windows. The batch doesn't grow with `world`, so "
        "each process takes its part of it.",
    )
    expect(
        len(read) != config.batch_tokens or config.block_size == 1,
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


class Tied(nn.Module):
    """A model with a tied matrix, as GPT-2 has, a bias, a number and a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(5, 3)
        self.lm_head = nn.Linear(3, 5)
        self.lm_head.weight = self.wte.weight
        self.scale = nn.Parameter(torch.ones(()))
        self.norm = nn.RMSNorm(5)  # its weight has the shape of the bias


def gradients_of(model: nn.Module) -> list[Tensor]:
    """Return the gradients of all parameters."""
    gradients = [parameter.grad for parameter in model.parameters()]
    expect(all(g is not None for g in gradients), "after your function, a gradient is missing.")
    return [gradient for gradient in gradients if gradient is not None]


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


def diagnose_sum(own: list[Tensor], after: list[Tensor], what: str, mean: str) -> None:
    """Fail unless each rank has the sum of the tensors of all ranks. Diagnose known mistakes."""
    total, world = torch.stack(own).sum(0), len(own)
    if all(near(got, total) for got in after):
        return
    highest = torch.stack(own).amax(0)
    expect(
        not all(near(got, highest) for got in after),
        f"{what}: each process has the largest numbers of all processes. ReduceOp.SUM adds up.",
    )
    expect(
        not all(near(got, (total / world).to(got.dtype)) for got in after),
        f"{what}: each process has the mean over the processes. {mean}",
    )
    expect(
        not all(near(got, mine) for got, mine in zip(after, own, strict=True)),
        f"{what}: each process still has its own. Either your code leaves it out, for example by "
        "an early `return`, or it adds up a copy; the tensor must change in place, as "
        "dist.all_reduce does it.",
    )
    expect(
        not all(near(got, mine * world) for got, mine in zip(after, own, strict=True)),
        f"{what}: each process has its own numbers times {world}, so nothing is exchanged. "
        "dist.all_reduce adds up over the processes.",
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


@part(
    (library_sum, library_sum_gradients),
    "Rank 0 has [1, 2], and rank 1 has [10, 20]. What does each of them have after "
    "dist.all_reduce, and what does the call return?",
)
def data_parallel(
    answers: tuple[Callable[[Tensor], Tensor], Callable[[nn.Module], None]],
) -> None:
    """Check `sum_over_processes(tensor)` and `sum_gradients(model)` on one and more processes."""
    sum_over_processes, sum_gradients = answers
    check_alone(sum_over_processes, sum_gradients)
    drawn = [
        (case.world, (case.rows, case.columns))
        for case in draws.sizes(2, world=(2, 4), rows=(1, 5), columns=(1, 5))
    ]
    with expecting_waits():
        for world, shape in ((2, (3,)), (3, (4, 1)), (2, ()), (2, (0,)), *drawn):
            check_sum(sum_over_processes, world, shape, torch.float32)
        check_sum(sum_over_processes, 2, (3,), torch.int64)
        for world in (2, 3):
            check_gradients(sum_gradients, world)


def check_sum(
    sum_over_processes: Callable[[Tensor], Tensor],
    world: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    """Check that each rank has the sum of all tensors, and returns it."""
    own = [(10 * draws.normal(1, *shape, seed=rank)[0]).to(dtype) for rank in range(world)]

    def share(rank: int) -> tuple[Tensor, Tensor]:
        mine = own[rank].clone()
        return mine, sum_over_processes(mine)

    pairs = on_processes(world, share)
    expect(
        all(returned is not None for _, returned in pairs),
        "sum_over_processes returns None; the loop uses `loss = sum_over_processes(...)`.",
    )
    name = "sum_over_processes"
    name += "" if dtype == torch.float32 else f", with a tensor of {dtype}"
    diagnose_sum(own, [tensor for tensor, _ in pairs], name, "The task asks for the sum.")
    diagnose_sum(own, [got for _, got in pairs], "the tensor that sum_over_processes returns", "")


def check_alone(sum_over_processes: Callable, sum_gradients: Callable) -> None:
    """Check both functions in a process that torchrun did not start."""
    tensor, model = torch.tensor([2.0, -1.0]), Tied()
    logits = model.norm(model.lm_head(model.wte(torch.arange(4)))) * model.scale
    F.cross_entropy(logits, torch.arange(4)).backward()
    before = [gradient.clone() for gradient in gradients_of(model)]
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
            near(gradient, old) for gradient, old in zip(gradients_of(model), before, strict=True)
        ),
        "on one process, the sum over all processes is the tensor itself; yours changes it.",
    )


def check_gradients(sum_gradients: Callable[[nn.Module], None], world: int) -> None:
    """Check that gradients are summed over the processes, and that weights don't change."""
    generator = torch.Generator().manual_seed(world)
    with seeded(world):
        weights = [parameter.detach().clone() for parameter in Tied().parameters()]
    own = [[torch.randn(w.shape, generator=generator) for w in weights] for _ in range(world)]

    def step(rank: int) -> tuple[list[Tensor], list[Tensor]]:
        model = Tied()
        for parameter, weight, gradient in zip(model.parameters(), weights, own[rank], strict=True):
            parameter.data.copy_(weight)
            parameter.grad = gradient.clone()
        sum_gradients(model)
        return [p.detach() for p in model.parameters()], gradients_of(model)

    found = on_processes(world, step)
    expect(
        all(
            near(got, weight)
            for after, _ in found
            for got, weight in zip(after, weights, strict=True)
        ),
        "sum_gradients changes the weights; add up `parameter.grad`, not the parameter.",
    )
    names = {
        1: "a tied matrix's gradient",
        2: "a bias's gradient",
        0: "a number's gradient",
        3: "the gradient of a gain, which has the shape of a bias",
    }

    def is_doubled(number: int) -> bool:
        return near(found[0][1][number], world * torch.stack([each[number] for each in own]).sum(0))

    for number, name in names.items():
        gradients = [after[number] for _, after in found]
        if number == 1 and [n for n in names if is_doubled(n)] == [1]:
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
        "only the ending's last token counts. Take the mean over all of its tokens.": (
            right[-1].item()
        ),
        "your endings follow the context's last token only; the model must see all of it.": (
            losses_of(model, context[-1:], ending).mean().item()
        ),
    }


def scenes(
    lengths: tuple[int, int],
    count: int,
    seed: int,
    ends: tuple[int, int] = (2, 6),
    choices: tuple[int, int] = (3, 5),
) -> list[Scene]:
    """Draw contexts and endings, with lengths and numbers of choices in these ranges."""
    generator = np.random.default_rng(seed)

    def tokens(low: int, high: int) -> list[int]:
        return generator.integers(0, 37, generator.integers(low, high + 1)).tolist()

    return [
        (
            tokens(*lengths),
            [tokens(*ends) for _ in range(generator.integers(choices[0], choices[1] + 1))],
        )
        for _ in range(count)
    ]


def small_model(block_size: int, seed: int) -> GPT:
    """Create a model whose choices depend on the whole context."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig(block_size, vocab_size=37, n_layer=1, n_head=2, n_embd=24)).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 1)
    return model


def close_scenes(model: GPT, count: int, seed: int) -> list[Scene]:
    """Draw contexts with two endings of one token whose losses nearly tie; the second is lower."""
    found = []
    for context, _ in scenes((1, 7), count, seed):
        losses, tokens = losses_of_all(model, context).sort()
        gaps = losses.diff()
        for place in ((gaps > 1e-3) & (gaps < 4e-3)).nonzero().flatten().tolist():
            found.append((context, [[int(tokens[place + 1])], [int(tokens[place])]]))
    return found


def losses_of_all(model: GPT, context: list[int]) -> Tensor:
    """Return the loss of each token of the vocabulary as the one after the context."""
    return -model(torch.tensor([context]))[0, -1].log_softmax(-1)


class ElsewhereError(Exception):
    """Error of a model on another device, which ends the learner's call."""


class Elsewhere(nn.Module):
    """A model on another device. It notes the device of its ids, and doesn't compute anything."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(block_size=13)
        self.lm_head = nn.Linear(4, 37, bias=False, device="meta")
        self.devices: list[torch.device] = []

    def forward(self, idx: Tensor) -> Tensor:
        """Note the device of the ids."""
        self.devices.append(idx.device)
        raise ElsewhereError


@part(
    library_most_likely,
    "The context is [5, 7], an ending is [2, 9]. Which ids go into the model, and which of its "
    "logits predict 2 and 9?",
)
def most_likely(answer: Callable[[nn.Module, list[int], list[list[int]]], int]) -> None:
    """Check `most_likely(model, context, endings)`, which returns the index of an ending."""
    with torch.random.fork_rng(devices=[]):
        model, other = small_model(13, seed=0), small_model(8, seed=1)
    with torch.no_grad():
        short, long = scenes((1, 7), 25, seed=1), scenes((8, 25), 20, seed=2)
        right, chosen = judged(model, answer, short)
        if chosen != right:
            diagnose_choice(model, short, right, chosen)
        for its_model, examples, case in (
            (
                model,
                long,
                "your choices are wrong for rows of more than block_size + 1 tokens. Keep the last "
                "block_size + 1 tokens, because the ending is there.",
            ),
            (
                other,
                scenes((1, 12), 15, seed=3, ends=(1, 4), choices=(1, 7)),
                "right for one model, but not for another with block_size 8, with 1 to 7 endings "
                "of 1 to 4 tokens.",
            ),
            (
                model,
                close_scenes(model, 40, seed=4),
                "right, but not for two endings that are nearly equally likely. Compare their "
                "losses in fp32, and don't round them.",
            ),
        ):
            try:
                right, chosen = judged(its_model, answer, examples)
            except (ValueError, IndexError, RuntimeError) as error:
                raise DiagnosisError(f"{case} Your code raises an error ({error}).") from error
            expect(chosen == right, case)
    elsewhere = Elsewhere()
    with suppress(ElsewhereError):
        answer(elsewhere, [1, 2], [[3], [4, 5]])
    expect(
        all(device.type == "meta" for device in elsewhere.devices),
        "the ids stay on the CPU when the model is on a GPU: device=model.lm_head.weight.device.",
    )


def judged(
    model: GPT, answer: Callable[..., int], examples: list[Scene]
) -> tuple[list[int], list[int]]:
    """Return the right choices and the learner's."""
    right, chosen = [], []
    for context, endings in examples:
        given = (list(context), [list(ending) for ending in endings])
        with torch.enable_grad():  # so that an answer that leaves gradients off is seen
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


def diagnose_choice(model: GPT, examples: list[Scene], right: list[int], chosen: list[int]) -> None:
    """Fail with a diagnosis if a known mistake leads to the same choices."""
    by_slip: dict[str, list[int]] = {}
    for context, endings in examples:
        values = [slip_losses(model, context, ending) for ending in endings]
        least = min(map(len, endings))
        for value, ending in zip(values, endings, strict=True):
            value[
                "you compare only as many tokens as the shortest ending has; take all of each."
            ] = losses_of(model, context, ending[:least]).mean().item()
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


def averaged_gradient(scale: Callable[[int, int, int], float], sizes: list[list[int]]) -> float:
    """Return the gradient after DDP's average, in units of the whole batch's gradient.

    `sizes` holds each rank's micro-batches. Every example has a gradient of 1, and so does the
    batch.
    """
    total, world = sum(map(sum, sizes)), len(sizes)
    # The mean over a micro-batch has a gradient of 1, too, so its factor is what remains.
    per_rank = [sum(float(scale(size, total, world)) for size in pieces) for pieces in sizes]
    return sum(per_rank) / world  # what DDP does


def drawn_sizes() -> list[list[list[int]]]:
    """Draw the micro-batches of each rank, of different sizes and numbers."""
    drawn = draws.sizes(6, world=(1, 5), pieces=(1, 4), size=(1, 40))
    return [
        [[case.size + 3 * rank + n for n in range(case.pieces)] for rank in range(case.world)]
        for case in drawn
    ]


@exercise(
    "Two processes have one window each, with gradients 2 and 4. What is the gradient of the mean "
    "loss? What does DDP's average give?"
)
def loss_scale(scale: Callable[[int, int, int], float]) -> None:
    """Check `scale(size, total, world)`, the factor of a micro-batch's mean loss on a rank."""
    expect_number(
        scale(3, 24, 4),
        3 / 24 * 4,
        "scale(3, 24, 4)",
        {
            "size / total is right on one process. DDP also divides the sum over the processes by "
            "their number, so the gradient comes out `world` times too small.": 3 / 24,
            "you divide by the number of processes, but DDP does that already. Multiply to undo "
            "it.": 3 / 24 / 4,
            "that weighs all micro-batches alike, which is right only if their sizes "
            "are equal.": 1.0,
            "that is total / size, which is inverted. A small micro-batch must count little.": 24
            / 3,
            "your ratio is upside down. A small micro-batch must count little.": 24 / (3 * 4),
            "that has the size of the micro-batch, but not that of the whole batch.": 3 * 4,
            "that has the whole batch, but not the micro-batch. Its loss is a mean, so it must "
            "count `size` times.": 4 / 24,
            "that has neither size nor world. The loss is a mean over `size` windows already, and "
            "DDP divides once more.": 1 / 24,
            "that divides by the number of processes, but the micro-batch is a part of `total`.": (
                3 / 4
            ),
            "// rounds down to a whole number; the factor is a fraction, so use /.": 0.0,
        },
    )
    cases = [[[3, 3], [3, 3]], [[4, 2], [3, 3]], [[2], [2], [1]], [[5, 5, 2]], *drawn_sizes()]
    for sizes in cases:
        length = averaged_gradient(scale, sizes)
        is_even = len({size for pieces in sizes for size in pieces}) == 1
        what = "equally large micro-batches" if is_even else "micro-batches of different sizes"
        down = averaged_gradient(lambda size, total, world: size / max(1, total // world), sizes)
        expect(
            math.isclose(length, 1.0, rel_tol=1e-6) or not math.isclose(length, down, rel_tol=1e-6),
            f"with the micro-batches {sizes} of {len(sizes)} processes, total // world rounds "
            "down; use /.",
        )
        advice = " Don't round the factor." if math.isclose(length, 1.0, rel_tol=2e-2) else ""
        expect(
            math.isclose(length, 1.0, rel_tol=1e-6),
            f"with {what} on {len(sizes)} process(es), {sizes}, the gradient is {length:.7g} times "
            f"the batch's.{advice}",
        )


def wrong_gpus(parameters: float, memory: float, reserved: float) -> dict[str, float]:
    """Return the numbers of GPUs that known mistakes lead to, by diagnosis."""
    per, room = 16 * parameters, memory - reserved
    return {
        "you forgot what is reserved on each GPU for activations.": math.ceil(per / memory),
        "you round down, so a little does not fit; round up.": per // room,
        "it fits exactly; one more than the quotient is one too many. Use math.ceil.": per // room
        + 1,
        "you reserve that much only once; reserve it on every GPU.": math.ceil(
            (per + reserved) / memory
        ),
        "you add the reserve to the memory; it is a part of it.": math.ceil(
            per / (memory + reserved)
        ),
        "4 bytes a parameter are the weights alone; AdamW in fp32 has a gradient and two moments "
        "as well: 16.": math.ceil(4 * parameters / room),
        "8 bytes a parameter leave out the two moments.": math.ceil(8 * parameters / room),
        "12 bytes a parameter leave something out: weights, gradient and two moments are 16.": (
            math.ceil(12 * parameters / room)
        ),
        "the number of GPUs must be whole; round up.": per / room,
        "GPUs needn't come in eights or powers of two.": 8 * math.ceil(per / room / 8),
        "2 bytes a parameter are weights in bf16; AdamW in fp32 needs 16.": math.ceil(
            2 * parameters / room
        ),
    }


@exercise(
    "A model has 3 billion parameters, and a GPU has 20 GB for it. How many bytes does it need, "
    "and how many GPUs?"
)
def fewest_gpus(gpus: Callable[[float, float, float], int]) -> None:
    """Check `gpus(parameters, memory, reserved)`, the fewest GPUs for FSDP with fp32 AdamW."""
    first = [
        (100e9, 80e9, 14e9),
        (19e9, 40e9, 10e9),  # 10.1 GPUs, so rounding to the nearest number gives too few
        (7e9, 80e9, 20e9),
        (5e9, 80e9, 0),
        (1e9, 16e9, 0.0),  # exactly one
        (12e9, 80e9, 16e9),  # exactly three
        (1e6, 80e9, 1e9),  # a small part of one
    ]
    drawn = [
        (case.millions * 1e6, case.memory * 1e9, case.reserved * 1e9)
        for case in draws.sizes(8, millions=(100, 90_000), memory=(12, 192), reserved=(0, 11))
    ]
    for parameters, memory, reserved in [*first, *drawn]:
        want = math.ceil(16 * parameters / (memory - reserved))
        case = f"{parameters:g} parameters, {memory:g} bytes of which {reserved:g} are reserved"
        wrong = wrong_gpus(parameters, memory, reserved)
        mistakes = {f"for {case}: {text}": number for text, number in wrong.items()}
        got: Any = gpus(parameters, memory, reserved)
        fixed = math.ceil(16 * parameters / 60e9)
        if got == fixed != want and gpus(parameters, 3 * memory, reserved) == fixed:
            mistakes["your number doesn't depend on `memory` and `reserved`; use both."] = fixed
        expect_number(got, want, case, mistakes)
        number = got.item() if isinstance(got, (Tensor, np.ndarray)) else got
        expect(
            isinstance(number, Integral),
            f"right, but a number of GPUs is an int, and you return a {type(number).__name__}; "
            "math.ceil returns an int.",
        )
