"""Exercises of page 01 on rounding."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from cs336_course.engine import Case, Exercise
from cs336_course.engine.observe import watched
from cs336_course.engine.records import Record, plain
from cs336_course.shared import number_formats
from cs336_course.shared.number_formats import FP32, FloatFormat

NOTEBOOK = "01_dtypes"
LIBRARY = [(FloatFormat, name) for name in ("decode", "encode", "split")]


# to_bf16


class Code(int):
    """Code of a number, which can't be turned into a float, nor what is computed from it."""

    def __truediv__(self, *_: object) -> Any:
        """Refuse a float."""
        raise TypeError("use integer operations only, such as >>, & and +, and no floats")

    __rtruediv__ = __float__ = __truediv__


def with_codes(name: str) -> Callable[[Code, Any], Any]:
    """Return an operator of integers that gives a `Code` and refuses floats."""

    def operator(code: Code, other: Any) -> Any:
        if isinstance(other, float):
            code.__float__()
        result = getattr(int, name)(code, other)
        return Code(result) if isinstance(result, int) else result

    return operator


for operation in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(Code, f"__{operation}__", with_codes(f"__{operation}__"))
    setattr(Code, f"__r{operation}__", with_codes(f"__r{operation}__"))


def observe_codes(answer: Callable[[int], Any], case: Case) -> Record:
    """Return the results of all codes, which an answer has to find without torch or the library."""
    with watched(LIBRARY, without_torch=True) as used:
        codes = case.inputs["codes"]
        record = {f"the code of {code:#04x}": plain(answer(Code(code))) for code in codes}
    return record | {"used": sorted(used)}


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


def rounded(code: int) -> int:
    """Return the right code."""
    return (code + 0x7FFF + (code >> 16 & 1)) >> 16


to_bf16 = Exercise(
    NOTEBOOK,
    "to_bf16",
    fp32_codes,
    observe=observe_codes,
    smaller="A code ends in the 16 bits 0xC000. Is the bf16 number below or above it closer?",
    given={"bits": number_formats},
    wrong={
        "your code has more than 16 bits; shift down the upper half of the fp32 code.": [
            lambda code: rounded(code) << 16,
            lambda code: code & 0xFFFF0000,
        ],
        "1 + 2^-9 is a quarter of a step above 1, so it rounds down to 1.": [
            lambda code: (code >> 16) + 1,
            lambda code: -(-code >> 16),
        ],
        "you truncate. 1 + 2^-7 - 2^-9 lies three quarters of a step above 1 and has to round "
        "up.": lambda code: code >> 16,
        "you round ties up. 1 + 2^-8 lies half-way, and its even neighbor is 1 (mantissa ...0).": (
            lambda code: code + 0x8000 >> 16
        ),
        "you round ties down. 1 + 3 * 2^-8 lies half-way, and its even neighbor is above it.": (
            lambda code: code + 0x7FFF >> 16
        ),
        "you round ties to odd; choose the neighbor whose last mantissa bit is 0.": (
            lambda code: code + 0x8000 - (code >> 16 & 1) >> 16
        ),
        "1 + 2^-8 + 2^-23 isn't a tie, because it lies just above half-way. Look at all 16 bits "
        "that you cut off.": [
            lambda code: (code >> 16) + (code >> 14 & 3 > 2 - (code >> 16 & 1)),
            lambda code: (code >> 16) + (code >> 15 & 1 and code >> 14 & 7 != 2),
        ],
        "you look at some of the 16 bits that you cut off; all of them count.": [
            lambda code: (code >> 16) + bool(code >> 15 & 1 and (code & 0x3FFF or code >> 16 & 1)),
            lambda code: (code >> 16) + (code >> 15 & code >> 16 & 1),
        ],
        "just below 2 the mantissa is all ones, so rounding up has to carry into the exponent.": [
            lambda code: code >> 16 & ~0x7F | min(rounded(code & 0x7FFFFF), 0x7F),
            lambda code: code >> 16 & ~0x7F | rounded(code) & 0x7F,
        ],
        "negative numbers lose their sign bit; they get the codes of positive numbers.": (
            lambda code: rounded(code) & 0x7FFF
        ),
        "negative numbers are rounded the other way than positive ones; the magnitude is rounded, "
        "and the sign stays.": [
            lambda code: code + 0x8000 - (code >> 16 & 1) >> 16 if code >> 31 else rounded(code),
            lambda code: code >> 16 if code >> 31 else rounded(code),
        ],
        "you return zero for every subnormal number, but bf16 has subnormal numbers, too; round to "
        "the nearest, as for other numbers.": [
            lambda code: rounded(code) if code >> 23 & 255 else code >> 31 << 15,
            lambda code: rounded(code) if code >> 23 & 255 else 0,
        ],
        "a number beyond the largest bf16 number becomes infinity.": (
            lambda code: rounded(code) - (rounded(code) & 0x7FFF == 0x7F80)
        ),
        "infinity keeps the sign bit: a large negative number becomes minus infinity.": [
            lambda code: 0x7F80 if rounded(code) & 0x7FFF == 0x7F80 else rounded(code),
            lambda code: 0x7F80 if rounded(code) >= 0xFF80 else rounded(code),
        ],
    },
)


# stochastic_bf16


def observe_shares(answer: Callable[[int, int], Any], case: Case) -> Record:
    """Return how often each code goes up, over evenly spread noises."""
    record: Record = {}
    with watched(LIBRARY, without_torch=True) as used:
        for code in case.inputs["codes"]:
            found = [plain(answer(Code(code), Code(noise))) for noise in range(0, 2**16, 64)]
            kinds = sorted({type(each).__name__ for each in found})
            record[f"the results of {code:#010x}"] = kinds
            if kinds == ["int"]:
                steps = [each - (code >> 16) for each in found]
                record[f"the neighbors of {code:#010x}"] = [min(steps), max(steps)]
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


stochastic_bf16 = Exercise(
    NOTEBOOK,
    "stochastic_bf16",
    noisy_codes,
    observe=observe_shares,
    smaller="A code ends in 0x4000. For how many of the 65,536 noises should it go up?",
    given={"bits": number_formats},
    wrong={
        "you truncate, so 1 + 2^-9 never goes up.": lambda code, r: code >> 16,
        "you round to the nearest, so 1 + 2^-9 always goes down; r has to decide.": (
            lambda code, r: rounded(code)
        ),
        "you toss a fair coin. 1 + 2^-9 is a quarter of the way up, so it should go up once in "
        "four times.": lambda code, r: (code >> 16) + (r >= 0x8000),
        "you add noise and then round to the nearest, which adds another half step; truncate "
        "after adding the noise.": [
            lambda code, r: code + r + 0x7FFF + (code >> 16 & 1) >> 16,
            lambda code, r: code + r + 0x8000 >> 16,
        ],
        "your noise is centered on 0, but truncating takes away half a step on average; noise "
        "from 0 to 0xFFFF makes up for that.": lambda code, r: code + r - 0x8000 >> 16,
        "the nearer neighbor should be the likelier one; you have it the other way round.": [
            lambda code, r: (code >> 16) + (r >= code & 0xFFFF),
            lambda code, r: (code >> 16) + (r > code & 0xFFFF),
        ],
        "a number that bf16 can store must never move, and r can be 0.": (
            lambda code, r: (code >> 16) + (r <= code & 0xFFFF)
        ),
        "your code has more than 16 bits; shift it down.": lambda code, r: code + r & ~0xFFFF,
        "negative numbers lose their sign bit.": lambda code, r: code + r >> 16 & 0x7FFF,
    },
)
