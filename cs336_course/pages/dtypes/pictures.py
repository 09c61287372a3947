"""Pictures of page 01: fields of bits, number lines and learned staircases."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from cs336_course.drawing.dtypes import EXPONENT, MANTISSA, SIGN, bare, box, fields
from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LINES,
    RED,
    YELLOW,
    figure,
    label,
    show_cover,
)
from cs336_course.shared import low_precision
from cs336_course.shared.number_formats import FloatFormat, IntFormat


def stairs(
    learned: Mapping[str, Float[Tensor, " letters"]],
    share: Float[Tensor, " letters"],
    where_it_ends: Callable[[float, int], float] | None = None,
) -> Figure:
    """Draw each letter's learned probability over its share of the text.

    Args:
        learned: Probabilities of the letters by the name of the run.
        share: How much of the text each letter is.
        where_it_ends: Returns where a letter of a share ends in batches of a size. It's drawn as a
            staircase.
    """
    drawing, axes = figure(10, 5)
    for (name, p), colour, marker in zip(learned.items(), LINES, "s^", strict=False):
        axes.plot(share, p, marker, color=colour, ms=9, label=name)
    places = np.linspace(0, 0.17, 1000)
    axes.plot(places, places, color=BLACK, lw=1.5, ls=":", label="probability = share")
    if where_it_ends:
        stair = [where_it_ends(f, low_precision.POSITIONS) for f in places.tolist()]
        axes.plot(places, stair, color=GREEN, lw=1.5, label="where a letter ends")
        axes.set_yticks([k / 64 for k in range(1, 11, 2)], [f"{k}/64" for k in range(1, 11, 2)])
    axes.set(xlim=(0, 0.17), ylim=(0, 0.17))
    axes.legend(loc="upper left")
    title = "What two models believe about 62 letters"
    label(axes, title, "how often the letter occurs", "learned probability")
    return drawing


def cover() -> None:
    """Draw what the small GPT learns of the letters' frequencies in fp32 and in fp16."""
    runs = {
        "fp32": low_precision.train(),
        "fp16": low_precision.train(lambda x: x.half().float()),
    }
    learned = {name: low_precision.beliefs(run.model).mean(0) for name, run in runs.items()}
    stairs(learned, low_precision.shares())
    show_cover()


def rounding_places() -> Figure:
    """Draw a layer in a training step, with a dot at each place where the page's runs round."""
    drawing, axes = figure(11, 4)
    boxes = {"layer": (5, 1), "AdamW": (10, 3), "weights and\naverages": (5, 3)}
    for name, (x, y) in boxes.items():
        frame = {"boxstyle": "round,pad=0.5", "facecolor": YELLOW if "\n" in name else "white"}
        axes.text(x, y, name, ha="center", va="center", fontsize=16, bbox=frame)
    arrows = {
        "copy of the\nweights": ((5, 2.55), (5, 1.35), True, (-0.2, -0.1), "right"),
        "input": ((1, 1.2), (4.3, 1.2), False, (0, 0.12), "center"),
        "output": ((5.7, 1.2), (10.5, 1.2), True, (0, 0.17), "center"),
        "gradient of the output": ((10.5, 0.8), (5.7, 0.8), True, (0, -0.42), "center"),
        "gradient of the input": ((4.3, 0.8), (1, 0.8), False, (0, -0.42), "center"),
        "gradient of the weights": ((5.5, 1.35), (9.35, 2.75), True, (0.3, -0.2), "left"),
        "new values": ((9.25, 3), (6.1, 3), False, (0, 0.12), "center"),
    }
    for name, (start, end, is_rounded, (right, up), side) in arrows.items():
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "lw": 2})
        x, y = np.mean((start, end), axis=0).tolist()
        axes.text(x + right, y + up, name, ha=side)
        if is_rounded:
            axes.plot(x, y, "o", color=BLUE, ms=13)
    (dot,) = axes.plot([], [], "o", color=BLUE, ms=13, label="compute rounds")
    axes.legend(handles=[dot, Patch(facecolor=YELLOW, label="store rounds")], loc="upper left")
    axes.set(xlim=(0.5, 11), ylim=(0.2, 3.5))
    axes.set_title("Where a training step rounds", loc="left", fontweight="bold")
    axes.set_axis_off()
    return drawing


