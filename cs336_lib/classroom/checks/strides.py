"""Exercise checks for notebook 02 on strides, views and masks."""

from collections.abc import Callable, Mapping
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from cs336_lib.classroom.checks.report import exercise, expect
from cs336_lib.classroom.storage import (
    Run,
    Shape,
    is_row_major,
    merge_dimensions,
    row_major_strides,
    same_storage,
    torch_views,
    view_cases,
)

VIEWS: dict[str, tuple[Shape, int]] = {
    "x[1]": ((4, 1), 12),
    "x[:, 2]": ((12, 1), 8),
    "x[..., ::2]": ((12, 4, 2), 0),
    "x.transpose(0, 2)": ((1, 4, 12), 0),
    "x[1, 1:, 3]": ((4,), 19),
    "x[:, :1].expand(2, 5, 4)": ((12, 0, 1), 0),
}
# The result of a typical misconception, with its explanation.
WRONG_STRIDES: dict[tuple[str, Shape], str] = {
    ("x[:, 2]", (4, 1)): (
        "those are the strides of a fresh (2, 4) tensor; a view keeps x's steps, and from one "
        "block of x to the next it is still 12 slots"
    ),
    ("x[:, 2]", (12, 4)): (
        "the index 2 removed dimension 1, so dimension 1's stride goes, not the last one's"
    ),
    ("x[..., ::2]", (12, 4, 1)): "taking every second element doubles the step",
    ("x[..., ::2]", (6, 2, 1)): (
        "those are the strides of a compact copy; nothing was copied, so rows stay 4 slots apart"
    ),
    ("x.transpose(0, 2)", (12, 4, 1)): "transposing swaps the two strides; yours are still x's",
    ("x.transpose(0, 2)", (6, 2, 1)): (
        "those are the strides of a fresh (4, 3, 2) tensor; transposing moves no number, "
        "it swaps strides"
    ),
    ("x.transpose(0, 2)", (4, 1, 12)): (
        "transpose(0, 2) swaps the first stride and the last; the middle one stays"
    ),
    ("x[1, 1:, 3]", (1,)): "the dimension that is left is x's dimension 1, which steps by 4",
    ("x[:, :1].expand(2, 5, 4)", (12, 4, 1)): "an expanded dimension doesn't move in memory, so "
    "its stride is 0",
    ("x[:, :1].expand(2, 5, 4)", (20, 4, 1)): (
        "those are the strides of a real (2, 5, 4) copy; expand repeats without storing, by stride "
        "0"
    ),
}


@exercise("")
def predicted_strides(answer: Mapping[str, tuple[Shape, int]]) -> None:
    """Check the predicted (strides, offset) of each view of arange(24.).view(2, 3, 4)."""
    if all(value is ... for value in answer.values()):
        raise NotImplementedError
    for name, (stride, offset) in VIEWS.items():
        expect(
            answer.get(name, ...) is not ...,
            f"{name} has no answer yet; every answer above it is right.",
        )
        given = answer[name]
        expect(
            isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], tuple),
            f"{name}: give a pair (strides, offset) such as ((4, 1), 0); a single stride is (4,).",
        )
        got, got_offset = given
        expect(
            len(got) == len(stride),
            f"{name} has {len(stride)} dimension(s), so as many strides; you gave {len(got)}. "
            "An index such as x[1] removes a dimension, a slice keeps it.",
        )
        expect(
            got != tuple(4 * s for s in stride),
            f"{name}: those are bytes, as NumPy counts; torch counts elements (divide by 4).",
        )
        expect((name, got) not in WRONG_STRIDES, f"{name}: {WRONG_STRIDES.get((name, got))}.")
        expect(got == stride, f"{name}: {got} are not its strides.")
        expect(
            got_offset != 0 or offset == 0,
            f"{name}: the strides are right, but its first element is not in slot 0.",
        )
        expect(
            got_offset == offset,
            f"{name}: the strides are right; the offset is the slot of its first element, "
            f"not {got_offset}.",
        )


def counts_size_one(shape: Shape, stride: Shape) -> list[Run]:
    """Merge dimensions like `merge_dimensions`, with the mistake of keeping size 1."""
    runs: list[Run] = []
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if runs and step == runs[0].step * runs[0].size:
            runs[0] = Run(size * runs[0].size, runs[0].step)
        else:
            runs.insert(0, Run(size, step))
    return runs


