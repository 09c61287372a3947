"""Exercise checks for notebook 01 on decoding, rounding and quantization."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cs336_lib.classroom.bits import BF16, E4M3, FP32
from cs336_lib.classroom.checks.report import exercise, expect

BY_HAND = 0b1_10000001_01100000000000000000000


@exercise("")
def decode_by_hand(answer: float) -> None:
    """Check the value of the bits 1 10000001 011000..., which is -5.5."""
    expect(isinstance(answer, int | float), "A number is expected, such as -0.75.")
    sign, exponent, fraction = -1, 129, 0.375
    mistakes = {
        -sign * (1 + fraction) * 2.0 ** (exponent - 127): "The sign bit is 1: it is negative.",
        sign * (1 + fraction) * 2.0 ** (exponent - 128): "Your bias is 128; for 8 exponent bits "
        "it is 2^(8-1) - 1 = 127.",
        sign * (1 + fraction) * 2.0 ** (exponent - 255): "Your bias is 2^8 - 1 = 255; it is "
        "2^(8-1) - 1 = 127.",
        sign * fraction * 2.0 ** (exponent - 127): "You left out the implicit leading one; the "
        "factor is "
        "1 + mantissa / 2^23.",
        sign * (1 + fraction): "You left out the power of two: 2^(129 - 127).",
        sign * (1 + 0b011 / 2**2) * 2.0 ** (exponent - 127): "The first mantissa bit is worth 1/2, "
        "so 011 is 1/4 + 1/8.",
        sign * 1.011 * 2.0 ** (exponent - 127): "1.011 is in base two: the places after the point "
        "are worth 1/2, 1/4, 1/8.",
    }
    for wrong, diagnosis in mistakes.items():
        expect(answer != wrong, diagnosis)
    expect(
        answer == FP32.decode(BY_HAND),
        "Read the exponent field (10000001) as an integer, subtract 127, and multiply that power "
        "of two by 1 + the mantissa's fraction.",
    )


@exercise("")
def decode_e4m3(decode: Callable[[int], float]) -> None:
    """Check a decoder on all 256 codes. The most informative codes are tested first."""
    answer = {code: decode(code) for code in (0x38, 0xB8, 0x01, 0x78, 0x7F, 0xFF, 0x00)}
    one, first = answer[0x38], answer[0x01]
    expect(
        not all(isinstance(v, Tensor) for v in answer.values()),
        "Return a Python float, not a tensor.",
    )
    expect(one != 0.5, "0x38 is 1.0 and you get 0.5: your bias is 8; it is 2^(4-1) - 1 = 7.")
    expect(one != 2.0**-8, "0x38 is 1.0 and you get 2^-8: your bias is 2^4 - 1 = 15; it is 7.")
    expect(one != 0.0, "0x38 is 1.0 and you get 0; the implicit leading one is missing.")
    expect(one == 1.0, f"0x38 is 0 0111 000, which is 2^(7-7) * 1.0 = 1; you get {one}.")
    expect(
        answer[0xB8] not in (2.0**16, -(2.0**16)),
        f"0xB8 is 0x38 with its sign bit set: -1; you get {answer[0xB8]}. The sign bit has stayed "
        "in your exponent: mask it out with & 0b1111.",
    )
    expect(answer[0xB8] == -1.0, f"0xB8 is 0x38 with its sign bit set: -1; you get {answer[0xB8]}.")
    expect(
        first not in ((1 + 1 / 8) * 2.0**-7, (1 + 1 / 8) * 2.0**-6) and answer[0x00] == 0,
        "Exponent field 0 means subnormal, without the leading one, or there would be no zero.",
    )
    expect(
        first != 2.0**-10,
        "Your subnormals are half of what they should be: their exponent is 1 - bias = -6, "
        "like that of exponent field 1.",
    )
    expect(first == 2.0**-9, f"0x01 is 2^-6 * 1/8 = 2^-9, the smallest value; you get {first}.")
    expect(
        math.isfinite(answer[0x78]),
        "0x78 is 256: in E4M3 the top exponent holds ordinary numbers; only 0x7F and 0xFF are NaN.",
    )
    expect(
        math.isnan(answer[0x7F]) and math.isnan(answer[0xFF]),
        "0x7F and 0xFF are NaN with either sign, the one code that E4M3 gives up.",
    )
    for code in range(256):
        truth, got = E4M3.decode(code), decode(code)
        same = got == truth or (math.isnan(got) and math.isnan(truth))
        expect(same, f"{code:#04x} ({E4M3.spell(code)}) is {truth}, you get {got}.")


@exercise("")
def to_bf16(encode: Callable[[int], int]) -> None:
    """Check the rounding of fp32 codes to bf16 codes, with ties to even."""
    down, up = FP32.encode(1 + 2**-9), FP32.encode(1 + 2**-7 - 2**-9)
    tie_down, tie_up = FP32.encode(1 + 2**-8), FP32.encode(1 + 3 * 2**-8)
    one = BF16.encode(1.0)
    expect(isinstance(encode(0), int), "Return an int, the 16-bit code.")
    expect(
        encode(down) < 2**16,
        "Your code has more than 16 bits; shift down the upper half of the fp32 code.",
    )
    expect(encode(down) == one, "1 + 2^-9 is a quarter of a step above 1, so it rounds down to 1.")
    expect(
        encode(up) != one,
        "You truncate: 1 + 2^-7 - 2^-9 lies three quarters of a step above 1 and has to round up.",
    )
    expect(
        not (encode(tie_down) == one + 1 and encode(tie_up) == one + 2),
        "You round ties up: 1 + 2^-8 lies half-way, and the even neighbour is 1 (mantissa ...0).",
    )
    expect(
        not (encode(tie_down) == one and encode(tie_up) == one + 1),
        "You round ties down: 1 + 3 * 2^-8 lies half-way, and the even neighbour is above it.",
    )
    expect(
        not (encode(tie_down) == one + 1 and encode(tie_up) == one + 1),
        "You round ties to odd; choose the neighbour whose last mantissa bit is 0.",
    )
    expect(
        encode(FP32.encode(2 - 2**-20)) == BF16.encode(2.0),
        "Just below 2 the mantissa is all ones; rounding up has to carry into the exponent: 2.0.",
    )
    drawn = torch.randint(0, 0x7F800000, (400,), generator=torch.Generator().manual_seed(0))
    codes = drawn.tolist()
    codes += [code & ~0xFFFF | 0x8000 for code in codes]  # as many exact ties
    for code in [*codes, *(code | 1 << 31 for code in codes), FP32.max_code]:
        truth, got = BF16.encode(FP32.decode(code)), encode(code)
        expect(got == truth, f"{code:#010x} has to become {truth:#06x}; you get {got:#06x}.")


@exercise("")
def int8_round_trip(quantize: Callable[[Tensor], tuple[Tensor, float]]) -> None:
    """Check symmetric int8 quantization with q = round(x / scale) and scale = max|x| / 127."""
    x = torch.tensor([-2.0, -1.1, -0.3, 0.0, 0.36, 1.3, 2.0])
    q, scale = quantize(x.clone())
    scale, amax = float(scale), 2.0

    def near(value: float) -> bool:
        return math.isclose(scale, value, rel_tol=1e-5)

    expect(q.dtype == torch.int8, f"q must be torch.int8; yours is {q.dtype}.")
    expect(
        not near(amax / 128),
        "Your scale is max|x| / 128, but the largest int8 is 127, so the largest value is "
        "clipped or "
        "wraps.",
    )
    expect(
        not near(2 * amax / 255),
        "Your scale spreads max - min over 255 steps; symmetric: max|x| / 127, no zero point.",
    )
    expect(not near(amax / 255), "Your scale is max|x| / 255: int8 reaches from -128 to 127.")
    expect(not near(127 / amax), "Your scale is upside down: x is about q * scale.")
    expect(near(amax / 127), f"The scale is max|x| / 127 = {amax / 127:.5f}; yours is {scale:.5f}.")
    truncated = (x / scale).to(torch.int8)
    expect(
        not torch.equal(q, truncated),
        "You truncate: `.to(torch.int8)` drops the fraction; round before it.",
    )
    truth = torch.round(x / scale).to(torch.int8)
    expect(torch.equal(q, truth), f"q is {truth.tolist()}; yours is {q.tolist()}.")
    low = quantize(torch.tensor([-3.0, 1.0]))[0].tolist()
    expect(
        low == [-127, 42],
        f"max|x| may come from a negative value; q should be [-127, 42], not {low}.",
    )
    q, scale = quantize(torch.zeros(3))
    expect(
        math.isfinite(scale) and float(scale) > 0 and q.tolist() == [0, 0, 0],
        "If x is all zeros, your scale is 0 and x / scale is NaN; use any positive scale then.",
    )
