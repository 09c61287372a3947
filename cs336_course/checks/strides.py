"""Exercise checks for notebook 02 on strides, views and masks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cs336_course.checks import draws
from cs336_course.checks.gradients import expect_same_gradients
from cs336_course.checks.report import DiagnosisError, exercise, expect
from cs336_course.checks.without_torch import WithoutTorch
from cs336_course.demos.strided_storage import (
    Run,
    Shape,
    is_row_major,
    merge_dimensions,
    row_major_strides,
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
        "those are the strides of a fresh (2, 4) tensor; a view keeps x's steps, so the next "
        "block of x is as far away as before"
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
    ("x[1, 1:, 3]", (1,)): "the dimension that is left is x's dimension 1, which keeps its stride",
    ("x[1, 1:, 3]", (12,)): "the dimension that is left is x's dimension 1, not 0",
    ("x[:, :1].expand(2, 5, 4)", (12, 4, 1)): "an expanded dimension doesn't move in memory, so "
    "its stride is 0",
    ("x[:, :1].expand(2, 5, 4)", (20, 4, 1)): (
        "those are the strides of a real (2, 5, 4) copy; expand repeats without storing, by stride "
        "0"
    ),
}
# The same for offsets
WRONG_OFFSETS: dict[tuple[str, int], str] = {
    ("x[1]", 1): "the index 1 skips a whole block, so multiply it by the stride of dimension 0",
    ("x[1]", 4): "1 is an index of dimension 0, so multiply it by the stride of that dimension",
    ("x[:, 2]", 2): "the index 2 skips two rows, so multiply it by the stride of dimension 1",
    ("x[:, 2]", 24): "2 is an index of dimension 1, so multiply it by the stride of that dimension",
    ("x[1, 1:, 3]", 5): "multiply each index by the stride of its dimension, and add the products",
    ("x[1, 1:, 3]", 15): "the slice begins at 1, which moves the first element, too",
    ("x[1, 1:, 3]", 16): "the last index moves the first element, too",
    ("x[1, 1:, 3]", 7): "the first index moves the first element, too",
}


@exercise("Which slots of x hold x[0, 2, 0] and x[1, 2, 0]?")
def predicted_strides(answer: Mapping[str, tuple[Shape, int]]) -> None:
    """Check the predicted (strides, offset) of each view of arange(24.).view(2, 3, 4)."""
    expect(isinstance(answer, Mapping), "keep the dictionary, and replace each `...` in it.")
    if all(value is ... for value in answer.values()):
        raise NotImplementedError
    for name, (stride, offset) in VIEWS.items():
        given = answer.get(name, ...)
        expect(given is not ..., f"{name} has no answer yet; every answer above it is right.")
        is_pair = isinstance(given, tuple | list) and len(given) == 2
        steps = given[0] if is_pair else None
        steps = steps.tolist() if isinstance(steps, np.ndarray | Tensor) else steps
        expect(
            isinstance(steps, tuple | list),
            f"{name}: give a pair (strides, offset) such as ((4, 1), 0); a single stride is (4,).",
        )
        got, got_offset = tuple(steps), given[1]
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
        if got_offset == offset:
            continue
        right = f"{name}: the strides are right"
        expect(got_offset != 0, f"{right}, but its first element is not in slot 0.")
        expect(got_offset != 4 * offset, f"{right}, but the offset counts elements, not bytes.")
        why = WRONG_OFFSETS.get((name, got_offset))
        expect(not why, f"{right}, but not the offset: {why}.")
        expect(False, f"{right}; the offset is the slot of its first element, not {got_offset}.")


Case = tuple[Shape, Shape, Shape]  # shape, strides and new shape

# Cases that are rare among the drawn ones
RARE_CASES: list[Case] = [
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


def counts_size_one(shape: Shape, stride: Shape) -> list[Run]:
    """Merge dimensions like `merge_dimensions`, with the mistake of keeping size 1."""
    runs: list[Run] = []
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if runs and step == runs[0].step * runs[0].size:
            runs[0] = Run(size * runs[0].size, runs[0].step)
        else:
            runs.insert(0, Run(size, step))
    return runs


def stays_between(breaks: Sequence[int], new_shape: Shape) -> bool:
    """Return whether `new_shape` also has a border at each border between sizes in `breaks`."""
    borders = {prod(breaks[n:]) for n in range(len(breaks) + 1)}
    return borders <= {prod(new_shape[n:]) for n in range(len(new_shape) + 1)}


# Rules that learners confuse with the right one. Each also compares the numbers of elements.
TYPICAL_RULES: dict[str, Callable[[Shape, Shape, Shape], bool]] = {
    "You ask for contiguity. That is enough, but not needed: a non-contiguous tensor can be "
    "viewed as long as no new dimension straddles a break (try splitting a dimension).": (
        lambda shape, stride, _: is_row_major(shape, stride)
    ),
    "You ask for the strides of a fresh tensor. That is enough, but not needed: others can be "
    "viewed, too, as long as no new dimension straddles a break.": (
        lambda shape, stride, _: stride == row_major_strides(shape)
    ),
    "You only compare the numbers of elements; the strides decide.": lambda *_: True,
    "You ask whether everything merges into one run. It need not: a break may stay where it "
    "is, as long as no new dimension has to cross it.": (
        lambda shape, stride, _: len(merge_dimensions(shape, stride)) <= 1
    ),
    "You ask whether everything merges into one run, and count dimensions of size 1; a break "
    "may stay where it is, and the stride of a size-1 dimension is never used.": (
        lambda shape, stride, _: len(counts_size_one(shape, stride)) <= 1
    ),
    "You ask whether the strides fall from left to right. Gaps between rows break a run, too, and "
    "a transpose can still be viewed as long as no new dimension straddles a break.": (
        lambda _, stride, __: list(stride) == sorted(stride, reverse=True)
    ),
    "You split dimensions, but never join two of them. Dimensions join if the left stride is the "
    "right stride times the right size.": lambda shape, _, new: stays_between(shape, new),
    "You refuse strides of 0, but they follow the same rule as others.": (
        lambda shape, stride, new: (
            0 not in stride
            and stays_between([run.size for run in merge_dimensions(shape, stride)], new)
        )
    ),
}


def same_count(case: Case) -> bool:
    """Return whether both shapes have the same number of elements."""
    return prod(case[0]) == prod(case[2])


def without_ones(case: Case) -> Case:
    """Return a case without the dimensions of size 1 in the old shape, which changes no answer."""
    kept = [(size, step) for size, step in zip(*case[:2], strict=True) if size != 1]
    return tuple(size for size, _ in kept), tuple(step for _, step in kept), case[2]


def says(rule: Callable[[Shape, Shape, Shape], bool], case: Case, want: bool) -> bool:
    """Return whether a learner's rule gives this answer for a case."""
    try:
        return bool(rule(*case)) == want
    except Exception:  # the learner's own code may raise anything
        return False