@exercise("")
def can_view(rule: Callable[[Shape, Shape, Shape], bool]) -> None:
    """Check `rule(shape, stride, new_shape)` against `torch.Tensor.view`."""
    cases = view_cases()
    expect(rule(*cases[0]) is not None, "your function returns None; it must return True or False.")
    truth = [torch_views(*case) for case in cases]
    answers = [bool(rule(*case)) for case in cases]

    def same_count(case: tuple[Shape, Shape, Shape]) -> bool:
        return prod(case[0]) == prod(case[2])

    typical = {
        "You ask for contiguity. That is enough, but not needed: a non-contiguous tensor can be "
        "viewed as long as no new dimension straddles a break (try splitting a dimension).": (
            lambda case: same_count(case) and is_row_major(case[0], case[1])
        ),
        "You ask for the strides of a fresh tensor. That is enough, but not needed: others can be "
        "viewed, too, as long as no new dimension straddles a break.": (
            lambda case: same_count(case) and case[1] == row_major_strides(case[0])
        ),
        "You only compare the numbers of elements; the strides decide.": same_count,
        "You ask whether everything merges into one run. It need not: a break may stay where it "
        "is, as long as no new dimension has to cross it.": (
            lambda case: same_count(case) and len(merge_dimensions(case[0], case[1])) <= 1
        ),
        "You ask whether everything merges into one run, and count dimensions of size 1; a break "
        "may stay where it is, and the stride of a size-1 dimension is never used.": (
            lambda case: same_count(case) and len(counts_size_one(case[0], case[1])) <= 1
        ),
    }
    for diagnosis, wrong in typical.items():
        expect(answers == truth or answers != [wrong(case) for case in cases], diagnosis)
    for case, want, got in zip(cases, truth, answers, strict=True):
        shape, stride, new_shape = case
        told = f"shape {shape}, strides {stride}, view{new_shape}"
        expect(
            want == got or same_count(case),
            f"{told}: the number of elements must stay the same; check that first.",
        )
        expect(
            want == got or 1 not in shape,
            f"{told}: torch says {want}. Drop dimensions of size 1 first; their stride is unused.",
        )
        expect(
            want == got,
            f"{told}: torch says {want}, you say {got}. Its runs are "
            f"{[tuple(run) for run in merge_dimensions(shape, stride)]} as (size, step); fill them "
            "from the right, one at a time.",
        )


@exercise("")
def split_heads(split: Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]]) -> None:
    """Check that `split(qkv, n_head)` returns q, k and v as views (batch, head, seq, head_dim)."""
    batch, seq, n_head, head_dim = 2, 5, 3, 4
    channels = n_head * head_dim
    qkv = torch.arange(float(batch * seq * 3 * channels)).view(batch, seq, 3 * channels)
    parts = split(qkv, n_head)
    expect(
        isinstance(parts, (tuple, list)) and len(parts) == 3, "return three tensors: q, k and v."
    )
    # Written with indices instead of views, so that it cannot share a learner's mistake.
    index = torch.arange(channels).reshape(n_head, head_dim)
    for number, (name, got) in enumerate(zip("qkv", parts, strict=True)):
        expect(isinstance(got, Tensor), f"{name} is not a tensor; is a `return` missing?")
        flat = qkv[..., number * channels : (number + 1) * channels]
        want = torch.stack([flat[..., channel] for channel in index], dim=1)
        expect(
            got.shape != (batch, seq, n_head, head_dim),
            f"{name} is (batch, seq, head, head_dim): the head axis must come before seq; "
            "transpose(1, 2).",
        )
        expect(
            got.shape == want.shape,
            f"{name} has shape {tuple(got.shape)}; it should be {tuple(want.shape)}, "
            "(batch, head, seq, head_dim).",
        )
        chopped = flat.reshape(batch, n_head, seq, head_dim)
        expect(
            not torch.equal(got, chopped),
            f"{name} has the right shape but the wrong numbers; reshaping straight to "
            "(batch, head, seq, head_dim) chops each row up. Split channels into (head, head_dim) "
            "first, then transpose.",
        )
        woven = flat.reshape(batch, seq, head_dim, n_head).permute(0, 3, 1, 2)
        expect(
            not torch.equal(got, woven),
            f"{name}: head h owns channels h * head_dim to (h + 1) * head_dim; yours takes every "
            "n_head-th channel. View the channels as (head, head_dim), in that order.",
        )
        mixed = qkv.view(batch, seq, n_head, 3, head_dim)[..., number, :].transpose(1, 2)
        expect(
            not torch.equal(got, mixed),
            f"{name}: you cut the channels as (head, three, head_dim). All queries come first, "
            "then all keys, then all values: (three, head, head_dim).",
        )
        third = [torch.equal(got, other) for other in (parts[n] for n in range(3) if n != number)]
        expect(not any(third), f"{name} equals another of your three tensors; check the slices.")
        expect(
            torch.equal(got, want), f"{name} holds the wrong numbers; are q, k, v in that order?"
        )
        expect(
            same_storage(got, qkv),
            f"{name} is right, but a copy. A slice or chunk, view and transpose need none; "
            "leave out reshape, contiguous and clone.",
        )


