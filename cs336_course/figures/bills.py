"""Plots of what models of today cost."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cs336_course.demos import capstone, published_runs
from cs336_course.figures.style import (
    BLACK,
    BLUE,
    BROWN,
    FILLS,
    GREY,
    LINES,
    ORANGE,
    RED,
    SKY,
    figure,
    label,
    show_cover,
)
from cs336_lib import accounting
from cs336_lib.bill import simulate
from cs336_lib.bill.traffic import Layout
from cs336_lib.text import digits

__all__ = [
    "FILLS",
    "bill",
    "cover",
    "cover_gpus",
    "errors",
    "experts",
    "plans",
    "steps",
    "utilizations",
]
NAMES = {"tensor": "waiting for sums (tensor)", "data": "waiting for weights (data)"}  # of parts


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


def cover_gpus() -> None:
    """Draw the GPUs of a draft, as many as would do its work at their peak, and the two sums."""
    rented, rows = capstone.GPUS, 16
    layout = Layout(dp=64, tp=8, zero=3, micro_batches=8)
    step = simulate.simulate(capstone.workload(layout, "none"), capstone.CLUSTER)
    working = round(rented * step.mfu)
    hours = capstone.TOKENS / (capstone.BATCH * capstone.SEQ) * step.seconds / 3600
    dollars = hours * rented * capstone.PRICE
    _, (left, right) = figure(10, 3.2, ncols=2, width_ratios=[2, 1])
    for gpu in range(rented):
        place, colour = divmod(gpu, rows), BLUE if gpu < working else "white"
        left.add_patch(Rectangle(place, 0.8, 0.8, facecolor=colour))
    left.set(xlim=(-0.2, rented / rows), ylim=(rows, -0.2), xticks=[], yticks=[])
    left.spines[:].set_visible(False)
    bills = {"budget": capstone.BUDGET / 1e6, "draft": dollars / 1e6}
    bars = right.bar(list(bills), list(bills.values()), 0.62, color=[SKY, ORANGE])
    written = [f"${bill:.2f}M" for bill in bills.values()]
    right.bar_label(bars, written, padding=3, fontsize=17, fontweight="bold")
    right.set(ylim=(0, 1.25 * max(bills.values())), yticks=[])
    right.tick_params(labelsize=16)
    right.spines["left"].set_visible(False)
    for axes in (left, right):
        axes.grid(False)
    label(left, f"{rented} GPUs do the work of {working}", "each square is an H100", "")
    label(right, "Too expensive", "", "dollars")
    show_cover()


def bill(
    title: str, seconds: Mapping[str, float], gigabytes: Mapping[str, float], there: float
) -> Figure:
    """Draw the time of a step and the memory of a device as two stacked bars.

    Args:
        title: Title of the figure.
        seconds: Seconds of a step by part.
        gigabytes: Memory of a device in GB, by kind.
        there: Memory that a device has, in GB.
    """
    fig, (above, below) = figure(12.5, 5.6, nrows=2)
    stack(above, seconds, "a step [s]")
    stack(below, gigabytes, "memory [GB]")
    below.axvline(there, color=BLACK, ls="--", lw=2.5)
    below.set_xlim(0, max(below.get_xlim()[1], 1.08 * there))
    below.text(there, 0.42, f" {digits(there)} GB", va="bottom", fontweight="bold")
    fig.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=17)
    return fig


def steps(bars: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the time of several steps as stacked bars on one axis.

    Args:
        bars: Seconds of a step by part, by name of the step. All have the same parts.
    """
    fig, axes = figure(12.5, 0.8 * len(bars) + 1.8)
    left = dict.fromkeys(bars, 0.0)
    longest = max(sum(parts.values()) for parts in bars.values())
    for kind, colour in zip(next(iter(bars.values())), FILLS, strict=False):
        sizes = [parts[kind] for parts in bars.values()]
        if max(sizes) < 0.002 * longest:
            continue
        axes.barh(
            list(bars), sizes, left=list(left.values()), color=colour, label=NAMES.get(kind, kind)
        )
        left = {name: left[name] + parts[kind] for name, parts in bars.items()}
    for row, total in enumerate(left.values()):
        axes.text(total, row, f" {total:.1f} s", va="center", fontweight="bold")
    axes.set_xlim(0, 1.1 * longest)
    axes.invert_yaxis()
    axes.grid(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    label(axes, "Where the seconds of a step go", "a step [s]", "")
    return fig


def stack(axes: Axes, parts: Mapping[str, float], unit: str) -> None:
    """Draw one stacked bar with a legend beside it."""
    left, total = 0.0, sum(parts.values())
    for (kind, size), colour in zip(parts.items(), FILLS, strict=False):
        if size < 0.002 * total:
            continue
        name = f"{NAMES.get(kind, kind)} {size:.3g}"
        axes.barh(0, size, left=left, height=0.7, color=colour, label=name)
        left += size
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 0}  # the limit may be behind it
    axes.text(
        left, 0, f" {total:.3g}", va="center", fontweight="bold", color=BLACK, bbox=ground, zorder=3
    )
    axes.set(yticks=[], xlim=(0, 1.06 * total), ylim=(-0.5, 0.75), xlabel=unit)
    axes.grid(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1.1))


