"""Training in simulated formats: the failures are real, and so are the rescues."""

import pytest
import torch

from cs336_course.shared import low_precision
from cs336_course.shared.number_formats import BF16


def fp16(x: torch.Tensor) -> torch.Tensor:
    return x.half().float()


def test_rounding_is_applied_to_values_and_gradients():
    x = torch.tensor([1 + 2**-9, 1.0], requires_grad=True)
    y = low_precision.Rounded.apply(x, lambda t: t.bfloat16().float())
    (y * torch.tensor([1 + 2**-9, 3.0])).sum().backward()
    assert y.tolist() == [1.0, 1.0]
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 3.0]


def test_stochastic_rounding_is_right_on_average_and_gives_neighbors():
    torch.manual_seed(0)
    x = torch.full((20_000,), -(1 + 2**-9))
    rounded = low_precision.stochastic_bf16(x)
    assert sorted(set(rounded.tolist())) == [-(1 + 2**-7), -1.0]
    assert rounded.mean().item() == pytest.approx(x[0].item(), abs=1e-4)
    stored = torch.tensor([BF16.decode(code) for code in (0x3F80, 0x4049, 0xC049)])
    assert torch.equal(low_precision.stochastic_bf16(stored), stored)


def test_dividing_the_loss_by_two_to_the_19_changes_nothing_in_fp32():
    plain, scaled = (low_precision.train(steps=4, loss_scale=scale) for scale in (1.0, 2.0**19))
    assert plain.losses == pytest.approx(scaled.losses, rel=1e-5)


def test_fp16_loses_gradients_that_loss_scaling_saves():
    lost = low_precision.train(compute=fp16, steps=3)
    saved = low_precision.train(compute=fp16, loss_scale=2.0**16, steps=3)
    assert lost.silent > 0.1
    assert saved.silent < 0.01


def test_averages_can_be_rounded_without_the_weights():
    first = low_precision.train(steps=2)
    rounded = low_precision.train(steps=2, averages=torch.zeros_like)
    kept = low_precision.train(steps=2, store=lambda x: x.bfloat16().float())
    assert rounded.losses[0] == first.losses[0] != kept.losses[0]
    assert rounded.losses[1] == pytest.approx(first.losses[1], rel=1e-5)
    assert low_precision.train(steps=3, averages=torch.zeros_like).losses[2] != pytest.approx(
        low_precision.train(steps=3).losses[2], rel=1e-6
    )


def test_two_formats_stop_in_the_valley_and_the_third_arrives():
    fp32, fp16_path = low_precision.valley(), low_precision.valley(fp16)
    bf16_path = low_precision.valley(*2 * (lambda w: w.bfloat16().float(),))
    assert (fp32[-1] - 1).norm() < 0.1
    for path in (fp16_path, bf16_path):
        assert torch.equal(path[-1], path[-1000])
        assert (path[-1] - 1).norm() > 0.5
