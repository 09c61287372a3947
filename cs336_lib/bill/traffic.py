"""Describe a training step, and count the bytes that each device sends in it, by kind."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from cs336_lib.accounting import (
    Architecture,
    parameter_counts,
    require_choice,
    train_flops_per_token,
)
from cs336_lib.config import UserError

LOW, HIGH = 2, 4  # bytes of bf16 activations and weights, and of fp32 gradients
Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)


@dataclass(frozen=True)
class Layout:
    """How a training step is spread over devices.

    Attributes:
        dp: Data-parallel replicas, or FSDP shards with `zero` 3.
        tp: Devices that share each matrix (Shoeybi et al. 2019).
        pp: Pipeline stages.
        cp: Devices that share each sequence, in context parallelism.
        ep: Devices that share the experts. They are taken from the `dp` replicas.
        zero: ZeRO stage, 0 to 3 (Rajbhandari et al. 2020).
        micro_batch: Sequences in a micro-batch.
        micro_batches: Micro-batches of each replica in a step.
        chunks: Parts of the model on each stage. The schedule is 1F1B, and interleaved with more
            than one (Narayanan et al. 2021, section 2.2).
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0
    micro_batch: int = 1
    micro_batches: int = 1
    chunks: int = 1

    def __post_init__(self) -> None:
        if self.zero not in (0, 1, 2, 3):
            raise UserError(f"zero is {self.zero}; 0, 1, 2 or 3 expected")

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def batch(self) -> int:
        """Sequences in a step."""
        return self.dp * self.micro_batch * self.micro_batches

    def __str__(self) -> str:
        ways = ("tp", "pp", "cp", "ep", "chunks")
        parts = [f"{way} {getattr(self, way)}" for way in ways if getattr(self, way) > 1]
        return ", ".join(
            [f"{self.devices:,} GPUs", f"batch {self.batch:,}", f"dp {self.dp}", *parts]
        )


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


