"""bits: every format against torch's own bits and against finfo, and rounding."""

import itertools
import math
import struct

import pytest
import torch
from cases import for_each

from cs336_course.shared import number_formats

FIELDS = ("bits", "eps", "max", "min", "smallest_normal", "resolution")
ALL = {number.name: (dtype, number) for dtype, number in number_formats.TORCH_FORMATS.items()}
SMALL = {name: pair for name, pair in ALL.items() if pair[1].bits <= 16}
SIGNED = {name: pair for name, pair in ALL.items() if pair[1].sign_bits}


def spread(count: int, low: int, high: int) -> torch.Tensor:
    """Random signed numbers from 2^low to 2^high in size."""
    generator = torch.Generator().manual_seed(0)
    powers = torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low
    signs = torch.randint(2, (count,), generator=generator) * 2 - 1
    return signs * torch.exp2(powers)


def test_every_scalar_float_type_of_torch_is_described():
    assert set(number_formats.scalar_float_dtypes().values()) == set(number_formats.TORCH_FORMATS)


def test_limits_equal_finfo():
    def compare(dtype, number):
        info = torch.finfo(dtype)
        wrong = [f for f in FIELDS if getattr(info, f) != getattr(number, f)]
        # torch 2.13 reports 0.125 for a format of two mantissa bits.
        assert wrong in ([], ["eps"] if dtype == torch.float8_e5m2fnuz else [])

    for_each(ALL, compare)


def test_decode_is_the_hardwares_for_every_code():
    def compare(dtype, number):
        codes = torch.arange(2**number.bits)
        raw = codes.to(torch.uint8 if number.bits == 8 else torch.int16).view(dtype)
        ours = torch.tensor([number.decode(c) for c in codes.tolist()], dtype=torch.float64)
        torch.testing.assert_close(ours, raw.double(), rtol=0, atol=0, equal_nan=True)
        assert torch.equal(ours[~ours.isnan()].signbit(), raw.double()[~ours.isnan()].signbit())
        assert number_formats.codes_of(raw) == codes.tolist()

    for_each(SMALL, compare)


def test_encode_inverts_decode():
    def compare(dtype, number):
        for code in range(2**number.bits):
            value = number.decode(code)
            if not math.isnan(value):
                assert number.encode(value) == code

    for_each(SMALL, compare)


def test_rounding_is_the_hardwares():
    def compare(dtype, number):
        x = spread(4000, max(-160, number.min_exponent - number.mantissa_bits - 3), 10)
        x = x[x.abs() <= number.max].float()
        theirs = x.to(dtype).double()
        ours = [number.decode(number.encode(v)) for v in x.tolist()]
        assert ours == theirs.tolist()

    for_each(SIGNED, compare)


def test_ties_go_to_the_even_code():
    for number in (
        number_formats.BF16,
        number_formats.E4M3,
        number_formats.E5M2,
        number_formats.E2M1,
    ):
        values = number.positive_values()
        for code, (low, high) in enumerate(itertools.pairwise(values), start=1):
            assert number.encode((low + high) / 2) == code + code % 2


def test_python_packs_the_same_fp32_and_fp64():
    for value in (0.15625, -5.5, 1e-45, -0.0, 3e38, math.pi):
        fp32 = struct.unpack("<f", struct.pack("<f", value))[0]
        assert number_formats.FP32.encode(value) == struct.unpack("<I", struct.pack("<f", value))[0]
        assert number_formats.FP32.decode(number_formats.FP32.encode(value)) == fp32
        assert number_formats.FP64.encode(value) == struct.unpack("<Q", struct.pack("<d", value))[0]


def test_overflow_of_each_family():
    assert number_formats.FP16.decode(number_formats.FP16.encode(65519.9)) == 65504
    assert number_formats.FP16.decode(number_formats.FP16.encode(-65520.0)) == -math.inf
    assert number_formats.E5M2.decode(number_formats.E5M2.encode(math.inf)) == math.inf
    assert math.isnan(number_formats.E4M3.decode(number_formats.E4M3.encode(1000.0)))
    assert (
        number_formats.E4M3FNUZ.encode(1000.0) == 0x80 == number_formats.E4M3FNUZ.encode(math.nan)
    )
    assert number_formats.E4M3FNUZ.encode(-0.0) == 0  # there is no minus zero
    assert number_formats.E2M1.decode(number_formats.E2M1.encode(100.0)) == 6
    assert number_formats.E8M0.encode(0.0) == 0


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="no NaN"):
        number_formats.E2M1.encode(math.nan)
    with pytest.raises(ValueError, match="does not fit"):
        number_formats.E4M3.decode(256)


def test_fp4_and_tf32():
    assert number_formats.E2M1.positive_values() == [0.5, 1, 1.5, 2, 3, 4, 6]
    assert (number_formats.E2M1.bytes, number_formats.TF32.bits, number_formats.TF32.bytes) == (
        0.5,
        19,
        4,
    )
    tf32 = number_formats.TF32
    assert tf32.decode(tf32.encode(1 + 2**-12)) == 1


def test_gap_is_the_distance_to_the_next_value():
    for number in (number_formats.E4M3, number_formats.E5M2, number_formats.FP16):
        values = [0.0, *number.positive_values()]
        assert all(number.gap(a) == b - a for a, b in zip(values[::7], values[1::7], strict=False))
    assert number_formats.BF16.gap(-256.0) == 2


def test_spelling_and_codes():
    assert number_formats.FP32.spell(0x3E200000) == "0 01111100 01000000000000000000000"
    assert number_formats.E8M0.spell(127) == "01111111"
    assert number_formats.codes_of(torch.tensor([1.0, -0.0], dtype=torch.bfloat16)) == [
        0x3F80,
        0x8000,
    ]


def test_integers():
    assert (number_formats.INT8.min, number_formats.INT8.max, number_formats.INT8.bytes) == (
        -128,
        127,
        1,
    )
    assert (number_formats.INT4.min, number_formats.INT4.max, number_formats.INT4.bytes) == (
        -8,
        7,
        0.5,
    )
