"""bits: every format against torch's own bits and against finfo, rounding, packing."""

import itertools
import math
import struct

import pytest
import torch
from cases import for_each

from cs336_lib.classroom import bits

FIELDS = ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution")
ALL = {number.name: (dtype, number) for dtype, number in bits.TORCH_FORMATS.items()}
SMALL = {name: pair for name, pair in ALL.items() if pair[1].bits <= 16}
SIGNED = {name: pair for name, pair in ALL.items() if pair[1].sign_bits}


def spread(count: int, low: int, high: int) -> torch.Tensor:
    """Random signed numbers from 2^low to 2^high in size."""
    generator = torch.Generator().manual_seed(0)
    powers = torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low
    signs = torch.randint(2, (count,), generator=generator) * 2 - 1
    return signs * torch.exp2(powers)


def test_every_scalar_float_type_of_torch_is_described():
    assert set(bits.scalar_float_dtypes().values()) == set(bits.TORCH_FORMATS)


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
        assert bits.codes_of(raw) == codes.tolist()

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
        assert torch.equal(number.nearest(x), theirs)

    for_each(SIGNED, compare)


def test_ties_go_to_the_even_code():
    for number in (bits.BF16, bits.E4M3, bits.E5M2, bits.E2M1):
        values = number.positive_values()
        for code, (low, high) in enumerate(itertools.pairwise(values), start=1):
            assert number.encode((low + high) / 2) == code + code % 2


def test_python_packs_the_same_fp32_and_fp64():
    for value in (0.15625, -5.5, 1e-45, -0.0, 3e38, math.pi):
        fp32 = struct.unpack("<f", struct.pack("<f", value))[0]
        assert bits.FP32.encode(value) == struct.unpack("<I", struct.pack("<f", value))[0]
        assert bits.FP32.decode(bits.FP32.encode(value)) == fp32
        assert bits.FP64.encode(value) == struct.unpack("<Q", struct.pack("<d", value))[0]


def test_overflow_of_each_family():
    assert bits.FP16.decode(bits.FP16.encode(65519.9)) == 65504
    assert bits.FP16.decode(bits.FP16.encode(-65520.0)) == -math.inf
    assert bits.E5M2.decode(bits.E5M2.encode(math.inf)) == math.inf
    assert math.isnan(bits.E4M3.decode(bits.E4M3.encode(1000.0)))
    assert bits.E4M3.decode(bits.E4M3.encode(-1000.0, saturate=True)) == -448
    assert bits.E4M3FNUZ.encode(1000.0) == 0x80 == bits.E4M3FNUZ.encode(math.nan)
    assert bits.E4M3FNUZ.encode(-0.0) == 0  # there is no minus zero
    assert bits.E2M1.decode(bits.E2M1.encode(100.0)) == 6
    assert bits.E8M0.encode(0.0) == 0


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="no NaN"):
        bits.E2M1.encode(math.nan)
    with pytest.raises(ValueError, match="does not fit"):
        bits.E4M3.decode(256)


def test_fp4_and_tf32():
    assert bits.E2M1.positive_values() == [0.5, 1, 1.5, 2, 3, 4, 6]
    assert (bits.E2M1.bytes, bits.TF32.bits, bits.TF32.bytes) == (0.5, 19, 4)
    x = torch.tensor([1 + 2**-10, 1 + 2**-12, math.inf, math.nan])
    assert bits.TF32.nearest(x).tolist()[:3] == [1 + 2**-10, 1, bits.TF32.max]
    assert bits.TF32.nearest(x)[3].isnan()


def test_gap_is_the_distance_to_the_next_value():
    for number in (bits.E4M3, bits.E5M2, bits.FP16):
        values = [0.0, *number.positive_values()]
        assert all(number.gap(a) == b - a for a, b in zip(values[::7], values[1::7], strict=False))
    assert bits.BF16.gap(-256.0) == 2


