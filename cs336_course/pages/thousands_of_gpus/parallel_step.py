"""Follow one training step on several GPUs: what computes, and what travels when.

Each function returns the spans of a step. They assume that blocks take equal times, that a GPU
computes and sends at the same time unless it has to wait, and that a link carries one transfer
after the other at its full bandwidth.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cs336_lib.accounting import BytesPerParameter

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


def gradients_sharded(forward: float, backward: float, half: float, blocks: int = 32) -> list[Span]:
    """Return a step of ZeRO-2, which all-gathers the updated weights during the next forward pass.

    The first gathers bring what the step before has updated.

    Args:
        forward: Seconds of the forward pass through all blocks.
        backward: Seconds of the backward pass.
        half: Seconds of the all-gather of all weights, and of the reduce-scatter of the gradients.
        blocks: Number of blocks.
    """
    spans: list[Span] = []
    free = computed = 0.0
    for _ in range(blocks):
        gathered = Span(LINK, "all-gather", free, half / blocks)
        free = gathered.end
        block = Span(GPU, "forward", max(free, computed), forward / blocks)
        computed = block.end
        spans += [gathered, block]
    for _ in range(blocks):
        block = Span(GPU, "backward", computed, backward / blocks)
        computed = block.end
        scattered = Span(LINK, "reduce-scatter", max(free, computed), half / blocks)
        free = scattered.end
        spans += [block, scattered]
    return spans


def fully_sharded(forward: float, backward: float, gather: float, blocks: int = 32) -> list[Span]:
    """Return a step of ZeRO-3, which gathers a block's weights while the block before computes.

    Args:
        forward: Seconds of the forward pass through all blocks.
        backward: Seconds of the backward pass.
        gather: Seconds to all-gather all weights once. A reduce-scatter of the gradients takes as
            long.
        blocks: Number of blocks.
    """
    spans = [Span(LINK, "all-gather", 0.0, gather / blocks)]
    passes = [("forward", forward / blocks)] * blocks + [("backward", backward / blocks)] * blocks
    arrived = free = spans[0].end
    computed = 0.0
    for number, (kind, seconds) in enumerate(passes, start=1):
        block = Span(GPU, kind, max(arrived, computed), seconds)
        computed = block.end
        spans.append(block)
        if number < len(passes):
            spans.append(Span(LINK, "all-gather", max(free, block.start), gather / blocks))
            arrived = free = spans[-1].end
        if kind == "backward":
            spans.append(Span(LINK, "reduce-scatter", max(free, block.end), gather / blocks))
            free = spans[-1].end
    return spans


def tensor_parallel(
    forward: float, backward: float, all_reduce: float, blocks: int = 32
) -> list[Span]:
    """Return a step that waits for an all-reduce after each half of a block, in both passes.

    Args:
        forward: Seconds of the forward pass through all blocks.
        backward: Seconds of the backward pass.
        all_reduce: Seconds of all all-reduces of the step together.
        blocks: Number of blocks.
    """
    spans: list[Span] = []
    for kind, seconds in (("forward", forward), ("backward", backward)):
        for _ in range(2 * blocks):
            start = spans[-1].end if spans else 0.0
            half = Span(GPU, kind, start, seconds / blocks / 2)
            spans += [half, Span(LINK, "all-reduce", half.end, all_reduce / blocks / 4)]
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


def sending(size: float, links: Mapping[str, float]) -> str:
    """Format a number of bytes, and the seconds to send them over each link."""
    times = ", ".join(f"{size / speed:.3f} s over {name}" for name, speed in links.items())
    return f"{size / 1e9:.1f} GB: {times}"


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
