"""Simulate a training step on a cluster, event by event."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, NamedTuple

from cs336_lib import accounting
from cs336_lib.accounting import Architecture
from cs336_lib.bill import traffic
from cs336_lib.bill.memory import Recompute, again, peak
from cs336_lib.bill.network import Cluster as Cluster
from cs336_lib.bill.network import Efficiency as Efficiency
from cs336_lib.bill.traffic import Layout


@dataclass(frozen=True)
class Workload:
    """A step's model and passes.

    Attributes:
        architecture: Shape of the model.
        layout: How it is spread over the devices.
        seq: Tokens in a sequence.
        recompute: What the backward pass computes again (`memory.again`).
        fused_attention: Whether attention never stores its scores (Dao et al. 2022).
        sequence: Whether tensor parallelism also splits norms and residuals.
        overlap: Whether gradients and weights travel between replicas during the passes.
        async_tensor: Whether the sums of tensor parallelism travel during the matmuls that they are
            for, cut into slices (Wang et al. 2023; "async TP" in torchtitan).
    """

    architecture: Architecture
    layout: Layout
    seq: int
    recompute: Recompute = "none"
    fused_attention: bool = True
    sequence: bool = True
    overlap: bool = True
    async_tensor: bool = False


class Pass(NamedTuple):
    """Seconds of a pass of one micro-batch, by what the device does.

    Attributes:
        matrices: Matmuls with weights.
        attention: Matmuls of queries, keys and values.
        elementwise: Operators that are limited by the memory bandwidth.
        tensor: Waiting for the sums of tensor parallelism.
        expert: Waiting for tokens on the way to experts and back.
        context: Waiting for the keys and values of other parts of the sequence.
    """

    matrices: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    tensor: float = 0.0
    expert: float = 0.0
    context: float = 0.0

    def times(self, factor: float) -> "Pass":
        """Return this pass, repeated."""
        return Pass(*(factor * seconds for seconds in self))

    def plus(self, other: "Pass") -> "Pass":
        """Return this pass followed by another."""
        return Pass(*map(sum, zip(self, other, strict=True)))


# Reads and writes of numbers of the residual stream's width in a block's forward pass: two norms
# (read, write), two residual sums (two reads, write), and casts and layouts of attention's inputs.
RESIDUAL_ACCESSES, INNER_ACCESSES = 12, 5  # and around the MLP's inner activation, and q, k, v
SCORE_ACCESSES = 7  # scale, mask, softmax and dropout of stored scores, and their matmuls
LOGIT_BYTES = 12  # a logit is written in bf16, and its fp32 softmax is written and read
UPDATE_BYTES = 30  # AdamW reads and writes fp32 weights and moments, and writes bf16 weights


def computing_pass(work: Workload, cluster: Cluster) -> Pass:
    """Return the seconds in which the forward pass of one block computes, for one micro-batch."""
    a, layout, speed = work.architecture, work.layout, cluster.efficiency
    tokens = layout.micro_batch * work.seq / layout.cp
    matrices = accounting.matmul_parameters(a) - a.vocab_size * a.n_embd
    computed: accounting.Convention = "causal" if work.fused_attention else "palm"
    scores = accounting.attention_flops(a, work.seq, computed) / a.n_layer
    kernel = speed.attention if work.fused_attention else 1.0
    width = a.n_head * a.qk_dim + 2 * a.n_kv_head * a.head_dim + 3 * inner_width(a)
    split = layout.tp if work.sequence else 1
    values = RESIDUAL_ACCESSES * a.n_embd / split + INNER_ACCESSES / 2 * width / layout.tp
    if not work.fused_attention:
        values += SCORE_ACCESSES * a.n_head * work.seq / layout.tp
    moved = traffic.LOW * tokens * values
    flop = tokens / layout.tp / cluster.matmul_speed  # seconds for one FLOP per token
    return Pass(
        matrices=flop * 2 * matrices / a.n_layer,
        attention=flop * scores / kernel,
        elementwise=moved / (cluster.device.bandwidth * speed.memory),
    )


def waiting_pass(work: Workload, cluster: Cluster, computing: Pass, pairs: int = 1) -> Pass:
    """Return the seconds that a pass of one block waits for other devices.

    The way to experts and back can't overlap in one pass, and the sums of tensor parallelism only
    overlap with `async_tensor`. The keys and values of other parts of the sequence travel during
    the matmuls. If groups of experts are on different machines, a token travels to each of its
    groups once, and then inside of the machine at the same time (DeepSeek-AI 2024, section 3.2.2).

    Args:
        work: The model and its layout.
        cluster: The devices and links.
        computing: What the pass computes.
        pairs: How often keys and values travel: once forward, and twice backward with their
            gradients.
    """
    a, layout = work.architecture, work.layout
    hides = cluster.efficiency.overlap * (computing.matrices + computing.attention)
    tokens = layout.micro_batch * work.seq / layout.cp
    residual = traffic.LOW * tokens * a.n_embd
    sums = 2 * traffic.all_reduce_bytes(residual, layout.tp) / cluster.bandwidth(layout.tp)
    many = a.n_group and layout.tp * layout.ep > cluster.machine
    copies = min(a.n_active, a.n_group) if many else a.n_active
    chosen = copies * residual / layout.tp * a.expert_layers / a.n_layer
    experts = 2 * traffic.all_gather_bytes(chosen, layout.ep)
    pair = traffic.LOW * tokens * traffic.kv_width(a)
    others = pairs * (layout.cp - 1) * pair / layout.tp
    return Pass(
        tensor=sums - work.async_tensor * cluster.efficiency.async_tensor * min(sums, hides),
        expert=experts / cluster.bandwidth(layout.ep, layout.tp, "all-to-all"),
        context=max(0.0, others / cluster.bandwidth(layout.cp, layout.tp) - hides),
    )


def inner_width(a: Architecture) -> float:
    """Return the mean inner width of a layer's MLPs that one token meets."""
    experts = (a.n_active + a.n_shared) * a.expert_width
    return (a.dense_layers * a.mlp_width + a.expert_layers * experts) / a.n_layer