@dataclass(frozen=True)
class Workload:
    """A training step: its model, layout and program. Time, memory and traffic are counted for it.

    Raises:
        UserError: If the model can't be spread in this way.

    Attributes:
        architecture: Shape of the model.
        layout: How it is spread over the devices.
        seq: Tokens in a sequence.
        recompute: What the backward pass computes again (see `again`).
        fused_attention: Whether attention never stores its scores (Dao et al. 2022).
        sequence: Whether tensor parallelism also splits norms and residuals.
        overlap: Whether gradients and weights travel between replicas during the passes.
        async_tensor: Whether the sums of tensor parallelism travel during the matmuls that they are
            for, cut into slices (Wang et al. 2023; "async TP" in torchtitan).
        precision: Bytes per number in memory, a key of `accounting.PRECISIONS`.
        optimizer: A key of `accounting.STATE_BYTES`.
    """

    architecture: Architecture
    layout: Layout
    seq: int
    recompute: Recompute = "none"
    fused_attention: bool = True
    sequence: bool = True
    overlap: bool = True
    async_tensor: bool = False
    precision: str = "mixed"
    optimizer: str = "adamw"

    def __post_init__(self) -> None:
        require_choice("recompute", self.recompute, RECOMPUTE)
        a, layout = self.architecture, self.layout
        stages = layout.pp * layout.chunks
        most = a.n_layer + 2  # the first and last chunk may have only the embedding or the output
        problems = {
            f"{a.n_head} query heads can't be split over tp {layout.tp}": a.n_head % layout.tp,
            f"{self.seq} tokens in a sequence can't be split over twice cp {layout.cp}": (
                layout.cp > 1 and self.seq % (2 * layout.cp)
            ),
            "a model without experts has ep 1": layout.ep > 1 and not a.n_expert,
            f"{a.n_expert} experts can't be split over ep {layout.ep}": a.n_expert % layout.ep,
            f"{layout.dp} replicas can't be split over ep {layout.ep}": layout.dp % layout.ep,
            f"{a.n_layer} layers have at most {most} chunks; pp x chunks is {stages}": (
                stages > most
            ),
            f"{layout.micro_batches} micro-batches can't be interleaved over pp {layout.pp}": (
                layout.chunks > 1 and layout.micro_batches % layout.pp
            ),
        }
        for problem, found in problems.items():
            if found:
                raise UserError(problem)

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on one device."""
        return self.layout.micro_batch * self.seq / self.layout.cp

    @property
    def flops(self) -> float:
        """FLOPs of the step over all devices, in the convention "palm" of `accounting`."""
        return self.layout.batch * self.seq * train_flops_per_token(self.architecture, self.seq)

    @property
    def again(self) -> Again:
        """What the backward pass computes again, for time and for memory.

        "full" starts from a block's input. "selective" computes stored scores again (Korthikanti et
        al. 2022, equation 6). Fused attention stores none, so a block keeps its input, the result
        of attention, and the result of every second matmul, as torchtitan does.
        """
        if self.recompute == "full":
            return Again(1.0, attention=True, elementwise=True)
        if self.recompute == "none":
            return Again(0.0, attention=False, elementwise=False)
        if self.fused_attention:
            return Again(0.5, attention=False, elementwise=True)
        return Again(0.0, attention=True, elementwise=False)


class Parameters(NamedTuple):
    """Numbers of parameters on a device."""

    ends: float
    """Of the embedding, the output matrix and the last norm."""
    blocks: float
    """Of the blocks without routed experts."""
    experts: float


def parameters_of(a: Architecture, layout: Layout, last: bool = False) -> Parameters:
    """Return the parameters on a device of the first stage, or of the last.

    Tensor parallelism splits matrices and not vectors, and a stage has 1 / pp of the layers. In a
    pipeline, the last stage has a copy of a tied embedding.
    """
    counts = parameter_counts(a)
    split = sum(counts[part] for part in ("attention", "mlp", "shared experts", "router"))
    blocks = split / layout.tp + counts["norms"] - a.norm_size  # without the last norm
    experts = counts["experts"] / layout.tp / layout.ep
    ends = 0 if last else counts["wte"] + counts["wpe"]
    output = a.vocab_size * a.n_embd if last else counts["output"]
    norm = a.norm_size
    if layout.pp > 1 and not last:
        output = norm = 0
    return Parameters((ends + output) / layout.tp + norm, blocks / layout.pp, experts / layout.pp)


def gather_bytes(size: float, n: int) -> float:
    """Return what each of `n` devices in a ring sends to all-gather or reduce-scatter a tensor.

    An all-reduce is a reduce-scatter and an all-gather, so it sends twice as much.
    """
    return size * (n - 1) / n


class Replicas(NamedTuple):
    """Parameters of a device of the first stage, and the devices that have them, too.

    Attributes:
        parameters: Number of parameters.
        gathered: How often FSDP2 gathers them for the backward pass again.
        size: Number of devices that share their gradients.
        stride: Distance between these devices.
    """

    parameters: float
    gathered: int
    size: int
    stride: int


def replicas(a: Architecture, layout: Layout) -> tuple[Replicas, ...]:
    """Return the embedding with the output matrix, the blocks, and their experts.

    FSDP2 keeps the first of these from the forward to the backward pass. Experts have fewer
    replicas, which are further apart.
    """
    on_device = parameters_of(a, layout)
    shared = layout.dp * layout.cp
    return (
        Replicas(on_device.ends, 0, shared, layout.tp),
        Replicas(on_device.blocks, 1, shared, layout.tp),
        Replicas(on_device.experts, 1, layout.dp // layout.ep, layout.tp * layout.cp * layout.ep),
    )


def pass_bytes(layout: Layout, of: Replicas) -> tuple[float, float]:
    """Return what a device sends for weights and gradients in a step, by forward and backward pass.

    DDP all-reduces fp32 gradients once. ZeRO-1 reduce-scatters them once, and all-gathers the bf16
    weights before the next forward pass. ZeRO-2 keeps a shard of the gradients only, so it sends
    them in each micro-batch, or once for `pp` of an interleaved pipeline (docs/decisions.md has the
    sources). ZeRO-3 also gathers the weights in each pass, as FSDP2 does.
    """
    gradients = gather_bytes(HIGH * of.parameters, of.size)
    weights = gather_bytes(LOW * of.parameters, of.size)
    passes = layout.micro_batches
    if layout.zero == 0:
        return 0.0, 2 * gradients
    if layout.zero == 1:
        return weights, gradients
    if layout.zero == 2:
        return weights, gradients * passes / (layout.pp if layout.chunks > 1 else 1)
    return passes * weights, passes * (gradients + of.gathered * weights)


def block_bytes(work: Workload) -> dict[str, float]:
    """Return what a device sends in a block's forward pass of one micro-batch, by kind.

    "tensor" is for the sums of two matrices. Sequence parallelism sends a reduce-scatter and an
    all-gather instead, which is as much. "expert" is for tokens on the way to their experts and
    back, in the mean over layers, and "context" for keys and values around the ring.
    """
    a, layout = work.architecture, work.layout
    residual = LOW * work.tokens * a.n_embd
    chosen = a.n_active * residual * a.expert_layers / a.n_layer
    # In MLA, keys and values are expanded for each head.
    pairs = a.n_head * (a.qk_dim + a.value_dim) if a.kv_rank else 2 * a.n_kv_head * a.head_dim
    return {
        "tensor": 4 * gather_bytes(residual, layout.tp),
        "expert": 2 * gather_bytes(chosen / layout.tp, layout.ep),
        "context": (layout.cp - 1) * LOW * work.tokens * pairs / layout.tp,
    }


def traffic(work: Workload) -> dict[str, float]:
    """Return the bytes that one device sends in a step, by kind of parallelism."""
    a, layout, block = work.architecture, work.layout, block_bytes(work)
    blocks = layout.micro_batches * a.n_layer / layout.pp
    # Activations go forward and their gradients back, over the edges between chunks.
    edges = layout.micro_batches * (layout.chunks if layout.pp > 1 else 0)
    return {
        "data": sum(sum(pass_bytes(layout, of)) for of in replicas(a, layout)),
        "tensor": 2 * blocks * block["tensor"],
        "pipeline": edges * 2 * LOW * work.tokens * a.n_embd / layout.tp,
        "context": 3 * blocks * block["context"],  # on the way back, gradients travel, too
        "expert": 2 * blocks * block["expert"],
    }