def told(case: Case) -> str:
    """Format a case for a diagnosis."""
    shape, stride, new_shape = case
    return f"shape {shape}, strides {stride}, view{new_shape}"


@exercise(
    "A tensor of shape (4, 4) has strides (6, 1). Which slots does it use, and where are gaps?"
)
def can_view(rule: Callable[[Shape, Shape, Shape], bool]) -> None:
    """Check `rule(shape, stride, new_shape)` against `torch.Tensor.view`."""
    cases = [*view_cases(200 - len(RARE_CASES)), *RARE_CASES]
    truth = [torch_views(*case) for case in cases]
    results = []
    for case in cases:
        try:
            with WithoutTorch():
                results.append(rule(*case))
        except (IndexError, ZeroDivisionError) as error:
            raise DiagnosisError(f"{told(case)}: your code raised {error!r}.") from error
    expect(None not in results, "your function returns None; it must return True or False.")
    answers = [bool(result) for result in results]
    if answers == truth:
        return
    for diagnosis, wrong in TYPICAL_RULES.items():
        expect(answers != [same_count(case) and wrong(*case) for case in cases], diagnosis)
    for case, want, got in zip(cases, truth, answers, strict=True):
        if want == got:
            continue
        expect(
            same_count(case),
            f"{told(case)}: the number of elements must stay the same; check that first.",
        )
        expect(
            1 not in case[0] or not says(rule, without_ones(case), want),
            f"{told(case)}: torch says {want}. Drop dimensions of size 1 first; their stride is "
            "unused.",
        )
        runs = [tuple(run) for run in merge_dimensions(*case[:2])]
        expect(
            False,
            f"{told(case)}: torch says {want}, you say {got}. Its runs are {runs} as (size, step); "
            "fill them from the right, one at a time.",
        )


