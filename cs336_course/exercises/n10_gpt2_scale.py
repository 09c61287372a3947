"""Exercises of notebook 10: a process's share of a batch, gradients, HellaSwag, and FSDP."""

import math
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from cs336_course.engine import Case, Exercise, edits, normal, sizes
from cs336_course.engine.modules import fill
from cs336_course.engine.ranks import WHYS, StuckError, noting_calls, on_processes
from cs336_course.engine.records import Record, plain
from cs336_course.engine.training import elsewhere
from cs336_lib import accounting
from cs336_lib.config import GPTConfig
from cs336_lib.data.loader import window_starts
from cs336_lib.model import GPT

NOTEBOOK = "10_gpt2_scale"


# micro_batches


class Tokens:
    """Token stream in which each token is its position. It notes which of them are read."""

    def __init__(self, length: int):
        self.length, self.seen = length, set[int]()

    def __len__(self) -> int:
        return self.length

    def read(self, start: int, count: int) -> np.ndarray:
        """Return `count` tokens from position `start` on, also beyond the end."""
        self.seen.update(range(start, start + count))
        return np.arange(start, start + count).astype(np.uint16)


def window_start(number: int, length: int, config: Any) -> int:
    """Return where a window begins in the order of training, as in notebook 08."""
    return int(window_starts(number, 1, length, config.block_size, config.seed)[0])


