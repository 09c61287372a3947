"""Figures on training with many devices: a ring, a step with buckets, and the runs of others."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cs336_course.drawing.style import (
    BLUE,
    BROWN,
    GREY,
    ORANGE,
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

Run = tuple[Sequence[int], Sequence[float], Sequence[float]]  # steps, losses, accuracies


def cover() -> None:
    """Draw a full run's days on two CPU cores, and its minutes on eight H100s within a day."""
    tokens, cores = 10e9, 627  # of a full run, and those that two cores read in a second
    flops = tokens * accounting.train_flops_per_token(GPTConfig())
    peak = DATASHEET["h100"].peak_flops["bf16"]
    minutes = accounting.training_seconds(flops, 8, peak, 0.4) / 60
    days = round(tokens / cores / 86_400)
    _, (left, right) = figure(10, 3.2, ncols=2, width_ratios=[3.5, 1])
    rows = 8
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


def lanes(ways: Mapping[str, Sequence[tuple[float, float]]], compute: float, title: str) -> Figure:
    """Draw what a GPU and its network do in a step, one above the other for each way.

    Args:
        ways: When each message leaves and arrives, in ms, by the name of the way.
        compute: Time for the forward and the backward pass, in ms.
        title: Title of the figure.
    """
    drawing, axes = figure(12, 1.3 + 1.25 * len(ways))
    ticks: dict[float, str] = {}
    middle = {"ha": "center", "va": "center", "size": 14}
    for number, (name, messages) in enumerate(ways.items()):
        gpu, network = 2.5 * number, 2.5 * number + 1
        ticks |= {gpu: f"{name}: GPU", network: "network"}
        axes.barh(gpu, compute / 3, 0.85, color=SKY)
        axes.barh(gpu, 2 * compute / 3, 0.85, left=compute / 3, color=BLUE)
        axes.text(compute / 6, gpu, "forward", **middle)
        axes.text(2 * compute / 3, gpu, "backward", color="white", **middle)
        for leaves, arrives in messages:
            axes.barh(network, arrives - leaves, 0.85, left=leaves, color=ORANGE)
        axes.text(messages[-1][1], network, f" {messages[-1][1]:.0f} ms", va="center", size=15)
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_ylim(max(ticks) + 0.6, -0.6)
    axes.set_xlim(0, 1.12 * max(messages[-1][1] for messages in ways.values()))
    axes.grid(False, axis="y")
    label(axes, title, "time [ms]", "")
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
