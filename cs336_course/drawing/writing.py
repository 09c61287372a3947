"""Draw a text that a model has continued, beside the probabilities of its next letter."""

import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure

from cs336_course.drawing.gpt2_model import visible
from cs336_course.drawing.style import BLUE, figure, ink

COLUMNS, LINES = 44, 8  # of the text


def lines(text: str) -> list[str]:
    """Break a text into lines of at most `COLUMNS` letters, and keep the last `LINES`."""
    broken = [textwrap.wrap(line, COLUMNS) or [""] for line in text.split("\n")]
    return [line for part in broken for line in part][-LINES:]


def written(prompt: str, text: str, chances: Sequence[tuple[str, float]]) -> Figure:
    """Draw a prompt, its continuation, and what may come next.

    Args:
        prompt: What the model was given, which is drawn in another colour.
        text: The prompt and what the model wrote after it.
        chances: The likeliest next letters and their probabilities.
    """
    drawn, (left, right) = figure(9.5, 3.2, ncols=2, width_ratios=(2, 1))
    style = {"family": "monospace", "size": 13, "va": "top", "transform": left.transAxes}
    left.axis("off")
    for row, line in enumerate(lines(text)):
        given = prompt if row == 0 and line.startswith(prompt) else ""
        left.text(0.02, 0.98 - 0.125 * row, given, color=ink(BLUE), weight="bold", **style)
        rest = line.removeprefix(given).rjust(len(line))
        left.text(0.02, 0.98 - 0.125 * row, rest, **style)
    names, sizes = zip(*chances, strict=True)
    right.barh(range(len(names)), sizes, color=BLUE)
    right.set_yticks(range(len(names)), map(visible, names), family="monospace")
    right.invert_yaxis()
    right.set_xlim(0, 1.3 * max(sizes))
    right.set_title("next letter", loc="left", size=13)
    right.xaxis.set_visible(False)
    right.grid(visible=False)
    right.tick_params(length=0)
    for spine in right.spines.values():
        spine.set_visible(False)
    for place, size in enumerate(sizes):
        right.text(size, place, f" {size:.1%}", va="center", size=12)
    return drawn
