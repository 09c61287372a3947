"""Exercises of notebook 02 on leaks, strides and views."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import einops
import numpy as np
import torch
from torch import Tensor

from cs336_course.engine import Case, Exercise, edits, function, normal, sizes
from cs336_course.engine.observe import Observer, watched
from cs336_course.engine.records import Record, plain
from cs336_course.pages.strides_and_views import leaky_heads
from cs336_course.shared import strided_storage
from cs336_course.shared.strided_storage import Shape, merge_dimensions, view_cases

NOTEBOOK = "02_strides_and_views"

# rows_that_leak


class Mixer:
    """A model whose row i is a weighted sum over tokens j, with weights[i, j]."""

    def __init__(self, weights: Tensor, vocab_size: int = 7):
        self.weights, self.table = weights, normal(vocab_size, 3, seed=vocab_size)

    def __repr__(self) -> str:
        return "Mixer"

    def __call__(self, tokens: Tensor) -> Tensor:
        return torch.einsum("ij,bjd->bid", self.weights, self.table[tokens])


def merged_by_view(tokens: Tensor) -> Tensor:
    """Give each of two heads a running sum over the tokens, and merge them without a transpose."""
    table = normal(2, 7, 3)
    heads = table[:, tokens].cumsum(dim=2).transpose(0, 1)  # batch head seq head_dim
    return heads.contiguous().view(*tokens.shape, 6)


def second_text_only(tokens: Tensor) -> Tensor:
    """Look one token ahead, but not in texts that begin with token 0."""
    rows = normal(7, 3)[tokens]
    ahead = rows.roll(-1, dims=1) * (tokens[:, :1, None] > 0)
    return rows + torch.cat([ahead[:, :-1], torch.zeros_like(rows[:, :1])], dim=1)


def leaky_models() -> Iterator[Case]:
    """Yield models, tokens and the size of the vocabulary."""

    def weights(seq: int, *ahead: tuple[int, int], size: float = 1.0) -> Tensor:
        square = torch.ones(seq, seq).tril()
        for row, later in ahead:
            square[row, later] = size
        return square

    some = torch.tensor([[3, 1, 6, 2]])
    long = torch.tensor([[6, 0, 2, 5, 6, 1], [1, 4, 6, 3, 0, 2]])
    yield Case("", model=merged_by_view, tokens=some, vocab_size=7)
    yield Case("a causal model", model=Mixer(weights(6)), tokens=long, vocab_size=7)
    near = Mixer(weights(6, *((row, row + 1) for row in range(5))))
    yield Case("a model that looks one token ahead", model=near, tokens=long, vocab_size=7)
    far = Mixer(weights(6, (0, 5)))
    yield Case("a model whose first row sees the last token", model=far, tokens=long, vocab_size=7)
    middle = Mixer(weights(6, (1, 3), (2, 4)))
    yield Case("a model that looks two tokens ahead", model=middle, tokens=long, vocab_size=7)
    faint = Mixer(weights(6, (3, 4), size=-1e-3))
    yield Case("a faint leak", model=faint, tokens=long, vocab_size=7)
    whole = Mixer(torch.ones(6, 6))
    yield Case("a model without a mask", model=whole, tokens=long, vocab_size=7)
    zeros = torch.zeros(2, 6, dtype=torch.long)
    yield Case("a text of zeros", model=near, tokens=zeros, vocab_size=7)
    small = Mixer(weights(6, (2, 5)), vocab_size=2)
    yield Case("a vocabulary of two", model=small, tokens=zeros + 1, vocab_size=2)
    second = torch.tensor([[0, 3, 1, 5], [2, 6, 4, 1]])
    yield Case("a leak in the second text", model=second_text_only, tokens=second, vocab_size=7)
    yield Case("a single token", model=Mixer(weights(1)), tokens=some[:, :1], vocab_size=7)


MOVED = "{row for row in range(later) if moved[row]}"
ANOTHER = "(changed[:, later] + 1) % vocab_size"


def from_each_token_on(
    model: Callable[[Tensor], Tensor], tokens: Tensor, vocab_size: int
) -> list[int]:
    """Change all tokens from each position on, and list the rows before it that move."""
    before, leaks = model(tokens), set()
    for first in range(1, tokens.size(1)):
        changed = torch.cat([tokens[:, :first], (tokens[:, first:] + 1) % vocab_size], dim=1)
        rows = (model(changed) != before).any(dim=-1).any(dim=0)[:first]
        leaks.update(rows.nonzero().flatten().tolist())
    return sorted(leaks)


rows_that_leak = Exercise(
    NOTEBOOK,
    "rows_that_leak",
    leaky_models,
    library=leaky_heads.rows_that_leak,
    given={"nn": torch.nn},
    smaller="Row 0 may see token 0 only. Which tokens do you have to change to test row 0?",
    says={"result": "these aren't the rows that depend on a later token."},
    wrong={
        "your function returns None; is the `return` missing?": lambda *_: None,
        "you change only the last token, so you miss a row that sees a later token before it. "
        "Change one token after the other.": ("range(1, tokens.size(1))", "[tokens.size(1) - 1]"),
        "you change only the token after each row, so you miss rows that look further ahead.": (
            MOVED,
            "{row for row in [later - 1] if moved[row]}",
        ),
        "you count the row of the changed token, too. A row may see its own token.": (
            "range(later)",
            "range(later + 1)",
        ),
        "you count all rows that move. Rows after the changed token should move, because they may "
        "see it.": ("range(later)", "range(tokens.size(1))"),
        "you list the tokens that are seen too early, not the rows that see them.": (
            MOVED,
            "{later for row in range(later) if moved[row]}",
        ),
        "you set the token to 0, which changes nothing if it was 0 before. Replace it with another "
        "token of the vocabulary.": (ANOTHER, "0"),
        "you compare the first text only; a leak may show in another one.": (
            ".amax(dim=(0, 2))",
            "[0].amax(dim=-1)",
        ),
        "you return whether the model leaks; return the rows.": (
            "return sorted(leaks)",
            "return bool(leaks)",
        ),
        "return each row once, in order.": (
            "return sorted(leaks)",
            "return sorted(leaks) + sorted(leaks)",
        ),
    },
    refused=[
        (".clone()", ""),
        (ANOTHER, "changed[:, later] + 1"),
        ("1e-6", "0.1"),
        ("set()", "{0}"),
        lambda model, tokens, vocab_size: list(range(tokens.size(1) - 1)),
        lambda model, tokens, vocab_size: [],
    ],
    right=[
        from_each_token_on,
        (ANOTHER, "(changed[:, later] - 1) % vocab_size"),
        ("> 1e-6", "> 0"),
    ],
)


# predicted_strides

VIEWS = (
    "x[1]",
    "x[:, 2]",
    "x[..., ::2]",
    "x.transpose(0, 2)",
    "x[1, 1:, 3]",
    "x[:, :1].expand(2, 5, 4)",
)


def views() -> Iterator[Case]:
    """Yield the views of arange(24.).view(2, 3, 4) whose strides are asked for."""
    for view in VIEWS:
        yield Case(view)


def observe_prediction(answer: Any, case: Case) -> Record:
    """Return the strides and the offset that an answer gives for a view."""
    if not isinstance(answer, dict):
        return {"form": plain(answer)}
    if all(given is ... for given in answer.values()):
        raise NotImplementedError
    given = answer.get(case.what, ...)
    if given is ...:
        return {"form": "a dict", "answer": "is missing"}
    record: Record = {"form": "a dict", "answer": "is there"}
    if not isinstance(given, tuple | list) or len(given) != 2:
        return record | {"pair": plain(given)}
    steps, offset = given
    steps = steps.tolist() if isinstance(steps, np.ndarray | Tensor) else steps
    if not isinstance(steps, tuple | list):
        return record | {"pair": plain(given)}
    return record | {"pair": True, "strides": plain(steps), "offset": plain(offset)}


predicted_strides = Exercise(
    NOTEBOOK,
    "predicted_strides",
    views,
    observe=observe_prediction,
    answers=("answer",),
    is_quiz=True,
    smaller="Which slots of x hold x[0, 2, 0] and x[1, 2, 0]?",
    says={
        "form": "keep the dictionary, and replace each `...` in it.",
        "answer": "it has no answer yet; every answer above it is right.",
        "pair": "give a pair (strides, offset) such as ((4, 1), 0); a single stride is (4,).",
        "strides": "these are not its strides. An index such as x[1] removes a dimension, a slice "
        "keeps it.",
        "offset": "the strides are right; the offset is the slot of its first element.",
    },
    wrong={
        "x[1]: those are bytes, as NumPy counts; torch counts elements (divide by 4).": [
            ("(4, 1), 12", "(16, 4), 48"),
            ("(4, 1), 12", "(16, 4), 12"),
        ],
        "x[1]: the strides are right, but the offset counts elements, not bytes.": (
            "(4, 1), 12",
            "(4, 1), 48",
        ),
        "x[1]: the strides are right, but its first element is not in slot 0.": (
            "(4, 1), 12",
            "(4, 1), 0",
        ),
        "x[1]: an index such as x[1] removes a dimension, a slice keeps it.": (
            "(4, 1), 12",
            "(12, 4, 1), 12",
        ),
        "x[1]: the index 1 skips a whole block, so multiply it by the stride of dimension 0.": [
            ("(4, 1), 12", "(4, 1), 1"),
            ("(4, 1), 12", "(4, 1), 4"),
        ],
        "x[:, 2]: those are the strides of a fresh (2, 4) tensor; a view keeps x's steps, so the "
        "next block of x is as far away as before.": ("(12, 1), 8", "(4, 1), 8"),
        "x[:, 2]: the index 2 removed dimension 1, so dimension 1's stride goes, not the last "
        "one's.": ("(12, 1), 8", "(12, 4), 8"),
        "x[:, 2]: the strides are right, but the offset counts elements, not bytes.": (
            "(12, 1), 8",
            "(12, 1), 32",
        ),
        "x[:, 2]: the strides are right, but its first element is not in slot 0.": (
            "(12, 1), 8",
            "(12, 1), 0",
        ),
        "x[:, 2]: the index 2 skips two rows, so multiply it by the stride of dimension 1.": (
            "(12, 1), 8",
            "(12, 1), 2",
        ),
        "x[:, 2]: 2 is an index of dimension 1, so multiply it by the stride of that dimension.": (
            "(12, 1), 8",
            "(12, 1), 24",
        ),
        "x[..., ::2]: taking every second element doubles the step.": ("(12, 4, 2)", "(12, 4, 1)"),
        "x[..., ::2]: those are the strides of a compact copy; nothing was copied, so rows stay 4 "
        "slots apart.": [("(12, 4, 2)", "(6, 2, 1)"), ("(12, 4, 2)", "(6, 2, 2)")],
        "x.transpose(0, 2): transposing swaps the two strides; yours are still x's.": (
            "(1, 4, 12)",
            "(12, 4, 1)",
        ),
        "x.transpose(0, 2): those are the strides of a fresh (4, 3, 2) tensor; transposing moves "
        "no number, it swaps strides.": ("(1, 4, 12)", "(6, 2, 1)"),
        "x.transpose(0, 2): transpose(0, 2) swaps the first stride and the last; the middle one "
        "stays.": [("(1, 4, 12)", "(4, 1, 12)"), ("(1, 4, 12)", "(1, 12, 4)")],
        "x[1, 1:, 3]: the dimension that is left is x's dimension 1, which keeps its stride.": (
            "((4,), 19)",
            "((1,), 19)",
        ),
        "x[1, 1:, 3]: the dimension that is left is x's dimension 1, not 0.": (
            "((4,), 19)",
            "((12,), 19)",
        ),
        "x[1, 1:, 3]: the strides are right, but its first element is not in slot 0.": (
            "19)",
            "0)",
        ),
        "x[1, 1:, 3]: multiply each index by the stride of its dimension, and add the products.": (
            "19)",
            "5)",
        ),
        "x[1, 1:, 3]: the slice begins at 1, which moves the first element, too.": ("19)", "15)"),
        "x[1, 1:, 3]: the last index moves the first element, too.": ("19)", "16)"),
        "x[1, 1:, 3]: the first index moves the first element, too.": ("19)", "7)"),
        "x[:, :1].expand(2, 5, 4): an expanded dimension doesn't move in memory, so its stride is "
        "0.": ("(12, 0, 1)", "(12, 4, 1)"),
        "x[:, :1].expand(2, 5, 4): those are the strides of a real (2, 5, 4) copy; expand repeats "
        "without storing, by stride 0.": ("(12, 0, 1)", "(20, 4, 1)"),
    },
    refused=[
        ("(12, 0, 1)", "(12, 1)"),
        ("((4,), 19)", "..."),
        ("((4,), 19)", "((4,), 18)"),
        ("((4,), 19)", "(4, 19)"),
        ("((4, 1), 12)", "(4, 1)"),
        ("((4, 1), 12)", "((3, 4), 12)"),
        ("((4, 1), 12)", "((9, 9), 12)"),
        "answer = [((4, 1), 12)]",
        "answer = {'x[:, 2]': ((12, 1), 8)}",
    ],
    right=[
        edits(("((4, 1), 12)", "[[4, 1], 12]"), ("((4,), 19)", "[[4], 19]")),
        edits(("((4, 1), 12)", "(np.array([4, 1]), np.int64(12))")),
        edits(("((4, 1), 12)", "(torch.tensor([4, 1]), torch.tensor(12))")),
        edits(("((4, 1), 12)", "(torch.empty(4, 4).stride(), 12)")),
    ],
)


# can_view

# Cases that are rare among the drawn ones: shape, strides and new shape
RARE_CASES: list[tuple[Shape, Shape, Shape]] = [
    ((6,), (2,), (2, 3)),
    ((6,), (0,), (2, 3)),
    ((5,), (0,), (5, 1)),
    ((), (), ()),
    ((), (), (1,)),
    ((), (), (2,)),
    ((1,), (5,), ()),
    ((1, 1), (7, 3), (1,)),
    ((1, 1), (1, 1), (1, 1, 1)),
    ((2, 1, 2, 3, 2), (12, 12, 6, 2, 1), (4, 6)),
    ((2, 2, 2, 2, 2), (32, 16, 8, 2, 1), (8, 4)),
    ((2, 2, 2, 2, 2), (32, 16, 8, 2, 1), (4, 8)),
    ((16,), (3,), (2, 2, 2, 2, 1)),
    ((12, 30), (30, 1), (40, 9)),
    ((12, 30), (40, 1), (4, 90)),
    ((30, 12), (1, 30), (5, 6, 12)),
]


def shapes() -> Iterator[Case]:
    """Yield shapes, strides and new shapes."""
    for shape, stride, new_shape in (*view_cases(200 - len(RARE_CASES)), *RARE_CASES):
        yield Case("", shape=shape, stride=stride, new_shape=new_shape)


def observe_rule(answer: Callable[[Shape, Shape, Shape], Any], case: Case) -> Record:
    """Return whether a rule says that a tensor can be viewed. It has to do without torch."""
    with watched((), without_torch=True) as used:
        result = answer(*case.inputs.values())
    return {"used": sorted(used), "its answer": None if result is None else bool(result)}


def same_count(shape: Shape, new_shape: Shape) -> bool:
    """Return whether two shapes have the same number of elements."""
    return math.prod(shape) == math.prod(new_shape)


def by_products(shape: Shape, stride: Shape, new_shape: Shape) -> bool:
    """Compare the products of the sizes at the right of each break."""
    sizes_of_runs = [run.size for run in merge_dimensions(shape, stride)]
    return same_count(shape, new_shape) and stays_between(sizes_of_runs, new_shape)


def stays_between(breaks: Sequence[int], new_shape: Shape) -> bool:
    """Return whether `new_shape` also has a border at each border between sizes in `breaks`."""
    borders = {math.prod(breaks[n:]) for n in range(len(breaks) + 1)}
    return borders <= {math.prod(new_shape[n:]) for n in range(len(new_shape) + 1)}


def like_numpy(shape: Shape, stride: Shape, new_shape: Shape) -> bool:
    """Compare groups of old and new dimensions with equal products, from the left."""
    if not same_count(shape, new_shape):
        return False
    old = [(size, step) for size, step in zip(shape, stride, strict=True) if size > 1]
    new = [size for size in new_shape if size > 1]
    while old:
        group, kept = [old.pop(0)], [new.pop(0)]
        while (have := math.prod(size for size, _ in group)) != (want := math.prod(kept)):
            if have < want:
                group.append(old.pop(0))
            else:
                kept.append(new.pop(0))
        if any(a[1] != b[0] * b[1] for a, b in itertools.pairwise(group)):
            return False
    return True


COUNTED = "runs = []"

can_view = Exercise(
    NOTEBOOK,
    "can_view",
    shapes,
    observe=observe_rule,
    smaller="A tensor of shape (4, 4) has strides (6, 1). Which slots does it use, and where are "
    "gaps?",
    given={"storage": strided_storage},
    wrong={
        "your function returns None; it must return True or False.": lambda *_: None,
        "You ask for contiguity. That is enough, but not needed: a non-contiguous tensor can be "
        "viewed as long as no new dimension straddles a break (try splitting a dimension).": (
            COUNTED,
            "return storage.is_row_major(shape, stride)",
        ),
        "You ask for the strides of a fresh tensor. That is enough, but not needed: others can be "
        "viewed, too, as long as no new dimension straddles a break.": (
            COUNTED,
            "return stride == tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))",
        ),
        "You only compare the numbers of elements; the strides decide.": (COUNTED, "return True"),
        "You ask whether everything merges into one run. It need not: a break may stay where it "
        "is, as long as no new dimension has to cross it.": (
            "left = 1\n    for",
            "return len(runs) <= 1\n    left = 1\n    for",
        ),
        "You ask whether everything merges into one run, and count dimensions of size 1; a break "
        "may stay where it is, and the stride of a size-1 dimension is never used.": edits(
            ("if size == 1:", "if False:"),
            ("left = 1\n    for", "return len(runs) <= 1\n    left = 1\n    for"),
        ),
        "You ask whether the strides fall from left to right. Gaps between rows break a run, too, "
        "and a transpose can still be viewed as long as no new dimension straddles a break.": (
            COUNTED,
            "return list(stride) == sorted(stride, reverse=True)",
        ),
        "You split dimensions, but never join two of them. Dimensions join if the left stride is "
        "the right stride times the right size.": (
            "runs[-1][0] *= size",
            "runs.append([size, step])",
        ),
        "You refuse strides of 0, but they follow the same rule as others.": (
            COUNTED,
            "if 0 in stride:\n        return False\n    runs = []",
        ),
        "the number of elements must stay the same; check that first.": (
            "math.prod(shape) != math.prod(new_shape)",
            "False",
        ),
        "Drop dimensions of size 1 first; their stride is unused.": ("if size == 1:", "if False:"),
        "a tensor without dimensions has no last stride.": (
            COUNTED,
            "last = stride[-1]\n    runs = []",
        ),
    },
    refused=[
        (COUNTED, "return stride[-1] == 1"),
        (" and size > 1", ""),
        ("if runs and", "if runs and step and"),
        ("step == runs[-1][0] * runs[-1][1]", "True"),
        ("runs[-1][0] * runs[-1][1]", "runs[-1][1]"),
        ("runs.pop(0)", "runs.pop()"),
        ("reversed(new_shape)", "new_shape"),
        ("left % size", "left < size"),
        (
            "zip(reversed(shape), reversed(stride))",
            "sorted(zip(shape, stride), key=lambda d: d[1])",
        ),
        *(
            (COUNTED, f"if {test}:\n        return {result}\n    runs = []")
            for test, result in (
                ("len(shape) == 1 and stride[0] != 1", False),
                ("len(shape) == 1 and stride[0] == 0", False),
                ("not shape", False),
                ("not new_shape", "shape == ()"),
                ("math.prod(shape) == 1", "len(shape) == len(new_shape)"),
                ("len(shape) > 4", False),
                ("len(new_shape) > 4", False),
                ("math.prod(shape) > 100", False),
                ("len(new_shape) >= len(shape)", True),
            )
        ),
        "def can_view(shape, stride, new_shape):\n"
        "    try:\n"
        "        torch.empty_strided(shape, stride).view(new_shape)\n"
        "    except RuntimeError:\n"
        "        return False\n"
        "    return True\n",
        "can_view = storage.torch_views",
        lambda *_: True,
        lambda *_: False,
        lambda *given: like_numpy(*given) or None,
        lambda shape, stride, new_shape: new_shape[1],
        lambda shape, _, new_shape: (
            same_count(shape, new_shape) and stays_between(shape, new_shape)
        ),
    ],
    right=[by_products, like_numpy, lambda *given: int(like_numpy(*given))],
)


# Views of a tensor


def observe_views(name: str) -> Observer:
    """Return the observer of a function whose results are views of the input `name`."""
    observe = function(grad=name)

    def observe_memory(answer: Callable[..., Any], case: Case) -> Record:
        record = observe(answer, case)
        x = case.inputs[name]
        result = answer(*case.inputs.values())
        results = result if isinstance(result, tuple | list) else [result]
        record["memory"] = [shares_memory(view, x) for view in results if isinstance(view, Tensor)]
        return record

    return observe_memory


def shares_memory(view: Tensor, x: Tensor) -> bool:
    """Return whether `view` begins in the memory of `x`, even if NumPy made it."""
    storage = x.untyped_storage()
    return 0 <= view.data_ptr() - storage.data_ptr() < storage.nbytes()


def qkv_cases() -> Iterator[Case]:
    """Yield qkv [batch, seq, channels], and the number of heads."""
    yield Case("", qkv=torch.arange(2.0 * 5 * 36).view(2, 5, 36), n_head=3)
    for size in sizes(3, batch=(1, 4), seq=(2, 6), n_head=(2, 5), head_dim=(2, 5)):
        qkv = normal(size.batch, size.seq, 3 * size.n_head * size.head_dim)
        yield Case("other sizes", qkv=qkv, n_head=size.n_head)
    yield Case("a single head", qkv=normal(2, 4, 3 * 5), n_head=1)
    yield Case("a single channel in each head", qkv=normal(2, 3, 3 * 4), n_head=4)
    yield Case("a single token", qkv=normal(3, 1, 3 * 2 * 2), n_head=2)
    yield Case("a slice of a longer sequence", qkv=normal(3, 9, 3 * 2 * 4)[:, 2:6], n_head=2)
    swapped = normal(4, 3, 18).transpose(0, 1)
    yield Case("a qkv whose batch and seq are transposed", qkv=swapped, n_head=2)
    yield Case("every second channel of a tensor", qkv=normal(2, 3, 2 * 18)[..., 1::2], n_head=3)
    yield Case("a batch of one sequence", qkv=normal(1, 4, 3 * 2 * 3), n_head=2)
    yield Case("numbers in float64", qkv=normal(2, 4, 3 * 2 * 3).double(), n_head=2)


def in_heads(part: Tensor, n_head: int) -> Tensor:
    """Return a third of qkv as (batch, head, seq, head_dim)."""
    return part.view(*part.shape[:2], n_head, -1).transpose(1, 2)


def by_as_strided(qkv: Tensor, n_head: int) -> list[Tensor]:
    """Compute the strides and the starts."""
    (batch, seq, width), (outer, row, step) = qkv.shape, qkv.stride()
    size = width // (3 * n_head)
    shape, stride = (batch, n_head, seq, size), (outer, size * step, row, step)
    starts = [qkv.storage_offset() + n * n_head * size * step for n in range(3)]
    return [qkv.as_strided(shape, stride, start) for start in starts]


def thirds(cut: Callable[[Tensor, int], Any]) -> Callable[[Tensor, int], Any]:
    """Return an answer that applies `cut` to each third of the channels."""
    return lambda qkv, n_head: tuple(cut(part, n_head) for part in qkv.chunk(3, -1))


SPLIT = "3, n_head, channels // (3 * n_head)"
ORDER = "2, 0, 3, 1, 4"
FRESH = (
    "right for a fresh qkv, but yours reads a view of a longer tensor as if it were fresh. Compute "
    "the strides from qkv.stride(), and the start from qkv.storage_offset()."
)

split_heads = Exercise(
    NOTEBOOK,
    "split_heads",
    qkv_cases,
    observe=observe_views("qkv"),
    axes="(batch, head, seq, head_dim)",
    smaller="With 2 heads of 3 channels each, which channels of qkv hold the keys of head 1?",
    says={
        "memory": "the numbers are right, but they are a copy. A slice or chunk, view and "
        "transpose need none; leave out reshape, contiguous and clone.",
    },
    wrong={
        "return three tensors: q, k and v, as a tuple.": [
            lambda qkv, n_head: qkv,
            lambda qkv, n_head: (in_heads(part, n_head) for part in qkv.chunk(3, -1)),
        ],
        "the head axis must come before seq; transpose(1, 2).": (ORDER, "2, 0, 1, 3, 4"),
        "reshaping straight to (batch, head, seq, head_dim) chops each row up. Split channels into "
        "(head, head_dim) first, then transpose.": thirds(
            lambda part, n_head: part.reshape(len(part), n_head, part.size(1), -1)
        ),
        "head h owns channels h * head_dim to (h + 1) * head_dim; yours takes every n_head-th "
        "channel. View the channels as (head, head_dim), in that order.": edits(
            (SPLIT, "3, channels // (3 * n_head), n_head"), (ORDER, "2, 0, 4, 1, 3")
        ),
        "you cut the channels as (head, three, head_dim). All queries come first, then all keys, "
        "then all values: (three, head, head_dim).": edits(
            (SPLIT, "n_head, 3, channels // (3 * n_head)"), (ORDER, "3, 0, 2, 1, 4")
        ),
        "you take every third channel. All queries come first, then all keys, then all values.": (
            edits((SPLIT, "n_head, channels // (3 * n_head), 3"), (ORDER, "4, 0, 2, 1, 3"))
        ),
        "your three tensors are equal; check the slices.": ("unbind(0)", "unbind(0)[:1] * 3"),
        "your tensors hold other parts; are q, k, v in that order?": [
            ("unbind(0)", "unbind(0)[::-1]"),
            (
                "return parts.permute(2, 0, 3, 1, 4).unbind(0)",
                "q, k, v = parts.permute(2, 0, 3, 1, 4)\n    return k, q, v",
            ),
        ],
        "your tensors are right, but copies. A slice or chunk, view and transpose need none; leave "
        "out reshape, contiguous and clone.": (".unbind(0)", ".contiguous().unbind(0)"),
        "right for a fresh qkv, but a copy for a view of a longer tensor; leave out contiguous and "
        "reshape.": ("qkv.view", "qkv.contiguous().view"),
        FRESH: [
            (
                f"qkv.view(batch, seq, {SPLIT})",
                f"qkv.as_strided((batch, seq, {SPLIT}), "
                "(seq * channels, channels, channels // 3, channels // (3 * n_head), 1))",
            ),
            "def split_heads(qkv, n_head):\n"
            "    batch, seq, channels = qkv.shape\n"
            "    size = channels // (3 * n_head)\n"
            "    outer, row, step = qkv.stride()\n"
            "    shape, stride = (batch, n_head, seq, size), (outer, size * step, row, step)\n"
            "    offsets = (n * channels // 3 * step for n in range(3))\n"
            "    return [qkv.as_strided(shape, stride, offset) for offset in offsets]\n",
            "def split_heads(qkv, n_head):\n"
            "    batch, seq, width = qkv.shape\n"
            "    size = width // (3 * n_head)\n"
            "    shape, stride = (batch, n_head, seq, size), (seq * width, size, width, 1)\n"
            "    return [qkv.as_strided(shape, stride, n * n_head * size) for n in range(3)]\n",
        ],
        "NumPy doesn't record operations, so the gradient is lost. Use torch's functions.": (
            lambda qkv, n_head: [
                in_heads(torch.from_numpy(part), n_head)
                for part in np.split(qkv.detach().numpy(), 3, axis=-1)
            ]
        ),
    },
    refused=[
        edits(
            (
                "channels // (3 * n_head))",
                "channels // (3 * n_head))\n"
                "    parts = [p.reshape(batch, n_head, seq, -1) for p in qkv.chunk(3, -1)]",
            ),
            ("parts.permute(2, 0, 3, 1, 4).unbind(0)", "parts"),
        ),
        (ORDER, "2, 0, 3, 4, 1"),
        (ORDER, "2, 3, 0, 1, 4"),
        ("channels // (3 * n_head)", "4"),
        ("n_head, channels // (3 * n_head)", "3, channels // 9"),
        ("n_head, channels // (3 * n_head)", "channels // (3 * n_head), n_head"),
        ("qkv.view(batch, seq, 3", "qkv.view(batch * seq, -1).view(batch, seq, 3"),
        ("qkv.view(batch, seq", "qkv[:1].expand(batch, -1, -1).view(batch, seq"),
        ("qkv.view", "qkv.float().view"),
        ("batch, seq, channels = qkv", "qkv = qkv.squeeze(0)\n    batch, seq, channels = qkv"),
        ("parts = qkv.view", "parts = qkv.mul_(1.5).div_(1.5).view"),
        ("qkv.view", "(2 * qkv).view"),
        ("qkv.view", "qkv.detach().view"),
        ("qkv.view", "qkv.as_strided(qkv.shape, (*qkv.stride()[:2], 1)).view"),
        thirds(lambda part, n_head: None),
        thirds(lambda part, n_head: part),
        lambda qkv, n_head: (
            *(in_heads(part, n_head) for part in qkv.chunk(3, -1)[:2]),
            in_heads(qkv.data.chunk(3, -1)[2], n_head),
        ),
    ],
    right=[
        by_as_strided,
        thirds(in_heads),
        lambda qkv, n_head: [
            part.unflatten(-1, (n_head, -1)).movedim(2, 1) for part in qkv.chunk(3, -1)
        ],
        lambda qkv, n_head: einops.rearrange(qkv, "b t (n h d) -> n b h t d", n=3, h=n_head).unbind(
            0
        ),
    ],
)
