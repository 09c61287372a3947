"""Figures of notebooks 05 and 05b on initialization, step sizes, rate sweeps and trajectories."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
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
    figure,
    ink,
    label,
    label_ends,
    show_cover,
)
from cs336_course.shared import letter_gpt, loss_surfaces

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


# What SGD learns at a rate of 1.3, for six orders of the lines. Notebook 05 computes it.
LEARNED = {
    "I": (3908, (2.1, 1.9, 3.7, 0.8, 1.9, 6.7)),
    "gentleman": (40, (7.5, 8.5, 6.9, 6.2, 7.2, 7.4)),
    "treasure": (13, (2.8, 2.2, 2.6, 2.4, 3.3, 2.8)),
}

Swept = Mapping[float, Sequence[float]]


def cover_rare_words() -> None:
    """Draw words as boxes of letters, and how many letters a model has counted in each."""
    _, axes = figure(10, 3.2)
    for row, (word, (seen, answers)) in enumerate(LEARNED.items()):
        for place, letter in enumerate(word):
            face = {"facecolor": "#E3F1FA", "edgecolor": BLACK}
            axes.add_patch(Rectangle((place, -row - 0.3), 1, 0.6, **face))
            spot = {"ha": "center", "va": "center", "fontsize": 22}
            axes.text(place + 0.5, -row - 0.02, letter, **spot)
        below = [answers[:place].count(answer) for place, answer in enumerate(answers)]
        heights = [-row - 0.42 - 0.13 * again for again in below]
        axes.plot(answers, heights, "^", color=RED, ms=11, label=word)
        axes.plot([len(word)] * 2, [-row - 0.36, -row + 0.36], color=GREEN, lw=6)
        axes.text(-0.25, -row, f"read {seen:,} times", fontsize=17, ha="right", va="center")
    axes.grid(False)
    axes.set(xlim=(-3, 10), ylim=(-2.78, 0.45), yticks=[], xticks=range(10))
    axes.spines["left"].set_visible(False)
    axes.text(1.2, 0, "green: the right answer", fontsize=17, color=ink(GREEN), va="center")
    title = "How many letters? Each triangle is a model's answer, after one training"
    label(axes, title, "letters", "")
    show_cover()


def look(name: str, position: int) -> dict[str, Any]:
    """Return the colour and line style of an optimizer.

    An unknown optimizer gets the line colour with index `position`."""
    for known in sorted(LOOKS, key=len, reverse=True):
        if name.startswith(known):
            return {key: LOOKS[known][key] for key in ("color", "linestyle")}
    return {"color": LINES[position], "linestyle": ("-", "--", "-.", ":")[position % 4]}


def cover_untrained() -> None:
    """Draw which next letter two untrained models expect. One of the two is broken."""
    _, panels = figure(10, 3.2, nrows=2, sharex=True)
    x, y = letter_gpt.batch(torch.Generator().manual_seed(0), rows=128)
    shown, coming = letter_gpt.spelled(x[4]), int(y[4, -1])
    for axes, name, std, colour in zip(panels, "AB", (0.02, 1.0), (BLUE, RED), strict=True):
        logits = letter_gpt.untrained_logits(x, std)
        chances = logits[4, -1].softmax(0)
        axes.bar(range(len(chances)), chances.tolist(), color=colour, edgecolor=colour, width=0.9)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        note = {"va": "top", "size": 19, "transform": axes.transAxes}
        axes.text(0.42, 0.92, f"model {name}, loss {loss:.2f}", color=ink(colour), **note)
        likeliest = int(chances.argmax())
        axes.set(xlim=(-1, 62), ylim=(0, 1.05), yticks=(0, 1), xticks=[])
        label(axes, "", "", "probability")
    came = letter_gpt.spelled(y[4, -1:])
    arrow = {"arrowstyle": "-|>", "lw": 2.5, "color": GREEN}
    ends = {"xy": (coming, 0.05), "xytext": (coming, 0.62), "arrowprops": arrow}
    favourite = letter_gpt.spelled(torch.tensor([likeliest]))  # of the last model
    panels[1].text(likeliest + 0.9, 0.62, favourite, size=22, color=ink(RED), weight="bold")
    panels[0].annotate(came, size=22, ha="center", color=ink(GREEN), fontweight="bold", **ends)
    panels[0].set_title(f"Before training: what comes after “{shown}”?", loc="left", weight="bold")
    panels[1].set_xlabel("the 62 letters, of which the arrow shows the one that comes")
    show_cover()


def output_scale(d_in: Sequence[int], stds: Mapping[str, Sequence[float]]) -> Figure:
    """Plot output std against d_in on log-log axes, with guide lines for linear and sqrt growth."""
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
    """Plot the RMS of the activations after each layer, on a logarithmic axis."""
    fig, axes = figure(10, 3.6)
    for position, (name, values) in enumerate(curves.items()):
        style = {"color": LINES[position], "marker": "os^"[position]}
        axes.semilogy(range(len(values)), values, label=name, **style)
    axes.xaxis.get_major_locator().set_params(integer=True)
    label(axes, "Signal through a deep ReLU network", "layer", "RMS of the activations")
    label_ends(axes)
    return fig


def step_sizes(curves: Mapping[str, Sequence[float]], title: str, lr: float) -> Figure:
    """Plot the length of each step on log-log axes, in units of the learning rate."""
    fig, axes = figure(10, 4.8)
    for position, (name, values) in enumerate(curves.items()):
        steps = range(1, len(values) + 1)
        axes.loglog(steps, [v / lr for v in values], label=name, **look(name, position))
    label(axes, title, "step", "step length [lr]")
    label_ends(axes)
    return fig


def error_by_frequency(
    seen: Sequence[float], errors: Mapping[str, Sequence[float]], title: str
) -> Figure:
    """Plot the relative error of a word's weights against the frequency of the word."""
    fig, axes = figure(10, 4.8)
    for position, (name, values) in enumerate(errors.items()):
        style = {**look(name, position), "linestyle": "", "marker": LOOKS[name]["marker"]}
        axes.semilogx(seen, values, label=name, alpha=0.8, markersize=5, **style)
    axes.axhline(1, color=BLACK, linestyle=":", linewidth=1.5)
    axes.text(max(seen), 1.03, "not learned at all", ha="right", va="bottom")
    axes.set_ylim(-0.05, 1.5)
    label(axes, title, "how often the word occurs", "error / length of the word")
    for handle in axes.legend(loc="upper center", ncols=2, markerscale=1.8).legend_handles:
        handle.set_alpha(1)
    return fig


