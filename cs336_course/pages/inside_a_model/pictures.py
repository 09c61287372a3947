"""Figures of what models say halfway, and of where their heads look."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from cs336_course.drawing.charts import curves
from cs336_course.drawing.gpt2_model import visible
from cs336_course.drawing.style import BLUE, GREEN, RED, figure, label, show_cover
from cs336_course.pages.inside_a_model import story


def cover() -> None:
    """Draw what a small GPT would say next after each of its blocks, and how sure it is."""
    _, axes = figure(10, 3.2)
    line = "And suddenly; where injury of chance"
    said = story.halfway(line)
    axes.imshow([sure for _, sure in said], cmap="Blues", vmin=0, vmax=1.5, aspect="auto")
    style = {"ha": "center", "va": "center", "size": 14, "family": "monospace"}
    for row, (letters, _) in enumerate(said):
        for place, letter in enumerate(letters):
            axes.text(place, row, visible(letter), **style)
    axes.set_xticks(range(len(line)), map(visible, line), family="monospace", size=14)
    axes.set_yticks(range(len(said)), ["embedding", *(f"h.{n}" for n in range(len(said) - 1))])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    label(axes, "What a model would say next, after each of its blocks", "the letter just read", "")
    show_cover()


def read_early(losses: Mapping[str, Sequence[float]], guess: float, title: str) -> Figure:
    """Plot the losses of logits that are read from the stream before and after each block.

    Args:
        losses: Losses in nats by what the logits should predict, before block h.0 first.
        guess: The loss of guessing, ln V.
        title: The title of the figure.
    """
    longest = max(map(len, losses.values()))
    return curves(
        title,
        "read out after",
        "loss [nats/letter]",
        losses,
        levels={f"guessing, {guess:.2f}": guess},
        names="legend",
        dots=True,
        xticks=range(longest),
        xticklabels=["embedding", *(f"h.{n}" for n in range(longest - 1))],
    )


def heads(
    maps: Mapping[str, ArrayLike], tokens: Sequence[str], title: str, panel: tuple[float, float]
) -> Figure:
    """Draw one square map per head, with queries as rows, keys as columns, and darker weights.

    Args:
        maps: Attention weights (query, key) by the name of the head.
        tokens: Texts of the tokens.
        title: The title of the figure.
        panel: Width and height of a map in inches. Three stand in a row.
    """
    columns = min(3, len(maps))
    rows = -(-len(maps) // columns)
    size = panel[0] * columns, panel[1] * rows
    drawing, panels = figure(*size, nrows=rows, ncols=columns, squeeze=False)
    names = [visible(token) for token in tokens]
    turned = 90 if max(map(len, names)) > 1 else 0
    for axes, (caption, weights) in zip(panels.flat, maps.items(), strict=True):
        image = axes.imshow(np.asarray(weights), vmin=0, vmax=1, cmap="Blues")
        axes.grid(visible=False)
        axes.set_xticks(range(len(names)), names, rotation=turned, fontsize=13, family="monospace")
        axes.set_yticks(range(len(names)), names, fontsize=13, family="monospace")
        axes.tick_params(length=0)
        axes.set_title(caption, loc="left", fontsize=15, fontweight="bold")
    for axes in panels[:, 0]:
        axes.set_ylabel("query: who looks")
    for axes in panels[-1]:
        axes.set_xlabel("key: what it looks at")
    drawing.colorbar(image, ax=list(panels.flat), shrink=0.6, label="attention weight")
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing


def similarity(table: ArrayLike) -> np.ndarray:
    """Return the cosine of every two rows of a table."""
    rows = np.asarray(table) / np.linalg.norm(np.asarray(table), axis=1, keepdims=True)
    return rows @ rows.T


def positions(tables: Mapping[str, ArrayLike], title: str) -> Figure:
    """Draw how alike every two positions of a table are.

    Args:
        tables: Arrays of (position, dimension), by caption.
        title: The title of the figure.
    """
    drawing, row = figure(4.3 * len(tables), 4.2, ncols=len(tables), squeeze=False)
    for axes, (caption, table) in zip(row[0], tables.items(), strict=True):
        image = axes.imshow(similarity(table), vmin=-1, vmax=1, cmap="RdBu_r")
        axes.grid(visible=False)
        label(axes, caption, "position [tokens]", "")
    row[0, 0].set_ylabel("position [tokens]")
    drawing.colorbar(image, ax=list(row[0]), shrink=0.9, label="cosine of two positions")
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing


def readout(ranks: Mapping[str, Sequence[int]], title: str) -> Figure:
    """Plot the rank of a text's final answer when the stream is read out after each block.

    Args:
        ranks: Rank of the answer before the first block and after each, by text. 1 is the top.
        title: The title of the figure.
    """
    places = [1, 10, 100, 1000, 10_000]
    return curves(
        title,
        "read out after this many blocks",
        "rank of the answer",
        ranks,
        names="legend",
        dots=True,
        log="y",
        size=(13, 5),
        ylim=(50_000, 0.6),
        yticks=places,
        yticklabels=[f"{place:,}" for place in places],
    )


def induction(heads: ArrayLike, losses: Sequence[float], guess: float, title: str) -> Figure:
    """Draw each head's induction score, and the loss on random tokens that are repeated once.

    Args:
        heads: Mean attention to the token after the earlier copy, of shape (layer, head).
        losses: Loss of each token but the first, in nats, as a mean over texts.
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
    label(right, "mean loss of each token", "position [tokens]", "loss [nats/token]")
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing
