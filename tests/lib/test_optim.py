import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cs336_lib.config import TrainConfig
from cs336_lib.model import GPT
from cs336_lib.optim import make_optimizer, parameter_groups
from cs336_lib.schedule import batch_windows, learning_rate, windows_before


@pytest.mark.parametrize(("schedule", "quarter"), [("cosine", 0.854), ("linear", 0.75)])
def test_schedule_endpoints(schedule, quarter):
    config = TrainConfig(
        learning_rate=1e-3,
        min_learning_rate=1e-4,
        warmup_steps=10,
        max_steps=101,
        schedule=schedule,
    )
    rates = [learning_rate(step, config) for step in range(101)]
    assert rates[0] == pytest.approx(1e-4)  # a tenth of the peak
    assert rates[9] == 1e-3
    assert rates[100] == 1e-4
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    # From step 9 to step 100; a cosine has fallen by (1 - cos 45 deg) / 2 after a quarter.
    assert rates[9 + 91 // 4] == pytest.approx(1e-4 + quarter * 9e-4, rel=0.01)


def test_matrices_decay_and_vectors_do_not(tiny_config):
    model = GPT(tiny_config)
    decayed, kept = parameter_groups(model, 0.1)
    assert decayed["weight_decay"] == 0.1
    assert kept["weight_decay"] == 0.0
    assert all(p.dim() == 2 for p in decayed["params"])
    assert all(p.dim() == 1 for p in kept["params"])
    assert len(decayed["params"]) + len(kept["params"]) == len(list(model.parameters()))


def test_muon_takes_the_blocks_matrices_and_adamw_the_rest(tiny_config):
    model = GPT(tiny_config)
    optimizer = make_optimizer(model, dataclasses.replace(TrainConfig(), optimizer="muon"))
    names = {p: name for name, p in model.named_parameters()}
    inside, outside, vectors = ({names[p] for p in g["params"]} for g in optimizer.param_groups)
    assert inside == {n for n in names.values() if ".h." in n and n.endswith("weight")} - vectors
    assert outside == {"transformer.wte.weight", "transformer.wpe.weight"}
    assert vectors == {n for n in names.values() if n.endswith("bias") or ".ln_" in n}
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1, 0.1, 0.0]


def test_muon_steps_as_torchs_does(tiny_config):
    """torch.optim.Muon is the reference, given q, k, v as three; in bf16, hence the tolerance."""
    config = TrainConfig(optimizer="muon", learning_rate=1e-2, momentum=0.9, weight_decay=5.0)
    model = GPT(tiny_config)
    optimizer = make_optimizer(model, config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    parts = {
        name: [nn.Parameter(part) for part in p.clone().chunk(3 if "c_attn" in name else 1)]
        for name, p in before.items()
        if ".h." in name and p.dim() == 2
    }
    reference = torch.optim.Muon(
        [part for found in parts.values() for part in found],
        **{"lr": 1e-2, "weight_decay": 5.0, "momentum": 0.9, "adjust_lr_fn": "match_rms_adamw"},
    )
    for _ in range(3):
        for name, p in model.named_parameters():
            p.grad = torch.randn_like(p)
            found = parts.get(name, [])
            for part, gradient in zip(found, p.grad.chunk(max(len(found), 1)), strict=False):
                part.grad = gradient.clone()
        optimizer.step()
        reference.step()
    for name, p in model.named_parameters():
        moved = (p - before[name]).norm()
        assert moved > 0, name
        if name in parts:
            assert (p - torch.cat(parts[name])).norm() < 0.05 * moved, name


@given(st.integers(1, 40), st.integers(1, 200), st.integers(1, 90), st.integers(0, 120))
def test_windows_of_a_growing_batch_are_summed(first, more, growth, step):
    config = TrainConfig(
        block_size=8,
        batch_tokens=8 * (first + more),
        initial_batch_tokens=8 * first,
        batch_growth_steps=growth,
        max_steps=1000,
    )
    assert windows_before(step, config) == sum(batch_windows(n, config) for n in range(step))