@exercise("")
def im2col(windows: Callable[[Tensor, int], Tensor]) -> None:
    """Check that `windows(image, k)` returns every k x k patch as a view (rows, columns, k, k)."""
    k = 3
    # The storages are longer than needed, so wrong strides get a diagnosis and no index error.
    plain = torch.arange(60.0).view(10, 6)[:5]
    column_major = torch.arange(60.0).view(12, 5)[:6].T
    inside = torch.arange(80.0).view(8, 10)[2:7, 3:9]
    for image in (plain, column_major, inside):
        got = windows(image, k)
        expect(isinstance(got, Tensor), "return a tensor; is the `return` missing?")
        rows, columns = image.size(0) - k + 1, image.size(1) - k + 1
        expect(
            got.shape != (rows - 1, columns - 1, k, k),
            f"a window of {k} fits into {image.size(0)} rows at {rows} places, not {rows - 1}: "
            "height - k + 1.",
        )
        expect(
            got.shape == (rows, columns, k, k),
            f"the shape is {tuple(got.shape)}; it should be {(rows, columns, k, k)} for an "
            "image of "
            f"{tuple(image.shape)}.",
        )
        corners = [(i, j) for i in range(rows) for j in range(columns)]
        want = torch.stack([image[i : i + k, j : j + k] for i, j in corners])
        want = want.reshape(rows, columns, k, k)
        if not torch.equal(got, want):
            stride = got.stride()
            down, right = image.stride()
            expect(
                stride != (right, down, right, down),
                "rows and columns are swapped: a step down in the image goes with dimensions 0 "
                "and 2, a step right with 1 and 3.",
            )
            width = image.size(1)
            expect(
                stride != (width, 1, width, 1) or (down, right) == (width, 1),
                "right for a fresh image, wrong for a view of one (here strides "
                f"{(down, right)}): you wrote (width, 1); read image.stride().",
            )
            expect(
                stride != (k * down, k * right, down, right),
                "your windows are tiles that jump by k; the next window should start one pixel "
                "further.",
            )
            expect(
                got.storage_offset() == image.storage_offset(),
                "wrong for a crop: its first pixel is not in slot 0. as_strided's storage_offset "
                "counts from the storage's start; leave it out to keep the image's own.",
            )
            expect(False, f"the windows hold wrong numbers; your strides are {stride}.")
        expect(
            same_storage(got, image),
            "the windows are right, but they are a copy; as_strided (or Tensor.unfold) gives them "
            "as a view.",
        )


@exercise("")
def causal_mask(mask: Callable[[int, int], Tensor]) -> None:
    """Check `mask(queries, keys)`, which is True where a query may attend to a key.

    The queries are the last tokens of the sequence of keys.
    """
    got = mask(4, 4)
    expect(isinstance(got, Tensor), "return a tensor; is the `return` missing?")
    expect(got.shape == (4, 4), f"mask(4, 4) has shape {tuple(got.shape)}, not (4, 4).")
    square = torch.ones(4, 4, dtype=torch.bool)
    expect(
        not (got.is_floating_point() and got.isinf().any()),
        "that is a mask to add (0 and -inf); return a boolean one, True where a query may look.",
    )
    values = got != 0
    expect(
        not torch.equal(values, square.triu()),
        "that is triu: row i looks at itself and the future. scores[query, key] needs tril.",
    )
    expect(
        not torch.equal(values, square.triu(1)),
        "that marks what to hide. Here, as in scaled_dot_product_attention, True means 'may look'.",
    )
    expect(
        not torch.equal(values, square.tril(-1)),
        "a token must see itself, so include the diagonal; your first row is empty, and its "
        "softmax "
        "is nan.",
    )
    expect(
        not torch.equal(values, square.tril(1)),
        "each row reaches one token too far: it sees the token after it. diagonal=0 is the main "
        "diagonal, where a token sees itself.",
    )
    expect(torch.equal(values, square.tril()), f"mask(4, 4) is wrong: {values.int().tolist()}.")
    expect(
        got.dtype == torch.bool,
        f"the pattern is right, the dtype is {got.dtype}: scaled_dot_product_attention adds "
        "floats to the scores and rejects integers. Start from dtype=torch.bool.",
    )
    q, k, v = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0)).double().unbind(0)
    ours = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=got)
    theirs = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
    expect(torch.allclose(ours, theirs), "scaled_dot_product_attention disagrees with is_causal.")
    longer = mask(2, 5)
    expect(longer.shape == (2, 5), f"mask(2, 5) has shape {tuple(longer.shape)}, not (2, 5).")
    oblong = torch.ones(2, 5, dtype=torch.bool)
    expect(
        not torch.equal(longer, oblong.tril()),
        "right for a square. With 2 queries and 5 keys the queries are the LAST two tokens, so "
        "the last one sees all five keys: shift the diagonal by keys - queries.",
    )
    expect(
        not torch.equal(longer, oblong.tril(-3)),
        "right for a square, but with 2 queries and 5 keys every row is empty, because the "
        "shift has "
        "the wrong sign. More keys than queries move the diagonal right by keys - queries.",
    )
    expect(torch.equal(longer, oblong.tril(3)), f"mask(2, 5) is wrong: {longer.int().tolist()}.")
