"""Exercises of notebook 01b on formats of eight and four bits."""

import math
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from cs336_course.engine import Case, Exercise, edits, normal, sizes
from cs336_course.engine.records import Record, plain
from cs336_course.pages.dtypes.exercises import on_codes
from cs336_course.shared import number_formats

NOTEBOOK = "side_trips/low_bits"


# decode_e4m3


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


def q4_1_in_torch(block: bytes) -> torch.Tensor:
    """Decode with PyTorch."""
    data = torch.tensor(list(block), dtype=torch.uint8)
    scale, minimum = data[:4].view(torch.float16).double()
    return torch.cat((data[4:] & 15, data[4:] >> 4)).double() * scale + minimum


FIELDS = "[byte & 15 for byte in block[4:]] + [byte >> 4 for byte in block[4:]]"

decode_q4_1 = Exercise(
    NOTEBOOK,
    "decode_q4_1",
    blocks,
    observe=observe_values,
    given={"struct": struct},
    smaller="The byte 0x80 is the first after the header. Which q does value 0 have, and which "
    "value has q = 8?",
    wrong={
        "a byte doesn't hold neighbors. Its low half belongs to one of the first 16 values, its "
        "high half to the value 16 places later.": [
            (FIELDS, "[q for byte in block[4:] for q in (byte & 15, byte >> 4)]"),
            (FIELDS, "[q for byte in block[4:] for q in (byte >> 4, byte & 15)]"),
        ],
        "the low halves come first, and you begin with the high ones.": (
            FIELDS,
            "[byte >> 4 for byte in block[4:]] + [byte & 15 for byte in block[4:]]",
        ),
        "q runs from 0 to 15, and is neither signed nor shifted; the minimum makes values "
        "negative.": [
            ("scale * q", "scale * (q - 8)"),
            ("scale * q", "scale * (q - 16 * (q > 7))"),
        ],
        "the header holds the scale first and then the minimum.": (
            "scale, minimum =",
            "minimum, scale =",
        ),
        "you left out the minimum.": ("minimum + ", ""),
        "you subtract the minimum; it is the value of q = 0.": ("minimum + ", "-minimum + "),
        "the header's numbers are little-endian, the lower byte first.": ('"<2e"', '">2e"'),
        "you don't separate the two halves of a byte; & 15 keeps the low one.": (
            "byte & 15",
            "byte",
        ),
        "the header is 4 bytes long, so the numbers q begin at byte 4.": (
            FIELDS,
            FIELDS.replace("4:", "2:-2"),
        ),
        "you return q itself; multiply by the scale and add the minimum.": (
            "minimum + scale * q",
            "q",
        ),
    },
    refused=[
        ("minimum + scale * q", "minimum + scale * (q + 1)"),
        (FIELDS, "[byte & 15 for byte in block[4:]]"),
        ("byte >> 4", "byte >> 5"),
        lambda block: "values",
        lambda block: None,
    ],
    right=[
        q4_1_in_torch,
        lambda block: q4_1_in_torch(block).float().numpy(),
        lambda block: tuple(q4_1_in_torch(block).tolist()),
    ],
)
