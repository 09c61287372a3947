"""Define floating-point and integer formats by the meaning of each bit.

A float has a sign, an exponent field of k bits and a mantissa field of m bits. Formats differ in k,
in m, and in how they encode infinity and NaN. These choices determine range, precision and
rounding.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cs336_lib.config import UserError


@dataclass(frozen=True)
class FloatFormat:
    """Binary floating-point format. Its properties have the same names as in `torch.finfo`.

    A format without a mantissa (E8M0) has no subnormals and no zero. Each of its codes represents a
    power of two.

    Args:
        name: Name of the format.
        exponent_bits: Width of the exponent field.
        mantissa_bits: Width of the mantissa field.
        sign_bits: 0 for an unsigned format, otherwise 1.
        specials: Codes that aren't finite numbers. With "ieee", the largest exponent encodes
            infinity (mantissa 0) and NaN. With "one nan" ("fn"), only the code of all ones is NaN,
            and there is no infinity. With "minus zero is nan" ("fnuz"), the code of minus zero is
            NaN, and the bias is larger by one. With "none", every code is a finite number.
        stored_bits: Bits per value in memory, if this is more than the width of the format.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    sign_bits: int = 1
    specials: str = "ieee"
    stored_bits: int = 0

    @property
    def bits(self) -> int:
        """The total number of sign, exponent and mantissa bits."""
        return self.sign_bits + self.exponent_bits + self.mantissa_bits

    @property
    def bytes(self) -> float:
        """The bytes per value in memory, for example 0.5 for FP4 and 4 for TF32."""
        return (self.stored_bits or self.bits) / 8

    @property
    def bias(self) -> int:
        """The exponent bias, which is subtracted from the exponent field.

        The bias is 2^(k-1) - 1, or 2^(k-1) for fnuz formats.
        """
        return 2 ** (self.exponent_bits - 1) - (self.specials != "minus zero is nan")

    @property
    def max_code(self) -> int:
        """The code of the largest finite value, without its sign."""
        given_up = {"ieee": 2**self.mantissa_bits, "one nan": 1}.get(self.specials, 0)
        return 2 ** (self.exponent_bits + self.mantissa_bits) - 1 - given_up

    @property
    def has_subnormals(self) -> bool:
        """Whether exponent field 0 means 0.mantissa instead of 1.mantissa."""
        return self.mantissa_bits > 0

    @property
    def min_exponent(self) -> int:
        """The exponent of the smallest normal value."""
        return self.has_subnormals - self.bias

    @property
    def eps(self) -> float:
        """The gap between 1 and the next larger value, 2^-m."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def max(self) -> float:
        """The largest finite value."""
        return self.decode(self.max_code)

    @property
    def min(self) -> float:
        """The lowest finite value, which is `-max` for a signed format."""
        return -self.max if self.sign_bits else self.smallest_normal

    @property
    def smallest_normal(self) -> float:
        """The smallest positive value with full precision."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive value. `torch.finfo` has no such property."""
        return math.ldexp(1.0, self.min_exponent - self.mantissa_bits)

    def split(self, code: int) -> tuple[int, int, int]:
        """Split a code into sign, exponent and mantissa fields, as integers."""
        k, m = self.exponent_bits, self.mantissa_bits
        return code >> (k + m), code >> m & (2**k - 1), code & (2**m - 1)

    def spell(self, code: int) -> str:
        """Return the bits of a code with a space between the fields, as in `0 01111100 0100...`.

        Empty fields are omitted.
        """
        widths = (self.sign_bits, self.exponent_bits, self.mantissa_bits)
        fields = zip(self.split(code), widths, strict=True)
        return " ".join(f"{value:0{width}b}" for value, width in fields if width)

    def decode(self, code: int) -> float:
        """Return the value of a code, which is an integer with `bits` bits.

        The value is exact for formats up to fp64.

        Raises:
            ValueError: If the code is too large for the format.
        """
        if not 0 <= code < 2**self.bits:
            raise ValueError(f"code {code} does not fit into {self.bits} bits")
        sign, exponent, mantissa = self.split(code)
        magnitude = code & (2 ** (self.exponent_bits + self.mantissa_bits) - 1)
        if self.specials == "minus zero is nan" and sign and magnitude == 0:
            return math.nan
        if magnitude > self.max_code:
            infinite = self.specials == "ieee" and mantissa == 0
            return (-1) ** sign * math.inf if infinite else math.nan
        if exponent == 0 and self.has_subnormals:
            value = math.ldexp(mantissa, self.min_exponent - self.mantissa_bits)
        else:
            significand = 2**self.mantissa_bits + mantissa  # the implicit one, then the mantissa
            value = math.ldexp(significand, exponent - self.bias - self.mantissa_bits)
        return -value if sign else value

    def encode(self, value: float) -> int:
        """Return the code of the value nearest to `value`, with ties to even.

        A value that is too large overflows to infinity, or to NaN if the format has no infinity. If
        it has neither, the result is the code of the largest finite value.

        Raises:
            UserError: If the value is NaN and the format has no NaN.
        """
        k, m = self.exponent_bits, self.mantissa_bits
        sign = int(math.copysign(1, value) < 0) if self.sign_bits else 0
        if math.isnan(value):
            if self.specials == "none":
                raise UserError(f"{self.name} has no NaN")
            return 2 ** (k + m) if self.specials == "minus zero is nan" else 2 ** (k + m) - 1
        magnitude = abs(value) if self.sign_bits else max(value, 0.0)
        if math.isinf(magnitude):
            code = self.max_code + 1
        else:
            exponent = self.exponent_of(magnitude)
            steps = round(math.ldexp(magnitude, m - exponent))  # Python rounds ties to even
            # Codes have the order of the values, so a carry out of the mantissa is right.
            code = (exponent - self.min_exponent << m) + steps - (not self.has_subnormals)
            code = max(code, 0)
        if code > self.max_code:
            if self.specials == "none":
                code = self.max_code
            elif self.specials == "ieee":
                code = self.max_code + 1
            else:
                return self.encode(math.nan)
        if code == 0 and self.specials == "minus zero is nan":
            return 0
        return sign << (k + m) | code

    def exponent_of(self, value: float) -> int:
        """Return the exponent of the largest power of two that is at most |value|.

        For a subnormal, the result is the exponent of the smallest normal value.
        """
        return max(math.frexp(value)[1] - 1, self.min_exponent) if value else self.min_exponent

    def positive_values(self) -> list[float]:
        """Return all positive finite values in increasing order.

        This works for formats with up to 16 bits.
        """
        return [self.decode(code) for code in range(int(self.has_subnormals), self.max_code + 1)]