def layers_of(n_layer: int, places: int) -> list[int]:
    """Return the layers in each chunk of the model, with fewer at its ends.

    The ends also have the embedding and the output matrix.
    """
    layers, more = divmod(n_layer, places)
    first = (places - more) // 2
    return [layers + (first <= place < first + more) for place in range(places)]


class LayerPasses(NamedTuple):
    """Passes of a layer and of the output matrix."""

    forward: Pass
    backward: Pass
    output: Pass
    output_back: Pass


def layer_passes(work: Workload, cluster: Cluster) -> LayerPasses:
    """Return the passes of a layer and of the output matrix for one micro-batch.

    The backward pass computes gradients of inputs and of weights. Sums and experts wait in it as
    often as in the forward pass. Keys and values travel again, and so do their gradients.
    """
    a, layout = work.architecture, work.layout
    computing = computing_pass(work, cluster)
    forward = computing.plus(waiting_pass(work, cluster, computing))
    repeated = forward if work.recompute == "full" else repeated_pass(work, cluster, computing)
    gradients = computing.times(2)
    backward = gradients.plus(waiting_pass(work, cluster, gradients, pairs=2)).plus(repeated)
    tokens = layout.micro_batch * work.seq / layout.cp
    moved = LOGIT_BYTES * tokens * a.vocab_size / layout.tp
    output = Pass(
        2 * tokens * a.n_embd * a.vocab_size / layout.tp / cluster.matmul_speed,
        elementwise=moved / (cluster.device.bandwidth * cluster.efficiency.memory),
    )
    return LayerPasses(forward, backward, output, output.times(2))


def repeated_pass(work: Workload, cluster: Cluster, computing: Pass) -> Pass:
    """Return what the backward pass of a block computes again, if it keeps the sums."""
    repeats = again(work.recompute, "flash" if work.fused_attention else "eager")
    elementwise = computing.elementwise
    if not repeats.elementwise:  # only that of stored scores
        fused = computing_pass(replace(work, fused_attention=True), cluster)
        elementwise = (elementwise - fused.elementwise) * repeats.attention
    return Pass(
        computing.matrices * repeats.matrices, computing.attention * repeats.attention, elementwise
    )


Kind = Literal["forward", "backward"]


class Operation(NamedTuple):
    """A pass of one micro-batch through one chunk of a stage."""

    kind: Kind
    micro_batch: int
    chunk: int


def order(layout: Layout, stage: int) -> Iterator[Operation]:
    """Yield the passes of a stage in the order of its schedule.

    1F1B and its interleaved form follow Narayanan et al. (2021, section 2.2). Interleaving needs a
    multiple of `pp` micro-batches.
    """
    total = layout.micro_batches * layout.chunks

    def operation(number: int, kind: Kind) -> Operation:
        if layout.chunks == 1:
            return Operation(kind, number, 0)
        group, place = divmod(number, layout.pp * layout.chunks)
        chunk, within = divmod(place, layout.pp)
        chunk = chunk if kind == "forward" else layout.chunks - 1 - chunk
        return Operation(kind, group * layout.pp + within, chunk)

    ahead = layout.pp - stage - 1
    if layout.chunks > 1:
        ahead = 2 * ahead + (layout.chunks - 1) * layout.pp
    ahead = total if layout.schedule == "gpipe" else min(ahead, total)
    for number in range(ahead):
        yield operation(number, "forward")
    for number in range(ahead, total):
        yield operation(number, "forward")
        yield operation(number - ahead, "backward")
    for number in range(total - ahead, total):
        yield operation(number, "backward")


def pass_seconds(work: Workload, cluster: Cluster) -> dict[Kind, list[float]]:
    """Return the seconds of each kind of pass through each chunk of the model."""
    forward, backward, output, output_back = map(sum, layer_passes(work, cluster))
    return {
        "forward": at_places(work, forward, output),
        "backward": at_places(work, backward, output_back),
    }


def at_places(work: Workload, layer: float, output: float) -> list[float]:
    """Return the seconds of each chunk from those of a layer and of the output matrix."""
    layers = layers_of(work.architecture.n_layer, work.layout.pp * work.layout.chunks)
    seconds = [count * layer for count in layers]
    seconds[-1] += output
    return seconds


class Event(NamedTuple):
    """A pass on a stage, from its start to its end in seconds."""

    stage: int
    operation: Operation
    start: float
    end: float


def pipeline_events(work: Workload, cluster: Cluster) -> Iterator[Event]:
    """Run the passes of a step on all stages, and yield them in an order in which they can start.

    A pass starts when its stage is free and its input has arrived.
    """
    layout, seconds = work.layout, pass_seconds(work, cluster)
    residual = traffic.LOW * layout.micro_batch * work.seq / layout.cp
    residual *= work.architecture.n_embd / layout.tp
    apart = layout.tp * layout.cp * layout.dp  # devices from a stage to the next
    hop = residual / cluster.bandwidth(layout.pp, apart) if layout.pp > 1 else 0.0
    last = layout.pp * layout.chunks - 1
    ended: dict[tuple[Kind, int, int], float] = {}  # by pass, micro-batch and place in the model

    def arrival(kind: Kind, number: int, place: int) -> float | None:
        if kind == "forward" and place == 0:
            return 0.0
        if kind == "backward" and place == last:
            return ended.get(("forward", number, place))
        sent = ended.get((kind, number, place - 1 if kind == "forward" else place + 1))
        return None if sent is None else sent + hop

    queues = [deque(order(layout, stage)) for stage in range(layout.pp)]
    free = [0.0] * layout.pp
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                kind, number, chunk = queue[0]
                place = chunk * layout.pp + stage
                ready = arrival(kind, number, place)
                if ready is None:
                    break
                start = max(free[stage], ready)
                free[stage] = ended[kind, number, place] = start + seconds[kind][place]
                yield Event(stage, queue.popleft(), start, free[stage])


def pipeline_seconds(work: Workload, cluster: Cluster) -> float:
    """Return when the last pass of a step ends.

    A long step repeats itself: after its first 2 `pp` micro-batches, each further `pp` of them take
    equally long. So we run no more than 4 `pp`.
    """
    layout = work.layout

    def ends(passes: int) -> float:
        shorter = replace(work, layout=replace(layout, micro_batches=passes))
        return max(event.end for event in pipeline_events(shorter, cluster))

    groups, left = divmod(layout.micro_batches, layout.pp)
    if groups <= 3:
        return ends(layout.micro_batches)
    start = ends(2 * layout.pp + left)
    return start + (groups - 2) * (ends(3 * layout.pp + left) - start)