def expect_tensor(got: object) -> None:
    """Fail the check unless a result is a tensor."""
    expect(got is not None, "your function returns None; is the `return` missing?")
    expect(isinstance(got, Tensor), f"return a tensor; yours is of type {type(got).__name__}.")


def shares_memory(view: Tensor, x: Tensor) -> bool:
    """Return whether `view` begins in the memory of `x`, even if NumPy made it."""
    storage = x.untyped_storage()
    return 0 <= view.data_ptr() - storage.data_ptr() < storage.nbytes()


def heads(qkv: Tensor, n_head: int) -> list[Tensor]:
    """Return copies of q, k and v as (batch, head, seq, head_dim).

    The channels are chosen by index instead of by views, so that a learner's mistake can't be here.
    """
    channels = torch.arange(qkv.size(-1)).reshape(3, n_head, -1)
    return [torch.stack([qkv[..., head] for head in part], dim=1) for part in channels]


def qkv_cases() -> Iterator[tuple[str, Tensor, int]]:
    """Yield what is special about qkv, qkv and the number of heads."""
    for case in draws.sizes(3, batch=(1, 4), seq=(2, 6), n_head=(2, 5), head_dim=(2, 5)):
        qkv = draws.normal(case.batch, case.seq, 3 * case.n_head * case.head_dim)
        yield f"a qkv of {tuple(qkv.shape)} and {case.n_head} heads", qkv, case.n_head
    yield "a single head", draws.normal(2, 4, 3 * 5), 1
    yield "a single channel in each head", draws.normal(2, 3, 3 * 4), 4
    yield "a single token", draws.normal(3, 1, 3 * 2 * 2), 2
    yield "a slice of a longer sequence", draws.normal(3, 9, 3 * 2 * 4)[:, 2:6], 2
    yield "a qkv whose batch and seq are transposed", draws.normal(4, 3, 18).transpose(0, 1), 2
    yield "every second channel of a tensor", draws.normal(2, 3, 2 * 18)[..., 1::2], 3
    yield "a batch of one sequence", draws.normal(1, 4, 3 * 2 * 3), 2
    yield "numbers in float64", draws.normal(2, 4, 3 * 2 * 3).double(), 2


@exercise("With 2 heads of 3 channels each, which channels of qkv hold the keys of head 1?")
def split_heads(split: Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]]) -> None:
    """Check that `split(qkv, n_head)` returns q, k and v as views (batch, head, seq, head_dim)."""
    batch, seq, n_head, head_dim = 2, 5, 3, 4
    width = 3 * n_head * head_dim
    qkv = torch.arange(float(batch * seq * width)).view(batch, seq, width)
    parts = three_parts(split, qkv, n_head)
    for number, name in enumerate("qkv"):
        expect_head_part(name, parts, number, qkv, n_head)
    for case, qkv, n_head in qkv_cases():
        try:
            parts = three_parts(split, qkv, n_head)
        except RuntimeError as error:
            said = f"right for 3 heads of 4 channels, but not for {case}. Your code raised {error}"
            raise DiagnosisError(said) from error
        for number, (got, want) in enumerate(zip(parts, heads(qkv, n_head), strict=True)):
            name = "qkv"[number]
            expect(
                isinstance(got, Tensor) and got.shape == want.shape,
                f"right for 3 heads of 4 channels, but {name} has the wrong shape for {case}.",
            )
            is_right = torch.equal(got, want)
            expect(
                is_right or not reads_as_fresh(got, qkv, number),
                f"right for 3 heads of 4 channels, but for {case}, which is a view, {name} is read "
                "as from a fresh tensor. Compute its strides from qkv.stride(), and its start from "
                "qkv.storage_offset().",
            )
            expect(
                is_right,
                f"right for 3 heads of 4 channels, but {name} has the wrong numbers for {case}.",
            )
            expect(shares_memory(got, qkv), f"{name} is a copy for {case}.")
    expect_same_gradients(split, heads, {"qkv": draws.normal(2, 3, 3 * 2 * 4)}, 2)


