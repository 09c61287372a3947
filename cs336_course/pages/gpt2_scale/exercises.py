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
from cs336_course.engine.training import (
    Autocast,
    Passes,
    elsewhere,
    flat_gradient,
    flat_weights,
    one_number,
    watched_forward,
)
from cs336_lib import accounting
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT

NOTEBOOK = "11_gpt2_scale"


# micro_batches


def rank_and_world() -> tuple[int, int]:
    """Return this process's number, and how many there are, as in the notebook."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


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
    yield Case("the end of the data", world=4, step=5, windows=8, size=1, block=6, length=100)
    yield Case(
        "data that end with a whole window", world=1, step=0, windows=9, size=9, block=5, length=40
    )
    bounds = {"world": (1, 4), "step": (0, 9), "size": (1, 4), "block": (1, 9)}
    for drawn in sizes(6, **bounds, each=(1, 3), length=(60, 900)):
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

    def share(rank: int) -> tuple[Tokens, Any]:
        tokens = Tokens(given.length)
        result = answer(tokens, given.step, config)
        return tokens, result if result is None or isinstance(result, Tensor) else list(result)

    try:
        found = [share(0)] if given.world == 1 else on_processes(given.world, share)
    except StuckError:
        return {"stuck": True}
    shapes, dtypes, counts, starts = set(), set(), [], []
    is_shifted, reads_others = True, False
    for tokens, pieces in found:
        own = set[int]()
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
        "stuck": False,
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
START = "n % available * config.block_size"
NUMBERS = "range(first, first + size)"
WHO = "    rank, world = rank_and_world()\n"
TWICE = (
    "windows are read twice. Neighbouring processes begin micro_batch_size windows apart, and each "
    "continues world * micro_batch_size windows later."
)
NO_RANK = "all processes read the same windows; the rank must say which are theirs."
OTHERS = (
    "a process yields its own windows, but it reads others, too. First choose the numbers of its "
    "windows, then read only those."
)
AGAIN = (
    "your windows go beyond the end of the data. After the last whole window, the next one is the "
    "first again."
)
LAST = (
    "you use one window too many or too few before the data begin again. A window's last target is "
    "one token after its inputs, so there are (len(tokens) - 1) // block_size windows."
)
shared_micro_batches = Exercise(
    NOTEBOOK,
    "shared_micro_batches",
    share_cases,
    answers=("micro_batches",),
    observe=see_shares,
    is_part=True,
    smaller="A step has 12 windows, in micro-batches of 2. Two processes share it. Which windows "
    "can process 1 read in step 0? In step 1?",
    says={
        "stuck": "your processes don't end. Reading windows needs no communication.",
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
        "without torchrun there is no process group, and dist.get_rank() raises an error. Ask "
        "rank_and_world().": (
            WHO,
            "    rank, world = dist.get_rank(), dist.get_world_size()\n",
        ),
        "every process reads the whole batch, so each window counts `world` times.": [
            (MINE, "range(step * batch, (step + 1) * batch, size)"),
            (WHO, "    rank, world = 0, 1\n"),
        ],
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
        AGAIN: ("n % available", "n"),
        LAST: [
            ("(len(tokens) - 1) //", "len(tokens) //"),
            ("(len(tokens) - 1) // config.block_size", "len(tokens) // config.block_size - 1"),
        ],
        "a window begins at n * block_size; yours begin at n.": (
            "n % available * config.block_size",
            "n % available",
        ),
        "your windows are one token longer, so each begins where the last one's targets end. "
        "Window n begins at n * block_size.": (
            "available * config.block_size for",
            "available * (config.block_size + 1) for",
        ),
        OTHERS: """
def micro_batches(tokens, step, config):
    rank, world = rank_and_world()
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    available = (len(tokens) - 1) // config.block_size
    numbers = range(step * batch, (step + 1) * batch)
    x, y = windows(tokens, [n % available * config.block_size for n in numbers], config.block_size)
    for first in range(rank * size, batch, world * size):
        yield x[first : first + size], y[first : first + size]
