"""Pictures of page 01: fields of bits, number lines and lost gradients."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor, bfloat16, float16

from cs336_course.drawing.charts import curves
from cs336_course.drawing.dtypes import EXPONENT, MANTISSA, SIGN, bare, box, fields
from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LINES,
    ORANGE,
    RED,
    figure,
    label,
    show_cover,
)
from cs336_course.shared import low_precision
from cs336_course.shared.number_formats import FloatFormat, IntFormat


def cover() -> None:
    """Draw the path of gradient descent through a valley in three formats, two of which stop."""
    _, axes = figure(10, 3.2)
    x, y = np.meshgrid(np.linspace(-1.4, 1.4, 200), np.linspace(-0.45, 1.25, 100))
    height = np.sqrt(0.01 * (1 - x) ** 2 + 0.5 * (y - x**2) ** 2)
    axes.contourf(x, y, height, levels=12, cmap="Greys_r", vmin=-2, vmax=1)
    fp16, bf16 = (lambda w, dtype=dtype: w.to(dtype).float() for dtype in (float16, bfloat16))
    paths = {
        "fp32 arrives": (low_precision.valley(), BLACK, (-18, 0), "right"),
        "bf16 stops here": (low_precision.valley(bf16, bf16), RED, (8, -22), "left"),
        "fp16 stops here": (low_precision.valley(fp16), BLUE, (14, 14), "left"),
    }
    axes.plot(1, 1, "*", color=GREEN, ms=32)
    for name, (path, colour, offset, side) in paths.items():
        axes.plot(*path.T, color=colour, lw=4, label=name)
        axes.plot(*path[-1], "o", color=colour, ms=14)
        place = {"textcoords": "offset points", "xytext": offset, "ha": side, "va": "center"}
        axes.annotate(name, path[-1].tolist(), **place, color=BLACK, fontsize=19)
    axes.grid(False)
    axes.set(xticks=[], yticks=[])
    label(axes, "The same descent, computed in three number formats", "weight 1", "weight 2")
    show_cover()


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


def number_lines(
    numbers: Sequence[FloatFormat | IntFormat], low: float, high: float, title: str
) -> Figure:
    """Draw a tick for every value of each format in [low, high]."""
    fig, axes = figure(12, 0.75 * len(numbers) + 1.6)
    for row, number in enumerate(reversed(numbers)):
        if isinstance(number, IntFormat):
            values = np.arange(max(number.min, low), min(number.max, high) + 1)
        else:
            values = np.array([0.0, *number.positive_values()])
        values = values[(values >= low) & (values <= high)]
        colour = LINES[row % 4]
        axes.hlines(row, low, high, color=GREY, lw=0.8)
        axes.vlines(values, row - 0.32, row + 0.32, color=colour, lw=2)
    axes.set_yticks(range(len(numbers)), [number.name for number in reversed(numbers)])
    axes.tick_params(labelsize=16)
    axes.grid(False)
    label(axes, title, "value", "")
    return fig


def ranges(numbers: Sequence[FloatFormat], marks: Sequence[float] = ()) -> Figure:
    """Draw the range of positive values of each format on a log axis, with `marks` as lines.

    Normal values are blue, and subnormals are orange. A column on the right shows the number of
    values per factor of two.
    """
    fig, axes = figure(13, 0.72 * len(numbers) + 2.4)
    for row, number in enumerate(reversed(numbers)):
        start, full, top = number.smallest_subnormal, number.smallest_normal, number.max
        axes.barh(row, full - start, left=start, height=0.6, color=ORANGE)
        axes.barh(row, top - full, left=full, height=0.6, color=BLUE)
        axes.text(1e53, row, f"{2**number.mantissa_bits:,}", ha="right", va="center", fontsize=18)
    above = len(numbers) - 0.45
    axes.text(1e53, above, "values per\nfactor of two", ha="right", va="bottom", fontsize=16)
    for mark in marks:
        axes.axvline(mark, color=BLACK, lw=2, ls="--")
        axes.text(
            mark, above, f"$10^{{{np.log10(mark):.0f}}}$", ha="center", va="bottom", fontsize=17
        )
    axes.set_xscale("log")
    axes.set(xlim=(1e-47, 1e54), ylim=(-0.6, above))
    axes.set_xticks([10.0**e for e in range(-45, 46, 15)])
    axes.set_yticks(range(len(numbers)), [number.name for number in reversed(numbers)])
    axes.tick_params(labelsize=17)
    axes.grid(False)
    handles = [Patch(facecolor=ORANGE, label="subnormal"), Patch(facecolor=BLUE, label="normal")]
    axes.legend(handles=handles, loc="lower left", fontsize=16)
    axes.set_xlabel("positive value", fontsize=17)
    title = "Exponent bits buy range, mantissa bits buy precision"
    axes.set_title(title, loc="left", fontweight="bold", fontsize=19, pad=30)
    return fig


def gradient_histogram(
    magnitudes: Mapping[str, Float[Tensor, "..."]], number: FloatFormat
) -> Figure:
    """Plot histograms of |gradient| on a log axis, with the range of the format `number`.

    Values in the left grey area are rounded to zero, because they are smaller than half the
    smallest positive value. Values in the right grey area overflow.
    """
    fig, axes = figure(11, 4.8)
    edges = 2.0 ** np.arange(-46, 21)
    for (name, values), colour in zip(magnitudes.items(), (RED, BLUE, GREEN), strict=False):
        counts, _ = np.histogram(values.abs().flatten().cpu().numpy(), bins=edges)
        share = 100 * counts / values.numel()
        axes.stairs(share, edges, fill=True, alpha=0.55, color=colour, lw=0, label=name)
        axes.stairs(share, edges, color=colour, lw=1.5)
    lost, top = number.smallest_subnormal / 2, number.max
    axes.axvspan(edges[0], lost, color=GREY, alpha=0.25, lw=0)
    axes.axvspan(top, edges[-1], color=GREY, alpha=0.25, lw=0)
    axes.axvline(number.smallest_normal, color=BLACK, lw=1.5, ls=":")
    high = axes.get_ylim()[1] * 1.35
    axes.set_ylim(0, high)
    axes.text(lost / 2, high * 0.96, f"{number.name}: zero", ha="right", va="top")
    axes.text(top / 4, high * 0.96, "normal", ha="right", va="top")
    axes.text(number.smallest_normal / 1.5, high * 0.96, "subnormal", ha="right", va="top")
    axes.text(top * 1.6, high * 0.96, "inf", va="top")
    axes.set_xscale("log", base=2)
    axes.set_xlim(edges[0], edges[-1])
    axes.legend(loc="center right", bbox_to_anchor=(0.9, 0.6), fontsize=16)
    title = f"Which gradients {number.name} can hold"
    label(axes, title, "magnitude of the gradient", "share [%]")
    return fig


def above(losses: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Plot how far each run is above the first one, averaged over 20 steps."""
    (_, first), *others = losses.items()
    excess = {name: np.subtract(values, first).tolist() for name, values in others}
    unit = "loss above fp32 [nats]"
    drawing = curves(title, "step", unit, excess, first=1, smooth=20, names="", size=(12, 4.4))
    (axes,) = drawing.axes
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_yticks([0, 0.01, 0.1, 1], ["0", "0.01", "0.1", "1"])
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return drawing