def reads_as_fresh(got: Tensor, qkv: Tensor, number: int) -> bool:
    """Return whether q, k or v has the strides or the start that it has in a fresh qkv."""
    _, seq, width = qkv.shape
    head_dim = got.size(-1)
    begin = (got.data_ptr() - qkv.untyped_storage().data_ptr()) // qkv.element_size()
    strides = got.stride() == (seq * width, head_dim, width, 1) and not qkv.is_contiguous()
    start = begin == number * width // 3 and qkv.storage_offset() > 0
    return shares_memory(got, qkv) and (strides or start)


def three_parts(split: Callable[[Tensor, int], Sequence[Tensor]], qkv: Tensor, n_head: int) -> list:
    """Return q, k and v, and fail the check if there aren't three or if qkv has changed."""
    before = qkv.clone()
    parts = split(qkv, n_head)
    expect(torch.equal(qkv, before), "your function changes its input qkv in place.")
    is_stack = isinstance(parts, Tensor) and parts.dim() == 5
    is_three = (is_stack or isinstance(parts, tuple | list)) and len(parts) == 3
    kind = "" if isinstance(parts, tuple | list | Tensor) else f", not a {type(parts).__name__}"
    expect(is_three, f"return three tensors{kind}: q, k and v, as a tuple.")
    return list(parts)


def expect_head_part(name: str, parts: list, number: int, qkv: Tensor, n_head: int) -> None:
    """Check one of q, k and v by its shape, then for each typical mistake, then for a copy."""
    got, want = parts[number], heads(qkv, n_head)[number]
    batch, _, seq, head_dim = want.shape
    expect(isinstance(got, Tensor), f"{name} is not a tensor, but {type(got).__name__}.")
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
    flat = qkv.chunk(3, dim=-1)[number]
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
    third = qkv.view(batch, seq, n_head, head_dim, 3)[..., number].transpose(1, 2)
    expect(
        not torch.equal(got, third),
        f"{name}: you take every third channel. All queries come first, then all keys, then all "
        "values.",
    )
    others = [parts[n] for n in range(3) if n != number]
    is_double = any(isinstance(other, Tensor) and torch.equal(got, other) for other in others)
    expect(not is_double, f"{name} equals another of your three tensors; check the slices.")
    is_other = any(torch.equal(got, other) for other in heads(qkv, n_head))
    expect(
        is_other or torch.equal(got, want),
        f"{name} holds the wrong numbers; they should be qkv's own, unchanged.",
    )
    expect(torch.equal(got, want), f"{name} holds the wrong numbers; are q, k, v in that order?")
    expect(
        shares_memory(got, qkv),
        f"{name} is right, but a copy. A slice or chunk, view and transpose need none; "
        "leave out reshape, contiguous and clone.",
    )


TILES = "your windows are tiles that jump by k; the next window should start one pixel further."
CUT = (
    "the values are right, but the gradient of image isn't: the windows reach beyond the slice "
    "that you call as_strided on, and autograd doesn't see that; call it on the whole image."
)


def images() -> Iterator[tuple[Tensor, int]]:
    """Yield images and window sizes.

    Most storages are longer than needed, so that wrong strides get a diagnosis and no index error.
    """
    yield torch.arange(240.0).view(40, 6)[:5], 3
    yield torch.arange(60.0).view(12, 5)[:6].T, 3
    yield torch.arange(80.0).view(8, 10)[2:7, 3:9], 3
    for case in draws.sizes(4, k=(1, 4), below=(0, 4), right=(0, 4)):
        height, width = case.k + case.below, case.k + case.right
        yield draws.normal(2 * height + 2, width)[:height], case.k
    yield draws.normal(9, 14)[1:7:2, ::3], 2
    yield draws.normal(1, 6).expand(4, 6), 2
    yield draws.normal(6, 4)[:4], 4
    yield torch.arange(24).view(4, 6), 1
    yield torch.arange(160.0).double().view(20, 8)[1:6, 2:7], 2


