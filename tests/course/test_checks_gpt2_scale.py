"""Notebook 10's checks: untouched stubs, typical mistakes by their diagnosis, right answers."""

import math
import threading
import time
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from verdicts import assert_untouched, assert_verdicts, stub

from cs336_course.checks import gpt2_scale as checks
from cs336_course.checks import ranks
from cs336_course.checks.report import DiagnosisError


def test_untouched_stubs():
    assert_untouched(checks, checks.__all__, data_parallel=(stub, stub))


def test_an_untouched_stub_falls_back_to_the_library(capsys):
    assert checks.micro_batches(stub) is checks.library_micro_batches
    assert checks.most_likely(stub) is checks.library_most_likely
    parts = checks.data_parallel((stub, stub))
    assert parts == (checks.library_sum, checks.library_sum_gradients)
    capsys.readouterr()


# micro_batches


def windows(tokens, numbers, config, begin=None):
    """Read the windows of these numbers, or those at the positions that `begin` gives."""
    size = config.block_size
    starts = [begin(n) if begin else checks.starts_of(n, 1, tokens, config)[0] for n in numbers]
    rows = np.stack([tokens.read(start, size + 1) for start in starts]).astype(np.int64)
    both = torch.from_numpy(rows)
    return both[:, :-1], both[:, 1:]


def sharing(first, begin=None, end=lambda step, batch, world: (step + 1) * batch, stride=None):
    """Make an answer from where it begins, where it ends and how far apart its pieces are."""

    def micro_batches(tokens, step, config, rank, world):
        size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
        start = first(step=step, rank=rank, batch=batch, size=size, world=world)
        apart = stride(size, world) if stride else size * world
        for place in range(start, end(step, batch, world), apart):
            at = (lambda n: begin(n, config)) if begin else None
            yield windows(tokens, range(place, place + size), config, at)

    return micro_batches


def strided(step, rank, batch, size, **_):
    return step * batch + rank * size


def neighbours(tokens, step, config, rank, world):
    """Give each process consecutive windows, in a list."""
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    each = batch // world
    first = step * batch + rank * each
    return [windows(tokens, range(n, n + size), config) for n in range(first, first + each, size)]


def dealt(tokens, step, config, rank, world):
    """Deal the windows to the processes one by one."""
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    mine = range(step * batch + rank, (step + 1) * batch, world)
    for piece in zip(*[iter(mine)] * size, strict=True):
        yield windows(tokens, piece, config)


def one_window_at_a_time(tokens, step, config, rank, world):
    batch = config.batch_tokens // config.block_size
    for number in range(step * batch + rank, (step + 1) * batch, world):
        yield windows(tokens, [number], config)


def the_rest_to_rank_0(tokens, step, config, rank, world):
    """Give rank 0 one micro-batch more than its share, and the last rank one fewer."""
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    pieces = list(range(step * batch, (step + 1) * batch, size))
    each = len(pieces) // world
    if world == 1:
        mine = pieces
    elif rank == 0:
        mine = pieces[: each + 1]
    else:
        mine = pieces[rank * each + 1 : (rank + 1) * each + 1]
    for first in mine:
        yield windows(tokens, range(first, first + size), config)


def whole_batch_each(tokens, step, config, rank, world):
    """Read a batch per process, as if the batch grew with their number."""
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    first = step * batch + rank * batch
    for place in range(first, first + batch, size):
        yield windows(tokens, range(place, place + size), config)


def in_tokens(tokens, step, config, rank, world):
    """Read as many windows as the batch has tokens."""
    size, batch = config.micro_batch_size, config.batch_tokens
    for first in range(step * batch + rank * size, (step + 1) * batch, world * size):
        yield windows(tokens, range(first, first + size), config)


