"""Exercise checks for notebook 01 on decoding, rounding and quantization."""

import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from cs336_course.checks import draws
from cs336_course.checks.report import (
    DiagnosisError,
    by_hand,
    exercise,
    expect,
    expect_number,
    shown,
)
from cs336_course.checks.without_torch import WithoutTorch
from cs336_course.demos.number_formats import BF16, E4M3, FP32, FloatFormat

BITS = 0b1_10000010_01100000000000000000000


@exercise("Which number do the bits 0 10000000 10000000000000000000000 stand for?")
def decode_by_hand(answer: Any) -> None:
    """Check the value of the bits 1 10000010 011000..., which is -11."""
    expect(answer is not None, "put a number such as -0.75 into `answer`.")
    sign, field, fraction = -1, 130, 0.375
    power, significand = 2.0 ** (field - 127), 1 + fraction
    mistakes = {
        "the sign bit is 1, so the number is negative.": significand * power,
        "your power of two is half of the right one. The field is 128 + 2, and the bias of 8 "
        "exponent bits is 2^(8-1) - 1.": sign * significand * 2.0 ** (field - 128),
        "your bias is 2^8 - 1 = 255, but it is 2^(8-1) - 1.": (
            sign * significand * 2.0 ** (field - 255)
        ),
        "you left out the bias, which is subtracted from the exponent field.": (
            sign * significand * 2.0**field
        ),
        "you subtracted the exponent field from the bias; it is the other way round.": (
            sign * significand / power
        ),
        "your power of two is 2^-2. The exponent field is the number 130, which has no sign; the "
        "bias of 127 is subtracted from it.": sign * significand / 4,
        "you multiplied by 2 times the exponent; it is 2 to the power of the exponent.": (
            sign * significand * 2 * (field - 127)
        ),
        "you left out the power of two.": sign * significand,
        "you left out the implicit leading one; the factor is 1 + mantissa / 2^23.": (
            sign * fraction * power
        ),
        "the mantissa is a fraction, so 011 isn't 3. Its bits are worth 1/2, 1/4 and 1/8.": (
            sign * (1 + 3) * power
        ),
        "the first mantissa bit is worth 1/2, so 011 is 1/4 + 1/8.": sign * (1 + 3 / 4) * power,
        "the first mantissa bit is worth 1/2, not 1/4.": sign * (1 + 3 / 16) * power,
        "1.011 is in base two; the places after the point are worth 1/2, 1/4 and 1/8.": (
            sign * 1.011 * power
        ),
    }
    case = "the bits 1 10000010 01100000000000000000000"
    expect_number(answer, FP32.decode(BITS), case, mistakes, rel_tol=1e-9)


def expect_normals(answer: Mapping[int, float]) -> None:
    """Check a decoder of E4M3 on 1.0, -1.0 and 1.5."""
    one, minus_one, middle = answer[0x38], answer[0xB8], answer[0x3C]
    expect(
        (one, middle) != (0.5, 1.0),
        "you cut the byte like E5M2. After the sign, E4M3 has 4 exponent bits and 3 mantissa bits.",
    )
    expect(one != 0.5, "0x38 is half as large as it should be. Is your bias 8? It is 2^(4-1) - 1.")
    expect(one != 2.0**-8, "0x38 is far too small. Is your bias 2^4 - 1? It is 2^(4-1) - 1.")
    expect(
        one != 0.0 or minus_one == 0.0,
        "your positive numbers are 0, because you multiply by the sign bit. It only chooses the "
        "sign, as in (-1) ** sign.",
    )
    expect(one != 0.0, "0x38 is 0 0111 000, and you get 0; the implicit leading one is missing.")
    expect_code(0x38, one)
    expect(
        abs(minus_one) != 2.0**16,
        "the sign bit of 0xB8 has stayed in your exponent; mask it out with & 0b1111.",
    )
    expect(minus_one != 1.0, "0xB8 is 0x38 with its sign bit set, but you lose the sign.")
    expect(
        (minus_one, answer[0xC8]) != (-4.0, -1.0),
        "you read negative codes as two's complement, as in int8. A float has a sign bit, and its "
        "other bits mean the same with either sign: 0xB8 is 0x38 with a minus.",
    )
    expect_code(0xB8, minus_one)
    expect(
        middle != 1.0,
        "the mantissa of 0x3C has no effect; did you divide it with //, which rounds?",
    )
    expect(
        middle not in (2.0, 1.25, 1 + 4 / 7),
        "the mantissa has 3 bits, so divide it by 2^3 to get its fraction.",
    )


