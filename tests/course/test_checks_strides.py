"""Each check passes the right answer and names the typical mistake of a wrong one."""

import itertools
import math

import einops
import numpy as np
import torch
import torch.nn.functional as F
from verdicts import assert_untouched, assert_verdicts

from cs336_course.checks import strides as checks
from cs336_course.demos import strided_storage

FUNCTIONS = ("can_view", "split_heads", "im2col", "causal_mask")


def test_untouched_stubs():
    values = {"predicted_strides": dict.fromkeys(checks.VIEWS, ...)}
    assert_untouched(checks, (*FUNCTIONS, *values), **values)


def test_the_strides_asked_for_are_torchs():
    x = torch.arange(24.0).view(2, 3, 4)
    for expression, (stride, offset) in checks.VIEWS.items():
        view = eval(expression, {"x": x})
        assert (view.stride(), view.storage_offset()) == (stride, offset)


def test_predicted_strides():
    cases = [
        ({"x[:, 2]": ((4, 1), 8)}, "a view keeps x's steps"),
        ({"x[:, 2]": ((12, 4), 8)}, "dimension 1's stride goes"),
        ({"x[..., ::2]": ((12, 4, 1), 0)}, "doubles the step"),
        ({"x[..., ::2]": ((6, 2, 1), 0)}, "compact copy"),
        ({"x.transpose(0, 2)": ((12, 4, 1), 0)}, "swaps the two strides"),
        ({"x.transpose(0, 2)": ((6, 2, 1), 0)}, "moves no number"),
        ({"x.transpose(0, 2)": ((4, 1, 12), 0)}, "the middle one stays"),
        ({"x[1, 1:, 3]": ((1,), 19)}, "which keeps its stride"),
        ({"x[:, :1].expand(2, 5, 4)": ((12, 4, 1), 0)}, "its stride is 0"),
        ({"x[:, :1].expand(2, 5, 4)": ((20, 4, 1), 0)}, "without storing"),
        ({"x[1]": ((12, 4, 1), 12)}, "An index such as x[1] removes a dimension"),
        ({"x[1]": ((16, 4), 12)}, "those are bytes"),
        ({"x[1, 1:, 3]": ((12,), 19)}, "x's dimension 1, not 0"),
        ({"x[1]": ((4, 1), 0)}, "not in slot 0"),
        ({"x[1]": ((4, 1), 1)}, "multiply it by the stride of dimension 0"),
        ({"x[1]": ((4, 1), 48)}, "the offset counts elements, not bytes"),
        ({"x[:, 2]": ((12, 1), 2)}, "multiply it by the stride of dimension 1"),
        ({"x[:, 2]": ((12, 1), 24)}, "2 is an index of dimension 1"),
        ({"x[1, 1:, 3]": ((4,), 5)}, "add the products"),
        ({"x[1, 1:, 3]": ((4,), 15)}, "the slice begins at 1"),
        ({"x[1, 1:, 3]": ((4,), 16)}, "the last index moves"),
        ({"x[1, 1:, 3]": ((4,), 7)}, "the first index moves"),
        ({"x[1, 1:, 3]": ((4,), 18)}, "the offset is the slot of its first element"),
        ({"x[1]": ((9, 9), 12)}, "are not its strides"),
        ({"x[1]": (4, 1)}, "give a pair"),
        ({"x[1, 1:, 3]": (4, 19)}, "a single stride is (4,)"),
    ]
    cases = [(checks.VIEWS | change, diagnosis) for change, diagnosis in cases]
    assert_verdicts(checks.predicted_strides, cases)


def test_predicted_strides_may_be_lists_or_torchs():
    x = torch.arange(24.0).view(2, 3, 4)
    views = {name: eval(name, {"x": x}) for name in checks.VIEWS}
    right = (
        checks.VIEWS,
        {name: [list(stride), offset] for name, (stride, offset) in checks.VIEWS.items()},
        {name: (view.stride(), view.storage_offset()) for name, view in views.items()},
        {name: (tuple(np.array(s)), np.int64(o)) for name, (s, o) in checks.VIEWS.items()},
        {name: (np.array(s), o) for name, (s, o) in checks.VIEWS.items()},
        {name: (torch.tensor(s), torch.tensor(o)) for name, (s, o) in checks.VIEWS.items()},
    )
    assert_verdicts(checks.predicted_strides, [(answer, "passed") for answer in right])
    assert_verdicts(checks.predicted_strides, {"keep the dictionary": list(checks.VIEWS.values())})


