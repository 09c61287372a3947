"""Pictures of page 03: rearranged tensors and images, attention maps, losses and times."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from einops import rearrange
from matplotlib import pyplot as plt
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from cs336_course.drawing.shapes import Panel, array, face_of, grids
from cs336_course.drawing.style import GREY, LINES, RED, figure, ink, label, show_cover


def cover() -> None:
    """Draw which dimensions one line of attention swaps, for two orders of the dimensions."""
    _, axes = figure(10, 3.2)
    spot = {"ha": "center", "va": "center"}
    code = "scores = q @ k.transpose(-2, -1)"
    axes.text(3, 2.72, code, fontsize=25, family="monospace", **spot)
    orders = {"the author's": "batch head seq dim", "yours": "batch seq head dim"}
    for row, (whose, order) in enumerate(orders.items()):
        bottom = 1.05 - 1.05 * row
        axes.text(-0.1, bottom + 0.42, whose, fontsize=19, ha="right", va="center")
        for place, name in enumerate(order.split()):
            fill = face_of(1) if place > 1 else "white"
            axes.add_patch(Rectangle((1.5 * place, bottom), 1.4, 0.84, facecolor=fill))
            look = {"color": ink(RED), "fontweight": "bold"} if place == 2 else {"color": "black"}
            axes.text(1.5 * place + 0.7, bottom + 0.42, name, fontsize=22, **look, **spot)
    for place, index in ((2, "-2"), (3, "-1")):
        axes.text(1.5 * place + 0.7, 2.12, index, fontsize=20, family="monospace", **spot)
    axes.set(xlim=(-1.9, 6.9), ylim=(-0.05, 3.05))
    axes.axis("off")
    label(axes, "One line of attention, and two orders of the dimensions", "", "")
    show_cover()


def one_row(text: str, weights: Sequence[float]) -> Figure:
    """Draw how the last letter of a text collects from all letters, with its attention weights."""
    drawing, axes = figure(11, 5.6)
    spot = {"ha": "center", "va": "center"}
    middle = (len(text) - 1) / 2

    def box(x: float, y: float, words: str, group: int, width: float = 0.8) -> None:
        spans = (x - width / 2, y - 0.28), width, 0.56
        axes.add_patch(Rectangle(*spans, facecolor=face_of(group), zorder=2))
        axes.text(x, y, words, fontsize=19, zorder=3, **spot)

    box(middle, 4.6, f"query of  {text[-1]}", 0, 2)
    box(middle, 0, f"new row of  {text[-1]}", 3, 2.2)
    for place, (letter, weight) in enumerate(zip(text, weights, strict=True)):
        wide = {"color": GREY, "linewidth": 1 + 12 * weight, "zorder": 1}
        axes.plot([middle, place], [4.3, 3.2], **wide)
        axes.plot([place, middle], [1.2, 0.3], **wide)
        box(place, 2.95, letter, 1)
        axes.text(place, 2.2, f"{weight:.2f} times", fontsize=15, **spot)
        box(place, 1.45, letter, 2)
    says = {4.6: "what it\nlooks for", 2.95: "keys, what\neach offers", 2.2: "weights"}
    says |= {1.45: "values, what\neach tells", 0: "weights times\nvalues, added"}
    for height, words in says.items():
        axes.text(-0.6, height, words, fontsize=16, ha="right", va="center")
    axes.set(xlim=(-2, len(text) - 0.5), ylim=(-0.4, 5))
    axes.axis("off")
    label(axes, f"What the letter {text[-1]} collects in head 0", "", "")
    return drawing


def two_walks(text: str, n_head: int) -> Figure:
    """Draw with which keys each line compares one query, on a grid of letters and heads."""
    drawing, row = figure(11, 4.4, ncols=2)
    names = "by name: one head's letters", "by position: one letter's heads"
    for way, (axes, name) in enumerate(zip(row, names, strict=True)):
        for head, place in np.ndindex(n_head, len(text)):
            met = head == 0 if way == 0 else place == len(text) - 1
            fill = face_of(1 + 2 * way) if met else "white"
            axes.add_patch(Rectangle((place, head), 1, 1, facecolor=fill, edgecolor="black"))
            words = "q k" if met and (head, place) == (0, len(text) - 1) else "k" if met else ""
            axes.text(place + 0.5, head + 0.5, words, fontsize=17, ha="center", va="center")
        axes.set_xticks([n + 0.5 for n in range(len(text))], list(text), fontsize=17)
        axes.set_yticks([n + 0.5 for n in range(n_head)], range(n_head))
        axes.set(xlim=(0, len(text)), ylim=(n_head, 0), aspect="equal")
        axes.grid(visible=False)
        label(axes, name, "letter", "head")
    return drawing


def before_and_after(values: Tensor, pattern: str, **sizes: int) -> Figure:
    """Draw a tensor before and after a pattern, in colours of the result's first dimension."""
    order = rearrange(torch.arange(values.numel()).view(values.shape), pattern, **sizes)
    after = torch.arange(len(order)).repeat_interleave(order[0].numel())
    before = torch.empty_like(after)
    before[order.flatten()] = after
    left, right = (side.strip() for side in pattern.split("->"))
    axes = [re.sub(r"(?<=\w) (?=[^()]*\))", "·", side) for side in (left, right)]
    result = rearrange(values, pattern, **sizes)
    return grids(
        Panel(left, values, axes[0], before.view(values.shape)),
        Panel(f"-> {right}", result, axes[1], after.view(order.shape)),
    )