def bit_pattern(number: FloatFormat, code: int) -> Figure:
    """Draw the bits of a number as boxes, with the values of set bits and the field names."""
    fig, axes = figure(13, 3.7)
    sign, exponent, mantissa = number.split(code)
    fraction = mantissa / 2**number.mantissa_bits
    notes = {
        "sign": f"sign\n{sign}",
        "exponent": f"exponent field {exponent}\n{exponent} - {number.bias} = "
        f"{exponent - number.bias}",
        "mantissa": f"mantissa field {mantissa}\n"
        f"1 + {mantissa} / $2^{{{number.mantissa_bits}}}$ = {1 + fraction}",
    }
    left = 0.0
    for (what, width, colour), text in zip(fields(number), number.spell(code).split(), strict=True):
        for place, digit in enumerate(text):
            middle = left + place + 0.5
            box(axes, left + place, 0, colour)
            axes.text(middle, 0.48, digit, ha="center", va="center", fontsize=19)
            if digit == "1" and what != "sign":
                worth = 2 ** (width - 1 - place) if what == "exponent" else f"1/{2 ** (place + 1)}"
                axes.text(middle, 1.08, worth, ha="center", va="bottom", fontsize=14)
        axes.text(left + width / 2, -0.12, notes[what], ha="center", va="top", fontsize=18)
        left += width + 0.5
    factors = f"(-1)^{{{sign}}} \\times 2^{{{exponent - number.bias}}} \\times {1 + fraction}"
    formula = f"${factors} = {number.decode(code)}$"
    axes.text(left / 2, -1.2, formula, ha="center", va="top", fontsize=23)
    axes.set(xlim=(-1, left), ylim=(-1.8, 1.6))
    title = f"The bits of {number.decode(code)} in {number.name}"
    axes.set_title(title, loc="left", fontweight="bold", fontsize=19)
    bare(axes)
    return fig


def bit_fields(numbers: Sequence[FloatFormat | IntFormat]) -> Figure:
    """Draw the bits of all formats at the same scale, with the field widths on the right."""
    fig, axes = figure(12, 0.55 * len(numbers) + 1.3)
    for row, number in enumerate(reversed(numbers)):
        left = 0
        for _, width, colour in fields(number):
            for _ in range(width):
                box(axes, left, row, colour)
                left += 1
        for unused in range(left, int(number.bytes * 8)):
            box(axes, unused, row, "none", edgecolor=GREY, hatch="////")
        axes.text(-0.5, row + 0.5, number.name, ha="right", va="center")
        widths = " + ".join(str(width) for _, width, _ in fields(number))
        axes.text(32.7, row + 0.5, widths, va="center")
    handles = [
        *(Patch(facecolor=c, label=w) for w, c in (("sign", SIGN), ("exponent", EXPONENT))),
        *(Patch(facecolor=c, label=w) for w, c in (("mantissa", MANTISSA), ("integer", GREY))),
    ]
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(0.87, 0.02), ncols=2, fontsize=16
    )
    axes.set(xlim=(-6, 37.5), ylim=(-0.1, len(numbers) + 0.1))
    title = "One square is one bit (sign + exponent + mantissa)"
    axes.set_title(title, loc="left", fontweight="bold")
    bare(axes)
    return fig


def number_line(number: FloatFormat, low: float, high: float, title: str) -> Figure:
    """Draw a tick for every value of a format in [low, high], in colour up to the first normal."""
    drawing, axes = figure(12, 2)
    values = np.array([0.0, *number.positive_values()])
    values = values[(values >= low) & (values <= high)]
    tiny = values < number.smallest_normal
    axes.hlines(0, low, high, color=GREY, lw=0.8)
    for kind, colour, name in ((tiny, RED, "0 and subnormal"), (~tiny, BLUE, "normal")):
        axes.vlines(values[kind], -1, 1, color=colour, lw=3, label=name)
    axes.set(yticks=[], ylim=(-1.2, 1.2))
    axes.grid(False)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    label(axes, title, "value", "")
    return drawing