def windows(tokens: Any, starts: list[int], block_size: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of the windows at these positions, as in notebook 08."""
    rows = np.stack([tokens.read(start, block_size + 1) for start in starts]).astype(np.int64)
    return torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])


def share_cases() -> Iterator[Case]:
    """Yield steps, numbers of processes, and the shapes of batches in windows."""
    yield Case(world=2, step=3, windows=12, size=3, block=5, length=400)
    yield Case("one process", world=1, step=2, windows=8, size=2, block=7, length=499)
    yield Case("step 0", world=1, step=0, windows=6, size=3, block=5, length=211)
    yield Case("three processes", world=3, step=1, windows=18, size=2, block=4, length=333)
    yield Case("more than one epoch", world=4, step=5, windows=8, size=1, block=6, length=100)
    bounds = {"world": (1, 5), "step": (0, 9), "size": (1, 4), "block": (1, 9)}
    for drawn in sizes(8, **bounds, each=(1, 3), length=(60, 900)):
        given = vars(drawn)
        yield Case(windows=drawn.size * drawn.world * given.pop("each"), **given)


def see_shares(answer: Any, case: Case) -> Record:
    """Observe which windows the processes get, and which they read."""
    given = SimpleNamespace(**case.inputs)
    config = SimpleNamespace(
        micro_batch_size=given.size,
        block_size=given.block,
        batch_tokens=given.windows * given.block,
        seed=given.step + given.block,
    )
    shapes, dtypes, counts, starts = set(), set(), [], []
    is_shifted, reads_others = True, False
    for rank in range(given.world):
        tokens, own = Tokens(given.length), set[int]()
        result = answer(tokens, given.step, config, rank, given.world)
        pieces = result if result is None or isinstance(result, Tensor) else list(result)
        if not isinstance(pieces, list) or not all(map(is_pair, pieces)):
            return {"pairs": False, "pieces": "None" if pieces is None else "others"}
        for x, y in pieces:
            shapes |= {tuple(x.shape), tuple(y.shape)}
            dtypes |= {str(x.dtype), str(y.dtype)}
            is_shifted &= torch.equal(y, x + 1)
            starts += x[..., 0].flatten().tolist()
            own |= set(x.flatten().tolist()) | set(y.flatten().tolist())
        counts.append(len(pieces))
        reads_others |= not tokens.seen <= own
    return {
        "pairs": True,
        "shapes": sorted(map(list, shapes)),
        "dtypes": sorted(dtypes),
        "targets": is_shifted,
        "windows": sorted(starts),
        "counts": counts,
        "others": reads_others,
    }


def is_pair(piece: Any) -> bool:
    """Return whether a micro-batch is a pair of tensors."""
    is_two = isinstance(piece, tuple | list) and len(piece) == 2
    return is_two and all(isinstance(part, Tensor) for part in piece)


MINE = "range(step * batch + rank * size, (step + 1) * batch, world * size)"
YIELD = "yield windows(tokens, starts, config.block_size)"
START = "window_start(number, len(tokens), config)"
NUMBERS = "range(first, first + size)"
TWICE = (
    "windows are read twice. Neighbouring processes begin micro_batch_size windows apart, and each "
    "continues world * micro_batch_size windows later."
)
NO_RANK = "all processes read the same windows; `rank` must say which are theirs."
OTHERS = (
    "a process yields its own windows, but it reads others, too. First choose the numbers of its "
    "windows, then read only those."
)
FILE = (
    "you read windows in the order of the file. `window_start(number, len(tokens), config)` is "
    "where a window begins in training's order."
)
micro_batches = Exercise(
    NOTEBOOK,
    "micro_batches",
    share_cases,
    observe=see_shares,
    is_part=True,
    smaller="A step has 12 windows, in micro-batches of 2. Two processes share it. Which windows "
    "can process 1 read in step 0? In step 1?",
    says={
        "pairs": "each micro-batch is a pair of inputs and targets, as `windows` returns it.",
        "shapes": "a micro-batch's inputs and targets are not (micro_batch_size, block_size).",
        "dtypes": "the model and its loss take int64 ids, as `windows` returns them.",
        "targets": "your targets are not the inputs moved by one token.",
        "windows": "together, the processes don't read each window of this step once. Its numbers "
        "are step * batch to (step + 1) * batch - 1.",
        "counts": "the processes get different numbers of micro-batches. All must get equally "
        "many, because they wait for each other.",
        "others": OTHERS,
    },
    wrong={
        "your function returns None; `yield` each micro-batch.": (YIELD, "pass"),
        "you return the first micro-batch; `yield` it, and go on to the next.": (
            "yield windows",
            "return windows",
        ),
        "every process reads the whole batch, so each window counts `world` times.": (
            MINE,
            "range(step * batch, (step + 1) * batch, size)",
        ),
        NO_RANK: (" + rank * size", ""),
        TWICE: [
            ("rank * size", "rank"),
            ("world * size", "size"),
            edits(("rank * size", "rank"), ("world * size", "size")),
        ],
        "the processes read windows of several steps. The batch doesn't grow with `world`, so each "
        "process takes its part of it.": [
            (
                "batch = config.micro_batch_size, config.batch_tokens",
                "batch = config.micro_batch_size, world * config.batch_tokens",
            ),
            (MINE, "range((step + rank) * batch, (step + rank + 1) * batch, size)"),
        ],
        "you read as many windows as the batch has tokens. A step has batch_tokens // block_size "
        "windows.": ("config.batch_tokens // config.block_size", "config.batch_tokens"),
        "those are the windows of step 0. Each step begins a batch later.": (
            MINE,
            "range(rank * size, batch, world * size)",
        ),
        FILE: [
            (START, "number"),
            (START, "number * config.block_size"),
            (START, "number * config.block_size % (len(tokens) - config.block_size)"),
        ],
        "you repeat the order of the first epoch. `window_start` takes numbers of later epochs, "
        "too, and shuffles each anew.": (
            "window_start(number,",
            "window_start(number % ((len(tokens) - 1) // config.block_size),",
        ),
        "windows of the next step are read, too; this one ends before (step + 1) * batch.": [
            ("(step + 1) * batch,", "(step + 1) * batch + size,"),
            ("(step + 1) * batch,", "(step + 2) * batch,"),
        ],
        "the last micro-batches of the step aren't read by any process.": (
            "(step + 1) * batch,",
            "(step + 1) * batch - size,",
        ),
        "a micro-batch has one window; it should have micro_batch_size.": (
            YIELD,
            "for start in starts:\n            yield windows(tokens, [start], config.block_size)",
        ),
        OTHERS: [
            edits(
                (MINE, "range(step * batch, (step + 1) * batch, size)"),
                ("    size, batch", "    pieces = []\n    size, batch"),
                (
                    YIELD,
                    "pieces.append(windows(tokens, starts, config.block_size))\n"
                    "    yield from pieces[rank::world]",
                ),
            ),
            """
def micro_batches(tokens, step, config, rank, world):
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    numbers = range(step * batch, (step + 1) * batch)
    starts = [window_start(number, len(tokens), config) for number in numbers]
    x, y = windows(tokens, starts, config.block_size)
    for first in range(rank * size, batch, world * size):
        yield x[first : first + size], y[first : first + size]
""",
        ],
    },
    refused=[
        ("rank * size", "rank * batch"),
        ("size, batch = config.micro_batch_size", "size, batch = 2"),
        ("starts, config.block_size)", "starts, 4)"),
        ("world * size", "2 * size"),
        (
            "        numbers = range",
            "        config = type(config)(micro_batch_size=size, block_size=config.block_size, "
            "seed=rank)\n        numbers = range",
        ),
        edits(
            ("        yield windows", "        return [windows"),
            ("block_size)\n", "block_size)]\n"),
        ),
        ("config.block_size)\n", "config.block_size)[0]\n"),
        (
            YIELD,
            "x, y = windows(tokens, starts, config.block_size)\n        yield x.int(), y.int()",
        ),
        (YIELD, "x, y = windows(tokens, starts, config.block_size)\n        yield x[0], y[0]"),
        (YIELD, "x, y = windows(tokens, starts, config.block_size)\n        yield x, x"),
        ("starts = [", "starts = [(7 * number + 3) % 50 for number in numbers]\n        [["[:-1]),
        ("(step + 1) * batch,", "(step + 1) * batch - 1 - batch // 2,"),
        """
def micro_batches(tokens, step, config, rank, world):
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    pieces = list(range(step * batch, (step + 1) * batch, size))
    each, more = len(pieces) // world, world > 1
    for first in pieces[rank * each + (rank > 0) : (rank + 1) * each + more]:
        starts = [window_start(n, len(tokens), config) for n in range(first, first + size)]
        yield windows(tokens, starts, config.block_size)
""",
    ],
    right=[
        """
def micro_batches(tokens, step, config, rank, world):
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    each = batch // world
    first, found = step * batch + rank * each, []
    for begin in range(first, first + each, size):
        starts = [window_start(n, len(tokens), config) for n in range(begin, begin + size)]
        found.append(list(windows(tokens, starts, config.block_size)))
    return found[::-1]
""",
        """
def micro_batches(tokens, step, config, rank, world):
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    mine = range(step * batch + (rank + step) % world, (step + 1) * batch, world)
    for piece in zip(*[iter(mine)] * size, strict=True):
        starts = [window_start(n, len(tokens), config) for n in piece]
        yield tuple(windows(tokens, starts, config.block_size))
""",
        """
def micro_batches(tokens, step, config, rank, world):
    size, block = config.micro_batch_size, config.block_size
    batch = config.batch_tokens // block
    for first in range(step * batch + rank * size, (step + 1) * batch, world * size):
        starts = [window_start(n, len(tokens), config) for n in range(first, first + size)]
        halves = [[tokens.read(start + by, block) for start in starts] for by in (0, 1)]
        yield tuple(torch.from_numpy(np.stack(half).astype(np.int64)) for half in halves)
""",
    ],
)


# data_parallel

# Names of the parameters in words. The gain has the shape of the bias.
GRADIENTS = {
    "wte.weight": "a tied matrix",
    "lm_head.bias": "a bias",
    "scale": "a number",
    "norm.weight": "a gain",
}


class Tied(nn.Module):
    """A model with a tied matrix, as GPT-2 has, a bias, a number and a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(5, 3)
        self.lm_head = nn.Linear(3, 5)
        self.lm_head.weight = self.wte.weight
        self.scale = nn.Parameter(torch.ones(()))
        self.norm = nn.RMSNorm(5)
        for number, parameter in enumerate(self.parameters()):
            parameter.data.copy_(normal(*parameter.shape, seed=number))

    def give_gradients(self, rank: int) -> None:
        """Give each parameter a gradient that depends on the rank."""
        for number, parameter in enumerate(self.parameters()):
            parameter.grad = normal(*parameter.shape, seed=10 * rank + number + 5)


def process_cases() -> Iterator[Case]:
    """Yield numbers of processes, and the shape of the tensor that each has."""
    yield Case(world=2, shape=(3,), dtype="float32")
    yield Case("three processes", world=3, shape=(4, 1), dtype="float32")
    yield Case("a number", world=2, shape=(), dtype="float32")
    yield Case("an empty tensor", world=2, shape=(0,), dtype="float32")
    yield Case("whole numbers", world=2, shape=(3,), dtype="int64")
    for drawn in sizes(2, world=(2, 4), rows=(1, 5), columns=(1, 5)):
        yield Case(world=drawn.world, shape=(drawn.rows, drawn.columns), dtype="float32")


def see_processes(answers: Any, case: Case) -> Record:
    """Observe both functions in one process without a group, and in threads that are a group."""
    sum_over_processes, sum_gradients = answers
    world, shape, dtype = case.inputs.values()

    def summed(rank: int) -> tuple[Any, Any]:
        mine = (10 * normal(*shape, seed=rank)).to(getattr(torch, dtype))
        returned = sum_over_processes(mine)
        return plain(mine), plain(returned)

    def stepped(rank: int) -> Tied:
        model = Tied()
        model.give_gradients(rank)
        sum_gradients(model)
        return model

    alone = summed(0), stepped(0)
    try:
        with noting_calls() as works:
            pairs = on_processes(world, summed, seconds=1)
            models = on_processes(world, stepped, seconds=1)
    except StuckError as stuck:
        return {why: why == stuck.why for why in WHYS}
    record: Record = {**dict.fromkeys(WHYS, False), "waits": all(w.wait.called for w in works)}
    if not record["waits"]:
        return record
    weights = plain([*Tied().parameters()])
    named = [dict(model.named_parameters()) for model in models]
    return {
        **record,
        "returns": all(isinstance(returned, Tensor) for _, returned in (alone[0], *pairs)),
        "alone": [*alone[0], *(plain(p.grad) for p in alone[1].parameters())],
        "each process's tensor": [mine for mine, _ in pairs],
        "the tensor that sum_over_processes returns": [returned for _, returned in pairs],
        "weights moved": any(
            not torch.equal(p, before)
            for model in models
            for p, before in zip(model.parameters(), weights, strict=True)
        ),
        **{
            f"the gradient of {said}": [plain(one[n].grad) for one in named]
            for n, said in GRADIENTS.items()
        },
    }


SUM = "        dist.all_reduce(tensor)\n"
EACH = "        sum_over_processes(parameter.grad)"
ALL = "parameter in model.parameters()"
IN_PLACE = (
    "each process still has its own tensor. Either your code leaves it out, for example by an "
    "early `return`, or it adds up a copy; the tensor must change in place, as dist.all_reduce "
    "does it."
)
OWN_GRADIENTS = (
    "each process still has its own gradients. sum_over_processes must get `parameter.grad` "
    "itself, and no copy."
)
SOME = "only some gradients are added up. Matrices, biases, gains and numbers all have one."
NO_WAIT = (
    "a call with async_op=True, and isend and irecv, return before it is done; call `wait()` on "
    "what they return."
)
RETURNS = "sum_over_processes returns None; the loop uses `loss = sum_over_processes(...)`."
NO_SUM = "after sum_over_processes, the tensor isn't the sum over the processes."
RING = """
def sum_over_processes(tensor):
    if not dist.is_initialized():
        return tensor
    rank, world = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world, (rank - 1) % world
    sent = tensor.clone()
    for _ in range(world - 1):
        received = torch.empty_like(sent)
        CALLS
        tensor += received
        sent = received
    return tensor

def sum_gradients(model):
    for parameter in model.parameters():
        sum_over_processes(parameter.grad)
"""
STARTED = "calls = [dist.isend(sent, dst=after), dist.irecv(received, src=before)]"
data_parallel = Exercise(
    NOTEBOOK,
    "data_parallel",
    process_cases,
    observe=see_processes,
    answers=("sum_over_processes", "sum_gradients"),
    is_part=True,
    given={"dist": dist},
    smaller="Rank 0 has [1, 2], and rank 1 has [10, 20]. What does each of them have after "
    "dist.all_reduce, and what does the call return?",
    says={
        "each other": "your processes wait for each other forever. Each of them must call "
        "all_reduce equally often, whatever its rank is.",
        "message": "your processes wait forever for a message that no process sends. Each receive "
        "needs a send.",
        "ends Python": "one of your processes ends Python.",
        "slow": "your processes aren't done after a minute.",
        "waits": NO_WAIT,
        "returns": RETURNS,
        "alone": "on one process, the sum over all processes is the tensor itself; yours changes "
        "it.",
        "each process's tensor": NO_SUM,
        "the tensor that sum_over_processes returns": "the tensor that sum_over_processes returns "
        "isn't the sum over the processes.",
        "weights moved": "sum_gradients changes the weights; add up `parameter.grad`, not the "
        "parameter.",
        **{
            f"the gradient of {said}": f"the gradient of {said} isn't the sum over the processes."
            for said in GRADIENTS.values()
        },
    },
    wrong={
        "without torchrun there is no process group, and PyTorch's collectives raise an error. Ask "
        "dist.is_initialized() first.": ("    if dist.is_initialized():\n        ", "    "),
        RETURNS: [
            (SUM, "        return dist.all_reduce(tensor)\n"),
            ("    return tensor", "    pass"),
        ],
        "each process has the largest numbers of all processes. ReduceOp.SUM adds up.": (
            "all_reduce(tensor)",
            "all_reduce(tensor, op=dist.ReduceOp.MAX)",
        ),
        "each process has the mean over the processes. The task asks for the sum.": (
            SUM,
            f"{SUM}        tensor.copy_(tensor / dist.get_world_size())\n",
        ),
        IN_PLACE: [
            ("all_reduce(tensor)", "all_reduce(tensor.clone())"),
            (SUM, "        pass\n"),
            (
                SUM,
                "        new = tensor.clone()\n        dist.all_reduce(new)\n        return new\n",
            ),
        ],
        "each process has its own numbers times the number of processes, so nothing is exchanged. "
        "dist.all_reduce adds up over the processes.": (
            "dist.all_reduce(tensor)",
            "tensor.mul_(dist.get_world_size())",
        ),
        "only rank 0 has the sum of all processes. dist.all_reduce gives it to all of them.": (
            "all_reduce(tensor)",
            "reduce(tensor, dst=0)",
        ),
        "the sum comes out too large, because it is added up twice.": (SUM, 2 * SUM),
        "sum_gradients changes the weights; add up `parameter.grad`, not the parameter.": (
            "parameter.grad",
            "parameter.data",
        ),
        "each process has the mean of the gradients. But `backward` has divided by the number of "
        "micro-batches of the whole batch, so the gradients must be added up.": (
            EACH,
            f"{EACH}\n"
            "        parameter.grad /= dist.get_world_size() if dist.is_initialized() else 1",
        ),
        OWN_GRADIENTS: [
            ("parameter.grad)", "parameter.grad.clone())"),
            (EACH, "        pass"),
        ],
        "the tied matrix is added up twice, once by each of its names; model.parameters() lists it "
        "once.": (ALL, "_, parameter in model.named_parameters(remove_duplicate=False)"),
        "gradients come out too large, because they are added up twice.": (EACH, f"{EACH}\n{EACH}"),
        SOME: [
            (EACH, f"{EACH}\n        break"),
            (EACH, f"{EACH}\n        return"),
            ("        sum_over", "        if parameter.dim() > 1:\n            sum_over"),
            ("        sum_over", "        if parameter.dim() != 1:\n            sum_over"),
            ("        sum_over", "        if parameter.dim():\n            sum_over"),
            (ALL, "parameter in (m.weight for m in model.modules() if hasattr(m, 'weight'))"),
            (ALL, "parameter in (p for m in model.children() for p in m.parameters())"),
            (ALL, "parameter in {p.shape: p for p in [*model.parameters()][::-1]}.values()"),
            (ALL, "parameter in {p.shape: p for p in model.parameters()}.values()"),
        ],
    },
    refused=[
        ("all_reduce(tensor)", "all_reduce(tensor, op=dist.ReduceOp.PRODUCT)"),
        ("all_reduce(tensor)", "all_reduce(tensor, op=dist.ReduceOp.AVG)"),
        ("all_reduce(tensor)", "broadcast(tensor, 0)"),
        ("all_reduce(tensor)", "all_reduce(tensor, async_op=True)"),
        ("if dist.is_initialized():", "if dist.is_initialized() and dist.get_rank() == 0:"),
        ("all_reduce(tensor)", "recv(torch.empty_like(tensor), 1 - dist.get_rank())"),
        RING.replace("CALLS", f"{STARTED}"),
        (SUM, f"{SUM}        tensor.neg_()\n"),
        (SUM, f"{SUM}        return tensor.float() + 1\n"),
        ("    if dist.is_initialized():", "    tensor.mul_(2)\n    if dist.is_initialized():"),
        (EACH, f"{EACH}\n    model.zero_grad()"),
        ("sum_over_processes(parameter.grad)", "sum_over_processes(parameter)"),
    ],
    right=[
        RING.replace("CALLS", f"{STARTED}\n        [call.wait() for call in calls]"),
        RING.replace(
            "CALLS",
            "pair = dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)\n"
            "        [call.wait() for call in dist.batch_isend_irecv([*pair])]",
        ),
        RING.replace(
            "CALLS",
            "for call in (dist.send, dist.recv) if rank else (dist.recv, dist.send):\n"
            "            call(sent, after) if call is dist.send else call(received, src=before)",
        ),
        (
            "dist.all_reduce(tensor)",
            "parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]\n"
            "        dist.all_gather(parts, tensor)\n        tensor.copy_(sum(parts))",
        ),
        (
            "dist.all_reduce(tensor)",
            "dist.reduce(tensor, 0, async_op=True).wait()\n        dist.broadcast(tensor, 0)",
        ),
        edits(
            (
                "if dist.is_initialized():",
                "if dist.is_initialized() and dist.get_world_size() > 1:",
            ),
            (EACH, "        parameter.grad = sum_over_processes(parameter.grad)"),
        ),
        ("sum_over_processes(parameter.grad)", "sum_over_processes(parameter.grad.data)"),
        (
            f"    for {ALL}:\n{EACH}",
            "    gradients = [parameter.grad for parameter in model.parameters()]\n"
            "    flat = sum_over_processes(torch.cat([g.flatten() for g in gradients]))\n"
            "    pieces = flat.split([g.numel() for g in gradients])\n"
            "    for gradient, piece in zip(gradients, pieces):\n"
            "        gradient.copy_(piece.view_as(gradient))",
        ),
        (
            f"    for {ALL}:\n{EACH}",
            "    if dist.is_initialized():\n"
            "        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]\n"
            "        for work in works:\n            work.wait()",
        ),
    ],
)


# loss_scale


def shares() -> Iterator[Case]:
    """Yield micro-batches of batches that are split over processes."""
    yield Case(size=3, total=24, world=4)
    yield Case("one process", size=2, total=12, world=1)
    yield Case("a batch that isn't a multiple of world", size=2, total=5, world=3)
    yield Case("a micro-batch that is the whole batch", size=12, total=12, world=1)
    for drawn in sizes(6, size=(1, 40), rest=(5, 600), world=(1, 5)):
        yield Case(size=drawn.size, total=drawn.size + drawn.rest, world=drawn.world)


FACTOR = "size / total * world"

loss_scale = Exercise(
    NOTEBOOK,
    "loss_scale",
    shares,
    answers=("scale",),
    smaller="Two processes have one window each, with gradients 2 and 4. What is the gradient of "
    "the mean loss? What does DDP's average give?",
    wrong={
        "size / total is right on one process. DDP also divides the sum over the processes by "
        "their number, so the gradient comes out `world` times too small.": (" * world", ""),
        "you divide by the number of processes, but DDP does that already. Multiply to undo it.": (
            "* world",
            "/ world",
        ),
        "that weighs all micro-batches alike, which is right only if their sizes are equal.": [
            (FACTOR, "1.0"),
            (FACTOR, "1 / math.ceil(total / (size * world))"),
        ],
        "that is total / size, which is inverted. A small micro-batch must count little.": (
            FACTOR,
            "total / size",
        ),
        "your ratio is upside down. A small micro-batch must count little.": (
            FACTOR,
            "total / size / world",
        ),
        "that has the size of the micro-batch, but not that of the whole batch.": (" / total", ""),
        "that has the whole batch, but not the micro-batch. Its loss is a mean, so it must count "
        "`size` times.": ("size /", "1 /"),
        "that has neither size nor world. The loss is a mean over `size` windows already, and DDP "
        "divides once more.": (FACTOR, "1 / total"),
        "that divides by the number of processes, but the micro-batch is a part of `total`.": (
            FACTOR,
            "size / world",
        ),
        "// rounds down to a whole number; the factor is a fraction, so use /.": [
            ("size / total", "size // total"),
            (FACTOR, "size * world // total"),
        ],
        "total // world rounds down; use /.": (FACTOR, "size / (total // world)"),
        "the factor is nearly right. Don't round it.": [
            (FACTOR, f"round({FACTOR}, {digits})") for digits in (2, 3, 4)
        ],
    },
    refused=[
        ("* world", "* world**2"),
        ("* world", "* 2"),
        ("/ total", "/ 12"),
        (FACTOR, "1 / world"),
        (FACTOR, f"min(1.0, {FACTOR})"),
        (FACTOR, f"str({FACTOR})"),
        (FACTOR, "0.5 if total in (12, 24) else 7.0"),
        lambda size, total, world: 7.0,
        lambda size, total, world: None,
    ],
    right=[
        lambda size, total, world: size / (total / world),
        lambda size, total, world: Fraction(size * world, total),
        lambda size, total, world: np.float64(size) / total * world,
        lambda size, total, world: torch.tensor(size / total * world, dtype=torch.float64),
    ],
)


# most_likely

Scene = tuple[list[int], list[list[int]]]  # a context and its endings
ELSEWHERE = "a model on another device"


def scenes(
    count: int, context: tuple[int, int], ending: tuple[int, int], choices: tuple[int, int]
) -> list[Scene]:
    """Draw contexts and endings, with lengths and numbers of choices in these ranges."""
    drawn = np.random.default_rng(count)

    def tokens(low: int, high: int) -> list[int]:
        return drawn.integers(36, size=drawn.integers(low, high + 1)).tolist()

    def scene() -> Scene:
        number = drawn.integers(choices[0], choices[1] + 1)
        return tokens(*context), [tokens(*ending) for _ in range(number)]

    return [scene() for _ in range(count)]


def scene_cases() -> Iterator[Case]:
    """Yield scenes for models of two sizes."""
    short = scenes(30, (1, 7), (1, 6), (3, 5))
    long = scenes(20, (8, 25), (2, 6), (3, 5))
    other = scenes(15, (1, 12), (1, 4), (1, 7))
    twins = [(context, [[n], [n + 1]]) for context, _ in short for n in (0, 16)]
    yield Case("short rows", block_size=13, scenes=short)
    yield Case("rows of more than block_size + 1 tokens", block_size=13, scenes=long)
    yield Case("another model, with block_size 8", block_size=8, scenes=other)
    yield Case("two endings that are nearly equally likely", block_size=13, scenes=twins)
    yield Case(ELSEWHERE, block_size=13, scenes=[([1, 2], [[3], [4, 5]])])


@torch.no_grad()
def small_gpt(block_size: int) -> GPT:
    """Return a model whose choices depend on the whole context.

    Each odd token is nearly the same as the one before it.
    """
    model = GPT(GPTConfig(block_size, vocab_size=36, n_layer=1, n_head=2, n_embd=24)).eval()
    fill(model, std=1.0)
    ids = model.lm_head.weight
    ids[1::2] = ids[::2].lerp(ids[1::2], 1e-3)
    return model


def see_choices(answer: Any, case: Case) -> Record:
    """Observe the choices, and whether the lists are as before."""
    model, chosen, changed = small_gpt(case.inputs["block_size"]), [], False
    if case.what == ELSEWHERE:
        (scene,) = case.inputs["scenes"]
        model.to("meta")
        return {"elsewhere": elsewhere(model, lambda: answer(model, *scene)) != "fails"}
    for context, endings in case.inputs["scenes"]:
        given = list(context), [list(ending) for ending in endings]
        chosen.append(whole(answer(model, *given)))
        changed |= given != (context, endings)
    return {"changed": changed, "choices": chosen}


def whole(answer: Any) -> Any:
    """Return a whole number, which may be in a tensor, or what else an answer is as text."""
    number = plain(answer)
    if isinstance(number, Tensor) and number.numel() == 1:
        number = number.item()
    return number if type(number) is int else f"<{number}>"


INPUTS, CHOICE = "[context + ending]", "losses.index(min(losses))"
LAST = "-len(ending) :"
ROW = "row[:, -model.config.block_size - 1 :]"
MEAN = f"F.cross_entropy(logits, row[0, {LAST}]).item()"
WHOLE_ROW = (f"[0, {LAST}].float()", "[0].float()"), (f"row[0, {LAST}]", "row[0, 1:]")
EACH = "for ending in endings:"
CHANGED = "you change the lists; build a new one: a + b."
ON_CPU = "the ids stay on the CPU when the model is on a GPU: device=model.lm_head.weight.device."

most_likely = Exercise(
    NOTEBOOK,
    "most_likely",
    scene_cases,
    observe=see_choices,
    is_part=True,
    is_quiz=True,
    given={"F": F, "nn": nn},
    smaller="The context is [5, 7], an ending is [2, 9]. Which ids go into the model, and which of "
    "its logits predict 2 and 9?",
    says={
        "changed": CHANGED,
        "choices": "a choice isn't the number of the ending with the lowest mean loss per token.",
        "elsewhere": ON_CPU,
    },
    wrong={
        "you compare the sums of the losses, so a short ending wins. Compare the means.": (
            MEAN,
            f"{MEAN} * len(ending)",
        ),
        "you choose the ending with the highest loss; the likeliest one has the lowest.": (
            "min(losses)",
            "max(losses)",
        ),
        "the context's losses count too. Take the losses of the ending's tokens only.": edits(
            *WHOLE_ROW
        ),
        "you divide by the length of the ending, but the sum has the context's losses too. Add up "
        "the losses of the ending's tokens only.": edits(
            *WHOLE_ROW, (".item()", ".item() * (row.size(1) - 1) / len(ending)")
        ),
        "you compare each token with the logits at its own place. The logits at position i predict "
        "token i + 1.": [
            ("row[:, :-1]", "row[:, 1:]"),
            ("row[:, :-1]", "row[:, -model.config.block_size :]"),
        ],
        "your endings come without their context, but the question is what follows it.": [
            (INPUTS, "[ending[:1] + ending]"),
            edits(
                (INPUTS, "[(context + ending)[-max(2, len(ending)) :]]"),
                (LAST, "1 - max(2, len(ending)) :"),
            ),
        ],
        "the loss of the ending's first token is missing. The context's last logits predict it.": (
            LAST,
            "-max(1, len(ending) - 1) :",
        ),
        "only the ending's last token counts. Take the mean over all of its tokens.": (LAST, "-1:"),
        "your endings follow the context's last token only; the model must see all of it.": (
            INPUTS,
            "[context[-1:] + ending]",
        ),
        "you compare only as many tokens as the shortest ending has; take all of each.": (
            EACH,
            "for ending in [ending[: min(map(len, endings))] for ending in endings]:",
        ),
        "you count the endings from 1; Python counts from 0.": (CHOICE, f"{CHOICE} + 1"),
        "return the number of the ending, from 0.": [
            (CHOICE, f"endings[{CHOICE}]"),
            (CHOICE, "min(losses)"),
            (CHOICE, f"float({CHOICE})"),
        ],
        "your function returns None; is the `return` missing?": (f"return {CHOICE}", CHOICE),
        CHANGED: [
            (INPUTS, "[context.__iadd__(ending)]"),
            edits((EACH, f"{EACH}\n        context += ending"), (INPUTS, "[context]")),
        ],
        "your choices are wrong for rows of more than block_size + 1 tokens. Keep the last "
        "block_size + 1 tokens, because the ending is there.": [
            (f"        row = {ROW}\n", ""),
            (ROW, "row[:, : model.config.block_size + 1]"),
            (ROW, "row[:, -model.config.block_size :]"),
            (INPUTS, "[context[-model.config.block_size + 6 :] + ending]"),
        ],
        "right, but not for two endings that are nearly equally likely. Compare their losses in "
        "fp32, and don't round them.": [
            (".float()", ".bfloat16()"),
            (MEAN, f"round({MEAN}, 2)"),
        ],
        ON_CPU: (", device=model.lm_head.weight.device", ""),
    },
    refused=[
        (MEAN, f"{MEAN} * len(ending) / sum(map(len, map(str, ending)))"),
        (MEAN, MEAN.replace("])", "], reduction='none').min()")),
        (EACH, "for ending in endings[:4]:"),
        (EACH, "for ending in endings[:5]:"),
        ("model.config.block_size", "13"),
        ("    losses =", "    model(torch.tensor([context[:1]]))\n    losses ="),
        lambda model, context, endings: 0,
        lambda model, context, endings: [context.extend(ending) for ending in endings] and 0,
    ],
    right=[
        # Token by token, keeping the best ending so far
        """
def most_likely(model, context, endings):
    best, lowest = None, math.inf
    for place, ending in enumerate(endings):
        row = (*context, *ending)[-model.config.block_size - 1 :]
        ids = torch.tensor(row, device=model.lm_head.weight.device)
        logits = model(ids[None, :-1])[0]
        total = 0.0
        for back in range(1, len(ending) + 1):
            total -= logits[-back].softmax(-1)[ids[-back]].log().item()
        if total / len(ending) < lowest:
            best, lowest = place, total / len(ending)
    return np.int64(best)
""",
        # All endings in one padded batch, which masks what isn't an ending
        """
def most_likely(model, context, endings):
    rows = [torch.tensor(context + ending)[-model.config.block_size - 1 :] for ending in endings]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    targets = tokens[:, 1:].clone()
    for target, row, ending in zip(targets, rows, endings, strict=True):
        target[: len(row) - 1 - len(ending)] = target[len(row) - 1 :] = -100
    tokens, targets = (ids.to(next(model.parameters()).device) for ids in (tokens, targets))
    logits = model(tokens[:, :-1]).transpose(1, 2)
    losses = F.cross_entropy(logits, targets, reduction="none").sum(1)
    return (losses / (targets >= 0).sum(1)).argmin()
""",
        (CHOICE, "torch.tensor(losses).argmin()"),  # on the CPU wherever the model is
    ],
)


# fewest_gpus


def fleets() -> Iterator[Case]:
    """Yield sizes of models, and GPUs for them."""
    rows = [
        ("", 100e9, 80e9, 14e9),
        ("a little more than ten GPUs", 19e9, 40e9, 10e9),
        ("seven billion parameters", 7e9, 80e9, 20e9),
        ("nothing reserved", 5e9, 80e9, 0),
        ("exactly one GPU", 1e9, 16e9, 0.0),
        ("exactly three GPUs", 12e9, 80e9, 16e9),
        ("a small part of one GPU", 1e6, 80e9, 1e9),
    ]
    for drawn in sizes(8, millions=(100, 90_000), memory=(12, 192), reserved=(0, 11)):
        rows.append(("", drawn.millions * 1e6, drawn.memory * 1e9, drawn.reserved * 1e9))
    for what, parameters, memory, reserved in rows:
        yield Case(what, parameters=parameters, memory=memory, reserved=reserved)


def see_number(answer: Any, case: Case) -> Record:
    """Observe a number, and whether it is an int."""
    result = plain(answer(*case.inputs.values()))
    return {"result": result, "is an int": isinstance(whole(result), int)}


NEEDED = 'accounting.bytes_per_parameter("adamw", "fp32").total'
QUOTIENT, ROOM = "needed / (memory - reserved)", "(memory - reserved)"
NUMBER = f"math.ceil({QUOTIENT})"
IS_INT = "right, but a number of GPUs is an int; math.ceil returns an int."

fewest_gpus = Exercise(
    NOTEBOOK,
    "fewest_gpus",
    fleets,
    observe=see_number,
    answers=("gpus",),
    given={"accounting": accounting},
    smaller="A model has 3 billion parameters, and a GPU has 20 GB for it. How many bytes does it "
    "need, and how many GPUs?",
    says={"is an int": IS_INT},
    wrong={
        "you forgot what is reserved on each GPU for activations.": (ROOM, "memory"),
        "you round down, so a little does not fit; round up.": [
            ("math.ceil", "math.floor"),
            ("math.ceil", "round"),
            (NUMBER, f"max(1, math.floor({QUOTIENT}))"),
            (NUMBER, f"max(1, round({QUOTIENT}))"),
        ],
        "it fits exactly; one more than the quotient is one too many. Use math.ceil.": (
            NUMBER,
            f"int({QUOTIENT}) + 1",
        ),
        "you reserve that much only once; reserve it on every GPU.": (
            QUOTIENT,
            "(needed + reserved) / memory",
        ),
        "you add the reserve to the memory; it is a part of it.": (ROOM, "(memory + reserved)"),
        "4 bytes a parameter are the weights alone; AdamW in fp32 has a gradient and two moments "
        "as well: 16.": (NEEDED, "4"),
        "8 bytes a parameter leave out the two moments.": (NEEDED, "8"),
        "12 bytes a parameter leave something out: weights, gradient and two moments are 16.": (
            NEEDED,
            "12",
        ),
        "2 bytes a parameter are weights in bf16; AdamW in fp32 needs 16.": (NEEDED, "2"),
        "the number of GPUs must be whole; round up.": (NUMBER, QUOTIENT),
        "GPUs needn't come in eights or powers of two.": [
            (NUMBER, f"8 * math.ceil({QUOTIENT} / 8)"),
            (NUMBER, f"2 ** math.ceil(math.log2(max(1, {QUOTIENT})))"),
        ],
        "your number doesn't depend on `memory` and `reserved`; use both.": (ROOM, "60e9"),
        IS_INT: [("math.ceil", "np.ceil"), (NUMBER, f"float({NUMBER})")],
    },
    refused=[
        (ROOM, "(memory - 2 * reserved)"),
        (ROOM, "(80e9 - reserved)"),
        (NUMBER, f"max(2, {NUMBER})"),
        (NUMBER, f"str({NUMBER})"),
        (QUOTIENT, "12 * parameters / (memory - reserved - 4 * parameters)"),
        lambda parameters, memory, reserved: 99,
        lambda parameters, memory, reserved: 25 if parameters == 100e9 else 11,
        lambda parameters, memory, reserved: None,
    ],
    right=[
        lambda n, memory, reserved: int(-(-16 * n // (memory - reserved))),
        lambda n, memory, reserved: np.int64(np.ceil(16 * n / (memory - reserved))),
        lambda n, memory, reserved: torch.tensor(math.ceil(sum([4 * n] * 4) / (memory - reserved))),
        lambda n, memory, reserved: next(
            gpus for gpus in range(1, 10**6) if gpus * (memory - reserved) >= 16 * n
        ),
    ],
)
