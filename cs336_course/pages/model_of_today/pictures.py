"""Figures of a model of today, such as rotated pairs, early read-outs and induction heads."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from cs336_course.drawing.style import (
    BLUE,
    GREEN,
    GREY,
    LINES,
    ORANGE,
    RED,
    SKY,
    figure,
    ink,
    label,
    show_cover,
)
from cs336_course.shared.model_of_today import SMOLLM2
from cs336_lib.accounting import Architecture, architecture_of, parameter_counts
from cs336_lib.config import GPTConfig

DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "D", "^")


def to_scale(axes: Axes, a: Architecture, top: float) -> float:
    """Draw tables and blocks so that each area is a number of parameters; return the right end.

    A part is as high as the model is wide, and `top` is where it begins.
    """
    counts = parameter_counts(a)
    tables = (counts["wte"] + counts["wpe"]) / a.n_embd
    block = (counts.total() / a.n_embd - tables) / a.n_layer
    parts = [(0.0, tables, SKY), *((tables + n * block, block, ORANGE) for n in range(a.n_layer))]
    for left, width, colour in parts:
        axes.add_patch(Rectangle((left, top - a.n_embd), width, a.n_embd, facecolor=colour))
    style = {"ha": "center", "va": "center", "size": 15}
    axes.text(tables / 2, top - a.n_embd / 2, "token table", **style)
    return tables + a.n_layer * block


def cover() -> None:
    """Draw GPT-2 and SmolLM2 to scale, with what the second one answers."""
    _, axes = figure(10, 3.2)
    old, new = architecture_of(GPTConfig()), SMOLLM2
    for a, top, name in ((old, 2250, "GPT-2, 2019"), (new, 900, "SmolLM2, 2024")):
        to_scale(axes, a, top)
        millions = parameter_counts(a).total() / 1e6
        about = f"{name}: {a.n_layer} blocks of width {a.n_embd}, {millions:.0f} million parameters"
        axes.text(0, top + 40, about, size=16, va="bottom")
    style = {"size": 17, "va": "center", "color": ink(RED)}
    axes.text(170_000, 1866, "continues a text", **style)
    asked, answered = "“What is the capital of France?”", "“The capital of France is Paris.”"
    axes.text(0, 140, f"{asked}   {answered}", **style)
    label(axes, "Two models to scale, five years apart", "", "")
    axes.set(xlim=(-500, 236_000), ylim=(0, 2560))
    axes.axis("off")
    show_cover()


def hands(angles: Mapping[str, ArrayLike], title: str) -> Figure:
    """Draw the angle of each pair at each position as the hand of a clock.

    Args:
        angles: Angles in radians at positions 0, 1, 2, ..., by name of the pair.
        title: The title of the figure.
    """
    drawing, axes = figure(13, 1.3 + 1.3 * len(angles))
    circle = np.linspace(0, 2 * np.pi, 100)
    for row, (turned, colour) in enumerate(zip(angles.values(), LINES, strict=False)):
        for place, angle in enumerate(np.asarray(turned)):
            rim = (place + 0.38 * np.cos(circle), -row + 0.38 * np.sin(circle))
            axes.plot(*rim, color=GREY, lw=1)
            tip = (place + 0.36 * np.cos(angle), -row + 0.36 * np.sin(angle))
            arrow = {"arrowstyle": "-|>", "lw": 2.5, "color": colour, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", tip, (place, -row), arrowprops=arrow)
        axes.set_xticks(range(len(np.asarray(turned))))
    axes.set_yticks([-row for row in range(len(angles))], list(angles))
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.set_ylim(-len(angles) + 0.5, 0.5)
    label(axes, title, "position [tokens]", "")
    return drawing


def scores(panels: Mapping[str, ArrayLike], title: str) -> Figure:
    """Draw scores of queries (rows) with keys (columns). Each panel has its own scale."""
    drawing, row = figure(6.2 * len(panels), 5.4, ncols=len(panels), squeeze=False)
    for axes, (caption, values) in zip(row[0], panels.items(), strict=True):
        matrix = np.where(np.tri(len(np.asarray(values))), np.asarray(values), np.nan)
        largest = np.nanmax(np.abs(matrix))
        image = axes.imshow(matrix, cmap="RdBu_r", vmin=-largest, vmax=largest)
        axes.grid(visible=False)
        label(axes, caption, "position of the key", "position of the query")
        drawing.colorbar(image, ax=axes, shrink=0.8, label="score")
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing


def readout(ranks: Mapping[str, Sequence[int]], title: str) -> Figure:
    """Plot the rank of a text's final answer when the stream is read out after each block.

    Args:
        ranks: Rank of the answer before block 1 and after each block, by text. 1 is the top.
        title: The title of the figure.
    """
    drawing, axes = figure(13, 5)
    for (text, values), colour, dashes, marker in zip(
        ranks.items(), LINES, DASHES, MARKERS, strict=False
    ):
        axes.plot(values, color=colour, ls=dashes, marker=marker, markersize=6, label=text)
    axes.set_yscale("log")
    axes.invert_yaxis()
    axes.set_yticks([1, 10, 100, 1000, 10_000], ["1", "10", "100", "1,000", "10,000"])
    axes.minorticks_off()
    axes.legend(loc="upper left")
    label(axes, title, "read out after block", "rank of the answer")
    return drawing


def visible(token: str) -> str:
    """Return a token in a form that an axis can show."""
    return token.replace(" ", "·").replace("\n", "↵")


def heads_on_text(maps: Mapping[str, ArrayLike], tokens: Sequence[str], title: str) -> Figure:
    """Draw one square map per head, with queries as rows, keys as columns, and darker weights."""
    drawing, row = figure(5.2 * len(maps), 5.8, ncols=len(maps), squeeze=False, sharey=True)
    names = [visible(token) for token in tokens]
    for axes, (caption, weights) in zip(row[0], maps.items(), strict=True):
        image = axes.imshow(np.asarray(weights), vmin=0, vmax=1, cmap="Blues")
        axes.grid(visible=False)
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=13)
        axes.set_yticks(range(len(names)), names, fontsize=13)
        axes.tick_params(length=0)
        axes.set_title(caption, loc="left", fontsize=15, fontweight="bold")
        axes.set_xlabel("key: what it looks at")
    row[0, 0].set_ylabel("query: who looks")
    drawing.colorbar(image, ax=list(row[0]), shrink=0.6, label="attention weight")
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing


def induction(heads: ArrayLike, losses: Sequence[float], guess: float, title: str) -> Figure:
    """Draw each head's induction score, and the loss on random tokens that are repeated once.

    Args:
        heads: Mean attention to the token after the earlier copy, of shape (layer, head).
        losses: Loss of each token but the first, in nats.
        guess: The loss of guessing, ln V.
        title: The title of the figure.
    """
    drawing, (left, right) = figure(13, 5.4, ncols=2, width_ratios=(2, 3))
    image = left.imshow(np.asarray(heads), vmin=0, vmax=1, cmap="Blues", aspect="auto")
    left.grid(visible=False)
    left.set_xticks(range(np.asarray(heads).shape[1]))
    drawing.colorbar(image, ax=left, shrink=0.8, label="attention weight")
    label(left, "induction score", "head", "layer")
    places = np.arange(1, len(losses) + 1)
    right.plot(places, losses, color=BLUE, marker="o", markersize=4, lw=1.5)
    right.axvline((len(losses) + 1) / 2, color=GREEN, ls="--", lw=2, label="the repetition starts")
    right.axhline(guess, color=RED, ls=":", lw=2, label=f"guessing, {guess:.1f}")
    right.set_ylim(0, 1.25 * max(losses))
    right.legend(loc="upper right", ncols=2)
    label(right, "loss of each token", "position [tokens]", "loss [nats/token]")
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing
