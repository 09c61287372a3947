"""Two training functions, of which one doesn't listen to its arguments."""

import torch
from torch import nn


def train(num_layers: int, lr: float) -> float:
    """Train `num_layers` layers at the rate `lr`, and return the last loss."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4) for _ in range(2)]
    model = nn.Sequential(*layers, nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return last_loss(model, optimizer)


def listening_train(num_layers: int, lr: float) -> float:
    """Do what `train` promises."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4) for _ in range(num_layers)]
    model = nn.Sequential(*layers, nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return last_loss(model, optimizer)


def last_loss(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Fit the sum of four numbers in 20 steps, and return the last loss."""
    x = torch.randn(64, 4)
    for _ in range(20):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()
