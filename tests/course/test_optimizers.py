"""Short optimizers against torch's own, and Newton-Schulz against the SVD."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cases import for_each
from torch import nn

from cs336_course.shared import loss_surfaces, short_optimizers

BETAS = {"lr": 1e-3, "betas": (0.9, 0.95)}
PAIRS = {
    "SGD": (
        partial(short_optimizers.SGD, lr=0.05, weight_decay=0.1),
        partial(torch.optim.SGD, lr=0.05, weight_decay=0.1),
    ),
    "Momentum": (
        partial(short_optimizers.Momentum, lr=0.01, momentum=0.9),
        partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    ),
    "AdaGrad": (
        partial(short_optimizers.AdaGrad, lr=0.02),
        partial(torch.optim.Adagrad, lr=0.02),
    ),
    "RMSProp": (
        partial(short_optimizers.RMSProp, lr=1e-3),
        partial(torch.optim.RMSprop, lr=1e-3),
    ),
    "Adam": (
        partial(short_optimizers.Adam, weight_decay=0.1, **BETAS),
        partial(torch.optim.Adam, weight_decay=0.1, **BETAS),
    ),
    "AdamW": (
        partial(short_optimizers.AdamW, weight_decay=0.1, **BETAS),
        partial(torch.optim.AdamW, weight_decay=0.1, **BETAS),
    ),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)).double()


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step)).double()
        optimizer.zero_grad()
        F.mse_loss(model(x), x.sum(1, keepdim=True).sin()).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_torch_takes_over_our_state_halfway_and_ends_where_it_would_have():
    """Same steps, and the same names with the same meaning."""

    def compare(ours, torchs):
        reference, model = network(), network()
        end = train(reference, torchs(reference.parameters()), 20)
        optimizer = ours(model.parameters())
        half = train(model, optimizer, 10)
        assert (half - nn.utils.parameters_to_vector(network().parameters())).abs().max() > 1e-3
        saved = copy.deepcopy(optimizer.state_dict()["state"])
        for values in saved.values():
            values["step"] = torch.tensor(10.0)  # torch counts in every rule, and with a tensor
        other = torchs(model.parameters())
        groups = other.state_dict()["param_groups"]
        other.load_state_dict({"state": saved, "param_groups": groups})
        assert (train(model, other, 10, first=10) - end).abs().max() < 1e-8

    for_each(PAIRS, compare)


def test_groups_closures_and_missing_gradients_are_handled():
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = short_optimizers.AdaGrad([{"params": [used], "lr": 0.5}, {"params": [unused]}])

    def closure():
        loss = used.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2
    assert used.tolist() == [0.5, 0.5]
    assert unused.tolist() == [1, 1, 1]
    assert unused not in optimizer.state


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: short_optimizers.SGD([p], lr=-1), "lr is -1"),
        (lambda p: short_optimizers.Muon([p]), r"Muon takes matrices; a parameter has shape \(3,"),
    ],
)
def test_impossible_settings_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make(nn.Parameter(torch.ones(3)))


def test_orthogonalise_keeps_directions_and_levels_lengths():
    for shape in ((8, 8), (6, 20), (20, 6)):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        found = short_optimizers.orthogonalise(matrix)
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        core = u.T @ found @ v.T
        assert torch.allclose(core, core.diag().diag(), atol=1e-4), shape
        assert 0.6 < core.diag().min() <= core.diag().max() < 1.21, shape
    assert torch.equal(short_optimizers.orthogonalise(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_muon_equals_torch_up_to_its_bf16_products():
    start = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
    moves = []
    for rule in (short_optimizers.Muon, partial(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")):
        w = nn.Parameter(start.clone())
        optimizer = rule([w], lr=0.1)
        for step in range(5):
            w.grad = torch.randn(24, 16, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        moves.append((w - start).detach())
    assert (moves[0] - moves[1]).norm() < 0.05 * moves[1].norm()


def test_a_turned_ravine_has_the_same_curvatures():
    for degrees in (0.0, 30.0, 45.0):
        ravine = partial(loss_surfaces.ravine, degrees=degrees)
        hessian = torch.autograd.functional.hessian(ravine, torch.tensor([0.3, -1.0]))
        expected = torch.tensor([1.0, loss_surfaces.RAVINE_CURVATURE])
        assert torch.allclose(torch.linalg.eigvalsh(hessian), expected, rtol=1e-4), degrees


def test_swept_descent_is_one_descent_for_each_rate_and_start():
    starts = torch.tensor([[4.0, -2.0], [-1.0, 3.0]])
    rates, noise = torch.tensor([0.1, 0.5, 1.0]), torch.randn(4, 2, 2)
    for rule in (short_optimizers.Momentum, short_optimizers.AdaGrad):
        found = loss_surfaces.swept_descent(loss_surfaces.ravine, starts, rule, rates, 4, noise)
        for i, rate in enumerate(rates.tolist()):
            for seed, start in enumerate(starts):
                make = partial(rule, lr=rate)
                alone = loss_surfaces.descend(loss_surfaces.ravine, start, make, 4, noise[:, seed])
                assert torch.allclose(found[:, i, seed], alone, rtol=1e-4)
    losses = torch.tensor([[3.0, 0.1, 3.0], [0.1, 3.0, torch.nan], [0.2, 0.1, 0.1]])
    assert loss_surfaces.steps_until(losses, 1.0).tolist() == [1, 2, 2]
