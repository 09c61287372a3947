"""What figures of training runs share: curves of losses, and an axis that has a place for 0."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cs336_course.drawing.charts import curves


def loss_curves(
    losses: Mapping[str, Sequence[float]], title: str, levels: Mapping[str, float] | None = None
) -> Figure:
    """Plot losses by step, with named levels such as the loss of a uniform guess."""
    names = "legend" if len(losses) > 1 else ""
    return curves(title, "step", "loss [nats/token]", losses, levels=levels, names=names)


def with_zero(axes: Axes, smallest: float, largest: float) -> None:
    """Make the y axis logarithmic from `smallest` on, and linear from there down to 0."""
    axes.set_yscale("symlog", linthresh=smallest, linscale=0.6)
    powers = range(round(math.log10(smallest)), math.floor(math.log10(largest)) + 1, 2)
    axes.set_yticks([0.0, *(10.0**power for power in powers)])
    axes.set_ylim(-smallest / 3, largest)
