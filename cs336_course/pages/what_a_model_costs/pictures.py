"""Figures of the bills of models, and of scaling laws from the small runs that ship."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter

from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    GREY,
    LINES,
    ORANGE,
    figure,
    ink,
    label,
    label_ends,
    show_cover,
)
from cs336_course.pages.what_a_model_costs.story import Optimum, ScalingRun, power_law
from cs336_course.shared import published_runs
from cs336_lib import accounting

MARKERS = "osD^vP*X"


def isoflop(runs: Sequence[ScalingRun], optima: Sequence[Optimum], title: str) -> Figure:
    """Plot the losses and the parabola of each budget, and the best sizes against the budget.

    A black star is the lowest point of a parabola. The line on the right is the power law of these
    points.
    """
    drawing, (left, right) = figure(13, 5.6, ncols=2, width_ratios=[1.35, 1])
    for optimum, colour, marker in zip(optima, LINES, MARKERS, strict=False):
        these = [run for run in runs if run.budget == optimum.budget]
        sizes = np.array([run.parameters for run in these])
        name = short(optimum.budget) + " FLOPs"
        x = np.geomspace(sizes.min(), sizes.max(), 60)
        left.plot(x, np.polyval(optimum.parabola, np.log(x)), color=colour, linewidth=2)
        losses = [run.val_loss for run in these]
        left.plot(sizes, losses, color=colour, marker=marker, linestyle="none", label=name)
        note = {"xytext": (8, 0), "textcoords": "offset points", "va": "center", "size": 14}
        end = np.polyval(optimum.parabola, np.log(x[-1]))
        left.annotate(name, (x[-1], end), color=ink(colour), fontweight="bold", **note)
        right.plot(optimum.budget, optimum.parameters, color=colour, marker=marker, markersize=11)
    best, budgets = [o.parameters for o in optima], [o.budget for o in optima]
    star = {"color": BLACK, "marker": "*", "markersize": 15, "linestyle": "none", "zorder": 5}
    left.plot(best, [o.loss for o in optima], label="lowest points", **star)
    exponent, factor = power_law(budgets, best)
    ends = np.array([min(budgets) / 1.5, max(budgets) * 1.5])
    right.plot(ends, factor * ends**exponent, color=BLACK, label=f"exponent {exponent:.2f}")
    left.set_xscale("log")
    right.set_xscale("log")
    right.set_yscale("log")
    for axis in (left.xaxis, right.yaxis):
        axis.set_major_formatter(EngFormatter(sep=""))
        axis.set_minor_formatter(NullFormatter())
    left.set_xlim(right=left.get_xlim()[1] * 3.6)  # room for the names
    right.set_xticks(budgets, [short(budget) for budget in budgets])
    right.xaxis.set_minor_formatter(NullFormatter())
    left.set_xticks([5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5])
    right.set_yticks([5e3, 1e4, 2e4, 5e4, 1e5, 2e5])
    label(left, title, "parameters (log)", "validation loss [nats/character]")
    label(right, "Best size for a budget", "training FLOPs (log)", "parameters (log)")
    right.legend(loc="upper left")
    return drawing


def short(budget: float) -> str:
    """Format a budget with one digit, such as 3e10."""
    return f"{budget:.0e}".replace("e+", "e")


def cover() -> None:
    """Draw the sizes of two models to the left of their names, and their GPU-hours to the right."""
    rows = [published_runs.runs()[name] for name in ("llama3-405b", "deepseek-v3")]
    colours, names = (ORANGE, BLUE), [row.title for row in rows]
    sizes = [accounting.count_parameters(row.architecture) / 1e9 for row in rows]
    hours = [row.stated["device_hours"] / 1e6 for row in rows]
    _, (left, right) = figure(10, 3.2, ncols=2)
    for axes, values, text in (
        (left, sizes, "{:.0f} billion "),
        (right, hours, " {:.2f} million"),
    ):
        axes.barh(names, values, 0.6, color=colours)
        look = {"ha": "right" if axes is left else "left", "va": "center", "fontsize": 17}
        for row, value in enumerate(values):
            axes.text(value, row, text.format(value), fontweight="bold", **look)
        axes.set(xlim=(0, 1.55 * max(values)), xticks=[], ylim=(1.5, -0.5))
        axes.spines["bottom"].set_visible(False)
        axes.grid(False)
    left.invert_xaxis()
    left.spines["left"].set_visible(False)
    left.spines["right"].set_visible(True)
    left.yaxis.tick_right()
    left.tick_params(labelsize=17, length=0, pad=8)
    right.set_yticks([])
    label(left, "The larger model ...", "parameters", "")
    label(right, "... took less than a tenth", "GPU-hours", "")
    show_cover()


def utilizations(stacks: Mapping[str, Sequence[tuple[float, str]]]) -> Figure:
    """Draw fractions of the peak and their GPUs, a row for each stack and a colour for each GPU."""
    fig, axes = figure(12.5, 0.42 * len(stacks) + 1.6)
    rows = list(enumerate(stacks.values()))
    gpus = sorted({gpu for _, found in rows for _, gpu in found})
    for gpu, colour, marker in zip(gpus, LINES, "os^Dvp", strict=False):
        points = [(mfu, row) for row, found in rows for mfu, drawn in found if drawn == gpu]
        axes.plot(*zip(*points, strict=True), marker, color=colour, ms=9, label=gpu)
    axes.set_yticks(range(len(stacks)), list(stacks))
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    label(axes, f"MFU of {sum(map(len, stacks.values()))} published steps, by program", "MFU", "")
    return fig


def waterfall(hours: float, factors: Mapping[str, float]) -> Figure:
    """Draw how DeepSeek-V3's GPU-hours, in millions, become Llama 3.1's, factor by factor."""
    fig, axes = figure(11.5, 4.4)
    tops = hours * np.cumprod([1, *factors.values(), 1])
    bottoms = [1, *tops[:-2], 1]  # of a logarithmic axis
    colours = [BLUE, *[GREY] * len(factors), ORANGE]
    axes.bar(range(len(tops)), tops - bottoms, 0.7, bottoms, color=colours)
    notes = [f"{hours:.2f}", *(f"× {factor:.2f}" for factor in factors.values()), f"{tops[-1]:.2f}"]
    for place, (top, note) in enumerate(zip(tops, notes, strict=True)):
        axes.text(place, 1.06 * top, note, ha="center", fontsize=17, fontweight="bold")
    axes.set_xticks(range(len(tops)), ["DeepSeek-V3", *factors, "Llama 3.1 405B"], fontsize=14)
    axes.set(yscale="log", ylim=(1, 55), yticks=(1, 3, 10, 30))
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(False, axis="x")
    label(axes, "Why Llama's run took 11.6 times the hours", "", "million GPU-hours (log)")
    return fig


def pay_back(bills: Mapping[str, tuple[float, float]], title: str) -> Figure:
    """Draw dollars against written tokens, from those of training and of a million tokens."""
    fig, axes = figure(10, 4.2)
    written = np.linspace(0, 4, 41)  # in trillions, each of which is a million times a million
    for (name, (training, million)), colour in zip(bills.items(), LINES, strict=False):
        axes.plot(written, training / 1e6 + written * million, color=colour, label=name)
    axes.set(xlim=(0, 4.4), ylim=(0, None))
    label(axes, title, "written tokens, in trillions", "dollars, in millions")
    label_ends(axes)
    return fig
