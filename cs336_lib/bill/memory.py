"""Compute the peak memory of a training step, by kind.

Activations are those of a trainer that fuses norms, rotary positions and SwiGLU, so each saves its
inputs only. Without fusion, PyTorch saves another `mlp_width` values of a SwiGLU and `n_embd` of
each RMSNorm. All experts of a layer share one grouped matmul, and each has as many tokens. The loss
is PyTorch's cross-entropy in fp32. The optimizer is fused, so its update has no temporary tensors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cs336_lib.accounting import (
    PRECISIONS,
    Architecture,
    Attention,
    BytesPerParameter,
    architecture_of,
    bytes_per_parameter,
)
from cs336_lib.bill.traffic import Layout, Workload, parameters_of
from cs336_lib.config import GPTConfig

KINDS = (
    "weights",
    "gradients",
    "master weights",
    "optimizer state",
    "activations",
    "logits and loss",
    "temporary",
)
LOGIT = 4  # bytes of an fp32 logit


@dataclass(frozen=True)
class Part:
    """Half of a block, with its norm, in bytes for one token.

    Attributes:
        saved: Activations that the forward pass saves.
        outputs: Results of its matmuls, in order.
        fused: What remains of attention if all else is computed again: its result.
        scores: Part of `saved` that Korthikanti et al. (2022) compute again.
        backward: Bytes that the backward pass adds to `saved`, and the entries of the matrix whose
            gradient it computes at that time, at several moments.
    """

    saved: float
    outputs: tuple[float, ...]
    backward: tuple[tuple[float, float], ...]
    fused: float = 0
    scores: float = 0


def norm_bytes(a: Architecture, of: BytesPerParameter) -> float:
    """Return what a norm of the residual stream saves for a token: input and fp32 statistics."""
    return of.residual * a.n_embd + (8 if a.norm_bias else 4)


def norms_bytes(a: Architecture, of: BytesPerParameter) -> float:
    """Return what the norms of half a block save for a token."""
    return a.block_norms / 2 * norm_bytes(a, of)


def attention_part(a: Architecture, of: BytesPerParameter, attention: Attention, keys: int) -> Part:
    """Count attention in one block.

    "flash" saves a log-sum-exp per head, and "eager" the probabilities of all `keys` of a query.
    """
    pairs = a.n_head if a.kv_rank else a.n_kv_head
    q, k, v = a.n_head * a.qk_dim, pairs * a.qk_dim, pairs * a.value_dim
    out, c = a.n_head * a.value_dim, a.n_embd
    saved = c + q + k + v + out
    outputs = [q, k, v, c]
    if a.kv_rank:  # its compressed values and their norms, and keys that aren't yet whole
        saved += 2 * (a.q_rank + a.kv_rank) + a.rope_dim + a.n_head * a.head_dim
        outputs = [q, a.kv_rank + a.rope_dim, a.n_head * a.head_dim + v, c]
        outputs = [a.q_rank, *outputs] if a.q_rank else outputs
    if a.qk_norm:
        saved += q + k
    scores = of.compute * a.n_head * keys if attention == "eager" else 0
    logsumexp = 0 if attention == "eager" else 4 * a.n_head
    return Part(
        norms_bytes(a, of) + of.compute * saved + scores + logsumexp,
        tuple(of.compute * width for width in outputs),
        ((max(of.compute * (out + q + k + v), 2 * scores), 0),),
        of.compute * out + logsumexp,
        scores,
    )


def mlp_part(a: Architecture, of: BytesPerParameter) -> Part:
    """Count a dense MLP."""
    width, branches, c = of.compute * a.mlp_width, 2 if a.gated else 1, of.compute * a.n_embd
    return Part(
        norms_bytes(a, of) + c + (branches + 1) * width,
        (width,) * branches + (c,),
        ((width, a.n_embd * a.mlp_width), (branches * width, 0)),
    )


def experts_part(a: Architecture, of: BytesPerParameter, ep: int) -> Part:
    """Count a router with its routed and shared experts.

    Each chosen expert saves a copy of its input, and its output, which the router weights.
    """
    width, branches, c = of.compute * a.expert_width, 2 if a.gated else 1, of.compute * a.n_embd
    slots, inner = a.n_active, (branches + 1) * width
    saved = norms_bytes(a, of) + c + 4 * a.n_expert + 24 * slots
    shared = (a.n_shared * width,) * branches + (c,)
    routed = (of.compute * a.n_expert, slots * branches * width, slots * c)
    return Part(
        saved + slots * (2 * c + inner) + a.n_shared * inner,
        routed + (shared if a.n_shared else ()),
        ((slots * 2 * c, 0), (slots * width, a.n_expert // ep * a.n_embd * a.expert_width)),
    )


def kept(parts: tuple[Part, Part], of: BytesPerParameter, work: Workload) -> float:
    """Return the bytes that a block keeps for a token between its forward and backward pass."""
    again = work.again
    if not again.elementwise:
        saved = sum(part.saved for part in parts)
        return saved - (parts[0].scores if again.attention else 0)
    stream = of.residual * work.architecture.n_embd * copies(work)
    if again.matrices == 1:
        return stream
    outputs = [size for part in parts for size in part.outputs]
    return stream + parts[0].fused + sum(outputs[::2])


def copies(work: Workload) -> int:
    """Return how many devices of tensor parallelism have a token's residual stream."""
    return 1 if work.sequence else work.layout.tp


