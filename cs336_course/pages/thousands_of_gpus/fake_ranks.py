"""Count the collectives of one rank among thousands, with PyTorch's fake process group."""

import itertools
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from cs336_lib.accounting import Architecture
from cs336_lib.bill.traffic import Layout, require_fit
from cs336_lib.config import UserError

SEQ, LAYERS = 32, 2  # tokens in a sequence, and blocks on each stage
STEPS = itertools.count()

Sends = dict[str, tuple[int, int]]  # calls and bytes that a rank sends, by collective


class Sent(TorchDispatchMode):
    """Count the calls and the bytes that a rank sends in rings, by collective.

    Args:
        ranks: Number of ranks that take part in an all-reduce.
    """

    def __init__(self, ranks: int):
        super().__init__()
        self.ranks = ranks
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, and count it if it sends something."""
        result = function(*args, **(kwargs or {}))
        name = str(function).split(".")[1]
        if name in ("_allgather_base_", "all_gather_into_tensor"):
            parts = args[:2] if name == "_allgather_base_" else (result, args[0])
            self.count("all-gather", parts[0].nbytes - parts[1].nbytes)
        elif name in ("_reduce_scatter_base_", "reduce_scatter_tensor"):
            parts = args[:2] if name == "_reduce_scatter_base_" else (result, args[0])
            self.count("reduce-scatter", parts[1].nbytes - parts[0].nbytes)
        elif name in ("allreduce_", "all_reduce"):
            tensors = args[0] if name == "allreduce_" else [args[0]]
            size = sum(tensor.nbytes for tensor in tensors)
            self.count("all-reduce", 2 * size * (self.ranks - 1) // self.ranks)
        elif name == "send":
            self.count("send", sum(tensor.nbytes for tensor in args[0]))
        return result

    def count(self, collective: str, size: int) -> None:
        """Add a call that sends `size` bytes."""
        self.calls[collective] += 1
        self.bytes[collective] += size

    def sends(self) -> Sends:
        """Return what was counted."""
        return {name: (self.calls[name], self.bytes[name]) for name in self.calls}


class Attention(nn.Module):
    """Causal attention with separate matrices, whose heads can be split over ranks."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.head_dim = width // heads
        self.qkv = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the tokens of x (batch, tokens, width)."""
        q, k, v = (rearrange(one(x), "b t (h d) -> b h t d", d=self.head_dim) for one in self.qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(rearrange(y, "b h t d -> b t (h d)"))


class Block(nn.Module):
    """A transformer block without biases."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream (batch, tokens, width) after the block."""
        x = x + self.attention(self.norms[0](x))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def shape(layout: Layout) -> Architecture:
    """Return the small model that `count` spreads, whose tensors can all be divided evenly.

    It has no vocabulary.
    """
    width = max(64, layout.dp * layout.tp)
    heads = max(8, layout.tp)
    return Architecture(
        n_layer=LAYERS * layout.pp,
        n_embd=width,
        n_head=heads,
        n_kv_head=heads,
        head_dim=width // heads,
        vocab_size=0,
        block_size=SEQ,
        mlp_width=4 * width,
        gated=False,
    )