def of_the_first_epoch(n, config):
    """Begin where the window of the same number in the first epoch begins."""
    recipe = checks.Recipe(1, config.block_size, config.block_size, config.seed)
    tokens = checks.Positions(100)
    return checks.starts_of(n % (99 // config.block_size), 1, tokens, recipe)[0]


def blocks_backwards(*arguments):
    """Rotate the ranks, and yield lists."""
    tokens, step, config, rank, world = arguments
    pieces = checks.library_micro_batches(tokens, step, config, (rank + step) % world, world)
    return [[x.clone(), y.clone()] for x, y in reversed(list(pieces))]


def all_ranks_read(tokens, step, config, rank, world):
    """Read every process's micro-batches, and yield a part of them."""
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    firsts = range(step * batch, (step + 1) * batch, size)
    pieces = [windows(tokens, range(n, n + size), config) for n in firsts]
    yield from pieces[rank::world]


def sliced(tokens, step, config, rank, world):
    """Read the whole step at once, and yield slices of it."""
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    x, y = windows(tokens, range(step * batch, (step + 1) * batch), config)
    for first in range(rank * size, batch, world * size):
        yield x[first : first + size], y[first : first + size]


def inputs_and_targets_apart(tokens, step, config, rank, world):
    """Read each input and its targets with two calls."""
    for x, _ in checks.library_micro_batches(
        checks.Positions(len(tokens)), step, config, rank, world
    ):
        halves = [
            np.stack([tokens.read(start + by, config.block_size) for start in x[:, 0].tolist()])
            for by in (0, 1)
        ]
        yield tuple(torch.from_numpy(half.astype(np.int64)) for half in halves)


def small_ids(*arguments):
    for x, y in checks.library_micro_batches(*arguments):
        yield x.int(), y.int()


def without_shift(*arguments):
    for x, _ in checks.library_micro_batches(*arguments):
        yield x, x


MICRO_BATCHES = [
    (checks.library_micro_batches, "passed"),
    (neighbours, "passed"),
    (dealt, "passed"),
    (blocks_backwards, "passed"),
    (inputs_and_targets_apart, "passed"),
    (all_ranks_read, "but it reads others"),
    (sliced, "then read only those"),
    (small_ids, "ids of torch.int32"),
    (lambda *a: None, "`yield` each micro-batch"),
    (lambda *a: next(iter(checks.library_micro_batches(*a))), "you return the first micro-batch"),
    (lambda *a: (x for x, _ in checks.library_micro_batches(*a)), "a pair of inputs and targets"),
    (lambda *a: ((x[0], y[0]) for x, y in checks.library_micro_batches(*a)), "inputs of shape"),
    (without_shift, "not the inputs moved by one token"),
    (
        sharing(lambda step, batch, **_: step * batch, stride=lambda size, world: size),
        "every process reads the whole batch",
    ),
    (sharing(lambda step, batch, **_: step * batch), "all processes read the same windows"),
    (
        sharing(lambda rank, size, **_: rank * size, end=lambda step, batch, world: batch),
        "those are the windows of step 0",
    ),
    (
        sharing(strided, begin=lambda n, config: (7 * n + 3) % 50),
        "where none of this step begins",
    ),
    (sharing(strided, begin=lambda n, config: n), "in the order of the file"),
    (sharing(strided, stride=lambda size, world: size), "windows are read twice"),
    (sharing(lambda step, batch, rank, **_: step * batch + rank), "windows are read twice"),
    (
        sharing(strided, end=lambda step, batch, world: (step + 2) * batch),
        "windows too many are read",
    ),
    (in_tokens, "batch_tokens counts tokens"),
    (whole_batch_each, "doesn't grow with `world`"),
    (one_window_at_a_time, "your micro-batches have [1] windows"),
    (the_rest_to_rank_0, "All must get equally many"),
    (
        sharing(strided, end=lambda step, batch, world: (step + 1) * batch - 1 - batch // 2),
        "aren't read by any process",
    ),
]


def test_micro_batches():
    assert_verdicts(checks.micro_batches, MICRO_BATCHES)


# data_parallel


def summing(reduce, alone=lambda tensor: tensor):
    """Make sum_over_processes from what it does with other processes, and without them."""

    def sum_over_processes(tensor):
        return reduce(tensor) if dist.is_initialized() else alone(tensor)

    return sum_over_processes


def reduced(tensor, times=1, **options):
    for _ in range(times):
        dist.all_reduce(tensor, **options)
    return tensor


def by_gathering(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return tensor.copy_(sum(parts))


def by_size(tensor):
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    return tensor


def to_rank_0(tensor):
    total = by_gathering(tensor.clone())
    return tensor.copy_(total) if dist.get_rank() == 0 else tensor


def on_rank_0_only(tensor):
    if dist.get_rank() == 0:
        dist.all_reduce(tensor)
    return tensor


def each_gradient(change, names=lambda model: model.parameters()):
    def sum_gradients(model):
        for parameter in names(model):
            change(parameter)

    return sum_gradients


def in_one_message(model):
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = checks.library_sum(torch.cat([gradient.flatten() for gradient in gradients]))
    pieces = flat.split([gradient.numel() for gradient in gradients])
    for gradient, piece in zip(gradients, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))


def assigned(parameter):
    parameter.grad = checks.library_sum(parameter.grad)


def averaged(parameter):
    checks.library_sum(parameter.grad)
    if dist.is_initialized():
        parameter.grad /= dist.get_world_size()


def by_name(model):
    return [parameter for _, parameter in model.named_parameters(remove_duplicate=False)]


def detached(parameter):
    checks.library_sum(parameter.grad.clone())


def weights(parameter):
    if dist.is_initialized():
        dist.all_reduce(parameter.data)


def asynchronous(tensor, waits=True):
    work = dist.all_reduce(tensor, async_op=True)
    if waits:
        work.wait()
    return tensor


def sum_all_at_once(model):
    """Start all sums, and wait for them afterwards."""
    if dist.is_initialized():
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work in works:
            work.wait()


def to_rank_0_and_back(tensor):
    dist.reduce(tensor, 0, async_op=True).wait()
    dist.broadcast(tensor, 0)
    return tensor


def only_reduced(tensor):
    dist.reduce(tensor, dst=0, op=dist.ReduceOp.SUM)
    return tensor


def one_of_each_shape(model):
    seen = set()
    for parameter in model.parameters():
        if parameter.shape not in seen:
            seen.add(parameter.shape)
            SUM(parameter.grad)


def broadcast(tensor):
    dist.broadcast(tensor, 0)
    return tensor


GRADIENTS = checks.library_sum_gradients
SUM = checks.library_sum


def ring(tensor, waits=True, batched=False, blocking=False):
    """Pass every rank's numbers once round the ring, and add them up on the way."""
    rank, world = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world, (rank - 1) % world
    sent = tensor.clone()
    for _ in range(world - 1):
        received = torch.empty_like(sent)
        if blocking:
            calls = []
            for call in (dist.send, dist.recv) if rank else (dist.recv, dist.send):
                call(sent, after) if call is dist.send else call(received, src=before)
        elif batched:
            calls = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, sent, after),
                    dist.P2POp(dist.irecv, received, before),
                ]
            )
        else:
            calls = [dist.isend(sent, dst=after), dist.irecv(received, src=before)]
        for call in calls if waits else ():
            call.wait()
        tensor += received
        sent = received
    return tensor


