"""Compute the peak memory of a training step of an `Architecture`, by kind.

Activations are those of a trainer that fuses norms, rotary positions and SwiGLU, so each saves its
inputs only. Without fusion, PyTorch saves another `mlp_width` values of a SwiGLU and `n_embd` of
each RMSNorm. All experts of a layer share one grouped matmul, and each has as many tokens. The loss
is PyTorch's cross-entropy in fp32. The optimizer is fused, so its update has no temporary tensors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from cs336_lib.accounting import (
    PRECISIONS,
    Architecture,
    Attention,
    Recipe,
    architecture_of,
    bytes_per_parameter,
    parameter_counts,
    require_choice,
)
from cs336_lib.bill.traffic import Layout, layer_parameters, require_fit
from cs336_lib.config import GPTConfig

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")

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


class Again(NamedTuple):
    """What of a block the backward pass computes again, because its results aren't kept.

    Attributes:
        matrices: Share of the matmuls with weights.
        attention: Whether the scores and the weighted values are.
        elementwise: Whether all other operators are, too.
    """

    matrices: float
    attention: bool
    elementwise: bool


def again(recompute: Recompute, attention: Attention) -> Again:
    """Return what a kind of recomputation computes again, for `memory` and for `simulate`.

    "full" starts from a block's input. "selective" computes stored scores again (Korthikanti et al.
    2022, equation 6). Flash attention stores none, so a block keeps its input, the result of
    attention, and the result of every second matmul, as torchtitan does.
    """
    if recompute == "full":
        return Again(1.0, attention=True, elementwise=True)
    if recompute == "none":
        return Again(0.0, attention=False, elementwise=False)
    if attention == "eager":
        return Again(0.0, attention=True, elementwise=False)
    return Again(0.5, attention=False, elementwise=True)


@dataclass(frozen=True)
class Part:
    """Half of a block, with its norm, in bytes for one token.

    Attributes:
        saved: Activations that the forward pass saves.
        outputs: Results of its matmuls, in order.
        fused: What remains of attention if all else is computed again: its result.
        scores: Part of `saved` that Korthikanti et al. (2022) compute again.
        whole: Part of `saved` that only sequence parallelism splits: the norm's and its result.
        backward: Bytes that the backward pass adds to `saved`, and the entries of the matrix whose
            gradient it computes at that time, at several moments.
    """

    saved: float
    outputs: tuple[float, ...]
    backward: tuple[tuple[float, float], ...]
    fused: float = 0
    scores: float = 0
    whole: float = 0

    def copied(self, times: int) -> "Part":
        """Return this part if `times` devices have what only sequence parallelism splits."""
        return replace(self, saved=self.saved + (times - 1) * self.whole)


def attention_part(a: Architecture, of: Recipe, attention: Attention, keys: int) -> Part:
    """Count attention in one block.

    Args:
        a: The model.
        of: Bytes per number.
        attention: "flash" saves a log-sum-exp per head, and "eager" all probabilities.
        keys: Number of keys for which a query has a score.
    """
    pairs = a.n_head if a.kv_rank else a.n_kv_head
    q, k, v = a.n_head * a.qk_dim, pairs * a.qk_dim, pairs * a.value_dim
    out, c = a.n_head * a.value_dim, a.n_embd
    saved = norms_bytes(a, of) + of.saved * c + of.compute * (q + k + v + out)
    outputs = [q, k, v, c]
    if of.saved < of.compute:
        saved += of.saved * out  # quantized for the output matrix
    if a.kv_rank:
        ranks = a.q_rank + a.kv_rank
        norms = 2 if a.q_rank else 1
        saved += of.compute * (ranks + a.rope_dim) + of.saved * ranks + norms * 4
        saved += of.compute * a.n_head * a.head_dim  # values are a view, beside keys not yet whole
        outputs = [q, a.kv_rank + a.rope_dim, a.n_head * a.head_dim + v, c]
        outputs = [a.q_rank, *outputs] if a.q_rank else outputs
    if a.qk_norm:
        saved += of.compute * (q + k)
        saved += 4 * (a.n_head + a.n_kv_head if a.qk_norm == "head" else 2)
    scores = of.compute * a.n_head * (keys + a.sinks) if attention == "eager" else 0
    logsumexp = 0 if attention == "eager" else 4 * a.n_head
    gradients = of.compute * (out + q + k + v)
    return Part(
        saved + scores + logsumexp,
        tuple(of.compute * width for width in outputs),
        ((max(gradients, 2 * scores), 0),),
        of.compute * out + logsumexp,
        scores,
        norm_bytes(a, of) + of.saved * c,
    )


def norms_bytes(a: Architecture, of: Recipe) -> float:
    """Return what the norms of half a block save for a token."""
    return a.block_norms / 2 * norm_bytes(a, of)


def norm_bytes(a: Architecture, of: Recipe) -> float:
    """Return what a norm of the residual stream saves for a token: input and fp32 statistics."""
    return of.residual * a.n_embd + (8 if a.norm_bias else 4)


def mlp_part(a: Architecture, of: Recipe) -> Part:
    """Count a dense MLP."""
    width, branches, c = a.mlp_width, 2 if a.gated else 1, a.n_embd
    inner, result = of.compute * branches * width, of.saved * width
    more = of.compute * width - result  # the gradient of the result, which is free by then
    return Part(
        norms_bytes(a, of) + of.saved * c + inner + result,
        (of.compute * width,) * branches + (of.compute * c,),
        (
            (of.compute * width, c * width),
            (more + inner, 0),
            (of.compute * c - result, c * width),
        ),
        whole=norm_bytes(a, of) + of.saved * c,
    )


def experts_part(a: Architecture, of: Recipe, ep: int) -> Part:
    """Count a router with its routed and shared experts.

    Each chosen expert saves a copy of its input, and its output, which the router weights.
    """
    c, width, slots, branches = a.n_embd, a.expert_width, a.n_active, 2 if a.gated else 1
    inner, result = of.compute * branches * width, of.saved * width
    ends = (of.saved + of.compute) * c
    saved = norms_bytes(a, of) + of.saved * c + 4 * a.n_expert + 24 * slots
    saved += slots * (ends + inner + result) + a.n_shared * (inner + result)
    shared = (of.compute * a.n_shared * width,) * branches + (of.compute * c,)
    routed = (of.compute * slots * branches * width, of.compute * slots * c)
    more = of.compute * width - result
    matrix = a.n_expert // ep * c * width
    return Part(
        saved,
        (of.compute * a.n_expert, *routed, *(shared if a.n_shared else ())),
        (
            (slots * 2 * of.compute * c, 0),
            (slots * of.compute * width, matrix),
            (slots * (more + inner - of.compute * c), 0),
            (-slots * result, matrix),
        ),
        whole=norm_bytes(a, of) + of.saved * c,
    )


def kept(parts: tuple[Part, Part], of: Recipe, width: int, recompute: Recompute) -> float:
    """Return the bytes that a block keeps for one token between its forward and backward pass.

    `width` is that of the residual stream.
    """
    dropped = again(recompute, "eager" if parts[0].scores else "flash")
    if not dropped.elementwise:
        saved = sum(part.saved for part in parts)
        return saved - (parts[0].scores if dropped.attention else 0)
    if dropped.matrices == 1:
        return of.residual * width
    outputs = [size for part in parts for size in part.outputs]
    return of.residual * width + parts[0].fused + sum(outputs[::2])


def in_flight(layout: Layout, last: bool) -> float:
    """Return how many micro-batches' activations the first or last stage keeps.

    1F1B keeps `pp` on the first stage and one on the last. Interleaving keeps (pp - 1) / chunks
    more (Korthikanti et al. 2022, equation 5 and the text after it).
    """
    p, chunks = layout.pp, layout.chunks
    before = 0 if last else p - 1
    alive = (2 * before + (chunks - 1) * p + 1) / chunks if chunks > 1 else before + 1
    return min(layout.micro_batches, alive)


def held_bytes(
    a: Architecture, layout: Layout, last: bool, optimizer: str, precision: str
) -> dict[str, float]:
    """Return the bytes that persist between steps on a device of the first or the last stage.

    ZeRO-2 adds up the gradients of one chunk of an interleaved pipeline before it shards them
    (`traffic.pass_bytes`).
    """
    per, counts = bytes_per_parameter(optimizer, precision), parameter_counts(a)
    outside, experts = layer_parameters(a, layout)
    ends = (counts["wte"] + counts["wpe"]) / layout.tp
    output = a.vocab_size * a.n_embd / layout.tp
    if layout.pp == 1:
        matmuls, ends = outside + output, ends + counts["output"] / layout.tp + a.norm_size
    elif last:
        matmuls, ends = outside + output, output + a.norm_size
    else:
        matmuls = outside
    shared = layout.dp * layout.cp

    def held(size: float, stage: int, others: float) -> float:
        if layout.zero < stage:
            return size * (others + experts)
        return size * (others / shared + experts * layout.ep / shared)

    outside += ends
    summed = (outside + experts) / layout.chunks if layout.zero == 2 and layout.chunks > 1 else 0
    return {
        "weights": held(per.weights, 3, outside) + held(per.copies, 3, matmuls),
        "gradients": held(per.gradient, 2, outside) + per.gradient * summed,
        "master weights": held(per.master, 1, outside),
        "optimizer state": held(per.state, 1, outside),
    }


def stage_moments(
    a: Architecture,
    layout: Layout,
    seq: int,
    of: Recipe,
    recompute: Recompute,
    attention: Attention,
    sequence: bool,
    last: bool,
) -> Iterator[tuple[str, float, float, float]]:
    """Yield when memory may peak: a name, activations, logits and temporary tensors in bytes."""
    tokens = layout.micro_batch * seq / layout.cp / layout.tp
    copies = 1 if sequence else layout.tp  # of a token's residual stream
    c, alive, only = a.n_embd, in_flight(layout, last), layout.pp == 1
    wide = copies * c
    middle = attention_part(a, of, attention, seq).copied(copies)
    dense = middle, mlp_part(a, of).copied(copies)
    mixed = middle, experts_part(a, of, layout.ep).copied(copies)
    of_all = a.dense_layers * kept(dense, of, wide, recompute)
    of_all += a.expert_layers * kept(mixed, of, wide, recompute)
    before = tokens * of_all * (alive - 1) / layout.pp  # of other micro-batches
    stored = before + tokens * of_all / layout.pp
    gradient = of.weights + (of.compute if of.compute != of.weights else 0)
    matrix = a.vocab_size * c / layout.tp
    outside, experts = layer_parameters(a, layout)
    block = (outside + experts) * layout.pp / a.n_layer
    gathered = of.compute * block if layout.zero == 3 else 0.0
    if last or only:
        end = tokens * copies * (norm_bytes(a, of) + of.compute * c)
        logits = tokens * a.vocab_size
        there = gathered + (of.compute * matrix if layout.zero == 3 else 0)
        yield "loss", stored + end, LOGIT * logits, 2 * LOGIT * logits + there
        left = tokens * of.compute * wide + gradient * matrix + there
        yield "output matrix", stored + end, of.compute * logits, left
    waiting = of.weights * matrix if a.tied and only else 0.0  # for the embedding's gradient
    low = of.compute if of.compute != of.residual else 0
    arriving = tokens * (of.residual + low) * wide + waiting
    if layout.zero == 3:
        arriving += gathered + (of.compute + of.gradient) * block
    parts = mixed if a.expert_layers else dense
    others = stored - tokens * kept(parts, of, wide, recompute)  # this block is whole again
    rule = again(recompute, attention)
    late = parts[0].scores if rule.attention and not rule.elementwise else 0
    for name, part, there in (
        ("mlp", parts[1], parts[0].saved + parts[1].saved),
        ("attention", parts[0], parts[0].saved),
    ):
        dropped = late if name == "mlp" else 0
        for more, entries in part.backward:
            weight = gradient * entries / layout.tp
            moved = arriving + tokens * more + weight
            yield name, others + tokens * (there - dropped), 0.0, moved
    if not last or only:
        embedding = (of.weights * matrix) * (2 if waiting else 1)
        yield "embedding", before, 0.0, tokens * of.residual * wide + embedding


def moments(
    a: Architecture,
    layout: Layout | None = None,
    seq: int | None = None,
    *,
    recompute: Recompute = "none",
    attention: Attention = "flash",
    sequence: bool = True,
    precision: str = "mixed",
    optimizer: str = "adamw",
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the bytes on a device by kind, at each moment when a step's memory may peak.

    The moments are the backward passes of the loss, the output matrix, the last block's MLP and
    attention, and the embedding. A pipeline has them on its first or its last stage.

    Args:
        a: The model.
        layout: How it is spread over devices (default: one device).
        seq: Tokens in a sequence (default: `block_size`).
        recompute: What the backward pass computes again.
        attention: Whether attention is fused ("flash") or stores its scores ("eager").
        sequence: Whether tensor parallelism also splits norms and residuals.
        precision: A key of `accounting.PRECISIONS`.
        optimizer: A key of `accounting.STATE_BYTES`.

    Raises:
        UserError: If a name is unknown or the model doesn't fit the layout.
    """
    layout, seq = layout or Layout(), seq or a.block_size
    require_choice("recompute", recompute, RECOMPUTE)
    require_choice("attention", attention, ("flash", "eager"))
    require_choice("precision", precision, PRECISIONS)
    require_fit(a, layout, seq)
    for last in (False,) if layout.pp == 1 else (False, True):
        held = held_bytes(a, layout, last, optimizer, precision)
        where = "" if layout.pp == 1 else (" on the last stage" if last else " on the first stage")
        for name, *sizes in stage_moments(
            a, layout, seq, PRECISIONS[precision], recompute, attention, sequence, last
        ):
            yield name + where, dict(zip(KINDS, (*held.values(), *sizes), strict=True))


