"""Short optimizers against torch's own."""

import copy
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from cases import for_each
from torch import nn

from cs336_course.pages.adagrad import exercises
from cs336_course.shared import short_optimizers

DECAY = {"weight_decay": 0.1}
BETAS = {"lr": 1e-3, "betas": (0.9, 0.95)}
PAIRS = {  # our rule, torch's, and the settings of both
    "SGD": (short_optimizers.SGD, torch.optim.SGD, {"lr": 0.05, **DECAY}),
    "Momentum": (short_optimizers.Momentum, torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "AdaGrad": (short_optimizers.AdaGrad, torch.optim.Adagrad, {"lr": 0.02}),
    "RMSProp": (short_optimizers.RMSProp, torch.optim.RMSprop, {"lr": 1e-3}),
    "Adam": (short_optimizers.Adam, torch.optim.Adam, BETAS | DECAY),
    "AdamW": (short_optimizers.AdamW, torch.optim.AdamW, BETAS | DECAY),
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

    def compare(ours, torchs, settings):
        reference, model = network(), network()
        end = train(reference, torchs(reference.parameters(), **settings), 20)
        optimizer = ours(model.parameters(), **settings)
        half = train(model, optimizer, 10)
        assert (half - nn.utils.parameters_to_vector(network().parameters())).abs().max() > 1e-3
        saved = copy.deepcopy(optimizer.state_dict()["state"])
        for values in saved.values():
            values["step"] = torch.tensor(10.0)  # torch counts in every rule, and with a tensor
        other = torchs(model.parameters(), **settings)
        groups = other.state_dict()["param_groups"]
        other.load_state_dict({"state": saved, "param_groups": groups})
        assert (train(model, other, 10, first=10) - end).abs().max() < 1e-8

    for_each(PAIRS, compare)


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


def test_the_runs_in_the_ravine_are_judged_by_their_roots():
    for (mu, lr), way in zip(exercises.SETTINGS, exercises.RUNS.values(), strict=True):
        flat, steep = (max(abs(np.roots([1, lr * h - 1 - mu, mu]))) for h in (1, 100))
        found = "explodes" if steep > 1 else "crawls" if flat > mu**0.5 + 1e-6 else "swings"
        assert way == found, (mu, lr, flat, steep)


def test_the_pairs_to_cancel_are_those_whose_step_grows_after_a_shock():
    for (beta1, beta2), fate in zip(exercises.PAIRS, exercises.FATES.values(), strict=True):
        m, v = beta1 + (1 - beta1) * 100, beta2 + (1 - beta2) * 100**2
        later = (beta1 * m + 1 - beta1) / (beta2 * v + 1 - beta2) ** 0.5
        assert (fate == "cancel") == (later > m / v**0.5)
