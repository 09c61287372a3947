"""The toys: shapes, counts, surfaces with the curvature they claim, and a descent by hand."""

import math
from functools import partial

import pytest
import torch

from cs336_lib.classroom import optimizers, toys


def hessian(surface, point):
    return torch.autograd.functional.hessian(surface, torch.tensor(point))


def test_cruncher_has_the_parameters_it_says():
    model = toys.Cruncher(dim=4, num_layers=2)
    shapes = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    assert shapes == {"layers.0.weight": (4, 4), "layers.1.weight": (4, 4), "final.weight": (4, 1)}
    assert sum(p.numel() for p in model.parameters()) == 2 * 4 * 4 + 4
    assert model(torch.ones(8, 4)).shape == (8,)


def test_linear_keeps_the_scale_of_its_input():
    torch.manual_seed(0)
    y = toys.Linear(1024, 256)(torch.randn(256, 1024))
    assert y.std().item() == pytest.approx(1, abs=0.02)


def test_ravine_has_the_same_curvatures_however_it_is_turned():
    for degrees in (0.0, 30.0, 45.0, 90.0):
        ravine = partial(toys.ravine, degrees=degrees)
        curvatures = torch.linalg.eigvalsh(hessian(ravine, [0.3, -1.0]))
        expected = torch.tensor([1.0, toys.RAVINE_CURVATURE])
        assert torch.allclose(curvatures, expected, rtol=1e-4), degrees


def test_turned_ravine_runs_along_its_direction():
    along = torch.tensor([math.cos(math.radians(30)), math.sin(math.radians(30))])
    assert toys.ravine(2 * along, degrees=30).item() == pytest.approx(0.5 * 4, rel=1e-5)


def test_saddle_is_one_and_has_two_minima():
    assert hessian(toys.saddle, [0.0, 0.0]).diag().tolist() == [1.0, -1.0]
    for y in (1.0, -1.0):
        minimum = torch.tensor([0.0, y], requires_grad=True)
        value = toys.saddle(minimum)
        value.backward()
        assert value.item() == -0.25
        assert minimum.grad.abs().max() == 0
        assert hessian(toys.saddle, [0.0, y]).diag().tolist() == [1.0, 2.0]


def test_surfaces_take_grids():
    grid = torch.randn(5, 7, 2)
    for surface in (toys.ravine, toys.saddle, toys.bowl):
        assert surface(grid).shape == (5, 7)
        assert torch.allclose(surface(grid)[2, 3], surface(grid[2, 3]))


def test_descend_on_the_bowl_by_hand():
    path = toys.descend(toys.bowl, (4.0, -2.0), partial(optimizers.SGD, lr=0.5), steps=3)
    halves = torch.tensor([1.0, 0.5, 0.25, 0.125])
    assert torch.equal(path, halves[:, None] * torch.tensor([4.0, -2.0]))


def test_descend_adds_the_noise_to_the_gradient():
    noise = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    path = toys.descend(toys.bowl, (0.0, 0.0), partial(optimizers.SGD, lr=1.0), 2, noise)
    # At learning rate 1 the bowl's own gradient takes the point to 0, and the noise past it.
    assert torch.equal(path[1:], -noise)


def test_rare_features_occur_as_often_as_they_should():
    x, y, weights = toys.rare_features(20_000, 8, torch.Generator().manual_seed(0))
    chances = 1 / torch.arange(1, 9)
    assert torch.allclose(x.mean(0), chances, atol=0.02)
    assert set(weights.tolist()) == {-1.0, 1.0}
    assert torch.equal(y, x @ weights)
    again = toys.rare_features(20_000, 8, torch.Generator().manual_seed(0))[0]
    assert torch.equal(x, again)
