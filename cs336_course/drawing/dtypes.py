"""Draw the bits of numbers in several formats."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cs336_course.drawing.style import GREY, MINT, ORANGE, SKY, figure
from cs336_course.shared.number_formats import FloatFormat, IntFormat

SIGN, EXPONENT, MANTISSA = ORANGE, SKY, MINT  # all light enough for black digits


def fields(number: FloatFormat | IntFormat) -> list[tuple[str, int, str]]:
    """Return the non-empty fields as (name, width in bits, colour), most significant first."""
    if isinstance(number, IntFormat):
        return [("integer, two's complement", number.bits, GREY)]
    return [
        (what, width, colour)
        for what, width, colour in (
            ("sign", number.sign_bits, SIGN),
            ("exponent", number.exponent_bits, EXPONENT),
            ("mantissa", number.mantissa_bits, MANTISSA),
        )
        if width
    ]


def box(axes: Axes, left: float, bottom: float, colour: str, **options) -> None:
    """Draw one bit as a square."""
    axes.add_patch(Rectangle((left + 0.03, bottom + 0.1), 0.94, 0.8, facecolor=colour, **options))


def bare(axes: Axes) -> None:
    """Remove the frame, the ticks and the grid."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def stored_value(numbers: Sequence[FloatFormat], value: float) -> Figure:
    """Draw the bits and the stored number for one value in several formats."""
    fig, axes = figure(12, 0.55 * len(numbers) + 1.0)
    for row, number in enumerate(reversed(numbers)):
        if np.isnan(value) and number.specials == "none":
            axes.text(0, row + 0.5, "has no NaN", va="center")
            continue
        code, left = number.encode(value), 0
        for (_, _, colour), digits in zip(fields(number), number.spell(code).split(), strict=True):
            for digit in digits:
                box(axes, left, row, colour)
                axes.text(left + 0.5, row + 0.48, digit, ha="center", va="center", fontsize=13)
                left += 1
        axes.text(32.7, row + 0.5, f"{number.decode(code):.9g}", va="center")
    for row, number in enumerate(reversed(numbers)):
        axes.text(-0.5, row + 0.5, number.name, ha="right", va="center")
    axes.set(xlim=(-5, 39), ylim=(-0.1, len(numbers) + 0.1))
    axes.set_title(f"{value!r} in every format", loc="left", fontweight="bold")
    bare(axes)
    return fig