""",
    },
    refused=[
        ("rank * size", "rank * batch"),
        ("size, batch = config.micro_batch_size", "size, batch = 2"),
        ("starts, config.block_size)", "starts, 4)"),
        ("world * size", "2 * size"),
        edits(
            ("        yield windows", "        return [windows"),
            ("starts, config.block_size)", "starts, config.block_size)]"),
        ),
        (
            YIELD,
            "x, y = windows(tokens, starts, config.block_size)\n        yield x.int(), y.int()",
        ),
        (YIELD, "x, y = windows(tokens, starts, config.block_size)\n        yield x[0], y[0]"),
        (YIELD, "x, y = windows(tokens, starts, config.block_size)\n        yield x, x"),
        (YIELD, f"{YIELD}[0]"),
        ("(step + 1) * batch,", "(step + 1) * batch - 1 - batch // 2,"),
        """
def micro_batches(tokens, step, config):
    rank, world = rank_and_world()
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    available = (len(tokens) - 1) // config.block_size
    pieces = list(range(step * batch, (step + 1) * batch, size))
    each, more = len(pieces) // world, world > 1
    for first in pieces[rank * each + (rank > 0) : (rank + 1) * each + more]:
        starts = [n % available * config.block_size for n in range(first, first + size)]
        yield windows(tokens, starts, config.block_size)
""",
    ],
    right=[
        """
def micro_batches(tokens, step, config):
    rank, world = rank_and_world()
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    available = (len(tokens) - 1) // config.block_size
    each = batch // world
    first, found = step * batch + rank * each, []
    for begin in range(first, first + each, size):
        starts = [n % available * config.block_size for n in range(begin, begin + size)]
        found.append(list(windows(tokens, starts, config.block_size)))
    return found[::-1]
""",
        """
def micro_batches(tokens, step, config):
    rank, world = rank_and_world()
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    available = (len(tokens) - 1) // config.block_size
    mine = range(step * batch + (rank + step) % world, (step + 1) * batch, world)
    for piece in zip(*[iter(mine)] * size, strict=True):
        starts = [n % available * config.block_size for n in piece]
        yield tuple(windows(tokens, starts, config.block_size))
""",
        """
def micro_batches(tokens, step, config):
    rank, world = rank_and_world()
    size, block = config.micro_batch_size, config.block_size
    batch, available = config.batch_tokens // block, (len(tokens) - 1) // block
    for first in range(step * batch + rank * size, (step + 1) * batch, world * size):
        starts = [n % available * block for n in range(first, first + size)]
        halves = [[tokens.read(start + by, block) for start in starts] for by in (0, 1)]
        yield tuple(torch.from_numpy(np.stack(half).astype(np.int64)) for half in halves)
""",
    ],
)


# data_parallel

ELSEWHERE = "a model on another device"


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


def process_cases() -> Iterator[Case]:
    """Yield numbers of processes, of each one's micro-batches, and the shape of a tensor."""
    yield Case(world=2, each=2, shape=(3,), dtype="float32")
    yield Case("three processes", world=3, each=2, shape=(4, 1), dtype="float32")
    yield Case("a number", world=2, each=3, shape=(), dtype="float32")
    yield Case("an empty tensor", world=2, each=1, shape=(0,), dtype="float32")
    yield Case("whole numbers", world=2, each=1, shape=(3,), dtype="int64")
    yield Case(ELSEWHERE, world=1, each=2, shape=(2,), dtype="float32")


def pieces_of(count: int) -> list[tuple[Tensor, Tensor]]:
    """Draw the micro-batches of a batch, of two windows each."""
    drawn = torch.randint(36, (count, 2, 2, 5), generator=torch.Generator().manual_seed(count))
    return [(x.clone(), y.clone()) for x, y in drawn]


