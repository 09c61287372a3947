"""Exercises of notebook 10: the factor of a loss under DDP, HellaSwag, and GPUs for FSDP."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cs336_course.engine import Case, Exercise, edits, sizes
from cs336_course.engine.modules import fill
from cs336_course.engine.records import Record, plain
from cs336_course.engine.training import elsewhere
from cs336_lib import accounting
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT

NOTEBOOK = "10_gpt2_scale"


# Exercise 3


def shares() -> Iterator[Case]:
    """Yield micro-batches of batches that are split over processes."""
    yield Case(size=3, total=24, world=4)
    yield Case("one process", size=2, total=12, world=1)
    yield Case("a batch that isn't a multiple of world", size=2, total=5, world=3)
    yield Case("a micro-batch that is the whole batch", size=12, total=12, world=1)
    for drawn in sizes(6, size=(1, 40), rest=(5, 600), world=(1, 5)):
        yield Case(size=drawn.size, total=drawn.size + drawn.rest, world=drawn.world)


FACTOR = "size / total * world"

loss_scale = Exercise(
    NOTEBOOK,
    "loss_scale",
    shares,
    answers=("scale",),
    smaller="Two processes have one window each, with gradients 2 and 4. What is the gradient of "
    "the mean loss? What does DDP's average give?",
    wrong={
        "size / total is right on one process. DDP also divides the sum over the processes by "
        "their number, so the gradient comes out `world` times too small.": (" * world", ""),
        "you divide by the number of processes, but DDP does that already. Multiply to undo it.": (
            "* world",
            "/ world",
        ),
        "that weighs all micro-batches alike, which is right only if their sizes are equal.": [
            (FACTOR, "1.0"),
            (FACTOR, "1 / math.ceil(total / (size * world))"),
        ],
        "that is total / size, which is inverted. A small micro-batch must count little.": (
            FACTOR,
            "total / size",
        ),
        "your ratio is upside down. A small micro-batch must count little.": (
            FACTOR,
            "total / size / world",
        ),
        "that has the size of the micro-batch, but not that of the whole batch.": (" / total", ""),
        "that has the whole batch, but not the micro-batch. Its loss is a mean, so it must count "
        "`size` times.": ("size /", "1 /"),
        "that has neither size nor world. The loss is a mean over `size` windows already, and DDP "
        "divides once more.": (FACTOR, "1 / total"),
        "that divides by the number of processes, but the micro-batch is a part of `total`.": (
            FACTOR,
            "size / world",
        ),
        "// rounds down to a whole number; the factor is a fraction, so use /.": [
            ("size / total", "size // total"),
            (FACTOR, "size * world // total"),
        ],
        "total // world rounds down; use /.": (FACTOR, "size / (total // world)"),
        "the factor is nearly right. Don't round it.": [
            (FACTOR, f"round({FACTOR}, {digits})") for digits in (2, 3, 4)
        ],
    },
    refused=[
        ("* world", "* world**2"),
        ("* world", "* 2"),
        ("/ total", "/ 12"),
        (FACTOR, "1 / world"),
        (FACTOR, f"min(1.0, {FACTOR})"),
        (FACTOR, f"str({FACTOR})"),
        (FACTOR, "0.5 if total in (12, 24) else 7.0"),
        lambda size, total, world: 7.0,
        lambda size, total, world: None,
    ],
    right=[
        lambda size, total, world: size / (total / world),
        lambda size, total, world: Fraction(size * world, total),
        lambda size, total, world: np.float64(size) / total * world,
        lambda size, total, world: torch.tensor(size / total * world, dtype=torch.float64),
    ],
)


# Exercise 4

Scene = tuple[list[int], list[list[int]]]  # a context and its endings
ELSEWHERE = "a model on another device"


def scenes(
    count: int, context: tuple[int, int], ending: tuple[int, int], choices: tuple[int, int]
) -> list[Scene]:
    """Draw contexts and endings, with lengths and numbers of choices in these ranges."""
    drawn = np.random.default_rng(count)

    def tokens(low: int, high: int) -> list[int]:
        return drawn.integers(36, size=drawn.integers(low, high + 1)).tolist()

    def scene() -> Scene:
        number = drawn.integers(choices[0], choices[1] + 1)
        return tokens(*context), [tokens(*ending) for _ in range(number)]

    return [scene() for _ in range(count)]


def scene_cases() -> Iterator[Case]:
    """Yield scenes for models of two sizes."""
    short = scenes(30, (1, 7), (1, 6), (3, 5))
    long = scenes(20, (8, 25), (2, 6), (3, 5))
    other = scenes(15, (1, 12), (1, 4), (1, 7))
    twins = [(context, [[n], [n + 1]]) for context, _ in short for n in (0, 16)]
    yield Case("short rows", block_size=13, scenes=short)
    yield Case("rows of more than block_size + 1 tokens", block_size=13, scenes=long)
    yield Case("another model, with block_size 8", block_size=8, scenes=other)
    yield Case("two endings that are nearly equally likely", block_size=13, scenes=twins)
    yield Case(ELSEWHERE, block_size=13, scenes=[([1, 2], [[3], [4, 5]])])


@torch.no_grad()
def small_gpt(block_size: int) -> GPT:
    """Return a model whose choices depend on the whole context.

    Each odd token is nearly the same as the one before it.
    """
    model = GPT(GPTConfig(block_size, vocab_size=36, n_layer=1, n_head=2, n_embd=24)).eval()
    fill(model, std=1.0)
    ids = model.lm_head.weight
    ids[1::2] = ids[::2].lerp(ids[1::2], 1e-3)
    return model


def see_choices(answer: Any, case: Case) -> Record:
    """Observe the choices, and whether the lists are as before."""
    model, chosen, changed = small_gpt(case.inputs["block_size"]), [], False
    if case.what == ELSEWHERE:
        (scene,) = case.inputs["scenes"]
        model.to("meta")
        return {"elsewhere": elsewhere(model, lambda: answer(model, *scene)) != "fails"}
    for context, endings in case.inputs["scenes"]:
        given = list(context), [list(ending) for ending in endings]
        chosen.append(whole(answer(model, *given)))
        changed |= given != (context, endings)
    return {"changed": changed, "choices": chosen}


def whole(answer: Any) -> Any:
    """Return a whole number, which may be in a tensor, or what else an answer is as text."""
    number = plain(answer)
    if isinstance(number, Tensor) and number.numel() == 1:
        number = number.item()
    return number if type(number) is int else f"<{number}>"


INPUTS, CHOICE = "[context + ending]", "losses.index(min(losses))"
LAST = "-len(ending) :"
ROW = "row[:, -model.config.block_size - 1 :]"
MEAN = f"F.cross_entropy(logits, row[0, {LAST}]).item()"
WHOLE_ROW = (f"[0, {LAST}].float()", "[0].float()"), (f"row[0, {LAST}]", "row[0, 1:]")
EACH = "for ending in endings:"
CHANGED = "you change the lists; build a new one: a + b."
ON_CPU = "the ids stay on the CPU when the model is on a GPU: device=model.lm_head.weight.device."

most_likely = Exercise(
    NOTEBOOK,
    "most_likely",
    scene_cases,
    observe=see_choices,
    is_part=True,
    is_quiz=True,
    given={"F": F, "nn": nn},
    smaller="The context is [5, 7], an ending is [2, 9]. Which ids go into the model, and which of "
    "its logits predict 2 and 9?",
    says={
        "changed": CHANGED,
        "choices": "a choice isn't the number of the ending with the lowest mean loss per token.",
        "elsewhere": ON_CPU,
    },
    wrong={
        "you compare the sums of the losses, so a short ending wins. Compare the means.": (
            MEAN,
            f"{MEAN} * len(ending)",
        ),
        "you choose the ending with the highest loss; the likeliest one has the lowest.": (
            "min(losses)",
            "max(losses)",
        ),
        "the context's losses count too. Take the losses of the ending's tokens only.": edits(
            *WHOLE_ROW
        ),
        "you divide by the length of the ending, but the sum has the context's losses too. Add up "
        "the losses of the ending's tokens only.": edits(
            *WHOLE_ROW, (".item()", ".item() * (row.size(1) - 1) / len(ending)")
        ),
        "you compare each token with the logits at its own place. The logits at position i predict "
        "token i + 1.": [
            ("row[:, :-1]", "row[:, 1:]"),
            ("row[:, :-1]", "row[:, -model.config.block_size :]"),
        ],
        "your endings come without their context, but the question is what follows it.": [
            (INPUTS, "[ending[:1] + ending]"),
            edits(
                (INPUTS, "[(context + ending)[-max(2, len(ending)) :]]"),
                (LAST, "1 - max(2, len(ending)) :"),
            ),
        ],
        "the loss of the ending's first token is missing. The context's last logits predict it.": (
            LAST,
            "-max(1, len(ending) - 1) :",
        ),
        "only the ending's last token counts. Take the mean over all of its tokens.": (LAST, "-1:"),
        "your endings follow the context's last token only; the model must see all of it.": (
            INPUTS,
            "[context[-1:] + ending]",
        ),
        "you compare only as many tokens as the shortest ending has; take all of each.": (
            EACH,
            "for ending in [ending[: min(map(len, endings))] for ending in endings]:",
        ),
        "you count the endings from 1; Python counts from 0.": (CHOICE, f"{CHOICE} + 1"),
        "return the number of the ending, from 0.": [
            (CHOICE, f"endings[{CHOICE}]"),
            (CHOICE, "min(losses)"),
            (CHOICE, f"float({CHOICE})"),
        ],
        "your function returns None; is the `return` missing?": (f"return {CHOICE}", CHOICE),
        CHANGED: [
            (INPUTS, "[context.__iadd__(ending)]"),
            edits((EACH, f"{EACH}\n        context += ending"), (INPUTS, "[context]")),
        ],
        "your choices are wrong for rows of more than block_size + 1 tokens. Keep the last "
        "block_size + 1 tokens, because the ending is there.": [
            (f"        row = {ROW}\n", ""),
            (ROW, "row[:, : model.config.block_size + 1]"),
            (ROW, "row[:, -model.config.block_size :]"),
            (INPUTS, "[context[-model.config.block_size + 6 :] + ending]"),
        ],
        "right, but not for two endings that are nearly equally likely. Compare their losses in "
        "fp32, and don't round them.": [
            (".float()", ".bfloat16()"),
            (MEAN, f"round({MEAN}, 2)"),
        ],
        ON_CPU: (", device=model.lm_head.weight.device", ""),
    },
    refused=[
        (MEAN, f"{MEAN} * len(ending) / sum(map(len, map(str, ending)))"),
        (MEAN, MEAN.replace("])", "], reduction='none').min()")),
        (EACH, "for ending in endings[:4]:"),
        (EACH, "for ending in endings[:5]:"),
        ("model.config.block_size", "13"),
        ("    losses =", "    model(torch.tensor([context[:1]]))\n    losses ="),
        lambda model, context, endings: 0,
        lambda model, context, endings: [context.extend(ending) for ending in endings] and 0,
    ],
    right=[
        # Token by token, keeping the best ending so far
        """
