"""Pipelines as the simulator plays them, and one step of several GPUs as spans of time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cs336_course.pages.thousands_of_gpus.capstone import CLUSTER
from cs336_lib.accounting import BytesPerParameter
from cs336_lib.bill import simulate
from cs336_lib.bill.models import model
from cs336_lib.bill.simulate import Event, Workload
from cs336_lib.bill.traffic import Layout

STAGES, MICRO_BATCHES = 4, 8

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


GPU, LINK = "GPU", "link"


@dataclass(frozen=True)
class Span:
    """Work that occupies a GPU or a link for some time, in seconds."""

    lane: str
    kind: str
    start: float
    seconds: float

    @property
    def end(self) -> float:
        """Time at which the work is done."""
        return self.start + self.seconds


def length(spans: Sequence[Span]) -> float:
    """Return the seconds until everything is done."""
    return max(span.end for span in spans)


def data_parallel(
    forward: float, backward: float, all_reduce: float, blocks: int = 32
) -> list[Span]:
    """Return a step in which each block's gradients travel as soon as they exist.

    Args:
        forward: Seconds of the forward pass through all blocks.
        backward: Seconds of the backward pass.
        all_reduce: Seconds to all-reduce the gradients of all blocks.
        blocks: Number of blocks.
    """
    spans = [Span(GPU, "forward", i * forward / blocks, forward / blocks) for i in range(blocks)]
    free = 0.0
    for i in range(blocks):
        computed = Span(GPU, "backward", forward + i * backward / blocks, backward / blocks)
        sent = Span(LINK, "all-reduce", max(computed.end, free), all_reduce / blocks)
        free = sent.end
        spans += [computed, sent]
    return spans


def pipeline(
    stages: int,
    micro_batches: int,
    forward: float = 1.0,
    backward: float = 2.0,
    send: float = 0.0,
    work: Sequence[float] | None = None,
) -> list[Span]:
    """Return a step of a pipeline that runs all forward passes first (GPipe, Huang et al. 2019).

    Args:
        stages: Number of GPUs.
        micro_batches: Number of micro-batches.
        forward: Seconds of a stage's forward pass for one micro-batch.
        backward: Seconds of its backward pass.
        send: Seconds to send a micro-batch's activations to the next stage.
        work: Work of each stage as a multiple of the mean, if the stages aren't equal.
    """
    spans: list[Span] = []
    free = [0.0] * stages
    for kind, seconds in (("forward", forward), ("backward", backward)):
        order = range(stages) if kind == "forward" else range(stages)[::-1]
        for _ in range(micro_batches):
            arrived = 0.0
            for stage in order:
                took = seconds * (work[stage] if work else 1)
                span = Span(f"GPU {stage}", kind, max(arrived, free[stage]), took)
                spans.append(span)
                free[stage], arrived = span.end, span.end + send
    return spans


def busy(spans: Sequence[Span]) -> float:
    """Return the share of the step in which the mean GPU computes."""
    lanes = {span.lane for span in spans if span.lane.startswith(GPU)}
    computing = sum(span.seconds for span in spans if span.lane in lanes)
    return computing / len(lanes) / length(spans)


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


Way = tuple[float, float, float, Callable[[float], list[Span]]]


def bill(ways: Mapping[str, Way], useful: float, links: Mapping[str, float]) -> str:
    """Format what a GPU holds and sends, and the seconds and MFU of a step over each link.

    Args:
        ways: State, activations and sent bytes of each GPU, and the step for a bandwidth, by name.
        useful: Seconds of the step if a GPU only computed, and at its peak.
        links: Bytes per second that a GPU can send, by the link's name.
    """
    head = "".join(f"{name:>14}" for name in links)
    rows = [f"{'GB per GPU':16}{'state':>6}{'saved':>7}{'sent':>6}  s, MFU{head}"]
    for name, (state, saved, sent, step) in ways.items():
        steps = [length(step(bandwidth)) for bandwidth in links.values()]
        times = "".join(f"{seconds:9.2f}{useful / seconds:5.2f}" for seconds in steps)
        sizes = f"{state / 1e9:6.0f}{saved / 1e9:7.0f}{sent / 1e9:6.0f}"
        rows.append(f"{name:16}{sizes}{'':8}{times}")
    return "\n".join(rows)


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