def expect_specials(answer: Mapping[int, float]) -> None:
    """Check a decoder of E4M3 on subnormals, the largest exponent field and NaN."""
    first = answer[0x01]
    expect(
        first not in ((1 + 1 / 8) * 2.0**-7, (1 + 1 / 8) * 2.0**-6) and answer[0x00] == 0,
        "exponent field 0 means subnormal, without the leading one, or there would be no zero.",
    )
    expect(first != 0, "0x01 is the smallest subnormal, not 0.")
    expect(
        first != 2.0**-10,
        "your subnormals are half as large as they should be. Their exponent is 1 - bias, like "
        "that of exponent field 1.",
    )
    expect_code(0x01, first)
    expect(
        math.isfinite(answer[0x78]),
        "the largest exponent field of E4M3 makes ordinary numbers; only 0x7F and 0xFF are NaN.",
    )
    expect(
        math.isnan(answer[0x7F]) and math.isnan(answer[0xFF]),
        "0x7F and 0xFF are NaN with either sign, the one code that E4M3 gives up.",
    )


def expect_code(code: int, got: float) -> None:
    """Fail the check unless `got` is the value of an E4M3 code."""
    want = E4M3.decode(code)
    if got != want and not (math.isnan(got) and math.isnan(want)):
        figures = f"You get {shown(got)}, and {shown(want)} is right."
        raise DiagnosisError(f"{code:#04x}, which is {E4M3.spell(code)}, is off.", figures)


@exercise("Write 0xB8 in bits. What are its sign, its exponent field and its mantissa?")
def decode_e4m3(decode: Callable[[int], float]) -> None:
    """Check a decoder on all 256 codes. The most informative codes are tested first."""
    with WithoutTorch(), by_hand(FloatFormat, "decode", "split"):
        answer = {code: decode(code) for code in range(256)}
    for code, got in answer.items():
        expect(got is not None, f"your function returns None for {code:#04x}; is a return missing?")
        is_number = isinstance(got, Real) and not isinstance(got, bool)
        expect(is_number, f"return a Python float, not {type(got).__name__}.")
    expect_normals(answer)
    expect_specials(answer)
    for code, got in answer.items():
        expect_code(code, got)


NO_FLOATS = "use integer operations only, such as >>, & and +, and no floats."


def on_codes(name: str) -> Callable[..., Any]:
    """Return an operator of integers that gives a `Code` and refuses floats."""
    compute = getattr(int, f"__{name}__")

    def operator(code: "Code", other: Any) -> Any:
        expect(not isinstance(other, float), NO_FLOATS)
        result = compute(code, other)
        return Code(result) if isinstance(result, int) else result

    return operator


class Code(int):
    """Code of a number, which can't be turned into a float, nor what is computed from it."""

    def __truediv__(self, *_: object) -> Any:
        """Refuse a float."""
        raise DiagnosisError(NO_FLOATS)

    __rtruediv__ = __float__ = __truediv__
    __add__, __radd__ = on_codes("add"), on_codes("radd")
    __sub__, __rsub__ = on_codes("sub"), on_codes("rsub")
    __mul__, __rmul__ = on_codes("mul"), on_codes("rmul")
    __floordiv__, __mod__ = on_codes("floordiv"), on_codes("mod")
    __and__, __rand__ = on_codes("and"), on_codes("rand")
    __or__, __ror__ = on_codes("or"), on_codes("ror")
    __xor__, __rxor__ = on_codes("xor"), on_codes("rxor")
    __lshift__, __rshift__ = on_codes("lshift"), on_codes("rshift")


