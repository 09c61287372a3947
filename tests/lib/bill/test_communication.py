"""The traffic of a layout equals what PyTorch's DDP, FSDP2 and tensor parallelism send."""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from cs336_course.pages.thousands_of_gpus import fake_ranks
from cs336_lib import accounting
from cs336_lib.bill import models
from cs336_lib.bill import traffic as comm
from cs336_lib.bill.traffic import Layout
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT
from cs336_lib.system.processes import World
from cs336_lib.training import distributed

CPU = torch.device("cpu")
SMALL = GPTConfig(block_size=16, vocab_size=128, n_layer=2, n_head=4, n_embd=64)


def shape_of(config: GPTConfig) -> accounting.Architecture:
    """Return our GPT's shape. Its output matrix is tied, and its vocabulary a multiple of 64."""
    raw = {"model_type": "gpt2", "n_positions": config.block_size}
    names = ("n_layer", "n_head", "n_embd", "vocab_size")
    return models.from_hugging_face(raw | {name: getattr(config, name) for name in names})


@contextmanager
def pretended(ranks: int):
    """Pretend to be rank 0 of many, which need no network."""
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def step(model: nn.Module, micro_batches: int = 1) -> None:
    for _ in range(micro_batches):
        idx = torch.zeros(1, SMALL.block_size, dtype=torch.long)
        model(idx, idx).backward()


def test_fsdp_sends_weights_twice_and_gradients_once_per_micro_batch():
    ranks, micro_batches = 16, 3
    with pretended(ranks), fake_ranks.Sent(ranks) as sent:
        model = GPT(SMALL)
        distributed.shard(model, CPU, World(size=ranks), torch.bfloat16, 0)
        step(model, micro_batches)
    layout = Layout(dp=ranks, zero=3, micro_batches=micro_batches)
    assert sum(sent.bytes.values()) == comm.traffic(shape_of(SMALL), layout, 16)["data"]
    assert set(sent.calls) == {"all-gather", "reduce-scatter"}


def test_fake_ranks_send_the_traffic():
    for layout, sequence in (
        (Layout(dp=4, micro_batches=2), False),
        (Layout(tp=8, micro_batches=2), False),
        (Layout(tp=8), True),
        (Layout(dp=128, tp=8, zero=3, micro_batches=2), True),
        (Layout(tp=8, pp=128, micro_batches=4), True),
    ):
        sends = fake_ranks.count(layout, sequence)
        expected = comm.traffic(fake_ranks.shape(layout), layout, fake_ranks.SEQ)
        assert sum(size for _, size in sends.values()) == sum(expected.values()), layout
        assert sends.get("send", (0, 0))[1] == expected["pipeline"]


def test_pipeline_context_and_experts():
    shape = models.model("mixtral-8x7b").architecture
    residual = 2 * 4096 * 4096  # bytes of bf16 for 4,096 tokens
    pipeline = comm.traffic(shape, Layout(pp=4, micro_batches=8), 4096)["pipeline"]
    assert pipeline == 8 * 2 * residual  # a stage in the middle
    chunked = Layout(pp=4, micro_batches=8, schedule="interleaved", chunks=2)
    assert comm.traffic(shape, chunked, 4096)["pipeline"] == 2 * pipeline
    expert = comm.traffic(shape, Layout(dp=8, ep=8), 4096)["expert"]
    assert expert == 32 * 4 * 2 * residual * 7 / 8  # two experts per token
    context = comm.traffic(shape, Layout(cp=4), 4096)["context"]
    assert context == 32 * 3 * 3 * 2 * 1024 * (2 * 8 * 128)
    assert comm.traffic(shape, Layout(), 4096) == dict.fromkeys(
        ("data", "tensor", "pipeline", "context", "expert"), 0
    )
