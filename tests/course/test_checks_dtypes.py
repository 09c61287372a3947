"""Checks of notebook 01: the right answer passes, each typical mistake gets its own diagnosis."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import torch
from verdicts import assert_untouched, assert_verdicts

from cs336_course.checks import dtypes as checks
from cs336_course.demos.number_formats import BF16, E4M3, FP32

SIGN = 1 << 31
FUNCTIONS = ("decode_e4m3", "to_bf16", "int8_round_trip")


def test_untouched_stubs():
    assert_untouched(checks, (*FUNCTIONS, "decode_by_hand"), decode_by_hand=...)


def test_decode_by_hand():
    right = (-11, -11.0, np.float32(-11), Fraction(-11), torch.tensor(-11.0), -(0b1011))
    right += (Decimal(-11), torch.tensor([-11.0]), np.array([[-11]]))
    cases = [
        *((answer, "passed") for answer in right),
        (torch.tensor([-11.0, 3.0]), "a number is expected"),
        (-11.00001, "the number is off"),
        (11.0, "sign bit is 1"),
        (-5.5, "half of the right one"),
        (-1.375 * 2.0**-125, "255"),
        (-1.375 * 2.0**130, "you left out the bias"),
        (-1.375 / 8, "the other way round"),
        (-1.375 / 4, "the exponent field is the number 130, which has no sign"),
        (-1.375 * 2 * 3, "2 to the power of the exponent"),
        (-3.0, "implicit leading one"),
        (-1.375, "you left out the power of two"),
        (-32, "011 isn't 3"),
        (-14.0, "first mantissa bit is worth 1/2, so"),
        (-9.5, "not 1/4"),
        (-1.011 * 8, "1.011 is in base two"),
        (3, "the number is off for the bits"),
        ("-11", "a number is expected"),
        (None, "put a number"),
    ]
    assert_verdicts(checks.decode_by_hand, cases)


def e4m3(
    bias=7,
    hidden=1.0,
    subnormal_one=0.0,
    subnormal_exponent=None,
    ieee=False,
    signed=True,
    mask=15,
):
    """A decoder with one mistake, or none."""

    def decode(code: int) -> float:
        sign, exponent, mantissa = code >> 7, code >> 3 & mask, code & 7
        if exponent == 15 and (ieee or mantissa == 7):
            return math.nan if mantissa else math.inf
        if exponent == 0:
            power = 1 - bias if subnormal_exponent is None else subnormal_exponent
            value = (bool(mantissa) * subnormal_one + mantissa / 8) * 2.0**power
        else:
            value = (hidden + mantissa / 8) * 2.0 ** (exponent - bias)
        return -value if sign and signed else value

    return decode


def e4m3_by_ldexp(code):
    """Shifts the exponent of a whole number of eighths."""
    field, mantissa = divmod(code & 127, 8)
    if code & 127 == 127:
        return float("nan")
    magnitude = math.ldexp(mantissa + 8 * (field > 0), max(field, 1) - 10)
    return math.copysign(magnitude, -(code >> 7))


def e4m3_from_text(code):
    """Reads the fields from the digits."""
    digits = f"{code:08b}"
    sign, field, mantissa = digits[0], int(digits[1:5], 2), digits[5:]
    if digits[1:] == "1111111":
        return math.nan
    value = sum(int(bit) / 2**n for n, bit in enumerate(mantissa, 1)) + (field > 0)
    value *= 2.0 ** (max(field, 1) - 7)
    return 0 if value == 0 else value * {"0": 1, "1": -1}[sign]


def e4m3_from_fp16(code):
    """Moves the bits into fp16, whose bias is larger by 8."""
    if code in (0x7F, 0xFF):
        return np.nan
    half = np.array((code & 0x80) << 8 | (code & 0x7F) << 7, np.uint16).view(np.float16)
    return np.float64(half) * 2**8


def e5m2(code):
    """Cuts the byte in the wrong place."""
    sign, exponent, mantissa = code >> 7, code >> 2 & 31, code & 3
    return (-1) ** sign * (1 + mantissa / 4) * 2.0 ** (exponent - 15)


def changed(code, value):
    """The right decoder, but for one code."""
    return lambda given: value if given == code else e4m3()(given)


def scaled_mantissa(part):
    """A decoder of normal numbers whose mantissa is worth `part(mantissa)`."""

    def decode(code):
        normal = code & 127 != 127 and code >> 3 & 15
        value = (1 + part(code & 7)) * 2.0 ** ((code >> 3 & 15) - 7)
        return (-1) ** (code >> 7) * value if normal else e4m3()(code)

    return decode


def twos_complement(code):
    """Reads a negative code as in int8."""
    return -e4m3()(256 - code) if 128 < code < 255 else e4m3()(code)


def test_decode_e4m3():
    right = (e4m3(), e4m3_by_ldexp, e4m3_from_text, e4m3_from_fp16, changed(0x80, 0.0))
    right += (lambda code: np.float32(e4m3()(code)), changed(0x50, 8))
    cases = [
        *((answer, "passed") for answer in right),
        (e4m3(bias=8), "Is your bias 8"),
        (e4m3(bias=15), "Is your bias 2^4 - 1?"),
        (e4m3(bias=6), "0x38, which is 0 0111 000, is off"),
        (e4m3(hidden=0.0), "implicit leading one is missing"),
        (lambda code: (code >> 7) * abs(e4m3()(code)), "you multiply by the sign bit"),
        (e4m3(signed=False), "you lose the sign"),
        (e4m3(mask=-1), "stayed in your exponent"),
        (e4m3(mask=-1, signed=False), "stayed in your exponent"),
        (changed(0xB8, -2.0), "0xb8, which is 1 0111 000, is off"),
        (twos_complement, "you read negative codes as two's complement"),
        (e5m2, "you cut the byte like E5M2"),
        (scaled_mantissa(lambda mantissa: mantissa // 8), "with //, which rounds"),
        (scaled_mantissa(lambda mantissa: mantissa / 4), "divide it by 2^3"),
        (scaled_mantissa(lambda mantissa: mantissa / 7), "divide it by 2^3"),
        (e4m3(subnormal_one=1.0), "without the leading one"),
        (lambda code: e4m3()(code) if code & 0x78 else 0.0, "not 0"),
        (e4m3(subnormal_exponent=-7), "half as large as they should be"),
        (e4m3(subnormal_exponent=-5), "0x01, which is 0 0000 001, is off"),
        (e4m3(ieee=True), "makes ordinary numbers"),
        (changed(0x7F, 480.0), "0x7F and 0xFF are NaN"),
        (changed(0x55, 0.0), "0x55"),
        (changed(0x80, math.nan), "0x80"),
        (lambda code: torch.tensor(1.0), "uses torch"),
        (E4M3.decode, "write it by hand"),
        (lambda code: E4M3.decode(code), "write it by hand"),
        (lambda code: str(e4m3()(code)), "not str"),
        (lambda code: 1 / 0, "your code raised ZeroDivisionError"),
        (changed(0x7F, None), "returns None for 0x7f"),
    ]
    assert_verdicts(checks.decode_e4m3, cases)


def bf16_by_cases(code):
    """Compares what is cut off with a half."""
    upper, cut_off = divmod(code, 2**16)
    is_up = cut_off > 0x8000 or (cut_off == 0x8000 and upper % 2 == 1)
    return upper + int(is_up)


def bf16_by_distance(code):
    """Chooses the nearer of two neighbors."""
    below = code >> 16
    candidates = (below, below + 1)
    return min(candidates, key=lambda other: (abs((other << 16) - code), other & 1))


def bf16_in_numpy(code):
    """Computes with unsigned integers of 32 bits."""
    bits = np.uint32(code)
    return (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)


def bf16(code):
    return code + 0x7FFF + (code >> 16 & 1) >> 16


def no_infinity(code):
    """Stops at the largest bf16 number."""
    rounded = code + 0x7FFF + (code >> 16 & 1) >> 16
    return 0x7F7F if rounded == 0x7F80 else rounded


def carry_lost(code):
    """Rounds the mantissa alone, so that a carry out of it is dropped."""
    upper, mantissa = code >> 16, code & 0x7FFFFF
    rounded = mantissa + 0x7FFF + (upper & 1) >> 16
    return upper & ~0x7F | rounded & 0x7F


def test_to_bf16():
    cases = [
        *((answer, "passed") for answer in (bf16, bf16_by_cases, bf16_by_distance, bf16_in_numpy)),
        (lambda code: code >> 16, "you truncate"),
        (lambda code: code + 0x8000 >> 16, "you round ties up"),
        (lambda code: code + 0x7FFF >> 16, "you round ties down"),
        (lambda code: code + 0x8000 - (code >> 16 & 1) >> 16, "you round ties to odd"),
        (lambda code: (code >> 16) + (code >> 15 & 1 and code >> 14 & 7 != 2), "just above half"),
        (lambda code: (code >> 16) + (code & 0xFFFF > 0x7FF0), "you round ties up"),
        (
            lambda code: (code >> 16) + bool(code >> 15 & 1 and (code & 0x3FFF or code >> 16 & 1)),
            "you round 1 + 2^-7 - 2^-9 down",
        ),
        (
            lambda code: (code >> 16) + (code >> 15 & code >> 16 & 1),
            "Look at all 16 bits",
        ),
        (lambda code: round(code / 2**16), "no floats"),
        (lambda code: round(code * 2.0**-16), "no floats"),
        (lambda code: round((code & 0xFFFFFFFF) / 65536), "no floats"),
        (lambda code: float(bf16(code)), "no floats"),
        (lambda code: 16256.0, "not float"),
        (lambda code: code & 0xFFFF0000, "more than 16 bits"),
        (lambda code: (code >> 16) + 1, "rounds down to 1"),
        (carry_lost, "carry into the exponent"),
        (lambda code: bf16(code) & 0x7FFF, "negative numbers lose their sign bit"),
        (lambda code: bf16(code & 0x7FFFFFFF) + (code >> 31), "a negative number, is off"),
        (no_infinity, "beyond the largest bf16 number, so it becomes infinity"),
        (lambda code: bf16(code) if code >> 23 & 255 else 0, "return zero for every subnormal"),
        (lambda code: bf16(code) if code & ~SIGN else 0, "or zero, is off"),
        (
            lambda code: bf16(code) if bf16(code) & 0x7F80 != 0x7F80 else 0x7F80,
            "0xff7fffff is negative, so it must become minus infinity, 0xff80; yours is 0x7f80",
        ),
        (
            lambda code: bf16(code) if bf16(code) & 0x7F80 != 0x7F80 else 0xFF80,
            "0x7f7fffff is positive, so it must become infinity, 0x7f80; yours is 0xff80",
        ),
        (lambda code: bf16(code) if code >> 31 == 0 else code >> 16, "a negative number, is off"),
        (lambda code: None if code == 0 else bf16(code), "returns None for 0x0"),
        (lambda code: BF16.encode(FP32.decode(code)), "write it by hand"),
        (lambda code: int(torch.tensor(code) >> 16), "uses torch"),
    ]
    assert_verdicts(checks.to_bf16, cases)


def quantizer(divisor=127.0, rounding=torch.round, guard=True, low=False, upside_down=False):
    """A symmetric int8 quantiser with one mistake, or none."""

    def quantize(x):
        amax = (x.max() if low else x.abs().max()).item()
        scale = amax / divisor or (1.0 if guard else 0.0)
        q = rounding(x / scale).to(torch.int8)
        return q, 1 / scale if upside_down else scale

    return quantize


def in_numpy(x):
    scale = np.abs(x.numpy()).max() / 127 or 1.0
    return torch.from_numpy(np.rint(x.numpy() / scale).astype(np.int8)), scale


def in_a_loop(x):
    scale = max(abs(value) for value in x.flatten().tolist()) / 127
    scale = scale if scale > 0 else 0.5
    rounded = [round(value / scale) for value in x.flatten().tolist()]
    return torch.tensor(rounded, dtype=torch.int8).view(x.shape), scale


def by_factor(x):
    amax = max(x.max().item(), -x.min().item())
    factor = 127 / amax if amax else 1e9
    return (x.double() * factor).round().clamp(-128, 127).char(), 1 / factor


def scale_as_tensor(x):
    scale = x.abs().amax() / 127
    scale = torch.where(scale == 0, 1, scale)
    return [x.div(scale).round().clamp(-127, 127).char(), scale]


def scale_of(kind):
    """A quantizer whose scale is of another type."""

    def quantize(x):
        q, scale = quantizer()(x)
        return q, kind(scale)

    return quantize


def with_scale(change):
    """A quantizer whose scale is changed, and whose codes belong to that scale."""

    def quantize(x):
        scale = change(x.abs().max().item() / 127) or 1.0
        return torch.round(x / scale).to(torch.int8), scale

    return quantize


def unless(is_zero):
    """A quantizer with a wrong test for zeros."""

    def quantize(x):
        scale = 1.0 if is_zero(x) else x.abs().max().item() / 127
        return torch.round(x / scale).to(torch.int8), scale

    return quantize


def by_squares(x):
    scale = x.square().max().sqrt().item() / 127 or 1.0
    return torch.round(x / scale).to(torch.int8), scale


def by_range(x):
    scale = (x.max() - x.min()).item() / 255 or 1.0
    return torch.round(x / scale).to(torch.int8), scale


def in_place(x):
    scale = x.abs().max().item() / 127 or 1.0
    return x.div_(scale).round_().to(torch.int8), scale


def by_row(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale).to(torch.int8), scale


def test_int8_round_trip():
    right = (
        quantizer(),
        quantizer(rounding=lambda x: torch.floor(x + 0.5)),
        *(in_numpy, in_a_loop, by_factor, unless(lambda x: not x.any())),
        scale_of(np.float64),
    )
    cases = [
        *((answer, "passed") for answer in right),
        (quantizer(divisor=128.0), "the largest int8 is 127"),
        (quantizer(divisor=255.0), "max|x| / 255"),
        (quantizer(divisor=127.5), "max|x| / 127.5, but the largest int8 is 127"),
        (by_range, "max - min over 255 steps"),
        (quantizer(divisor=1.0), "divide it by the largest int8"),
        (quantizer(divisor=100.0), "the number is off for the scale of numbers from -2 to 1.8"),
        (quantizer(rounding=lambda x: x), "you truncate"),
        (quantizer(rounding=lambda x: x + 0.5), "rounds negative numbers up"),
        (quantizer(rounding=torch.floor), "you round down with floor"),
        (quantizer(rounding=torch.ceil), "you round up with ceil"),
        (quantizer(rounding=lambda x: x.abs().round()), "lost their signs"),
        (quantizer(rounding=lambda x: -x.round()), "the wrong sign"),
        (quantizer(rounding=lambda x: x.round() + 1), "the scale is right, but q is off"),
        (quantizer(guard=False), "if x is all zeros"),
        (quantizer(low=True), "max|x| may come from a negative value"),
        (quantizer(upside_down=True), "upside down"),
        (with_scale(lambda scale: scale + 1e-8), "an added eps"),
        (with_scale(lambda scale: max(scale, 1e-12)), "a lower bound"),
        (lambda x: quantizer()(x.half()), "your scale is that of x in torch.float16"),
        (
            lambda x: (quantizer()(x)[0], quantizer()(x.bfloat16())[1]),
            "your scale is that of x in torch.bfloat16",
        ),
        (unless(lambda x: x.sum() == 0), "x holds numbers that add up to 0"),
        (unless(lambda x: x.mean() == 0), "x holds numbers that add up to 0"),
        (unless(lambda x: x.flatten()[0] == 0), "x holds numbers that begin with a 0"),
        (unless(lambda x: x.min() == 0), "x holds numbers that begin with a 0"),
        (unless(lambda x: x.max() == 0), "x holds negative numbers and a 0"),
        (unless(lambda x: x.flatten()[-1] == 0), "x holds numbers that end with a 0"),
        (unless(lambda x: x.max() == x.min() and x.numel() > 1), "x holds equal numbers"),
        (by_squares, "x holds numbers whose squares underflow"),
        (in_place, "changes its input x in place"),
        (scale_as_tensor, "your scale is a tensor, but a Python float is expected"),
        (scale_of(str), "your scale is of type str"),
        (scale_of(lambda scale: None), "your scale is of type NoneType"),
        (by_row, "the whole tensor has a single scale"),
        (lambda x: (quantizer()(x)[0].flatten(), quantizer()(x)[1]), "but x has shape"),
        (lambda x: (torch.round(x * 63.5), 2 / 127), "torch.int8; yours is torch.float32"),
        (lambda x: (quantizer()(x)[0].tolist(), 2 / 127), "yours is list"),
        (lambda x: quantizer()(x)[0], "return the pair"),
    ]
    assert_verdicts(checks.int8_round_trip, cases)
