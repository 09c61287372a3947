"""Plots of what models of today cost."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cs336_course.drawing.style import (
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
from cs336_course.pages.thousands_of_gpus import capstone
from cs336_course.shared import published_runs
from cs336_lib import accounting
from cs336_lib.bill import simulate
from cs336_lib.bill.simulate import Cluster, Workload
from cs336_lib.bill.traffic import Layout
from cs336_lib.formatting import digits

__all__ = [
    "FILLS",
    "bill",
    "cover",
    "cover_gpus",
    "errors",
    "experts",
    "plans",
    "rings",
    "squares",
    "utilizations",
    "waits",
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
    rented = capstone.GPUS
    layout = Layout(dp=64, tp=8, zero=3, micro_batches=8)
    step = simulate.simulate(capstone.workload(layout, "none"), capstone.CLUSTER)
    working = round(rented * step.mfu)
    hours = capstone.TOKENS / (capstone.BATCH * capstone.SEQ) * step.seconds / 3600
    dollars = hours * rented * capstone.PRICE
    _, (left, right) = figure(10, 3.2, ncols=2, width_ratios=[2, 1])
    draw_gpus(left, {BLUE: working, "white": rented - working})
    bills = {"budget": capstone.BUDGET / 1e6, "draft": dollars / 1e6}
    bars = right.bar(list(bills), list(bills.values()), 0.62, color=[SKY, ORANGE])
    written = [f"${bill:.2f}M" for bill in bills.values()]
    right.bar_label(bars, written, padding=3, fontsize=17, fontweight="bold")
    right.set(ylim=(0, 1.25 * max(bills.values())), yticks=[])
    right.tick_params(labelsize=16)
    right.spines["left"].set_visible(False)
    right.grid(False)
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


def draw_gpus(axes: Axes, counts: Mapping[str, int], rows: int = 16) -> None:
    """Draw a square for each GPU, column by column, by how many have which colour."""
    colours = [colour for colour, count in counts.items() for _ in range(count)]
    for gpu, colour in enumerate(colours):
        axes.add_patch(Rectangle(divmod(gpu, rows), 0.8, 0.8, facecolor=colour))
    axes.set(xlim=(-0.2, len(colours) / rows), ylim=(rows, -0.2), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.grid(False)


def squares(plans: Mapping[str, Mapping[str, int]]) -> Figure:
    """Draw the GPUs of each plan as squares, coloured by what their time is spent on.

    Args:
        plans: GPUs by what they do, by name of a plan, as from `capstone.squares`. All have the
            same parts, and the first part is the work at full speed.
    """
    fig, found = figure(12.5, 0.4 + 2.5 * len(plans), nrows=len(plans), squeeze=False)
    for axes, (name, parts) in zip(found[:, 0], plans.items(), strict=True):
        drawn = dict(zip(FILLS, parts.values(), strict=False))
        draw_gpus(axes, drawn)
        rented, working = sum(parts.values()), next(iter(parts.values()))
        label(axes, f"{name}: {rented} GPUs do the work of {working}", "", "")
        right = rented / 16 + 0.6
        shown = [(part, colour) for part, colour in zip(parts, FILLS, strict=False) if parts[part]]
        for row, (part, colour) in enumerate(shown):
            axes.add_patch(Rectangle((right, 2.5 * row), 1.2, 1.4, facecolor=colour))
            look = {"va": "center", "fontsize": 14}
            axes.text(right + 1.6, 2.5 * row + 0.7, f"{parts[part]} {part}", **look)
        axes.set_xlim(-0.2, 1.5 * rented / 16)
    return fig


def rings(count: int) -> Figure:
    """Draw one or two rings through two machines of two GPUs, and mark the hops over cards.

    Args:
        count: Number of rings. The second one runs the other way round.
    """
    fig, found = figure(6.2 * count, 3.4, ncols=count, squeeze=False)
    places = {0: (0, 1), 1: (2, 1), 2: (5, 1), 3: (7, 1)}
    for number, axes in enumerate(found[0]):
        axes.axis("off")
        order = (0, 1, 2, 3) if number == 0 else (1, 0, 3, 2)
        for left, name in ((-0.8, "machine A"), (4.2, "machine B")):
            box = Rectangle((left, 0.2), 3.6, 1.6, facecolor="none", edgecolor=BLACK, lw=1.5)
            axes.add_patch(box)
            axes.text(left + 1.8, -0.15, name, ha="center", va="top", fontsize=15)
        for hop in range(4):
            one, other = order[hop], order[(hop + 1) % 4]
            crosses = (one < 2) != (other < 2)
            bend = 0.0 if abs(one - other) == 1 else 0.55 if one > other else -0.55
            way = {"arrowstyle": "-|>", "lw": 4 if crosses else 2, "shrinkA": 17, "shrinkB": 17}
            way |= {"color": RED if crosses else BLACK, "mutation_scale": 22}
            way["connectionstyle"] = f"arc3,rad={bend}"
            axes.annotate("", places[other], places[one], arrowprops=way)
        for gpu, place in places.items():
            axes.plot(*place, "o", ms=30, color=SKY, mec=BLACK)
            axes.text(*place, str(gpu), ha="center", va="center", fontsize=16, fontweight="bold")
        axes.set(xlim=(-1, 8), ylim=(-0.6, 3.3))
        title = "→".join(map(str, (*order, order[0])))
        axes.set_title(f"ring {title}", loc="left", fontweight="bold")
    fig.suptitle("Thick hops take a network card", x=0.01, ha="left", fontweight="bold")
    return fig


def waits(work: Workload, cluster: Cluster, rule: float) -> Figure:
    """Draw how long a step waits for weights and for sums, by the tokens that a GPU has at a time.

    Args:
        work: The step, whose micro-batches have one sequence.
        cluster: The GPUs and links.
        rule: Tokens that hide the weights on paper, to be marked.
    """
    fig, axes = figure(11, 4.2)
    sizes = np.arange(0.75, 5.01, 0.05)  # of a micro-batch, in sequences
    each = work.layout.micro_batches

    def waited(size: float) -> dict[str, float]:
        layout = replace(work.layout, **{"micro_batch": size, "micro_batches": 1})
        parts = simulate.simulate(replace(work, layout=layout), cluster).parts
        return {part: seconds * each / size for part, seconds in parts.items()}

    for part, colour, marker in (("data", BLUE, "o"), ("tensor", RED, "s")):
        tokens = sizes * work.seq / work.layout.tp
        found = [waited(size)[part] for size in sizes]
        name = {"data": "for weights", "tensor": "for sums"}[part]
        axes.plot(tokens, found, color=colour, label=f"waiting {name}")
        tried = np.array([1, 2, 4])
        points = [waited(size)[part] for size in tried]
        axes.plot(tried * work.seq / work.layout.tp, points, marker, color=colour, ms=10)
    axes.axvline(rule, color=BLACK, ls="--", lw=2)
    axes.text(rule, 1.9, f" the rule on paper,\n {rule:,.0f} tokens", va="top")
    axes.set(ylim=(-0.2, 7), xlim=(700, 5200))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper right")
    label(
        axes,
        "More tokens hide the weights, and not the sums",
        "tokens of a GPU in a micro-batch",
        "a step waits [s]",
    )
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