def errors(
    stacks: Mapping[str, Sequence[tuple[float, bool]]], interval: tuple[float, float]
) -> Figure:
    """Draw how much longer published steps took than simulated ones, a row for each stack.

    Args:
        stacks: Stated over simulated seconds of each step, and whether it was kept as a test that
            no fit has used, by name of a stack.
        interval: Ends of the interval to shade, as ratios.
    """
    fig, axes = figure(12.5, 0.44 * len(stacks) + 2.2)
    axes.axvspan(*interval, color=SKY, alpha=0.3)
    axes.axvline(1, color=BLACK, lw=1.5)
    for row, ratios in enumerate(stacks.values()):
        for held_out, marker, colour, size in ((False, "o", BLUE, 9), (True, "*", RED, 17)):
            found = [ratio for ratio, is_held in ratios if is_held == held_out]
            axes.plot(found, [row] * len(found), marker, color=colour, ms=size)
    axes.set_yticks(range(len(stacks)), list(stacks))
    axes.set_ylim(len(stacks) - 0.5, -1.3)
    axes.text(interval[0], -0.9, " 8 of 10 papers", va="center", fontweight="bold")
    stars = "★ kept as a test, never fitted"
    axes.text(interval[1], -0.9, f"{stars} ", va="center", ha="right", fontweight="bold")
    axes.xaxis.set_major_formatter(lambda ratio, _: f"{ratio - 1:+.0%}".replace("+0%", "0%"))
    count = sum(map(len, stacks.values()))
    title = f"{count} published steps, each paper left out of the fit"
    label(axes, title, "how much longer the real step took than the simulated one", "")
    return fig


def experts(count: int, chosen: int) -> Figure:
    """Draw a layer of experts, of which a router chooses some, beside the one that all share.

    Args:
        count: Number of experts, a multiple of 32.
        chosen: How many of them a token meets.
    """
    drawing, axes = figure(12, 3.1)
    rows = count // 32
    lit = np.random.default_rng(0).choice(count, chosen, replace=False)
    for expert in range(count):
        x, y = expert % 32, rows - 1 - expert // 32
        colour = BLUE if expert in lit else "white"
        axes.add_patch(Rectangle((x, y), 0.8, 0.8, facecolor=colour, edgecolor=GREY, zorder=3))
        if expert in lit:
            axes.plot([-3.2, x], [rows / 2, y + 0.4], color=BLUE, lw=1.2, zorder=4)
    axes.add_patch(Rectangle((0, -2), 0.8, 0.8, facecolor=ORANGE, edgecolor=GREY))
    axes.plot([-8.6, 0], [rows / 2 - 0.6, -1.6], color=BROWN, lw=1.2)
    look = {"va": "center", "fontsize": 16}
    axes.text(-8.4, rows / 2, "a token", ha="right", **look)
    axes.text(-3.2, rows / 2, "router", ha="right", fontweight="bold", **look)
    axes.annotate(
        "", (-6.4, rows / 2), (-8.2, rows / 2), arrowprops={"arrowstyle": "->", "lw": 1.2}
    )
    axes.text(1.2, -1.6, "the shared expert", **look)
    axes.set(xlim=(-12, 32), ylim=(-2.3, rows + 0.2))
    axes.axis("off")
    title = f"A token meets {chosen} of {count} experts, and the shared one"
    axes.set_title(title, loc="left", fontweight="bold")
    return drawing


def utilizations(
    stacks: Mapping[str, Sequence[tuple[float, str]]],
    notes: Mapping[str, tuple[str, float]] | None = None,
) -> Figure:
    """Draw the MFU of published steps, a row for each stack and a colour for each GPU.

    Args:
        stacks: Fractions of the peak and names of the GPUs, by name of a stack.
        notes: Stack and fraction of the points to mark, by what is written below them.
    """
    fig, axes = figure(12.5, 0.42 * len(stacks) + 1.6)
    gpus = sorted({gpu for found in stacks.values() for _, gpu in found})
    for gpu, colour, marker in zip(gpus, LINES, "os^Dvp", strict=False):
        points = [
            (mfu, row)
            for row, found in enumerate(stacks.values())
            for mfu, drawn in found
            if drawn == gpu
        ]
        axes.plot(*zip(*points, strict=True), marker, color=colour, ms=9, label=gpu)
    for note, (stack_name, mfu) in (notes or {}).items():
        place = mfu, list(stacks).index(stack_name)
        axes.plot(*place, "o", mfc="none", mec=BLACK, mew=2, ms=17)
        look = {"xytext": (0, -26), "textcoords": "offset points", "ha": "center", "fontsize": 12}
        axes.annotate(note, place, **look)
    axes.set_yticks(range(len(stacks)), list(stacks))
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    label(axes, f"MFU of {sum(map(len, stacks.values()))} published steps, by program", "MFU", "")
    return fig


def plans(offers: Mapping[str, Sequence[float]], budget: float) -> Figure:
    """Draw what each plan may cost, a row for each, beside the budget.

    Args:
        offers: The lower end, the expected bill and the upper end in dollars, by name of a plan.
        budget: The customer's budget in dollars.
    """
    fig, axes = figure(12.5, 0.75 * len(offers) + 1.7)
    for row, ends in enumerate(offers.values()):
        low, expected, high = (dollars / 1e6 for dollars in ends)
        colour = RED if 1e6 * high > budget else BLUE
        axes.plot([low, high], [row, row], color=colour, lw=8, solid_capstyle="butt")
        axes.plot(expected, row, "o", color=BLACK, ms=11)
        text = f"${expected:.2f}M"
        axes.text(expected, row - 0.2, text, ha="center", va="bottom", fontweight="bold")
    axes.axvline(budget / 1e6, color=BLACK, ls="--", lw=2.5)
    axes.text(budget / 1e6, -0.8, f" budget ${budget / 1e6:.2f}M", va="center")
    axes.set_yticks(range(len(offers)), list(offers))
    axes.set_ylim(len(offers) - 0.5, -1.1)
    label(axes, "What each plan may cost, and the budget", "millions of dollars", "")
    return fig