def received_only(tensor):
    dist.recv(torch.empty_like(tensor), 1 - dist.get_rank())


def returning_early(model):
    for parameter in model.parameters():
        SUM(parameter.grad)
        return


DATA_PARALLEL = [
    ((summing(ring), GRADIENTS), "passed"),
    ((summing(lambda tensor: ring(tensor, batched=True)), GRADIENTS), "passed"),
    ((summing(lambda tensor: ring(tensor, blocking=True)), GRADIENTS), "passed"),
    ((summing(lambda tensor: ring(tensor, waits=False)), GRADIENTS), "call `wait()`"),
    ((summing(received_only), GRADIENTS), "wait forever for a message that no process sends"),
    (
        (
            lambda tensor: tensor.mul_(dist.get_world_size()) if dist.is_initialized() else tensor,
            GRADIENTS,
        ),
        "so nothing is exchanged",
    ),
    ((SUM, returning_early), "by an early `return`"),
    ((SUM, each_gradient(lambda p: SUM(SUM(p.grad)))), "a tied matrix's gradient: it comes"),
    ((SUM, GRADIENTS), "passed"),
    ((by_size, each_gradient(assigned)), "passed"),
    ((summing(by_gathering), in_one_message), "passed"),
    ((summing(asynchronous), sum_all_at_once), "passed"),
    ((summing(to_rank_0_and_back), GRADIENTS), "passed"),
    ((summing(only_reduced), GRADIENTS), "only rank 0 has the sum of all 2"),
    ((SUM, one_of_each_shape), "the gradient of a gain, which has the shape of a bias"),
    ((SUM, each_gradient(lambda p: SUM(p.grad.data))), "passed"),
    (
        (SUM, lambda model: [SUM(p.grad) for p in model.parameters() if p.grad is not None]),
        "passed",
    ),
    ((summing(lambda t: asynchronous(t, waits=False)), GRADIENTS), "call `wait()`"),
    ((summing(lambda t: reduced(t, op=dist.ReduceOp.MAX)), GRADIENTS), "ReduceOp.SUM adds up"),
    ((summing(broadcast), GRADIENTS), "isn't the sum"),
    ((summing(lambda t: t.data.float() + reduced(t).zero_()), GRADIENTS), "isn't the sum"),
    ((SUM, each_gradient(lambda p: SUM(p.grad) if p.dim() else None)), "a number's gradient"),
    ((lambda tensor: reduced(tensor), GRADIENTS), "Ask dist.is_initialized() first"),
    (
        (summing(lambda tensor: dist.all_reduce(tensor)), GRADIENTS),
        "sum_over_processes returns None",
    ),
    ((lambda tensor: None, GRADIENTS), "sum_over_processes returns None"),
    ((summing(lambda t: reduced(t, op=dist.ReduceOp.AVG)), GRADIENTS), "The task asks for the sum"),
    ((summing(lambda t: reduced(t.clone())), GRADIENTS), "must change in place"),
    ((lambda tensor: tensor, GRADIENTS), "must change in place"),
    ((summing(to_rank_0), GRADIENTS), "only rank 0 has the sum of all 2"),
    ((summing(on_rank_0_only), GRADIENTS), "wait for each other forever"),
    ((summing(lambda t: reduced(t, times=2)), GRADIENTS), "2 times too large"),
    ((summing(lambda t: reduced(t).neg_()), GRADIENTS), "it isn't the sum over the 2"),
    ((lambda tensor: tensor.mul_(2), GRADIENTS), "on one process"),
    ((SUM, lambda model: None), "a tied matrix's gradient: each process still has its own"),
    ((SUM, each_gradient(detached)), "a tied matrix's gradient: each process still has its own"),
    ((SUM, each_gradient(averaged)), "so the gradients must be added up"),
    ((SUM, each_gradient(lambda p: SUM(p.grad), by_name)), "added up twice, once by each"),
    ((SUM, each_gradient(weights)), "changes the weights"),
    (
        (SUM, each_gradient(lambda p: SUM(p.grad) if p.dim() != 1 else None)),
        "a bias's gradient: each process still has its own",
    ),
    ((SUM, each_gradient(lambda p: SUM(p))), "changes the weights"),
]


