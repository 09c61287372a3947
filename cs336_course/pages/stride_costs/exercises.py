"""Exercises of notebook 02b on windows, masks and shared memory."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cs336_course.engine import Case, Exercise, edits, normal, sizes
from cs336_course.engine.records import Record, plain
from cs336_course.pages.strides_and_views.exercises import observe_views

NOTEBOOK = "side_trips/stride_costs"

# im2col


def images() -> Iterator[Case]:
    """Yield images and window sizes.

    Most storages are longer than needed, so that wrong strides get a diagnosis and no index error.
    """
    yield Case("", image=torch.arange(240.0).view(40, 6)[:5], k=3)
    yield Case("a transposed image", image=torch.arange(60.0).view(12, 5)[:6].T, k=3)
    yield Case("a crop", image=torch.arange(80.0).view(8, 10)[2:7, 3:9], k=3)
    for size in sizes(4, k=(1, 4), below=(0, 4), right=(0, 4)):
        height, width = size.k + size.below, size.k + size.right
        yield Case("other sizes", image=normal(2 * height + 2, width)[:height], k=size.k)
    yield Case("every second row", image=normal(9, 14)[1:7:2, ::3], k=2)
    yield Case("an expanded row", image=normal(1, 6).expand(4, 6), k=2)
    yield Case("one window in each row", image=normal(6, 4)[:4], k=4)
    double = torch.arange(160.0).double().view(20, 8)[1:6, 2:7]
    yield Case("a crop in float64", image=double, k=2)


STRIDES = "(down, right, down, right)"

im2col = Exercise(
    NOTEBOOK,
    "im2col",
    images,
    observe=observe_views("image"),
    answers=("windows",),
    axes="(rows, columns, k, k)",
    smaller="Which pixels are result[0, 0, 0, 0] and result[1, 0, 0, 0], and how many slots apart "
    "are they?",
    says={
        "memory": "the windows are right, but they are a copy; as_strided (or Tensor.unfold) gives "
        "them as a view.",
    },
    wrong={
        "your function returns None; is the `return` missing?": lambda image, k: None,
        "a window of k fits at height - k + 1 places into the rows, and likewise into the "
        "columns.": ("height - k + 1, width - k + 1", "height - k, width - k"),
        "the last two dimensions belong to the pixels of a window; yours are the windows.": (
            "right))",
            "right)).permute(2, 3, 0, 1)",
        ),
        "your windows are tiles that jump by k; the next window should start one pixel further.": [
            (STRIDES, "(down * k, right * k, down, right)"),
            lambda image, k: image.unfold(0, k, k).unfold(1, k, k),
        ],
        "rows and columns are swapped: a step down in the image goes with dimensions 0 and 2, a "
        "step right with 1 and 3.": (STRIDES, "(right, down, right, down)"),
        "each window is transposed; a step in dimension 2 goes down in the image.": (
            STRIDES,
            "(down, right, right, down)",
        ),
        "right for a fresh image, wrong for a view of one: you wrote (width, 1); read "
        "image.stride().": ("down, right = image.stride()", "down, right = width, 1"),
        "your strides count bytes, as in NumPy; torch counts elements.": (
            "image.stride()",
            "(image.element_size() * step for step in image.stride())",
        ),
        "wrong for a crop: its first pixel is not in slot 0. as_strided's storage_offset counts "
        "elements from the storage's start; leave it out to keep the image's own.": [
            ("right))", "right), 0)"),
            (
                "right))",
                "right), (image.data_ptr() - image.untyped_storage().data_ptr()) // 4)",
            ),
        ],
        "the windows are a view for a fresh image, but a copy for a transpose or a crop: something "
        "copies the image first. Leave out contiguous, reshape and clone, and read "
        "image.stride().": ("height, width", "image = image.contiguous()\n    height, width"),
        "the windows are right, but they are a copy; as_strided (or Tensor.unfold) gives them as a "
        "view.": [
            ("image.as_strided", "image.clone().as_strided"),
            lambda image, k: image.unfold(0, k, 1).unfold(1, k, 1).clone(),
        ],
        "the values are right, but the gradient of image isn't: the windows reach beyond the slice "
        "that you call as_strided on, and autograd doesn't see that; call it on the whole image.": [
            ("image.as_strided", "image[:k].as_strided"),
            ("image.as_strided", "image[:k, :k].as_strided"),
            ("image.as_strided", "image[0].as_strided"),
        ],
        "NumPy doesn't record operations, so the gradient is lost. Use torch's functions.": (
            lambda image, k: torch.from_numpy(
                np.lib.stride_tricks.sliding_window_view(
                    image.detach().numpy(), (k, k), writeable=True
                )
            )
        ),
    },
    refused=[
        (STRIDES, "(1, 1, 1, 1)"),
        ("height - k + 1, width - k + 1", "height, width"),
        edits(("k, k)", "3, 3)"), ("- k", "- 3")),
        ("width - k", "height - k"),
        ("height - k + 1, width - k + 1", "width - k + 1, height - k + 1"),
        ("right))", "right)).flatten(2)"),
        ("right))", "right))[0]"),
        ("right))", "right)).numpy()"),
        ("image.as_strided", "image.detach().as_strided"),
        ("image.stride()", "image.contiguous().stride()"),
        ("down, right = image.stride()", "down, right = image.stride(0), 1"),
        ("height, width", "image.sub_(1)\n    height, width"),
    ],
    right=[
        lambda image, k: image.unfold(0, k, 1).unfold(1, k, 1),
        lambda image, k: image.unfold(1, k, 1).unfold(0, k, 1).transpose(2, 3),
        (STRIDES, "[image.stride(d) for d in (0, 1, 0, 1)]"),
    ],
)


# causal_mask


def mask_sizes() -> Iterator[Case]:
    """Yield numbers of queries and keys. float16 has every second of the last 2,100 positions."""
    yield Case("", queries=4, keys=4)
    yield Case("fewer queries than keys", queries=2, keys=5)
    for size in sizes(6, queries=(1, 7), earlier=(0, 7)):
        yield Case("other sizes", queries=size.queries, keys=size.queries + size.earlier)
    for queries, keys in ((1, 1), (1, 7), (7, 7), (5, 6)):
        yield Case("other sizes", queries=queries, keys=keys)
    yield Case("many keys", queries=4, keys=2100)


def positions_in(dtype: torch.dtype) -> Callable[[int, int], Tensor]:
    """Return a mask by positions in a dtype."""

    def mask(queries: int, keys: int) -> Tensor:
        position = torch.arange(keys).to(dtype)
        return position[keys - queries :, None] >= position

    return mask


def in_loops(queries: int, keys: int) -> Tensor:
    """Compare every query with every key."""
    rows = [[key <= keys - queries + query for key in range(keys)] for query in range(queries)]
    return torch.tensor(rows)


TRIL = "tril(diagonal=keys - queries)"
LAST_WHOLE = {torch.uint8: 255, torch.int8: 127, torch.float16: 2048, torch.bfloat16: 256}

causal_mask = Exercise(
    NOTEBOOK,
    "causal_mask",
    mask_sizes,
    smaller="The keys are tokens 0 to 4, and the queries are tokens 3 and 4. Which tokens may each "
    "see?",
    wrong={
        "your function returns None; is the `return` missing?": lambda queries, keys: None,
        "that is a mask to add (0 and -inf); return a boolean one, True where a query may look.": [
            "def causal_mask(queries, keys):\n"
            "    hidden = torch.full((queries, keys), -torch.inf)\n"
            "    return hidden.triu(diagonal=keys - queries + 1)\n",
            "def causal_mask(queries, keys):\n"
            "    hidden = torch.full((queries, keys), -torch.inf)\n"
            "    return hidden.triu(diagonal=1)\n",
        ],
        "that is triu: row i looks at itself and the future. scores[query, key] needs tril.": [
            (TRIL, "triu(diagonal=keys - queries)"),
            (TRIL, "triu()"),
        ],
        "that marks what to hide. Here, as in scaled_dot_product_attention, True means 'may "
        "look'.": [
            (TRIL, "triu(diagonal=keys - queries + 1)"),
            (TRIL, "triu(diagonal=1)"),
            ("return torch", "return ~torch"),
        ],
        "a token must see itself, so include the diagonal; your first row is empty, and its "
        "softmax is nan.": [
            ("keys - queries", "keys - queries - 1"),
            ("keys - queries", "-1"),
        ],
        "each row reaches one token too far: it sees the token after it. diagonal=0 is the main "
        "diagonal, where a token sees itself.": [
            ("keys - queries", "keys - queries + 1"),
            ("keys - queries", "1"),
        ],
        "every query sees every key, so the mask hides nothing.": (f".{TRIL}", ""),
        "the pattern is right, the dtype isn't: scaled_dot_product_attention adds floats to the "
        "scores and rejects integers. Start from dtype=torch.bool.": [
            (", dtype=torch.bool", ""),
            ("torch.bool", "torch.long"),
            ("torch.bool", "torch.int"),
        ],
        "right for a square. With 2 queries and 5 keys the queries are the LAST two tokens, so the "
        "last one sees all five keys: shift the diagonal by keys - queries.": [
            ("keys - queries", "0"),
            edits(("queries, keys, dtype", "keys, keys, dtype"), (TRIL, "tril()[:queries]")),
        ],
        "right for a square, but with 2 queries and 5 keys every row is empty, because the shift "
        "has the wrong sign. More keys than queries move the diagonal right by keys - queries.": (
            "keys - queries",
            "queries - keys",
        ),
        "right for a square, but with 2 queries and 5 keys the first query sees the next token.": [
            ("keys - queries", "keys - queries if keys == queries else keys"),
            ("keys - queries", "keys if keys > queries else 0"),
        ],
        "a single query is the last token, so it sees all keys.": (
            "keys - queries",
            "keys - queries if queries > 1 else 0",
        ),
        "return (queries, keys); your mask is a square of the queries.": edits(
            ("queries, keys, dtype", "queries, queries, dtype"), ("keys - queries", "0")
        ),
        "a mask has a row for each query and a column for each key; yours is transposed.": edits(
            ("torch.ones(queries, keys", "torch.ones(keys, queries"), (TRIL, f"{TRIL}.T")
        ),
        **{
            f"right for a few keys, but your positions don't fit into {dtype}, which counts to "
            f"{last}; keep torch.arange's own dtype.": positions_in(dtype)
            for dtype, last in LAST_WHOLE.items()
        },
    },
    refused=[
        ("keys - queries", "3 * (keys > queries)"),
        ("keys - queries", "(keys - queries + 3) // 2 * (keys > queries)"),
        ("keys - queries", "(keys - queries) // 2"),
        ("keys - queries", "min(keys - queries, 3)"),
        ("keys - queries", "min(keys - queries, 1024)"),
        ("keys - queries", "keys - queries if queries < 5 else 1"),
        ("queries)", "queries).triu(keys - queries - 3)"),
        *(
            (
                f"torch.ones(queries, keys, dtype=torch.bool).{TRIL}",
                f"torch.ones({n}, {n}, dtype=torch.bool).tril()[keys - queries : keys, :keys]",
            )
            for n in (16, 128, 1024)
        ),
        ("queries)", "queries).numpy().tolist()"),
        ("queries)", "queries)[None, None]"),
        ("torch.ones(queries", "torch.ones(queries + 1"),
        lambda queries: torch.ones(queries, queries, dtype=torch.bool).tril(),
    ],
    right=[
        in_loops,
        positions_in(torch.int16),
        positions_in(torch.float32),
        ("queries)", "queries).clone()"),
        lambda queries, keys: torch.ones(keys, keys, dtype=torch.bool).tril()[keys - queries :],
        lambda queries, keys: ~torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1),
        lambda queries, keys: torch.ones(queries, keys, dtype=torch.bool).triu().flip(0, 1),
        lambda queries, keys: torch.from_numpy(np.tri(queries, keys, keys - queries, dtype=bool)),
        lambda queries, keys: torch.full((queries, keys), -torch.inf).triu(keys - queries + 1) == 0,
    ],
)


# sharing

LETTERS = "bcdefgh"


def letters() -> Iterator[Case]:
    """Yield the tensors that may share the array's memory."""
    for letter in LETTERS:
        yield Case(letter)


