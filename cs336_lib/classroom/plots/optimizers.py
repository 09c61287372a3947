"""Figures of notebook 05 on initial scales, step sizes, paths, optimizer state and losses."""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

from cs336_lib.classroom.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    PINK,
    RED,
    SKY,
    figure,
    label,
)

# An optimizer looks the same in every figure, and dashes help where colours may not.
LOOKS: dict[str, dict[str, object]] = {
    "SGD": {"color": GREY, "linestyle": "-", "marker": "o"},
    "Momentum": {"color": ORANGE, "linestyle": "-", "marker": "s"},
    "AdaGrad": {"color": BLUE, "linestyle": "-", "marker": "^"},
    "RMSProp": {"color": GREEN, "linestyle": "--", "marker": "D"},
    "Adam": {"color": RED, "linestyle": "-", "marker": "v"},
    "AdamW": {"color": PINK, "linestyle": ":", "marker": "X"},
    "Muon": {"color": BLACK, "linestyle": "-", "marker": "*"},
}


def look(name: str, position: int) -> dict[str, object]:
    """Return the colour and line style of the curve's optimizer, or the next of the palette."""
    for known in sorted(LOOKS, key=len, reverse=True):
        if name.startswith(known):
            return {key: LOOKS[known][key] for key in ("color", "linestyle")}
    return {"color": PALETTE[position], "linestyle": ("-", "--", "-.", ":")[position % 4]}


def output_scale(d_in: Sequence[int], stds: Mapping[str, Sequence[float]]) -> Figure:
    """Plot output std against d_in on log-log axes, with guides for linear and sqrt growth."""
    fig, axes = figure(10, 4.8)
    first = d_in[0]
    root = [(d / first) ** 0.5 * first**0.5 for d in d_in]
    line = [d / first * first**0.5 for d in d_in]
    axes.loglog(d_in, line, color=GREY, linestyle=":", label="guide: grows as d_in")
    axes.loglog(d_in, root, color=BLACK, linestyle="--", label="guide: grows as sqrt(d_in)")
    for (name, values), color, marker in zip(stds.items(), (RED, BLUE), "os", strict=True):
        axes.loglog(d_in, values, color=color, marker=marker, linestyle="", label=name, ms=11)
    label(axes, "How large one layer's output is", "d_in (inputs summed)", "std of the output")
    axes.legend(loc="upper left")
    return fig


def signal_by_depth(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Plot the root mean square of the activations after each layer, on a logarithmic axis."""
    fig, axes = figure(10, 4.5)
    for position, (name, values) in enumerate(curves.items()):
        style = {"color": PALETTE[position], "marker": "os^"[position]}
        axes.semilogy(range(len(values)), values, label=name, **style)
    axes.xaxis.get_major_locator().set_params(integer=True)
    label(axes, "Signal through a deep ReLU network", "layer", "RMS of the activations")
    axes.legend()
    return fig


def step_sizes(curves: Mapping[str, Sequence[float]], title: str, lr: float) -> Figure:
    """Plot the length of each step in units of the learning rate, on log-log axes."""
    fig, axes = figure(10, 4.8)
    for position, (name, values) in enumerate(curves.items()):
        steps = range(1, len(values) + 1)
        axes.loglog(steps, [v / lr for v in values], label=name, **look(name, position))
    label(axes, title, "step", "step length [lr]")
    axes.legend()
    return fig


def rare_feature_rates(seen: Sequence[float], rates: Mapping[str, Sequence[float]]) -> Figure:
    """Plot each weight's final learning rate against how often its feature was seen."""
    fig, axes = figure(10, 4.5)
    for position, (name, values) in enumerate(rates.items()):
        style = {**look(name, position), "linestyle": "", "marker": LOOKS[name]["marker"]}
        axes.loglog(seen, values, label=name, alpha=0.7, **style)
    label(
        axes,
        "AdaGrad gives rare features a larger rate",
        "examples in which the feature was on",
        "rate of its weight",
    )
    axes.legend()
    return fig


def surface_panel(
    axes: Axes,
    surface: Callable[[Float[Tensor, "... 2"]], Float[Tensor, "..."]],
    paths: Mapping[str, Float[Tensor, "points 2"]],
    window: tuple[float, float, float, float],
    minima: Sequence[tuple[float, float]],
    rings: Mapping[str, float] | None = None,
    walk: int | None = None,
) -> None:
    """Draw the contours of a surface with the optimizers' paths.

    `window` is (x from, x to, y from, y to). If `rings` gives radii about the first minimum, only
    the first `walk` steps of each path are drawn, and a circle shows how far out it hovers later.
    """
    x, y = torch.linspace(*window[:2], 121), torch.linspace(*window[2:], 121)
    height = surface(torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1))
    height = (height - height.min()) ** 0.5  # more closely spaced lines near the bottom
    axes.contour(x, y, height, levels=14, colors=GREY, alpha=0.35, linewidths=1)
    for position, (name, path) in enumerate(paths.items()):
        style = {**look(name, position), "linewidth": 2.2}
        axes.plot(*(path if walk is None else path[: walk + 1]).T, label=name, **style)
        if rings:
            axes.add_patch(Circle(minima[0], rings[name], fill=False, **{**style, "linewidth": 4}))
        else:
            axes.plot(*path[-1], marker=LOOKS[name]["marker"], color=style["color"], markersize=10)
    start = next(iter(paths.values()))[0]
    axes.plot(*start, "o", color="white", markeredgecolor=BLACK, markersize=11, markeredgewidth=2)
    for minimum in minima:
        axes.plot(*minimum, "+", color=BLACK, markersize=17, markeredgewidth=2.5)
    axes.set_xlim(window[0], window[1])
    axes.set_ylim(window[2], window[3])
    axes.grid(False)


