"""What figures of optimizers share: their looks, and paths on a surface."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    BROWN,
    GREEN,
    GREY,
    LINES,
    PURPLE,
    RED,
)
from cs336_course.shared import loss_surfaces

# An optimizer looks the same in every figure, and dashes help where colours may not.
LOOKS: dict[str, dict[str, Any]] = {
    "SGD": {"color": GREY, "linestyle": "-", "marker": "o"},
    "Momentum": {"color": BROWN, "linestyle": "-", "marker": "s"},
    "AdaGrad": {"color": BLUE, "linestyle": "-", "marker": "^"},
    "RMSProp": {"color": GREEN, "linestyle": "--", "marker": "D"},
    "Adam": {"color": RED, "linestyle": "-", "marker": "v"},
    "AdamW": {"color": PURPLE, "linestyle": ":", "marker": "X"},
    "Muon": {"color": BLACK, "linestyle": "-", "marker": "*"},
}


def look(name: str, position: int) -> dict[str, Any]:
    """Return the colour and line style of an optimizer.

    An unknown optimizer gets the line colour with index `position`."""
    for known in sorted(LOOKS, key=len, reverse=True):
        if name.startswith(known):
            return {key: LOOKS[known][key] for key in ("color", "linestyle")}
    return {"color": LINES[position], "linestyle": ("-", "--", "-.", ":")[position % 4]}


def surface_panel(
    axes: Axes,
    surface: loss_surfaces.Surface,
    paths: Mapping[str, Float[Tensor, "points 2"]],
    window: tuple[float, float, float, float],
    minima: Sequence[tuple[float, float]],
) -> None:
    """Draw the contours of a surface, and the paths of several optimizers.

    `window` is the visible region as (x min, x max, y min, y max).
    """
    x, y = torch.linspace(*window[:2], 121), torch.linspace(*window[2:], 121)
    height = surface(torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1))
    height = (height - height.min()) ** 0.5  # more closely spaced lines near the bottom
    axes.contour(x, y, height, levels=14, colors=GREY, alpha=0.8, linewidths=0.5)
    for position, (name, path) in enumerate(paths.items()):
        style = {**look(name, position), "linewidth": 2.8}
        axes.plot(*path.T, label=name, **style)
        axes.plot(*path[-1], marker=LOOKS[name]["marker"], color=style["color"], markersize=10)
    start = next(iter(paths.values()))[0]
    axes.plot(*start, "o", color="white", markeredgecolor=BLACK, markersize=11, markeredgewidth=2)
    for minimum in minima:
        axes.plot(*minimum, "+", color=BLACK, markersize=17, markeredgewidth=2.5)
    axes.set_xlim(window[0], window[1])
    axes.set_ylim(window[2], window[3])
    axes.grid(False)
