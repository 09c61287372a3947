"""Simulate a training step on a cluster, and how often a long run fails."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from cs336_lib import accounting
from cs336_lib.bill import traffic
from cs336_lib.bill.memory import peak
from cs336_lib.bill.network import Cluster as Cluster
from cs336_lib.bill.network import Efficiency as Efficiency
from cs336_lib.bill.traffic import RECOMPUTE, Layout
from cs336_lib.bill.traffic import Workload as Workload
from cs336_lib.config import UserError

memory = peak  # the bytes of a device, by kind


class Pass(NamedTuple):
    """Seconds of a pass of one micro-batch, by what the device does.

    Attributes:
        matmuls: Matmuls with weights.
        attention: Matmuls of queries, keys and values.
        elementwise: Operators that are limited by the memory bandwidth.
        tensor: Waiting for the sums of tensor parallelism.
        expert: Waiting for tokens on the way to experts and back.
        context: Waiting for the keys and values of other parts of the sequence.
    """

    matmuls: float = 0.0
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


# How often a block's forward pass reads or writes a number, in programs with fused operators: the
# residual stream in two norms and two sums, and queries, keys, values and the MLP's inner width.
RESIDUAL_ACCESSES, INNER_ACCESSES = 10, 1
SCORE_ACCESSES = 7  # scale, mask, softmax and dropout of stored scores, and their matmuls
LOGIT_BYTES = 4  # a logit is written in bf16, and read by a fused loss
UPDATE_BYTES = 30  # AdamW reads and writes fp32 weights and moments, and writes bf16 weights


def computing(work: Workload, cluster: Cluster) -> Pass:
    """Return the seconds in which the forward pass of one block computes, for one micro-batch."""
    a, tp = work.architecture, work.layout.tp
    kind: accounting.Convention = "causal" if work.fused_attention else "palm"
    scores = accounting.attention_flops(a, work.seq, kind) / a.n_layer
    matrices = accounting.matmul_parameters(a) - a.vocab_size * a.n_embd
    experts = (a.n_active + a.n_shared) * a.expert_width
    inner = (a.dense_layers * a.mlp_width + a.expert_layers * experts) / a.n_layer
    width = a.n_head * a.qk_dim + 2 * a.n_kv_head * a.head_dim + 3 * inner
    values = RESIDUAL_ACCESSES * a.n_embd / (tp if work.sequence else 1)
    values += INNER_ACCESSES * width / tp
    if not work.fused_attention:
        values += SCORE_ACCESSES * a.n_head * work.seq / tp
    speed = cluster.attention_speed if work.fused_attention else cluster.matmul_speed
    return Pass(
        work.tokens / tp * 2 * matrices / a.n_layer / cluster.matmul_speed,
        work.tokens / tp * scores / speed,
        work.tokens * traffic.LOW * values / cluster.memory_speed,
    )


def waiting(work: Workload, cluster: Cluster, found: Pass, pairs: int = 1) -> Pass:
    """Return the seconds that a pass of one block waits for other devices.

    The way to experts and back can't overlap in one pass, and the sums of tensor parallelism only
    overlap with `async_tensor`. The keys and values of other parts of the sequence travel during
    the matmuls that the pass computes, and `pairs` times: twice backward, with their gradients.
    """
    layout, sent = work.layout, traffic.block_bytes(work)
    hides = cluster.efficiency.overlap * (found.matmuls + found.attention)
    sums = sent["tensor"] / cluster.bandwidth(layout.tp)
    others = pairs * sent["context"] / cluster.bandwidth(layout.cp, layout.tp)
    return Pass(
        tensor=sums - work.async_tensor * cluster.efficiency.async_tensor * min(sums, hides),
        expert=sent["expert"] / cluster.bandwidth(layout.ep, layout.tp, to_all=True),
        context=max(0.0, others - hides),
    )


class Passes(NamedTuple):
    """Forward and backward passes of a layer, and forward pass of the output matrix."""

    forward: Pass
    backward: Pass
    output: Pass


def passes(work: Workload, cluster: Cluster) -> Passes:
    """Return the passes of a layer and of the output matrix for one micro-batch.

    The backward pass computes gradients of inputs and of weights. Sums and experts wait in it as
    often as in the forward pass. Full recomputation also repeats the waiting.
    """
    a, tp = work.architecture, work.layout.tp
    once = computing(work, cluster)
    forward = once.plus(waiting(work, cluster, once))
    repeats = work.again
    elementwise = once.elementwise
    if not repeats.elementwise:  # only that of stored scores
        fused = computing(replace(work, fused_attention=True), cluster)
        elementwise = (elementwise - fused.elementwise) * repeats.attention
    repeated = Pass(
        once.matmuls * repeats.matrices, once.attention * repeats.attention, elementwise
    )
    twice = once.times(2)
    backward = twice.plus(waiting(work, cluster, twice, pairs=2))
    output = Pass(
        2 * work.tokens * a.n_embd * a.vocab_size / tp / cluster.matmul_speed,
        elementwise=LOGIT_BYTES * work.tokens * a.vocab_size / tp / cluster.memory_speed,
    )
    return Passes(forward, backward.plus(forward if work.recompute == "full" else repeated), output)


def idle_seconds(work: Workload, cluster: Cluster, found: Passes) -> float:
    """Return the seconds of a step for which a pipeline's stage has nothing to do.

    A stage waits for the others' first and last micro-batch, (pp - 1) / chunks of its own work on
    one (Narayanan et al. 2021, section 2.2), and for the slowest stage in every micro-batch. The
    first and the last stage have fewer layers, because they have the embedding and the output.
    """
    layout, layers = work.layout, work.architecture.n_layer
    if layout.pp == 1:
        return 0.0
    layer, output = sum(found.forward) + sum(found.backward), 3 * sum(found.output)
    mean = (layers * layer + output) / layout.pp
    fewest, more = divmod(layers, layout.pp)
    slowest = max((fewest + (more > 0)) * layer, fewest * layer + output)
    residual = traffic.LOW * work.tokens * work.architecture.n_embd / layout.tp
    hop = residual / cluster.bandwidth(layout.pp, layout.tp * layout.cp * layout.dp)
    bubble = (layout.pp - 1) * (mean / layout.chunks + 2 * hop)
    return bubble + layout.micro_batches * (slowest - mean)


def data_seconds(work: Workload, cluster: Cluster) -> tuple[float, float]:
    """Return the seconds in which weights and gradients travel in a step, by pass.

    The first are those of the forward passes, and the second those of the backward passes. Each
    layer has its own collective, which also takes time for each machine on its way.
    """
    layout, forward, backward = work.layout, 0.0, 0.0
    layers = work.architecture.n_layer / layout.pp
    times = layout.micro_batches if layout.zero == 3 else 1
    for of in traffic.replicas(work.architecture, layout):
        if of.parameters:
            speed, latency = cluster.bandwidth(of.size, of.stride), cluster.latency(*of[2:])
            latency *= layers * times if of.gathered else 1
            weights, gradients = traffic.pass_bytes(layout, of)
            forward += weights / speed + (latency if weights else 0)
            backward += gradients / speed + latency * (2 if layout.zero == 3 else 1)
    return forward, backward


def hiding_seconds(work: Workload, cluster: Cluster) -> tuple[float, float]:
    """Return the seconds of forward and backward passes during which data may travel for free.

    What is sent once in a step has the passes of one micro-batch for it. ZeRO-2 sends gradients in
    every backward pass, and ZeRO-3 also gathers weights in every pass.
    """
    if not work.overlap:
        return 0.0, 0.0
    layout, found, layers = work.layout, passes(work, cluster), work.architecture.n_layer
    forward = sum(found.forward) * layers + sum(found.output)
    backward = sum(found.backward) * layers + 2 * sum(found.output)
    free = cluster.efficiency.overlap / layout.pp
    return (
        free * forward * (layout.micro_batches if layout.zero == 3 else 1),
        free * backward * (layout.micro_batches if layout.zero >= 2 else 1),
    )


def data_limit(work: Workload, cluster: Cluster) -> float:
    """Return the fewest tokens of a device in a micro-batch at which data parallelism hides.

    On paper, these are 2 F / B for DDP, F / B for ZeRO-1, and 1.5 F / B for FSDP, where F is the
    FLOP/s of a device, and B the bytes per second of its collective. Here, the passes also have
    attention and elementwise operators. Without `work.overlap`, no number of tokens is enough.
    """
    pairs = zip(data_seconds(work, cluster), hiding_seconds(work, cluster), strict=True)
    return work.tokens * max(sent / free if free else math.inf * bool(sent) for sent, free in pairs)


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


# Stated over simulated seconds of a step: the 5th and 95th percentile, rounded outward, if each
# source counts equally. Each was left out of the fit before its own steps were simulated.
SPREAD = (0.8, 1.25)


def interval_of(seconds: float) -> tuple[float, float]:
    """Return how long a simulated step may really take, judged by sources that weren't fitted."""
    return SPREAD[0] * seconds, SPREAD[1] * seconds