def test_data_parallel():
    assert_verdicts(checks.data_parallel, DATA_PARALLEL)


def test_a_slow_process_is_no_deadlock():
    def slow(rank):
        time.sleep(rank)  # longer than the seconds below
        return SUM(torch.tensor(1.0)).item()

    assert checks.on_processes(2, slow, seconds=0.2) == [2.0, 2.0]


def test_a_process_that_never_ends_is_no_deadlock(monkeypatch):
    end = threading.Event()
    monkeypatch.setattr(ranks, "LONGEST", 0.3)
    with pytest.raises(DiagnosisError, match=r"aren't done after 0\.3 s"):
        checks.on_processes(2, lambda rank: end.wait(20), seconds=0.2)
    end.set()


def test_threads_stand_in_for_processes():
    sums = checks.on_processes(3, lambda rank: SUM(torch.tensor(float(rank))).item())
    assert sums == [3.0, 3.0, 3.0]
    assert not dist.is_initialized()


# most_likely


def rows_of(model, context, ending):
    row = torch.tensor([context + ending])[:, -model.config.block_size - 1 :]
    row = row.to(model.lm_head.weight.device)
    return row[:, :-1], row[:, 1:]


def choosing(loss, pick=min):
    """Choose by a number for each ending."""

    def most_likely(model, context, endings):
        values = [loss(model, context, ending) for ending in endings]
        return values.index(pick(values))

    return most_likely


