"""Figures of GPT-2's parts: the whole, where its parameters are, and attention on four words."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from numpy.typing import ArrayLike
from torch import Tensor

from cs336_course.drawing.charts import curves
from cs336_course.drawing.style import (
    BLUE,
    GREEN,
    GREY,
    RED,
    SKY,
    YELLOW,
    figure,
    label,
    show_cover,
)
from cs336_course.pages.gpt2_model import story


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


def number_table(axes: Axes, numbers: np.ndarray, form: str, framed: int | None) -> None:
    """Draw a table of numbers as shaded cells, with a frame around one row or around all."""
    axes.imshow(numbers, cmap="Blues", vmin=0, vmax=max(1.8 * np.nanmax(numbers), 1), aspect="auto")
    axes.grid(visible=False)
    for (row, column), number in np.ndenumerate(numbers):
        if np.isnan(number):
            hatched = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor="none")
            axes.add_patch(hatched)
            hatched.set(edgecolor=GREY, hatch="//", lw=1)
        else:
            axes.text(column, row, form % number, ha="center", va="center", size=15)
    height, width = numbers.shape
    top, rows = (-0.48, height - 0.04) if framed is None else (framed - 0.48, 0.96)
    axes.add_patch(
        Rectangle((-0.48, top), width - 0.04, rows, facecolor="none", edgecolor=RED, lw=3)
    )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.tick_params(length=0)


def projection(
    words: Sequence[str], x: ArrayLike, matrices: Sequence[ArrayLike], title: str
) -> Figure:
    """Draw how matrices make queries, keys and values of word vectors, the last word framed.

    Args:
        words: The tokens, in order.
        x: Word vectors of shape (token, d).
        matrices: Those that make queries, keys and values, of shape (d, d) or (d, 1).
        title: The title of the figure.
    """
    vectors = np.asarray(x, dtype=float)
    arrays = [np.asarray(matrix, dtype=float) for matrix in matrices]
    captions = "words x,× [ $W_q$,| $W_k$,| $W_v$ ],= [ queries,| keys,| values ]".split(",")
    tables = [vectors, *arrays, *(vectors @ array for array in arrays)]
    widths = [max(table.shape[1], 1.7) for table in tables]
    drawing, panels = figure(16, 3.6, ncols=len(tables), width_ratios=widths)
    for axes, numbers, caption in zip(panels, tables, captions, strict=True):
        framed = vectors[-1].argmax() if "W" in caption else len(words) - 1
        number_table(axes, numbers, "%.0f", framed)
        axes.set_title(caption, loc="left", fontsize=15)
    for axes in (panels[0], panels[len(matrices) + 1]):
        axes.set_yticks(range(len(words)), words, fontsize=14)
    drawing.suptitle(title, fontsize=17, fontweight="bold")
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
    last = count - 1
    tables = (
        ("query", queries, "%.0f", last),
        ("key", keys, "%.0f", None),  # the last word's query meets all keys
        ("value", values, "%.0f", None),
        (f"scores ({root})", np.where(past, scores, np.nan), "%.0f", last),
        ("weights (softmax)", np.where(past, weights, np.nan), "%.2f", last),
        ("output", weights @ values, "%.1f", last),
    )
    for axes, (caption, numbers, form, framed) in zip(panels, tables, strict=True):
        number_table(axes, numbers, form, framed)
        axes.set_title(caption, loc="left", fontsize=15, fontweight="bold")
        if np.isnan(numbers).any():
            axes.set_xticks(range(count), words, fontsize=14)
    panels[0].set_yticks(range(count), words, fontsize=15)
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing


def heads(n_head: int, n_embd: int) -> Figure:
    """Draw the path of a text through a layer of heads, with the shape of each tensor."""
    drawing, axes = figure(14, 3.4)
    axes.set(xlim=(0, 14), ylim=(-1.6, 1.7))
    axes.axis("off")
    size = n_embd // n_head
    tensors = (
        (0.9, "x", f"(seq, {n_embd})"),
        (4.1, "q, k, v", f"(seq, 3 · {n_head} · {size})"),
        (9.9, "side by side", f"(seq, {n_head} · {size})"),
        (13.1, "out", f"(seq, {n_embd})"),
    )
    for x, name, shape in tensors:
        box(axes, x, 0, 1.5, name, "white")
        axes.text(x, -0.5, shape, ha="center", va="top", size=14)
    for x, name in ((2.5, "c_attn"), (11.5, "c_proj")):
        box(axes, x, 0, 1.1, name, SKY)
    for y, name in ((1.2, "head 0"), (0.4, "head 1"), (-1.2, f"head {n_head - 1}")):
        box(axes, 7, y, 2.3, f"{name}: (seq, {size})", YELLOW)
        arrow(axes, (4.87, 0.1 * np.sign(y)), (5.83, y))
        arrow(axes, (8.17, y), (9.13, 0.1 * np.sign(y)))
    axes.text(7, -0.4, "⋮", ha="center", va="center", size=20)
    for start, end in ((1.67, 1.93), (3.07, 3.33), (10.67, 10.93), (12.07, 12.33)):
        arrow(axes, (start, 0), (end, 0))
    return drawing


def attention_maps(maps: Mapping[str, Float[Tensor, "seq seq"]], text: str) -> Figure:
    """Draw each head's weights on a text: a row for each letter, a column for each it looks at."""
    drawing, panels = figure(14, 6.6, ncols=len(maps))
    for axes, (name, weights) in zip(panels, maps.items(), strict=True):
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
        axes.grid(visible=False)
        axes.set_xticks(range(len(text)), text, fontsize=11)
        axes.set_yticks(range(len(text)), text, fontsize=11)
        axes.tick_params(length=0)
        label(axes, name, "letter looked at", "letter that looks")
    return drawing


def stacks(runs: Mapping[str, Sequence[Sequence[float]]], every: int, title: str) -> Figure:
    """Plot the loss of several ways to stack blocks, a thin line for each seed."""
    _, axes = figure(10, 4.6)
    for (name, seeds), colour in zip(runs.items(), (BLUE, GREEN, RED), strict=True):
        for number, curve in enumerate(seeds):
            places = [every * (step + 1) for step in range(len(curve))]
            axes.plot(places, curve, color=colour, lw=2, label=name if number == 0 else "_")
    axes.set(ylim=(2.3, 4.2))
    axes.legend()
    label(axes, title, "step", "loss [nats/letter]")
    return axes.get_figure(root=True)


def seen_past(losses: Mapping[str, Mapping[int, float]], title: str) -> Figure:
    """Plot the loss of tables and models against the number of letters that they see.

    Args:
        losses: Loss in nats per letter by the number of letters, by name.
        title: The title of the figure.
    """
    seen = (1, 2, 4, 8, 16, 32, 64, 128)
    lines = {name: (list(points), list(points.values())) for name, points in losses.items()}
    return curves(
        title,
        "letters that it may see",
        "loss [nats/letter]",
        lines,
        log="x",
        dots=True,
        names="legend",
        xticks=seen,
        xticklabels=seen,
        ylim=(1.2, 2.8),
    )
