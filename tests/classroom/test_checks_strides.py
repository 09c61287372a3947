"""Each check passes the right answer and names the typical mistake of a wrong one."""

import math

import torch
import torch.nn.functional as F
from verdicts import assert_untouched, assert_verdicts

from cs336_lib.classroom import storage
from cs336_lib.classroom.checks import strides as checks

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
        ({"x[1, 1:, 3]": ((1,), 19)}, "steps by 4"),
        ({"x[:, :1].expand(2, 5, 4)": ((12, 4, 1), 0)}, "its stride is 0"),
        ({"x[:, :1].expand(2, 5, 4)": ((20, 4, 1), 0)}, "without storing"),
        ({"x[1]": ((12, 4, 1), 12)}, "An index such as x[1] removes a dimension"),
        ({"x[1]": ((16, 4), 12)}, "those are bytes"),
        ({"x[1]": ((4, 1), 0)}, "not in slot 0"),
        ({"x[1, 1:, 3]": ((4,), 16)}, "the offset is the slot of its first element"),
        ({"x[1]": ((9, 9), 12)}, "are not its strides"),
        ({"x[1]": (4, 1)}, "give a pair"),
    ]
    cases = [(checks.VIEWS | change, diagnosis) for change, diagnosis in cases]
    assert_verdicts(checks.predicted_strides, cases)


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
    runs = [run.size for run in storage.merge_dimensions(shape, stride)]
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


def test_can_view():
    cases = [
        (
            lambda s, t, n: same_count(s, t, n) and storage.is_row_major(s, t),
            "You ask for contiguity",
        ),
        (
            lambda s, t, n: same_count(s, t, n) and t == storage.row_major_strides(s),
            "You ask for the strides of a fresh tensor",
        ),
        (same_count, "only compare the numbers of elements"),
        (
            lambda s, t, n: same_count(s, t, n) and len(storage.merge_dimensions(s, t)) <= 1,
            "everything merges into one run. It need not",
        ),
        (
            lambda s, t, n: same_count(s, t, n) and len(checks.counts_size_one(s, t)) <= 1,
            "count dimensions of size 1",
        ),
        (forgets_to_count, "view(3,): the number of elements must stay the same"),
        (forgets_size_one, "Drop dimensions of size 1 first"),
        (lambda s, t, n: True, "number of elements must stay the same"),
        (lambda s, t, n: False, "torch says True, you say False"),
        (lambda s, t, n: None, "returns None"),
    ]
    assert_verdicts(checks.can_view, cases)


def parts_by(cut):
    """A wrong split_heads: chunk into three, then `cut` each into heads."""
    return lambda qkv, n_head: tuple(cut(part, n_head) for part in qkv.chunk(3, -1))


def right(part, n_head):
    return part.view(*part.shape[:2], n_head, -1).transpose(1, 2)


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
        (parts_by(lambda p, h: right(p, h).transpose(1, 2)), "the head axis must come before seq"),
        (parts_by(lambda p, h: right(p, h).contiguous()), "but a copy"),
        (lambda qkv, h: [right(qkv.chunk(3, -1)[0], h)] * 3, "equals another"),
        (
            lambda qkv, h: [right(p, h) for p in reversed(qkv.chunk(3, -1))],
            "are q, k, v in that order",
        ),
        (lambda qkv, h: qkv, "return three tensors"),
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
        (strided(lambda x, k: (1, 1, 1, 1)), "your strides are (1, 1, 1, 1)"),
        (lambda x, k: x.unfold(0, k, 1).unfold(1, k, 1).clone(), "but they are a copy"),
        (lambda x, k: x.unfold(0, k, 1).unfold(1, k, 1)[0], "(4, 3, 3); it should be (3, 4, 3, 3)"),
        (lambda x, k: None, "return a tensor"),
        (lambda x, k: x.unfold(0, k, 1).unfold(1, k, 1), "passed"),
    ]
    assert_verdicts(checks.im2col, cases)


def ones(q, k):
    return torch.ones(q, k, dtype=torch.bool)


def test_causal_mask():
    cases = [
        (lambda q, k: ones(q, k).triu(), "that is triu: row i looks at itself and the future"),
        (lambda q, k: ones(q, k).triu(1), "True means 'may look'"),
        (lambda q, k: ones(q, k).tril(-1), "a token must see itself"),
        (lambda q, k: torch.ones(q, k).tril(k - q), "Start from dtype=torch.bool"),
        (lambda q, k: torch.zeros(q, k).masked_fill(ones(q, k).triu(1), -torch.inf), "mask to add"),
        (lambda q, k: torch.ones(q, k).tril(k - q).long(), "rejects integers"),
        (lambda q, k: ones(q, k).tril(), "the queries are the LAST two tokens"),
        (lambda q, k: ones(q, k), "mask(4, 4) is wrong"),
        (lambda q, k: ones(q, k).tril(k - q + 1), "each row reaches one token too far"),
        (lambda q, k: ones(q, k).tril(q - k), "the shift has the wrong sign"),
        (lambda q, k: ones(q, k).tril((k - q) // 2), "mask(2, 5) is wrong"),
        (lambda q, k: None, "return a tensor"),
        (lambda q, k: ones(q, q).tril(), "(2, 2), not (2, 5)"),
        (lambda q, k: ones(q + 1, k), "(5, 4), not (4, 4)"),
        (lambda q: ones(q, q).tril(), "cannot be used as the task says (TypeError"),
    ]
    assert_verdicts(checks.causal_mask, cases)


def test_the_mask_wanted_is_the_convention_of_sdpa():
    q = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))
    ours = F.scaled_dot_product_attention(q, q, q, attn_mask=ones(4, 4).tril())
    assert torch.allclose(ours, F.scaled_dot_product_attention(q, q, q, is_causal=True), atol=1e-6)