def see_processes(answers: Any, case: Case) -> Record:
    """Observe both functions in one process without a group, and in threads that are a group."""
    sum_over_processes, backward = answers
    world, each, shape, dtype = case.inputs.values()
    if case.what == ELSEWHERE:
        model = small_gpt(5).to("meta")
        return {
            "elsewhere": elsewhere(
                model, lambda: backward(model, iter(pieces_of(each)), each, Autocast())
            )
        }

    def summed(rank: int) -> tuple[Any, Any]:
        mine = (10 * normal(*shape, seed=rank)).to(getattr(torch, dtype))
        returned = sum_over_processes(mine)
        return plain(mine), plain(returned)

    def stepped(rank: int, size: int = world) -> Record:
        model, autocast = small_gpt(5).train(), Autocast()
        passes, before = Passes(model, autocast), flat_weights(model)
        with watched_forward(model, passes.look):
            loss = backward(model, iter(pieces_of(size * each)[rank::size]), size * each, autocast)
        return {
            **passes.facts(),
            "weights moved": not torch.equal(before, flat_weights(model)),
            "the gradient": flat_gradient(model),
            "the loss": one_number(loss),
            "graph": isinstance(loss, Tensor) and loss.requires_grad,
        }

    alone = summed(0), stepped(0, 1)
    try:
        with noting_calls() as works:
            pairs = on_processes(world, summed)
            steps = on_processes(world, stepped)
    except StuckError as stuck:
        return {why: why == stuck.why for why in WHYS}
    record: Record = {**dict.fromkeys(WHYS, False), "waits": all(w.wait.called for w in works)}
    if not record["waits"]:
        return record
    return {
        **record,
        "returns": all(isinstance(returned, Tensor) for _, returned in (alone[0], *pairs)),
        "alone": [*alone[0], alone[1]["the gradient"], alone[1]["the loss"]],
        "each process's tensor": [mine for mine, _ in pairs],
        "the tensor that sum_over_processes returns": [returned for _, returned in pairs],
        **{name: [step[name] for step in steps] for name in steps[0]},
    }


