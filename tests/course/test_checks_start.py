"""The check of notebook 00: untouched stub, right answers, and each mistake with its diagnosis."""

import math
from fractions import Fraction

import numpy as np
import torch
from verdicts import assert_verdicts

from cs336_course.checks import start

RIGHT = [
    lambda n, bits: n * bits / 8,
    lambda n, bits: bits / 8 * n,
    lambda n, bits: 0.125 * n * bits,
    lambda n, bits: np.float64(n) * bits / 8,
    lambda n, bits: Fraction(n * bits, 8),
    lambda n, bits: torch.tensor(n, dtype=torch.float64) * bits / 8,
    lambda n, bits: n * bits // 8 if n * bits % 8 == 0 else n * bits / 8,
    lambda n, bits: n * bits // 8 + n * bits % 8 / 8,
]


def test_bytes_of_passes_right_answers():
    assert_verdicts(start.bytes_of, [(answer, "passed") for answer in RIGHT])


def test_bytes_of():
    cases = {
        "that is bits": lambda n, bits: n * bits,
        "you multiplied by 8": lambda n, bits: n * bits * 8,
        "did you use //?": lambda n, bits: n * bits // 8,
        "did you use // on bits alone?": lambda n, bits: n * (bits // 8),
        "two numbers of 4 bits fit into one byte": lambda n, bits: n * math.ceil(bits / 8),
        "rounded up": lambda n, bits: math.ceil(n * bits / 8),
        "not kilobytes": lambda n, bits: n * bits / 8 / 1000,
        "not kibibytes": lambda n, bits: n * bits / 8 / 1024,
        "does n appear": lambda n, bits: bits / 8,
        "does bits appear": lambda n, bits: n * 4,
        "the number is off for 1 number of 32 bits each": lambda n, bits: 7,
        "the number is off for 5 numbers of 12 bits each": lambda n, bits: (
            n * 10 / 8 if bits == 12 else n * bits / 8
        ),
        "the number is off for 124,439,808 numbers of 16 bits each": lambda n, bits: (
            n / 8 * min(bits, 15) if n > 1000 else n * bits / 8
        ),
        "24 bits of float32": lambda n, bits: (torch.tensor(float(n)) * bits / 8).item(),
        "result has only the 24 bits": lambda n, bits: torch.tensor(n * bits) / 8,
        "0 numbers take 0 bytes": lambda n, bits: max(1, n * bits / 8),
        "takes 1 bit": lambda n, bits: n / 8,
        "takes 2 bytes": lambda n, bits: n * 2,
        "is rounded, but": lambda n, bits: round(n * bits / 8, 1),
        "doesn't fit into an int32": lambda n, bits: float(np.int64(n * bits).astype(np.int32)) / 8,
        "`return` missing": lambda n, bits: None,
        "returns None for 3 numbers of 4 bits each": lambda n, bits: (
            n * 4.0 if bits == 32 else None
        ),
        "not str": lambda n, bits: f"{n * bits / 8} bytes",
        "your code raised ZeroDivisionError": lambda n, bits: n / 0,
        "not attempted yet": ...,
    }
    assert_verdicts(start.bytes_of, cases)
