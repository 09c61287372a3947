"""The traffic of a layout equals what PyTorch's FSDP2 and tensor parallelism send."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from cs336_course.pages.thousands_of_gpus.fsdp_units import Sent, rank_0_of
from cs336_lib.accounting import Architecture
from cs336_lib.bill import models
from cs336_lib.bill import traffic as comm
from cs336_lib.bill.traffic import Layout, Workload

SEQ, LAYERS, HEADS = 32, 2, 8


class Attention(nn.Module):
    """Causal attention with separate matrices, whose heads can be split over ranks."""

    def __init__(self, width: int):
        super().__init__()
        self.head_dim = width // HEADS
        self.qkv = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (m(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for m in self.qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer block without biases."""

    def __init__(self, width: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.attention = Attention(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def sent(layout: Layout, width: int, sequence: bool) -> int:
    """Run a training step as one rank of many, and return the bytes that it sends."""
    model = nn.Sequential(*(Block(width) for _ in range(LAYERS)), nn.RMSNorm(width)).bfloat16()
    blocks = list(model)[:LAYERS]
    between = Shard(1) if sequence else Replicate()
    plan = {
        "attention": PrepareModuleInput(
            input_layouts=(between,), desired_input_layouts=(Replicate(),)
        ),
        "attention.qkv.*": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=between),
        "up": ColwiseParallel(input_layouts=between),
        "down": RowwiseParallel(output_layouts=between),
    }
    with rank_0_of(layout.devices):
        # DTensor caches by mesh. A new name keeps it from finding process groups that are gone.
        names = ("dp", f"tp of {layout} {sequence}")
        mesh = init_device_mesh("cpu", (layout.dp, layout.tp), mesh_dim_names=names)
        for block in blocks:
            parallelize_module(block, mesh[names[1]], plan)
        if layout.zero == 3:
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
            for unit in (*blocks, model):
                fully_shard(unit, mesh=mesh["dp"], mp_policy=policy)
        tokens = SEQ // layout.tp if sequence else SEQ
        with Sent(layout.tp) as counted:
            for _ in range(layout.micro_batches):
                x = torch.zeros(1, tokens, width, dtype=torch.bfloat16, requires_grad=True)
                model(x).sum().backward()
    return sum(counted.bytes.values())


@pytest.mark.parametrize(
    ("layout", "sequence"),
    [
        (Layout(tp=8, micro_batches=2), False),
        (Layout(tp=8), True),
        (Layout(dp=128, tp=8, zero=3, micro_batches=2), True),
    ],
)
def test_fake_ranks_send_the_traffic(layout, sequence):
    width = max(64, layout.devices)  # all tensors can be divided evenly
    shape = Architecture(
        n_layer=LAYERS,
        n_embd=width,
        n_head=HEADS,
        n_kv_head=HEADS,
        head_dim=width // HEADS,
        vocab_size=0,
        block_size=SEQ,
        mlp_width=4 * width,
        gated=False,
    )
    assert sent(layout, width, sequence) == sum(comm.traffic(Workload(shape, layout, SEQ)).values())


def test_pipeline_context_and_experts():
    shape = models.model("mixtral-8x7b").architecture

    def of(**layout: int) -> dict[str, float]:
        return comm.traffic(Workload(shape, Layout(**layout), 4096))

    residual = 2 * 4096 * 4096  # bytes of bf16 for 4,096 tokens
    pipeline = of(pp=4, micro_batches=8)["pipeline"]
    assert pipeline == 8 * 2 * residual  # a stage in the middle
    assert of(pp=4, micro_batches=8, chunks=2)["pipeline"] == 2 * pipeline
    assert of(dp=8, ep=8)["expert"] == 32 * 4 * 2 * residual * 7 / 8  # two experts per token
    assert of(cp=4)["context"] == 32 * 3 * 3 * 2 * 1024 * (2 * 8 * 128)
    assert of() == dict.fromkeys(("data", "tensor", "pipeline", "context", "expert"), 0)