def trajectories(panels: Sequence[dict]) -> Figure:
    """Draw panels side by side, each a dict with a title and the arguments of `surface_panel`."""
    fig, row = figure(16, 6.4, ncols=len(panels))
    for axes, panel in zip(row, panels, strict=True):
        arguments = {key: value for key, value in panel.items() if key != "title"}
        surface_panel(axes, **arguments)
        label(axes, panel["title"], "weight 1", "weight 2")
    handles, names = row[0].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=15)
    return fig


def state_bytes(per_parameter: Mapping[str, float]) -> Figure:
    """Draw bars of the optimizer's memory, beside 4 bytes each for weights and gradients."""
    fig, axes = figure(10, 4.6)
    names, values = list(per_parameter), list(per_parameter.values())
    axes.barh(names, [4] * len(names), color=GREY, label="weight")
    axes.barh(names, [4] * len(names), left=4, color=SKY, label="gradient", hatch="//")
    axes.barh(names, values, left=8, color=BLUE, label="optimizer state", hatch="..")
    for row, value in enumerate(values):
        axes.text(8.2 + value, row, f"{8 + value:.0f} B", va="center")
    label(axes, "Memory while training in fp32", "bytes per parameter", "")
    axes.set_xlim(0, 23)
    axes.set_xticks(range(0, 17, 4))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.legend(loc="center right")
    return fig


def singular_values(values: Mapping[str, Sequence[float]]) -> Figure:
    """Plot singular values from largest to smallest, on a logarithmic axis."""
    fig, axes = figure(10, 4.5)
    for position, (name, row) in enumerate(values.items()):
        style = {"color": (RED, BLUE, GREEN)[position], "marker": "os^"[position]}
        axes.semilogy(range(1, len(row) + 1), row, label=name, markersize=5, **style)
    axes.axhline(1, color=BLACK, linestyle=":", linewidth=1.5)
    axes.set_ylim(bottom=0.008)
    label(axes, "Every direction is to count", "rank of the singular value", "value [RMS of all]")
    axes.legend(loc="lower left")
    return fig


def loss_curves(curves: Mapping[str, Sequence[float]], smooth: int = 5) -> Figure:
    """Plot training loss by step, averaged over `smooth` steps and without the first tenth."""
    fig, axes = figure(10, 5)
    top = 0.0
    for position, (name, losses) in enumerate(curves.items()):
        mean = torch.tensor(losses).unfold(0, smooth, 1).mean(-1)
        style = look(name, position)
        if not name.startswith("Muon"):
            style = {"color": PALETTE[position], "linestyle": ("-", "--", "-.", ":")[position]}
        axes.plot(range(smooth, len(losses) + 1), mean, label=name, **style)
        top = max(top, mean[len(losses) // 10].item())
    axes.set_ylim(top=top)
    label(
        axes,
        "Same model, same batches",
        "step",
        f"loss, mean of {smooth} steps\n[nats per character]",
    )
    axes.legend()
    return fig