def label_rates(axes: Axes, swept: Iterable[Iterable[float]]) -> None:
    """Label the learning rates on a logarithmic axis, except those that are close to the last."""
    ticks: list[float] = []
    for rate in sorted({rate for rates in swept for rate in rates}):
        if not ticks or rate > 1.3 * ticks[-1]:
            ticks.append(rate)
    axes.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
    axes.minorticks_off()


def rate_sweep(
    swept: Mapping[str, Swept],
    title: str,
    y_label: str,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Plot a result against the learning rate. Points are means, and bars are ranges over seeds.

    Args:
        swept: Results of all seeds, by optimizer and learning rate. A point is omitted if one of
            its results isn't finite.
        title: Title of the figure.
        y_label: Name of the result. Lower results are better.
        limits: Range of the vertical axis.
    """
    fig, axes = figure(10, 4.8)
    for position, (name, results) in enumerate(swept.items()):
        values = torch.tensor([list(result) for result in results.values()])
        kept = values.isfinite().all(1)
        rates, values = torch.tensor(list(results))[kept], values[kept]
        mean = values.mean(1)
        bars = torch.stack([mean - values.amin(1), values.amax(1) - mean])
        first = name.split()[0]
        marker = LOOKS[first]["marker"] if first in LOOKS else "o"
        style = {**look(name, position), "marker": marker, "capsize": 6, "markersize": 10}
        axes.errorbar(rates, mean, bars, label=name, elinewidth=2.5, **style)
    axes.set_xscale("log")
    label_rates(axes, swept.values())
    if limits:
        axes.set_ylim(*limits)
    label(axes, title, "learning rate", y_label)
    axes.legend()
    return fig


def steps_by_condition(steps: Mapping[str, Mapping[float, int]]) -> Figure:
    """Plot the number of steps against the condition number on log-log axes.

    Args:
        steps: Steps of each optimizer, by condition number.
    """
    fig, axes = figure(10, 4.4)
    for position, (name, found) in enumerate(steps.items()):
        style = {**look(name, position), "marker": LOOKS[name]["marker"]}
        axes.loglog(list(found), list(found.values()), label=name, **style)
    label(axes, "Steps until 1 % is left", "condition number (steepest / flattest)", "steps")
    label_ends(axes)
    return fig


def behind(gaps: Mapping[str, Float[Tensor, "seeds steps"]], first: int) -> Figure:
    """Plot by how much losses are above those of undisturbed runs, one thin line for each seed.

    Args:
        gaps: Gap of each seed after each step, by name. It is smoothed over 10 steps.
        first: Steps since the disturbance at the first gap.
    """
    fig, axes = figure(10, 4.4)
    for position, (name, rows) in enumerate(gaps.items()):
        smooth = rows.unfold(1, 10, 1).mean(-1)
        steps = range(first, first + smooth.size(1))
        style = look(name, position)
        for row in smooth:
            axes.plot(steps, row, linewidth=1, **style)
        axes.plot(steps, smooth.mean(0), label=name, **style)
    axes.axhline(0, color=BLACK, linestyle=":", linewidth=1.5)
    label(axes, "A small GPT after one spike", "steps since the spike", "loss behind [nats]")
    label_ends(axes)
    return fig


def rates_apart(swept: Mapping[tuple[str, float], Swept]) -> Figure:
    """Plot losses against the matrices' learning rate, one panel for each embedding rate.

    Args:
        swept: Losses of all seeds by learning rate, for each optimizer and embedding rate.
    """
    fixed = sorted({embeddings for _, embeddings in swept})
    fig, panels = figure(12, 4.8, ncols=len(fixed), sharey=True, squeeze=False)
    for axes, embeddings in zip(panels[0], fixed, strict=True):
        shown = {name: results for (name, held), results in swept.items() if held == embeddings}
        for position, (name, results) in enumerate(shown.items()):
            values = torch.tensor([list(losses) for losses in results.values()])
            mean = values.mean(1)
            bars = torch.stack([mean - values.amin(1), values.amax(1) - mean])
            style = {**look(name, position), "marker": LOOKS[name]["marker"]}
            axes.errorbar(list(results), mean, bars, label=name, capsize=6, markersize=10, **style)
        axes.set_xscale("log")
        label_rates(axes, shown.values())
        title = f"50 steps, embeddings at {embeddings:g}"
        label(axes, title, "learning rate of the matrices", "loss [nats per letter]")
        axes.tick_params(axis="x", labelrotation=45)
    panels[0][0].legend(loc="upper right")
    return fig


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


# Each surface with its minima, the window to draw, and the number of steps to draw.
FRAMES = {
    "ravine": (loss_surfaces.ravine, [(0, 0)], (-4.6, 1.2, -1.9, 2.1), 100),
    "saddle": (loss_surfaces.saddle, [(0, 1), (0, -1)], (-1.9, 1.8, -1.4, 1.9), 60),
    "noisy bowl": (loss_surfaces.bowl, [(0, 0)], (-2.0, 0.9, -1.0, 1.9), 120),
}


def trajectories(paths: Mapping[str, Mapping[str, Float[Tensor, "points 2"]]]) -> Figure:
    """Draw the first steps of every optimizer on every surface.

    The upper row shows optimizers with one learning rate for all weights. The lower row shows
    optimizers with a step size per weight.

    Args:
        paths: Paths by surface (a key of FRAMES) and optimizer.
    """
    fig, rows = figure(15, 8.2, nrows=2, ncols=len(paths), sharex="col", sharey="col")
    handles: dict[str, Any] = {}
    one_rate = ("SGD", "Momentum")
    for row, axes_row in enumerate(rows):
        for axes, (case, found) in zip(axes_row, paths.items(), strict=True):
            surface, minima, window, drawn = FRAMES[case]
            shown = {n: p[: drawn + 1] for n, p in found.items() if (n in one_rate) == (row == 0)}
            surface_panel(axes, surface, shown, window, minima)
            title = f"{case}: {'one rate' if row == 0 else 'a rate per weight'}"
            first = axes is axes_row[0]
            label(axes, title, "weight 1" if row == 1 else "", "weight 2" if first else "")
            lines, names = axes.get_legend_handles_labels()
            handles |= dict(zip(names, lines, strict=True))
    fig.legend(handles.values(), handles, loc="outside lower center", ncols=6, fontsize=17)
    return fig


def singular_values(values: Mapping[str, Sequence[float]]) -> Figure:
    """Plot the singular values of the step of each optimizer, and label the line ends."""
    fig, axes = figure(12, 5.4)
    longest = max(len(row) for row in values.values())
    for position, (name, row) in enumerate(values.items()):
        color = look(name, position)["color"]
        axes.semilogy(range(1, len(row) + 1), row, color=color, linewidth=4)
        axes.text(len(row) + 1.5, row[-1], name, color=ink(color), va="center", fontsize=17)
    axes.axhline(1, color=BLACK, linestyle=":", linewidth=1.5)
    axes.set_xlim(0, 1.42 * longest)
    axes.set_xticks(range(0, longest + 1, 24))
    label(
        axes,
        "How far one step goes in each direction of a matrix",
        "direction, from the longest step to the shortest",
        "length [RMS of all]",
    )
    return fig
