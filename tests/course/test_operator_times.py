"""Test the times, FLOPs and bytes of a training step's operators."""

import pytest
import torch

from cs336_course.pages.compute.story import (
    KINDS,
    OperatorTimes,
    cost_table,
    step_and_operators,
    time_operators,
)
from cs336_course.shared import roofline
from cs336_lib import accounting
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT

CPU = torch.device("cpu")


def test_flops_and_bytes_are_those_of_the_shapes():
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    with OperatorTimes(CPU, "other") as watch:
        (a @ b).T.relu()
    matmul, relu = watch.operations  # a transpose is a view and moves no data
    assert (matmul.name, matmul.kind, matmul.work) == (
        "mm",
        "matmul",
        roofline.matmul_work(3, 4, 5, 4),
    )
    assert (relu.name, relu.kind, relu.work) == (
        "relu",
        "other",
        roofline.elementwise_work(15, 1, 4),
    )
    assert matmul.seconds > 0


def test_an_expanded_tensor_has_the_bytes_of_its_memory():
    with OperatorTimes(CPU) as watch:
        torch.ones(1).expand(1000) + 1
    assert watch.operations[-1].work == roofline.Work(1000, 4 + 4000)


@pytest.mark.parametrize("batch", [1, 2])
def test_matmuls_of_a_step_have_the_flops_of_the_formula(batch):
    config = GPTConfig(n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=64)
    model, tokens = GPT(config), torch.zeros(batch, 16, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    operations = time_operators(lambda: model(tokens, tokens), optimizer, CPU)
    matmuls = [op for op in operations if op.name in ("mm", "addmm", "bmm")]
    by_formula = accounting.train_flops_per_token(config) * tokens.numel()
    assert sum(op.work.flops for op in matmuls) == by_formula
    assert {op.kind for op in operations} == {*KINDS, "element-wise, norms", "AdamW"}
    after = model.parameters()
    assert not all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_a_step_and_its_operators_are_timed_in_turns_and_added_up():
    layer, x = torch.nn.Linear(8, 8, bias=False), torch.ones(4, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    seconds, operations = step_and_operators(lambda: layer(x).sum(), optimizer, CPU, rounds=2)
    assert seconds > 0
    once = time_operators(lambda: layer(x).sum(), optimizer, CPU)
    assert [op.work for op in operations] == [op.work for op in once]
    rows = cost_table(operations, roofline.Roof("", peak=1e6, bandwidth=1e12)).splitlines()
    matmul = next(row for row in rows if row.startswith("matmul"))
    flops = 2 * 2 * 4 * 8 * 8  # forward, and the weights' gradient
    assert float(matmul.split()[-1]) == pytest.approx(1e3 * flops / 1e6, abs=0.01)
    assert "roofline" not in cost_table(operations)
