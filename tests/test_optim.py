import dataclasses

import pytest
import torch

from cs336_lib.config import TrainConfig
from cs336_lib.model import GPT
from cs336_lib.optim import learning_rate, make_optimizer, parameter_groups, set_learning_rate


def test_schedule_endpoints():
    config = TrainConfig(learning_rate=1e-3, min_learning_rate=1e-4, warmup_steps=10, max_steps=100)
    rates = [learning_rate(step, config) for step in range(100)]
    assert rates[0] == pytest.approx(1e-4)  # a tenth of the peak
    assert rates[9] == 1e-3
    assert rates[99] == 1e-4
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    middle = (9 + 99) // 2
    assert rates[middle] == pytest.approx((1e-3 + 1e-4) / 2)


@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (0, 5), (1, 1), (5, 5), (4, 5)])
def test_schedule_at_its_edges(warmup, steps):
    config = TrainConfig(warmup_steps=warmup, max_steps=steps)
    rates = [learning_rate(step, config) for step in range(steps)]
    assert all(0 < rate <= config.learning_rate for rate in rates)
    if warmup < steps - 1:
        assert rates[-1] == config.min_learning_rate
    if warmup <= 1:
        assert rates[0] == config.learning_rate


def test_matrices_decay_and_vectors_do_not(tiny_config):
    model = GPT(tiny_config)
    decayed, kept = parameter_groups(model, 0.1)
    assert decayed["weight_decay"] == 0.1
    assert kept["weight_decay"] == 0.0
    assert all(p.dim() == 2 for p in decayed["params"])
    assert all(p.dim() == 1 for p in kept["params"])
    assert len(decayed["params"]) + len(kept["params"]) == len(list(model.parameters()))


def test_adamw_is_fused_and_equals_torch_unfused(tiny_config):
    config = TrainConfig()
    fused_model, plain_model = GPT(tiny_config), GPT(tiny_config)
    plain_model.load_state_dict(fused_model.state_dict())
    fused = make_optimizer(fused_model, config)
    assert fused.defaults["fused"] is True
    plain = torch.optim.AdamW(
        parameter_groups(plain_model, 0.1), lr=6e-4, betas=(0.9, 0.95), eps=1e-8, fused=False
    )
    # Given gradients, not computed ones: where those are rounding noise, Adam makes it a full step.
    for _ in range(5):
        for a, b in zip(fused_model.parameters(), plain_model.parameters(), strict=True):
            a.grad = b.grad = torch.randn_like(a)
        fused.step()
        plain.step()
    for a, b in zip(fused_model.parameters(), plain_model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_padded_rows_stay_zero(tiny_config):
    model = GPT(tiny_config)
    optimizer = make_optimizer(model, dataclasses.replace(TrainConfig(), weight_decay=1.0))
    idx = torch.randint(50, (4, 16))
    for _ in range(3):
        model(idx, idx).backward()
        optimizer.step()
    assert not model.transformer.wte.weight[50:].any()


def test_set_learning_rate_reaches_every_group(tiny_config):
    optimizer = make_optimizer(GPT(tiny_config), TrainConfig())
    set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