def by_hand(steps: Mapping[str, Tensor], names: Sequence[str]) -> Figure:
    """Draw small tensors side by side, with two digits and the names of their dimensions."""
    panels = []
    for (title, values), axes in zip(steps.items(), names, strict=True):
        rows = torch.arange(len(values))[:, None].expand_as(values)
        panels.append(Panel(title, values.round(decimals=2), axes, rows))
    return grids(*panels)


def attention_maps(maps: Mapping[str, Tensor], text: str) -> Figure:
    """Draw attention weights [query, key] of a text as maps with its letters along both sides.

    Exact zeros are white. The colours follow the root of the weight, so small ones differ, too.
    """
    rows, columns, width = 2, 3, 10.5  # so that two rows fit on a slide
    height = 0.6 + width / columns * rows
    drawing, grid = figure(width, height, nrows=rows, ncols=columns, squeeze=False)
    colours = plt.get_cmap("cividis").with_extremes(under="white")
    names = [letter if letter.strip() else "␣" for letter in text]
    size = min(14, 0.75 * 72 * width / (columns * len(text)))  # in points, 72 to an inch
    for place, (axes, (title, weights)) in enumerate(zip(grid.flat, maps.items(), strict=False)):
        image = axes.imshow(array(weights), cmap=colours, norm=PowerNorm(0.5, 1e-9, 1))
        axes.set_xticks(range(len(names)), names, family="monospace", fontsize=size)
        axes.set_yticks(range(len(names)), names, family="monospace", fontsize=size)
        axes.grid(visible=False)
        last, first = place >= len(maps) - columns, place % columns == 0
        label(axes, title, "key" if last else "", "query" if first else "")
    drawing.colorbar(image, ax=list(grid.flat), label="attention weight", shrink=0.75)
    return drawing


def loss_curves(runs: Mapping[str, Sequence[Sequence[float]]], every: int, table: float) -> Figure:
    """Plot losses of several seeds per way, every so many steps, beside the loss of a table."""
    drawing, ax = figure(10, 4.4)
    for colour, style, (way, losses) in zip(LINES, ("-", "--"), runs.items(), strict=False):
        for seed, values in enumerate(losses):
            steps = range(0, every * len(values), every)
            name = f"{way}, {len(losses)} seeds" if seed == 0 else None
            ax.plot(steps, values, style, color=colour, linewidth=1.8, label=name)
    ax.axhline(table, color=GREY, linestyle=":")
    ax.text(0, table - 0.03, f"table of letter pairs, {table:.2f}", va="top", color=ink(GREY))
    ax.set_ylim(2.2, 3.6)
    label(ax, "The small model, right and wrong", "training step", "held-out loss [nats]")
    ax.legend()
    return drawing
