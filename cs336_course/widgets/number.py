"""Explore the bits of a number in different floating-point formats."""

import math

from matplotlib.figure import Figure

from cs336_course.drawing import dtypes as plots
from cs336_course.shared import number_formats
from cs336_course.shared.number_formats import FloatFormat
from cs336_course.widgets.widget import (
    Explorer,
    Values,
    View,
    button,
    choice,
    code,
    swatch,
    table,
    tag,
    text,
)
from cs336_lib.config import UserError

FORMATS = {
    number.name: number
    for number in (
        number_formats.FP64,
        number_formats.FP32,
        number_formats.TF32,
        number_formats.FP16,
        number_formats.BF16,
        number_formats.E4M3,
        number_formats.E5M2,
        number_formats.E2M1,
    )
}
MOST_BITS = 36  # characters of a bit pattern in the table; fp32 with its two spaces has 34
PRESETS = {
    "0.1": {"number": "0.1"},
    "fp16’s largest": {"number": "65504.0", "format": "fp16"},
    "fp32’s smallest": {"number": "1e-45", "format": "fp32"},
    "2²⁴ + 1": {"number": "16777217", "format": "fp32"},
    "infinity": {"number": "inf", "format": "fp32"},
    "NaN": {"number": "nan", "format": "fp32"},
}
FIELDS = ("sign", "exponent", "mantissa")
COLOURS = (plots.SIGN, plots.EXPONENT, plots.MANTISSA)


def read(words: str) -> float:
    """Parse a number that a learner has entered.

    Raises:
        UserError: If the text isn't a number.
    """
    try:
        return float(words)
    except ValueError:
        raise UserError(f"{words!r} is not a number; try 0.1, -3e-5 or inf") from None


def field_of(number: FloatFormat, bit: int) -> tuple[int, int]:
    """Return the field of a bit (0 sign, 1 exponent, 2 mantissa) and its position in the field."""
    if bit < number.mantissa_bits:
        return 2, bit
    bit -= number.mantissa_bits
    return (1, bit) if bit < number.exponent_bits else (0, 0)


def worked(number: FloatFormat, pattern: int) -> str:
    """Return the formula that computes the value from the fields."""
    value = number.decode(pattern)
    sign, exponent, mantissa = number.split(pattern)
    minus = "-" if sign else ""
    if not math.isfinite(value):
        meaning = "NaN" if math.isnan(value) else "infinity"
        return f"this code means {meaning}"
    if value == 0:
        return f"all fields but the sign are 0: {minus}0"
    fraction = f"{mantissa}/2^{number.mantissa_bits}"
    if exponent == 0:
        return f"subnormal, no implicit one: {minus}2^{number.min_exponent} × {fraction}"
    return f"{minus}2^({exponent} - {number.bias}) × (1 + {fraction})"


def rounded(number: FloatFormat, value: float) -> tuple[str, str, str]:
    """Round `value` to a format, and return its bits, the stored value and the relative error."""
    if math.isnan(value) and number.specials == "none":
        return "-", "has no NaN", "-"
    pattern = number.encode(value)
    stored = number.decode(pattern)
    error = "0"
    if stored != value and math.isfinite(value) and math.isfinite(stored):
        error = f"{abs(stored - value) / abs(value):.1e}"
    elif stored != value and not (math.isnan(stored) and math.isnan(value)):
        error = "lost"
    spelled = number.spell(pattern)
    if len(spelled) > MOST_BITS:  # fp64's bits would make the table twice as wide
        spelled = spelled[: MOST_BITS - 1] + "…"
    return spelled, f"{stored:.9g}", error


class FloatBits(Explorer):
    """Flip the bits of a float, and see its value and how each format rounds it.

    It has buttons `bit N` and controls `number` and `format`. The button of a set bit is
    aria-pressed.
    """

    def __init__(self, value: float = 0.1, number: str = "fp32"):
        controls = [text("number", "number"), choice("format", "format", list(FORMATS))]
        values = {"number": repr(value), "format": number, "code": ""}
        super().__init__("float-bits", "Float bits", controls, values, PRESETS)

    def settle(self, values: dict[str, str], changed: set[str]) -> dict[str, str]:
        """Update the bits if the number changed, or the number if a bit changed."""
        number = FORMATS[values["format"]]
        if changed & {"number", "format"}:
            return {**values, "code": str(number.encode(read(values["number"])))}
        return {**values, "number": repr(number.decode(int(values["code"])))}

    def view(self, values: Values) -> View:
        """Return the bits as buttons, the formula, and a table of all formats."""
        number, pattern = FORMATS[values["format"]], int(values["code"])
        exact = read(values["number"])
        boxes = [self.box(number, pattern, bit) for bit in reversed(range(number.bits))]
        names = [
            f"{size} {name}"
            for size, name in zip(
                (number.sign_bits, number.exponent_bits, number.mantissa_bits), FIELDS, strict=True
            )
        ]
        keys = " ".join(tag("span", key) for key in map(swatch, COLOURS, names))
        style = f"grid-template-columns: repeat({min(32, number.bits)}, auto)"
        grid = tag("div", "".join(boxes), class_="cs336-cells", style=style)
        head = ("format", "bits", "stores", "relative error")
        rows = [(name, *map(code, rounded(other, exact))) for name, other in FORMATS.items()]
        row = tag(
            "div", grid, class_="cs336-bits", data_arrows=min(32, number.bits), data_group="bits"
        )
        said = f"{number.name} stores {number.decode(pattern)!r}"
        formula = tag("p", code(worked(number, pattern)), class_="cs336-formula")
        return View(said, row + tag("div", keys, class_="cs336-row") + formula + table(rows, head))

    def box(self, number: FloatFormat, pattern: int, bit: int) -> str:
        """Draw one bit as a button that flips it."""
        field, place = field_of(number, bit)
        on = pattern >> bit & 1
        return button(
            str(on),
            f"bit {bit}: {FIELDS[field]} bit {place}",
            "code",
            pattern ^ 1 << bit,
            class_="cs336-cell",
            style=f"background: {COLOURS[field]}",
            aria_pressed="true" if on else "false",
        )

    def figure(self, values: Values) -> Figure:
        """Draw the number's bits in all formats at the same scale."""
        formats = [number for number in FORMATS.values() if number is not number_formats.FP64]
        return plots.stored_value(formats, read(values["number"]))
