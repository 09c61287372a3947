"""Pipelines as the simulator plays them, the state under ZeRO, and an all-reduce in a ring."""

from collections.abc import Iterator, Sequence

from cs336_course.pages.thousands_of_gpus.capstone import CLUSTER
from cs336_lib.accounting import BytesPerParameter
from cs336_lib.bill import simulate
from cs336_lib.bill.models import model
from cs336_lib.bill.simulate import Event, Workload
from cs336_lib.bill.traffic import Layout, Schedule

STAGES = 4


def play(schedule: Schedule, micro_batches: int = 8) -> list[Event]:
    """Return the passes of a step of Llama 3 70B in a schedule of the simulator.

    A micro-batch is one sequence, and a machine is a stage.
    """
    layout = Layout(tp=CLUSTER.machine, pp=STAGES, micro_batches=micro_batches, schedule=schedule)
    work = Workload(model("llama3-70b").architecture, layout, seq=8192)
    return list(simulate.pipeline_events(work, CLUSTER))


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