def token_by_token(model, context, endings):
    """Add up the probabilities of one token after the other, and keep the best ending so far."""
    best, lowest = None, math.inf
    for place, ending in enumerate(endings):
        row = (*context, *ending)[-model.config.block_size - 1 :]
        ids = torch.tensor(row, device=model.lm_head.weight.device)
        logits = model(ids[None, :-1])[0]
        total = 0.0
        for back in range(1, len(ending) + 1):
            total -= logits[-back].softmax(-1)[row[-back]].log().item()
        if total / len(ending) < lowest:
            best, lowest = place, total / len(ending)
    return np.int64(best)


def five_endings(model, context, endings):
    return checks.library_most_likely(model, context, endings[:5])


def of_14_tokens(model, context, endings):
    losses = [
        checks.losses_of(model, (context + ending)[-14 : -len(ending)], ending).mean()
        if len(ending) < 14 and model.config.block_size == 13
        else model(torch.tensor([(context + ending)[-14:-1]])).mean()
        for ending in endings
    ]
    return losses.index(min(losses))


def on_the_cpu(model, context, endings):
    model(torch.tensor([context[:1]]))
    return checks.library_most_likely(model, context, endings)


def all_at_once(model, context, endings):
    """Score all endings in one padded batch, which masks what isn't an ending."""
    rows = [torch.tensor(context + ending)[-model.config.block_size - 1 :] for ending in endings]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    targets = tokens[:, 1:].clone()
    for target, row, ending in zip(targets, rows, endings, strict=True):
        target[: len(row) - 1 - len(ending)] = target[len(row) - 1 :] = -100
    tokens, targets = (ids.to(next(model.parameters()).device) for ids in (tokens, targets))
    logits = model(tokens[:, :-1]).transpose(1, 2)
    losses = F.cross_entropy(logits, targets, reduction="none").sum(1)
    return (losses / (targets >= 0).sum(1)).argmin()


def by_log_softmax(model, context, ending):
    x, y = rows_of(model, context, ending)
    every = model(x).log_softmax(-1).gather(-1, y[..., None])
    return -every[0, -len(ending) :].mean().item()


def in_bf16(model, context, ending):
    x, y = rows_of(model, context, ending)
    logits = model(x)[0, -len(ending) :].bfloat16()
    return F.cross_entropy(logits, y[0, -len(ending) :]).item()


def by_sum(model, context, ending):
    return by_log_softmax(model, context, ending) * len(ending)


def whole_row(model, context, ending):
    x, y = rows_of(model, context, ending)
    return F.cross_entropy(model(x)[0], y[0]).item()