def test_predicted_strides_names_what_is_missing():
    started = dict.fromkeys(checks.VIEWS, ...) | {"x[1]": checks.VIEWS["x[1]"]}
    cases = {
        "x[1] has no answer": {"x[:, 2]": ((12, 1), 8)},
        "x[:, 2] has no answer": started,
        "x[1]: the strides": started | {"x[1]": ((4, 1), 0)},
    }
    assert_verdicts(checks.predicted_strides, cases)


def same_count(shape, stride, new):
    return math.prod(shape) == math.prod(new)


def forgets_to_count(shape, stride, new):
    """The right rule but for its first step: nothing compares the numbers of elements."""
    runs = [run.size for run in strided_storage.merge_dimensions(shape, stride)]
    left = 1
    for size in reversed(new):
        if left == 1 and size > 1:
            if not runs:
                return False
            left = runs.pop()
        if left % size:
            return False
        left //= size
    return True


def forgets_size_one(shape, stride, new):
    """The right rule but for one thing: it takes size-1 dimensions for steps."""
    if not same_count(shape, stride, new):
        return False
    runs = [run.size for run in checks.counts_size_one(shape, stride)]
    left = 1
    for size in reversed(new):
        if left == 1 and size > 1:
            left = runs.pop()
            while left == 1:
                left = runs.pop()
        if left % size:
            return False
        left //= size
    return True


def cuts_at_the_same_products(shape, stride, new):
    """The right rule, by the products of the sizes at the right of each break."""
    sizes = [run.size for run in strided_storage.merge_dimensions(shape, stride)]
    return same_count(shape, stride, new) and checks.stays_between(sizes, new)


def like_numpy(shape, stride, new):
    """The right rule, by groups of old and new dimensions with equal products, from the left."""
    if not same_count(shape, stride, new):
        return False
    old = [(size, step) for size, step in zip(shape, stride, strict=True) if size > 1]
    new = [size for size in new if size > 1]
    while old:
        group, sizes = [old.pop(0)], [new.pop(0)]
        while (have := math.prod(size for size, _ in group)) != (want := math.prod(sizes)):
            if have < want:
                group.append(old.pop(0))
            else:
                sizes.append(new.pop(0))
        if any(a[1] != b[0] * b[1] for a, b in itertools.pairwise(group)):
            return False
    return True


def like_torch(shape, stride, new):
    """The right rule, by the same steps as computeStride in ATen."""
    if not same_count(shape, stride, new):
        return 0
    if not shape:
        return 1
    at, base, count, done = len(new) - 1, stride[-1], 1, 1
    for d in reversed(range(len(shape))):
        count *= shape[d]
        is_break = shape[d - 1] != 1 and stride[d - 1] != count * base
        if d == 0 or is_break:
            while at >= 0 and (done < count or new[at] == 1):
                done *= new[at]
                at -= 1
            if done != count:
                return 0
            if d > 0:
                base, count, done = stride[d - 1], 1, 1
    return int(at == -1)


def test_can_view_passes_right_rules():
    right = (cuts_at_the_same_products, like_numpy, like_torch)
    assert_verdicts(checks.can_view, [(rule, "passed") for rule in right])


