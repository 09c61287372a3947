"""Checks for notebook 08: what a run's figures mean."""

import math
from collections.abc import Callable

from cs336_lib.classroom.checks.report import exercise, expect
from cs336_lib.config import TrainConfig


@exercise
def bits_per_character(answer: Callable[[float], float]) -> None:
    """A loss in nats per character is loss / ln 2 bits per character."""
    got = answer(math.log(2))
    expect(
        not math.isclose(got, math.log(2) ** 2),
        "you multiplied by ln 2; a nat is more than a bit, so there are more bits than nats",
    )
    expect(
        not math.isclose(got, 2.0),
        "2 is exp(loss), the perplexity: how many equally likely characters, not how many bits",
    )
    expect(not math.isclose(got, math.log(2)), "that is still nats; how many bits are in a nat?")
    expect(math.isclose(got, 1.0), f"a loss of ln 2 is exactly one bit, not {got:.4f}")
    expect(math.isclose(answer(4 * math.log(2)), 4.0), "right for ln 2, but wrong for 4 ln 2")


@exercise
def epochs_seen(answer: Callable[[TrainConfig, int], float]) -> None:
    """Tokens read over tokens there are: max_steps * batch_tokens / tokens."""
    config = TrainConfig(max_steps=1000, batch_tokens=512, block_size=64, warmup_steps=0)
    got = answer(config, 1_024_000)
    expect(
        not math.isclose(got, 1000 * 512 * 64 / 1_024_000),
        "batch_tokens are tokens already; you multiplied by block_size as well",
    )
    expect(
        not math.isclose(got, 1000 / 1_024_000),
        "a step reads batch_tokens tokens, not one",
    )
    expect(not math.isclose(got, 2.0), "upside down: tokens read over tokens there are")
    expect(math.isclose(got, 0.5), f"1000 steps of 512 tokens out of 1,024,000 is 0.5, not {got}")


@exercise
def sharpened(answer: Callable[[list[float], float], list[float]]) -> None:
    """softmax(log p / T), which is p^(1/T) normalised."""
    p, half = [0.5, 0.25, 0.25], answer([0.5, 0.25, 0.25], 0.5)
    flat = [math.sqrt(x) / sum(map(math.sqrt, p)) for x in p]
    expect(
        not all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(half, flat, strict=True)),
        "a temperature of 0.5 should make the likeliest likelier: p ** (1 / T), not p ** T",
    )
    expect(math.isclose(sum(half), 1.0, abs_tol=1e-6), f"they add up to {sum(half):.3f}, not to 1")
    wanted = [x**2 / sum(y**2 for y in p) for x in p]
    expect(
        all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(half, wanted, strict=True)),
        f"at T = 0.5 expected {[round(x, 3) for x in wanted]}, got {[round(x, 3) for x in half]}",
    )