def count(layout: Layout, sequence: bool = False) -> Sends:
    """Run a training step as one rank of many, and count what it sends.

    The other ranks don't exist, and a fake process group answers for them at once. In a pipeline,
    the rank is on a middle stage. It sends activations as they are, so without `sequence` each of
    the `tp` ranks sends all of them. FSDP2 prefetches one block too many in a pipeline.

    Args:
        layout: DDP (`zero` 0) or FSDP2 (`zero` 3), tensor and pipeline parallelism.
        sequence: Whether tensor parallelism also splits the residual stream.

    Returns:
        Calls and bytes by collective.

    Raises:
        UserError: If the layout has other kinds of parallelism or needs too large a model, or if
            the process already has a process group.

    Example:
        fake_ranks.count(Layout(dp=128, tp=8, zero=3))
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not layout.cp == layout.ep == 1:
        raise UserError("cp and ep can't be counted; 1 expected")
    size = layout.dp * layout.tp
    if size > 2048:
        raise UserError(f"dp x tp is {size}; at most 2048 expected, so that the model is small")
    if dist.is_initialized():
        raise UserError("a process group exists; call dist.destroy_process_group()")
    middle = layout.pp // 2 * size
    dist.init_process_group("fake", rank=middle, world_size=layout.devices, store=FakeStore())
    try:
        return run_step(layout, sequence)
    finally:
        dist.destroy_process_group()


def run_step(layout: Layout, sequence: bool = False) -> Sends:
    """Run a training step in the default process group, and count what this rank sends."""
    require_fit(shape(layout), layout, SEQ)
    sharded = layout.zero == 3 or layout.dp == 1
    if not sharded and (layout.zero > 0 or layout.tp > 1 or layout.pp > 1):
        raise UserError("ZeRO-1, ZeRO-2, and DDP with tp or pp can't be counted; use zero 3")
    # DTensor caches by mesh. A new name keeps it from finding process groups that are gone.
    names = ("pp", "dp", f"tp{next(STEPS)}")
    mesh = init_device_mesh("cpu", (layout.pp, layout.dp, layout.tp), mesh_dim_names=names)
    model = spread(layout, mesh["dp"], mesh[names[2]], sequence)
    # A step has one kind of all-reduce, in tensor parallelism or in DDP.
    with Sent(layout.tp if layout.tp > 1 else layout.dp) as sent:
        run_passes(model, layout, SEQ // layout.tp if sequence else SEQ)
    return sent.sends()


def spread(layout: Layout, dp: DeviceMesh, tp: DeviceMesh, sequence: bool) -> nn.Module:
    """Return this rank's stage of the model, spread over the replicas and the parts of matrices."""
    a = shape(layout)
    stage = nn.Sequential(*(Block(a.n_embd, a.n_head) for _ in range(LAYERS)))
    if layout.pp == 1:
        stage.append(nn.RMSNorm(a.n_embd))
    if layout.tp > 1:
        between = Shard(1) if sequence else Replicate()
        inputs = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
        plan = {
            "attention": inputs,
            "attention.qkv.*": ColwiseParallel(),
            "attention.out": RowwiseParallel(output_layouts=between),
            "up": ColwiseParallel(input_layouts=between),
            "down": RowwiseParallel(output_layouts=between),
        }
        for block in list(stage)[:LAYERS]:
            parallelize_module(block, tp, plan)
    if layout.dp == 1:
        return stage.bfloat16()
    if layout.zero == 0:
        model = DistributedDataParallel(stage)
        model.register_comm_hook(None, average)
        return model
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in list(stage)[:LAYERS]:
        fully_shard(block, mesh=dp, mp_policy=policy)
    fully_shard(stage, mesh=dp, mp_policy=policy)
    return stage


def average(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket of gradients. `Sent` can't see the calls of DDP itself, which are in C++."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    dist.all_reduce(buffer)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done


def run_passes(model: nn.Module, layout: Layout, tokens: int) -> None:
    """Run all forward passes of a step and then all backward passes, as GPipe does."""
    ranks = layout.dp * layout.tp  # from a stage to the next
    stage = dist.get_rank() // ranks
    first, last = stage == 0, stage == layout.pp - 1
    size = (layout.micro_batch, tokens, shape(layout).n_embd)
    dtype = torch.float32 if isinstance(model, DistributedDataParallel) else torch.bfloat16

    def received(stage: int) -> Tensor:
        x = torch.zeros(size, dtype=dtype)
        dist.recv(x, stage * ranks + dist.get_rank() % ranks)
        return x

    def send(x: Tensor, stage: int) -> None:
        dist.send(x, stage * ranks + dist.get_rank() % ranks)

    forwards: list[tuple[Tensor, Tensor]] = []
    for number in range(layout.micro_batches):
        x = torch.zeros(size, dtype=dtype) if first else received(stage - 1)
        x.requires_grad_()
        if isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = number == layout.micro_batches - 1
            model(x).sum().backward()
            continue
        y = model(x)
        if not last:
            send(y.detach(), stage + 1)
        forwards.append((x, y))
    for x, y in forwards:
        y.backward(torch.ones_like(y) if last else received(stage + 1))
        if not first and x.grad is not None:
            send(x.grad, stage - 1)
