"""Exercises of notebook 08: the parts of GPT-2's trainer, from its batches to its loop."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits, normal, sizes
from cs336_course.engine.observe import is_learners
from cs336_course.engine.records import Record, plain
from cs336_course.engine.state import seeded
from cs336_course.engine.training import (
    Autocast,
    Passes,
    activations,
    elsewhere,
    flat_gradient,
    flat_weights,
    one_number,
    watched_forward,
)
from cs336_lib.config import GPTConfig, TrainConfig
from cs336_lib.model import GPT

NOTEBOOK = "09_gpt2_training"
ELSEWHERE = "a model on another device"


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
        self.is_too_far |= bool(start < 0 or start + count > len(self))
        beyond = max(start + count - len(self), 0)
        return np.pad(self.ids, (max(-start, 0), beyond))[max(start, 0) :][:count]


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


# micro_batches


def reading_cases() -> Iterator[Case]:
    """Yield texts, the sizes of windows, micro-batches and steps, and the number of a step."""

    def case(what: str, *numbers: int) -> Case:
        names = ("tokens", "block_size", "micro_batch_size", "windows", "step")
        return Case(what, **dict(zip(names, numbers, strict=True)))

    yield case("", 200, 7, 3, 6, 0)
    yield case("a later step", 200, 7, 3, 6, 2)
    yield case("a step that reaches the end of the text", 200, 7, 3, 6, 4)
    yield case("a step after several passes over the text", 200, 7, 3, 6, 57)
    yield case("a step of one micro-batch", 120, 5, 4, 4, 3)
    yield case("tokens for exactly 21 windows", 148, 7, 1, 3, 6)
    yield case("a last window without its last target", 147, 7, 1, 3, 6)
    yield case("a text of two windows", 12, 5, 3, 6, 1)
    yield case("windows of one token", 12, 1, 2, 4, 2)
    for n, size in enumerate(sizes(3, tokens=(50, 190), block=(2, 8), micro=(1, 4), pieces=(1, 5))):
        windows = size.micro * size.pieces
        yield case("other sizes", size.tokens, size.block, size.micro, windows, 1 + 5 * n)


def see_reading(answer: Any, case: Case) -> Record:
    """Observe the micro-batches of a step, and how much is read before the first is used."""
    count, block_size, micro, number, step = case.inputs.values()
    config = TrainConfig(
        block_size=block_size,
        micro_batch_size=micro,
        batch_tokens=number * block_size,
        warmup_steps=0,
    )
    tokens = Tokens(count)
    pieces = iter(answer(tokens, step, config))
    first = next(pieces, None)
    taken = tokens.taken
    found = [first, *pieces] if first is not None else []
    places = np.argsort(tokens.ids)
    are_pairs = all(isinstance(one, tuple | list) and len(one) == 2 for one in found)
    starts = [
        [int(places[np.searchsorted(tokens.ids[places], row[0])]) for row in x.tolist()]
        if isinstance(x, Tensor) and x.dim() == 2
        else []
        for x, _ in (found if are_pairs else [])
    ]
    return {
        "too far": tokens.is_too_far,
        "pieces": [len(one) for one in starts],
        "starts": starts,
        "result": plain(found),
        "at once": taken > 2 * micro * (block_size + 1),
    }


ORDER = "range(step * batch, (step + 1) * batch, size)"
NUMBERS = "range(first, first + size)"
START = "n % available * config.block_size"
AVAILABLE = "(len(tokens) - 1) // config.block_size"
WHOLE = (
    "a step doesn't have all of its windows. It takes batch_tokens // block_size of them, in "
    "pieces of micro_batch_size."
)
ENDS = (
    "you read past the end of the text. After its last whole window, which also needs a target for "
    "its last token, comes its first window again."
)
micro_batches = Exercise(
    NOTEBOOK,
    "micro_batches",
    reading_cases,
    observe=see_reading,
    is_part=True,
    given={"windows": windows_of},
    smaller="A text has 11 tokens, block_size is 2 and a step takes 4 windows, two at a time. "
    "Where do the windows of steps 0 and 1 begin?",
    says={
        "too far": ENDS,
        "pieces": WHOLE,
        "starts": "these aren't the windows of this step. It reads on where the step before it "
        "ended, one window after the other.",
        "result": "each micro-batch must be what your `windows` returns, inputs and targets.",
        "at once": "right, but you read the whole step before you give away its first piece; yield "
        "each piece when it's asked for.",
    },
    wrong={
        "each step reads the same windows; step 1 goes on where step 0 ended.": [
            (ORDER, "range(0, batch, size)"),
        ],
        "step 1 begins only one window after step 0; a step takes "
        "batch_tokens // block_size windows.": [
            (ORDER, "range(step, step + batch, size)"),
        ],
        "step 1 begins one micro-batch after step 0; a step takes all of its micro-batches.": [
            (ORDER, "range(step * size, step * size + batch, size)"),
        ],
        "all micro-batches of a step are the same; each goes on where the last one ended.": [
            (NUMBERS, "range(step * batch, step * batch + size)"),
        ],
        "you give the first micro-batch of the step only.": [
            (ORDER, "range(step * batch, step * batch + 1, size)"),
        ],
        "your micro-batches hold the whole step; they should have micro_batch_size windows.": edits(
            (ORDER, "[step * batch]"), (NUMBERS, "range(first, first + batch)")
        ),
        "a step has batch_tokens tokens, so it has batch_tokens // block_size windows.": [
            ("config.batch_tokens // config.block_size", "config.batch_tokens"),
        ],
        "window n begins at position n * block_size.": [
            (START, "n % available"),
        ],
        "you leave out a token between two windows. The last target of a window is the first input "
        "of the next, so windows begin block_size apart.": edits(
            (START, "n % available * (config.block_size + 1)"),
            (AVAILABLE, "len(tokens) // (config.block_size + 1)"),
        ),
        ENDS: [
            (START, "n * config.block_size"),
            (AVAILABLE, "len(tokens) // config.block_size"),
            (START, "n * config.block_size % len(tokens)"),
        ],
        "after the end, the text must begin again with its first window, at position 0.": [
            (START, "n * config.block_size % (len(tokens) - config.block_size)"),
            (START, "n * config.block_size % (len(tokens) - 1)"),
            (START, "n % (available + 1) * config.block_size % (available * config.block_size)"),
        ],
        "the text's last windows are never read; begin again only after them.": [
            (AVAILABLE, "len(tokens) // config.block_size // batch * batch"),
            (AVAILABLE, "max((len(tokens) - 1) // config.block_size - 1, 1)"),
        ],
        "after the end, you repeat the last window; begin again with the first.": (
            "n % available",
            "min(n, available - 1)",
        ),
        "the file reads its text in order, so draw no random windows.": [
            (START, "(7 * n + 3) % available * config.block_size"),
            (START, "n * 2654435761 % available * config.block_size"),
        ],
        "your function returns None; is there a `yield`?": ("yield windows", "windows"),
        "you read the whole step before you give away its first piece; yield each piece when it's "
        "asked for.": edits(
            ("    for first", "    pieces = []\n    for first"),
            (
                "yield windows(tokens, starts, config.block_size)",
                "pieces.append(windows(tokens, starts, config.block_size))\n    return pieces",
            ),
        ),
    },
    refused=[
        ("config.micro_batch_size", "3"),
        ("config.block_size)", "7)"),
        ("yield windows(tokens, starts, config.block_size)", "yield starts"),
        (
            "yield windows(tokens, starts, config.block_size)",
            "yield windows(tokens, starts, config.block_size)[0]",
        ),
        (ORDER, "range(step * batch, (step + 1) * batch - size, size)"),
        (ORDER, "reversed(range(step * batch, (step + 1) * batch, size))"),
        (NUMBERS, "reversed(range(first, first + size))"),
    ],
    right=[
        """
