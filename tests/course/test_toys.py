"""The toys: shapes, counts, surfaces with the curvature they claim, and a descent by hand."""

import math
from functools import partial

import pytest
import torch

from cs336_course.pages.adagrad import story as rare_words
from cs336_course.shared import letter_gpt, loss_surfaces, short_optimizers


def hessian(surface, point):
    return torch.autograd.functional.hessian(surface, torch.tensor(point))


def test_cruncher_has_the_parameters_it_says():
    model = loss_surfaces.Cruncher(dim=4, num_layers=2)
    shapes = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    assert shapes == {"layers.0.weight": (4, 4), "layers.1.weight": (4, 4), "final.weight": (4, 1)}
    assert sum(p.numel() for p in model.parameters()) == 2 * 4 * 4 + 4
    assert model(torch.ones(8, 4)).shape == (8,)


def test_linear_keeps_the_scale_of_its_input():
    torch.manual_seed(0)
    y = loss_surfaces.Linear(1024, 256)(torch.randn(256, 1024))
    assert y.std().item() == pytest.approx(1, abs=0.02)


def test_ravine_has_the_same_curvatures_however_it_is_turned():
    for degrees in (0.0, 30.0, 45.0, 90.0):
        ravine = partial(loss_surfaces.ravine, degrees=degrees)
        curvatures = torch.linalg.eigvalsh(hessian(ravine, [0.3, -1.0]))
        expected = torch.tensor([1.0, loss_surfaces.RAVINE_CURVATURE])
        assert torch.allclose(curvatures, expected, rtol=1e-4), degrees


def test_turned_ravine_runs_along_its_direction():
    along = torch.tensor([math.cos(math.radians(30)), math.sin(math.radians(30))])
    assert loss_surfaces.ravine(2 * along, degrees=30).item() == pytest.approx(0.5 * 4, rel=1e-5)


def test_saddle_is_one_and_has_two_minima():
    assert hessian(loss_surfaces.saddle, [0.0, 0.0]).diag().tolist() == [1.0, -1.0]
    for y in (1.0, -1.0):
        minimum = torch.tensor([0.0, y], requires_grad=True)
        value = loss_surfaces.saddle(minimum)
        value.backward()
        assert value.item() == -0.25
        assert minimum.grad.abs().max() == 0
        assert hessian(loss_surfaces.saddle, [0.0, y]).diag().tolist() == [1.0, 2.0]


def test_surfaces_take_grids():
    grid = torch.randn(5, 7, 2)
    for surface in (loss_surfaces.ravine, loss_surfaces.saddle, loss_surfaces.bowl):
        assert surface(grid).shape == (5, 7)
        assert torch.allclose(surface(grid)[2, 3], surface(grid[2, 3]))


def test_descend_on_the_bowl_by_hand():
    path = loss_surfaces.descend(
        loss_surfaces.bowl, (4.0, -2.0), partial(short_optimizers.SGD, lr=0.5), steps=3
    )
    halves = torch.tensor([1.0, 0.5, 0.25, 0.125])
    assert torch.equal(path, halves[:, None] * torch.tensor([4.0, -2.0]))


def test_descend_adds_the_noise_to_the_gradient():
    noise = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    path = loss_surfaces.descend(
        loss_surfaces.bowl, (0.0, 0.0), partial(short_optimizers.SGD, lr=1.0), 2, noise
    )
    # At learning rate 1 the bowl's own gradient takes the point to 0, and the noise past it.
    assert torch.equal(path[1:], -noise)


def test_swept_descent_is_one_descent_for_each_rate_and_start():
    starts = torch.tensor([[4.0, -2.0], [-1.0, 3.0]])
    rates, noise = torch.tensor([0.1, 0.5, 1.0]), torch.randn(4, 2, 2)
    for rule in (short_optimizers.Momentum, short_optimizers.AdaGrad):
        found = loss_surfaces.swept_descent(loss_surfaces.ravine, starts, rule, rates, 4, noise)
        assert found.shape == (5, 3, 2, 2)
        for i, rate in enumerate(rates.tolist()):
            for seed, start in enumerate(starts):
                rule_at = partial(rule, lr=rate)
                alone = loss_surfaces.descend(
                    loss_surfaces.ravine, start, rule_at, 4, noise[:, seed]
                )
                assert torch.allclose(found[:, i, seed], alone, rtol=1e-4)