FP64 = FloatFormat("fp64", 11, 52)
FP32 = FloatFormat("fp32", 8, 23)
TF32 = FloatFormat("TF32", 8, 10, stored_bits=32)
FP16 = FloatFormat("fp16", 5, 10)
BF16 = FloatFormat("bf16", 8, 7)
E4M3 = FloatFormat("fp8 E4M3", 4, 3, specials="one nan")
E5M2 = FloatFormat("fp8 E5M2", 5, 2)
E4M3FNUZ = FloatFormat("fp8 E4M3FNUZ", 4, 3, specials="minus zero is nan")
E5M2FNUZ = FloatFormat("fp8 E5M2FNUZ", 5, 2, specials="minus zero is nan")
E8M0 = FloatFormat("fp8 E8M0", 8, 0, sign_bits=0, specials="one nan")
E2M1 = FloatFormat("fp4 E2M1", 2, 1, specials="none")

TORCH_FORMATS: dict[torch.dtype, FloatFormat] = {
    torch.float64: FP64,
    torch.float32: FP32,
    torch.float16: FP16,
    torch.bfloat16: BF16,
    torch.float8_e4m3fn: E4M3,
    torch.float8_e5m2: E5M2,
    torch.float8_e4m3fnuz: E4M3FNUZ,
    torch.float8_e5m2fnuz: E5M2FNUZ,
    torch.float8_e8m0fnu: E8M0,
}


@dataclass(frozen=True)
class IntFormat:
    """Signed integer format of any width, in two's complement."""

    name: str
    bits: int

    @property
    def bytes(self) -> float:
        """The bytes per packed value, for example 0.5 for int4."""
        return self.bits / 8

    @property
    def min(self) -> int:
        """The lowest value, -2^(bits - 1)."""
        return -(2 ** (self.bits - 1))

    @property
    def max(self) -> int:
        """The largest value, 2^(bits - 1) - 1."""
        return 2 ** (self.bits - 1) - 1


INT8 = IntFormat("int8", 8)
INT4 = IntFormat("int4", 4)


def scalar_float_dtypes() -> dict[str, torch.dtype]:
    """Return the floating-point dtypes of torch by name.

    Complex dtypes are omitted, and so are packed dtypes such as `float4_e2m1fn_x2`.
    """
    found = {d for d in vars(torch).values() if isinstance(d, torch.dtype) and d.is_floating_point}
    names = {str(dtype).removeprefix("torch."): dtype for dtype in found}
    return {name: names[name] for name in sorted(names) if not name.endswith("_x2")}


def codes_of(values: Tensor) -> list[int]:
    """Return the raw bits of each element as a non-negative integer. Any dtype is supported."""
    raw = values.detach().cpu().contiguous().flatten().view(torch.uint8)
    data, width = bytes(raw.tolist()), values.element_size()
    return [
        int.from_bytes(data[i : i + width], "little")  # as on every platform that torch supports
        for i in range(0, len(data), width)
    ]
