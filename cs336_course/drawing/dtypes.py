"""Figures on number formats, such as bit fields, number lines and rounding."""

from collections.abc import Mapping, Sequence
from textwrap import wrap

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor, bfloat16, float16

from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LINES,
    MINT,
    ORANGE,
    RED,
    SKY,
    figure,
    ink,
    label,
    label_ends,
    show_cover,
)
from cs336_course.pages.low_bits import story as four_bits
from cs336_course.shared import low_precision
from cs336_course.shared.number_formats import FloatFormat, IntFormat
from cs336_lib.sampling import stream_text
from cs336_lib.training import checkpoint

SIGN, EXPONENT, MANTISSA = ORANGE, SKY, MINT  # all light enough for black digits


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


def cover_low_bits() -> None:
    """Print what a model writes when its weights are stored in 32, 4 and 2 bits."""
    _, axes = figure(10, 3.2)
    model, tokenizer = checkpoint.load_shipped()
    formats = {32: four_bits.keep, 4: four_bits.integers(4, 32), 2: four_bits.integers(2, 32)}
    for column, (bits, quantize) in enumerate(formats.items()):
        with four_bits.rounded_blocks(model, quantize):
            pieces = stream_text(model, tokenizer, "JULIET:\n", 54, temperature=0.7, seed=0)
            written = "".join(pieces)
        colour = RED if bits == 2 else BLACK
        axes.text(column, 0.98, f"{bits} bits", va="top", fontsize=27, fontweight="bold")
        lines = [part for line in written.split("\n") for part in wrap(line, 19) or [""]]
        text = "JULIET:\n" + "\n".join(lines)
        spot = {"va": "top", "family": "monospace", "linespacing": 1.3}
        axes.text(column, 0.74, text, fontsize=18, color=ink(colour), **spot)
    axes.set(xlim=(-0.02, 3), ylim=(0, 1))
    _bare(axes)
    label(axes, "One model, with its blocks' weights in fewer and fewer bits", "", "")
    show_cover()


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
    """Draw one bit as a square."""
    axes.add_patch(Rectangle((left + 0.03, bottom + 0.1), 0.94, 0.8, facecolor=colour, **options))


def _bare(axes: Axes) -> None:
    """Remove the frame, the ticks and the grid."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


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
    for (what, width, colour), text in zip(
        _fields(number), number.spell(code).split(), strict=True
    ):
        for place, digit in enumerate(text):
            middle = left + place + 0.5
            _box(axes, left + place, 0, colour)
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
    _bare(axes)
    return fig


def stored_value(numbers: Sequence[FloatFormat], value: float) -> Figure:
    """Draw the bits and the stored number for one value in several formats."""
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
    """Draw the bits of all formats at the same scale, with the field widths on the right."""
    fig, axes = figure(12, 0.55 * len(numbers) + 1.3)
    for row, number in enumerate(reversed(numbers)):
        left = 0
        for _, width, colour in _fields(number):
            for _ in range(width):
                _box(axes, left, row, colour)
                left += 1
        for unused in range(left, int(number.bytes * 8)):
            _box(axes, unused, row, "none", edgecolor=GREY, hatch="////")
        axes.text(-0.5, row + 0.5, number.name, ha="right", va="center")
        widths = " + ".join(str(width) for _, width, _ in _fields(number))
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
    _bare(axes)
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


def gaps(numbers: Sequence[FloatFormat], at: float | None = None) -> Figure:
    """Plot the gap to the next value against the value, with one line per format.

    A dot marks the gap at the value `at` if the format can represent this magnitude.
    """
    fig, axes = figure(11, 5.2)
    dashes = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
    for number, colour, dash in zip(numbers, LINES, dashes, strict=False):
        values = 2.0 ** np.arange(-20, 17.01, 0.02)
        values = values[(values >= number.smallest_subnormal) & (values <= number.max)]
        gaps = [number.gap(v) for v in values]
        axes.plot(values, gaps, color=colour, ls=dash, lw=3, label=number.name)
        if at is not None and at <= number.max:
            axes.plot(at, number.gap(at), "o", color=colour, ms=11)
    if at is not None:
        axes.axvline(at, color=BLACK, lw=1.5, ls="--", zorder=0)
        axes.text(at, 1.02, f"{at:g}", transform=axes.get_xaxis_transform(), ha="center")
    axes.set_xscale("log", base=10)
    axes.set_yscale("log", base=10)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=16)
    label(axes, "The gap doubles at every power of two", "value", "distance to the next value")
    return fig


def running_sums(sums: Mapping[str, Sequence[float]]) -> Figure:
    """Plot running sums of ones against the number of terms, and label the line ends."""
    fig, axes = figure(11, 5.2)
    for (name, values), colour in zip(sums.items(), (RED, BLUE, BLACK), strict=False):
        axes.plot(range(1, len(values) + 1), values, color=colour, lw=5)
        stuck = values[-1] < len(values)
        text = f"{name} stops at {values[-1]:,.0f}" if stuck else f"{name} is exact"
        place = {"xy": (len(values), values[-1]), "xytext": (10, 0)}
        axes.annotate(
            text, **place, textcoords="offset points", color=ink(colour), va="center", fontsize=18
        )
    axes.margins(x=0)
    axes.tick_params(labelsize=15)
    label(axes, "Adding 1 again and again", "ones added", "running sum")
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


def loss_curves(losses: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Plot loss against step on a logarithmic axis, with one line per run."""
    fig, axes = figure(10, 4.6)
    for (name, values), style in zip(losses.items(), ("-", "--", "-.", ":"), strict=False):
        axes.plot(range(1, len(values) + 1), values, style, lw=4, label=name)
    axes.set_yscale("log")
    axes.tick_params(labelsize=15)
    label(axes, title, "step", "loss")
    label_ends(axes, 18)
    return fig


