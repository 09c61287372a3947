"""Exercise of the page low_bits on a block of a 4-bit model."""

import struct
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch

from cs336_course.engine import Case, Exercise
from cs336_course.engine.records import Record, plain

NOTEBOOK = "side_trips/low_bits"


def observe_values(answer: Callable[[bytes], Iterable[float]], case: Case) -> Record:
    """Return the values of a block as numbers, whatever holds them."""
    result = plain(answer(case.inputs["block"]))
    result = result.flatten().tolist() if isinstance(result, torch.Tensor) else result
    is_list = isinstance(result, list) and all(isinstance(x, int | float) for x in result)
    return {"a value": [float(x) for x in result] if is_list else str(result)}


def blocks() -> Iterator[Case]:
    """Yield blocks of 20 bytes, in which every value can be told from the others."""
    random = np.random.default_rng(0)
    first = struct.pack("<2e", 0.25, -2.0) + bytes([0x80, *range(1, 16)])
    yield Case("", block=first)
    yield Case("large fields", block=struct.pack("<2e", 0.0625, 0.5) + bytes(range(240, 256)))
    for number in range(3):
        header = struct.pack("<2e", random.random() / 50, -random.random() / 5)
        yield Case(f"block {number}", block=header + random.bytes(16))


def decoded(halves: Callable[[bytes], Iterable[int]]) -> Callable[[bytes], list[float]]:
    """Return an answer that takes the numbers q from the bytes in this way."""

    def answer(block: bytes) -> list[float]:
        scale, minimum = struct.unpack("<2e", block[:4])
        return [minimum + scale * q for q in halves(block)]

    return answer


decode_q4_1 = Exercise(
    NOTEBOOK,
    "decode_q4_1",
    blocks,
    observe=observe_values,
    smaller="The byte 0x80 is the first after the header. Which q does value 0 have, and which "
    "value has q = 8?",
    wrong={
        "a byte doesn't hold neighbors. Its low half belongs to one of the first 16 values, its "
        "high half to the value 16 places later.": [
            decoded(lambda block: [q for byte in block[4:] for q in (byte & 15, byte >> 4)]),
            decoded(lambda block: [q for byte in block[4:] for q in (byte >> 4, byte & 15)]),
        ],
        "the low halves come first, and you begin with the high ones.": (
            decoded(lambda block: [b >> 4 for b in block[4:]] + [b & 15 for b in block[4:]])
        ),
        "q runs from 0 to 15, and is neither signed nor shifted; the minimum makes values "
        "negative.": [
            ("scale * q", "scale * (q - 8)"),
            ("scale * q", "scale * (q - 16 * (q > 7))"),
        ],
        "the header holds the scale first and then the minimum.": (
            ("scale, minimum =", "minimum, scale =")
        ),
        "you left out the minimum.": ("minimum + ", ""),
        "you subtract the minimum; it is the value of q = 0.": ("minimum + ", "-minimum + "),
        "the header's numbers are little-endian, the lower byte first.": ('"<2e"', '">2e"'),
        "you don't separate the two halves of a byte; & 15 keeps the low one.": (" & 15", ""),
        "the header is 4 bytes long, so the numbers q begin at byte 4.": (
            decoded(lambda block: [b & 15 for b in block[2:-2]] + [b >> 4 for b in block[2:-2]])
        ),
        "you return q itself; multiply by the scale and add the minimum.": (
            ("minimum + scale * q", "q")
        ),
    },
)
