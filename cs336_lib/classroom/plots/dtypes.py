"""Figures on number formats, with bit fields, number lines, rounding and its effect on training."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from cs336_lib.classroom.bits import FloatFormat, IntFormat
from cs336_lib.classroom.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    RED,
    SKY,
    figure,
    label,
)

SIGN, EXPONENT, MANTISSA = ORANGE, SKY, GREEN  # all light enough for black digits
DENSE_BITS = 8  # wider formats have more values than a figure has pixels, so we draw a band


def _fields(number: FloatFormat | IntFormat) -> list[tuple[str, int, str]]:
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


def _box(axes: Axes, left: float, bottom: float, colour: str, **options) -> None:
    """Draw one bit as a square of side 1, a little smaller than its place."""
    axes.add_patch(
        Rectangle((left + 0.03, bottom + 0.1), 0.94, 0.8, facecolor=colour, lw=0, **options)
    )


def _bare(axes: Axes) -> None:
    """Remove the frame, the ticks and the grid."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def bit_pattern(number: FloatFormat, code: int) -> Figure:
    """Draw one number's bits in boxes, with its three fields named and evaluated below them."""
    fig, axes = figure(12, 2.6)
    digits = number.spell(code).split()
    sign, exponent, mantissa = number.split(code)
    notes = {
        "sign": f"sign\n{sign}",
        "exponent": f"exponent field: {exponent}\n{exponent} - {number.bias} = "
        f"{exponent - number.bias}",
        "mantissa": f"mantissa field: {mantissa}\n1 + {mantissa} / 2^{number.mantissa_bits} = "
        f"{1 + mantissa / 2**number.mantissa_bits}",
    }
    left = 0.0
    for (what, width, colour), text in zip(_fields(number), digits, strict=True):
        for place, digit in enumerate(text):
            _box(axes, left + place, 0, colour)
            axes.text(left + place + 0.5, 0.48, digit, ha="center", va="center", fontsize=17)
        axes.text(left + width / 2, -0.12, notes[what], ha="center", va="top", fontsize=15)
        left += width + 0.5
    axes.set(xlim=(-0.5, left), ylim=(-1.5, 1.1))
    axes.set_title(f"{number.name}: {number.decode(code)}", loc="left", fontweight="bold")
    _bare(axes)
    return fig


def stored_value(numbers: Sequence[FloatFormat], value: float) -> Figure:
    """Draw the bits with which each format stores a value, and the stored number beside them."""
    fig, axes = figure(12, 0.55 * len(numbers) + 1.0)
    for row, number in enumerate(reversed(numbers)):
        if np.isnan(value) and number.specials == "none":
            axes.text(0, row + 0.5, "has no NaN", va="center")
            continue
        code, left = number.encode(value), 0
        for (_, _, colour), digits in zip(_fields(number), number.spell(code).split(), strict=True):
            for digit in digits:
                _box(axes, left, row, colour)
                axes.text(left + 0.5, row + 0.48, digit, ha="center", va="center", fontsize=13)
                left += 1
        axes.text(32.7, row + 0.5, f"{number.decode(code):.9g}", va="center")
    for row, number in enumerate(reversed(numbers)):
        axes.text(-0.5, row + 0.5, number.name, ha="right", va="center")
    axes.set(xlim=(-5, 39), ylim=(-0.1, len(numbers) + 0.1))
    axes.set_title(f"{value!r} in every format", loc="left", fontweight="bold")
    _bare(axes)
    return fig


