"""Exercises of the page low_bits on quantization and a block of a 4-bit model."""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from cs336_course.engine import Case, Exercise, edits, function, normal, sizes
from cs336_course.engine.records import Record, plain

NOTEBOOK = "side_trips/low_bits"


# int8_round_trip


def observe_quantized(answer: Callable[[torch.Tensor], Any], case: Case) -> Record:
    """Return q and the scale, in which 1 stands for any positive scale of zeros."""
    record = function()(answer, case)
    result = answer(case.inputs["x"].clone())
    if not isinstance(result, tuple | list) or len(result) != 2:
        return {"form": record["result"], "changed": record["changed"]}
    q, scale = result
    kind = type(plain(scale)).__name__.replace("int", "float")
    if isinstance(scale, torch.Tensor):
        kind = f"Tensor {tuple(scale.shape)}"
    facts: Record = {"form": "a pair", "type of scale": kind, "changed": record["changed"]}
    if kind != "float":
        return facts
    is_any = not case.inputs["x"].any() and 0 < scale < float("inf")
    right = case.inputs["x"].abs().max().item() / 127 or 1.0
    share = 1.0 if is_any else float(scale) / right  # tells tiny scales apart
    return facts | {"scale": share * right, "scale over max|x| / 127": share, "q": plain(q)}


def tensors() -> Iterator[Case]:
    """Yield tensors to quantize, without ties, which may go either way."""
    yield Case("", x=torch.tensor([-2.0, -1.1, -0.3, 0.0, 0.36, 1.3, 1.8]))
    yield Case("numbers whose largest magnitude is negative", x=torch.tensor([-3.0, 1.0]))
    for size in sizes(2, rows=(2, 6), columns=(3, 9)):
        yield Case("a matrix", x=normal(size.rows, size.columns))
    yield Case("one number", x=torch.tensor([-0.7]))
    yield Case("a transposed matrix", x=normal(5, 8)[:, ::2].T)
    yield Case("an expanded row", x=normal(1, 4).expand(3, 4))
    yield Case("three dimensions", x=normal(2, 3, 4))
    yield Case("numbers in float64", x=normal(9).double())
    for factor in (1e6, 1e-6, 1e-15):
        yield Case(f"numbers of about {factor:g}", x=normal(30) * factor)
    yield Case("zeros", x=torch.zeros(3))
    yield Case("a matrix of zeros", x=torch.zeros(2, 2))
    yield Case("numbers that add up to 0", x=torch.tensor([3.0, -3.0]))
    yield Case("numbers that begin with a 0", x=torch.tensor([0.0, 5.0]))
    yield Case("negative numbers and a 0", x=torch.tensor([0.0, -5.0]))
    yield Case("numbers that end with a 0", x=torch.tensor([[5.0, 0.0], [0.0, 0.0]]))
    yield Case("equal numbers", x=torch.tensor([2.0, 2.0]))
    yield Case("numbers whose squares underflow", x=normal(6) * 1e-24)


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
        "has no zero point.": ("x.abs().max().item() / 127", "(x.max() - x.min()).item() / 255"),
        "your scale is max|x| / 127.5, but the largest int8 is 127.": ("127", "127.5"),
        "your scale is max|x| / 255, but int8 reaches from -128 to 127.": ("127", "255"),
        "max|x| may come from a negative value, so take magnitudes first.": [
            ("x.abs().max()", "x.max()"),
            ("x.abs().max()", "x.max().abs()"),
        ],
        "your scale is upside down; x is about q * scale.": ("int8), scale", "int8), 1 / scale"),
        "your scale is max|x|; divide it by the largest int8.": (" / 127", ""),
        "you truncate: `.to(torch.int8)` drops the fraction; round before it.": ("torch.round", ""),
        "you add a half and drop the fraction, which rounds negative numbers up.": (
            ("torch.round(x / scale)", "(x / scale + 0.5)")
        ),
        "you round down with floor; round to the nearest integer.": ("torch.round", "torch.floor"),
        "you round up with ceil; round to the nearest integer.": ("torch.round", "torch.ceil"),
        "your numbers have lost their signs.": ("round(x", "round(x.abs()"),
        "your numbers have the wrong sign.": ("round(x", "round(-x"),
        "if x is all zeros, your scale is 0 and x / scale is NaN; use any positive scale then.": [
            (" or 1.0", ""),
            edits((" or 1.0", ""), ("x / scale", "x / (scale or 1.0)")),
            edits((".item() / 127 or 1.0", " / 127"), ("int8), scale", "int8), scale.item()")),
        ],
        "your scale has a lower bound or an added eps, which spoils small numbers; replace it only "
        "if it is 0.": [
            (" or 1.0", " + 1e-8"),
            ("x.abs().max().item() / 127 or 1.0", "max(x.abs().max().item() / 127, 1e-12)"),
            ("x.abs().max().item() / 127 or 1.0", "max(x.abs().max().item() / 127, 1e-8)"),
            ("x.abs().max().item() / 127 or 1.0", "max(x.abs().max().item(), 1e-8) / 127"),
        ],
        "your scale is that of x in 16 bits, which rounds or overflows; compute it in x's own "
        "dtype.": [("x.abs", "x.half().abs"), ("x.abs", "x.bfloat16().abs")],
        "some numbers that aren't all 0 get the scale of zeros; replace the scale only if max|x| "
        "is 0.": [
            (" or 1.0", f" if {test} else 1.0")
            for test in ("x.sum() != 0", "x.min() != 0", "x.max() != 0", "x.flatten()[0] != 0")
        ],
        "squares of tiny numbers are 0; take magnitudes with abs().": (
            ("x.abs().max()", "x.square().max().sqrt()")
        ),
        "q has to keep x's shape.": ("round(x", "round(x.flatten()"),
    },
)


# decode_q4_1


def observe_values(answer: Callable[[bytes], Iterable[float]], case: Case) -> Record:
    """Return the values of a block as numbers, whatever holds them."""
    result = plain(answer(case.inputs["block"]))
    result = result.flatten().tolist() if isinstance(result, torch.Tensor) else result
    is_list = isinstance(result, list) and all(isinstance(x, int | float) for x in result)
    return {"values": [float(x) for x in result] if is_list else str(result)}


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
