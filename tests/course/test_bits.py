"""bits: every format against torch's own bits and against finfo, and rounding."""

import math

import torch
from cases import for_each

from cs336_course.shared import number_formats

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


def test_decode_is_the_hardwares_for_every_code():
    def compare(dtype, number):
        codes = torch.arange(2**number.bits)
        raw = codes.to(torch.uint8 if number.bits == 8 else torch.int16).view(dtype)
        ours = torch.tensor([number.decode(c) for c in codes.tolist()], dtype=torch.float64)
        torch.testing.assert_close(ours, raw.double(), rtol=0, atol=0, equal_nan=True)
        assert torch.equal(ours[~ours.isnan()].signbit(), raw.double()[~ours.isnan()].signbit())
        assert number_formats.codes_of(raw) == codes.tolist()

    for_each(SMALL, compare)


def test_rounding_is_the_hardwares():
    def compare(dtype, number):
        x = spread(4000, max(-160, number.min_exponent - number.mantissa_bits - 3), 10)
        x = x[x.abs() <= number.max].float()
        theirs = x.to(dtype).double()
        ours = [number.decode(number.encode(v)) for v in x.tolist()]
        assert ours == theirs.tolist()

    for_each(SIGNED, compare)


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
    assert number_formats.E8M0.encode(2.0) == 128