def test_can_view():
    def counted(rule):
        """The rule for equal numbers of elements, and False for others."""
        return lambda s, t, n: same_count(s, t, n) and rule(s, t, n)

    cases = [
        (counted(lambda s, t, n: strided_storage.is_row_major(s, t)), "You ask for contiguity"),
        (
            counted(lambda s, t, n: t == strided_storage.row_major_strides(s)),
            "You ask for the strides of a fresh tensor",
        ),
        (same_count, "only compare the numbers of elements"),
        (
            counted(lambda s, t, n: len(strided_storage.merge_dimensions(s, t)) <= 1),
            "everything merges into one run. It need not",
        ),
        (
            counted(lambda s, t, n: len(checks.counts_size_one(s, t)) <= 1),
            "count dimensions of size 1",
        ),
        (
            counted(lambda s, t, n: tuple(sorted(t)) == t[::-1]),
            "You ask whether the strides fall",
        ),
        (counted(lambda s, t, n: checks.stays_between(s, n)), "never join two of them"),
        (lambda s, t, n: 0 not in t and like_numpy(s, t, n), "You refuse strides of 0"),
        (forgets_to_count, "view(3,): the number of elements must stay the same"),
        (forgets_size_one, "Drop dimensions of size 1 first"),
        (lambda s, t, n: len(n) <= 4 and like_numpy(s, t, n), "you say False"),
        (
            lambda s, t, n: (
                like_numpy(s, t, n) if len(s) > 1 else t == (1,) and same_count(s, t, n)
            ),
            "shape (6,), strides (2,), view(2, 3): torch says True",
        ),
        (lambda s, t, n: t[-1] >= 0 and like_numpy(s, t, n), "view(): your code raised IndexError"),
        (
            lambda s, t, n: like_numpy(s, t, n) and (n != () or s == ()),
            "shape (1,), strides (5,), view()",
        ),
        (
            lambda s, t, n: like_numpy(s, t, n) and (math.prod(n) > 1 or len(s) == len(n)),
            "view(1,)",
        ),
        (lambda s, t, n: like_numpy(s, t, n) and len(s) <= 4, "shape (2, 1, 2, 3, 2)"),
        (lambda s, t, n: like_numpy(s, t, n) and math.prod(s) <= 100, "shape (12, 30)"),
        (lambda s, t, n: True, "number of elements must stay the same"),
        (lambda s, t, n: False, "torch says True, you say False"),
        (lambda s, t, n: None, "returns None"),
        (lambda s, t, n: like_numpy(s, t, n) or None, "returns None"),
        (lambda s, t, n: n[1], "view(7,): your code raised IndexError"),
        (strided_storage.torch_views, "your code uses torch"),
    ]
    assert_verdicts(checks.can_view, cases)


def parts_by(cut):
    """A wrong split_heads: chunk into three, then `cut` each into heads."""
    return lambda qkv, n_head: tuple(cut(part, n_head) for part in qkv.chunk(3, -1))


def right(part, n_head):
    return part.view(*part.shape[:2], n_head, -1).transpose(1, 2)


def by_slices(qkv, n_head):
    width = qkv.size(-1) // 3
    size = width // n_head
    starts = (0, width, 2 * width)
    return tuple(
        torch.Tensor.unflatten(qkv[:, :, start : start + width], -1, (n_head, size)).movedim(2, 1)
        for start in starts
    )


def by_as_strided(qkv, n_head):
    (batch, seq, width), (outer, row, step) = qkv.shape, qkv.stride()
    size = width // (3 * n_head)
    shape, stride = (batch, n_head, seq, size), (outer, size * step, row, step)
    starts = [qkv.storage_offset() + n * n_head * size * step for n in range(3)]
    return [qkv.as_strided(shape, stride, start) for start in starts]


def by_numpy(qkv, n_head):
    views = np.split(qkv.numpy(), 3, axis=-1)
    return [right(torch.from_numpy(view), n_head) for view in views]


def by_stack(qkv, n_head):
    return einops.rearrange(qkv, "b t (n h d) -> n b h t d", n=3, h=n_head)


def without_gradient(qkv, n_head):
    return tuple(part.detach() for part in by_slices(qkv, n_head))


def test_split_heads_passes_right_answers():
    answers = (by_slices, by_as_strided, by_stack, parts_by(right))
    assert_verdicts(checks.split_heads, [(answer, "passed") for answer in answers])


def test_gradients_flow_through_views():
    cases = [
        (by_numpy, "the gradient is lost, because NumPy"),
        (without_gradient, "the gradient is lost"),
        (lambda x, h: (*by_slices(x, h)[:2], by_slices(x.data, h)[2]), "the gradient is lost"),
    ]
    assert_verdicts(checks.split_heads, cases)
    cases = [
        (numpy_strided, "the gradient is lost, because NumPy"),
        (numpy_windows, "the gradient is lost, because NumPy"),
        (lambda x, k: x.detach().unfold(0, k, 1).unfold(1, k, 1), "the gradient is lost"),
    ]
    assert_verdicts(checks.im2col, cases)