def in_flight(layout: Layout, last: bool) -> float:
    """Return how many micro-batches' activations the first or last stage keeps.

    1F1B keeps `pp` on the first stage and one on the last. Interleaving keeps (pp - 1) / chunks
    more (Korthikanti et al. 2022, equation 5 and the text after it).
    """
    p, chunks = layout.pp, layout.chunks
    before = 0 if last else p - 1
    alive = (2 * before + (chunks - 1) * p + 1) / chunks if chunks > 1 else before + 1
    return min(layout.micro_batches, alive)


def held_bytes(work: Workload, last: bool) -> dict[str, float]:
    """Return the bytes that persist between steps on a device of the first or the last stage.

    ZeRO-2 adds up the gradients of one chunk of an interleaved pipeline before it shards them
    (`traffic.pass_bytes`).
    """
    a, layout = work.architecture, work.layout
    per = bytes_per_parameter(work.optimizer, work.precision)
    ends, blocks, experts = parameters_of(a, layout, last)
    output = a.vocab_size * a.n_embd / layout.tp if last or layout.pp == 1 else 0
    shared = layout.dp * layout.cp

    def held(size: float, stage: int, others: float) -> float:
        if layout.zero < stage:
            return size * (others + experts)
        return size * (others / shared + experts * layout.ep / shared)

    chunk = (ends + blocks + experts) / layout.chunks
    summed = chunk if layout.zero == 2 and layout.chunks > 1 else 0
    return {
        "weights": held(per.weights, 3, ends + blocks) + held(per.copies, 3, blocks + output),
        "gradients": held(per.gradient, 2, ends + blocks) + per.gradient * summed,
        "master weights": held(per.master, 1, ends + blocks),
        "optimizer state": held(per.state, 1, ends + blocks),
    }


def stage_moments(work: Workload, last: bool) -> Iterator[tuple[str, float, float, float]]:
    """Yield when memory may peak: a name, activations, logits and temporary tensors in bytes."""
    a, layout, of = work.architecture, work.layout, PRECISIONS[work.precision]
    tokens, wide = work.tokens / layout.tp, copies(work) * a.n_embd
    norm = norm_bytes(a, of) + of.compute * a.n_embd  # with its result, for a token
    middle, mlp, mixture = (
        replace(part, saved=part.saved + (copies(work) - 1) * norm)
        for part in (
            attention_part(a, of, "flash" if work.fused_attention else "eager", work.seq),
            mlp_part(a, of),
            experts_part(a, of, layout.ep),
        )
    )
    dense, mixed = (middle, mlp), (middle, mixture)
    layers = a.dense_layers * kept(dense, of, work) + a.expert_layers * kept(mixed, of, work)
    stored = tokens * layers * in_flight(layout, last) / layout.pp
    gradient = of.weights + (of.compute if of.compute != of.weights else 0)
    matrix = a.vocab_size * a.n_embd / layout.tp
    block = sum(parameters_of(a, layout)[1:]) * layout.pp / a.n_layer
    gathered = of.compute * block if layout.zero == 3 else 0.0
    if last or layout.pp == 1:
        end = tokens * copies(work) * norm
        logits = LOGIT * tokens * a.vocab_size
        there = gathered + (of.compute * matrix if layout.zero == 3 else 0)
        yield "loss", stored + end, logits, 2 * logits + there
    arriving = tokens * (of.residual + (of.compute if of.compute != of.residual else 0)) * wide
    if a.tied and layout.pp == 1:
        arriving += of.weights * matrix  # waits for the embedding's gradient
    if layout.zero == 3:
        arriving += gathered + (of.compute + of.gradient) * block
    parts = mixed if a.expert_layers else dense
    others = stored - tokens * kept(parts, of, work)  # this block is whole again
    late = parts[0].scores if work.again.attention and not work.again.elementwise else 0
    whole = parts[0].saved + parts[1].saved - late
    for name, part, saved in (("mlp", parts[1], whole), ("attention", parts[0], parts[0].saved)):
        for more, entries in part.backward:
            weight = gradient * entries / layout.tp
            yield name, others + tokens * saved, 0.0, arriving + tokens * more + weight


def moments(work: Workload) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the bytes on a device by kind, at each moment when a step's memory may peak.

    The moments are the backward passes of the loss, and of the last block's MLP and attention. A
    pipeline has them on its first or its last stage.
    """
    for last in (False,) if work.layout.pp == 1 else (False, True):
        held = held_bytes(work, last)
        where = "" if work.layout.pp == 1 else f" on the {'last' if last else 'first'} stage"
        for name, *sizes in stage_moments(work, last):
            yield name + where, dict(zip(KINDS, (*held.values(), *sizes), strict=True))


def peak(work: Workload) -> dict[str, float]:
    """Return the peak bytes on a device in a training step, by kind.

    The kinds are those of the moment with the largest sum.

    Example:
        >>> sum(peak(Workload(model("llama3-8b").architecture, Layout(dp=8), 8192)).values())
    """
    return max((kinds for _, kinds in moments(work)), key=lambda kinds: sum(kinds.values()))


def of_gpt(
    config: GPTConfig,
    batch: int,
    *,
    autocast: bool = False,
    fused_attention: bool = True,
    optimizer: str = "adamw",
) -> dict[str, float]:
    """Return the peak bytes of a training step of our GPT on one device, by kind.

    Its weights are in fp32, and its vocabulary is padded. The gradients are those of earlier
    micro-batches, and they don't exist yet when the backward pass of a step's only one starts.
    `autocast` has matmuls in bf16.
    """
    work = Workload(
        architecture_of(replace(config, vocab_size=config.padded_vocab_size)),
        Layout(micro_batch=batch),
        config.block_size,
        fused_attention=fused_attention,
        precision="autocast" if autocast else "fp32",
        optimizer=optimizer,
    )
    return peak(work)
