"""Toy models, and loss surfaces in two dimensions for comparing optimizers."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Linear(nn.Module):
    """Linear layer without bias, `x @ weight`.

    The initial weights have a std of 1/sqrt(d_in), so the output has the same scale as the input.
    """

    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_in, d_out) / math.sqrt(d_in))

    def forward(self, x: Float[Tensor, "... d_in"]) -> Float[Tensor, "... d_out"]:
        """Apply the layer. The matmul takes 2 * rows * d_in * d_out FLOPs."""
        return x @ self.weight


class Cruncher(nn.Module):
    """Stack of `num_layers` square linear layers, followed by a head with one output.

    The model has L*D*D + D parameters for L layers of width D.
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


def ravine(point: Float[Tensor, "... 2"]) -> Float[Tensor, "..."]:
    """Return 0.5 (x^2 + 50 y^2), a ravine along the x axis with its minimum at the origin."""
    return 0.5 * (point[..., 0] ** 2 + RAVINE_CURVATURE * point[..., 1] ** 2)


def saddle(point: Float[Tensor, "... 2"]) -> Float[Tensor, "..."]:
    """Return 0.5 x^2 - 0.5 y^2 + 0.25 y^4.

    This surface has a saddle at the origin, and minima of -1/4 at (0, -1) and (0, 1).
    """
    x, y = point[..., 0], point[..., 1]
    return 0.5 * x**2 - 0.5 * y**2 + 0.25 * y**4


def bowl(point: Float[Tensor, "... 2"]) -> Float[Tensor, "..."]:
    """Return 0.5 (x^2 + y^2). The gradient at (x, y) is (x, y)."""
    return 0.5 * (point**2).sum(-1)


def descend(
    surface: Surface,
    start: tuple[float, float] | Float[Tensor, "... 2"],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    steps: int,
    noise: Float[Tensor, "steps ..."] | None = None,
) -> Float[Tensor, "points ... 2"]:
    """Run an optimizer on a surface, and return the points that it visits.

    The result has `steps` + 1 points and begins with `start`. If `noise` is given, its row t is
    added to the gradient of step t.
    """
    point = nn.Parameter(torch.as_tensor(start).clone())
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


def swept_descent(
    surface: Surface,
    starts: Float[Tensor, "seeds 2"],
    maker: Callable[..., torch.optim.Optimizer],
    rates: Float[Tensor, " rates"],
    steps: int,
    noise: Float[Tensor, "steps seeds 2"] | None = None,
) -> Float[Tensor, "points rates seeds 2"]:
    """Return the paths of one optimizer for every learning rate and every start.

    All paths are rows of a single parameter, so the optimizer must update entries independently.

    Args:
        surface: Function that returns the loss of a point.
        starts: First point for each seed.
        maker: Optimizer class, or a `functools.partial` of the class.
        rates: Learning rates to try.
        steps: Number of steps.
        noise: Noise for the gradients, the same for every learning rate.
    """

    def make(points: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = maker(points, lr=1.0)
        optimizer.param_groups[0]["lr"] = rates[:, None, None]
        return optimizer

    every = starts.expand(len(rates), *starts.shape)
    shared = None if noise is None else noise[:, None]
    return descend(lambda points: surface(points).sum(), every, make, steps, shared)


def steps_until(losses: Float[Tensor, "points ..."], level: float) -> Float[Tensor, "..."]:
    """Return the number of steps after which a loss stays below `level`, or inf."""
    above = ~(losses <= level)  # also true for nan
    last = (above * torch.arange(1, len(losses) + 1).view(-1, *[1] * (losses.dim() - 1))).amax(0)
    return torch.where(last < len(losses), last.float(), math.inf)


RATES = 2 ** (torch.arange(-36, 15) / 4)  # from 0.002 to 11
