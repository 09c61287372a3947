"""A small run repeats itself, and a step's dtypes are those that autocast promises."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from cs336_course.shared.resumable_run import SmallRun, dtypes_of_step

TOKENS = np.arange(1000, dtype=np.uint16) % 11


def test_a_run_depends_on_its_seed_alone():
    first, again, other = (SmallRun(TOKENS, 11, seed).until(5) for seed in (0, 0, 1))
    assert first == again != other


def test_until_continues_where_the_run_stands():
    run = SmallRun(TOKENS, 11, seed=0)
    assert len(run.until(3)) == 3
    assert len(run.until(5)) == 2
    assert run.step == run.schedule.last_epoch == 5


def test_targets_are_the_next_tokens():
    x, y = SmallRun(TOKENS, 11, seed=0).batch()
    assert torch.equal((x + 1) % 11, y)


@pytest.mark.parametrize(
    ("autocast", "inside"),
    [(nullcontext(), "float32"), (torch.autocast("cpu", dtype=torch.bfloat16), "bfloat16")],
)
def test_dtypes_of_a_step(autocast, inside):
    linear, gelu = nn.Linear(4, 4), nn.GELU()
    optimizer = torch.optim.AdamW(linear.parameters())
    x = torch.randn(2, 4)
    seen = dtypes_of_step(
        {"linear": linear, "gelu": gelu},
        optimizer,
        lambda: gelu(linear(x)).float().sum(),
        autocast,
    )
    assert seen["forward"] == [("linear", inside), ("gelu", inside), ("loss", "float32")]
    assert seen["backward"] == [("gelu", inside), ("linear", inside)]
    for stage in ("weights", "weight grads", "AdamW state"):
        assert seen[stage] == [("linear", "float32")]
    assert not linear._forward_hooks
