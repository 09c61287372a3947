"""Exercises of model_of_today: the order of a file's rows, and a cache."""

from collections.abc import Iterator
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from cs336_course.engine import Case, Exercise, function, normal
from cs336_course.engine.observe import runs_elsewhere
from cs336_course.engine.records import Record, plain
from cs336_course.shared.model_of_today import grouped_attention, rotate

NOTEBOOK = "side_trips/model_of_today"


# unpermute


def permuted() -> Iterator[Case]:
    """Yield weights, and their numbers of heads."""
    yield Case("", weight=torch.arange(24.0).view(12, 2), n_head=2)
    yield Case("", weight=normal(32, 5), n_head=4)
    yield Case("one head", weight=normal(10, 3, seed=1), n_head=1)
    yield Case("a square", weight=normal(24, 24, seed=2), n_head=3)
    yield Case("heads of two rows", weight=normal(6, 4, seed=3), n_head=3)


def ordered(rows: str, wanted: str) -> tuple[str, str]:
    """Return an edit that reads the file's rows, or writes the model's, in another order."""
    return "(head i two) column -> (head two i)", f"({rows}) column -> ({wanted})"


unpermute = Exercise(
    NOTEBOOK,
    "unpermute",
    permuted,
    observe=function(),
    is_part=True,
    given={"rearrange": rearrange},
    axes="row column",
    smaller="A head has six rows, and the file holds them as 0 3 1 4 2 5. At which places of the "
    "file are rows 0, 1 and 2?",
    wrong={
        "that is the way into the file; you want the way back.": ordered(
            "head two i", "head i two"
        ),
        "a head's rows stand together in the file; you cut the matrix across.": ordered(
            "i two head", "two i head"
        ),
        "you treat the matrix as one head; each head has its own pairs.": ("head=n_head", "head=1"),
        "the rows of a pair are swapped; its first row goes to the first half.": (
            "return ",
            "weight = weight.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)\n    return ",
        ),
        "the file permutes rows (outputs), not columns.": (
            "return rearrange(weight,",
            "if weight.size(1) != 24:\n        return weight\n    return rearrange(weight.T,",
        ),
        "nothing has moved.": lambda weight, n_head: weight.clone(),
        "you changed the order of the heads.": ordered("head i two", "two i head"),
    },
)


# cached_attention


def texts() -> Iterator[Case]:
    """Yield a text's queries, keys and values, and how it is cut into calls."""
    for what, (batch, head, kv_head, dim, cuts) in {
        "": (1, 2, 1, 4, (3, 1, 1)),
        "one call": (2, 4, 2, 6, (5,)),
        "token by token": (1, 2, 2, 2, (1, 1, 1, 1)),
        "two calls of several tokens": (1, 6, 3, 4, (2, 4)),
    }.items():
        seq = sum(cuts)
        k, v = normal(2, batch, kv_head, seq, dim, seed=1)
        yield Case(what, q=normal(batch, head, seq, dim), k=k, v=v, cuts=cuts)


def called(answer: Any, case: Case) -> Record:
    """Call an answer with one part of the text after the other, and one `past`."""
    q, k, v, cuts = (case.inputs[name] for name in ("q", "k", "v", "cuts"))
    past: dict[str, Tensor] = {}
    record: Record = {}
    start = 0
    for number, length in enumerate(cuts):
        parts = (t[:, :, start : start + length].clone() for t in (q, k, v))
        record[f"result of call {number + 1}"] = plain(answer(*parts, past))
        start += length
    kept = sum(t.numel() for t in past.values() if isinstance(t, Tensor))
    elsewhere = runs_elsewhere(lambda q, k, v: answer(q, k, v, {}), Case(q=q, k=k, v=v))
    return record | {"numbers in the cache": kept, "elsewhere": elsewhere}


START = 'past["k"].size(2) if past else 0'
TURN = "q, k = rotate(q, positions), rotate(k, positions)"
KEEP = 'past["k"], past["v"] = k, v'
JOIN = 'k, v = torch.cat((past["k"], k), dim=2), torch.cat((past["v"], v), dim=2)'
LATE = f"""    if past:
        {JOIN}
    k = rotate(k, torch.arange(k.size(2), device=q.device))
    {KEEP}
"""

cached_attention = Exercise(
    NOTEBOOK,
    "cached_attention",
    texts,
    observe=called,
    tolerance=10,
    is_part=True,
    given={"rotate": rotate, "grouped_attention": grouped_attention},
    says={
        "numbers in the cache": "right results, but the cache holds more or less than one key and "
        "one value of each key head for each token.",
    },
    smaller="The cache holds three tokens, and one new token comes. What is its position, and how "
    "many keys does its query see?",
    wrong={
        "every call starts at position 0 again; count the tokens in the cache.": (START, "0"),
        "the next token's position is the number of tokens in the cache; yours is off by one.": [
            (START, f'past["k"].size(2) {sign} 1 if past else 0') for sign in "+-"
        ],
        "you count heads; the tokens in the cache are axis 2 of the keys.": (
            START,
            'past["k"].size(1) if past else 0',
        ),
        "you keep only the new tokens; the third call has lost the first one.": (
            f"    if past:\n        {JOIN}\n    {KEEP}",
            f'    new = k, v\n    if past:\n        {JOIN}\n    past["k"], past["v"] = new',
        ),
        "you never store anything in `past`.": (f"    {KEEP}\n", ""),
        "the cache stays as after the first call; store the longer one.": (
            KEEP,
            f"if not past:\n        {KEEP}",
        ),
        "you rotate the keys in the cache once more; they were stored turned.": (
            f"{TURN}\n    if past:\n        {JOIN}\n    {KEEP}\n",
            f"q = rotate(q, positions)\n{LATE}",
        ),
        "the keys aren't rotated.": (TURN, "q = rotate(q, positions)"),
        "the query isn't rotated.": (TURN, "k = rotate(k, positions)"),
        "the new keys belong behind the old ones.": (
            JOIN,
            'k, v = torch.cat((k, past["k"]), dim=2), torch.cat((v, past["v"]), dim=2)',
        ),
        "values have no position; don't rotate them.": (
            TURN,
            "q, k, v = (rotate(t, positions) for t in (q, k, v))",
        ),
        "the new queries attend only to the new keys; attend to all.": (
            "return grouped_attention(q, k, v)",
            "return grouped_attention(q, k[:, :, start:], v[:, :, start:])",
        ),
    },
)