def simulate(work: Workload, cluster: Cluster) -> Step:
    """Simulate a step."""
    layout, found = work.layout, passes(work, cluster)
    layers = found.forward.plus(found.backward).times(work.architecture.n_layer)
    busy = layers.plus(found.output.times(3))
    parts = busy.times(layout.micro_batches / layout.pp)._asdict()
    parts["matmuls"] += parts.pop("attention")
    sent, free = data_seconds(work, cluster), hiding_seconds(work, cluster)
    held = sum(
        of.parameters / (of.size if layout.zero else 1)
        for of in traffic.replicas(work.architecture, layout)
    )
    parts["pipeline"] = idle_seconds(work, cluster, found)
    parts["data"] = sum(max(0.0, a - b) for a, b in zip(sent, free, strict=True))
    parts["update"] = UPDATE_BYTES * held / cluster.memory_speed
    return Step(parts, work.flops / (sum(parts.values()) * layout.devices * cluster.peak))


# Llama 3 405B had 419 unexpected interruptions in 54 days on 16,384 H100s (Llama team 2024,
# section 3.3.4).
FAILURES_PER_DEVICE_HOUR = 419 / (54 * 24 * 16384)


def between_failures(devices: int) -> float:
    """Return the mean seconds from a failure to the next."""
    return 3600 / (FAILURES_PER_DEVICE_HOUR * devices)