DASHES = ("-", "-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))


def training(
    losses: Mapping[str, Sequence[float]], title: str, floors: Mapping[str, float] | None = None
) -> Figure:
    """Plot the loss of each run, averaged over 20 steps. The first run is a wide grey line.

    Args:
        losses: Loss at each step by the name of the run.
        title: Title of the figure.
        floors: Losses that are marked by a dotted line, by name.
    """
    fig, axes = figure(12, 5.4)
    colours = (GREY, *LINES)
    for number, (name, values) in enumerate(losses.items()):
        smooth = np.convolve(values, np.ones(20) / 20, mode="valid")
        steps = np.arange(20, len(values) + 1)
        style = {"lw": 9} if number == 0 else {"lw": 3.5}
        axes.plot(steps, smooth, ls=DASHES[number % 6], color=colours[number], label=name, **style)
    for name, value in (floors or {}).items():
        axes.axhline(value, color=BLACK, ls=":", lw=2)
        end = axes.get_xlim()[1]
        axes.text(end, value, name, ha="right", va="bottom", fontsize=15)
    axes.tick_params(labelsize=15)
    axes.legend(fontsize=16, loc="center left", bbox_to_anchor=(1, 0.5))
    label(axes, title, "step", "loss [nats], mean of 20 steps")
    return fig


def above(losses: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Plot how far each run is above the first one, averaged over 20 steps."""
    fig, axes = figure(12, 4.4)
    (_, first), *others = losses.items()
    for number, (name, values) in enumerate(others, start=1):
        excess = np.convolve(np.subtract(values, first), np.ones(20) / 20, mode="valid")
        steps = np.arange(20, len(values) + 1)
        axes.plot(steps, excess, ls=DASHES[number % 6], color=LINES[number - 1], lw=4, label=name)
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_yticks([0, 0.01, 0.1, 1], ["0", "0.01", "0.1", "1"])
    axes.tick_params(labelsize=15)
    axes.legend(fontsize=16, loc="center left", bbox_to_anchor=(1, 0.5))
    label(axes, title, "step", "loss above fp32 [nats]")
    return fig


def stairs(x: Float[Tensor, " points"], rounded: Mapping[str, Float[Tensor, " points"]]) -> Figure:
    """Plot rounded values against exact ones, with a line for each format."""
    fig, axes = figure(9, 5.2)
    axes.plot(x, x, color=GREY, lw=1.5)
    for (name, values), colour, style in zip(
        rounded.items(), (RED, BLUE), ("-", "--"), strict=True
    ):
        axes.plot(x, values, style, color=colour, lw=3.5, label=name)
    axes.tick_params(labelsize=15)
    label(axes, "Rounding to four bits", "exact value", "stored value")
    label_ends(axes, 17)
    return fig


def moved_by(sizes: Sequence[float], shares: Sequence[float], marks: Mapping[str, float]) -> Figure:
    """Plot the share of weights that a step moves against its size, with some sizes marked."""
    fig, axes = figure(11, 4.8)
    axes.plot(sizes, np.multiply(shares, 100), color=BLUE, lw=4)
    for name, size in marks.items():
        share = 100 * np.interp(size, sizes, shares)
        axes.plot(size, share, "o", color=RED, ms=12)
        place = {"xytext": (12, -16), "textcoords": "offset points"}
        axes.annotate(f"{name}: {share:.0f} %", (size, share), fontsize=17, **place)
    axes.set_xscale("log")
    axes.set_ylim(0, 105)
    axes.tick_params(labelsize=15)
    label(axes, "How many of GPT-2's initial weights move", "size of the step", "share [%]")
    return fig


def loss_by_bits(losses: Mapping[str, tuple[float, float]], exact: float, title: str) -> Figure:
    """Plot the loss above `exact` against the bits per weight, with a named dot per format.

    The names stand on the right and on the left of their dots by turns.
    """
    fig, axes = figure(12, 5.2)
    places = ({"xytext": (10, 6), "ha": "left"}, {"xytext": (-10, -18), "ha": "right"})
    for number, (name, (bits, loss)) in enumerate(losses.items()):
        axes.plot(bits, loss - exact, "o", color=BLUE, ms=13)
        place = {"textcoords": "offset points", **places[number % 2]}
        axes.annotate(name, (bits, loss - exact), fontsize=15, **place)
    axes.set_yscale("log")
    axes.margins(x=0.15, y=0.12)
    axes.tick_params(labelsize=15)
    label(axes, title, "bits per weight", "loss above fp32 [nats]")
    return fig


def lost_updates(steps: Mapping[str, Sequence[float]], half_gap: float) -> Figure:
    """Plot the update size of each run by step, with a line at `half_gap`.

    Updates smaller than `half_gap` are lost to rounding."""
    fig, axes = figure(11, 4.8)
    for (name, sizes), colour in zip(steps.items(), (BLUE, RED), strict=False):
        axes.plot(range(1, len(sizes) + 1), sizes, color=colour, lw=4, label=name)
    axes.axhline(half_gap, color=BLACK, ls="--", lw=2)
    axes.axhspan(0, half_gap, color=GREY, alpha=0.2, lw=0)
    count = max(map(len, steps.values()))
    axes.text(count, half_gap * 1.1, "half a gap", ha="right", va="bottom", fontsize=16)
    axes.text(count, half_gap / 2, "rounded away in bf16", ha="right", va="center", fontsize=16)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=16)
    label(axes, "The bf16 run stops where its updates are too small", "step", "size of the update")
    return fig


def error_bars(errors: Mapping[str, float], title: str, unit: str) -> Figure:
    """Draw the error of each scheme as a horizontal bar, with its value next to the bar."""
    fig, axes = figure(11, 0.62 * len(errors) + 1.5)
    names = list(errors)[::-1]
    values = [errors[name] for name in names]
    bars = axes.barh(names, values, color=BLUE, height=0.65)
    axes.bar_label(bars, fmt="%.3f", padding=5, fontsize=16)
    axes.tick_params(labelsize=15)
    axes.set_xlim(0, max(values) * 1.15)
    axes.grid(False, axis="y")
    label(axes, title, unit, "")
    return fig