@exercise(
    "Which pixels are result[0, 0, 0, 0] and result[1, 0, 0, 0], and how many slots apart are they?"
)
def im2col(windows: Callable[[Tensor, int], Tensor]) -> None:
    """Check that `windows(image, k)` returns every k x k patch as a view (rows, columns, k, k)."""
    for image, k in images():
        before = image.clone()
        got = windows(image, k)
        expect_tensor(got)
        expect(torch.equal(image, before), "your function changes its input image in place.")
        rows, columns = image.size(0) - k + 1, image.size(1) - k + 1
        expect(
            got.shape != (rows - 1, columns - 1, k, k),
            f"a window of {k} fits into {image.size(0)} rows at {rows} places, not {rows - 1}: "
            "height - k + 1.",
        )
        expect(
            got.shape != (k, k, rows, columns) or rows == columns == k,
            "the last two dimensions belong to the pixels of a window; yours are the windows.",
        )
        tiles = (image.size(0) // k, image.size(1) // k, k, k)
        expect(got.shape != tiles or tiles[:2] == (rows, columns), TILES)
        expect(
            got.shape == (rows, columns, k, k),
            f"the shape is {tuple(got.shape)}; it should be {(rows, columns, k, k)} for an image "
            f"of {tuple(image.shape)} and k = {k}.",
        )
        if not torch.equal(got, patches(image, k)):
            raise wrong_windows(got, image, k)
        is_view = shares_memory(got, image)
        expect(
            is_view or image.is_contiguous(),
            "the windows are a view for a fresh image, but a copy for a transpose or a crop: "
            "something copies the image first. Leave out contiguous, reshape and clone, and read "
            "image.stride().",
        )
        expect(
            is_view,
            "the windows are right, but they are a copy; as_strided (or Tensor.unfold) gives them "
            "as a view.",
        )
    image = draws.normal(5, 6)
    try:
        expect_same_gradients(windows, patches, {"image": image}, 3)
    except DiagnosisError as error:
        expect(not (str(error).startswith("the values are right") and cut_off(windows, image)), CUT)
        raise


def cut_off(windows: Callable[[Tensor, int], Tensor], image: Tensor) -> bool:
    """Return whether no gradient reaches the rows or columns outside the first patch."""
    image = image.clone().requires_grad_()
    gradient = torch.autograd.grad(windows(image, 3).sum(), image)[0]
    return not (gradient[3:].any() and gradient[:, 3:].any())


def patches(image: Tensor, k: int) -> Tensor:
    """Return a copy of every k x k patch, which is cut out by itself."""
    rows, columns = (size - k + 1 for size in image.shape)
    corners = [(i, j) for i in range(rows) for j in range(columns)]
    cut = torch.stack([image[i : i + k, j : j + k] for i, j in corners])
    return cut.reshape(rows, columns, k, k)


def wrong_windows(got: Tensor, image: Tensor, k: int) -> DiagnosisError:
    """Return the diagnosis of windows with the right shape and wrong numbers."""
    stride = got.stride()
    (down, right), width = image.stride(), image.size(1)
    if stride == (right, down, right, down):
        return DiagnosisError(
            "rows and columns are swapped: a step down in the image goes with dimensions 0 and 2, "
            "a step right with 1 and 3."
        )
    if stride == (down, right, right, down):
        return DiagnosisError(
            "each window is transposed; a step in dimension 2 goes down in the image."
        )
    if stride == (width, 1, width, 1) != (down, right, down, right):
        return DiagnosisError(
            f"right for a fresh image, wrong for a view of one (here strides {(down, right)}): you "
            "wrote (width, 1); read image.stride()."
        )
    if stride == (k * down, k * right, down, right):
        return DiagnosisError(TILES)
    if stride == tuple(image.element_size() * step for step in (down, right, down, right)):
        return DiagnosisError("your strides count bytes, as in NumPy; torch counts elements.")
    if got.storage_offset() != image.storage_offset():
        return DiagnosisError(
            "wrong for a crop: its first pixel is not in slot 0. as_strided's storage_offset "
            "counts elements from the storage's start; leave it out to keep the image's own."
        )
    return DiagnosisError(f"the windows hold wrong numbers; your strides are {stride}.")


def shaped_mask(mask: Callable[[int, int], Tensor], queries: int, keys: int) -> Tensor:
    """Return a mask, and fail the check if it isn't a tensor (queries, keys)."""
    got = mask(queries, keys)
    expect_tensor(got)
    expect(
        got.shape == (queries, keys),
        f"mask({queries}, {keys}) has shape {tuple(got.shape)}, not {(queries, keys)}.",
    )
    return got


def expect_square(got: Tensor) -> None:
    """Check a mask of 4 queries and 4 keys."""
    square = torch.ones(4, 4, dtype=torch.bool)
    expect(
        not (got.is_floating_point() and got.isinf().any()),
        "that is a mask to add (0 and -inf); return a boolean one, True where a query may look.",
    )
    values = got != 0
    mistakes = {
        "that is triu: row i looks at itself and the future. scores[query, key] needs tril.": (
            square.triu()
        ),
        "that marks what to hide. Here, as in scaled_dot_product_attention, True means 'may "
        "look'.": square.triu(1),
        "a token must see itself, so include the diagonal; your first row is empty, and its "
        "softmax is nan.": square.tril(-1),
        "each row reaches one token too far: it sees the token after it. diagonal=0 is the main "
        "diagonal, where a token sees itself.": square.tril(1),
        "every query sees every key, so the mask hides nothing.": square,
    }
    for diagnosis, wrong in mistakes.items():
        expect(not torch.equal(values, wrong), diagnosis)
    expect_values("mask(4, 4) is wrong.", values, square.tril())
    expect(
        got.dtype == torch.bool,
        f"the pattern is right, the dtype is {got.dtype}: scaled_dot_product_attention adds "
        "floats to the scores and rejects integers. Start from dtype=torch.bool.",
    )
    q, k, v = draws.normal(3, 4, 8).double().unbind(0)
    ours = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=got)
    theirs = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
    expect(torch.allclose(ours, theirs), "scaled_dot_product_attention disagrees with is_causal.")


