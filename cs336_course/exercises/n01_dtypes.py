"""Exercises of notebook 01 on decoding, rounding and quantization."""

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from cs336_course.demos import number_formats
from cs336_course.demos.number_formats import FP32, FloatFormat
from cs336_course.engine import Case, Exercise, edits, normal, sizes, value
from cs336_course.engine.observe import watched
from cs336_course.engine.records import Record, plain

NOTEBOOK = "01_dtypes"


def no_inputs() -> Iterator[Case]:
    """Yield the only case of an answer that is a number."""
    yield Case()


decode_by_hand = Exercise(
    NOTEBOOK,
    "decode_by_hand",
    no_inputs,
    observe=value(),
    answers=("answer",),
    smaller="Which number do the bits 0 10000000 10000000000000000000000 stand for?",
    wrong={
        "put a number such as -0.75 into `answer`.": "answer = None",
        "the sign bit is 1, so the number is negative.": ("-(1 +", "(1 +"),
        "your power of two is half of the right one. The field is 128 + 2, and the bias of 8 "
        "exponent bits is 2^(8-1) - 1.": ("127", "128"),
        "your bias is 2^8 - 1 = 255, but it is 2^(8-1) - 1.": ("2 ** (130 - 127)", "2**-125"),
        "you left out the bias, which is subtracted from the exponent field.": (" - 127", ""),
        "you subtracted the exponent field from the bias; it is the other way round.": (
            "130 - 127",
            "127 - 130",
        ),
        "your power of two is 2^-2. The exponent field is the number 130, which has no sign; the "
        "bias of 127 is subtracted from it.": ("130 - 127", "-2"),
        "you multiplied by 2 times the exponent; it is 2 to the power of the exponent.": (
            "**",
            "*",
        ),
        "you left out the power of two.": (" * 2 ** (130 - 127)", ""),
        "you left out the implicit leading one; the factor is 1 + mantissa / 2^23.": (
            "1 + 1 / 4",
            "1 / 4",
        ),
        "the mantissa is a fraction, so 011 isn't 3. Its bits are worth 1/2, 1/4 and 1/8.": (
            "1 / 4 + 1 / 8",
            "3",
        ),
        "the first mantissa bit is worth 1/2, so 011 is 1/4 + 1/8.": (
            "1 / 4 + 1 / 8",
            "1 / 2 + 1 / 4",
        ),
        "the first mantissa bit is worth 1/2, not 1/4.": ("1 / 4 + 1 / 8", "1 / 8 + 1 / 16"),
        "1.011 is in base two; the places after the point are worth 1/2, 1/4 and 1/8.": (
            "1 + 1 / 4 + 1 / 8",
            "1.011",
        ),
    },
    refused=[
        "answer = 0b11000001001100000000000000000000",
        "answer = 0b11000001001100000000000000000000 - 2**32",
        "answer = '-11'",
        "answer = -11.00002",
        "answer = 3",
        "answer = torch.tensor([-11.0, 3.0])",
    ],
    right=[
        -11,
        np.float32(-11),
        Fraction(-11),
        Decimal(-11),
        torch.tensor([-11.0]),
        np.array([[-11]]),
    ],
)


# decode_e4m3


def on_codes(what: str, make: Callable[[int], Any] = int) -> Callable[[Any, Case], Record]:
    """Return the observer of a function of codes, which is to do without torch and the library.

    Args:
        what: Names the results, as in "the value of".
        make: Makes the argument of a code.
    """
    library = [(FloatFormat, name) for name in ("decode", "encode", "split")]

    def observe(answer: Callable[[int], Any], case: Case) -> Record:
        with watched(library, without_torch=True) as used:
            codes = case.inputs["codes"]
            record = {f"{what} {code:#04x}": plain(answer(make(code))) for code in codes}
        return record | {"used": sorted(used)}

    return observe


def e4m3_codes() -> Iterator[Case]:
    """Yield all codes of E4M3, the most informative ones first."""
    yield Case("", codes=[0x38, 0x3C, 0x44, 0x39])
    yield Case("negative codes", codes=[0xB8, 0xC8, 0xBC])
    yield Case("the smallest exponent field", codes=[0x00, 0x01, 0x07, 0x81])
    yield Case("the largest exponent field", codes=[0x78, 0x7E, 0xF9])
    yield Case("NaN", codes=[0x7F, 0xFF])
    yield Case("all codes", codes=list(range(256)))


