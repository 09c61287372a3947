"""Checks of notebook 01: the right answer passes, each typical mistake gets its own diagnosis."""

import math

import torch
from verdicts import assert_untouched, assert_verdicts

from cs336_lib.classroom.checks import dtypes as checks

FUNCTIONS = ("decode_e4m3", "to_bf16", "int8_round_trip")


def test_untouched_stubs():
    assert_untouched(checks, (*FUNCTIONS, "decode_by_hand"), decode_by_hand=...)


def test_decode_by_hand():
    cases = [
        (-5.5, "passed"),
        (5.5, "sign bit is 1"),
        (-2.75, "bias is 128"),
        (-1.375 * 2.0**-126, "255"),
        (-1.5, "implicit leading one"),
        (-1.375, "power of two"),
        (-7.0, "first mantissa bit is worth 1/2"),
        (-1.011 * 4, "1.011 is in base two"),
        (3, "Read the exponent field"),
        ("-5.5", "A number is expected"),
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


def test_decode_e4m3():
    cases = [
        (e4m3(), "passed"),
        (e4m3(bias=8), "your bias is 8"),
        (e4m3(bias=15), "your bias is 2^4 - 1 = 15"),
        (e4m3(hidden=0.0), "implicit leading one is missing"),
        (e4m3(signed=False), "sign bit set"),
        (e4m3(mask=-1), "stayed in your exponent"),
        (e4m3(mask=-1, signed=False), "stayed in your exponent"),
        (e4m3(subnormal_one=1.0), "without the leading one"),
        (e4m3(subnormal_exponent=-7), "half of what they should be"),
        (e4m3(subnormal_exponent=-5), "the smallest value"),
        (e4m3(ieee=True), "top exponent holds ordinary numbers"),
        (lambda code: 480.0 if code == 0x7F else e4m3()(code), "0x7F and 0xFF are NaN"),
        (lambda code: 0.0 if code == 0x55 else e4m3()(code), "0x55"),
        (lambda code: torch.tensor(1.0), "not a tensor"),
        (lambda code: 1 / 0, "your code raised ZeroDivisionError"),
        (lambda code: None if code == 0x7F else e4m3()(code), "cannot be used as the task says"),
    ]
    assert_verdicts(checks.decode_e4m3, cases)


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
        (lambda code: code + 0x7FFF + (code >> 16 & 1) >> 16, "passed"),
        (lambda code: code >> 16, "You truncate"),
        (lambda code: code + 0x8000 >> 16, "You round ties up"),
        (lambda code: code + 0x7FFF >> 16, "You round ties down"),
        (lambda code: code + 0x8000 - (code >> 16 & 1) >> 16, "You round ties to odd"),
        (lambda code: float(code + 0x7FFF + (code >> 16 & 1) >> 16), "Return an int"),
        (lambda code: code & 0xFFFF0000, "more than 16 bits"),
        (lambda code: (code >> 16) + 1, "rounds down to 1"),
        (carry_lost, "carry into the exponent"),
        (lambda code: (code + 0x7FFF + (code >> 16 & 1) >> 16) & 0x7FFF, "has to become 0x"),
        (no_infinity, "0x7f7fffff has to become 0x7f80; you get 0x7f7f"),
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


def test_int8_round_trip():
    cases = [
        (quantizer(), "passed"),
        (quantizer(rounding=lambda x: torch.floor(x + 0.5)), "passed"),
        (quantizer(divisor=128.0), "the largest int8 is 127"),
        (quantizer(divisor=255.0), "max|x| / 255"),
        (quantizer(divisor=127.5), "max - min over 255 steps"),
        (quantizer(divisor=100.0), "The scale is max|x| / 127"),
        (quantizer(rounding=lambda x: x), "You truncate"),
        (quantizer(rounding=torch.floor), "q is ["),
        (quantizer(guard=False), "If x is all zeros"),
        (quantizer(low=True), "max|x| may come from a negative value"),
        (quantizer(upside_down=True), "upside down"),
        (lambda x: (torch.round(x * 63.5), 2 / 127), "torch.int8; yours is torch.float32"),
        (lambda x: quantizer()(x)[0], "cannot be used as the task says"),
    ]
    assert_verdicts(checks.int8_round_trip, cases)