def observe_sharing(answer: Any, case: Case) -> Record:
    """Return whether a set of letters has a letter."""
    if not isinstance(answer, set | frozenset | list | tuple | str):
        return {"form": plain(answer)}
    record: Record = {"form": "a set", "others": sorted(set(answer) - set(LETTERS))}
    return record | {"sees": case.what in answer}


sharing = Exercise(
    NOTEBOOK,
    "sharing",
    letters,
    observe=observe_sharing,
    answers=("answer",),
    is_quiz=True,
    smaller="Which of them have another dtype than a, or need another order of slots?",
    says={
        "form": "answer with a set of letters, such as {'c', 'd'}.",
        "others": "the letters are b to h.",
    },
    wrong={
        "b: from_numpy wraps the array's memory, so it sees every write.": ('"b", ', ""),
        "c: torch.tensor always copies.": ('"b"', '"b", "c"'),
        "d: the array is float64, so float() makes other bytes, which need other memory.": (
            '"b"',
            '"b", "d"',
        ),
        "e: a slice is a view, and element 2 is among every second one.": ('"e", ', ""),
        "f: as_tensor copies only where it must, and here neither dtype nor device changes.": (
            '"f", ',
            "",
        ),
        "g: view and transpose only change strides.": (', "g"', ""),
        "h: a single stride can't read the transpose in row order, so this reshape copies.": (
            '"g"',
            '"g", "h"',
        ),
    },
    refused=["answer = 4", "answer = {'a', 'b', 'e', 'f', 'g'}", "answer = set()"],
    right=["answer = ['g', 'b', 'e', 'f']", "answer = 'befg'"],
)