def as_if_fresh(qkv, n_head):
    """Computes all strides from the shape, and begins at slot 0."""
    batch, seq, width = qkv.shape
    size = width // (3 * n_head)
    shape, stride = (batch, n_head, seq, size), (seq * width, size, width, 1)
    return [qkv.as_strided(shape, stride, n * n_head * size) for n in range(3)]


def without_offset(qkv, n_head):
    """Has the right strides, but begins at slot 0."""
    views = by_as_strided(qkv, n_head)
    starts = [view.storage_offset() - qkv.storage_offset() for view in views]
    return [
        view.as_strided(view.shape, view.stride(), start)
        for view, start in zip(views, starts, strict=True)
    ]


def test_split_heads_is_right_for_every_qkv():
    cases = [
        (lambda x, h: parts_by(right)(x, 3), "right for 3 heads of 4 channels, but"),
        (lambda x, h: x.view(*x.shape[:2], 3, h, 4).permute(2, 0, 3, 1, 4), "Your code raised"),
        (
            lambda x, h: parts_by(right)(x.view(-1, x.size(-1)).view(x.shape), h),
            "not for a slice of a longer sequence",
        ),
        (
            lambda x, h: parts_by(right)(x if x.is_contiguous() else x.contiguous(), h),
            "a copy for a slice of a longer sequence",
        ),
        (
            lambda x, h: parts_by(right)(x.as_strided(x.shape, (*x.stride()[:2], 1)), h),
            "wrong numbers for every second channel",
        ),
        (
            as_if_fresh,
            "for a slice of a longer sequence, which is a view, q is read as from a fresh",
        ),
        (without_offset, "for a slice of a longer sequence, which is a view, q is read as from a"),
        (lambda x, h: parts_by(right)(x.squeeze(0), h), "a batch of one sequence"),
        (lambda x, h: parts_by(right)(x.float(), h), "a copy for numbers in float64"),
        (lambda x, h: parts_by(right)(x.add_(1), h), "changes its input qkv in place"),
    ]
    assert_verdicts(checks.split_heads, cases)


def test_split_heads():
    cases = [
        (
            parts_by(lambda p, h: p.reshape(p.size(0), h, p.size(1), -1)),
            "chops each row up",
        ),
        (
            parts_by(lambda p, h: p.view(*p.shape[:2], -1, h).permute(0, 3, 1, 2)),
            "every n_head-th channel",
        ),
        (
            lambda x, h: x.view(*x.shape[:2], h, 3, -1).permute(3, 0, 2, 1, 4).unbind(0),
            "you cut the channels as (head, three, head_dim)",
        ),
        (
            lambda x, h: x.view(*x.shape[:2], h, -1, 3).permute(4, 0, 2, 1, 3).unbind(0),
            "you take every third channel",
        ),
        (parts_by(lambda p, h: right(p, h).transpose(1, 2)), "the head axis must come before seq"),
        (parts_by(lambda p, h: right(p, h).contiguous()), "but a copy"),
        (lambda qkv, h: [right(qkv.chunk(3, -1)[0], h)] * 3, "equals another"),
        (
            lambda qkv, h: [right(p, h) for p in reversed(qkv.chunk(3, -1))],
            "are q, k, v in that order",
        ),
        (lambda qkv, h: [2 * right(p, h) for p in qkv.chunk(3, -1)], "qkv's own, unchanged"),
        (lambda qkv, h: qkv, "return three tensors"),
        (lambda qkv, h: (right(p, h) for p in qkv.chunk(3, -1)), "three tensors, not a generator"),
        (parts_by(lambda p, h: None), "q is not a tensor"),
        (parts_by(lambda p, h: p), "(2, 3, 5, 4), (batch, head, seq, head_dim)"),
    ]
    assert_verdicts(checks.split_heads, cases)


def strided(stride_of, *, offset=None, size_of=lambda n, k: n - k + 1):
    """A wrong im2col whose strides are `stride_of(image, k)`."""

    def windows(image, k):
        shape = (size_of(image.size(0), k), size_of(image.size(1), k), k, k)
        return image.as_strided(shape, stride_of(image, k), offset)

    return windows


