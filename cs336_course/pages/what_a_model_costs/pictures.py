"""Figures of scaling laws, from the small runs that ship."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter

from cs336_course.drawing.style import BLACK, GREY, LINES, SKY, figure, ink, label, show_cover
from cs336_course.pages.what_a_model_costs.story import Optimum, ScalingRun, power_law
from cs336_course.pages.what_a_model_costs.story import runs as scaling_runs

MARKERS = "osD^vP*X"
KAPLAN = 0.73  # exponent of the best size before Hoffmann et al. (2022) corrected it


def cover() -> None:
    """Draw runs of one budget as boxes, as wide as the model and as high as the text it read."""
    budget = 3e11
    runs = [run for run in scaling_runs() if run.budget == budget]
    _, axes = figure(10, 3.2)
    sizes, read = [run.parameters for run in runs], [run.tokens for run in runs]
    starts = np.cumsum([0, *sizes[:-1]]) + 15_000 * np.arange(len(runs))
    axes.bar(starts, read, sizes, align="edge", color=SKY)
    engineering = EngFormatter(places=0, sep="")
    axes.set_xticks(starts + np.array(sizes) / 2, [engineering(size) for size in sizes], size=15)
    axes.yaxis.set_major_formatter(engineering)
    axes.text(starts[0] + sizes[0], read[0], " small, but well read", va="top", fontsize=16)
    end = starts[-1] + sizes[-1]
    axes.text(end, read[-1], "large, but hardly read\n", ha="right", fontsize=16)
    axes.grid(False, axis="x")
    title = "Six models that cost the same. Which one writes best?"
    label(axes, title, "parameters (the width of a box)", "characters it read")
    show_cover()


def isoflop(runs: Sequence[ScalingRun], optima: Sequence[Optimum], title: str) -> Figure:
    """Plot the losses and the parabola of each budget, and the best sizes against the budget.

    A black star is the lowest point of a parabola. The line on the right is the power law of these
    points, and the dotted line has the exponent of Kaplan et al. (2020).
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
    other = float(np.exp(np.mean(np.log(best) - KAPLAN * np.log(budgets))))
    dotted = {"color": GREY, "linestyle": ":", "label": f"exponent {KAPLAN} (Kaplan 2020)"}
    right.plot(ends, other * ends**KAPLAN, **dotted)
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
