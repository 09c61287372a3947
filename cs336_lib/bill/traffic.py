"""Count the bytes that each device sends in a training step, by kind of parallelism."""

from dataclasses import dataclass
from typing import NamedTuple

from cs336_lib.accounting import Architecture, parameter_counts
from cs336_lib.config import UserError

LOW, HIGH = 2, 4  # bytes of bf16 activations and weights, and of fp32 gradients


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


def misfit(a: Architecture, layout: Layout, seq: int) -> str:
    """Return why a model can't be spread in this way, or "" if it can."""
    stages = layout.pp * layout.chunks
    # The first and the last chunk may have only the embedding and the output matrix.
    most = a.n_layer + 2
    problems = {
        f"{a.n_head} query heads can't be split over tp {layout.tp}": a.n_head % layout.tp,
        f"{seq} tokens in a sequence can't be split over twice cp {layout.cp}": layout.cp > 1
        and seq % (2 * layout.cp),
        "a model without experts has ep 1": layout.ep > 1 and not a.n_expert,
        f"{a.n_expert} experts can't be split over ep {layout.ep}": a.n_expert % layout.ep,
        f"{layout.dp} replicas can't be split over ep {layout.ep}": layout.dp % layout.ep,
        f"{a.n_layer} layers have at most {most} chunks; pp x chunks is {stages}": stages > most,
        f"{layout.micro_batches} micro-batches can't be interleaved over pp {layout.pp}": (
            layout.chunks > 1 and layout.micro_batches % layout.pp
        ),
    }
    return next((problem for problem, found in problems.items() if found), "")


def require_fit(a: Architecture, layout: Layout, seq: int) -> None:
    """Raise `UserError` if a model can't be spread in this way."""
    if layout.zero not in (0, 1, 2, 3):
        raise UserError(f"zero is {layout.zero}; 0, 1, 2 or 3 expected")
    if problem := misfit(a, layout, seq):
        raise UserError(problem)


# Bytes that a device sends in a ring of n devices, for a tensor of `size` bytes in all


def all_gather_bytes(size: float, n: int) -> float:
    """Return what each device sends in an all-gather or a reduce-scatter."""
    return size * (n - 1) / n


def all_reduce_bytes(size: float, n: int) -> float:
    """Return what each device sends in an all-reduce, a reduce-scatter and an all-gather."""
    return 2 * all_gather_bytes(size, n)


def layer_parameters(a: Architecture, layout: Layout) -> tuple[float, float]:
    """Return the parameters of all blocks on one device: those outside of experts, and experts.

    Tensor parallelism splits matrices and not vectors, and a stage has 1 / pp of the layers.
    """
    counts = parameter_counts(a)
    split = sum(counts[part] for part in ("attention", "mlp", "shared experts", "router"))
    outside = split / layout.tp + counts["norms"] - a.norm_size  # without the last norm
    experts = counts["experts"] / layout.tp / layout.ep
    return outside / layout.pp, experts / layout.pp


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
    counts = parameter_counts(a)
    outside, experts = layer_parameters(a, layout)
    root = (counts["wte"] + counts["wpe"]) / layout.tp
    if layout.pp == 1:
        root += counts["output"] / layout.tp + a.norm_size
    shared = layout.dp * layout.cp
    return (
        Replicas(root, 0, shared, layout.tp),
        Replicas(outside, 1, shared, layout.tp),
        Replicas(experts, 1, layout.dp // layout.ep, layout.tp * layout.cp * layout.ep),
    )


def pass_bytes(layout: Layout, of: Replicas) -> tuple[float, float]:
    """Return what a device sends for weights and gradients in a step, by forward and backward pass.

    DDP all-reduces fp32 gradients once. ZeRO-1 reduce-scatters them once, and all-gathers the bf16
    weights before the next forward pass. ZeRO-2 keeps a shard of the gradients only, so it can't
    add up those of several micro-batches, and reduce-scatters them in each (ServiceNow's Fast-LLM,
    docs/user_guide/multi-stage.md). This is why DeepSpeed refuses it in a pipeline
    (github.com/deepspeedai/DeepSpeed, issues 823 and 4164). An interleaved pipeline runs `pp`
    micro-batches through a chunk in a row, and adds up the gradients of this chunk before it sends
    them. ZeRO-3 also gathers the weights in each micro-batch, and again for the backward pass, as
    FSDP2 does.
    """
    gradients = all_gather_bytes(HIGH * of.parameters, of.size)
    weights = all_gather_bytes(LOW * of.parameters, of.size)
    passes = layout.micro_batches
    if layout.zero == 0:
        return 0.0, 2 * gradients
    if layout.zero == 1:
        return weights, gradients
    if layout.zero == 2:
        return weights, gradients * passes / (layout.pp if layout.chunks > 1 else 1)
    return passes * weights, passes * (gradients + of.gathered * weights)


class BlockBytes(NamedTuple):
    """Bytes that a device sends in a block's forward pass of one micro-batch.

    Attributes:
        tensor: For the sums of two matrices. Sequence parallelism sends a reduce-scatter and an
            all-gather instead, which is as much.
        expert: For tokens on the way to their experts and back, in the mean over layers.
        context: For keys and values around the ring.
    """

    tensor: float
    expert: float
    context: float


def block_bytes(a: Architecture, layout: Layout, seq: int, copies: int | None = None) -> BlockBytes:
    """Return what a device sends in a block's forward pass of one micro-batch.

    Args:
        a: The model.
        layout: How it is spread.
        seq: Tokens in a sequence.
        copies: How often a token travels to its experts (None: once to each).
    """
    tokens = layout.micro_batch * seq / layout.cp
    residual = LOW * tokens * a.n_embd
    chosen = (a.n_active if copies is None else copies) * residual * a.expert_layers / a.n_layer
    # In MLA, keys and values are expanded for each head.
    pairs = a.n_head * (a.qk_dim + a.value_dim) if a.kv_rank else 2 * a.n_kv_head * a.head_dim
    return BlockBytes(
        tensor=2 * all_reduce_bytes(residual, layout.tp),
        expert=2 * all_gather_bytes(chosen / layout.tp, layout.ep),
        context=(layout.cp - 1) * LOW * tokens * pairs / layout.tp,
    )


def traffic(a: Architecture, layout: Layout, seq: int) -> dict[str, float]:
    """Return the bytes that one device sends in a step, by kind of parallelism.

    Raises:
        UserError: If the model doesn't fit the layout.
    """
    require_fit(a, layout, seq)
    block, passes = block_bytes(a, layout, seq), layout.micro_batches
    blocks = passes * a.n_layer / layout.pp
    # Activations go forward and their gradients back, over the edges between chunks.
    edges = layout.chunks if layout.pp > 1 else 0
    residual = LOW * layout.micro_batch * seq / layout.cp * a.n_embd
    return {
        "data": sum(sum(pass_bytes(layout, of)) for of in replicas(a, layout)),
        "tensor": 2 * blocks * block.tensor,
        "pipeline": passes * edges * 2 * residual / layout.tp,
        "context": 3 * blocks * block.context,  # on the way back, gradients travel, too
        "expert": 2 * blocks * block.expert,
    }