def test_steps_until_a_loss_stays_down():
    losses = torch.tensor([[3.0, 0.1, 3.0], [0.1, 3.0, math.nan], [0.2, 0.1, 0.1], [0.1, 0.2, 3.0]])
    assert loss_surfaces.steps_until(losses, 1.0).tolist() == [1, 2, math.inf]
    assert loss_surfaces.steps_until(losses, 0.15).tolist() == [3, math.inf, math.inf]


def test_steps_on_a_quadratic_by_hand():
    # kappa = 9: at a rate of 1/5 both coordinates shrink by 0.8, and 0.8^21 is below 0.01.
    assert loss_surfaces.steps_on_quadratic((1, 9), lr=0.2) == 21
    # At a rate of 1/4 and a momentum of 1/4 the flat one is (1 + n/2) / 2^n.
    assert loss_surfaces.steps_on_quadratic((1,), lr=0.25, momentum=0.25) == 10


def test_lines_of_rare_words():
    text = "To be, or not to BE that\nToo short\nto be or not to sleep no more\n" * 2
    lines = rare_words.read(lines=3, vocab=5, text=text)
    assert lines.words == ["", "to", "be", "or", "not"]  # in the order of their counts: 6, 5, 3, 3
    assert lines.length.tolist() == [0, 2, 2, 2, 3]
    assert lines.ids.tolist() == [[1, 2, 3, 4, 1, 2], [1, 2, 3, 4, 1, 0], [1, 2, 3, 4, 1, 2]]
    assert lines.letters.tolist() == [13, 11, 13]
    assert lines.seen.tolist() == [1, 6, 5, 3, 3]


def test_relative_error_leaves_out_the_padding():
    length = torch.tensor([0.0, 2.0, 4.0])
    assert rare_words.relative_error(torch.tensor([9.0, 3.0, 3.0]), length).tolist() == [0.5, 0.25]


def test_the_best_rate_is_one_that_converged():
    swept = {1: [0.5, 0.7], 2: [0.2, 0.3], 4: [math.nan, 0.1], 8: [9.0, 0.0]}
    assert rare_words.best(swept) == (2, [0.2, 0.3])


def test_small_gpt_learns_and_a_spike_sets_it_back():
    def adamw(model):
        return [torch.optim.AdamW(model.parameters(), lr=0.004)]

    _, smooth = letter_gpt.train(adamw, seed=0, steps=25, decays=False)
    model, spiked = letter_gpt.train(adamw, seed=0, steps=25, decays=False, spike_at=20)
    assert smooth[:21] == spiked[:21]
    assert smooth[0] == pytest.approx(math.log(letter_gpt.letters()[1]), abs=0.3)
    assert smooth[-1] < smooth[0] - 0.5
    assert spiked[-1] > smooth[-1]
    assert letter_gpt.validation_loss(model) == letter_gpt.validation_loss(model)


def test_rotation_turns_a_point_as_it_turns_the_ravine():
    point = torch.tensor([3.0, -2.0])
    turned = loss_surfaces.rotation(30) @ point
    assert turned.norm().item() == pytest.approx(point.norm().item())
    same = loss_surfaces.ravine(point).item()
    assert loss_surfaces.ravine(turned, degrees=30).item() == pytest.approx(same, rel=1e-5)


def test_rules_are_compared_at_their_best_rates():
    paths, best = loss_surfaces.compare(steps=60)
    assert set(paths) == set(loss_surfaces.CASES)
    assert set(paths["ravine"]) == set(loss_surfaces.RULES)
    assert best["ravine", "AdaGrad"].mean() < best["ravine", "Adam"].mean()
    for case, (_, start, _) in loss_surfaces.CASES.items():
        assert paths[case]["SGD"].shape == (61, 2)
        assert paths[case]["SGD"][0].tolist() == pytest.approx(start)


def test_parameters_of_the_small_gpt_are_split_into_matrices_and_the_rest():
    model = letter_gpt.create(seed=0)
    inside, others = letter_gpt.split_parameters(model)
    assert [tuple(p.shape) for p in inside] == [(288, 96), (96, 96), (384, 96), (96, 384)]
    assert len(inside) + len(others) == len(list(model.parameters()))
    assert others[0] is model.transformer.wte.weight