def micro_batches(tokens, step, config):
    size, count = config.block_size, config.batch_tokens // config.block_size
    last = (len(tokens) - 1) // size * size
    position = step * count * size % last
    for _ in range(count // config.micro_batch_size):
        starts = []
        while len(starts) < config.micro_batch_size:
            starts.append(position)
            position = position + size if position + size < last else 0
        yield windows(tokens, starts, size)
""",
        """
def micro_batches(tokens, step, config):
    batch = config.batch_tokens // config.block_size
    numbers = np.arange(step * batch, (step + 1) * batch) % ((len(tokens) - 1) // config.block_size)
    rows = (config.block_size * numbers).reshape(-1, config.micro_batch_size)
    return (windows(tokens, row.tolist(), config.block_size) for row in rows)
""",
    ],
)


# learning_rate


def run_cases() -> Iterator[Case]:
    """Yield the lengths of runs and of their warm-ups, with the highest and the lowest rate."""
    yield Case(max_steps=6, warmup_steps=2, learning_rate=4.0, min_learning_rate=0.0)  # the page's
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
LOWEST = "        return lowest\n"
PROGRESS = f"(step - first) / max({LEFT}, 1)"
COSINE = "(1 + math.cos(math.pi * min(progress, 1))) / 2"
learning_rate = Exercise(
    NOTEBOOK,
    "learning_rate",
    run_cases,
    observe=see_rates,
    is_part=True,
    given={"math": math},
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
            edits(("max(warmup - 1, 0)", "warmup"), (LEFT, "config.max_steps - first")),
            edits(
                ("max(warmup - 1, 0)", "warmup"), (f"max({LEFT}, 1)", "(config.max_steps - first)")
            ),
            *(
                edits(
                    ("max(warmup - 1, 0)", "warmup"),
                    (f"max({LEFT}, 1)", "(config.max_steps - first)"),
                    ("    first =", f"    if step {after} config.max_steps:\n{LOWEST}    first ="),
                    ("min(progress, 1)", "progress"),
                )
                for after in (">=", ">")
            ),
            edits(
                ("max(warmup - 1, 0)", "warmup"),
                (f"max({LEFT}, 1)", "(config.max_steps - first)"),
                ("min(progress, 1)", "progress"),
            ),
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


# parameter_groups


def little_gpt(seed: int, device: str = "cpu", **changes: Any) -> GPT:
    """Make a GPT of odd sizes with large weights, so that the losses of windows differ."""
    shape = {"block_size": 7, "vocab_size": 23, "n_layer": 1, "n_head": 3, "n_embd": 12}
    with seeded(seed), torch.device(device), torch.no_grad():
        model = GPT(GPTConfig(**{**shape, **changes}))
        for p in model.parameters():
            p.mul_(6)
    return model


def model_cases() -> Iterator[Case]:
    """Yield shapes of models, and the decay of their matrices."""
    yield Case(weight_decay=0.3, n_layer=2)
    yield Case("another decay", weight_decay=0.25, n_layer=2)
    yield Case("a wpe of one row", weight_decay=0.125, n_layer=3, block_size=1)
    yield Case("a model that is one number wide", weight_decay=2.0, n_embd=1, n_head=1)
    yield Case("a larger model", weight_decay=0.5, n_layer=4, n_embd=48, vocab_size=301)


def see_groups(answer: Any, case: Case) -> Record:
    """Observe which parameters are in the groups, and with which decay."""
    weight_decay, *_ = case.inputs.values()
    model = little_gpt(0, **{k: v for k, v in case.inputs.items() if k != "weight_decay"})
    made = answer(model, weight_decay)
    if not isinstance(made, list | tuple) or not all(isinstance(group, dict) for group in made):
        return {"form": [type(made).__name__]}
    lists = [group.get("params") for group in made]
    form = {"form": sorted({type(one).__name__ for one in (made, *lists)})}
    if not all(isinstance(one, list | tuple) for one in lists):
        return form
    names = {id(p): name for name, p in model.named_parameters()}
    listed = [names.get(id(p), "?") for one in lists for p in one]
    return form | {
        "entries": sorted({type(p).__name__ for one in lists for p in one}),
        "strangers": "?" in listed,
        "twice": sorted({name for name in listed if listed.count(name) > 1}),
        "missing": sorted(set(names.values()) - set(listed)),
        "decay": {
            names.get(id(p), "?"): plain(group.get("weight_decay"))
            for group in made
            for p in group["params"]
        },
        "number of groups": len(made),
    }


def by_name(condition: str) -> Any:
    """Return an idea that decays the parameters p with the name n for which this is true."""
    named = "[p for n, p in model.named_parameters() if "
    return edits((DECAYED, f"{named}{condition}]"), (OTHERS, f"{named}not ({condition})]"))


DECAYED = "[p for p in parameters if p.dim() >= 2]"
OTHERS = "[p for p in parameters if p.dim() < 2]"
NO_LIST = "params must be a list. A generator or filter object is empty after the first loop."
parameter_groups = Exercise(
    NOTEBOOK,
    "parameter_groups",
    model_cases,
    observe=see_groups,
    is_part=True,
    smaller="How many dimensions do a LayerNorm's weight, a linear layer's weight and its bias "
    "have? Which of them should shrink?",
    says={
        "form": 'return a list of dicts, such as {"params": [...], "weight_decay": 0.1}.',
        "entries": "the groups must hold the parameters of the model.",
        "strangers": "a group contains something that is not a parameter of the model.",
        "twice": "a parameter is in the groups twice; model.parameters() lists each once.",
        "missing": "some parameters are in no group, so they never train.",
        "decay": "a parameter has the wrong decay. Every tensor of two dimensions has "
        "weight_decay, and every vector has 0.",
    },
    wrong={
        "your function returns None; is the `return` missing?": ("    return [", "    ["),
        "right, but a tuple; the task asks for a list of dicts, whose params are lists.": [
            edits(("return [", "return tuple(["), ("    ]\n", "    ])\n")),
            edits((DECAYED, f"tuple({DECAYED})"), (OTHERS, f"tuple({OTHERS})")),
            (DECAYED, f"tuple({DECAYED})"),
        ],
        "AdamW refuses a set of parameters, because it has no order; use a list.": [
            edits((DECAYED, f"set({DECAYED})"), (OTHERS, f"set({OTHERS})")),
            (DECAYED, f"set({DECAYED})"),
        ],
        NO_LIST: [
            edits((DECAYED, f"({DECAYED[1:-1]})"), (OTHERS, f"({OTHERS[1:-1]})")),
            edits((DECAYED, f"filter(None, {DECAYED})"), (OTHERS, f"filter(None, {OTHERS})")),
            edits((DECAYED, f"({DECAYED[1:-1]})"), (OTHERS, f"filter(None, {OTHERS})")),
        ],
        "every parameter has the right decay, but make two dicts, one for each decay.": """
def parameter_groups(model, weight_decay):
    return [
        {"params": [p], "weight_decay": weight_decay * (p.dim() > 1)} for p in model.parameters()
    ]
""",
        "the groups must hold the parameters; named_parameters() yields pairs of a name and one.": (
            edits(("model.parameters()", "model.named_parameters()"), ("p.dim()", "p[1].dim()"))
        ),
        "the groups hold copies, so AdamW would move these, and never the model.": [
            ("list(model.parameters())", "[p.detach() for p in model.parameters()]"),
            ("list(model.parameters())", "[nn.Parameter(p.detach()) for p in model.parameters()]"),
        ],
        "the tied matrix is in a group twice; lm_head.weight IS wte.weight, and model.parameters() "
        "lists it once.": [
            ("list(model.parameters())", "[*model.parameters(), model.lm_head.weight]"),
            ("p.dim() >= 2]", "p.dim() >= 2] + [model.lm_head.weight]"),
        ],
        "the tied matrix is in two groups; lm_head.weight IS wte.weight, and model.parameters() "
        "lists it once.": (OTHERS, f"{OTHERS} + [model.lm_head.weight]"),
        "the vectors are in no group. model.parameters() is an iterator that ends after the first "
        "loop; make a list of it.": ("list(model.parameters())", "model.parameters()"),
        "the embeddings and the norms are in no group, so they never train.": (
            "list(model.parameters())",
            "[p for m in model.modules() if isinstance(m, nn.Linear) for p in m.parameters()"
            " if m is not model.lm_head]",
        ),
        "the token embedding is in no group. It shares its matrix with lm_head, but "
        "named_parameters() has only one name for both.": (
            "list(model.parameters())",
            "[p for n, p in model.named_parameters() if '.wte.' not in n]",
        ),
        "the biases are in no group, so they never train.": (
            OTHERS,
            "[p for n, p in model.named_parameters() if p.dim() < 2 and 'bias' not in n]",
        ),
        "the groups are swapped; decay the matrices, leave the vectors.": edits(
            ("p.dim() >= 2", "p.dim() == 1"), ("p.dim() < 2", "p.dim() != 1")
        ),
        "no matrix is decayed; give them the argument weight_decay.": [
            ('"weight_decay": weight_decay', '"weight_decay": 0.0'),
            by_name("p.dim() > 2"),
        ],
        "gains and biases are decayed, too; give them 0.": [
            ("0.0", "weight_decay"),
            by_name("True"),
        ],
        "gains and biases are decayed a little, too; give them 0.": ("0.0", "weight_decay / 10"),
        "the norms' weights are decayed. They are called weight but are vectors, so go by dim(), "
        "not by the name.": by_name("not n.endswith('bias')"),
        "biases are decayed; they only shift.": by_name("'.ln_' not in n or n.endswith('bias')"),
        "an embedding is not decayed; GPT-2's recipe decays every matrix, these two as well.": [
            by_name("p.dim() >= 2 and '.wte.' not in n and '.wpe.' not in n"),
            by_name("p.dim() >= 2 and '.wte.' not in n"),
            by_name("p.dim() >= 2 and '.wpe.' not in n"),
        ],
        "the decay of the matrices isn't the one that was passed; use the argument weight_decay.": [
            ('"weight_decay": weight_decay', '"weight_decay": 0.1'),
            ('"weight_decay": weight_decay', '"weight_decay": 0.01'),
            ('"weight_decay": weight_decay', '"weight_decay": 0.3'),
        ],
        "right, unless an axis has one number; a matrix of one row has two dimensions, too.": (
            "p.dim()",
            "p.squeeze().dim()",
        ),
        "go by the number of dimensions; a vector may be longer than a matrix.": [
            by_name("p.numel() > 48"),
            by_name("p.numel() >= 40"),
        ],
    },
    refused=[
        edits(("return [", "return dict(enumerate(["), ("    ]\n", "    ]))\n")),
        "def parameter_groups(model, weight_decay): return tuple(model.parameters())",
        ('"weight_decay": weight_decay', '"decay": weight_decay'),
        "def parameter_groups(model, weight_decay): return [{'params': list(model.parameters())}]",
        ("model.parameters()", "p for _, p in model.named_parameters(remove_duplicate=False)"),
        ("model.parameters()", "model.transformer.h.parameters()"),
        ("model.parameters()", "p for n, p in model.named_parameters() if '.h.2' not in n"),
        (OTHERS, f"{OTHERS} + [model.transformer.h[0].attn.c_attn.weight]"),
        "def parameter_groups(model, weight_decay): return [{'weight_decay': weight_decay,"
        " 'params': [m.weight for m in model.modules() if isinstance(m, nn.Linear)]}]",
        by_name("p.dim() >= 2 and '.mlp.' not in n"),
        by_name("p.numel() > len(p)"),
        by_name("p.shape[-1] != p.numel()"),
    ],
    right=[
        by_name("not (n.endswith('bias') or 'ln_' in n)"),
        """
def parameter_groups(model, weight_decay):
    plain = {id(p) for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()}
    plain |= {id(m.bias) for m in model.modules() if isinstance(m, nn.Linear)}
    groups = [{"weight_decay": decay, "params": []} for decay in (weight_decay, 0)]
    for p in model.parameters():
        groups[id(p) in plain]["params"].append(p)
    return groups[::-1]
""",
    ],
)


# update


class Groups:
    """A small model, and an optimizer with groups of it.

    Args:
        optimizer: Name of the optimizer's class.
        size: Number of inputs.
        groups: Number of groups, at most 4. The last one has the rest of the parameters.
        device: Device of the model.
    """

    def __init__(self, optimizer: str, size: int, groups: int, device: str = "cpu"):
        with seeded(3), torch.device(device):
            self.model = nn.Sequential(nn.Linear(size, 3), nn.LayerNorm(3))
        parameters, last = list(self.model.parameters()), groups - 1
        parts = [*([p] for p in parameters[:last]), parameters[last:]]
        self.optimizer = getattr(torch.optim, optimizer)([{"params": p} for p in parts], lr=7.0)

    def give_gradient(self, norm: float, seed: int) -> None:
        """Set gradients that have this norm together."""
        drawn = [
            normal(*p.shape, seed=10 * seed + n) for n, p in enumerate(self.model.parameters())
        ]
        length = torch.cat([g.flatten() for g in drawn]).norm()
        for p, gradient in zip(self.model.parameters(), drawn, strict=True):
            p.grad = (gradient * norm / length).to(p.device)


def call_cases() -> Iterator[Case]:
    """Yield optimizers, and calls with a gradient's norm, a rate and a limit each."""
    steps = {
        "": (6.0, 0.25, 2.0),
        "a gradient shorter than the limit, which must stay as it is": (0.5, 0.125, 2.0),
        "another long gradient and another limit": (40.0, 0.5, 3.0),
        "a gradient of zeros": (0.0, 1.0, 1.0),
        "a gradient as long as the limit": (1.0, 2.0, 1.0),
        "a learning rate of 0": (2.0, 0.0, 1.5),
    }
    for what, step in steps.items():
        yield Case(what, optimizer="SGD", size=5, groups=2, calls=[step])
    calls = [*steps.values(), (30.0, 0.03, 9.0)]
    yield Case("calls one after the other", optimizer="SGD", size=5, groups=2, calls=calls)
    yield Case("calls one after the other", optimizer="AdamW", size=1, groups=2, calls=calls)
    yield Case("four groups of parameters", optimizer="SGD", size=2, groups=4, calls=calls)
    yield Case(ELSEWHERE, optimizer="SGD", size=1, groups=2, calls=calls[:1])


def see_updates(answer: Any, case: Case) -> Record:
    """Observe the norm that each call returns, and the weights and gradients that it leaves."""
    optimizer, size, groups, calls = case.inputs.values()
    if case.what == ELSEWHERE:
        run = Groups(optimizer, size, groups, "meta")
        run.give_gradient(1.0, 0)
        call = partial(answer, run.model, run.optimizer, 1.0, 1.0)
        return {"elsewhere": elsewhere(run.model, call)}
    run, norms, weights, is_left = Groups(optimizer, size, groups), [], [], False
    for seed, (norm, rate, limit) in enumerate(calls):
        run.give_gradient(norm, seed)
        norms.append(one_number(answer(run.model, run.optimizer, rate, limit)))
        weights.append(flat_weights(run.model))
        is_left |= bool(flat_gradient(run.model).any())
    return {"the norm": norms, "weights": weights, "gradient is left": is_left}


CLIP = "norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip)"
RATE = '    for group in optimizer.param_groups:\n        group["lr"] = rate\n'
STEP = "    optimizer.step()\n"
ZERO = "    optimizer.zero_grad()\n"
TOTAL = "norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])"
EACH = "\n    for p in model.parameters(): "
NOT_TOGETHER = (
    "the step has another direction than the gradient. Clip the norm over all parameters together, "
    "not each number, tensor or group."
)
ONE_RATE_KEPT = (
    "one group kept its old learning rate; set the rate of every group in optimizer.param_groups."
)
update = Exercise(
    NOTEBOOK,
    "update",
    call_cases,
    observe=see_updates,
    is_part=True,
    smaller="A gradient is (3, 4), and the limit is 1. What is its norm, and which gradient is "
    "left after clipping?",
    says={
        "the norm": "the returned norm isn't right. Return one number as a tensor, the norm of all "
        "gradients together before clipping.",
        "weights": "the weights end elsewhere. Each call clips at its own limit, sets its own "
        "rate, and takes one optimizer.step().",
        "gradient is left": "the gradient is still there, so the next one would add to it; call "
        "optimizer.zero_grad().",
        "elsewhere": "right on the CPU, but not on a GPU; create no tensor on the CPU, and return "
        "the norm itself.",
    },
    wrong={
        "your function returns None; return the norm before clipping.": ("return norm", "norm"),
        "return a tensor. A number from .item() would make the GPU wait in every step.": (
            "return norm",
            "return norm.item()",
        ),
        "you return the norm after clipping, which is never above the limit. clip_grad_norm_ "
        "returns the one before.": ("return norm", "return norm.clamp(max=grad_clip)"),
        "you return the square of the norm; take the root of the sum of squares.": (
            "return norm",
            "return norm**2",
        ),
        "you return the sum of the gradient's absolute values, and clip that; the norm is the root "
        "of the sum of squares.": ("grad_clip)\n", "grad_clip, norm_type=1)\n"),
        "you return the largest gradient, and clip that; the norm is the root of the sum of "
        "squares.": ("grad_clip)\n", "grad_clip, norm_type=float('inf'))\n"),
        "you return the norm of the first group's gradient, and clip no other; take all parameters "
        "together.": ("model.parameters()", 'optimizer.param_groups[0]["params"]'),
        "you return the norm of the weights; take the gradients.": (
            "return norm",
            "return nn.utils.get_total_norm([p.detach() for p in model.parameters()])",
        ),
        "the gradients are already 0 when you clip; call zero_grad() at the end.": (
            "    norm =",
            f"{ZERO}    norm =",
        ),
        "the weights didn't move. Is optimizer.step() there, and zero_grad() only after it?": [
            (STEP, ""),
            (STEP + ZERO, ZERO + STEP),
        ],
        'the step was taken with the old learning rate; set group["lr"] of each group before '
        "optimizer.step().": [
            (RATE, ""),
            (RATE + STEP, STEP + RATE),
            ('group["lr"] = rate', 'optimizer.defaults["lr"] = rate'),
        ],
        ONE_RATE_KEPT: [
            ("optimizer.param_groups:", "optimizer.param_groups[:1]:"),
            ("optimizer.param_groups:", "optimizer.param_groups[-1:]:"),
        ],
        "right for two groups, but not for four; set the rate of every group in "
        "optimizer.param_groups.": [
            ("optimizer.param_groups:", "optimizer.param_groups[:2]:"),
            ("optimizer.param_groups:", "optimizer.param_groups[::3]:"),
        ],
        NOT_TOGETHER: [
            (CLIP, f"{TOTAL}; nn.utils.clip_grad_value_(model.parameters(), grad_clip)"),
            (CLIP, f"{TOTAL}{EACH}nn.utils.clip_grad_norm_([p], grad_clip)"),
            (
                CLIP,
                f"{TOTAL}\n    for group in optimizer.param_groups: "
                "nn.utils.clip_grad_norm_(group['params'], grad_clip)",
            ),
        ],
        "the gradient wasn't clipped before the step; clip first, then call optimizer.step().": [
            (CLIP, TOTAL),
            edits((f"    {CLIP}\n", ""), (STEP, f"{STEP}    {CLIP}\n")),
        ],
        "the gradient was clipped at 1 although the limit is 2; use the argument grad_clip.": (
            "grad_clip)\n",
            "1.0)\n",
        ),
        "you call optimizer.step() twice.": (STEP, STEP + STEP),
        "the step uses the old rate times the new one; replace the old rate.": (
            'group["lr"] = rate',
            'group["lr"] *= rate',
        ),
        "the gradient is still there, so the next one would add to it; call "
        "optimizer.zero_grad().": (ZERO, ""),
        "right for a long gradient, but a gradient shorter than the limit stays as it is.": [
            (CLIP, f"{TOTAL}{EACH}p.grad.mul_(grad_clip / (norm + 1e-6))"),
            (CLIP, f"{TOTAL}{EACH}p.grad.mul_(grad_clip / norm)"),
        ],
        "for a gradient of zeros, the weights become NaN; you divide by the norm.": (
            CLIP,
            f"{TOTAL}{EACH}p.grad.mul_(torch.fmin(grad_clip / norm, norm / norm))",
        ),
        "no step is taken for a gradient of zeros; AdamW moves the weights also then.": (
            STEP,
            "    if norm:\n        optimizer.step()\n",
        ),
        "right for SGD, but not for AdamW; let optimizer.step() move the weights.": (
            STEP,
            f"{EACH.removeprefix(chr(10))}p.data -= rate * p.grad\n",
        ),
        "you return a copy of the norm on the CPU, for which a GPU would have to wait in every "
        "step; return the tensor itself.": ("return norm", "return norm.cpu()"),
    },
    refused=[
        ("return norm", "return norm.to('cpu')"),
        ("return norm", "return torch.tensor(norm.item())"),
        ("return norm", "return norm.repeat(3)"),
        ("return norm", "return norm * 1.5"),
        ("return norm", "return norm.clamp(min=6.0)"),
        ("grad_clip)\n", "2 * grad_clip)\n"),
        ("grad_clip)\n", "1.5 * grad_clip)\n"),
        (CLIP, f"{TOTAL}; nn.utils.clip_grad_value_(model.parameters(), 0.1)"),
        ("model.parameters()", "[p for g in optimizer.param_groups[:2] for p in g['params']]"),
        ('group["lr"] = rate', "optimizer.lr = rate"),
        ('group["lr"] = rate', 'group["lr"] = group.setdefault("initial_lr", rate)'),
        (
            'group["lr"] = rate',
            'group["lr"] = rate if group["lr"] == 7.0 else max(rate, group["lr"])',
        ),
        ("optimizer.param_groups:", "(optimizer.param_groups[0], optimizer.param_groups[-1]):"),
        (STEP, "    if norm <= grad_clip:\n        optimizer.step()\n"),
        (STEP, f"{STEP}    torch.set_grad_enabled(False)\n"),
        (STEP, f"{STEP}    torch.autocast('cpu').__enter__()\n"),
        (STEP, f"{STEP}    torch.manual_seed(0)\n"),
    ],
    right=[
        edits((RATE, ""), ("    norm =", f"{RATE}    norm =")),
        (ZERO, "    model.zero_grad(set_to_none=False)\n"),
        ("return norm", "return norm.double().reshape(1)"),
        (
            CLIP,
            "norm = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().sqrt()\n"
            f"    if norm > grad_clip:{EACH.replace('    ', ' ' * 8)}p.grad.mul_(grad_clip / norm)",
        ),
        """
def update(model, optimizer, rate, grad_clip):
    norm = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).double().norm()
    for p in model.parameters():
        p.grad = p.grad * min(1.0, grad_clip / max(norm.item(), 1e-12))
    [group.update(lr=rate) for group in optimizer.param_groups]
    optimizer.step()
    optimizer.zero_grad()
    return norm
""",
        """
def update(model, optimizer, rate, grad_clip):
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = nn.utils.get_total_norm(p.grad for p in parameters)
    nn.utils.clip_grads_with_norm_(parameters, grad_clip, norm)
    optimizer.param_groups = [{**group, "lr": rate} for group in optimizer.param_groups]
    optimizer.step()
    for p in parameters:
        p.grad = None
    return norm
""",
    ],
)


# backward


def piece_cases() -> Iterator[Case]:
    """Yield numbers of micro-batches that this process and others have, and their sizes."""
    yield Case(pieces=3, others=0, rows=2, seq=7)
    yield Case("2 of the batch's 5 pieces", pieces=2, others=3, rows=3, seq=5)
    yield Case("one piece of one token", pieces=1, others=0, rows=1, seq=1)
    for size in sizes(3, pieces=(1, 5), others=(0, 6), rows=(1, 4), seq=(2, 7)):
        yield Case("some of the batch's pieces", **vars(size))
    yield Case(ELSEWHERE, pieces=2, others=1, rows=1, seq=2)


def pieces_of(pieces: int, rows: int, seq: int) -> list[tuple[Tensor, Tensor]]:
    """Draw micro-batches of little GPT's tokens."""
    generator = torch.Generator().manual_seed(pieces)
    drawn = torch.randint(23, (pieces, 2, rows, seq), generator=generator)
    return [(x.clone(), y.clone()) for x, y in drawn]


def see_backward(answer: Any, case: Case) -> Record:
    """Observe how an answer calls the model, what it keeps, and what is left in the end."""
    pieces, others, rows, seq = case.inputs.values()
    autocast, given = Autocast(), pieces_of(pieces, rows, seq)
    if case.what == ELSEWHERE:
        model = little_gpt(0, "meta")
        call = partial(answer, model, iter(given), pieces + others, autocast)
        return {"elsewhere": elsewhere(model, call)}
    model = little_gpt(pieces)
    passes, before, kept = Passes(model, autocast), flat_weights(model), []

    def look(x: Tensor) -> None:
        passes.look(x)
        kept.append(bool(alive))

    with activations() as alive, watched_forward(model, look):
        loss = answer(model, iter(given), pieces + others, autocast)
    tokens = zip(sum(given, ()), sum(pieces_of(pieces, rows, seq), ()), strict=True)
    return {
        **passes.facts(),
        "autocast is open": autocast.is_open,
        "rows at once": any(len(x) > rows for x in passes.inputs),
        "memory": any(kept),
        "weights moved": not torch.equal(before, flat_weights(model)),
        "the gradient": flat_gradient(model),
        "the loss": one_number(loss),
        "graph": isinstance(loss, Tensor) and loss.requires_grad,
        "changed": [] if all(torch.equal(*pair) for pair in tokens) else ["pieces"],
    }


ON_CPU = (
    "on a GPU this fails, because a tensor stays on the CPU; move x and y to the model's device."
)
RESULT_ON_CPU = (
    "the result is on the CPU, though the model may be on a GPU; add the losses up on the model's "
    "device."
)
STAYS_OPEN = "your code enters `autocast` and never leaves it; write `with autocast:`."
ENTERED = "if not autocast.__enter__():"
BACK = "        loss.backward()\n"
ADD = "        total += loss.detach()\n"
LOOP = "    for x, y in pieces:\n"
MODEL = "model(x.to(total.device), y.to(total.device))"
TOO_SHORT = "the gradient is `count` times too short. Divide the loss by `count` once."
IN_MEMORY = (
    "a forward pass begins while the activations of the last piece are still in memory. Go "
    "backward right after each piece, without retain_graph."
)
JOINED = (
    "more rows than a piece has went through the model at once. Give the model one piece at a "
    "time, because joined pieces keep all their activations."
)
backward = Exercise(
    NOTEBOOK,
    "backward",
    piece_cases,
    observe=see_backward,
    is_part=True,
    smaller="A batch has two pieces with the mean losses 2 and 4. What does each piece contribute "
    "to the mean loss of the batch?",
    says={
        "in training mode": "model.eval() turns dropout off; call the model in training mode.",
        "with gradients": "no_grad is on, so there is no gradient to add up.",
        "in autocast": "the forward pass must be inside `with autocast:`.",
        "autocast is open": STAYS_OPEN,
        "rows at once": JOINED,
        "memory": IN_MEMORY,
        "weights moved": "the weights have moved; only the update in exercise 4 may change them.",
        "the gradient": "the gradient isn't the sum of the gradients of loss / count.",
        "the loss": "the returned loss isn't the sum of loss / count, as a tensor with one number.",
        "graph": "the returned loss still holds a graph, and with it the activations; add "
        "loss.detach().",
        "elsewhere": ON_CPU,
    },
    wrong={
        "the forward pass must be inside `with autocast:`.": (
            f"        with autocast:\n            loss = {MODEL} / count\n",
            f"        loss = {MODEL} / count\n",
        ),
        "no_grad is on, so there is no gradient to add up.": (
            "def backward",
            "@torch.no_grad()\ndef backward",
        ),
        "model.eval() turns dropout off; call the model in training mode.": (
            LOOP,
            f"    model.eval()\n{LOOP}",
        ),
        STAYS_OPEN: ("with autocast:", ENTERED),
        JOINED: """
def backward(model, pieces, count, autocast):
    xs, ys = zip(*pieces)
    device = model.lm_head.weight.device
    with autocast:
        loss = model(torch.cat(xs).to(device), torch.cat(ys).to(device)) * len(xs) / count
    loss.backward()
    return loss.detach()
""",
        IN_MEMORY: [
            edits(
                (BACK + ADD, "        total = total + loss\n"),
                ("return total", "total.backward()\n    return total.detach()"),
            ),
            edits(
                (LOOP, f"    losses = []\n{LOOP}"),
                (BACK, "        loss.backward(retain_graph=True)\n        losses.append(loss)\n"),
            ),
        ],
        "the weights have moved; only the update in exercise 4 may change them.": (
            "    return",
            "    torch.optim.SGD(model.parameters(), 0.1).step()\n    return",
        ),
        "there is no gradient; let every piece go backward.": (BACK, ""),
        "there is no gradient; it must stay in .grad, so leave zero_grad to the update.": (
            "    return",
            "    model.zero_grad()\n    return",
        ),
        "gradient and loss are `count` times too large; divide each loss by `count`.": (
            " / count",
            "",
        ),
        "the gradient is `count` times too long; go backward from loss / count.": [
            (BACK, "        (loss * count).backward()\n"),
        ],
        "your process may get only some of the batch's `count` micro-batches. Divide by `count`, "
        "not by the number of pieces you got.": edits(
            (LOOP, f"    pieces = list(pieces)\n{LOOP}"), ("/ count", "/ len(pieces)")
        ),
        "you divide by the number of rows, but model(x, y) is already their mean; divide by "
        "`count`.": ("/ count", "/ len(x)"),
        "you divide by the number of tokens, but model(x, y) is already their mean; divide by "
        "`count`.": ("/ count", "/ y.numel()"),
        "only the last micro-batch's gradient is left. Let .grad add up; don't zero it here.": (
            BACK,
            f"        model.zero_grad()\n{BACK}",
        ),
        TOO_SHORT: (BACK, "        (loss / count).backward()\n"),
        "gradient and loss are `count` times too small; divide each loss by `count` once.": (
            "/ count",
            "/ count**2",
        ),
        "the earlier pieces' gradients are divided again with each piece; divide the loss.": edits(
            (" / count", ""),
            (BACK, f"{BACK}        for p in model.parameters(): p.grad /= count\n"),
            ("loss.detach()", "loss.detach() / count"),
        ),
        "the gradient has the right direction and the wrong length; clipping comes in the "
        "update.": [
            ("    return", "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    return"),
        ],
        "the targets are the second part of a piece; you give the inputs twice.": (
            "y.to(total.device)",
            "x.to(total.device)",
        ),
        "your function returns None; return the sum of the losses / count.": (
            "return total",
            "total",
        ),
        "return a tensor. A number from .item() makes the GPU wait, and can't be summed over "
        "processes.": [
            ("return total", "return total.item()"),
        ],
        "the returned loss is `count` times too large; return the sum of loss / count.": [
            ("return total", "return total * count"),
        ],
        "the returned loss is `count` times too small; divide by `count` once.": (
            "return total",
            "return total / count",
        ),
        "you return the loss of the last piece only; add up the losses of all pieces.": (
            "return total",
            "return loss.detach()",
        ),
        "you return the mean loss of the last piece; return the sum of all loss / count.": (
            "return total",
            "return loss.detach() * count",
        ),
        "you divide the returned loss by the number of pieces you got, not by `count`.": edits(
            (LOOP, f"    pieces = list(pieces)\n{LOOP}"),
            ("return total", "return total * count / len(pieces)"),
        ),
        "the returned loss still holds a graph, and with it the activations; add loss.detach().": (
            "total += loss.detach()",
            "total = total + loss",
        ),
        ON_CPU: [
            ("x.to(total.device)", "x"),
            ("total.device", "torch.device('cpu')"),
        ],
        RESULT_ON_CPU: ("return total", "return total.cpu()"),
    },
    refused=[
        ("with autocast:", "with torch.autocast('cpu'):"),
        ("with autocast:", "with torch.no_grad():"),
        edits(("with autocast:", "if True:"), (MODEL, MODEL.replace("model(", "model.forward("))),
        """
def backward(model, pieces, count, autocast):
    total = torch.zeros((), device=model.lm_head.weight.device)
    for piece in pieces:
        second = next(pieces, None)
        both = [piece] if second is None else [piece, second]
        x, y = (torch.cat(part).to(total.device) for part in zip(*both))
        with autocast:
            loss = model(x, y) * len(both) / count
        loss.backward()
        total += loss.detach()
    return total
""",
        edits(
            (LOOP, f"    late = None\n{LOOP}"),
            (
                BACK,
                "        if late is not None:\n            late.backward()\n        late = loss\n",
            ),
            ("    return total", "    late.backward()\n    return total"),
        ),
        (LOOP, "    for x, y in list(pieces)[: len(pieces)]:\n"),
        (LOOP, "    for x, y in [next(pieces)] * count:\n"),
        (LOOP, "    for x, y in list(pieces)[: max(1, count - 1)]:\n"),
        (MODEL, "model(x[:1].to(total.device), y[:1].to(total.device))"),
        (" / count", " / count**0.5"),
        (ADD, f"        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n{ADD}"),
        (BACK, f"{BACK}        for p in model.parameters(): p.grad.copy_(p.grad.bfloat16())\n"),
        (ADD, f"{ADD}        x.zero_()\n"),
        (ADD, ADD.removeprefix("    ")),
        ("total += loss.detach()", "total += loss.detach() / count"),
        ("return total", "return total.repeat(3)"),
        ("return total", "return total * 1.5"),
        (".weight.device)", ".weight.device, dtype=torch.bfloat16)"),
        ("y.to(total.device)", "y"),
        ("return total", "return total.to('cpu')"),
        ("return total", "return torch.tensor(total.item())"),
        edits(
            (", device=model.lm_head.weight.device", ""),
            ("to(total.device)", "to(model.lm_head.weight.device)"),
        ),
    ],
    right=[
        (MODEL, MODEL.replace("model(", "model.forward(")),
        (ADD, f"        assert not loss.isnan()\n{ADD}"),
        """
def backward(model, pieces, count, autocast):
    losses, device = [], next(model.parameters()).device
    while (piece := next(pieces, None)) is not None:
        with autocast:
            loss = model(targets=piece[1].to(device), idx=piece[0].to(device))
            loss.backward(torch.full_like(loss, 1 / count))
        losses.append(loss.detach())
    return torch.stack(losses).sum() / count
""",
        """
def backward(model, pieces, count, autocast):
    device = model.lm_head.weight.device
    total = torch.zeros(1, device=device)
    for x, y in pieces:
        x, y = x.to(device), y.to(device)
        with autocast:
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), y)
        loss.div(count).backward()
        total += loss.data / count
    return total
""",
        """
def backward(model, pieces, count, autocast):
    device, total = model.lm_head.weight.device, 0
    parameters = list(model.parameters())
    sums = [torch.zeros_like(p) for p in parameters]
    for x, y in pieces:
        with autocast:
            loss = model(x.to(device), y.to(device))
        for s, gradient in zip(sums, torch.autograd.grad(loss, parameters), strict=True):
            s += gradient
        total = total + loss.detach().double()
    for p, s in zip(parameters, sums, strict=True):
        p.grad = s / count
    return total / count
""",
        """
def backward(model, pieces, count, autocast):
    device, losses = model.lm_head.weight.device, []
    model.zero_grad()
    for x, y in pieces:
        for row in range(len(x)):
            with autocast:
                loss = model(x[row : row + 1].to(device), y[row : row + 1].to(device))
                loss = loss / len(x) / count
                loss.backward()
            losses += [loss.data]
    return sum(losses)
""",
    ],
)


# evaluate


def stream_cases() -> Iterator[Case]:
    """Yield sizes of streams, of windows and of micro-batches."""

    def case(what: str, *numbers: int) -> Case:
        names = ("tokens", "block_size", "micro_batch_size", "eval_tokens")
        return Case(what, **dict(zip(names, numbers, strict=True)))

    yield case("", 200, 7, 3, 58)
    yield case("a last window without its last target", 147, 7, 3, 702)
    yield case("tokens for exactly 21 windows", 148, 7, 3, 702)
    yield case("eval_tokens smaller than a window", 30, 7, 3, 2)
    yield case("windows of one token", 12, 1, 2, 5)
    yield case("micro-batches of one window", 90, 6, 1, 29)
    yield case("tokens for one window only", 6, 5, 2, 16)
    yield case("22 of 30 windows", 62, 2, 5, 45)
    yield case("all of 22 windows", 45, 2, 5, 44)
    for run in sizes(6, tokens=(40, 150), size=(2, 7), micro=(1, 5), windows=(3, 30)):
        numbers = (run.tokens, run.size, run.micro, run.size * run.windows + run.size - 1)
        yield case("other sizes", *numbers)
    yield case(ELSEWHERE, 23, 7, 3, 23)


def see_evaluation(answer: Any, case: Case) -> Record:
    """Observe which windows an answer evaluates in which way, and the loss that it returns."""
    count, block_size, micro, eval_tokens = case.inputs.values()
    config = TrainConfig(
        block_size=block_size,
        micro_batch_size=micro,
        batch_tokens=block_size * micro,
        eval_tokens=eval_tokens,
        warmup_steps=0,
    )
    device = "meta" if case.what == ELSEWHERE else "cpu"
    model = little_gpt(4, device, block_size=block_size, vocab_size=count, dropout=0.4)
    tokens, autocast = Tokens(count, below=count), Autocast()
    call = partial(answer, model, tokens, config, autocast)
    if case.what == ELSEWHERE:
        return {"elsewhere": elsewhere(model, call)}
    passes, places = Passes(model, autocast), np.argsort(tokens.ids)
    with watched_forward(model, passes.look):
        loss = call()
    return {
        **passes.facts(),
        "autocast is open": autocast.is_open,
        "too far": tokens.is_too_far,
        "windows at once": any(len(x) > micro for x in passes.inputs),
        "windows": sorted(int(places[row[0]]) for x in passes.inputs for row in x),
        "training mode": model.training,
        "the loss": one_number(loss),
    }


BLOCKS = "config.eval_tokens // config.block_size"
COUNT = f"max(1, min(available, {BLOCKS}))"
PLACE = "i * available // count"
MINE = "range(count)"
SHARE = "* len(mine) / count"
IN_A_LIST = (
    ("torch.zeros((), device=model.lm_head.weight.device)", "[]"),
    ("total.device", "model.lm_head.weight.device"),
    ("total += ", "total.append("),
)
EVEN = "the windows aren't spread evenly. Window i begins at i * available // count * block_size."
NUMBER = (
    "the number of windows isn't right. Take eval_tokens // block_size of them, but at least 1 and "
    "at most all."
)
evaluate = Exercise(
    NOTEBOOK,
    "evaluate",
    stream_cases,
    observe=see_evaluation,
    is_part=True,
    given={"windows": windows_of},
    smaller="A stream has 20 tokens, block_size is 3 and eval_tokens is 9. How many windows fit, "
    "and where do the chosen ones begin?",
    says={
        "in training mode": "the model is in training mode, so dropout changes its loss; call "
        "model.eval() first.",
        "with gradients": "every forward pass keeps its activations for a backward pass; use "
        "torch.no_grad().",
        "in autocast": "the forward pass must be inside `with autocast:`.",
        "autocast is open": STAYS_OPEN,
        "too far": "you read past the end of the tokens. A window takes block_size + 1 of them, so "
        "there are (len(tokens) - 1) // block_size windows.",
        "windows at once": "more windows than config.micro_batch_size went through the model at "
        "once.",
        "windows": "these aren't the right windows. Take `count` of them, of which window i begins "
        "at i * available // count * block_size.",
        "training mode": "the model is left in evaluation mode; call model.train() again.",
        "the loss": "the returned loss isn't right. It is a tensor with one number, the mean of "
        "the windows' losses.",
        "elsewhere": ON_CPU,
    },
    wrong={
        "the model is in training mode, so dropout changes its loss; call model.eval() first.": (
            "    model.eval()\n",
            "",
        ),
        "every forward pass keeps its activations for a backward pass; use torch.no_grad().": (
            "@torch.no_grad()\n",
            "",
        ),
        "the forward pass must be inside `with autocast:`.": ("with autocast:", "if True:"),
        STAYS_OPEN: ("with autocast:", ENTERED),
        "the model was never called.": (MODEL, "0.0"),
        "you read past the end of the tokens. The last window needs a target too, so one token "
        "fewer is available.": ("(len(tokens) - 1)", "len(tokens)"),
        "windows share their ends; a window has block_size inputs, and the next one begins right "
        "after them.": (
            "(len(tokens) - 1) // config.block_size",
            "len(tokens) // (config.block_size + 1)",
        ),
        NUMBER: [
            (BLOCKS, "config.eval_tokens"),
            (BLOCKS, f"-(-{BLOCKS})"),
            (BLOCKS, f"{BLOCKS} + 1"),
            (COUNT, "available"),
        ],
        "eval_tokens may not be a multiple of block_size; round the number of windows down.": (
            BLOCKS,
            "round(config.eval_tokens / config.block_size)",
        ),
        "right, unless eval_tokens is smaller than a window; take at least 1.": (
            COUNT,
            f"min(available, {BLOCKS})",
        ),
        "you took the first windows of the stream; spread them evenly over it.": (PLACE, "i"),
        "you took the last windows of the stream; spread them evenly over it.": (
            PLACE,
            "(available - count + i)",
        ),
        EVEN: [
            (PLACE, "i * (available // count)"),
            (PLACE, "7 * i % available"),
            (PLACE, "round(i * available / count)"),
            (PLACE, "round(i * (available - 1) / max(count - 1, 1))"),
        ],
        "the windows don't begin at multiples of block_size; spread whole windows.": (
            f"{PLACE} * config.block_size",
            "i * (len(tokens) - config.block_size - 1) // max(count, 1)",
        ),
        "fractions are rounded; multiply before you divide, as in i * available // count.": [
            (PLACE, "int(i * (available / count))"),
            (PLACE, "int(i / count * available)"),
        ],
        "more windows than config.micro_batch_size went through the model at once.": [
            ("config.micro_batch_size", "10**6"),
        ],
        "the last micro-batch may be smaller, but it must not be left out.": (
            "(0, len(starts), config",
            "(0, count - config.micro_batch_size + 1, config",
        ),
        "the model is left in evaluation mode; call model.train() again.": (
            "    model.train()\n",
            "",
        ),
        "your function returns None; is the `return` missing?": ("return total", "total"),
        "return the loss as a tensor with one number; notebook 10 adds up several.": (
            "return total",
            "return total.item()",
        ),
        "the loss is `count` times too large; divide by the number of windows.": (
            SHARE,
            "* len(mine)",
        ),
        "you took the mean of the micro-batches' means, but the last one has fewer windows; weight "
        "each mean by its number of windows.": [
            (SHARE, "/ -(-len(starts) // config.micro_batch_size)"),
            edits(*IN_A_LIST, (SHARE, ")"), ("return total", "return torch.stack(total).mean()")),
        ],
        "you add up the means of the micro-batches; weight each by its number of windows and "
        "divide by `count`.": (SHARE, ""),
        "you divide the sum of the micro-batches' means by `count`; weight each mean by its number "
        "of windows.": (SHARE, "/ count"),
        "you weight each micro-batch by micro_batch_size, but the last one has fewer windows.": (
            "* len(mine)",
            "* config.micro_batch_size",
        ),
        "you return only the last micro-batch's part; add up all.": ("total += ", "total = "),
        "you return the perplexity; return the loss, which is its logarithm.": (
            "return total",
            "return total.exp()",
        ),
        "you return bits; return nats, as the model does.": (
            "return total",
            "return total / math.log(2)",
        ),
        "you give the inputs twice; the targets are the second result of `windows`.": (
            "y.to(total.device)",
            "x.to(total.device)",
        ),
        ON_CPU: [
            ("x.to(total.device)", "x"),
            ("total.device", "torch.device('cpu')"),
        ],
        RESULT_ON_CPU: ("return total", "return total.cpu()"),
    },
    refused=[
        (PLACE, "torch.randint(available, ()).item()"),
        ("config.micro_batch_size", "4"),
        ("config.micro_batch_size", "2"),
        ("return total", "return total * 1.5"),
        ("return total", "return torch.tensor(total.item())"),
        ("return total", "return total.to('cpu')"),
        edits(
            (", device=model.lm_head.weight.device", ""),
            ("to(total.device)", "to(model.lm_head.weight.device)"),
        ),
        edits(
            ("@torch.no_grad()\n", ""),
            ("    model.eval()", "    torch.set_grad_enabled(False)\n    model.eval()"),
        ),
        edits(("    model.eval()\n", ""), (MODEL, MODEL.replace("model(", "model.forward("))),
        """
def evaluate(model, tokens, config, autocast):
    x, y = windows(tokens, [0], config.block_size)
    with autocast:
        return model.eval()(x, y)
""",
        """
@torch.no_grad()
def evaluate(model, tokens, config, autocast):
    return model.eval()(*windows(tokens, [0], config.block_size))
""",
    ],
    right=[
        ("config.micro_batch_size", "min(2, config.micro_batch_size)"),
        (MODEL, "model.forward(idx=x.to(total.device), targets=y.to(total.device))"),
        """
@torch.inference_mode()
def evaluate(model, tokens, config, autocast):
    available = (len(tokens) - 1) // config.block_size
    count = min(max(config.eval_tokens // config.block_size, 1), available)
    device = model.lm_head.weight.device
    losses = [torch.zeros((), device=device)]
    for i in range(count):
        start = i * available // count * config.block_size
        x, y = windows(tokens, [start], config.block_size)
        with autocast:
            logits = model.eval()(x.to(device))
        losses.append(nn.functional.cross_entropy(logits[0], y[0].to(device), reduction="sum"))
    model.train(True)
    return torch.stack(losses).sum() / (count * config.block_size)
""",
        """
@torch.inference_mode()
def evaluate(model, tokens, config, autocast):
    size, mode, device = config.block_size, model.training, model.lm_head.weight.device
    model.train(mode=False)
    available = (len(tokens) - 1) // size
    count = int(np.clip(config.eval_tokens // size, 1, available))
    starts = (np.arange(count) * available // count * size)[::-1]
    mean = 0
    for some in np.array_split(starts, -(-len(starts) // config.micro_batch_size) or 1):
        if len(some):
            autocast.__enter__()
            x, y = windows(tokens, some, size)
            mean = mean + len(some) / count * model(x.to(device), y.to(device))
            autocast.__exit__(None, None, None)
    model.train(mode)
    return torch.as_tensor(mean, device=device)
""",
    ],
)


# train


def training_cases() -> Iterator[Case]:
    """Yield lengths of runs, when they are evaluated, and the size of a step."""

    def case(what: str, *numbers: float, **others: float) -> Case:
        names = ("max_steps", "eval_every", "first_step", "pieces", "rows")
        more = {"warmup_steps": 2, "grad_clip": 1.0} | others
        return Case(what, **dict(zip(names, numbers, strict=True)), **more)

    yield case("", 5, 2, 0, 2, 1)
    yield case("a last step that is due anyway", 4, 2, 0, 1, 2)
    yield case("evaluations in each step", 3, 1, 0, 3, 1)
    yield case("no evaluation before the last step", 3, 9, 0, 1, 1)
    yield case("a run that is resumed", 6, 3, 2, 2, 1)
    yield case("a run that is resumed where it was evaluated", 6, 3, 3, 2, 2)
    yield case("a run that is over", 4, 2, 4, 1, 1)
    yield case("without clipping", 3, 2, 0, 2, 2, grad_clip=0.0)
    yield case("another limit", 3, 2, 0, 1, 1, grad_clip=0.125, warmup_steps=0)


@contextmanager
def clock(read: Callable[[], float]) -> Iterator[None]:
    """Let a learner's code read another clock within the block."""

    def replaced(real: Callable[[], float]) -> Callable[[], float]:
        def seconds() -> float:
            return read() if is_learners(sys._getframe(1).f_code.co_filename) else real()

        return seconds

    with ExitStack() as stack:
        for name in ("perf_counter", "time", "monotonic"):
            stack.enter_context(mock.patch.object(time, name, replaced(getattr(time, name))))
        yield


def see_training(answer: Any, case: Case) -> Record:
    """Observe the rows of a run, when they come, and the weights at each of them.

    A forward pass takes a second of training or 1,000 seconds of evaluation.
    """
    steps, every, first_step, pieces, rows, warmup, clip = case.inputs.values()
    config = TrainConfig(
        block_size=7,
        micro_batch_size=rows,
        batch_tokens=7 * rows * pieces,
        max_steps=steps,
        warmup_steps=warmup,
        eval_every=every,
        eval_tokens=14,
        learning_rate=0.25,
        min_learning_rate=0.0625,
        grad_clip=clip,
    )
    model, autocast, asked = little_gpt(6, dropout=0.2), Autocast(), []
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=9.0)
    passes = Passes(model, autocast)
    seconds = 0

    def look(x: Tensor) -> None:
        nonlocal seconds
        seconds += 1 if model.training else 1000
        passes.look(x)

    def batches(step: int) -> Iterator[tuple[Tensor, Tensor]]:
        asked.append(step)
        torch.manual_seed(step)  # for dropout
        drawn = torch.randint(23, (pieces, 2, rows, 7), generator=normal_generator(step))
        return iter([(x, y) for x, y in drawn])

    found, weights = [], []
    val_tokens = Tokens(23, below=23)
    with seeded(0), watched_forward(model, look), clock(lambda: float(seconds)):
        given = (first_step,) if first_step else ()
        run = answer(model, optimizer, batches, val_tokens, config, autocast, *given)
        for row in run:
            found.append(dict(row) if isinstance(row, dict) else row)
            weights.append(flat_weights(model))
    if not all(isinstance(row, dict) for row in found):
        return {"form": sorted({type(row).__name__ for row in found})}
    names = ("step", "loss", "lr", "grad_norm", "seconds", "val_loss")
    kinds = {f"{n}: {type(v).__name__}" for row in found for n, v in row.items()}
    return {
        "form": sorted({name for row in found for name in row} - set(names)),
        "kinds": sorted(kind.replace("float64", "float") for kind in kinds),
        "asked": asked,
        "in autocast": passes.facts()["in autocast"],
        "passes": [len(passes.inputs), sum(len(x) for x in passes.inputs)],
        "step": [row.get("step") for row in found],
        "lr": [plain(row.get("lr")) for row in found],
        "loss": [one_number(row.get("loss")) for row in found],
        "grad_norm": [one_number(row.get("grad_norm")) for row in found],
        "weights": weights,
        "evaluated": [number for number, row in enumerate(found) if "val_loss" in row],
        "val_loss": [one_number(row.get("val_loss")) for row in found],
        "seconds": [row.get("seconds") for row in found],
    }


def normal_generator(seed: int) -> torch.Generator:
    """Return a generator with this seed."""
    return torch.Generator().manual_seed(seed)


def part(exercise: Exercise) -> Callable[..., Any]:
    """Return the printed solution of an exercise, which is built when it is called first."""
    built: list[Callable[..., Any]] = []

    def solution(*given: Any, **named: Any) -> Any:
        if not built:
            built.append(exercise.build(exercise.solution))
        return built[0](*given, **named)

    return solution


COUNTED = "config.batch_tokens // config.block_size // config.micro_batch_size"
STEPS = "range(first_step, config.max_steps)"
RATE_OF = "learning_rate(step, config)"
BACKWARD = "        loss = backward(model, batches(step), count, autocast)\n"
UPDATE = "        norm = update(model, optimizer, rate, config.grad_clip or math.inf)\n"
EVERY = "(step + 1) % config.eval_every == 0"
DUE = f"{EVERY} or step + 1 == config.max_steps"
EVALUATED = "evaluate(model, val_tokens, config, autocast).item()"
TIMED = '        row["seconds"] = time.perf_counter() - begun'
VALIDATED = f'        if {DUE}:\n            row["val_loss"] = {EVALUATED}\n'
LATE = (
    "the weights at a row aren't those after its step. Yield each row as soon as its step is done, "
    "because the caller logs it, and may save the weights, before the next step."
)
NOT_DUE = (
    "val_loss comes at the wrong steps. Steps count from 0, so with eval_every = 2 it comes after "
    "steps 1, 3 and so on, and after the last."
)
train = Exercise(
    NOTEBOOK,
    "train",
    training_cases,
    observe=see_training,
    is_part=True,
    given={
        **{"learning_rate": part(learning_rate), "backward": part(backward)},
        **{"update": part(update), "evaluate": part(evaluate), "math": math, "time": time},
    },
    tolerance=20,
    smaller="A run has max_steps = 5 and eval_every = 2. Which steps does it take, and after which "
    "of them is it evaluated? And if it resumes with first_step = 3?",
    says={
        "form": "each row must be a dict with step, loss, lr, grad_norm and seconds, and with "
        "val_loss where it's due.",
        "kinds": "a row must hold plain numbers, because it goes into a log; .item() makes one of "
        "a tensor.",
        "asked": "you ask `batches` for the wrong steps. Ask once in each step, with its number.",
        "in autocast": "pass `autocast` on to backward and evaluate.",
        "passes": "the model runs too often or too rarely. A step is one call of backward, and an "
        "evaluation is one call of evaluate.",
        "step": "the rows aren't those of the steps from first_step to max_steps - 1.",
        "lr": "a row's lr must be the rate that its step was taken with.",
        "loss": "a row's loss isn't the loss of its step's batch, which backward returns.",
        "grad_norm": "a row's grad_norm isn't the norm before clipping, which update returns.",
        "weights": LATE,
        "evaluated": NOT_DUE,
        "val_loss": "a val_loss isn't what evaluate returns for the weights after the step.",
        "seconds": "seconds must be the time that the step took, without the evaluation.",
    },
    wrong={
        "you begin at step 0; a resumed run begins at first_step.": [
            (STEPS, "range(config.max_steps)"),
        ],
        "a resumed run ends at max_steps; it doesn't take max_steps more.": [
            (STEPS, "range(first_step, first_step + config.max_steps)"),
        ],
        "the last step is missing or one too many; a run takes the steps up to max_steps - 1.": [
            (STEPS, "range(first_step, config.max_steps - 1)"),
            (STEPS, "range(first_step, config.max_steps + 1)"),
            (STEPS, "range(first_step + 1, config.max_steps)"),
        ],
        "the rate is that of another step; ask learning_rate for this step's number.": [
            (RATE_OF, "learning_rate(step + 1, config)"),
            (RATE_OF, "learning_rate(step - 1, config)"),
            (RATE_OF, "learning_rate(step - first_step, config)"),
        ],
        "every step has the same rate; ask learning_rate for each step's.": [
            (RATE_OF, "config.learning_rate"),
            (RATE_OF, "learning_rate(first_step, config)"),
        ],
        "a resumed run must go on in the data, so ask for batches(step).": [
            ("batches(step)", "batches(step - first_step)"),
        ],
        "you ask for the batch of another step.": [
            ("batches(step)", "batches(step + 1)"),
        ],
        "you update before the gradient is there; go backward first.": [
            (BACKWARD + UPDATE, UPDATE + BACKWARD),
        ],
        "the weights never move; call update.": [
            (
                UPDATE,
                "        norm = nn.utils.get_total_norm([p.grad for p in "
                "model.parameters()])\n        model.zero_grad()\n",
            ),
        ],
        "the gradient is already gone when you update; update zeroes it itself.": [
            (UPDATE, "        model.zero_grad(set_to_none=False)\n" + UPDATE),
        ],
        "the row holds tensors; make numbers of them, once a step.": [
            edits(("loss.item()", "loss"), ("norm.item()", "norm")),
            ("loss.item()", "loss"),
            ("norm.item()", "norm"),
            ("autocast).item()", "autocast)"),
        ],
        "`count` is the number of micro-batches in a step, so divide the windows of a step by "
        "micro_batch_size.": [
            (COUNTED, "config.batch_tokens // config.block_size"),
            (COUNTED, "config.batch_tokens // config.micro_batch_size"),
            (COUNTED, "1"),
            (COUNTED, "config.micro_batch_size"),
        ],
        "with grad_clip = 0, nothing should be clipped, but you clip to a length of 0.": (
            "config.grad_clip or math.inf",
            "config.grad_clip",
        ),
        "the gradient is never clipped; the limit is config.grad_clip.": (
            "config.grad_clip or math.inf",
            "math.inf",
        ),
        "the gradient is always clipped at 1; the limit is config.grad_clip.": [
            ("config.grad_clip or math.inf", "1.0"),
        ],
        "right, except that 0 means no clipping, and not a limit of 1.": [
            ("config.grad_clip or math.inf", "config.grad_clip or 1.0"),
        ],
        NOT_DUE: [
            (EVERY, "step % config.eval_every == 0"),
            (EVERY, "(step + 1 - first_step) % config.eval_every == 0"),
        ],
        "the last step has no val_loss; it is always evaluated.": [(DUE, EVERY)],
        "only the last step is evaluated; do it every eval_every steps, too.": (
            DUE,
            "step + 1 == config.max_steps",
        ),
        "every step is evaluated, which is expensive; do it every eval_every steps.": (DUE, "True"),
        "right, but leave val_loss out where there's none.": (
            VALIDATED,
            '        row["val_loss"] = None\n' + VALIDATED,
        ),
        "you evaluate before the update; val_loss belongs to the weights after the step.": edits(
            (VALIDATED, ""),
            (UPDATE, f"        value = {EVALUATED} if {DUE} else None\n{UPDATE}"),
            (
                "        yield",
                '        if value is not None:\n            row["val_loss"] = value\n        yield',
            ),
        ),
        "your function returns a list, so the caller sees the first row only after the last step. "
        "Yield each row.": edits(
            ("    for step", "    rows = []\n    for step"),
            ("        yield row", "        rows.append(row)\n    return rows"),
        ),
        "your function returns None; is there a `yield`?": ("        yield row", "        pass"),
        "pass `autocast` on to backward and evaluate.": [
            ("count, autocast)", "count, ExitStack())"),
            edits(
                ("count, autocast)", "count, ExitStack())"),
                ("config, autocast)", "config, ExitStack())"),
            ),
            ("config, autocast)", "config, ExitStack())"),
        ],
        "the seconds include the evaluation; read the clock before it.": edits(
            (TIMED, "        #"),
            (
                "        yield",
                '        row["seconds"] = time.perf_counter() - begun\n        yield',
            ),
        ),
        "the seconds are those since the beginning of the run; a row has its own step's, so read "
        "the clock twice in each step.": edits(
            ("begun, rate = time.perf_counter(), ", "rate = "),
            ("    for step", "    begun = time.perf_counter()\n    for step"),
        ),
        "the seconds are negative; subtract the earlier time from the later.": (
            "time.perf_counter() - begun",
            "begun - time.perf_counter()",
        ),
        "you read the clock too late, when the step's work is done.": [
            edits(
                ("begun, rate = time.perf_counter(), ", "rate = "),
                (UPDATE, f"{UPDATE}        begun = time.perf_counter()\n"),
            ),
        ],
        "a row's loss is too large; backward has already divided by count, and you needn't "
        "multiply.": ("loss.item()", "loss.item() * count"),
        "a row's loss is the perplexity; give the loss in nats.": (
            "loss.item()",
            "math.exp(loss.item())",
        ),
        "a row's grad_norm is limited; log the norm before clipping.": (
            "norm.item()",
            "min(norm.item(), config.grad_clip or math.inf)",
        ),
    },
    refused=[
        ("loss.item()", "round(loss.item(), 2)"),
        ("norm.item()", "round(norm.item(), 2)"),
        ('"step": step', '"step": step + 1'),
        ('"lr": rate', '"rate": rate'),
        ("yield row", "yield step, row"),
        (TIMED, '        row["seconds"] = 0.0 #'),
        (BACKWARD, BACKWARD + BACKWARD),
    ],
    right=[
        """
def train(model, optimizer, batches, val_tokens, config, autocast, first_step=0):
    windows = config.batch_tokens // config.block_size
    count, limit = windows // config.micro_batch_size, config.grad_clip
    if limit == 0:
        limit = float("inf")
    step = first_step
    while step < config.max_steps:
        start = time.time()
        loss = float(backward(model, batches(step), count, autocast))
        norm = float(update(model, optimizer, learning_rate(step, config), limit))
        seconds = time.time() - start
        row = dict(step=step, loss=loss, grad_norm=norm, seconds=seconds)
        row["lr"] = optimizer.param_groups[0]["lr"]
        step += 1
        if step == config.max_steps or not step % config.eval_every:
            row["val_loss"] = float(evaluate(model, val_tokens, config, autocast))
        yield row
""",
    ],
)