def whole_row_by_ending(model, context, ending):
    return whole_row(model, context, ending) * (len(context) + len(ending) - 1) / len(ending)


def one_too_few(model, context, ending):
    row = torch.tensor([context + ending])[:, -model.config.block_size :]
    return F.cross_entropy(model(row[:, :-1])[0, -len(ending) :], row[0, -len(ending) :]).item()


def unshifted(model, context, ending):
    row = torch.tensor([context + ending])[:, -model.config.block_size :]
    return F.cross_entropy(model(row)[0, -len(ending) :], row[0, -len(ending) :]).item()


def alone(model, context, ending):
    x, y = rows_of(model, [], ending)
    return F.cross_entropy(model(x)[0], y[0]).item()


def without_first(model, context, ending):
    x, y = rows_of(model, context, ending)
    last = len(ending) - 1
    return F.cross_entropy(model(x)[0, -last:], y[0, -last:]).item()


def last_token(model, context, ending):
    return checks.losses_of(model, context, ending)[-1].item()


def short_context(model, context, ending):
    return checks.losses_of(model, context[-1:], ending).mean().item()


def uncropped(model, context, ending):
    row = torch.tensor([context + ending])
    return F.cross_entropy(model(row[:, :-1])[0, -len(ending) :], row[0, -len(ending) :]).item()


def first_tokens(model, context, ending):
    row = torch.tensor([context + ending])[:, : model.config.block_size + 1]
    return F.cross_entropy(model(row[:, :-1])[0, -len(ending) :], row[0, -len(ending) :]).item()


def growing_context(model, context, endings):
    for ending in endings:
        context += ending
    return 0


def of_the_shortest(model, context, endings):
    least = min(map(len, endings))
    return checks.library_most_likely(model, context, [ending[:least] for ending in endings])


CHOICES = [
    (checks.library_most_likely, "passed"),
    (all_at_once, "passed"),
    (choosing(by_log_softmax), "passed"),
    (token_by_token, "passed"),
    (on_the_cpu, "the ids stay on the CPU when the model is on a GPU"),
    (choosing(in_bf16), "nearly equally likely"),
    (choosing(lambda *a: round(by_log_softmax(*a), 2)), "don't round them"),
    (five_endings, "not for another with block_size 8"),
    (of_14_tokens, "is longer than block_size 8"),
    (lambda *a: None, "is the `return` missing"),
    (lambda *a: 1.5, "return the number of the ending"),
    (of_the_shortest, "as many tokens as the shortest ending has"),
    (choosing(by_sum), "compare the sums"),
    (choosing(by_log_softmax, pick=max), "the ending with the highest loss"),
    (choosing(whole_row), "the context's losses count too"),
    (choosing(whole_row_by_ending), "you divide by the length of the ending"),
    (choosing(one_too_few), "Keep the last block_size + 1 tokens"),
    (choosing(unshifted), "the logits at its own place"),
    (choosing(alone), "without their context"),
    (choosing(without_first), "the ending's first token is missing"),
    (choosing(last_token), "only the ending's last token counts"),
    (choosing(short_context), "the model must see all of it"),
    (choosing(uncropped), "because the ending is there. Your code raises an error (a sequence of"),
    (choosing(first_tokens), "because the ending is there"),
    (lambda *a: checks.library_most_likely(*a) + 1, "count the endings from 1"),
    (lambda *a: 0, "choices are not the ending"),
    (growing_context, "you change the lists"),
]


def test_most_likely():
    assert_verdicts(checks.most_likely, CHOICES)


# loss_scale

