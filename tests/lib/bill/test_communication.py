"""The traffic of a layout equals what PyTorch's DDP, FSDP2 and tensor parallelism send."""

from cs336_course.pages.thousands_of_gpus import fake_ranks
from cs336_lib.bill import models
from cs336_lib.bill import traffic as comm
from cs336_lib.bill.traffic import Layout


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