def offset_by_address(image, k):
    offset = (image.data_ptr() - image.untyped_storage().data_ptr()) // 4
    return strided(lambda x, k: x.stride() * 2, offset=offset)(image, k)


def of_a_slice(cut):
    """Calls as_strided on a slice, which has the right values and a wrong gradient."""

    def windows(image, k):
        shape = (image.size(0) - k + 1, image.size(1) - k + 1, k, k)
        return cut(image, k).as_strided(shape, image.stride() * 2)

    return windows


def test_im2col():
    cases = [
        (strided(lambda x, k: (x.size(1), 1, x.size(1), 1)), "you wrote (width, 1)"),
        (strided(lambda x, k: (*x.stride(), *x.stride()), offset=0), "wrong for a crop"),
        (
            strided(lambda x, k: (*x.stride(), *x.stride()), size_of=lambda n, k: n - k),
            "height - k + 1",
        ),
        (strided(lambda x, k: (*x.stride()[::-1], *x.stride()[::-1])), "rows and columns"),
        (
            strided(lambda x, k: (k * x.stride(0), k * x.stride(1), *x.stride())),
            "tiles that jump by k",
        ),
        (
            strided(lambda x, k: (*x.stride(), *x.stride()[::-1])),
            "each window is transposed",
        ),
        (strided(lambda x, k: [4 * step for step in x.stride()] * 2), "your strides count bytes"),
        (strided(lambda x, k: (1, 1, 1, 1)), "your strides are (1, 1, 1, 1)"),
        (lambda x, k: x.unfold(0, k, k).unfold(1, k, k), "tiles that jump by k"),
        (lambda x, k: x.unfold(0, 3, 1).unfold(1, 3, 1), "and k = 4"),
        (lambda x, k: x.unfold(0, k, 1).unfold(1, k, 1).permute(2, 3, 0, 1), "yours are the win"),
        (lambda x, k: x.sub_(1).unfold(0, k, 1).unfold(1, k, 1), "changes its input image"),
        (lambda x, k: x.unfold(0, k, 1).unfold(1, k, 1).clone(), "but they are a copy"),
        (lambda x, k: x.unfold(0, k, 1).unfold(1, k, 1)[0], "(4, 3, 3); it should be (3, 4, 3, 3)"),
        (
            lambda x, k: strided(lambda x, k: x.stride() * 2)(x.contiguous(), k),
            "a view for a fresh image, but a copy for a transpose or a crop",
        ),
        (of_a_slice(lambda x, k: x[:k, :k]), "beyond the slice that you call as_strided on"),
        (of_a_slice(lambda x, k: x[:k]), "beyond the slice that you call as_strided on"),
        (of_a_slice(lambda x, k: x[0]), "beyond the slice that you call as_strided on"),
        (offset_by_address, "storage_offset counts elements"),
        (lambda x, k: x.unfold(0, k, 1).unfold(1, k, 1).numpy(), "yours is of type ndarray"),
        (lambda x, k: None, "is the `return` missing"),
    ]
    assert_verdicts(checks.im2col, cases)


def numpy_strided(image, k):
    x = image.numpy()
    shape = (x.shape[0] - k + 1, x.shape[1] - k + 1, k, k)
    return torch.from_numpy(np.lib.stride_tricks.as_strided(x, shape, x.strides * 2))


def numpy_windows(image, k):
    view = np.lib.stride_tricks.sliding_window_view(image.numpy(), (k, k), writeable=True)
    return torch.from_numpy(view)


def test_im2col_passes_right_answers():
    answers = (
        strided(lambda x, k: x.stride() * 2),
        strided(lambda x, k: [x.stride(d) for d in (0, 1, 0, 1)]),
        lambda x, k: x.unfold(0, k, 1).unfold(1, k, 1),
        lambda x, k: x.unfold(1, k, 1).unfold(0, k, 1).transpose(2, 3),
    )
    assert_verdicts(checks.im2col, [(answer, "passed") for answer in answers])


def ones(q, k):
    return torch.ones(q, k, dtype=torch.bool)


def positions_in(dtype):
    """A mask from positions that a narrow dtype can't hold."""

    def mask(queries, keys):
        position = torch.arange(keys).to(dtype)
        return position[keys - queries :, None] >= position

    return mask