SUM = "        dist.all_reduce(tensor)\n"
SEND = "        sum_over_processes(parameter.grad)  # once a step, not once a micro-batch"
EACH = "sum_over_processes(parameter.grad)"
ALL = "parameter in model.parameters()"
LOOP = f"    for {ALL}:\n{SEND}\n"
ADD = "        total += loss.detach()\n"
INSIDE = f"{ADD}        for {ALL}:\n            {EACH}\n"
RETURN = "return sum_over_processes(total)"
IN_PLACE = (
    "each process still has its own tensor. Either your code leaves it out, for example by an "
    "early `return`, or it adds up a copy; the tensor must change in place, as dist.all_reduce "
    "does it."
)
OWN_GRADIENTS = (
    "each process still has its own gradients. sum_over_processes must get `parameter.grad` "
    "itself, and no copy."
)
SOME = "only some gradients are added up. Matrices, biases and gains all have one."
NO_WAIT = (
    "a call with async_op=True, and isend and irecv, return before it is done; call `wait()` on "
    "what they return."
)
RETURNS = "sum_over_processes returns None; the loop uses `loss = sum_over_processes(...)`."
NO_SUM = "after sum_over_processes, the tensor isn't the sum over the processes."
OWN_LOSS = (
    "each process returns the loss of its own micro-batches. The loss of the whole batch is the "
    "sum over the processes."
)
ON_CPU_STEP = (
    "on a GPU this fails, because a tensor stays on the CPU; move x and y to the model's device."
)
IN_AUTOCAST = "the forward pass must be inside `with autocast:`."
GRAPH = "the returned loss still holds a graph, and with it the activations; add up loss.detach()."
FORWARD = "loss = model(x.to(total.device), y.to(total.device)) / count"
BACKWARD = """
def backward(model, pieces, count, autocast):
    total = torch.zeros((), device=model.lm_head.weight.device)
    for x, y in pieces:
        with autocast:
            loss = model(x.to(total.device), y.to(total.device)) / count
        loss.backward()
        total += loss.detach()
    for parameter in model.parameters():
        sum_over_processes(parameter.grad)
    return sum_over_processes(total)
"""
RING = f"""
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
{BACKWARD}"""
STARTED = "calls = [dist.isend(sent, dst=after), dist.irecv(received, src=before)]"
data_parallel = Exercise(
    NOTEBOOK,
    "data_parallel",
    process_cases,
    observe=see_processes,
    answers=("sum_over_processes", "backward"),
    is_part=True,
    given={"dist": dist},
    smaller="Two processes have the micro-batches with the gradients 1, 3 and 2, 6, and count is "
    "4. What does each process hold after its loop, and what must it hold at the end?",
    says={
        "each other": "your processes wait for each other forever. Each of them must call "
        "all_reduce equally often, whatever its rank is.",
        "message": "your processes wait forever for a message that no process sends. Each receive "
        "needs a send.",
        "ends Python": "one of your processes ends Python.",
        "slow": "your processes aren't done after a minute.",
        "waits": NO_WAIT,
        "returns": RETURNS,
        "alone": "on one process, both functions must do what they did without processes.",
        "each process's tensor": NO_SUM,
        "the tensor that sum_over_processes returns": "the tensor that sum_over_processes returns "
        "isn't the sum over the processes.",
        "in training mode": "model.eval() turns dropout off; call the model in training mode.",
        "with gradients": "no_grad is on, so there is no gradient to add up.",
        "in autocast": IN_AUTOCAST,
        "weights moved": "backward changes the weights; add up `parameter.grad`, not the "
        "parameter.",
        "the gradient": "the gradient isn't the one of the whole batch, in each process.",
        "the loss": "the returned loss isn't the one of the whole batch, in each process.",
        "graph": GRAPH,
        "elsewhere": ON_CPU_STEP,
    },
    wrong={
        "without torchrun there is no process group, and PyTorch's collectives raise an error. Ask "
        "dist.is_initialized() first.": ("    if dist.is_initialized():\n        ", "    "),
        RETURNS: [
            (SUM, "        return dist.all_reduce(tensor)\n"),
            ("    return tensor\n", "    pass\n"),
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
        "backward changes the weights; add up `parameter.grad`, not the parameter.": (
            "parameter.grad",
            "parameter.data",
        ),
        "you add up the gradients after each micro-batch. What was added up before is then added "
        "up again, so early micro-batches count several times. Add up once, after the loop.": edits(
            (LOOP, ""), (ADD, INSIDE)
        ),
        "you add up the gradients after each micro-batch and after the loop. Once is enough, after "
        "the loop.": (ADD, INSIDE),
        "each process has the mean of the gradients. But the loop has divided by the number of "
        "micro-batches of the whole batch, so the gradients must be added up.": (
            SEND,
            f"{SEND}\n"
            "        parameter.grad /= dist.get_world_size() if dist.is_initialized() else 1",
        ),
        "`count` is already the number of micro-batches of the whole batch, of all processes. "
        "Divide by it alone.": [
            ("/ count", "/ (count * (dist.get_world_size() if dist.is_initialized() else 1))"),
            ("/ count", "/ (count / (dist.get_world_size() if dist.is_initialized() else 1))"),
        ],
        OWN_LOSS: (RETURN, "return total"),
        "the returned loss is a mean over the processes. Each has divided by `count` of the whole "
        "batch, so the losses must be added up.": (
            RETURN,
            "return sum_over_processes(total) / "
            "(dist.get_world_size() if dist.is_initialized() else 1)",
        ),
        OWN_GRADIENTS: [
            ("parameter.grad)", "parameter.grad.clone())"),
            (LOOP, ""),
        ],
        "the tied matrix is added up twice, once by each of its names; model.parameters() lists it "
        "once.": (ALL, "_, parameter in model.named_parameters(remove_duplicate=False)"),
        "gradients come out too large, because they are added up twice.": (
            SEND,
            f"{SEND}\n        {EACH}",
        ),
        SOME: [
            (SEND, f"{SEND}\n        break"),
            (SEND, f"        if parameter.dim() > 1:\n            {EACH}"),
            (SEND, f"        if parameter.dim() == 1:\n            {EACH}"),
            (ALL, "parameter in {p.shape: p for p in [*model.parameters()][::-1]}.values()"),
            (ALL, "parameter in {p.shape: p for p in model.parameters()}.values()"),
        ],
        IN_AUTOCAST: (f"        with autocast:\n            {FORWARD}\n", f"        {FORWARD}\n"),
        GRAPH: ("loss.detach()", "loss"),
        ON_CPU_STEP: ("x.to(total.device), y.to(total.device)", "x, y"),
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
        (RETURN, f"model.zero_grad()\n    {RETURN}"),
        (EACH, "sum_over_processes(parameter)"),
        ("    total = torch", "    model.eval()\n    total = torch"),
        ("        loss.backward()\n", ""),
        (" / count", ""),
        (RETURN, "return loss.detach()"),
        (RETURN, "sum_over_processes(total)"),
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
            (SEND, "        parameter.grad = sum_over_processes(parameter.grad)"),
        ),
        (EACH, "sum_over_processes(parameter.grad.data)"),
        (
            LOOP,
            "    gradients = [parameter.grad for parameter in model.parameters()]\n"
            "    flat = sum_over_processes(torch.cat([g.flatten() for g in gradients]))\n"
            "    pieces = flat.split([g.numel() for g in gradients])\n"
            "    for gradient, piece in zip(gradients, pieces):\n"
            "        gradient.copy_(piece.view_as(gradient))\n",
        ),
        (
            LOOP,
            "    if dist.is_initialized():\n"
            "        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]\n"
            "        for work in works:\n            work.wait()\n",
        ),
        edits(
            (ADD, "        total += sum_over_processes(loss.detach())\n"),
            (RETURN, "return total"),
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


# ending_losses

Text = tuple[list[int], list[int]]  # a context and an ending


def texts(count: int, context: tuple[int, int], ending: tuple[int, int]) -> list[Text]:
    """Draw contexts and endings with lengths in these ranges."""
    drawn = np.random.default_rng(count)

    def tokens(low: int, high: int) -> list[int]:
        return drawn.integers(36, size=drawn.integers(low, high + 1)).tolist()

    return [(tokens(*context), tokens(*ending)) for _ in range(count)]


def text_cases() -> Iterator[Case]:
    """Yield texts for models of two sizes."""
    yield Case(block_size=13, texts=[([5, 7], [2, 9]), ([5, 7], [4])])
    yield Case("one text", block_size=13, texts=[([5, 7, 1], [2, 9])])
    yield Case("texts of many lengths", block_size=13, texts=texts(30, (1, 7), (1, 6)))
    yield Case(
        "texts of more than block_size + 1 tokens", block_size=13, texts=texts(20, (8, 25), (2, 6))
    )
    yield Case("another model, with block_size 8", block_size=8, texts=texts(15, (1, 12), (1, 4)))
    yield Case("token 0 in the text", block_size=13, texts=[([0, 7], [0, 0, 3]), ([1], [0])])
    yield Case(ELSEWHERE, block_size=13, texts=[([1, 2], [3]), ([1, 2], [4, 5])])


def see_losses(answer: Any, case: Case) -> Record:
    """Observe the losses, the forward passes, and whether the lists are as before."""
    model = small_gpt(case.inputs["block_size"])
    contexts, endings = (
        [list(ids) for ids in side] for side in zip(*case.inputs["texts"], strict=True)
    )
    if case.what == ELSEWHERE:
        model.to("meta")
        return {"elsewhere": elsewhere(model, lambda: answer(model, contexts, endings))}
    passes = Passes(model, Autocast())
    with torch.no_grad(), watched_forward(model, passes.look):
        result = answer(model, contexts, endings)
    given = list(zip(contexts, endings, strict=True))
    is_tensor = isinstance(result, Tensor)
    return {
        "changed": given != case.inputs["texts"],
        "a tensor": is_tensor,
        "passes": len(passes.inputs),
        "dtype": str(result.dtype) if is_tensor else "",
        "losses": plain(result),
    }


SPAN = "slice(max(len(t) - 1 - len(e), 0), len(t) - 1)"
LOSSES = "[F.cross_entropy(row[s].float(), targets[s]) for row, targets, s in found]"
ROW = "[-size:]"
CHANGED = "you change the lists; build a new one: a + b."
ON_CPU = "the ids stay on the CPU when the model is on a GPU: device=model.lm_head.weight.device."
PADDING = "the losses of the padding count, too. Take only the positions that predict the ending."
WHOLE = "the context's losses count too. Take the losses of the ending's tokens only."
TOO_LONG = (
    "your losses are wrong for texts of more than block_size + 1 tokens. Keep the last "
    "block_size + 1 tokens, because the ending is there."
)
ONE_PASS = "your function calls the model more than once; pad the texts, and call it with all."
SHIFTED = (
    "you compare each token with the logits at its own place. The logits at position i predict "
    "token i + 1."
)
ending_losses = Exercise(
    NOTEBOOK,
    "ending_losses",
    text_cases,
    observe=see_losses,
    is_part=True,
    given={"F": F, "nn": nn},
    smaller="The texts are [5, 7] with the ending [2, 9], and [5, 7] with [4]. Which ids go into "
    "the model, and which of its logits predict 2, 9 and 4?",
    says={
        "changed": CHANGED,
        "a tensor": "return a tensor with one loss per text.",
        "passes": ONE_PASS,
        "dtype": "the losses aren't fp32.",
        "losses": "a loss isn't the mean loss of its ending's tokens.",
        "elsewhere": ON_CPU,
    },
    wrong={
        "you add up the losses, so a long ending seems unlikely. Take their means.": (
            "targets[s])",
            "targets[s], reduction='sum')",
        ),
        WHOLE: (SPAN, "slice(0, len(t) - 1)"),
        PADDING: [
            (SPAN, "slice(None)"),
            (SPAN, "slice(max(len(t) - 1 - len(e), 0), None)"),
            (SPAN, "slice(-len(e), None)"),
        ],
        SHIFTED: [
            ("rows[:, 1:]", "rows[:, :-1]"),
            (SPAN, "slice(len(t) - len(e), len(t))"),
        ],
        "your endings come without their context, but the question is what follows it.": (
            "(c + e)",
            "(e[:1] + e)",
        ),
        "the loss of the ending's first token is missing. The context's last logits predict it.": (
            SPAN,
            "slice(len(t) - 1 - max(len(e) - 1, 1), len(t) - 1)",
        ),
        "only the ending's last token counts. Take the mean over all of its tokens.": (
            SPAN,
            "slice(len(t) - 2, len(t) - 1)",
        ),
        "your endings follow the context's last token only; the model must see all of it.": (
            "(c + e)",
            "(c[-1:] + e)",
        ),
        "you leave out all tokens with the number of your padding. That number is a token like any "
        "other, so tell padding by its position.": (
            "targets[s])",
            "targets[s], ignore_index=0)",
        ),
        "your padding comes first, which moves all positions. Put it last.": edits(
            ("batch_first=True)", "batch_first=True, padding_side='left')"),
            (SPAN, "slice(-len(e), None)"),
        ),
        ONE_PASS: """
def ending_losses(model, contexts, endings):
    losses = []
    for context, ending in zip(contexts, endings, strict=True):
        row = torch.tensor([context + ending], device=model.lm_head.weight.device)
        row = row[:, -model.config.block_size - 1 :]
        logits = model(row[:, :-1])[0, -len(ending) :].float()
        losses.append(F.cross_entropy(logits, row[0, -len(ending) :]))
    return torch.stack(losses)
""",
        "your function returns None; is the `return` missing?": (
            "return torch.stack",
            "torch.stack",
        ),
        "return a tensor with one loss per text.": [
            (f"torch.stack({LOSSES})", LOSSES),
            (f"torch.stack({LOSSES})", f"torch.stack({LOSSES}).tolist()"),
        ],
        "return one loss per text, and not their mean.": (
            LOSSES,
            f"[sum({LOSSES}) / len(texts)]",
        ),
        CHANGED: ("(c + e)", "(c.__iadd__(e))"),
        TOO_LONG: [
            (ROW, ""),
            (ROW, "[:size]"),
            ("block_size + 1", "block_size"),
        ],
        "the losses are not computed in fp32; use `.float()` on the logits.": (
            ".float()",
            ".bfloat16()",
        ),
        ON_CPU: (".to(device)", ""),
    },
    refused=[
        ("model.config.block_size + 1", "14"),
        (LOSSES, f"{LOSSES}[:1]"),
        (f"torch.stack({LOSSES})", f"torch.stack({LOSSES}).argmin()"),
        (f"torch.stack({LOSSES})", f"torch.stack({LOSSES}).round(decimals=2)"),
        (LOSSES, f"{LOSSES}[::-1]"),
        (SPAN, "slice(max(len(t) - 1 - len(endings[0]), 0), len(t) - 1)"),
        lambda model, contexts, endings: torch.zeros(len(contexts)),
    ],
    right=[
        # All losses at once, and then the endings
        """
def ending_losses(model, contexts, endings):
    size, device = model.config.block_size + 1, model.lm_head.weight.device
    texts = [torch.tensor((c + e)[-size:]) for c, e in zip(contexts, endings, strict=True)]
    rows = nn.utils.rnn.pad_sequence(texts, batch_first=True).to(device)
    losses = F.cross_entropy(model(rows[:, :-1]).float().mT, rows[:, 1:], reduction="none")
    triples = zip(losses, texts, endings, strict=True)
    return torch.stack([loss[: len(text) - 1][-len(e) :].mean() for loss, text, e in triples])
""",
        # Masks what isn't an ending
        """
def ending_losses(model, contexts, endings):
    size = model.config.block_size + 1
    rows = [torch.tensor((*c, *e))[-size:] for c, e in zip(contexts, endings)]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=3)
    targets = tokens[:, 1:].clone()
    for target, row, ending in zip(targets, rows, endings, strict=True):
        target[: len(row) - 1 - len(ending)] = target[len(row) - 1 :] = -100
    tokens, targets = (ids.to(next(model.parameters()).device) for ids in (tokens, targets))
    logits = model(tokens[:, :-1]).float().transpose(1, 2)
    losses = F.cross_entropy(logits, targets, reduction="none").sum(1)
    return losses / (targets >= 0).sum(1)
""",
        # By probabilities
        """
def ending_losses(model, contexts, endings):
    size, device = model.config.block_size + 1, model.lm_head.weight.device
    texts = [(c + e)[-size:] for c, e in zip(contexts, endings)]
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=device)
    logs = model(ids[:, :-1]).float().log_softmax(-1)
    every = -logs.gather(2, ids[:, 1:, None])[..., 0]
    found = zip(every, texts, endings)
    means = [row[len(t) - 1 - len(e) : len(t) - 1].mean() for row, t, e in found]
    return torch.stack(means)
""",
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


def whole(answer: Any) -> Any:
    """Return a whole number, which may be in a tensor, or what else an answer is as text."""
    number = plain(answer)
    if isinstance(number, Tensor) and number.numel() == 1:
        number = number.item()
    return number if type(number) is int else f"<{number}>"


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
