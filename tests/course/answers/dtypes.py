"""Answers to the exercises of page 01."""

import math

import numpy as np


def bf16_by_cases(code):
    """Compare what is cut off with a half."""
    upper, cut_off = divmod(code, 2**16)
    is_up = cut_off > 0x8000 or (cut_off == 0x8000 and upper % 2 == 1)
    return upper + int(is_up)


def bf16_by_distance(code):
    """Choose the nearer of two neighbors."""
    below = code >> 16
    return min((below, below + 1), key=lambda other: (abs((other << 16) - code), other & 1))


def bf16_in_numpy(code):
    """Compute with unsigned integers of 32 bits."""
    word = np.uint32(code)
    return (word + np.uint32(0x7FFF) + (word >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)


RIGHT = {
    "to_bf16": [bf16_by_cases, bf16_by_distance, bf16_in_numpy],
    "where_it_ends": [
        lambda f, n: (2 * math.floor(f * 2**24 / n) + 1) * n / 2**25,
        lambda f, n: np.float32((math.ceil(f / (n * 2**-24)) - 0.5) * n * 2**-24),
    ],
}
REFUSED = {
    "to_bf16": [
        lambda code: (code >> 16) + (code & 0xFFFF > 0x7FF0),
        lambda code: round(code / 2**16),
        lambda code: round(code * 2.0**-16),
        lambda code: round((code & 0xFFFFFFFF) / 65536),
        "def to_bf16(code):\n    return bits.BF16.encode(bits.FP32.decode(code))\n",
        "def to_bf16(code):\n"
        "    number = torch.tensor([code]).to(torch.uint32).view(torch.float32)\n"
        "    return number.bfloat16().view(torch.uint16).item()\n",
    ],
    "where_it_ends": [lambda f, n: 5 / 64, lambda f, n: str(5 / 64), lambda f, n: 1 / 64],
}
