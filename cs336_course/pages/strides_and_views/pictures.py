"""Figures of the character models whose attention heads are merged in two ways."""

from collections.abc import Collection, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cs336_course.drawing.style import BLUE, GREEN, GREY, RED, figure, ink, label, show_cover

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
    before, after = LOSSES
    checks = ("no error any more", "the right shape", f"validation loss {before} → {after}")
    for place, check in enumerate(checks):
        height = 0.42 - 0.17 * place
        axes.text(0.02, height, "✓", va="center", fontsize=26, color=ink(GREEN))
        axes.text(0.06, height, check, va="center", fontsize=19)
    axes.add_patch(Rectangle((0.69, 0.1), 0.29, 0.28, facecolor=ink(GREEN), lw=0))
    button = {"color": "white", "fontweight": "bold", "ha": "center", "va": "center"}
    axes.text(0.835, 0.24, "Merge?", fontsize=28, **button)
    axes.set(xlim=(0, 1), ylim=(0, 0.95))
    axes.axis("off")
    label(axes, "A pull request that deletes one transpose", "", "")
    show_cover()


def neighbours(places: Collection[int]) -> list[list[int]]:
    """Return the places in groups of consecutive numbers."""
    groups: list[list[int]] = []
    for place in sorted(places):
        if groups and place == groups[-1][-1] + 1:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def by_position(losses: Sequence[float], marked: Collection[int], level: float) -> Figure:
    """Draw the loss at each position, and mark some positions.

    Args:
        losses: Loss at each position of a window.
        marked: Positions whose bars are red. The mean loss of neighbours is written on them.
        level: Loss of a table of character pairs, drawn as a line.
    """
    drawing, axes = figure(12, 4.6)
    positions = range(len(losses))
    for place in marked:
        axes.axvspan(place - 0.5, place + 0.5, color=RED, alpha=0.15, linewidth=0)
    axes.bar(positions, losses, color=[RED if p in marked else BLUE for p in positions])
    for group in neighbours(marked):
        mean = sum(losses[place] for place in group) / len(group)
        middle = (group[0] + group[-1]) / 2
        axes.text(middle, 0.1 * level, f"{mean:.2f}", ha="center", size=16)
    axes.axhline(level, color=GREY, linestyle="--", linewidth=2)
    axes.set(xlim=(-0.6, len(losses) - 0.4), ylim=(0, 1.3 * max([*losses, level])))
    axes.set_xticks(range(0, len(losses), 4))
    axes.grid(axis="x", visible=False)
    label(axes, "Where the low loss comes from", "row of the window", "loss [nats/character]")
    key = [Rectangle((0, 0), 1, 1, color=RED, alpha=0.3), Rectangle((0, 0), 1, 1, color=BLUE)]
    words = ["predicted to look ahead", "predicted not to"]
    axes.legend(
        [*key, axes.lines[0]], [*words, "table of character pairs"], ncols=3, loc="upper left"
    )
    return drawing