def peak(
    a: Architecture, layout: Layout | None = None, seq: int | None = None, **how: Any
) -> dict[str, float]:
    """Return the peak bytes on a device in a training step, by kind.

    The kinds are those of the moment with the largest sum. The arguments are those of `moments`.

    Example:
        >>> sum(peak(model("llama3-8b").architecture, Layout(dp=8, zero=3)).values())
    """
    found = (kinds for _, kinds in moments(a, layout, seq, **how))
    return max(found, key=lambda kinds: sum(kinds.values()))


def of_gpt(
    config: GPTConfig,
    batch: int,
    seq: int | None = None,
    *,
    autocast: bool = False,
    **how: Any,
) -> dict[str, float]:
    """Return the peak bytes of a training step of our GPT on one device, by kind.

    Its weights are in fp32, and its vocabulary is padded. The gradients are those of earlier
    micro-batches, and they don't exist yet when the backward pass of a step's only one starts.

    Args:
        config: The model.
        batch: Sequences in a micro-batch.
        seq: Tokens in a sequence (default: `block_size`).
        autocast: Whether matmuls are in bf16.
        **how: `attention` and `optimizer`, as for `moments`.
    """
    a = architecture_of(replace(config, vocab_size=config.padded_vocab_size))
    precision = "autocast" if autocast else "fp32"
    return peak(a, Layout(micro_batch=batch), seq, precision=precision, **how)
