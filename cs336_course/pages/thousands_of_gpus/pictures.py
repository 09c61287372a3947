"""Figures of one training step on several GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    FILLS,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    figure,
    label,
    show_cover,
)
from cs336_course.pages.thousands_of_gpus import capstone
from cs336_course.pages.thousands_of_gpus.story import Event
from cs336_lib.bill import simulate
from cs336_lib.bill.simulate import Cluster, Workload
from cs336_lib.bill.traffic import Layout

COLOURS = {"forward": SKY, "backward": ORANGE}
NAMED = 0.016  # share of the width from which a pass has room for its number


def whole_units(moments: Sequence[tuple[str, Sequence[str]]], title: str) -> Figure:
    """Draw which units' weights are whole at which moment, and which are shards.

    Args:
        moments: What runs, and the names of the units that are whole, as `fsdp_units.watch` notes.
        title: Title of the figure.
    """
    names = sorted({name for _, units in moments for name in units})
    drawing, axes = figure(11, 0.7 * len(names) + 1.9)
    for x, (_, units) in enumerate(moments):
        for y, name in enumerate(names):
            colour = BLUE if name in units else "white"
            axes.add_patch(Rectangle((x - 0.5, y - 0.38), 1, 0.76, facecolor=colour))
            text, ink_ = ("whole", "white") if name in units else ("shard", "black")
            axes.text(x, y, text, ha="center", va="center", size=13, color=ink_)
    axes.set_xlim(-0.5, len(moments) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(range(len(moments)), [what.replace(" ", "\n") for what, _ in moments])
    axes.grid(visible=False)
    label(axes, title, "what runs", "")
    return drawing


def timelines(schedules: Mapping[str, Sequence[Event]], title: str) -> Figure:
    """Draw a row of stages for each schedule, on one axis of time.

    Each box is a pass with the number of its micro-batch. Gaps are the bubble.

    Args:
        schedules: Events by title of a row.
        title: Title of the figure.
    """
    rows = len(schedules)
    fig, found = figure(13, 0.7 + 1.75 * rows, nrows=rows, sharex=True, squeeze=False)
    end = max(event.end for events in schedules.values() for event in events)
    for (name, events), axes in zip(schedules.items(), found[:, 0], strict=True):
        for stage, (kind, number), start, stop in events:
            width, left = 1e3 * (stop - start), 1e3 * start
            axes.barh(stage, width, left=left, height=0.92, color=COLOURS[kind])
            if stop - start > NAMED * end:
                axes.text(left + width / 2, stage, str(number), ha="center", va="center")
        stages = sorted({event.stage for event in events})
        axes.set(xlim=(0, 1e3 * end), ylim=(max(stages) + 0.5, -0.5), yticks=stages)
        axes.grid(False)
        label(axes, name, "", "stage")
    found[-1, 0].set_xlabel("time [ms]")
    patches = [Patch(facecolor=colour, label=kind) for kind, colour in COLOURS.items()]
    fig.legend(handles=patches, loc="outside lower center", ncols=len(patches))
    fig.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=17)
    return fig


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


def lanes(work: Workload, cluster: Cluster, sizes: Sequence[int]) -> Figure:
    """Draw a backward pass of three blocks in two lanes, what GPUs compute and what travels.

    While a block computes, the weights of the next one and the gradients of the last one travel.

    Args:
        work: The step, whose micro-batches have one sequence.
        cluster: The GPUs and links.
        sizes: Sequences of a micro-batch, one for each pair of lanes.
    """
    fig, found = figure(11, 0.9 + 1.6 * len(sizes), nrows=len(sizes), sharex=True)
    travels = work.architecture.n_layer * work.layout.micro_batches
    sends = 1e3 * simulate.data_seconds(work, cluster)[1] / travels
    for axes, size in zip(found, sizes, strict=True):
        layout = replace(work.layout, micro_batch=size)
        computes = 1e3 * sum(simulate.passes(replace(work, layout=layout), cluster).backward)
        late = (1 - cluster.efficiency.overlap) * computes
        turn = max(computes, late + sends)
        for number in range(3):
            boxes = ((0, 0, turn, PINK), (0, 0, computes, BLUE), (1, late, sends, GREY))
            for lane, start, width, colour in boxes:
                axes.barh(lane, width, left=number * turn + start, height=0.86, color=colour)
        tokens = size * work.seq // work.layout.tp
        axes.set(yticks=[0, 1], yticklabels=["GPU", "network"], ylim=(1.5, -0.5))
        axes.grid(False)
        label(axes, f"{tokens:,} tokens of a GPU", "", "")
    found[-1].set_xlabel("time [ms]")
    shown = {"computes": BLUE, "waits": PINK, "weights and gradients travel": GREY}
    patches = [Patch(facecolor=colour, label=what) for what, colour in shown.items()]
    fig.legend(handles=patches, loc="outside lower center", ncols=len(patches))
    return fig


def waits(work: Workload, cluster: Cluster, no_hop: Cluster) -> Figure:
    """Draw how long a step waits for weights and for sums, by the tokens that a GPU has at a time.

    Args:
        work: The step, whose micro-batches have one sequence.
        cluster: The GPUs and links.
        no_hop: The same, but a collective takes no time for a machine.
    """
    fig, axes = figure(11, 4.2)
    sizes = np.arange(0.75, 5.01, 0.05)  # of a micro-batch, in sequences
    each = work.layout.micro_batches

    def waited(size: float, on: Cluster, part: str) -> float:
        layout = replace(work.layout, **{"micro_batch": size, "micro_batches": 1})
        return simulate.simulate(replace(work, layout=layout), on).parts[part] * each / size

    for name, on, part, look in (
        ("for weights", cluster, "data", {"color": BLUE}),
        ("for weights, without the constant", no_hop, "data", {"color": BLUE, "ls": "--"}),
        ("for sums", cluster, "tensor", {"color": RED}),
    ):
        tokens = sizes * work.seq / work.layout.tp
        axes.plot(tokens, [waited(size, on, part) for size in sizes], label=name, **look)
    axes.set(ylim=(-0.5, 20), xlim=(700, 5200))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper right")
    title = "More tokens hide the weights, and not the sums"
    label(axes, title, "tokens of a GPU in a micro-batch", "a step waits [s]")
    return fig
