"""Plot what a language model expects next."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from cs336_course.drawing.gpt2_model import visible
from cs336_course.drawing.style import BLUE, figure, label


def next_letter(text: str, letters: Sequence[str], chances: Sequence[float]) -> Figure:
    """Plot the probabilities of the most likely next letters after a text."""
    drawn, axes = figure(9.5, 3)
    axes.bar(range(len(letters)), chances, color=BLUE)
    for place, chance in enumerate(chances):
        axes.text(place, chance, f"{chance:.1%}", ha="center", va="bottom", size=12)
    axes.set_xticks(range(len(letters)), map(visible, letters), family="monospace", size=17)
    axes.set_ylim(0, 1.15 * max(chances))
    axes.grid(axis="x", visible=False)
    label(axes, f"After {text!r}", "next letter", "probability")
    return drawn