def bit_fields(numbers: Sequence[FloatFormat | IntFormat]) -> Figure:
    """Draw the bits of all formats to one scale, with the widths of the fields on the right."""
    fig, axes = figure(12, 0.55 * len(numbers) + 1.3)
    for row, number in enumerate(reversed(numbers)):
        left = 0
        for _, width, colour in _fields(number):
            for _ in range(width):
                _box(axes, left, row, colour)
                left += 1
        for unused in range(left, int(number.bytes * 8)):
            _box(axes, unused, row, "none", edgecolor=GREY, hatch="////", linewidth=0)
        axes.text(-0.5, row + 0.5, number.name, ha="right", va="center")
        widths = " + ".join(str(width) for _, width, _ in _fields(number))
        axes.text(32.7, row + 0.5, widths, va="center")
    handles = [
        *(Patch(color=c, label=w) for w, c in (("sign", SIGN), ("exponent", EXPONENT))),
        *(Patch(color=c, label=w) for w, c in (("mantissa", MANTISSA), ("integer", GREY))),
    ]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(0.87, 0.02), ncols=2)
    axes.set(xlim=(-6, 37.5), ylim=(-0.1, len(numbers) + 0.1))
    axes.set_title("One square is one bit", loc="left", fontweight="bold")
    _bare(axes)
    return fig


def number_lines(
    numbers: Sequence[FloatFormat | IntFormat],
    low: float,
    high: float,
    title: str,
    *,
    log: bool = False,
) -> Figure:
    """Draw a stroke for every value of each format in [low, high], on a linear or a log axis."""
    fig, axes = figure(12, 0.75 * len(numbers) + 1.6)
    for row, number in enumerate(reversed(numbers)):
        if isinstance(number, IntFormat):
            values = np.arange(max(number.min, low), min(number.max, high) + 1)
        else:
            values = np.array([0.0, *number.positive_values()])
        values = values[(values >= low) & (values <= high)]
        colour = PALETTE[row % 4]
        axes.hlines(row, low, high, color=GREY, lw=0.8)
        axes.vlines(values, row - 0.32, row + 0.32, color=colour, lw=2)
    axes.set_yticks(range(len(numbers)), [number.name for number in reversed(numbers)])
    axes.grid(False)
    if log:
        axes.set_xscale("log", base=2)
    label(axes, title, "value (log scale)" if log else "value", "")
    return fig


def ranges(numbers: Sequence[FloatFormat]) -> Figure:
    """Draw each format's positive values on a log axis, as strokes, or as a band if too dense.

    Subnormals, where precision fades, are orange, and normal values are blue. The number on the
    right counts the values within a factor of two.
    """
    fig, axes = figure(12, 0.62 * len(numbers) + 2.0)
    for row, number in enumerate(reversed(numbers)):
        start, full, top = number.smallest_subnormal, number.smallest_normal, number.max
        if 1 < number.bits <= DENSE_BITS and number.mantissa_bits:
            values = np.array(number.positive_values())
            colours = np.where(values < full, ORANGE, BLUE)
            axes.vlines(values, row - 0.32, row + 0.32, color=colours, lw=1)
        else:
            axes.barh(row, full - start, left=start, height=0.64, color=ORANGE)
            axes.barh(row, top - full, left=full, height=0.64, color=BLUE)
        per_octave = 2**number.mantissa_bits
        axes.text(top * 30, row, f"{per_octave:,}", va="center")
    axes.axvline(1.0, color=BLACK, lw=1.2, ls="--")
    axes.set_xscale("log")
    axes.set_xlim(1e-47, 1e53)
    axes.set_xticks([10.0**e for e in range(-45, 46, 15)])
    axes.set_yticks(range(len(numbers)), [number.name for number in reversed(numbers)])
    axes.grid(False, axis="y")
    handles = [Patch(color=ORANGE, label="subnormal"), Patch(color=BLUE, label="normal")]
    axes.legend(handles=handles, loc="center right", bbox_to_anchor=(1.0, 0.4))
    title = "Where each format has values; at the right: values per factor of two"
    label(axes, title, "positive value (log scale)", "")
    return fig


