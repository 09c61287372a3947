"""Exercises of page 01: rounding to bf16, and where fp16's rounding pushes a letter."""

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

    def __repr__(self) -> str:
        """Return the code as the notebook writes it."""
        return f"{int(self):#010x}"

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
        record = {f"the code of {code:#010x}": plain(answer(Code(code))) for code in codes}
    for code in codes:
        found, right = record[f"the code of {code:#010x}"], rounded(code)
        if isinstance(found, int) and found != right and "figures" not in record:
            said = f"With {code:#010x}, you return {found:#06x}, and {right:#06x} is right."
            record["figures"] = said
    return record | {"used": sorted(used)}


def fp32_codes() -> Iterator[Case]:
    """Yield codes of finite fp32 numbers, with many ties between two bf16 numbers.

    bf16's step between 1 and 2 is 2^-7.
    """
    yield of_codes("", FP32.encode(1 + 2**-9), FP32.encode(1 + 2**-7 - 2**-9))
    down, up = FP32.encode(1 + 2**-8), FP32.encode(1 + 3 * 2**-8)
    yield of_codes("numbers half-way between two bf16 numbers", down, up)
    yield of_codes("numbers beside half-way", down + 1, up - 1)
    yield of_codes("a number just below 2", FP32.encode(2 - 2**-20))
    sign = 1 << 31
    yield of_codes("negative numbers", sign | FP32.encode(1 + 2**-9), sign | down, sign | up)
    tiny = (0, 1, 0x8000, 0x8001, 0x18000, sign, sign | 0x12345)
    yield of_codes("subnormal numbers and zero", *tiny)
    yield of_codes("the largest number", FP32.max_code, sign | FP32.max_code)
    drawn = torch.randint(0, 0x7F800000, (200,), generator=torch.Generator().manual_seed(0))
    ends = (0, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
    codes = [code & ~0xFFFF | end for code in drawn.tolist() for end in (code & 0xFFFF, *ends)]
    yield of_codes("many numbers", *(code | minus for code in codes for minus in (0, sign)))


def of_codes(what: str, *codes: int) -> Case:
    """Return a case that shows its codes in hex."""
    return Case(what, codes=[Code(code) for code in codes])


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


# where_it_ends


def letters() -> Iterator[Case]:
    """Yield shares of letters, none of which is a multiple of fp16's step, and sizes of batches."""
    yield Case("", f=0.088, n=2**19)
    yield Case("another letter", f=0.046, n=2**19)
    yield Case("another batch", f=0.088, n=2**18)
    yield Case("a rare letter", f=0.003, n=2**19)
    for power, f in ((14, 0.4567), (16, 0.0501), (20, 0.152), (20, 0.03), (21, 0.3)):
        yield Case("other letters and batches", f=f, n=2**power)


def step(n: int) -> float:
    """Return fp16's step for a mistake."""
    return n * 2.0**-24


def tie(f: float, n: int) -> float:
    """Return the tie between the two multiples of the step around a share."""
    return (f // step(n) + 0.5) * step(n)


where_it_ends = Exercise(
    NOTEBOOK,
    "where_it_ends",
    letters,
    is_part=True,
    smaller="A probability p is 0.04 and the step is 1/32. To which multiple is p rounded? And at "
    "which p does the rounding change to the next one?",
    wrong={
        "that is the letter's share, where a run without rounding ends. Where does the rounded "
        "gradient change its sign?": lambda f, n: f,
        "that is a multiple of the step. There the rounded probability isn't the share, so the "
        "letter is still pushed; it ends where the rounding jumps.": [
            lambda f, n: round(f / step(n)) * step(n),
            lambda f, n: f // step(n) * step(n),
            lambda f, n: (f // step(n) + 1) * step(n),
        ],
        "your step is that of 2^19 positions; how large is it for another n?": (
            lambda f, n: tie(f, 2**19)
        ),
        "fp16's gradients are multiples of 2^-24; 2^-25 is the threshold, half a step.": (
            lambda f, n: tie(f, n / 2)
        ),
        "your step is twice as large as fp16's.": lambda f, n: tie(f, 2 * n),
        "that is the gradient at the tie; multiply it by n, and it is a probability.": (
            lambda f, n: tie(f, n) / n
        ),
        "that is the wrong tie; which two multiples of the step is the share between?": [
            lambda f, n: tie(f, n) + step(n),
            lambda f, n: abs(tie(f, n) - step(n)),
            lambda f, n: (round(f / step(n)) + 0.5) * step(n),
        ],
        "a rare letter is pushed up, too, until its probability isn't rounded to 0 any more.": [
            lambda f, n: tie(f, n) if f > step(n) else 0.0,
            lambda f, n: tie(f, n) if f > step(n) else f,
        ],
    },
)
