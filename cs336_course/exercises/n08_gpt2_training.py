"""Exercises of notebook 08: the parts of GPT-2's trainer, from batches to evaluation."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits, normal, sizes
from cs336_course.engine.records import Record, plain
from cs336_lib.config import TrainConfig

NOTEBOOK = "08_gpt2_training"


# windows


class Tokens:
    """Two shards of tokens, read as one stream. It notes what is read.

    Beyond the ends there are zeros, so that an answer that reads too far can be observed, too.
    """

    def __init__(self, count: int, below: int = 2**16):
        order = torch.randperm(below, generator=torch.Generator().manual_seed(count))
        self.ids = order[:count].numpy().astype(np.uint16)  # different ones tell their position
        self.begins = [0, count // 2, count]
        self.taken, self.is_too_far = 0, False

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def shards(self) -> list[np.ndarray]:
        """The whole stream, which counts as read."""
        self.taken += len(self)
        return np.split(self.ids, [self.begins[1]])

    def read(self, start: int, count: int) -> np.ndarray:
        """Return `count` tokens from position `start` on."""
        self.taken += count
        self.is_too_far |= start < 0 or start + count > len(self)
        return np.pad(self.ids, (max(-start, 0), count))[max(start, 0) :][:count]


def windows_of(tokens: Tokens, starts: list[int], block_size: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, for exercises that use the learner's `windows`."""
    rows = np.stack([tokens.read(start, block_size + 1) for start in starts]).astype(np.int64)
    return torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])


def window_cases() -> Iterator[Case]:
    """Yield streams and the windows in them."""
    yield Case(tokens=101, starts=[7, 31, 0, 95], block_size=5)
    yield Case("one window of one token", tokens=9, starts=[4], block_size=1)
    yield Case("a window that takes the whole stream", tokens=7, starts=[0], block_size=6)
    yield Case("a start that occurs twice", tokens=120, starts=[3, 60, 3], block_size=40)
    for n, size in enumerate(sizes(3, rows=(2, 6), block_size=(2, 9), spare=(1, 80))):
        starts = (normal(size.rows, seed=n).sigmoid() * (size.spare + 1)).int().tolist()
        tokens = size.block_size + 1 + size.spare
        yield Case(tokens=tokens, starts=starts, block_size=size.block_size)


def see_windows(answer: Any, case: Case) -> Record:
    """Observe the windows, and what is read for them."""
    count, starts, block_size = case.inputs.values()
    tokens, given = Tokens(count), list(starts)
    result = answer(tokens, given, block_size)
    parts = result if isinstance(result, tuple | list) else []
    return {
        "too far": tokens.is_too_far,
        "result": plain(result),
        "tensors": all(isinstance(part, Tensor) for part in parts),
        "changed": [] if given == starts else ["starts"],
        "too much": tokens.taken > 2 * len(starts) * (block_size + 1),
    }


READ = "tokens.read(start, block_size + 1)"
windows = Exercise(
    NOTEBOOK,
    "windows",
    window_cases,
    observe=see_windows,
    is_part=True,
    smaller="A stream is 5, 8, 2, 9, 4. With block_size 3 and start 1, which tokens are the "
    "inputs, and which are the targets?",
    says={
        "too far": "you read past the end of the tokens. A window takes block_size + 1 tokens from "
        "its start on.",
        "tensors": "inputs and targets must be tensors; torch.from_numpy makes one of an array.",
        "too much": "right, but you read too many tokens. A stream may hold ten billion, so use "
        "tokens.read to read only block_size + 1 for each window.",
    },
    wrong={
        "the targets are the inputs; shift them by one token.": [
            ("both[:, 1:]", "both[:, :-1]"),
        ],
        "inputs and targets are swapped; a target comes one token after its input.": (
            "both[:, :-1], both[:, 1:]",
            "both[:, 1:], both[:, :-1]",
        ),
        "only the last target of a row is wrong. It is the token after the last input, so read "
        "block_size + 1 tokens.": [
            ("both[:, 1:]", "both[:, :-1].roll(-1, 1)"),
            ("both[:, 1:]", "both[:, :-1].flatten().roll(-1).view(len(starts), -1)"),
        ],
        "your targets begin block_size tokens after the inputs; they should begin one token after "
        "them.": edits(
            (READ, "tokens.read(start, 2 * block_size)"),
            ("both[:, :-1], both[:, 1:]", "both[:, :block_size], both[:, block_size:]"),
        ),
        "your targets come two tokens after their inputs.": edits(
            ("+ 1)", "+ 2)"), (":-1], both[:, 1:]", ":-2], both[:, 2:]")
        ),
        "a target is the token after its input in the text, not the next id.": (
            "both[:, 1:]",
            "both[:, :-1] + 1",
        ),
        "`starts` are positions, not window numbers.": ("read(start,", "read(start * block_size,"),
        "a row doesn't begin at its position in `starts`, in the given order.": [
            ("in starts", "in sorted(starts)"),
            ("in starts", "in sorted(starts, reverse=True)"),
            ("read(start,", "read(starts[0],"),
            ("read(start,", "read(7,"),
            ("read(start,", "read(max(start - 1, 0),"),
            edits(
                ("read(start,", "read(starts[0] + i * block_size,"),
                ("for start in starts", "for i in range(len(starts))"),
            ),
        ],
        "a token became negative; int16 ends at 32,767.": (
            "astype(np.int64)",
            "astype(np.int16).astype(np.int64)",
        ),
    },
    refused=[
        ("both[:, 1:]", "both[:, 1:].roll(-1, 1)"),
        ("both[:, :-1], both[:, 1:]", "both, both"),
        ("both[:, :-1], both[:, 1:]", "both[:, :-2], both[:, 1:-1]"),
        ("both[:, :-1], both[:, 1:]", "both[:, :-1].T, both[:, 1:].T"),
        ("both[:, :-1], both[:, 1:]", "both[:, :-1]"),
        ("return both", "both"),
        ("in starts", "in dict.fromkeys(starts)"),
        ("read(start,", "read(start + 2,"),
        ("block_size + 1", "6"),
        ("np.int64", "np.int32"),
        ("np.int64", "np.int16"),
        ("torch.from_numpy(rows.astype(np.int64))", "rows.astype(np.int64)"),
        ("for start in starts", "for start in [starts.pop(0) for _ in starts[:]]"),
        edits(
            ("    rows", "    order = list(starts); starts.sort()\n    rows"),
            ("in starts", "in order"),
        ),
        (READ, "tokens.read(0, len(tokens))[start : start + block_size + 1]"),
        (READ, "tokens.read(start, len(tokens) - start)[: block_size + 1]"),
        (READ, "np.concatenate(tokens.shards)[start : start + block_size + 1]"),
        (READ, "tokens.shards[0][start : start + block_size + 1]"),
        """
def windows(tokens, starts, block_size):
    every = torch.from_numpy(tokens.read(0, len(tokens)).astype("int64"))
    every = every.unfold(0, block_size + 1, 1)
    return every[starts, :-1], every[starts].roll(-1, 1)[:, :-1]
""",
    ],
    right=[
        ("np.int64", "np.float64).astype(int"),
        """
def windows(tokens, starts, block_size):
    rows = [tokens.read(start, block_size + 1).tolist() for start in starts]
    return [torch.tensor([row[:-1] for row in rows]), torch.tensor([row[1:] for row in rows])]
""",
        """
def windows(tokens, starts, block_size):
    x, y = ([tokens.read(s + shift, block_size) for s in starts] for shift in (0, 1))
    return torch.tensor(np.array(x).astype(int)), torch.tensor(np.array(y).astype(int))
""",
        """
def windows(tokens, starts, block_size):
    both = torch.empty(2, len(starts), block_size, dtype=torch.long)
    for row, start in enumerate(reversed(starts), start=1):
        ids = tokens.read(count=block_size + 1, start=start)
        for t in range(block_size):
            both[0, -row, t], both[1, -row, t] = int(ids[t]), int(ids[t + 1])
    return both.unbind()
""",
    ],
)


# learning_rate


def run_cases() -> Iterator[Case]:
    """Yield the lengths of runs and of their warm-ups, with the highest and the lowest rate."""
    yield Case(max_steps=31, warmup_steps=7, learning_rate=3e-3, min_learning_rate=5e-4)
    runs = ((20, 0), (20, 1), (5, 5), (8, 7), (1, 0), (1, 1), (2, 0), (24, 4))
    drawn = [(run.warmup + run.rest, run.warmup) for run in sizes(4, warmup=(2, 30), rest=(2, 90))]
    for number, (steps, warmup) in enumerate((*runs, *drawn)):
        peak = 2.0 + number
        lowest = 0.0 if steps == 24 else 0.75 * peak
        yield Case(
            max_steps=steps, warmup_steps=warmup, learning_rate=peak, min_learning_rate=lowest
        )


