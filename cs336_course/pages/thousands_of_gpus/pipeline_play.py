"""Play schedules of a small pipeline with the simulator, and count what they hold."""

from collections.abc import Callable, Sequence
from typing import Any

from cs336_lib.bill import simulate
from cs336_lib.bill.models import model
from cs336_lib.bill.simulate import Cluster, Event, Operation, Workload
from cs336_lib.bill.traffic import Layout
from cs336_lib.system.datasheets import DATASHEET, LINKS

STAGES, MICRO_BATCHES = 4, 8
CLUSTER = Cluster(DATASHEET["h100"], LINKS["nvlink4"], LINKS["infiniband-ndr"])

Order = Callable[[int, int, int], Sequence[tuple[Any, int]]]
"""Returns the passes of a stage, as ("forward", 0), from its number, and the numbers of stages and
micro-batches."""


def work(
    schedule: Any, chunks: int = 1, stages: int = STAGES, micro_batches: int = MICRO_BATCHES
) -> Workload:
    """Return a step of Llama 3 70B, with micro-batches of one sequence. A machine is a stage."""
    ways = {"tp": CLUSTER.machine, "pp": stages, "micro_batches": micro_batches}
    layout = Layout(**ways, schedule=schedule, chunks=chunks)
    return Workload(model("llama3-70b").architecture, layout, seq=8192)


def play(schedule: Any, chunks: int = 1) -> list[Event]:
    """Return the passes of a schedule of the simulator."""
    return list(simulate.pipeline_events(work(schedule, chunks), CLUSTER))


def play_order(
    order: Order, stages: int = STAGES, micro_batches: int = MICRO_BATCHES
) -> list[Event]:
    """Return the passes of a schedule that a learner wrote.

    Raises:
        UserError: If its stages wait for each other forever.
    """

    def scheduled(layout: Layout, stage: int) -> list[Operation]:
        passes = order(stage, layout.pp, layout.micro_batches)
        return [Operation(kind, number, 0) for kind, number in passes]

    played = work("1f1b", stages=stages, micro_batches=micro_batches)
    return list(simulate.pipeline_events(played, CLUSTER, scheduled))


def seconds(events: Sequence[Event]) -> float:
    """Return when the last pass ends."""
    return max(event.end for event in events)


def idle(events: Sequence[Event], stage: int) -> float:
    """Return the share of the step in which a stage has nothing to do."""
    busy = sum(event.end - event.start for event in events if event.stage == stage)
    return 1 - busy / seconds(events)


def held(events: Sequence[Event], stage: int) -> float:
    """Return the most micro-batches whose activations a stage holds at one time.

    A forward pass stores the activations of its chunk, and the last pass of the same micro-batch
    and chunk frees them.
    """
    mine = [event for event in events if event.stage == stage]
    chunks = len({event.operation.chunk for event in mine})
    freed = {(each.operation.micro_batch, each.operation.chunk): each.end for each in mine}
    changes = [(event.start, 1) for event in mine if event.operation.kind == "forward"]
    now = most = 0
    for _, change in sorted([*changes, *((end, -1) for end in freed.values())]):
        now += change
        most = max(most, now)
    return most / chunks
