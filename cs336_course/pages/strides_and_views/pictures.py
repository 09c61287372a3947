"""Figures of the character models whose attention heads are merged in two ways."""

from collections.abc import Callable, Mapping, Sequence

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from cs336_course.drawing.shapes import Panel, grids
from cs336_course.drawing.style import BLUE, GREEN, RED, figure, ink, label, show_cover

LOSSES = 1.97, 1.13  # of the two models that the page trains


def cover() -> None:
    """Draw a pull request that deletes a transpose, and whose checks are all green."""
    _, axes = figure(10, 3.2)
    code = {
        "-  y.transpose(1, 2).view(batch, seq, n_embd)": (RED, 0.74),
        "+  y.view(batch, seq, n_embd)": (GREEN, 0.56),
    }
    for line, (colour, height) in code.items():
        axes.add_patch(Rectangle((0, height), 1, 0.18, facecolor=colour, alpha=0.15, lw=0))
        spot = {"va": "center", "family": "monospace", "fontsize": 19}
        axes.text(0.015, height + 0.09, line, **spot)
    loss = f"validation loss {LOSSES[1]}; yours, with reshape, {LOSSES[0]}"
    for place, check in enumerate(("no error any more", "the right shape", loss)):
        height = 0.42 - 0.17 * place
        axes.text(0.02, height, "✓", va="center", fontsize=26, color=ink(GREEN))
        axes.text(0.06, height, check, va="center", fontsize=19)
    axes.add_patch(Rectangle((0.75, 0.1), 0.23, 0.28, facecolor=ink(GREEN), lw=0))
    button = {"color": "white", "fontweight": "bold", "ha": "center", "va": "center"}
    axes.text(0.865, 0.24, "Merge?", fontsize=28, **button)
    axes.set(xlim=(0, 1), ylim=(0, 0.95))
    axes.axis("off")
    label(axes, "A pull request that deletes one transpose", "", "")
    show_cover()


def merges(y: Tensor, lines: Mapping[str, Callable[[Tensor], Tensor]]) -> Figure:
    """Draw the rows that each line makes of one text's heads (1, head, seq, head_dim), by token.

    A token that comes after its row has a black frame.
    """
    seq = y.size(2)
    token = torch.arange(seq)[:, None].expand_as(y).contiguous()
    panels = [Panel("y, head by head", y[0], "head seq head_dim", token[0])]
    for name, line in lines.items():
        panels.append(Panel(name, line(y)[0], "seq n_embd", line(token)[0]))
    drawing = grids(*panels)
    for axes, panel in zip(drawing.axes[1:], panels[1:], strict=True):
        for row, held in enumerate(panel.groups.tolist()):
            for late in {token for token in held if token > row}:
                corner, width = (held.index(late) + 0.06, row + 0.06), held.count(late) - 0.12
                frame = {"facecolor": "none", "edgecolor": "black", "lw": 3.5, "zorder": 3}
                axes.add_patch(Rectangle(corner, width, 0.88, **frame))
    return drawing


def by_position(losses: Sequence[float], tokens: Tensor, level: Sequence[float]) -> Figure:
    """Draw whose tokens (row, piece) each row holds, and its loss, with a table's as a line."""
    drawing, (upper, lower) = figure(12, 7, nrows=2, sharex=True, height_ratios=[5, 4])
    rows = torch.arange(len(tokens))
    ahead = tokens > rows[:, None]
    for marked, colour, mark, words in (
        (~ahead, BLUE, "o", "a token that the row may know"),
        (ahead, RED, "^", "a token of the row's future"),
    ):
        places = marked.nonzero()[:, 0]
        upper.scatter(places, tokens[marked], 42, colour, mark, linewidths=0, label=words)
    upper.plot(rows, rows, color="black", linewidth=2, label="the right line: row r holds token r")
    upper.set(ylim=(-1.5, 32.5), yticks=range(0, len(tokens), 8))
    lower.bar(rows, losses, color=[RED if leaks else BLUE for leaks in ahead.any(1)])
    lower.step(rows, level, "k--", where="mid", label="a table of character pairs, at this row")
    lower.set(xlim=(-0.6, len(losses) - 0.4), xticks=range(0, len(losses), 4))
    for row in rows[ahead.any(1)].tolist():
        for axes in (upper, lower):
            span = axes.axvspan(row - 0.5, row + 0.5, color=RED, alpha=0.12, linewidth=0)
    span.set_label("a row that looks ahead")
    label(upper, "Whose numbers view alone puts into each row", "", "token")
    label(lower, "And the loss of that row", "row of the window", "loss [nats]")
    drawing.legend(loc="outside lower center", ncols=2)
    return drawing