def best_interval(devices: int, save: float) -> float:
    """Return the seconds between checkpoints of `save` seconds that lose least (Young 1974)."""
    return (2 * save * between_failures(devices)) ** 0.5


def goodput(devices: int, save: float, restart: float, interval: float) -> float:
    """Return the share of the time in which a run makes progress that lasts.

    Each failure costs a restart and on average half the time since the last checkpoint.
    """
    lost = save / interval + (restart + interval / 2) / between_failures(devices)
    return 1 / (1 + lost)


def sweep(
    work: Workload,
    cluster: Cluster,
    devices: int,
    batch: int,
    fixed: Mapping[str, Any] | None = None,
) -> list[tuple[Workload, Step]]:
    """Return the layouts that fit into memory with their steps, the fastest first.

    They replace the layout and the recomputation of `work`, but for what is `fixed`.
    """
    a, fixed = work.architecture, fixed or {}
    tried: dict[str, Iterable[Any]] = {
        "tp": (1, 2, 4, 8),
        "pp": range(1, min(64, a.n_layer) + 1),
        "cp": (1,),
        "micro_batch": (1, 2, 4),
        "chunks": (1, 2, 4),
        "zero": (1, 3),
        "ep": sorted({math.gcd(max(1, a.n_expert), 2**k) for k in range(8)}),
    }
    tried |= {name: (fixed[name],) for name in tried.keys() & fixed.keys()}
    found = []
    for values in product(*tried.values()):
        one = dict(zip(tried, values, strict=True))
        pp, chunks, size = one["pp"], one["chunks"], one["micro_batch"]
        dp, left = divmod(devices, one["tp"] * pp * one["cp"])
        if left or batch % (dp * size) or chunks > 1 == pp or pp * chunks > a.n_layer:
            continue
        if one["zero"] == 3 and pp > 1 and "zero" not in fixed:  # gathers in each micro-batch
            continue
        layout = Layout(dp=dp, micro_batches=batch // dp // size, **one)
        for recompute in (fixed["recompute"],) if "recompute" in fixed else RECOMPUTE:
            try:
                candidate = replace(work, layout=layout, recompute=recompute)
            except UserError:  # the model can't be spread in this way
                break
            if sum(memory(candidate).values()) <= 0.9 * cluster.device.memory:
                found.append((candidate, simulate(candidate, cluster)))
                break  # recomputing more is slower
    return sorted(found, key=lambda pair: pair[1].seconds)