SCALES = {
    "passed": lambda size, total, world: size / total * world,
    "is the `return` missing": lambda size, total, world: None,
    "a number is expected, not str": lambda size, total, world: "0.5",
    "`world` times too small": lambda size, total, world: size / total,
    "DDP does that already": lambda size, total, world: size / total / world,
    "weighs all micro-batches alike": lambda size, total, world: 1.0,
    "upside down": lambda size, total, world: total / (size * world),
    "total // world rounds down": lambda size, total, world: size / (total // world),
    "inverted": lambda size, total, world: total / size,
    "must count `size` times": lambda size, total, world: world / total,
    "neither size nor world": lambda size, total, world: 1 / total,
    "divides by the number of processes": lambda size, total, world: size / world,
    "not that of the whole batch": lambda size, total, world: size * world,
    "// rounds down": lambda size, total, world: size // total * world,
    "the number is off for scale(3, 24, 4)": lambda size, total, world: 7.0,
    "times the batch's. Don't round the factor.": lambda size, total, world: round(
        size / total * world, 3
    ),
    "with micro-batches of different sizes on 3 process(es)": lambda size, total, world: (
        0.5 if total in (12, 24) else 7.0
    ),
}
RIGHT_SCALES = [
    lambda size, total, world: world * size / total,
    lambda size, total, world: size / (total / world),
    lambda size, total, world: Fraction(size * world, total),
    lambda size, total, world: np.float64(size) / total * world,
    lambda size, total, world: torch.tensor(size / total * world, dtype=torch.float64),
]


def test_loss_scale():
    assert_verdicts(checks.loss_scale, SCALES)
    assert_verdicts(checks.loss_scale, [(answer, "passed") for answer in RIGHT_SCALES])


def test_a_gradient_is_measured_in_units_of_the_batchs():
    assert checks.averaged_gradient(lambda size, total, world: size / total, [[3, 3], [6]]) == (
        pytest.approx(0.5)
    )


# fewest_gpus


def needing(per, rounding=math.ceil, reserve=lambda memory, reserved: memory - reserved):
    return lambda n, memory, reserved: rounding(per * n / reserve(memory, reserved))


GPUS = {
    "passed": needing(16),
    "is the `return` missing": lambda *a: None,
    "forgot what is reserved": needing(16, reserve=lambda memory, reserved: memory),
    "you round down": needing(16, rounding=math.floor),
    "the number of GPUs must be whole": needing(16, rounding=float),
    "the weights alone": needing(4),
    "weights in bf16": needing(2),
    "doesn't depend on `memory`": lambda n, memory, reserved: math.ceil(16 * n / 60e9),
    "leave out the two moments": needing(8),
    "leave something out": needing(12),
    "reserve that much only once": lambda n, memory, reserved: math.ceil(
        (16 * n + reserved) / memory
    ),
    "are reserved: you round down": (needing(16, rounding=round)),
    "it fits exactly": needing(16, rounding=lambda gpus: int(gpus) + 1),
    "math.ceil returns an int": needing(16, rounding=np.ceil),
    "you add the reserve": needing(16, reserve=lambda memory, reserved: memory + reserved),
    "GPUs needn't come in eights": needing(16, rounding=lambda n: 8 * math.ceil(n / 8)),
    "the number is off for 1e+11 parameters": lambda *a: 99,
    "the number is off for 7e+09 parameters": lambda *a: 25 if a[0] == 100e9 else 11,
}
RIGHT_GPUS = [
    lambda n, memory, reserved: int(-(-16 * n // (memory - reserved))),
    lambda n, memory, reserved: np.int64(np.ceil(16 * n / (memory - reserved))),
    lambda n, memory, reserved: math.ceil(sum([4 * n] * 4) / (memory - reserved)),
    lambda *a: torch.tensor(needing(16)(*a)),
    lambda n, memory, reserved: next(
        gpus for gpus in range(1, 10**6) if gpus * (memory - reserved) >= 16 * n
    ),
]


def test_fewest_gpus():
    assert_verdicts(checks.fewest_gpus, GPUS)
    assert_verdicts(checks.fewest_gpus, [(answer, "passed") for answer in RIGHT_GPUS])
