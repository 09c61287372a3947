"""Training in simulated formats: what the page says of it and doesn't print."""

import pytest
import torch

from cs336_course.shared import low_precision


def test_rounding_is_applied_to_values_and_gradients():
    x = torch.tensor([1 + 2**-9, 1.0], requires_grad=True)
    y = low_precision.Rounded.apply(x, lambda t: t.bfloat16().float())
    (y * torch.tensor([1 + 2**-9, 3.0])).sum().backward()
    assert y.tolist() == [1.0, 1.0]
    assert x.grad.tolist() == [1.0, 3.0]


def test_dividing_the_loss_by_two_to_the_19_changes_nothing_in_fp32():
    plain, scaled = (low_precision.train(steps=4, loss_scale=scale) for scale in (1.0, 2.0**19))
    assert plain.losses == pytest.approx(scaled.losses, rel=1e-5)


def test_two_formats_stop_in_the_valley_of_the_cover_and_the_third_arrives():
    fp16, bf16 = (lambda w, dtype=d: w.to(dtype).float() for d in (torch.float16, torch.bfloat16))
    assert (low_precision.valley()[-1] - 1).norm() < 0.1
    for path in (low_precision.valley(fp16), low_precision.valley(bf16, bf16)):
        assert torch.equal(path[-1], path[-1000])
        assert (path[-1] - 1).norm() > 0.5