def dualpipe_seconds(work: Workload, cluster: Cluster) -> float:
    """Return the seconds of a step with DualPipe, for the slowest device.

    A device has a stage of each half of the model, and the micro-batches enter from both ends. It
    runs forward passes of one stage together with backward passes of the other, so that each
    computes while tokens of the other travel to experts. `pp` passes of each kind remain alone.
    The idle time is that of DeepSeek-AI (2024, table 2).
    """
    pp, total = work.layout.pp, work.layout.micro_batches
    found, layers = layer_passes(work, cluster), layers_of(work.architecture.n_layer, pp)
    travel = found.forward.expert + found.backward.expert  # of a layer
    slowest = 0.0
    # The gradient of a matrix takes as long as its product.
    gradients = at_places(work, found.forward.matrices, found.output.matrices)
    places = (*pass_seconds(work, cluster).values(), gradients)
    for stage in range(pp // 2):
        pair = (stage, pp - 1 - stage)
        forward, backward, weights = (sum(seconds[one] for one in pair) / 2 for seconds in places)
        travels = travel * sum(layers[one] for one in pair) / 2
        both = max(forward + backward - travels, travels)
        idle = (pp / 2 - 1) * (both + backward - 3 * weights)
        slowest = max(slowest, (total - pp) * both + pp * (forward + backward) + idle)
    return slowest


def data_seconds(work: Workload, cluster: Cluster) -> tuple[float, float]:
    """Return the seconds in which weights and gradients travel in a step, by pass.

    The first are those of the forward passes, and the second those of the backward passes.
    """
    forward = backward = 0.0
    for of in traffic.replicas(work.architecture, work.layout):
        speed = cluster.bandwidth(of.size, of.stride)
        weights, gradients = traffic.pass_bytes(work.layout, of)
        forward, backward = forward + weights / speed, backward + gradients / speed
    return forward, backward


def hiding_seconds(work: Workload, cluster: Cluster) -> tuple[float, float]:
    """Return the seconds of forward and backward passes during which data may travel for free.

    What is sent once in a step has the passes of one micro-batch for it. ZeRO-2 sends gradients in
    every backward pass, and ZeRO-3 also gathers weights in every pass.
    """
    if not work.overlap:
        return 0.0, 0.0
    layout, found = work.layout, layer_passes(work, cluster)
    layers = work.architecture.n_layer
    forward = sum(found.forward) * layers + sum(found.output)
    backward = sum(found.backward) * layers + sum(found.output_back)
    free = cluster.efficiency.overlap / layout.pp
    passes = layout.micro_batches
    return (
        free * forward * (passes if layout.zero == 3 else 1),
        free * backward * (passes if layout.zero >= 2 else 1),
    )


def exposed_seconds(work: Workload, cluster: Cluster) -> float:
    """Return the seconds of a step in which devices only wait for weights and gradients."""
    sent, free = data_seconds(work, cluster), hiding_seconds(work, cluster)
    return sum(max(0.0, a - b) for a, b in zip(sent, free, strict=True))


@dataclass(frozen=True)
class Step:
    """A simulated training step.

    Attributes:
        parts: Seconds of a device, by kind. It computes "matmuls" and "elementwise" operators,
            waits for "tensor", "expert" and "context" parallelism inside of passes, for the
            "pipeline", and for "data" parallelism while no device computes. The "update" is the
            optimizer's.
        mfu: Model FLOPs utilization, in the convention "palm" of `accounting`.
    """

    parts: dict[str, float]
    mfu: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return sum(self.parts.values())


# Stated over simulated seconds of a step, for the middle 8 of 10 papers. Each was left out of the
# fit of the constants before its own steps were simulated (python -m tools.fit_simulator).
SPREAD = (0.82, 1.24)


def interval_of(seconds: float) -> tuple[float, float]:
    """Return how long a simulated step may really take, judged by papers that weren't fitted."""
    return SPREAD[0] * seconds, SPREAD[1] * seconds


def simulate(work: Workload, cluster: Cluster) -> Step:
    """Simulate a step.

    Raises:
        UserError: If the model doesn't fit the layout.
    """
    a, layout, speed = work.architecture, work.layout, cluster.efficiency
    traffic.require_fit(a, layout, work.seq)
    forward, backward, output, output_back = layer_passes(work, cluster)
    busy = forward.plus(backward).times(a.n_layer).plus(output).plus(output_back)
    busy = busy.times(layout.micro_batches / layout.pp)
    if layout.schedule == "dualpipe":
        hidden = min(busy.expert, sum(busy) - busy.expert) * (1 - layout.pp / layout.micro_batches)
        busy = busy._replace(expert=busy.expert - hidden)
        idle = dualpipe_seconds(work, cluster) - sum(busy)
    else:
        idle = pipeline_seconds(work, cluster) - sum(busy)
    parameters = sum(traffic.layer_parameters(a, layout))
    parameters += a.vocab_size * a.n_embd / layout.tp
    held = parameters / (layout.dp * layout.cp if layout.zero else 1)
    parts = {
        "matmuls": busy.matrices + busy.attention,
        "elementwise": busy.elementwise,
        "tensor": busy.tensor,
        "expert": busy.expert,
        "context": busy.context,
        "pipeline": idle if idle > 1e-9 * sum(busy) else 0.0,  # less is rounding
        "data": exposed_seconds(work, cluster),
        "update": UPDATE_BYTES * held / (cluster.device.bandwidth * speed.memory),
    }
    flops = layout.batch * work.seq * accounting.train_flops_per_token(a, work.seq)
    peak = layout.devices * cluster.device.peak_flops["bf16"]
    return Step(parts, flops / (sum(parts.values()) * peak))


# Memory of a device


def memory(work: Workload) -> dict[str, float]:
    """Return the peak bytes of a device by kind, in mixed precision and with AdamW."""
    return peak(
        work.architecture,
        work.layout,
        work.seq,
        recompute=work.recompute,
        attention="flash" if work.fused_attention else "eager",
        sequence=work.sequence,
    )


# Failures

# Llama 3 405B had 419 unexpected interruptions in 54 days on 16,384 H100s (Llama team 2024,
# section 3.3.4).
FAILURES_PER_DEVICE_HOUR = 419 / (54 * 24 * 16384)


def best_interval(devices: int, save: float, rate: float = FAILURES_PER_DEVICE_HOUR) -> float:
    """Return the seconds between checkpoints that lose least time (Young 1974).

    Args:
        devices: Number of devices.
        save: Seconds that writing a checkpoint stops the run.
        rate: Failures per device and hour.
    """
    return (2 * save * 3600 / (rate * devices)) ** 0.5


def goodput(
    devices: int,
    save: float,
    restart: float,
    interval: float,
    rate: float = FAILURES_PER_DEVICE_HOUR,
) -> float:
    """Return the share of the time in which a run makes progress that lasts.

    Each failure costs a restart and on average half the time since the last checkpoint.
    """
    between = 3600 / (rate * devices)  # seconds from a failure to the next
    lost = save / interval + (restart + interval / 2) / between
    return 1 / (1 + lost)


def candidates(
    work: Workload, cluster: Cluster, devices: int, batch: int, fixed: Mapping[str, Any]
) -> Iterator[Workload]:
    """Yield the layouts of a model on a number of devices that fit into memory.

    Args:
        work: The model. Its layout and recomputation are replaced.
        cluster: The devices.
        devices: Number of devices.
        batch: Sequences in a step.
        fixed: Fields of `Layout` and `recompute` that every layout has.
    """
    a, cp, schedule = work.architecture, fixed.get("cp", 1), fixed.get("schedule", "1f1b")

    def tried(name: str, usual: Iterable[Any]) -> list[Any]:
        return [fixed[name]] if name in fixed else list(usual)

    stages = range(1, min(64, a.n_layer) + 1)
    for tp, pp in product(tried("tp", (1, 2, 4, 8)), tried("pp", stages)):
        dp, left = divmod(devices, tp * pp * cp)
        if left or batch % dp or dp != fixed.get("dp", dp):
            continue
        spread = math.gcd(max(1, a.n_expert), dp)  # the most devices that share the experts
        for size, chunks, zero, ep in product(
            tried("micro_batch", (1, 2, 4)),
            tried("chunks", (1, 2, 4)),
            tried("zero", (1, 3) if pp == 1 else (1,)),
            tried("ep", sorted({min(spread, 8), spread})),
        ):
            if batch // dp % size or chunks > 1 == pp or pp * chunks > a.n_layer:
                continue
            layout = Layout(
                dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, zero=zero, micro_batch=size, chunks=chunks,
                micro_batches=batch // dp // size,
                schedule=traffic.schedule_of(schedule, chunks),
            )  # fmt: skip
            if traffic.misfit(a, layout, work.seq):
                continue
            for recompute in tried("recompute", ("none", "selective", "full")):
                candidate = replace(work, layout=layout, recompute=recompute)
                if sum(memory(candidate).values()) <= 0.9 * cluster.device.memory:
                    yield candidate
                    break  # recomputing more is slower


def sweep(
    work: Workload,
    cluster: Cluster,
    devices: int,
    batch: int,
    fixed: Mapping[str, Any] | None = None,
) -> list[tuple[Workload, Step]]:
    """Return the layouts that fit with their steps, the fastest first.

    The arguments are those of `candidates`.
    """
    tried = candidates(work, cluster, devices, batch, fixed or {})
    return sorted(((w, simulate(w, cluster)) for w in tried), key=lambda pair: pair[1].seconds)
