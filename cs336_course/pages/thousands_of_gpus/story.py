"""Pipelines pass by pass, the state under ZeRO, and an all-reduce in a ring."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from cs336_course.pages.thousands_of_gpus.capstone import CLUSTER
from cs336_lib.accounting import BytesPerParameter
from cs336_lib.bill import simulate
from cs336_lib.bill.models import model
from cs336_lib.bill.simulate import Workload
from cs336_lib.bill.traffic import Layout

STAGES = 4


class Operation(NamedTuple):
    """A pass of one micro-batch through a stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int


class Event(NamedTuple):
    """A pass on a stage, from its start to its end in seconds."""

    stage: int
    operation: Operation
    start: float
    end: float


def order(schedule: Literal["gpipe", "1f1b"], stage: int, micro_batches: int) -> list[Operation]:
    """Return the passes of a stage in the order in which it runs them."""
    forward = [Operation("forward", number) for number in range(micro_batches)]
    backward = [Operation("backward", number) for number in range(micro_batches)]
    ahead = micro_batches if schedule == "gpipe" else min(STAGES - stage - 1, micro_batches)
    pairs = zip(forward[ahead:], backward, strict=False)
    passes = [*forward[:ahead], *(one for pair in pairs for one in pair)]
    return passes + backward[micro_batches - ahead :]


def play(schedule: Literal["gpipe", "1f1b"], micro_batches: int = 8) -> list[Event]:
    """Return the passes of a step of Llama 3 70B in a schedule.

    A micro-batch is one sequence, and a machine is a stage. A pass starts when its stage is free
    and its input is there.
    """
    layout = Layout(tp=CLUSTER.machine, pp=STAGES, micro_batches=micro_batches)
    a = model("llama3-70b").architecture
    found = simulate.passes(Workload(a, layout, seq=8192), CLUSTER)
    queues = [order(schedule, stage, micro_batches) for stage in range(STAGES)]
    free, ends, events = [0.0] * STAGES, dict[tuple[int, Operation], float](), list[Event]()
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                one = queue[0]
                before = stage - 1 if one.kind == "forward" else stage + 1
                if before == STAGES:  # the last stage turns around
                    before, one_before = stage, Operation("forward", one.micro_batch)
                else:
                    one_before = one
                ready = 0.0 if before < 0 else ends.get((before, one_before))
                if ready is None:
                    break
                layer = sum(found.forward if one.kind == "forward" else found.backward)
                takes = a.n_layer / STAGES * layer
                if stage == STAGES - 1:
                    takes += sum(found.output) * (1 if one.kind == "forward" else 2)
                start = max(free[stage], ready)
                free[stage] = ends[stage, one] = start + takes
                events.append(Event(stage, queue.pop(0), start, free[stage]))
    return events


def seconds(events: Sequence[Event]) -> float:
    """Return when the last pass ends."""
    return max(event.end for event in events)


def idle(events: Sequence[Event], stage: int) -> float:
    """Return the share of the step in which a stage has nothing to do."""
    busy = sum(event.end - event.start for event in events if event.stage == stage)
    return 1 - busy / seconds(events)


def held(events: Sequence[Event], stage: int) -> int:
    """Return the most micro-batches whose activations a stage holds at one time.

    A forward pass stores them, and the backward pass of the same micro-batch frees them.
    """
    now = most = 0
    for event in sorted(events, key=lambda event: event.start):
        if event.stage == stage:
            now += 1 if event.operation.kind == "forward" else -1
            most = max(most, now)
    return most


def zero_state(
    per: BytesPerParameter, parameters: float, gpus: int, stage: int
) -> dict[str, float]:
    """Return the GB of each part of the state that one GPU holds under a stage of ZeRO."""
    sizes = {"weights": (3, per.weights), "gradients": (2, per.gradient)}
    sizes["master, moments"] = (1, per.master + per.state)
    return {
        part: size * parameters / (gpus if stage >= first else 1) / 1e9
        for part, (first, size) in sizes.items()
    }


def ring_all_reduce(values: Sequence[Sequence[float]]) -> Iterator[tuple[str, list[list[float]]]]:
    """Yield what each GPU holds after each turn of an all-reduce in a ring.

    In each turn every GPU sends one part to the next GPU. The first n - 1 turns are a
    reduce-scatter, in which the receiver adds, and the others an all-gather, in which it stores.

    Args:
        values: The numbers of each GPU, as many as there are GPUs.
    """
    held, n = [list(row) for row in values], len(values)
    for turn in range(2 * (n - 1)):
        adds = turn < n - 1
        sent = [(rank, (rank - turn) % n, held[rank][(rank - turn) % n]) for rank in range(n)]
        for rank, part, value in sent:
            receiver = held[(rank + 1) % n]
            receiver[part] = receiver[part] + value if adds else value
        yield ("reduce-scatter" if adds else "all-gather"), [list(row) for row in held]
