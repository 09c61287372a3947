"""Exercises of page 01: where fp16's rounding pushes a letter, and the scale that a loss needs."""

from collections.abc import Iterator

from cs336_course.engine import Case, Exercise

NOTEBOOK = "01_dtypes"


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
        "that is a multiple of half a step, and only the odd ones are ties.": (
            lambda f, n: round(2 * f / step(n)) / 2 * step(n)
        ),
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
        "that is above 1, so it's no probability. Your step is upside down: a gradient is a "
        "multiple of 2^-24, and a mistake is n times as large.": lambda f, n: (
            (f // (2**24 / n) + 0.5) * 2**24 / n
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


# smallest_scale


def scaled_runs() -> Iterator[Case]:
    """Yield sizes of batches and vocabularies, and the largest gradient of a run."""
    yield Case("", n=2**19, vocab_size=62, largest=0.01)
    yield Case("GPT-2's batch and vocabulary", n=2**19, vocab_size=50257, largest=0.01)
    yield Case("a large gradient", n=2**19, vocab_size=50257, largest=30.0)
    yield Case("a threshold at exactly a quarter", n=2**19, vocab_size=64, largest=0.01)
    yield Case("a small batch", n=2**12, vocab_size=62, largest=0.01)
    yield Case("a gradient that becomes 65,504", n=2**19, vocab_size=128, largest=8188.0)
    yield Case("a gradient that becomes 65,520", n=2**19, vocab_size=128, largest=8190.0)
    yield Case("a small batch", n=2**12, vocab_size=62, largest=70_000.0)
    for power, vocab_size in ((22, 128_256), (17, 32_000), (20, 100), (15, 200_000)):
        yield Case("", n=2**power, vocab_size=vocab_size, largest=0.5)


smallest_scale = Exercise(
    NOTEBOOK,
    "smallest_scale",
    scaled_runs,
    smaller="With n = 2^19 and 64 letters, what is the threshold, what is a quarter of 1/V, and "
    "how many times as large is the threshold?",
    wrong={
        "at that scale the threshold is more than a quarter of 1/V.": [
            ("1 / (4 * vocab_size)", "1 / vocab_size"),
            ("1 / (4 * vocab_size)", "1 / (2 * vocab_size)"),
        ],
        "your threshold is a whole step. A mistake dies up to half a step, n * 2^-25.": (
            ("2**-25", "2**-24")
        ),
        "a threshold at exactly a quarter of 1/V is low enough.": ("> 1 / (4", ">= 1 / (4"),
        "at that scale the largest gradient becomes infinite. Return None then.": [
            ("scale if scale * largest < 65520 else None", "scale"),
            ("scale * largest < 65520", "largest < 65520"),
        ],
        "fp16 rounds only from 65,520 on to infinity, and everything below it to a number.": (
            ("< 65520", "< 65504")
        ),
        "fp16 rounds 65,520 to infinity.": ("< 65520", "<= 65520"),
        "the scale is a power of two, which changes no bit of a mantissa.": (
            lambda n, vocab_size, largest: max(1, n * 2**-23 * vocab_size)
        ),
        "no scale is needed here, so the scale is 1.": ("scale = 1", "scale = 2.0**-20"),
    },
)