def test_spelling_and_codes():
    assert bits.FP32.spell(0x3E200000) == "0 01111100 01000000000000000000000"
    assert bits.E8M0.spell(127) == "01111111"
    assert bits.codes_of(torch.tensor([1.0, -0.0], dtype=torch.bfloat16)) == [0x3F80, 0x8000]


def test_integers():
    assert (bits.INT8.min, bits.INT8.max, bits.UINT8.min, bits.UINT8.max) == (-128, 127, 0, 255)
    assert bits.INT4.bytes == 0.5


def test_affine_round_trip_is_within_half_a_step_and_exact_at_zero():
    def round_trip(target, low, high):
        scale, zero_point = bits.scale_and_zero_point(low, high, target)
        x = torch.cat((torch.linspace(low, high, 101), torch.zeros(1)))
        back = bits.dequantize(bits.quantize(x, scale, zero_point, target), scale, zero_point)
        # The zero point is rounded, so the end of the range may be clipped by half a step more.
        assert (back - x).abs().max() <= scale * 1.001
        assert back[-1] == 0

    cases = {
        f"{target.name} from {low} to {high}": (target, low, high)
        for target in (bits.INT8, bits.INT4, bits.UINT8)
        for low, high in ((-1.0, 2.0), (0.5, 3.0), (-3.0, -1.0), (0.0, 0.0))
    }
    for_each(cases, round_trip)


def test_int4_packing_inverts():
    q = torch.arange(-8, 8, dtype=torch.int16).repeat(3, 1)
    packed = bits.pack_int4(q)
    assert packed.shape == (3, 8)
    assert packed.dtype == torch.uint8
    assert torch.equal(bits.unpack_int4(packed), q)


def test_nvfp4_block_scale_shields_from_outliers():
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 1000.0
    back = bits.nvfp4_round_trip(x)
    elsewhere = torch.ones(8, 64, dtype=torch.bool)
    elsewhere[0, :16] = False
    assert (back - x)[elsewhere].abs().max() < 0.6
    assert (back[0, 1:16] == 0).all()
    assert back.shape == x.shape
    assert back.dtype == x.dtype
    assert not bits.nvfp4_round_trip(torch.zeros(2, 32)).any()


def test_int_nearest_rounds_ties_to_even_in_the_symmetric_range():
    values = torch.tensor([-9.0, -7.6, -0.5, 0.5, 1.5, 2.4, 30.0])
    assert bits.INT4.nearest(values).tolist() == [-7, -7, 0, 0, 2, 2, 7]
    assert bits.UINT8.nearest(torch.tensor([-3.0, 300.0])).tolist() == [0, 255]


def test_block_round_trip_of_integers_uses_their_whole_range():
    x = torch.arange(-8.0, 8.0)[None].clamp(min=-7)  # already int4, so the scale is 1
    assert torch.equal(bits.block_round_trip(x, bits.INT4), x)
    small = x / 64  # another tensor scale, the same integers
    assert torch.equal(bits.block_round_trip(small, bits.INT4), small)


def test_an_outlier_spoils_its_own_block_only():
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(4))
    x[3, 5] = 50.0
    error = (bits.block_round_trip(x, bits.INT4) - x).view(-1, 16).square().mean(dim=1).sqrt()
    assert error[12] > 0.8  # values 192 to 207: row 3, the first 16 columns
    error[12] = 0
    assert error.max() < 0.25


def test_even_steps_win_in_small_blocks_of_bell_shaped_values_only():
    generator = torch.Generator().manual_seed(0)
    bell = torch.randn(64, 256, generator=generator)
    tails = bell * torch.randn(64, 256, generator=generator)

    def int4_wins(x: torch.Tensor, block: int) -> bool:
        int4, fp4 = (
            (bits.block_round_trip(x, element, block) - x).norm()
            for element in (bits.INT4, bits.E2M1)
        )
        return bool(int4 < fp4)

    assert int4_wins(bell, 16)
    assert not int4_wins(bell, 256)
    assert not int4_wins(tails, 16)
