"""Models small enough to follow every number by hand, and surfaces for optimizers to descend."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Linear(nn.Module):
    """A layer that computes `x @ weight`, where the weights have std 1/sqrt(d_in).

    The output therefore has the same scale as the input.
    """

    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_in, d_out) / math.sqrt(d_in))

    def forward(self, x: Float[Tensor, "... d_in"]) -> Float[Tensor, "... d_out"]:
        """Apply the one matmul, which takes 2 * rows * d_in * d_out FLOPs."""
        return x @ self.weight


class Cruncher(nn.Module):
    """A stack of `num_layers` square linear layers with a one-output head.

    It has L*D*D + D parameters.
    """

    def __init__(self, dim: int, num_layers: int):
        super().__init__()
        self.layers = nn.ModuleList(Linear(dim, dim) for _ in range(num_layers))
        self.final = Linear(dim, 1)

    def forward(self, x: Float[Tensor, "batch dim"]) -> Float[Tensor, " batch"]:
        """Return one number per example."""
        for layer in self.layers:
            x = layer(x)
        return self.final(x).squeeze(-1)


Surface = Callable[[Float[Tensor, "... 2"]], Float[Tensor, "..."]]

RAVINE_CURVATURE = 50.0  # across the ravine; the curvature along it is 1


def ravine(point: Float[Tensor, "... 2"], degrees: float = 0.0) -> Float[Tensor, "..."]:
    """Return 0.5 (x^2 + 50 y^2), a quadratic 50 times steeper across than along.

    The minimum is at the origin. `degrees` rotates the ravine about the origin, and at 0 it runs
    along the x axis.
    """
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    along = cosine * point[..., 0] + sine * point[..., 1]
    across = cosine * point[..., 1] - sine * point[..., 0]
    return 0.5 * (along**2 + RAVINE_CURVATURE * across**2)


def saddle(point: Float[Tensor, "... 2"]) -> Float[Tensor, "..."]:
    """Return 0.5 x^2 - 0.5 y^2 + 0.25 y^4.

    It has a saddle at the origin, and minima of -1/4 at (0, -1) and (0, 1).
    """
    x, y = point[..., 0], point[..., 1]
    return 0.5 * x**2 - 0.5 * y**2 + 0.25 * y**4


def bowl(point: Float[Tensor, "... 2"]) -> Float[Tensor, "..."]:
    """Return 0.5 (x^2 + y^2), whose gradient is the point itself."""
    return 0.5 * (point**2).sum(-1)


def descend(
    surface: Surface,
    start: tuple[float, float],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    steps: int,
    noise: Float[Tensor, "steps 2"] | None = None,
) -> Float[Tensor, "points 2"]:
    """Return the steps + 1 points that an optimizer visits, starting with `start`.

    Row t of `noise` is added to the gradient of step t.
    """
    point = nn.Parameter(torch.tensor(start))
    optimizer = make_optimizer([point])
    path = [point.detach().clone()]
    for step in range(steps):
        optimizer.zero_grad()
        surface(point).backward()
        if noise is not None:
            point.grad += noise[step]
        optimizer.step()
        path.append(point.detach().clone())
    return torch.stack(path)


def rare_features(
    examples: int, features: int, generator: torch.Generator
) -> tuple[
    Float[Tensor, "examples features"], Float[Tensor, " examples"], Float[Tensor, " features"]
]:
    """Return features that are as rare as words, their targets, and the true weights.

    Feature j (counted from 1) is 1 in about one example in j and 0 otherwise. Weights are +1 or -1,
    and the targets are features @ weights, without noise.
    """
    chance = 1 / torch.arange(1, features + 1)
    x = (torch.rand(examples, features, generator=generator) < chance).float()
    weights = torch.randint(0, 2, (features,), generator=generator).float() * 2 - 1
    return x, x @ weights, weights