def expect_values(diagnosis: str, got: Tensor, want: Tensor) -> None:
    """Fail the check unless two masks are equal."""
    if not torch.equal(got, want):
        figures = f"You get {got.int().tolist()}, and {want.int().tolist()} is right."
        raise DiagnosisError(diagnosis, figures)


# The number up to which a dtype has every whole number
LAST_WHOLE = {torch.uint8: 255, torch.int8: 127, torch.float16: 2048, torch.bfloat16: 256}


@exercise(
    "The keys are tokens 0 to 4, and the queries are tokens 3 and 4. Which tokens may each see?"
)
def causal_mask(mask: Callable[[int, int], Tensor]) -> None:
    """Check `mask(queries, keys)`, which is True where a query may attend to a key.

    The queries are the last tokens of the sequence of keys.
    """
    expect_square(shaped_mask(mask, 4, 4))
    longer, oblong = shaped_mask(mask, 2, 5), torch.ones(2, 5, dtype=torch.bool)
    expect(
        not torch.equal(longer, oblong.tril()),
        "right for a square. With 2 queries and 5 keys the queries are the LAST two tokens, so "
        "the last one sees all five keys: shift the diagonal by keys - queries.",
    )
    expect(
        not torch.equal(longer, oblong.tril(-3)),
        "right for a square, but with 2 queries and 5 keys every row is empty, because the shift "
        "has the wrong sign. More keys than queries move the diagonal right by keys - queries.",
    )
    expect(
        not torch.equal(longer, oblong),
        "right for a square, but with 2 queries and 5 keys the first query sees the next token.",
    )
    expect_values("right for a square, but mask(2, 5) is wrong.", longer, oblong.tril(3))
    drawn = [(c.q, c.q + c.earlier) for c in draws.sizes(6, q=(1, 7), earlier=(0, 7))]
    for queries, keys in [(1, 1), (1, 7), (7, 7), (5, 6), *drawn]:
        got = shaped_mask(mask, queries, keys)
        want = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        expect(
            queries > 1 or torch.equal(got, want),
            f"mask({queries}, {keys}) is wrong. A single query is the last token, so it sees all "
            "keys.",
        )
        expect_values(f"right for 2 queries, but mask({queries}, {keys}) is wrong.", got, want)
    queries, keys = 4, 2100  # float16 has every second of the last positions
    got, want = shaped_mask(mask, queries, keys), torch.ones(queries, keys, dtype=torch.bool)
    want = want.tril(keys - queries)
    for dtype, last in LAST_WHOLE.items():
        position = torch.arange(keys).to(dtype)
        expect(
            torch.equal(got, want) or not torch.equal(got, position[-queries:, None] >= position),
            f"right for a few keys, but with {keys} keys your positions don't fit into {dtype}, "
            f"which counts to {last}; keep torch.arange's own dtype.",
        )
    expect(
        torch.equal(got, want),
        f"right for a few keys, but mask({queries}, {keys}) is wrong.",
    )
