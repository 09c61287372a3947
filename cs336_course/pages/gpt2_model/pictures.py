"""Figures of GPT-2's parts: the whole, where its parameters are, and attention on four words."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from numpy.typing import ArrayLike

from cs336_course.drawing.charts import curves
from cs336_course.drawing.style import (
    BLUE,
    GREEN,
    GREY,
    MINT,
    PINK,
    RED,
    SKY,
    YELLOW,
    figure,
    label,
    show_cover,
)
from cs336_course.pages.gpt2_model import story

SHARES = ((BLUE, "", "white"), (PINK, "", "black"), (YELLOW, "", "black"), (MINT, "", "black"))


def box(axes: Axes, x: float, y: float, width: float, text: str, colour: str) -> None:
    """Draw a rounded box centred at (x, y)."""
    shape = FancyBboxPatch(
        (x - width / 2, y - 0.3),
        width,
        0.6,
        boxstyle="round,pad=0.02,rounding_size=0.12",
        facecolor=colour,
        edgecolor="black",
        linewidth=1.5,
    )
    axes.add_patch(shape)
    axes.text(x, y, text, ha="center", va="center", size=14)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw a thin arrow between two points."""
    style = {"arrowstyle": "-|>", "lw": 1.8, "color": "black", "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)


def cover() -> None:
    """Draw a line of a play twice, with each letter as dark as a model saw it coming."""
    _, axes = figure(10, 3.2)
    line = "And suddenly; where injury of chance"
    shades = plt.get_cmap("Blues")
    for height, (name, chances) in zip(
        (1.55, 0), story.letter_by_letter(line).items(), strict=True
    ):
        for place, (letter, chance) in enumerate(zip(line, chances.tolist(), strict=True)):
            tile = Rectangle((place, height), 0.96, 0.8, facecolor=shades(0.6 * chance), lw=0.5)
            axes.add_patch(tile)
            style = {"ha": "center", "va": "center", "size": 22, "family": "monospace"}
            axes.text(place + 0.48, height + 0.4, letter, **style)
        axes.text(0, height + 0.92, name, size=17, va="bottom")
    axes.set(xlim=(-0.1, len(line)), ylim=(-0.1, 2.9))
    axes.axis("off")
    label(axes, "The darker a letter, the more the model expected it", "", "")
    show_cover()


def architecture(n_layer: int, n_embd: int, vocab_size: int) -> Figure:
    """Draw GPT-2 from left to right, with the residual stream as a thick line."""
    drawing, axes = figure(14, 4.6)
    axes.set(xlim=(0, 14), ylim=(-1.15, 3.0))
    axes.axis("off")
    axes.plot([2.95, 10.6], [0, 0], color=GREEN, lw=9, solid_capstyle="butt", zorder=0)
    axes.text(3.3, -0.42, f"residual stream, {n_embd} numbers per token", size=14, va="top")
    box(axes, 0.75, 0, 1.2, "token ids", "white")
    box(axes, 2.3, 0.75, 1.65, "wte: token", SKY)
    box(axes, 2.3, -0.75, 1.65, "wpe: position", SKY)
    arrow(axes, (1.37, 0.1), (1.46, 0.6))
    arrow(axes, (1.37, -0.1), (1.46, -0.6))
    for sign in (1, -1):
        arrow(axes, (2.75, sign * 0.43), (3.0, sign * 0.1))
    axes.add_patch(
        Rectangle((3.85, -0.25), 6.35, 3.0, facecolor="none", edgecolor=GREY, lw=1.8, ls="--")
    )
    axes.text(7.03, 2.45, f"block, {n_layer} times", ha="center", va="center", size=14)
    for left, norm, part in ((4.15, "ln_1", "attention"), (7.25, "ln_2", "MLP")):
        box(axes, left + 0.45, 1.5, 0.9, norm, YELLOW)
        box(axes, left + 1.95, 1.5, 1.5, part, SKY)
        arrow(axes, (left + 0.45, 0.08), (left + 0.45, 1.17))
        arrow(axes, (left + 0.92, 1.5), (left + 1.17, 1.5))
        arrow(axes, (left + 1.95, 1.17), (left + 1.95, 0.2))
        axes.text(left + 1.95, 0, "+", ha="center", va="center", size=20, fontweight="bold")
    box(axes, 11.1, 0, 0.9, "ln_f", YELLOW)
    box(axes, 12.75, 0, 1.7, "lm_head", SKY)
    arrow(axes, (11.57, 0), (11.87, 0))
    axes.text(12.75, -0.42, f"{vocab_size:,} logits\nper token", size=14, va="top", ha="center")
    tie = ([2.3, 2.3, 12.75, 12.75], [1.07, 2.9, 2.9, 0.34])
    axes.plot(*tie, color=GREY, ls="--", lw=1.8)
    axes.text(12.6, 2.6, "the same matrix", ha="right", va="center", size=14)
    return drawing


def parameter_share(models: Mapping[str, Mapping[str, int]], title: str) -> Figure:
    """Draw a bar of 100 % per model, divided into its parts."""
    drawing, axes = figure(13, 1.4 + 0.85 * len(models))
    parts = list(next(iter(models.values())))
    colours = dict(zip(parts, cycle(SHARES), strict=False))
    for height, counts in enumerate(models.values()):
        left, total = 0.0, sum(counts.values())
        for part in parts:
            share = 100 * counts[part] / total
            colour, hatch, ink = colours[part]
            name = part if height == 0 else None
            axes.barh(height, share, left=left, color=colour, hatch=hatch, label=name)
            if share > 3:
                middle = {"ha": "center", "va": "center", "size": 14, "color": ink}
                axes.text(left + share / 2, height, f"{share:.0f} %", **middle)
            left += share
    axes.set_yticks(range(len(models)), models)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.grid(visible=False)
    axes.legend(ncols=len(parts), loc="upper center", bbox_to_anchor=(0.5, -0.2))
    label(axes, title, "share of all parameters [%]", "")
    return drawing


def attention_trace(
    words: Sequence[str], q: ArrayLike, k: ArrayLike, v: ArrayLike, title: str
) -> Figure:
    """Draw causal attention on a few words, from queries, keys and values to the outputs.

    Args:
        words: The tokens, in order.
        q: Queries of shape (token, d).
        k: Keys of shape (token, d).
        v: Values of shape (token, 1).
        title: The title of the figure.
    """
    queries, keys, values = (np.asarray(each, dtype=float) for each in (q, k, v))
    count, width = queries.shape
    scores = queries @ keys.T / np.sqrt(width)
    past = np.tri(count, dtype=bool)
    weights = np.exp(scores) * past
    weights /= weights.sum(1, keepdims=True)
    drawing, panels = figure(15, 4.9, ncols=6, width_ratios=(width, width, 1.4, count, count, 1.4))
    root = f"q·k / {np.sqrt(width):.3g}"
    tables = (
        ("query", queries, "%.0f", ""),
        ("key", keys, "%.0f", ""),
        ("value", values, "%.0f", ""),
        (f"scores ({root})", scores, "%.0f", "future"),
        ("weights (softmax)", weights, "%.2f", "future"),
        ("output", weights @ values, "%.1f", ""),
    )
    for axes, (caption, numbers, form, hidden) in zip(panels, tables, strict=True):
        shown = np.where(past, numbers, np.nan) if hidden else numbers
        axes.imshow(shown, cmap="Blues", vmin=0, vmax=max(1.8 * np.nanmax(shown), 1), aspect="auto")
        axes.grid(visible=False)
        for (row, column), number in np.ndenumerate(shown):
            if np.isnan(number):
                place = (column - 0.5, row - 0.5)
                axes.add_patch(
                    Rectangle(place, 1, 1, facecolor="none", edgecolor=GREY, hatch="//", lw=1)
                )
                continue
            middle = {"ha": "center", "va": "center", "size": 15}
            axes.text(column, row, form % number, **middle)
        last = Rectangle((-0.48, count - 1.48), shown.shape[1] - 0.04, 0.96)
        last.set(facecolor="none", edgecolor=RED, lw=3)
        axes.add_patch(last)
        axes.set_title(caption, loc="left", fontsize=15, fontweight="bold")
        axes.set_yticks(range(count), words if axes is panels[0] else [""] * count, fontsize=15)
        axes.set_xticks(range(count if hidden else 0), words if hidden else [], fontsize=14)
        axes.tick_params(length=0)
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing


def seen_past(losses: Mapping[int, float], counted: float, title: str) -> Figure:
    """Plot a model's loss against the number of letters that it may see.

    Args:
        losses: Loss in nats per letter, by the number of letters.
        counted: Loss of counting which letter follows which.
        title: The title of the figure.
    """
    return curves(
        title,
        "letters that it may see",
        "loss [nats/letter]",
        {"the shipped model": list(losses.values())},
        levels={"a table of letter pairs": counted},
        dots=True,
        xticks=range(len(losses)),
        xticklabels=list(losses),
        ylim=(0, 3),
    )