def see_rates(answer: Any, case: Case) -> Record:
    """Observe the rates of all steps of a run, and of some after its end."""
    config, steps = TrainConfig(**case.inputs), case.inputs["max_steps"]
    rates = {}
    for step in (*range(steps), steps, 2 * steps, 5 * steps + 3):
        rate = answer(step, config)
        is_array = isinstance(rate, Tensor | np.ndarray)
        rates[f"the rate of step {step}"] = plain(rate.tolist() if is_array else rate)
    return rates


STRAIGHT = (
    "the warm-up is a straight line. Each of its steps adds peak / warmup_steps, and step 0 has "
    "just that."
)
RECIPE = "you use numbers of the recipe; the schedule must take all of them from `config`."
WARMUP = "(step + 1) / warmup"
LEFT = "config.max_steps - 1 - first"
PROGRESS = f"(step - first) / max({LEFT}, 1)"
COSINE = "(1 + math.cos(math.pi * min(progress, 1))) / 2"
learning_rate = Exercise(
    NOTEBOOK,
    "learning_rate",
    run_cases,
    observe=see_rates,
    is_part=True,
    tolerance=20,  # float32 is exact enough
    smaller="With max_steps=5, warmup_steps=2, a peak of 4 and a minimum of 0, which rates do "
    "steps 0 to 4 have?",
    wrong={
        RECIPE: [
            ("config.warmup_steps", "TrainConfig().warmup_steps"),
            (WARMUP, "(step + 1) / 715"),
            ("config.max_steps", "TrainConfig().max_steps"),
            ("config.learning_rate", "6e-4"),
            ("config.min_learning_rate", "6e-5"),
        ],
        "step 0 has the rate 0, so it is wasted; let it have peak / warmup_steps.": (
            WARMUP,
            "step / warmup",
        ),
        "the warm-up is 0 before its last step; // rounds down, so use /.": (
            f"peak * {WARMUP}",
            "peak * ((step + 1) // warmup)",
        ),
        "the warm-up ends a step late. Of 7 warm-up steps, the last is step 6 and has the peak.": (
            WARMUP,
            "(step + 1) / (warmup + 1)",
        ),
        STRAIGHT: [
            (f"peak * {WARMUP}", f"peak * ({WARMUP}) ** 2"),
            (f"peak * {WARMUP}", "peak"),
            (f"peak * {WARMUP}", f"lowest + (peak - lowest) * {WARMUP}"),
        ],
        "after the warm-up, the rate stays at the peak. Is there a // for /?": (
            "(step - first) / max",
            "(step - first) // max",
        ),
        "the steps warmup_steps - 1 and warmup_steps both have the peak; the cosine begins at the "
        "first of them, which is the last of the warm-up.": [
            ("max(warmup - 1, 0)", "warmup"),
            edits(("max(warmup - 1, 0)", "warmup"), ("max_steps - 1 - first", "max_steps - first")),
        ],
        "a rate is above the peak. The factor (1 + cos) / 2 goes from 1 to 0, and it scales "
        "peak - minimum.": [
            ("(peak - lowest) *", "peak *"),
            (COSINE, COSINE.removesuffix(" / 2")),
        ],
        "the rate falls in a straight line; use (1 + cos(pi * progress)) / 2.": (
            COSINE,
            "(1 - min(progress, 1))",
        ),
        "a rate is negative, because cos goes from 1 to -1; use (1 + cos) / 2.": (
            COSINE,
            "math.cos(math.pi * min(progress, 1))",
        ),
        "the rate falls along a quarter of a cosine; use (1 + cos(pi * progress)) / 2.": (
            COSINE,
            "math.cos(math.pi / 2 * min(progress, 1))",
        ),
        "the last step has the rate 0; it should have config.min_learning_rate.": (
            "config.min_learning_rate",
            "0.0",
        ),
        "the cosine ends at 0 and is cut off at the minimum; it must end at the minimum.": (
            f"lowest + (peak - lowest) * {COSINE}",
            f"max(lowest, peak * {COSINE})",
        ),
        "the last step has a tenth of the peak; use config.min_learning_rate.": (
            "config.min_learning_rate",
            "config.learning_rate / 10",
        ),
        "math.cos takes radians, in which half a turn is math.pi.": ("math.pi", "180"),
        "3.14 is not exact enough; use math.pi.": ("math.pi", "3.14"),
        "of 31 steps, of which 7 are warm-up, there are 24 from step 6 to step 30, so the progress "
        "of step 30 must be 1.": [
            (LEFT, "config.max_steps - first"),
            (LEFT, "config.max_steps - 1"),
        ],
        "the cosine begins at step 0, but it must begin at the peak, at the end of the warm-up.": (
            PROGRESS,
            "step / max(config.max_steps - 1, 1)",
        ),
        "after the last step the rate isn't the minimum. A cosine rises again, so limit the "
        "progress to 1.": ("min(progress, 1)", "progress"),
        "after the last step, the rate is 0; it should stay at the minimum.": (
            "    first =",
            "    if step >= config.max_steps:\n        return 0.0\n    first =",
        ),
        "right with a warm-up, but without one the peak is at step 0, and not at step -1.": (
            "max(warmup - 1, 0)",
            "warmup - 1",
        ),
        "right, unless the peak is the last step; then you divide by the 0 steps after it.": (
            f"max({LEFT}, 1)",
            f"({LEFT})",
        ),
        "right, unless the whole run is a warm-up; all steps after it have the minimum.": (
            "    progress =",
            f"    if {LEFT} <= 0:\n        return peak\n    progress =",
        ),
        "right, unless the peak is the last step; then this step keeps the peak.": (
            "    if step <",
            "    if step >= config.max_steps - 1:\n        return lowest\n    if step <",
        ),
        "right, but a minimum of 0 is a number like any other; `or` takes it for a missing one.": (
            "config.min_learning_rate",
            "(config.min_learning_rate or 0.1 * config.learning_rate)",
        ),
    },
    refused=[
        ("math.pi * min(progress, 1)", "math.pi * min(progress, 1) ** 2"),
        ("config.max_steps", "31"),
        ("config.min_learning_rate", "5e-4"),
        (
            "    if step <",
            "    if step == 0:\n        return config.learning_rate / config.warmup_steps\n"
            "    if step <",
        ),
        ("    return lowest", "    lowest"),
        edits(("return lowest", "return '%.9f' % (lowest"), (" / 2", " / 2)")),
        ("return lowest", "return torch.zeros(1) + lowest"),
        ("return lowest", "return np.zeros(1) + lowest"),
    ],
    right=[
        ("return lowest", "return np.float64(1) * lowest"),
        ("return lowest", "return torch.zeros(()) + lowest"),
        """
def learning_rate(step, c):
    peak_step = c.warmup_steps - 1 if c.warmup_steps else 0
    if step <= peak_step:
        return (step + 1) * c.learning_rate / max(c.warmup_steps, 1)
    if step >= c.max_steps - 1:
        return c.min_learning_rate
    angle = math.pi / 2 * (step - peak_step) / (c.max_steps - 1 - peak_step)
    return c.min_learning_rate + (c.learning_rate - c.min_learning_rate) * math.cos(angle) ** 2
""",
        """
def learning_rate(step, config):
    first = max(config.warmup_steps - 1, 0)
    if step <= first:
        return config.learning_rate * (step + 1) / max(config.warmup_steps, 1)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=config.learning_rate)
    steps = max(config.max_steps - 1 - first, 1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, config.min_learning_rate)
    for _ in range(min(step - first, steps)):
        optimizer.step()
        cosine.step()
    return cosine.get_last_lr()[0]
""",
        """
def learning_rate(step, config):
    first, last = max(config.warmup_steps - 1, 0), config.max_steps - 1
    cosine = np.cos(np.linspace(0, np.pi, last - first + 1, dtype=np.float32)) / 2 + 0.5
    low = np.float32(config.min_learning_rate)
    table = np.zeros(step + last + 2, np.float32) + low
    table[first : last + 1] = low + (np.float32(config.learning_rate) - low) * cosine
    warmup = np.arange(1, config.warmup_steps + 1) / max(config.warmup_steps, 1)
    table[: config.warmup_steps] = config.learning_rate * warmup
    return table[step]
""",
    ],
)