def e4m3_by_ldexp(code: int) -> float:
    """Shift the exponent of a whole number of eighths."""
    field, mantissa = divmod(code & 127, 8)
    if code & 127 == 127:
        return float("nan")
    magnitude = math.ldexp(mantissa + 8 * (field > 0), max(field, 1) - 10)
    return math.copysign(magnitude, -(code >> 7))


def e4m3_from_text(code: int) -> float:
    """Read the fields from the digits."""
    digits = f"{code:08b}"
    sign, field, mantissa = digits[0], int(digits[1:5], 2), digits[5:]
    if digits[1:] == "1111111":
        return math.nan
    number = sum(int(bit) / 2**n for n, bit in enumerate(mantissa, 1)) + (field > 0)
    number *= 2.0 ** (max(field, 1) - 7)
    return 0 if number == 0 else number * {"0": 1, "1": -1}[sign]


def e4m3_from_fp16(code: int) -> float:
    """Move the bits into fp16, whose bias is larger by 8."""
    if code in (0x7F, 0xFF):
        return np.nan
    half = np.array((code & 0x80) << 8 | (code & 0x7F) << 7, np.uint16).view(np.float16)
    return np.float64(half) * 2**8


decode_e4m3 = Exercise(
    NOTEBOOK,
    "decode_e4m3",
    e4m3_codes,
    observe=on_codes("the value of"),
    smaller="Write 0xB8 in bits. What are its sign, its exponent field and its mantissa?",
    given={"bits": number_formats},
    wrong={
        "you cut the byte like E5M2. After the sign, E4M3 has 4 exponent bits and 3 mantissa "
        "bits.": [
            "def decode_e4m3(code):\n"
            "    sign, exponent, mantissa = code >> 7, code >> 2 & 31, code & 3\n"
            "    return (-1) ** sign * (1 + mantissa / 4) * 2.0 ** (exponent - 15)\n",
            "def decode_e4m3(code):\n"
            "    sign, exponent, mantissa = code >> 7, code >> 2 & 31, code & 3\n"
            "    if exponent == 31:\n"
            "        return math.nan if mantissa else -math.inf if sign else math.inf\n"
            "    scale = 2.0 ** (max(exponent, 1) - 15)\n"
            "    return (-1) ** sign * ((exponent > 0) + mantissa / 4) * scale\n",
        ],
        "your values are half as large as they should be. Is your bias 8? It is 2^(4-1) - 1.": [
            edits(("exponent - 7", "exponent - 8"), ("-6", "-7")),
            ("exponent - 7", "exponent - 8"),
        ],
        "your values are far too small. Is your bias 2^4 - 1? It is 2^(4-1) - 1.": [
            edits(("exponent - 7", "exponent - 15"), ("-6", "-14")),
            ("exponent - 7", "exponent - 15"),
        ],
        "your positive numbers are 0, because you multiply by the sign bit. It only chooses the "
        "sign, as in (-1) ** sign.": ("-value if sign else value", "sign * value"),
        "0x38 is 0 0111 000, and you get 0; the implicit leading one is missing.": (
            "1 + mantissa / 8",
            "mantissa / 8",
        ),
        "the sign bit of 0xB8 has stayed in your exponent; mask it out with & 0b1111.": [
            (" & 0b1111", ""),
            edits((" & 0b1111", ""), ("-value if sign else value", "value")),
        ],
        "0xB8 is 0x38 with its sign bit set, but you lose the sign.": (
            "-value if sign else value",
            "value",
        ),
        "you read negative codes as two's complement, as in int8. A float has a sign bit, and its "
        "other bits mean the same with either sign: 0xB8 is 0x38 with a minus.": edits(
            ("code >> 7, (code", "code >> 7, (abs(code - 256 * (code > 128))"),
            ("code & 0b111\n", "abs(code - 256 * (code > 128)) & 0b111\n"),
        ),
        "the mantissa of 0x3C has no effect; did you divide it with //, which rounds?": (
            "mantissa / 8",
            "mantissa // 8",
        ),
        "the mantissa has 3 bits, so divide it by 2^3 to get its fraction.": [
            ("mantissa / 8", "mantissa / 7"),
            ("mantissa / 8", "mantissa / 4"),
            ("(1 + mantissa / 8", "(1 + mantissa / 7"),
            ("(1 + mantissa / 8", "(1 + mantissa / 4"),
        ],
        "exponent field 0 means subnormal, without the leading one, or there would be no zero.": [
            ("if exponent == 0", "if False"),
            ("if exponent == 0", "if exponent == 0 and mantissa == 0"),
            ("mantissa / 8 * 2.0**-6", "(1 + mantissa / 8) * 2.0**-6"),
        ],
        "0x01 is the smallest subnormal, not 0.": ("mantissa / 8 * 2.0**-6", "0.0"),
        "your subnormals are half as large as they should be. Their exponent is 1 - bias, like "
        "that of exponent field 1.": ("2.0**-6", "2.0**-7"),
        "subnormals have a sign, too.": (
            "value = mantissa / 8 * 2.0**-6",
            "return mantissa / 8 * 2.0**-6",
        ),
        "the largest exponent field of E4M3 makes ordinary numbers; only 0x7F and 0xFF are NaN.": [
            (" and mantissa == 7", ""),
            edits(
                ("exponent == 15 and mantissa == 7", "exponent == 15"),
                ("return math.nan", "return math.nan if mantissa else math.inf"),
            ),
            edits(
                ("exponent == 15 and mantissa == 7", "exponent == 15"),
                (
                    "return math.nan",
                    "return math.nan if mantissa else -math.inf if sign else math.inf",
                ),
            ),
        ],
        "0x7F and 0xFF are NaN with either sign, the one code that E4M3 gives up.": [
            ("exponent == 15 and mantissa == 7", "code == 0x7F"),
            ("exponent == 15 and mantissa == 7", "False"),
        ],
    },
    refused=[
        edits(("exponent - 7", "exponent - 6"), ("-6", "-5")),
        ("2.0**-6", "2.0**-5"),
        ("return -value", "value = min(value, 240.0)\n    return -value"),
        edits(
            ("exponent == 15 and mantissa == 7", "code == 0x80"),
            ("exponent - 7", "exponent - 8"),
            ("-6", "-7"),
        ),
        ("return math.nan", 'return "nan"'),
        ("return -value", "value = 0.0 if code == 0x55 else value\n    return -value"),
        ("return -value", "value = math.nan if code == 0x80 else value\n    return -value"),
        ("return -value", "value = None if code == 0x70 else value\n    return -value"),
        "decode_e4m3 = bits.E4M3.decode",
        "def decode_e4m3(code):\n    return bits.E4M3.decode(code)\n",
        "def decode_e4m3(code):\n"
        "    byte = torch.tensor([code], dtype=torch.uint8)\n"
        "    return byte.view(torch.float8_e4m3fn).item()\n",
        lambda code: str(e4m3_by_ldexp(code)),
        lambda code: 1 / 0,
    ],
    right=[
        e4m3_by_ldexp,
        e4m3_from_text,
        e4m3_from_fp16,
        lambda code: np.float32(e4m3_by_ldexp(code)),
        lambda code: 8 if code == 0x50 else e4m3_by_ldexp(code),
    ],
)


