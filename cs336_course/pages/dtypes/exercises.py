"""Exercises of notebook 01 on decoding, rounding and loss scaling."""

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from cs336_course.engine import Case, Exercise, normal, value
from cs336_course.engine.observe import watched
from cs336_course.engine.records import Record, plain
from cs336_course.shared import number_formats
from cs336_course.shared.number_formats import FP32, FloatFormat

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


# to_bf16


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


# stochastic_bf16

NOISES = range(0, 2**16, 64)


def observe_shares(answer: Callable[[int, int], Any], case: Case) -> Record:
    """Return how often each code goes up, over evenly spread noises."""
    library = [(FloatFormat, name) for name in ("decode", "encode", "split")]
    record: Record = {}
    with watched(library, without_torch=True) as used:
        for code in case.inputs["codes"]:
            steps = [plain(answer(Code(code), Code(noise))) for noise in NOISES]
            kinds = sorted({type(step).__name__ for step in steps})
            record[f"the results of {code:#010x}"] = kinds
            if kinds == ["int"]:
                steps = [step - (code >> 16) for step in steps]
                neighbors = sorted(set(steps))
                record[f"the neighbors of {code:#010x}"] = neighbors[:2] + neighbors[2:][-1:]
                record[f"how often {code:#010x} goes up"] = sum(steps) / len(steps)
    return record | {"used": sorted(used)}


def noisy_codes() -> Iterator[Case]:
    """Yield fp32 codes at several distances from their neighbors in bf16."""
    quarter = FP32.encode(1 + 2**-9)
    yield Case("", codes=[quarter])
    yield Case("a number three quarters of the way up", codes=[quarter + 0x8000])
    yield Case("a number that bf16 can store", codes=[FP32.encode(1.5)])
    yield Case("a number with an odd last bit", codes=[FP32.encode(1 + 2**-7 + 2**-8)])
    yield Case("a number just below 2", codes=[FP32.encode(2.0) - 64])
    yield Case("negative numbers", codes=[1 << 31 | quarter, 1 << 31 | FP32.encode(3.0)])
    yield Case("small numbers", codes=[0, 0x4000, 1 << 31])


NEW_CODE = "return (code + r) >> 16"

stochastic_bf16 = Exercise(
    NOTEBOOK,
    "stochastic_bf16",
    noisy_codes,
    observe=observe_shares,
    smaller="A code ends in 0x4000. For how many of the 65,536 noises should it go up?",
    given={"bits": number_formats},
    wrong={
        "you truncate, so 1 + 2^-9 never goes up.": (NEW_CODE, "return code >> 16"),
        "you round to the nearest, so 1 + 2^-9 always goes down; r has to decide.": (
            NEW_CODE,
            "return (code + 0x7FFF + (code >> 16 & 1)) >> 16",
        ),
        "you toss a fair coin. 1 + 2^-9 is a quarter of the way up, so it should go up once in "
        "four times.": (NEW_CODE, "return (code >> 16) + (r >= 0x8000)"),
        "you add noise and then round to the nearest, which adds another half step; truncate "
        "after adding the noise.": [
            (NEW_CODE, "return (code + r + 0x7FFF + (code >> 16 & 1)) >> 16"),
            (NEW_CODE, "return (code + r + 0x8000) >> 16"),
        ],
        "your noise is centered on 0, but truncating takes away half a step on average; noise "
        "from 0 to 0xFFFF makes up for that.": (NEW_CODE, "return (code + r - 0x8000) >> 16"),
        "the nearer neighbor should be the likelier one; you have it the other way round.": [
            (NEW_CODE, "return (code >> 16) + (r >= code & 0xFFFF)"),
            (NEW_CODE, "return (code >> 16) + (r > code & 0xFFFF)"),
        ],
        "a number that bf16 can store must never move; compare with <, because r can be 0.": (
            NEW_CODE,
            "return (code >> 16) + (r <= code & 0xFFFF)",
        ),
        "your code has more than 16 bits; shift it down.": (
            NEW_CODE,
            "return (code + r) & ~0xFFFF",
        ),
        "negative numbers lose their sign bit.": (NEW_CODE, "return (code + r) >> 16 & 0x7FFF"),
    },
    refused=[
        (NEW_CODE, "return (code + 2 * r) >> 16"),
        (NEW_CODE, "return (code + r // 2) >> 16"),
        (NEW_CODE, "return (code + r) / 65536"),
        (NEW_CODE, "return (code - r) >> 16"),
        lambda code, r: None,
    ],
    right=[
        lambda code, r: (code >> 16) + (r < (code & 0xFFFF)),
        lambda code, r: (code >> 16) + int((code & 0xFFFF) + r > 0xFFFF),
        lambda code, r: np.uint64(code + r) >> np.uint64(16),
    ],
)