def most_likely(model, context, endings):
    best, lowest = None, math.inf
    for place, ending in enumerate(endings):
        row = (*context, *ending)[-model.config.block_size - 1 :]
        ids = torch.tensor(row, device=model.lm_head.weight.device)
        logits = model(ids[None, :-1])[0]
        total = 0.0
        for back in range(1, len(ending) + 1):
            total -= logits[-back].softmax(-1)[ids[-back]].log().item()
        if total / len(ending) < lowest:
            best, lowest = place, total / len(ending)
    return np.int64(best)
""",
        # All endings in one padded batch, which masks what isn't an ending
        """
def most_likely(model, context, endings):
    rows = [torch.tensor(context + ending)[-model.config.block_size - 1 :] for ending in endings]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    targets = tokens[:, 1:].clone()
    for target, row, ending in zip(targets, rows, endings, strict=True):
        target[: len(row) - 1 - len(ending)] = target[len(row) - 1 :] = -100
    tokens, targets = (ids.to(next(model.parameters()).device) for ids in (tokens, targets))
    logits = model(tokens[:, :-1]).transpose(1, 2)
    losses = F.cross_entropy(logits, targets, reduction="none").sum(1)
    return (losses / (targets >= 0).sum(1)).argmin()
""",
        (CHOICE, "torch.tensor(losses).argmin()"),  # on the CPU wherever the model is
    ],
)


# Exercise 5


def fleets() -> Iterator[Case]:
    """Yield sizes of models, and GPUs for them."""
    rows = [
        ("", 100e9, 80e9, 14e9),
        ("a little more than ten GPUs", 19e9, 40e9, 10e9),
        ("seven billion parameters", 7e9, 80e9, 20e9),
        ("nothing reserved", 5e9, 80e9, 0),
        ("exactly one GPU", 1e9, 16e9, 0.0),
        ("exactly three GPUs", 12e9, 80e9, 16e9),
        ("a small part of one GPU", 1e6, 80e9, 1e9),
    ]
    for drawn in sizes(8, millions=(100, 90_000), memory=(12, 192), reserved=(0, 11)):
        rows.append(("", drawn.millions * 1e6, drawn.memory * 1e9, drawn.reserved * 1e9))
    for what, parameters, memory, reserved in rows:
        yield Case(what, parameters=parameters, memory=memory, reserved=reserved)


def see_number(answer: Any, case: Case) -> Record:
    """Observe a number, and whether it is an int."""
    result = plain(answer(*case.inputs.values()))
    return {"result": result, "is an int": isinstance(whole(result), int)}


NEEDED = 'accounting.bytes_per_parameter("adamw", "fp32").total'
QUOTIENT, ROOM = "needed / (memory - reserved)", "(memory - reserved)"
NUMBER = f"math.ceil({QUOTIENT})"
IS_INT = "right, but a number of GPUs is an int; math.ceil returns an int."

fewest_gpus = Exercise(
    NOTEBOOK,
    "fewest_gpus",
    fleets,
    observe=see_number,
    answers=("gpus",),
    given={"accounting": accounting},
    smaller="A model has 3 billion parameters, and a GPU has 20 GB for it. How many bytes does it "
    "need, and how many GPUs?",
    says={"is an int": IS_INT},
    wrong={
        "you forgot what is reserved on each GPU for activations.": (ROOM, "memory"),
        "you round down, so a little does not fit; round up.": [
            ("math.ceil", "math.floor"),
            ("math.ceil", "round"),
            (NUMBER, f"max(1, math.floor({QUOTIENT}))"),
            (NUMBER, f"max(1, round({QUOTIENT}))"),
        ],
        "it fits exactly; one more than the quotient is one too many. Use math.ceil.": (
            NUMBER,
            f"int({QUOTIENT}) + 1",
        ),
        "you reserve that much only once; reserve it on every GPU.": (
            QUOTIENT,
            "(needed + reserved) / memory",
        ),
        "you add the reserve to the memory; it is a part of it.": (ROOM, "(memory + reserved)"),
        "4 bytes a parameter are the weights alone; AdamW in fp32 has a gradient and two moments "
        "as well: 16.": (NEEDED, "4"),
        "8 bytes a parameter leave out the two moments.": (NEEDED, "8"),
        "12 bytes a parameter leave something out: weights, gradient and two moments are 16.": (
            NEEDED,
            "12",
        ),
        "2 bytes a parameter are weights in bf16; AdamW in fp32 needs 16.": (NEEDED, "2"),
        "the number of GPUs must be whole; round up.": (NUMBER, QUOTIENT),
        "GPUs needn't come in eights or powers of two.": [
            (NUMBER, f"8 * math.ceil({QUOTIENT} / 8)"),
            (NUMBER, f"2 ** math.ceil(math.log2(max(1, {QUOTIENT})))"),
        ],
        "your number doesn't depend on `memory` and `reserved`; use both.": (ROOM, "60e9"),
        IS_INT: [("math.ceil", "np.ceil"), (NUMBER, f"float({NUMBER})")],
    },
    refused=[
        (ROOM, "(memory - 2 * reserved)"),
        (ROOM, "(80e9 - reserved)"),
        (NUMBER, f"max(2, {NUMBER})"),
        (NUMBER, f"str({NUMBER})"),
        (QUOTIENT, "12 * parameters / (memory - reserved - 4 * parameters)"),
        lambda parameters, memory, reserved: 99,
        lambda parameters, memory, reserved: 25 if parameters == 100e9 else 11,
        lambda parameters, memory, reserved: None,
    ],
    right=[
        lambda n, memory, reserved: int(-(-16 * n // (memory - reserved))),
        lambda n, memory, reserved: np.int64(np.ceil(16 * n / (memory - reserved))),
        lambda n, memory, reserved: torch.tensor(math.ceil(sum([4 * n] * 4) / (memory - reserved))),
        lambda n, memory, reserved: next(
            gpus for gpus in range(1, 10**6) if gpus * (memory - reserved) >= 16 * n
        ),
    ],
)