ONE, TWO = BF16.encode(1.0), BF16.encode(2.0)
SIGN = 1 << 31
# Codes of 1 plus a part of a step of 2^-7, which is bf16's step there
DOWN, UP = FP32.encode(1 + 2**-9), FP32.encode(1 + 2**-7 - 2**-9)
TIE_DOWN, TIE_UP = FP32.encode(1 + 2**-8), FP32.encode(1 + 3 * 2**-8)
ABOVE_TIE, BELOW_TIE = TIE_DOWN + 1, TIE_UP - 1
BELOW_TWO = FP32.encode(2 - 2**-20)


def fp32_codes() -> Iterator[int]:
    """Yield codes of finite fp32 numbers, with many ties between two bf16 numbers."""
    yield from (DOWN, UP, TIE_DOWN, TIE_UP, ABOVE_TIE, BELOW_TIE, BELOW_TWO)
    drawn = torch.randint(0, 0x7F800000, (200,), generator=torch.Generator().manual_seed(0))
    for code in [*drawn.tolist(), 0, 1, 0x18000, FP32.max_code]:
        for cut_off in (code & 0xFFFF, 0, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
            positive = code & ~0xFFFF | cut_off
            yield from (positive, positive | SIGN)


def expect_rounding(answer: Mapping[int, int]) -> None:
    """Check the bf16 codes of numbers between 1 and 2, one kind of rounding at a time."""
    expect(
        answer[DOWN] < 2**16,
        "your code has more than 16 bits; shift down the upper half of the fp32 code.",
    )
    expect(answer[DOWN] == ONE, "1 + 2^-9 is a quarter of a step above 1, so it rounds down to 1.")
    rounds_up = any(got > code >> 16 for code, got in answer.items())
    expect(
        answer[UP] != ONE or rounds_up,
        "you truncate. 1 + 2^-7 - 2^-9 lies three quarters of a step above 1 and has to round up.",
    )
    expect(
        answer[UP] != ONE,
        "you round 1 + 2^-7 - 2^-9 down, but it lies three quarters of a step above 1. Look at all "
        "16 bits that you cut off.",
    )
    ties = (answer[TIE_DOWN] - ONE, answer[TIE_UP] - ONE)
    expect(
        ties != (1, 2),
        "you round ties up. 1 + 2^-8 lies half-way, and its even neighbor is 1 (mantissa ...0).",
    )
    expect(
        ties != (0, 1),
        "you round ties down. 1 + 3 * 2^-8 lies half-way, and its even neighbor is above it.",
    )
    expect(
        ties != (1, 1),
        "you round ties to odd; choose the neighbor whose last mantissa bit is 0.",
    )
    expect(
        answer[ABOVE_TIE] != ONE and answer[BELOW_TIE] != ONE + 2,
        "1 + 2^-8 + 2^-23 isn't a tie, because it lies just above half-way. Look at all 16 bits "
        "that you cut off.",
    )
    expect(
        answer[BELOW_TWO] == TWO,
        "just below 2 the mantissa is all ones, so rounding up has to carry into the exponent.",
    )


@exercise("A code ends in the 16 bits 0xC000. Is the bf16 number below or above it closer?")
def to_bf16(encode: Callable[[int], int]) -> None:
    """Check the rounding of fp32 codes to bf16 codes, with ties to even."""
    codes = list(fp32_codes())
    with WithoutTorch(), by_hand(FloatFormat, "decode", "encode"):
        answer = {code: encode(Code(code)) for code in codes}
    for code, got in answer.items():
        expect(got is not None, f"your function returns None for {code:#x}; is a return missing?")
        is_int = isinstance(got, Integral) and not isinstance(got, bool)
        expect(is_int, f"return an int, the 16-bit code, not {type(got).__name__}.")
    expect_rounding(answer)
    negative = [code for code in answer if code & SIGN]
    expect(
        any(answer[code] != answer[code - SIGN] for code in negative),
        "negative numbers lose their sign bit; they get the codes of positive numbers.",
    )
    tiny = [got for code, got in answer.items() if FP32.split(code)[1] == 0]
    expect(
        any(got & 0x7FFF for got in tiny),
        "you return zero for every subnormal number, but bf16 has subnormal numbers, too; round to "
        "the nearest, as for other numbers.",
    )
    for code, got in answer.items():
        want = BF16.encode(FP32.decode(code))
        if got == want:
            continue
        own = "negative, so it must become minus" if code & SIGN else "positive, so it must become"
        expect(
            want & 0x7FFF != BF16.max_code + 1 or got ^ want != 0x8000,
            f"{code:#010x} is {own} infinity, {want:#06x}; yours is {got:#06x}: keep the sign bit.",
        )
        expect(
            want & 0x7FFF != BF16.max_code + 1,
            f"{code:#010x} lies beyond the largest bf16 number, so it becomes infinity.",
        )
        sign, field, _ = FP32.split(code)
        kind = "a negative number" if sign else "a positive number"
        kind = kind if field else "a subnormal number or zero"
        figures = f"You get {got:#06x}, and {want:#06x} is right."
        raise DiagnosisError(f"{code:#010x}, {kind}, is off.", figures)


def quantized(
    quantize: Callable[[Tensor], tuple[Tensor, float]], x: Tensor, case: str
) -> tuple[Tensor, float]:
    """Return q and the scale, and fail the check if they can't be q and a scale of `x`."""
    before = x.clone()
    result = quantize(x)
    expect(torch.equal(x, before), "your function changes its input x in place.")
    is_pair = isinstance(result, tuple | list) and len(result) == 2
    expect(is_pair, "return the pair (q, scale).")
    q, scale = result
    expect(isinstance(q, Tensor), f"q is a tensor, but yours is {type(q).__name__}.")
    expect(q.dtype == torch.int8, f"q must be torch.int8; yours is {q.dtype}.")
    expect(
        q.shape == x.shape,
        f"q has shape {tuple(q.shape)} for {case}, but x has shape {tuple(x.shape)}.",
    )
    axes = tuple(getattr(scale, "shape", ()))
    expect(
        not axes,
        f"the whole tensor has a single scale, which is a float; yours has the shape {axes}.",
    )
    expect(
        not isinstance(scale, Tensor),
        "your scale is a tensor, but a Python float is expected; add .item().",
    )
    is_number = isinstance(scale, Real) and not isinstance(scale, bool)
    expect(is_number, f"your scale is of type {type(scale).__name__}; return a float.")
    return q, float(scale)


def expect_codes(q: Tensor, x: Tensor, scale: float, case: str) -> None:
    """Check that q is x / scale, rounded to the nearest integer. Either side of a tie is right."""
    ratio = x.double() / scale
    mistakes = {
        "you truncate: `.to(torch.int8)` drops the fraction; round before it.": ratio.trunc(),
        "you add a half and drop the fraction, which rounds negative numbers up.": (
            (ratio + 0.5).trunc()
        ),
        "you round down with floor; round to the nearest integer.": ratio.floor(),
        "you round up with ceil; round to the nearest integer.": ratio.ceil(),
        "your numbers have lost their signs.": ratio.abs().round(),
        "your numbers have the wrong sign.": -ratio.round(),
    }
    if ((ratio - q).abs() <= 0.5 + 1e-3).all():
        return
    for diagnosis, wrong in mistakes.items():
        expect(not torch.equal(q, wrong.to(torch.int8)), diagnosis)
    figures = f"You get {q.tolist()}, and {ratio.round().int().tolist()} is right."
    raise DiagnosisError(f"the scale is right, but q is off for {case}.", figures)


TINY = "small numbers"


def inputs() -> Iterator[tuple[str, Tensor]]:
    """Yield tensors to quantize, and what is special about each."""
    yield "numbers whose largest magnitude is negative", torch.tensor([-3.0, 1.0])
    for case in draws.sizes(2, rows=(2, 6), columns=(3, 9)):
        x = draws.normal(case.rows, case.columns)
        yield f"a matrix of {case.rows} x {case.columns} numbers", x
    yield "a tensor of one number", torch.tensor([-0.7])
    yield "a transposed matrix", draws.normal(5, 8)[:, ::2].T
    yield "an expanded row", draws.normal(1, 4).expand(3, 4)
    yield "a tensor of three dimensions", draws.normal(2, 3, 4)
    yield "numbers in float64", draws.normal(9).double()
    yield "large numbers", draws.normal(30) * 1e6
    yield TINY, draws.normal(30) * 1e-6
    yield TINY, draws.normal(30) * 1e-15


def nearly_zeros() -> Iterator[tuple[str, Tensor]]:
    """Yield tensors that a wrong test takes for zeros, and what is special about each."""
    yield "numbers that add up to 0", torch.tensor([3.0, -3.0])
    yield "numbers that begin with a 0", torch.tensor([0.0, 5.0])
    yield "negative numbers and a 0", torch.tensor([0.0, -5.0])
    yield "numbers that end with a 0", torch.tensor([[5.0, 0.0], [0.0, 0.0]])
    yield "equal numbers", torch.tensor([2.0, 2.0])
    yield "numbers whose squares underflow", draws.normal(6) * 1e-24


@exercise("The largest magnitude in x is 2. Which int8 should it become, and by which scale?")
def int8_round_trip(quantize: Callable[[Tensor], tuple[Tensor, float]]) -> None:
    """Check symmetric int8 quantization with q = round(x / scale) and scale = max|x| / 127."""
    x, case = torch.tensor([-2.0, -1.1, -0.3, 0.0, 0.36, 1.3, 1.8]), "numbers from -2 to 1.8"
    q, scale = quantized(quantize, x, case)
    mistakes = {
        "your scale is max|x| / 128, but the largest int8 is 127, so the largest value is clipped "
        "or wraps.": 2 / 128,
        "your scale spreads max - min over 255 steps, but a symmetric one is max|x| / 127, and "
        "has no zero point.": 3.8 / 255,
        "your scale is max|x| / 127.5, but the largest int8 is 127.": 2 / 127.5,
        "max|x| may come from a negative value, so take magnitudes first.": 1.8 / 127,
        "your scale is max|x| / 255, but int8 reaches from -128 to 127.": 2 / 255,
        "your scale is upside down; x is about q * scale.": 127 / 2,
        "your scale is max|x|; divide it by the largest int8.": 2.0,
    }
    expect_number(scale, 2 / 127, f"the scale of {case}", mistakes, rel_tol=1e-5)
    expect_codes(q, x, scale, case)
    for case, x in inputs():
        q, scale = quantized(quantize, x, case)
        want = x.abs().max().item() / 127
        mistakes = {
            "max|x| may come from a negative value, so take magnitudes first.": (
                x.max().item() / 127
            ),
            "your scale has a lower bound or an added eps, which spoils small numbers; replace it "
            "only if it is 0.": scale if case == TINY and scale > want else math.nan,
        } | {
            f"your scale is that of x in {dtype}, which rounds or overflows; compute it in x's own "
            "dtype.": x.to(dtype).abs().max().item() / 127
            for dtype in (torch.float16, torch.bfloat16)
        }
        expect_number(scale, want, f"the scale of {case}", mistakes, rel_tol=1e-5)
        expect_codes(q, x, scale, case)
    for shape in ((3,), (2, 2)):
        q, of_zeros = quantized(quantize, torch.zeros(shape), "zeros")
        expect(
            math.isfinite(of_zeros) and of_zeros > 0 and not q.any(),
            "if x is all zeros, your scale is 0 and x / scale is NaN; use any positive scale then.",
        )
    for case, x in nearly_zeros():
        q, scale = quantized(quantize, x, case)
        mistakes = {
            "these numbers aren't all 0, but they get the scale of zeros; replace the scale only "
            f"if max|x| is 0. x holds {case}.": of_zeros,
        }
        want = x.abs().max().item() / 127
        expect_number(scale, want, f"the scale of {case}", mistakes, rel_tol=1e-5)
        expect_codes(q, x, scale, case)
