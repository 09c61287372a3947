"""The exercises of notebook 04: how many texts to write at once, and which kernel to rewrite."""

import math
import random
from collections.abc import Iterator

from cs336_course.engine import Case, Exercise
from cs336_course.pages.compute.story import A100, LLMC_STEP, Kernel

__all__ = ["math"]  # a printed solution uses it
NOTEBOOK = "04_compute"

H100 = {"peak": 989.5e12, "bandwidth": 3.35e12}


def servers() -> Iterator[Case]:
    """Yield a model, the bytes of a text's keys and values, a deadline and a chip."""
    yield Case("20 ms", weights=8e9, cache=0.26e9, seconds=0.02, **H100)
    yield Case("a small cache", weights=8e9, cache=1e6, seconds=0.02, **H100)
    yield Case("the weights alone come too late", weights=8e9, cache=0.26e9, seconds=4e-3, **H100)
    chip = {"peak": 1e15, "bandwidth": 1e12}
    yield Case("an exact number of texts", weights=1e9, cache=1e9, seconds=0.008, **chip)
    drawn = random.Random(0)
    for _ in range(8):
        weights, cache = drawn.uniform(1e9, 3e10), 10 ** drawn.uniform(6, 9.3)
        chip = {"peak": drawn.uniform(1e14, 1e15), "bandwidth": drawn.uniform(1e12, 8e12)}
        yield Case("", weights=weights, cache=cache, seconds=drawn.uniform(0.01, 0.2), **chip)


BY_BYTES = "(seconds * bandwidth - 2 * weights) / cache"
BY_FLOPS = "seconds * peak / (2 * weights)"

texts_at_once = Exercise(
    NOTEBOOK,
    "texts_at_once",
    servers,
    smaller="Weights of 10 GB and caches of 1 GB a text come from a memory of 100 GB/s. How long "
    "does a step for 5 texts fetch?",
    wrong={
        "you fetch the weights once for each text. All texts of a step share them.": (
            BY_BYTES,
            "seconds * bandwidth / (2 * weights + cache)",
        ),
        "a step fetches the weights, too, before it can multiply.": (" - 2 * weights", ""),
        "each weight has 2 bytes.": ("- 2 * weights", "- weights"),
        "a text does 2 FLOPs per weight, one to multiply and one to add. 6 are for training.": [
            (BY_FLOPS, "seconds * peak / weights"),
            (BY_FLOPS, "seconds * peak / (6 * weights)"),
        ],
        "at the deadline, the chip is still computing.": ("by_flops, by_", "by_bytes, by_"),
        "the ridge ignores deadline and caches.": ("min(by_flops, by_bytes)", "peak / bandwidth"),
        "with that many texts the chip is still fetching at the deadline.": [
            ("by_flops, by_bytes", "by_flops, by_flops"),
            ("min(by_flops", "max(by_flops"),
        ],
        "that isn't a whole number of texts, or it's one too many; round down.": [
            ("math.floor", "round"),
            ("math.floor", "math.ceil"),
            ("math.floor", ""),
        ],
        "computing and fetching overlap, so the later clock counts and not their sum.": (
            "min(by_flops, by_bytes)",
            "(seconds - 2 * weights / bandwidth) / (2 * weights / peak + cache / bandwidth)",
        ),
        "return 0 if the deadline is too short for one text.": ("max(0, ", "("),
    },
)


def steps() -> Iterator[Case]:
    """Yield the recorded step of llm.c, and made ones."""
    yield Case("the recorded step", kernels=LLMC_STEP, bandwidth=A100.bandwidth)
    drawn = random.Random(0)
    for number in range(6):
        kernels = []
        for name in "abcdefg":
            peak = drawn.choice((312e12, 19.5e12))
            computing, moving = (10 ** drawn.uniform(-4, -2) for _ in range(2))
            seconds = drawn.uniform(0.5, 2.5) * max(computing, moving)  # a cache can help
            kernels.append(Kernel(name, computing * peak, moving * 2e12, peak, seconds))
        yield Case(f"made step {number}", kernels=kernels, bandwidth=2e12)


ROOFLINE = "max(kernel.flops / kernel.peak, kernel.bytes / bandwidth)"
LOST = f"kernel.seconds - {ROOFLINE}"

by_loss = Exercise(
    NOTEBOOK,
    "by_loss",
    steps,
    smaller="Kernel A takes 10 ms and needs 9. Kernel B takes 4 ms and needs 1. Where can a "
    "rewrite win more?",
    wrong={
        "that is the order of the time. A long kernel may be at its roofline already.": (
            (LOST, "kernel.seconds")
        ),
        "that is the order of the ratio of time to roofline. A large ratio on a short kernel wins "
        "little; order by the seconds.": [
            (LOST, LOST.replace(" - ", " / ")),
            (LOST, f"1 - {ROOFLINE} / kernel.seconds"),
        ],
        "a kernel computes and fetches at once, so the longer of its two times counts.": [
            (ROOFLINE, "(kernel.flops / kernel.peak + kernel.bytes / bandwidth)"),
            ("max(", "min("),
        ],
        "your roofline has no bytes, and most kernels wait for them.": (
            (ROOFLINE, "kernel.flops / kernel.peak")
        ),
        "your roofline has no FLOPs, and matmuls wait for them.": (
            (ROOFLINE, "kernel.bytes / bandwidth")
        ),
        "`kernel.peak` is that of the units which do its work; you take one for all.": (
            ("kernel.peak", "312e12")
        ),
        "the kernel that loses the most comes last; turn the order round.": (", reverse=True", ""),
    },
)