def test_causal_mask():
    cases = [
        (lambda q, k: ones(q, k).triu(), "that is triu: row i looks at itself and the future"),
        (lambda q, k: ones(q, k).triu(1), "True means 'may look'"),
        (lambda q, k: ones(q, k).tril(-1), "a token must see itself"),
        (lambda q, k: torch.ones(q, k).tril(k - q), "Start from dtype=torch.bool"),
        (lambda q, k: torch.zeros(q, k).masked_fill(ones(q, k).triu(1), -torch.inf), "mask to add"),
        (lambda q, k: torch.ones(q, k).tril(k - q).long(), "rejects integers"),
        (lambda q, k: ones(q, k).tril(), "the queries are the LAST two tokens"),
        (lambda q, k: ones(q, k), "the mask hides nothing"),
        (lambda q, k: ones(q, k).tril().triu(-1), "mask(4, 4) is wrong"),
        (lambda q, k: ones(q, k).tril(k - q + 1), "each row reaches one token too far"),
        (lambda q, k: ones(q, k).tril(q - k), "the shift has the wrong sign"),
        (lambda q, k: ones(q, k).tril((k - q) // 2), "mask(2, 5) is wrong"),
        (lambda q, k: ones(q, k).tril(k if k > q else 0), "the first query sees the next token"),
        (lambda q, k: ones(q, k).tril(k - q if q > 1 else 0), "so it sees all keys"),
        (lambda q, k: ones(q, k).tril(min(k - q, 3)), "mask(1, 7) is wrong"),
        (lambda q, k: ones(q, k).tril(k - q if q < 5 else 1), "but mask(7, 7) is wrong"),
        (lambda q, k: ones(1024, 1024).tril()[k - q : k, :k], "(0, 1024), not (4, 2100)"),
        (lambda q, k: ones(q, k).tril(min(k - q, 1024)), "right for a few keys"),
        (
            positions_in(torch.uint8),
            "your positions don't fit into torch.uint8, which counts to 255",
        ),
        (positions_in(torch.int8), "your positions don't fit into torch.int8, which counts to 127"),
        (positions_in(torch.float16), "into torch.float16, which counts to 2048"),
        (positions_in(torch.bfloat16), "into torch.bfloat16, which counts to 256"),
        (lambda q, k: np.tri(q, k, k - q, dtype=bool), "yours is of type ndarray"),
        (lambda q, k: in_loops(q, k).tolist(), "yours is of type list"),
        (lambda q, k: None, "is the `return` missing"),
        (lambda q, k: ones(q, q).tril(), "(2, 2), not (2, 5)"),
        (lambda q, k: ones(q + 1, k), "(5, 4), not (4, 4)"),
        (lambda q: ones(q, q).tril(), "cannot be used as the task says (TypeError"),
    ]
    assert_verdicts(checks.causal_mask, cases)


def by_positions(queries, keys):
    return torch.arange(keys - queries, keys)[:, None] >= torch.arange(keys)


def in_loops(queries, keys):
    rows = [[key <= keys - queries + query for key in range(keys)] for query in range(queries)]
    return torch.tensor(rows)


def test_causal_mask_passes_right_answers():
    answers = (
        by_positions,
        in_loops,
        positions_in(torch.int16),
        positions_in(torch.float32),
        lambda q, k: ones(k, k).tril()[k - q :],
        lambda q, k: ones(k, k).tril()[-q:],
        lambda q, k: ~ones(q, k).triu(k - q + 1),
        lambda q, k: ones(q, k).triu().flip(0, 1),
        lambda q, k: torch.from_numpy(np.tri(q, k, k - q, dtype=bool)),
        lambda q, k: torch.full((q, k), -torch.inf).triu(k - q + 1) == 0,
    )
    assert_verdicts(checks.causal_mask, [(answer, "passed") for answer in answers])


def test_the_mask_wanted_is_the_convention_of_sdpa():
    q = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))
    ours = F.scaled_dot_product_attention(q, q, q, attn_mask=ones(4, 4).tril())
    assert torch.allclose(ours, F.scaled_dot_product_attention(q, q, q, is_causal=True), atol=1e-6)