def gaps(numbers: Sequence[FloatFormat], update: float | None = None) -> Figure:
    """Plot the gap to the next value against the value, a staircase that doubles per octave."""
    fig, axes = figure(10, 5.2)
    for number, colour in zip(numbers, (BLUE, ORANGE, GREEN, RED, SKY), strict=False):
        values = 2.0 ** np.arange(-20, 17.01, 0.02)
        values = values[(values >= number.smallest_subnormal) & (values <= number.max)]
        axes.plot(values, [number.gap(v) for v in values], color=colour, label=number.name)
    if update is not None:
        axes.axhline(update, color=BLACK, ls="--", lw=1.5)
        axes.text(1.2e-6, update * 1.4, f"a step of {update:g}", fontsize=14)
    axes.set_xscale("log", base=10)
    axes.set_yscale("log", base=10)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    label(axes, "The gap doubles at every power of two", "value", "distance to the next value")
    return fig


def running_sums(sums: Mapping[str, Sequence[float]], truth: Sequence[float]) -> Figure:
    """Plot running sums in several dtypes against the number of terms, and the exact line."""
    fig, axes = figure(10, 4.8)
    terms = np.arange(1, len(truth) + 1)
    for (name, values), colour in zip(sums.items(), (BLUE, ORANGE, GREEN, RED), strict=False):
        axes.plot(terms, values, color=colour, lw=4, label=name)
    axes.plot(terms, truth, color=BLACK, ls="--", lw=1.8, label="exact")
    axes.legend(loc="upper left")
    label(axes, "Summing many small numbers", "terms added", "running sum")
    return fig


def gradient_histogram(
    magnitudes: Mapping[str, Float[Tensor, "..."]], number: FloatFormat
) -> Figure:
    """Plot histograms of |gradient| on a log axis, with the range that `number` can hold.

    In the grey area on the left, values round to zero (below half the smallest value). In the grey
    area on the right, they overflow.
    """
    fig, axes = figure(11, 4.8)
    edges = 2.0 ** np.arange(-46, 21)
    for (name, values), colour in zip(magnitudes.items(), (RED, BLUE, GREEN), strict=False):
        counts, _ = np.histogram(values.abs().flatten().cpu().numpy(), bins=edges)
        share = 100 * counts / values.numel()
        axes.stairs(share, edges, fill=True, alpha=0.55, color=colour, label=name)
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
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0.88))
    title = f"Which gradients {number.name} can hold"
    label(axes, title, "magnitude of the gradient", "share [%]")
    return fig


def loss_curves(losses: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Plot loss against step on a logarithmic axis, one line per run."""
    fig, axes = figure(10, 4.6)
    for (name, values), style in zip(losses.items(), ("-", "--", "-.", ":"), strict=False):
        axes.plot(range(1, len(values) + 1), values, style, label=name)
    axes.set_yscale("log")
    axes.legend()
    label(axes, title, "step", "loss")
    return fig


def quantizer_curves(x: Float[Tensor, " n"], restored: Mapping[str, Float[Tensor, " n"]]) -> Figure:
    """Plot the output of each quantizer against its input."""
    fig, panels = figure(12, 4.2, ncols=len(restored), sharey=True)
    for axes, (name, values), colour in zip(panels, restored.items(), PALETTE, strict=False):
        axes.plot(x, x, color=GREY, lw=1.2, ls="--")
        axes.plot(x, values, color=colour, drawstyle="steps-mid")
        label(axes, name, "value in", "value out" if axes is panels[0] else "")
    return fig


def error_bars(errors: Mapping[str, float], title: str, unit: str) -> Figure:
    """Draw one horizontal bar per scheme with its number beside it."""
    fig, axes = figure(11, 0.62 * len(errors) + 1.5)
    names = list(errors)[::-1]
    values = [errors[name] for name in names]
    bars = axes.barh(names, values, color=BLUE, height=0.65)
    axes.bar_label(bars, fmt="%.3g", padding=5, fontsize=14)
    axes.set_xlim(0, max(values) * 1.15)
    axes.grid(False, axis="y")
    label(axes, title, unit, "")
    return fig