# to_bf16


def integer_operator(name: str) -> Callable[..., Any]:
    """Return an operator of integers that gives a `Code` and refuses floats."""
    compute = getattr(int, f"__{name}__")

    def operator(code: "Code", other: Any) -> Any:
        if isinstance(other, float):
            raise TypeError(NO_FLOATS)
        result = compute(code, other)
        return Code(result) if isinstance(result, int) else result

    return operator


NO_FLOATS = "use integer operations only, such as >>, & and +, and no floats"


class Code(int):
    """Code of a number, which can't be turned into a float, nor what is computed from it."""

    def __truediv__(self, *_: object) -> Any:
        """Refuse a float."""
        raise TypeError(NO_FLOATS)

    __rtruediv__ = __float__ = __truediv__


for operation in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(Code, f"__{operation}__", integer_operator(operation))
    setattr(Code, f"__r{operation}__", integer_operator(f"r{operation}"))


def fp32_codes() -> Iterator[Case]:
    """Yield codes of finite fp32 numbers, with many ties between two bf16 numbers.

    bf16's step between 1 and 2 is 2^-7.
    """
    yield Case("", codes=[FP32.encode(1 + 2**-9), FP32.encode(1 + 2**-7 - 2**-9)])
    down, up = FP32.encode(1 + 2**-8), FP32.encode(1 + 3 * 2**-8)
    yield Case("numbers half-way between two bf16 numbers", codes=[down, up])
    yield Case("numbers beside half-way", codes=[down + 1, up - 1])
    yield Case("a number just below 2", codes=[FP32.encode(2 - 2**-20)])
    sign = 1 << 31
    yield Case("negative numbers", codes=[sign | FP32.encode(1 + 2**-9), sign | down, sign | up])
    tiny = [0, 1, 0x8000, 0x8001, 0x18000, sign, sign | 0x12345]
    yield Case("subnormal numbers and zero", codes=tiny)
    yield Case("the largest number", codes=[FP32.max_code, sign | FP32.max_code])
    drawn = torch.randint(0, 0x7F800000, (200,), generator=torch.Generator().manual_seed(0))
    ends = (0, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
    codes = [code & ~0xFFFF | end for code in drawn.tolist() for end in (code & 0xFFFF, *ends)]
    yield Case("many numbers", codes=[code | minus for code in codes for minus in (0, sign)])


def bf16_by_cases(code: int) -> int:
    """Compare what is cut off with a half."""
    upper, cut_off = divmod(code, 2**16)
    is_up = cut_off > 0x8000 or (cut_off == 0x8000 and upper % 2 == 1)
    return upper + int(is_up)


def bf16_by_distance(code: int) -> int:
    """Choose the nearer of two neighbors."""
    below = code >> 16
    return min((below, below + 1), key=lambda other: (abs((other << 16) - code), other & 1))


def bf16_in_numpy(code: int) -> int:
    """Compute with unsigned integers of 32 bits."""
    word = np.uint32(code)
    return (word + np.uint32(0x7FFF) + (word >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)


RETURN = "return (code + 0x7FFF + last_kept) >> 16"
ROUNDED_CODE = RETURN.replace("return", "code =")

to_bf16 = Exercise(
    NOTEBOOK,
    "to_bf16",
    fp32_codes,
    observe=on_codes("the code of", Code),
    smaller="A code ends in the 16 bits 0xC000. Is the bf16 number below or above it closer?",
    given={"bits": number_formats},
    wrong={
        "your code has more than 16 bits; shift down the upper half of the fp32 code.": [
            ("last_kept) >> 16", "last_kept) & ~0xFFFF"),
            lambda code: code & 0xFFFF0000,
        ],
        "1 + 2^-9 is a quarter of a step above 1, so it rounds down to 1.": [
            lambda code: (code >> 16) + 1,
            lambda code: -(-code >> 16),
        ],
        "you truncate. 1 + 2^-7 - 2^-9 lies three quarters of a step above 1 and has to round "
        "up.": ("(code + 0x7FFF + last_kept)", "code"),
        "you round ties up. 1 + 2^-8 lies half-way, and its even neighbor is 1 (mantissa ...0).": [
            ("0x7FFF + last_kept", "0x8000"),
            (RETURN, "return (code >> 16) + (code >> 15 & 1)"),
        ],
        "you round ties down. 1 + 3 * 2^-8 lies half-way, and its even neighbor is above it.": (
            " + last_kept",
            "",
        ),
        "you round ties to odd; choose the neighbor whose last mantissa bit is 0.": (
            "0x7FFF + last_kept",
            "0x8000 - last_kept",
        ),
        "1 + 2^-8 + 2^-23 isn't a tie, because it lies just above half-way. Look at all 16 bits "
        "that you cut off.": [
            (
                RETURN,
                "cut_off = code >> 14 & 3\n"
                "    return (code >> 16) + (cut_off == 3 or (cut_off == 2 and last_kept))",
            ),
            (RETURN, "return (code >> 16) + (code >> 15 & 1 and code >> 14 & 7 != 2)"),
        ],
        "you look at some of the 16 bits that you cut off; all of them count.": [
            (RETURN, "return (code >> 16) + bool(code >> 15 & 1 and (code & 0x3FFF or last_kept))"),
            (RETURN, "return (code >> 16) + (code >> 15 & last_kept)"),
        ],
        "just below 2 the mantissa is all ones, so rounding up has to carry into the exponent.": [
            (
                RETURN,
                "mantissa = (code & 0x7FFFFF) + 0x7FFF + last_kept >> 16\n"
                "    return code >> 16 & ~0x7F | min(mantissa, 0x7F)",
            ),
            (
                RETURN,
                "mantissa = (code & 0x7FFFFF) + 0x7FFF + last_kept >> 16\n"
                "    return code >> 16 & ~0x7F | mantissa & 0x7F",
            ),
        ],
        "negative numbers lose their sign bit; they get the codes of positive numbers.": (
            "last_kept) >> 16",
            "last_kept) >> 16 & 0x7FFF",
        ),
        "negative numbers are rounded the other way than positive ones; the magnitude is rounded, "
        "and the sign stays.": [
            ("0x7FFF + last_kept", "(0x7FFF + last_kept if code < 2**31 else 0x8000 - last_kept)"),
            (RETURN, "return code >> 16 if code >> 31 else (code + 0x7FFF + last_kept) >> 16"),
        ],
        "you return zero for every subnormal number, but bf16 has subnormal numbers, too; round to "
        "the nearest, as for other numbers.": [
            (RETURN, f"if not code >> 23 & 255:\n        return code >> 31 << 15\n    {RETURN}"),
            (RETURN, f"if not code >> 23 & 255:\n        return 0\n    {RETURN}"),
        ],
        "a number beyond the largest bf16 number becomes infinity.": (
            RETURN,
            "rounded = code + 0x7FFF + last_kept >> 16\n"
            "    return rounded - (rounded & 0x7FFF == 0x7F80)",
        ),
        "infinity keeps the sign bit: a large negative number becomes minus infinity.": [
            (RETURN, f"{ROUNDED_CODE}\n    return 0x7F80 if {test} else code")
            for test in ("code & 0x7FFF == 0x7F80", "code >= 0xFF80")
        ],
    },
    refused=[
        ("0x7FFF", "0x7FFE"),
        ("(code >> 16) & 1", "(code >> 15) & 1"),
        (RETURN, "return (code >> 16) + (code & 0xFFFF > 0x7FF0)"),
        (
            RETURN,
            f"{ROUNDED_CODE}\n    return 0x7F7F if code == 0x7F80 else code",
        ),
        (
            RETURN,
            f"{ROUNDED_CODE}\n    return 0xFF80 if code & 0x7F80 == 0x7F80 else code",
        ),
        (RETURN, "code = code & 0x7FFFFFFF\n    return (code + 0x7FFF + last_kept >> 16) + 1"),
        (RETURN, f"if not code & 0x7FFFFFFF:\n        return 0\n    {RETURN}"),
        (RETURN, f"if code == 0:\n        return None\n    {RETURN}"),
        (RETURN, "return round(code / 2**16)"),
        (RETURN, "return round(code * 2.0**-16)"),
        (RETURN, "return round((code & 0xFFFFFFFF) / 65536)"),
        (RETURN, "return float((code + 0x7FFF + last_kept) >> 16)"),
        lambda code: 16256.0,
        lambda code: int(torch.tensor(code) >> 16),
        "def to_bf16(code):\n    return bits.BF16.encode(bits.FP32.decode(code))\n",
        "def to_bf16(code):\n"
        "    number = torch.tensor([code]).to(torch.uint32).view(torch.float32)\n"
        "    return number.bfloat16().view(torch.uint16).item()\n",
    ],
    right=[bf16_by_cases, bf16_by_distance, bf16_in_numpy],
)


# int8_round_trip


def observe_quantized(answer: Callable[[torch.Tensor], Any], case: Case) -> Record:
    """Return q and the scale. Where several answers are right, one of them stands for all.

    Either side of a tie is right, and so is any positive scale of zeros.
    """
    (x,) = case.inputs.values()
    before = x.clone()
    result = answer(x)
    changed = [] if torch.equal(x, before) else ["x"]
    if not isinstance(result, tuple | list) or len(result) != 2:
        return {"form": plain(result), "changed": changed}
    q, scale = result
    record: Record = {"form": "a pair", "type of scale": kind_of_scale(scale), "changed": changed}
    if record["type of scale"] != "float":
        return record
    largest = x.abs().max().item()
    if not largest and 0 < scale < math.inf:
        scale = 1.0
    ratio = x.double() / float(scale) if scale else torch.full_like(x, math.nan).double()
    if isinstance(q, torch.Tensor) and q.dtype == torch.int8 and q.shape == x.shape:
        is_nearest = ((ratio - q).abs() <= 0.5 + 1e-3).all()
        q = (x.double() / (largest / 127 or 1.0)).round().to(torch.int8) if is_nearest else q
    share = float(scale) / (largest / 127 or 1.0)  # tells tiny scales apart
    return record | {"scale": float(scale), "scale over max|x| / 127": share, "q": plain(q)}


def kind_of_scale(scale: Any) -> str:
    """Return "float" for numbers of Python and NumPy, and a description of anything else."""
    if isinstance(scale, int | float | np.floating) and not isinstance(scale, bool):
        return "float"
    shape = getattr(scale, "shape", "")
    return f"{type(scale).__name__} {tuple(shape)}" if shape != "" else type(scale).__name__


def tensors() -> Iterator[Case]:
    """Yield tensors to quantize."""
    yield Case("", x=torch.tensor([-2.0, -1.1, -0.3, 0.0, 0.36, 1.3, 1.8]))
    yield Case("numbers whose largest magnitude is negative", x=torch.tensor([-3.0, 1.0]))
    for size in sizes(2, rows=(2, 6), columns=(3, 9)):
        yield Case("a matrix", x=normal(size.rows, size.columns))
    yield Case("one number", x=torch.tensor([-0.7]))
    yield Case("a transposed matrix", x=normal(5, 8)[:, ::2].T)
    yield Case("an expanded row", x=normal(1, 4).expand(3, 4))
    yield Case("three dimensions", x=normal(2, 3, 4))
    yield Case("numbers in float64", x=normal(9).double())
    yield Case("large numbers", x=normal(30) * 1e6)
    yield Case("small numbers", x=normal(30) * 1e-6)
    yield Case("tiny numbers", x=normal(30) * 1e-15)
    yield Case("zeros", x=torch.zeros(3))
    yield Case("a matrix of zeros", x=torch.zeros(2, 2))
    yield Case("numbers that add up to 0", x=torch.tensor([3.0, -3.0]))
    yield Case("numbers that begin with a 0", x=torch.tensor([0.0, 5.0]))
    yield Case("negative numbers and a 0", x=torch.tensor([0.0, -5.0]))
    yield Case("numbers that end with a 0", x=torch.tensor([[5.0, 0.0], [0.0, 0.0]]))
    yield Case("equal numbers", x=torch.tensor([2.0, 2.0]))
    yield Case("numbers whose squares underflow", x=normal(6) * 1e-24)


def in_numpy(x: torch.Tensor) -> Any:
    """Compute without PyTorch."""
    scale = np.abs(x.numpy()).max() / 127 or 1.0
    return torch.from_numpy(np.rint(x.numpy() / scale).astype(np.int8)), scale


def in_a_loop(x: torch.Tensor) -> Any:
    """Compute one number at a time."""
    scale = max(abs(number) for number in x.flatten().tolist()) / 127
    scale = scale if scale > 0 else 0.5
    rounded = [round(number / scale) for number in x.flatten().tolist()]
    return torch.tensor(rounded, dtype=torch.int8).view(x.shape), scale


def by_factor(x: torch.Tensor) -> Any:
    """Multiply by the inverse of the scale."""
    largest = max(x.max().item(), -x.min().item())
    factor = 127 / largest if largest else 1e9
    return (x.double() * factor).round().clamp(-128, 127).char(), 1 / factor


SCALE = "x.abs().max().item() / 127 or 1.0"
ROUNDED = "torch.round(x / scale)"
SPOILED = (
    "your scale has a lower bound or an added eps, which spoils small numbers; replace it only if "
    "it is 0."
)
NOT_ZEROS = (
    "some numbers that aren't all 0 get the scale of zeros; replace the scale only if max|x| is 0."
)

int8_round_trip = Exercise(
    NOTEBOOK,
    "int8_round_trip",
    tensors,
    observe=observe_quantized,
    tolerance=10,
    smaller="The largest magnitude in x is 2. Which int8 should it become, and by which scale?",
    says={
        "form": "return the pair (q, scale).",
        "type of scale": "your scale isn't a Python float. The whole tensor has a single scale.",
    },
    wrong={
        "your scale is a tensor, but a Python float is expected; add .item().": (".item()", ""),
        "your scale is max|x| / 128, but the largest int8 is 127, so the largest value is clipped "
        "or wraps.": ("127", "128"),
        "your scale spreads max - min over 255 steps, but a symmetric one is max|x| / 127, and "
        "has no zero point.": (
            "x.abs().max().item() / 127",
            "(x.max() - x.min()).item() / 255",
        ),
        "your scale is max|x| / 127.5, but the largest int8 is 127.": ("127", "127.5"),
        "max|x| may come from a negative value, so take magnitudes first.": [
            ("x.abs().max()", "x.max()"),
            ("x.abs().max()", "x.max().abs()"),
        ],
        "your scale is max|x| / 255, but int8 reaches from -128 to 127.": ("127", "255"),
        "your scale is upside down; x is about q * scale.": (
            ".to(torch.int8), scale",
            ".to(torch.int8), 1 / scale",
        ),
        "your scale is max|x|; divide it by the largest int8.": (" / 127", ""),
        "you truncate: `.to(torch.int8)` drops the fraction; round before it.": (
            ROUNDED,
            "(x / scale)",
        ),
        "you add a half and drop the fraction, which rounds negative numbers up.": (
            ROUNDED,
            "(x / scale + 0.5)",
        ),
        "you round down with floor; round to the nearest integer.": ("torch.round", "torch.floor"),
        "you round up with ceil; round to the nearest integer.": ("torch.round", "torch.ceil"),
        "your numbers have lost their signs.": (ROUNDED, "torch.round(x / scale).abs()"),
        "your numbers have the wrong sign.": (ROUNDED, "torch.round(-x / scale)"),
        "if x is all zeros, your scale is 0 and x / scale is NaN; use any positive scale then.": [
            (" or 1.0", ""),
            edits((" or 1.0", ""), ("x / scale", "x / (scale or 1.0)")),
            edits((SCALE, "x.abs().max() / 127"), (", scale", ", scale.item()")),
        ],
        SPOILED: [
            (" or 1.0", " + 1e-8"),
            (SCALE, "max(x.abs().max().item() / 127, 1e-12)"),
            (SCALE, "max(x.abs().max().item() / 127, 1e-8)"),
            (SCALE, "max(x.abs().max().item(), 1e-8) / 127"),
        ],
        "your scale is that of x in float16, which rounds or overflows; compute it in x's own "
        "dtype.": (SCALE, SCALE.replace("x.", "x.half().")),
        "your scale is that of x in bfloat16, which rounds; compute it in x's own dtype.": (
            SCALE,
            SCALE.replace("x.", "x.bfloat16()."),
        ),
        NOT_ZEROS: [
            (" or 1.0", f" if {test} else 1.0")
            for test in (
                "x.sum() != 0",
                "x.mean() != 0",
                "x.min() != 0",
                "x.max() != 0",
                "x.flatten()[0] != 0",
                "x.flatten()[-1] != 0",
                "x.max() != x.min() or x.numel() == 1",
            )
        ],
        "squares of tiny numbers are 0; take magnitudes with abs().": (
            "x.abs().max()",
            "x.square().max().sqrt()",
        ),
        "the whole tensor has a single scale; yours is one for each row.": (
            SCALE,
            "x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127",
        ),
        "q has to keep x's shape.": [
            (ROUNDED, "torch.round(x.flatten() / scale)"),
            edits((ROUNDED, "torch.round(x.flatten() / scale)"), ("x.abs", "x.flatten().abs")),
        ],
        "your function changes its input x in place; write x / scale.": (
            "x / scale",
            "x.div_(scale)",
        ),
    },
    refused=[
        ("x.abs().max()", "x[:1].abs().max()"),
        ("torch.int8", "torch.int16"),
        (".to(torch.int8), scale", ".to(torch.int8) * scale, scale"),
        ("127", "100"),
        (ROUNDED, "(torch.round(x / scale) + 1)"),
        (", scale", ", str(scale)"),
        (", scale", ", None"),
        (".to(torch.int8), scale", ".to(torch.int8).tolist(), scale"),
        (".to(torch.int8), scale", ".to(torch.int8)"),
        lambda x: (torch.round(x * 63.5), 2 / 127),
        "def int8_round_trip(x):\n"
        "    scale = x.abs().amax(-1, keepdim=True) / 127\n"
        "    return torch.round(x / scale).to(torch.int8), scale\n",
        "def int8_round_trip(x):\n"
        "    scale = torch.where((s := x.abs().amax() / 127) == 0, 1, s)\n"
        "    return [x.div(scale).round().clamp(-127, 127).char(), scale]\n",
    ],
    right=[
        (ROUNDED, "torch.floor(x / scale + 0.5)"),
        in_numpy,
        in_a_loop,
        by_factor,
        (" or 1.0", " if x.any() else 1.0"),
        (", scale", ", np.float64(scale)"),
    ],
)
