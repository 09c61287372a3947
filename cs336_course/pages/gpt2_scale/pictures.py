"""Figures on training with many devices, such as shares of a batch, memory and cost."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from cs336_course.drawing.style import (
    BLUE,
    BROWN,
    GREEN,
    GREY,
    MINT,
    ORANGE,
    PINK,
    RED,
    SKY,
    figure,
    ink,
    label,
    show_cover,
)
from cs336_lib import accounting
from cs336_lib.config import GPTConfig
from cs336_lib.system.hardware import DATASHEET

RANK_COLOURS = (SKY, ORANGE, MINT, PINK)
PART_COLOURS = {"weights": BLUE, "gradients": ORANGE, "optimizer state": GREEN}

Pieces = Sequence[tuple[int, int]]  # (first window, how many), as returned by World.pieces
Run = tuple[Sequence[int], Sequence[float], Sequence[float]]  # steps, losses, accuracies


def cover() -> None:
    """Draw a full run's days on two CPU cores, and its minutes on eight H100s within a day."""
    tokens, cores = 10e9, 136  # of a full run, and those that two cores read in a second
    flops = tokens * accounting.train_flops_per_token(GPTConfig())
    peak = DATASHEET["h100"].peak_flops["bf16"]
    minutes = accounting.training_seconds(flops, 8, peak, 0.4) / 60
    days = round(tokens / cores / 86_400)
    _, (left, right) = figure(10, 3.2, ncols=2, width_ratios=[3.5, 1])
    rows = 17
    for day in range(days):
        left.add_patch(Rectangle((day // rows, day % rows), 0.8, 0.8, facecolor=SKY, lw=0.5))
    left.set(xlim=(-0.2, -(-days // rows)), ylim=(rows, -0.2))
    right.add_patch(Rectangle((0, 0), 24 * 60, 1, facecolor="white", lw=2))
    right.add_patch(Rectangle((0, 0), minutes, 1, facecolor=RED, lw=0))
    right.set(xlim=(-20, 24 * 60 + 20), ylim=(1.02, -0.02))
    large = {"va": "center", "fontsize": 19, "fontweight": "bold", "color": ink(RED)}
    right.text(2 * minutes, 0.5, f"{minutes:.0f} minutes", **large)
    for axes in (left, right):
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.grid(False)
    label(left, f"Two CPU cores: {days} days for one GPT-2", "each square is a day", "")
    label(right, "Eight H100s", "one day, enlarged", "")
    show_cover()


def who_reads_what(rows: Mapping[str, Sequence[Pieces]], windows: int, title: str) -> Figure:
    """Draw a batch's windows as boxes coloured by rank, in one row per number of processes.

    `rows` holds the pieces of every rank, by the name of the row. Each piece is framed, and the
    number in its boxes is the rank that reads it.
    """
    drawing, axes = figure(10, 1.6 + 0.75 * len(rows))
    for y, ranks in enumerate(rows.values()):
        for rank, pieces in enumerate(ranks):
            colour = RANK_COLOURS[rank % len(RANK_COLOURS)]
            for first, size in pieces:
                axes.add_patch(Rectangle((first, y - 0.36), size, 0.72, facecolor=colour))
                frame = Rectangle((first, y - 0.36), size, 0.72, fill=False, linewidth=2.5)
                axes.add_patch(frame)
                for window in range(first, first + size):
                    axes.text(window + 0.5, y, str(rank), ha="center", va="center", size=15)
    axes.set_xlim(0, windows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xticks([window + 0.5 for window in range(windows)], [str(w) for w in range(windows)])
    axes.grid(visible=False)
    label(axes, title, "window of the batch (in its box: the rank that reads it)", "")
    return drawing


def ring(states: Mapping[str, Sequence[Sequence[int]]], title: str) -> Figure:
    """Draw what every rank holds of every piece at some moments, one panel each.

    Args:
        states: Numbers (rank, piece) by the moment's name. In the last one all sums are complete.
        title: Title of the figure.
    """
    drawing, panels = figure(13, 4.2, ncols=len(states))
    *_, last = states.values()
    ranks, pieces = len(last), len(last[0])
    for axes, (name, rows) in zip(panels, states.items(), strict=True):
        for rank, row in enumerate(rows):
            for piece, number in enumerate(row):
                is_sum = number == last[rank][piece]
                colour = BLUE if is_sum else "white"
                box = Rectangle((piece - 0.5, rank - 0.5), 1, 1, facecolor=colour, linewidth=1.5)
                axes.add_patch(box)
                colour = "white" if is_sum else "black"
                weight = "bold" if is_sum else "normal"
                place = {"ha": "center", "va": "center", "size": 13}
                axes.text(piece, rank, str(number), color=colour, weight=weight, **place)
        axes.set_xlim(-0.5, pieces - 0.5)
        axes.set_ylim(ranks - 0.5, -0.5)
        axes.set_xticks(range(pieces), [f"{piece}" for piece in range(pieces)])
        axes.set_yticks(
            range(ranks), [f"rank {rank}" if axes is panels[0] else "" for rank in range(ranks)]
        )
        axes.grid(visible=False)
        label(axes, name, "piece", "")
        axes.set_title(name, loc="left", weight="bold", size=14)
    drawing.suptitle(title, x=0.01, ha="left", weight="bold", size=17)
    return drawing


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


def bytes_per_gpu(
    bars: Mapping[str, Mapping[str, float]], memory: Mapping[str, float], title: str
) -> Figure:
    """Draw stacked bars of gigabytes on one GPU, by part, and dashed lines for GPU memories."""
    drawing, axes = figure(11, 0.62 * len(bars) + 2.2)
    for y, parts in enumerate(bars.values()):
        left = 0.0
        for part, size in parts.items():
            axes.barh(y, size / 1e9, left=left, color=PART_COLOURS[part], height=0.66)
            left += size / 1e9
        note = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "size": 14}
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.annotate(f"{left:.1f} GB", (left, y), **note, bbox=ground, zorder=5)
    for name, size in memory.items():
        axes.axvline(size / 1e9, color=RED, linestyle="--", linewidth=2)
        note = {"xytext": (4, 5), "textcoords": "offset points", "size": 13, "color": ink(RED)}
        axes.annotate(name, (size / 1e9, 1), xycoords=("data", "axes fraction"), **note)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.grid(axis="y", visible=False)
    axes.legend(
        handles=[Patch(facecolor=colour, label=part) for part, colour in PART_COLOURS.items()],
        loc="lower right",
    )
    label(axes, title, "memory on one GPU, activations left out [GB]", "")
    axes.title.set_position((0, 1.1))
    axes.set_title(title, loc="left", fontweight="bold", pad=28)
    return drawing


def bill(hours: Mapping[str, tuple[float, float]], dollars: Sequence[float], title: str) -> Figure:
    """Draw the hours of each model on one and on eight GPUs, with the price written above."""
    drawing, axes = figure(10.5, 4.8)
    for shift, column, colour, name in ((-0.2, 0, BLUE, "1 GPU"), (0.2, 1, ORANGE, "8 GPUs")):
        places = [x + shift for x in range(len(hours))]
        values = [pair[column] for pair in hours.values()]
        axes.bar(places, values, width=0.38, color=colour, label=name)
        for x, value in zip(places, values, strict=True):
            text = f"{value:.2g} h"
            axes.text(x, value * 1.06, text, ha="center", va="bottom", size=13)
    axes.set_yscale("log")
    axes.set_ylim(0.3, 200)
    axes.set_yticks([1, 10, 100], ["1", "10", "100"])
    names = [f"{name}\n${price:,.0f}" for name, price in zip(hours, dollars, strict=True)]
    axes.set_xticks(range(len(hours)), names)
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper left")
    label(axes, title, "model, and its price either way", "time [h] (log)")
    return drawing


def own_run(log: Path) -> dict[str, Run]:
    """Read the validations of a run of `train_gpt2.py` from its log, if there is one.

    Returns:
        The run by name. The result is empty if the log doesn't exist or has no validation.
    """
    lines = log.read_text().splitlines() if log.exists() else []
    rows = [row for line in lines if "val_loss" in (row := json.loads(line))]
    if not rows:
        return {}
    steps, losses = [row["step"] for row in rows], [row["val_loss"] for row in rows]
    return {
        "yours, on other pages": (
            steps,
            losses,
            [row["hellaswag"] for row in rows if "hellaswag" in row],
        )
    }


def real_runs(runs: Mapping[str, Run], levels: tuple[float, float, float]) -> Figure:
    """Plot runs' validation losses and HellaSwag accuracies, with the levels of GPT-2 and chance.

    Args:
        runs: Steps, losses and accuracies by the run's name. Without accuracies, it is on the left
            only.
        levels: GPT-2's loss on the first run's text, its accuracy, and the accuracy of guessing.
    """
    drawing, (left, right) = figure(12, 5, ncols=2)
    looks = zip((BLUE, BROWN), "os", strict=True)
    for (name, (steps, losses, accuracies)), (colour, marker) in zip(
        runs.items(), looks, strict=False
    ):
        look = {"color": colour, "marker": marker, "markersize": 6}
        left.plot(steps, losses, label=name, **look)
        if accuracies:
            right.plot(steps, [100 * accuracy for accuracy in accuracies], **look)
    for axes in (left, right):
        axes.set_xticks(range(0, 20_001, 5000), [f"{step:,}" for step in range(0, 20_001, 5000)])
        axes.set_xlim(0, 20_000)
    left.set_ylim(2.95, 4.4)
    right.set_ylim(23, 32)
    above = {"textcoords": "offset points", "xytext": (0, 6), "size": 14}
    left.axhline(levels[0], color=RED, linestyle="--", label=f"OpenAI's GPT-2: {levels[0]}")
    for level, name, colour, x in (
        (100 * levels[1], f"OpenAI's GPT-2: {100 * levels[1]:.2f}", RED, 0.02),
        (100 * levels[2], f"guessing: {100 * levels[2]:.0f}", GREY, 0.98),
    ):
        right.axhline(level, color=colour, linestyle="--")
        place = {"xycoords": ("axes fraction", "data"), "ha": "left" if x < 0.5 else "right"}
        right.annotate(name, (x, level), color=ink(colour), **place, **above)
    left.legend(loc="upper right")
    label(
        left,
        "Loss on build-nanogpt's shard",
        "step of 524,288 tokens",
        "loss [nats/token]",
    )
    label(right, "HellaSwag", "step of 524,288 tokens", "right answers [%]")
    return drawing