# largest_scale


def small_gradients() -> Iterator[Case]:
    """Yield gradients of many sizes, some at the edge of what fp16 rounds to infinity."""
    yield Case("", gradients=torch.tensor([1e-6, 3e-7, 2e-9]))
    yield Case("a largest magnitude that is negative", gradients=torch.tensor([-3e-3, 1e-3]))
    yield Case("gradients near a power of two", gradients=torch.tensor([0.9, 0.1]))
    yield Case("gradients that are powers of two", gradients=torch.tensor([2.0**-10, 2.0**-30]))
    yield Case("a matrix", gradients=normal(4, 5) * 1e-5)
    yield Case("large gradients", gradients=torch.tensor([3e5, 1.0]))
    yield Case("one gradient", gradients=torch.tensor([1.4e-8]))
    yield Case("gradients just below the edge", gradients=torch.tensor([65519.0, 1.0]) * 2**-20)
    yield Case("gradients at the edge", gradients=torch.tensor([65520.0, 1.0]) * 2**-20)
    yield Case("zeros", gradients=torch.zeros(3))


def by_doubling(gradients: torch.Tensor) -> float:
    """Double a tiny scale as long as fp16 can hold the result."""
    scale = 2.0**-40 if gradients.any() else 1.0
    while gradients.any() and (gradients.double() * scale * 2).half().isfinite().all():
        scale *= 2
    return scale


SCALE_OF = "2.0 ** (math.ceil(math.log2(65520 / largest)) - 1)"

largest_scale = Exercise(
    NOTEBOOK,
    "largest_scale",
    small_gradients,
    smaller="The only gradient is 3. Which powers of two can you multiply it by in fp16?",
    given={"math": math},
    wrong={
        "the largest magnitude may come from a negative gradient.": ("abs().max()", "max()"),
        "your scale makes the largest gradient infinite; round the exponent down.": [
            (SCALE_OF, "2.0 ** math.ceil(math.log2(65520 / largest))"),
            (SCALE_OF, "2.0 ** round(math.log2(65504 / largest))"),
            (SCALE_OF, "2.0 ** math.ceil(math.log2(65504 / largest))"),
        ],
        "65,519 is stored as 65,504 (section 5), so your scale could be twice as large for "
        "gradients just below the edge.": [
            (SCALE_OF, "2.0 ** math.floor(math.log2(65504 / largest))"),
            ("65520", "65504"),
        ],
        "65,520 is already infinite in fp16, so a gradient must stay below it.": [
            (SCALE_OF, "2.0 ** math.floor(math.log2(65520 / largest))"),
            (SCALE_OF, "2.0 ** (16 - math.frexp(largest)[1])"),
        ],
        "your scale isn't a power of two. Only those change the exponent alone, so that scaling "
        "rounds nothing.": [
            (SCALE_OF, "65504 / largest"),
            (SCALE_OF, "65520 / largest"),
        ],
        "you look at the smallest gradient, but the largest one overflows first.": (
            "abs().max()",
            "abs().min()",
        ),
        "you look at the mean, but a single infinite gradient spoils the step.": (
            "abs().max()",
            "abs().mean()",
        ),
        "your scale is upside down.": (SCALE_OF, f"1 / ({SCALE_OF})"),
        "your scale brings the largest gradient to about 1, but fp16 reaches 65,504.": [
            ("65520", "1"),
            (SCALE_OF, "2.0 ** math.floor(math.log2(1 / largest))"),
        ],
        "you return the exponent; the scale is 2 to that power.": (
            SCALE_OF,
            SCALE_OF.removeprefix("2.0 ** "),
        ),
        "fp16's smallest values don't limit the scale; its largest one, 65,504, does.": (
            "65520",
            "2.0**-24",
        ),
        "every power of two keeps zeros finite, so there is no largest one; the task asks for 1 "
        "then.": [
            ("return 1.0", "return 0.0"),
            ("return 1.0", "return math.inf"),
            ("return 1.0", "return 2.0**16"),
        ],
    },
    refused=[
        ("65520", "65520 / 2"),
        ("65520", "65520 * 2"),
        (SCALE_OF, "2.0**16"),
        (SCALE_OF, SCALE_OF.replace("2.0 **", "10.0 **")),
        ("largest == 0", "False"),
    ],
    right=[
        by_doubling,
        ("65520", "65519.99"),
        (SCALE_OF, "2.0 ** math.floor(math.log2(65519.99 / largest))"),
    ],
)
