"""Exercise checks for notebook 03 on named dimensions and the order of elements."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from torch import Tensor

from cs336_course.checks.draws import normal, sizes
from cs336_course.checks.gradients import expect_same_gradients
from cs336_course.checks.parts import expect_device
from cs336_course.checks.report import DiagnosisError, exercise, expect

Mistakes = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """Inputs of an exercise.

    Attributes:
        inputs: Tensors by name.
        target: The right result.
        numbers: Numbers that follow the tensors as arguments.
        what: Describes the inputs, as in "a single token". It is empty for the first case.
        mistakes: Maps a diagnosis to the tensor that a known mistake produces.
        errors: Maps a pattern, which begins a word of an error message, to a diagnosis.
        nan: Diagnosis of NaNs that no known mistake explains.
    """

    inputs: Mapping[str, Tensor]
    target: Tensor
    numbers: tuple[int, ...] = ()
    what: str = ""
    mistakes: Mistakes = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    nan: str = "there are NaNs in it, from a softmax over an empty row or a division by 0."


def same(result: Tensor, target: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding errors."""
    tolerance = 1e-2 if target.dtype == torch.float16 else 1e-5
    return result.shape == target.shape and torch.allclose(
        result.to(target), target, rtol=tolerance, atol=tolerance, equal_nan=True
    )


def compare(result: object, case: Case, names: str) -> None:
    """Fail unless `result` equals the case's target. `names` are the axes of the target."""
    if not isinstance(result, Tensor):
        raise DiagnosisError(f"return a tensor, not {type(result).__name__}.")
    target = case.target
    expect(result.device == target.device, f"the result is on {result.device}, unlike the inputs.")
    if not same(result, target):
        for diagnosis, produced in case.mistakes.items():
            expect(not same(result, produced), diagnosis)
        expect(
            result.shape == target.shape,
            f"the shape is {tuple(result.shape)}; it should be {names} = {tuple(target.shape)}.",
        )
        expect(not result.isnan().any(), case.nan)
        raise DiagnosisError("the shape is right, but the numbers are not.")
    got, kept = (str(x.dtype).removeprefix("torch.") for x in (result, target))
    expect(got == kept, f"your function returns {got}; keep the inputs' dtype, which is {kept}.")


def call(function: Callable[..., object], case: Case) -> object:
    """Return the answer's result for a case, and fail if a known mistake raises an error."""
    try:
        return function(*case.inputs.values(), *case.numbers)
    except RuntimeError as error:
        for part, diagnosis in case.errors.items():
            expect(not re.search(rf"\b{part}", str(error)), diagnosis)
        raise


def judge(
    function: Callable[..., object],
    cases: Iterator[Case],
    names: str,
    right: Callable[..., Tensor],
) -> None:
    """Fail unless an answer is right for every case and leaves its inputs as they are.

    Args:
        function: The answer.
        cases: The inputs with their targets.
        names: Axes of the result, as in "batch head query key".
        right: A right answer, whose gradients are compared in the first case.
    """
    first, *others = cases
    for case in (first, *others):
        before = [x.clone() for x in case.inputs.values()]
        try:
            compare(call(function, case), case, names)
        except Exception as error:
            if not case.what:
                raise
            raise DiagnosisError(f"{where(case)}. {reason(error, case)}") from error
        for name, x, copy in zip(case.inputs, case.inputs.values(), before, strict=True):
            expect(torch.equal(x, copy), f"your function changes its input {name} in place.")
    expect_same_gradients(function, right, first.inputs, *first.numbers)


def where(case: Case) -> str:
    """Tell for which inputs an answer is wrong that was right for others."""
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in case.inputs.items())
    return f"it is right for the first inputs, but not for {case.what} ({shapes})"


def reason(error: Exception, case: Case) -> str:
    """Return a diagnosis, or the last line of any other error."""
    if isinstance(error, DiagnosisError):
        return str(error)[:1].upper() + str(error)[1:]
    last = (str(error).strip() or "no message").splitlines()[-1].strip()
    return f"Your code raised {type(error).__name__}: {last}"


# head_scores


def dot_products(q: Tensor, k: Tensor) -> Tensor:
    """Compute the dot product of every query with every key, in each head."""
    return torch.einsum("bqhd,bkhd->bhqk", q, k)


def score_mistakes(q: Tensor, k: Tensor, target: Tensor) -> Mistakes:
    """Return what typical mistakes in the attention scores produce."""
    return {
        "you still multiply the last two axes; in batch seq head dim those are head and dim, so "
        "heads are compared with heads, and tokens are never compared with "
        "each other.": q @ k.transpose(-2, -1),
        "rows are keys and columns queries: put `query` before `key` to the right of the arrow.": (
            target.mT
        ),
        "the head axis comes last; softmax and mask expect batch head query key.": (
            rearrange(target, "batch head query key -> batch query key head")
        ),
        "the head axis comes after the query; the order should be batch head query key.": (
            rearrange(target, "batch head query key -> batch query head key")
        ),
        "the heads are summed up: a name left out to the right of the arrow is summed.": (
            target.sum(1)
        ),
        "the examples of the batch are summed up: keep `batch` to the right of the arrow.": (
            target.sum(0)
        ),
        "queries and keys share one name, so each query meets only the key at its own position; "
        "give them two names.": target.diagonal(dim1=-2, dim2=-1),
        "you reshaped where axes must change places; a transpose moves head in front of seq, and a "
        "reshape only counts the same elements in other rows.": (
            q.reshape(len(q), q.size(2), -1, q.size(3))
            @ k.reshape(len(k), k.size(2), -1, k.size(3)).mT
        ),
        "`dim` has two names in your pattern, so queries and keys are summed separately; use one "
        "name for both.": (
            rearrange(q.sum(-1), "b q h -> b h q 1") * rearrange(k.sum(-1), "b k h -> b h 1 k")
        ),
        "the heads have two names, so the keys' heads are summed; use one name for both.": (
            torch.einsum("bqhd,bkgd->bhqk", q, k)
        ),
        "the batch has two names, so each query meets the keys of all examples; use one name for "
        "both.": torch.einsum("bqhd,ckhd->bhqk", q, k),
        "you scaled the scores by 1/sqrt(dim); attention does, but this exercise doesn't.": (
            target / math.sqrt(q.size(-1))
        ),
    } | further_steps(q, k, target)


def further_steps(q: Tensor, k: Tensor, target: Tensor) -> Mistakes:
    """Return what comes out if more is done than the dot products that the exercise asks for."""
    scaled = target / math.sqrt(q.size(-1))
    raw = "return the scores before a softmax; the weights are computed from them later."
    lengths = q.norm(dim=-1).mT[..., None] * k.norm(dim=-1).mT[:, :, None]
    past = torch.ones_like(target, dtype=torch.bool).tril()
    only = "return the dot product of every query with every key; no mask is asked for."
    return {
        f"you apply a softmax; {raw}": target.softmax(-1),
        f"you scale and apply a softmax; {raw}": scaled.softmax(-1),
        f"you apply a softmax, and over the queries, too; {raw}": target.softmax(-2),
        "you divide by the lengths of query and key, which gives cosines; leave the dot products "
        "as they are.": target / lengths,
        f"you set the future to 0; {only}": target.tril(),
        f"you set the future to -inf; {only}": target.masked_fill(~past, -torch.inf),
        "that is the distance between query and key; multiply them, and sum over dim.": (
            torch.cdist(q.transpose(1, 2), k.transpose(1, 2))
        ),
        "you take the mean over dim; a dot product is the sum.": target / q.size(-1),
        "you divide by the root of the number of queries; leave the dot products as they are.": (
            target / math.sqrt(q.size(1))
        ),
        "your scores are rounded to float16 on the way; compute them in the inputs' dtype.": (
            dot_products(q.half(), k.half()).to(q.dtype)
        ),
        "your scores are rounded to bfloat16 on the way; compute them in the inputs' dtype.": (
            dot_products(q.bfloat16(), k.bfloat16()).to(q.dtype)
        ),
        "negative scores are missing; keep them, because softmax makes them small weights.": (
            target.relu()
        ),
        "the sign is wrong.": -target,
    }


def score_cases() -> Iterator[Case]:
    """Yield queries and keys [batch, seq, head, dim]."""

    def case(q: Tensor, k: Tensor, what: str = "") -> Case:
        target = dot_products(q, k)
        mistakes = {} if what else score_mistakes(q, k, target)
        return Case({"q": q, "k": k}, target, what=what, mistakes=mistakes)

    yield case(normal(2, 3, 5, 7), normal(2, 3, 5, 7, seed=1))
    yield case(normal(2, 3, 5, 7), normal(2, 4, 5, 7, seed=2), "more keys than queries")
    yield case(normal(3, 1, 2, 5), normal(3, 6, 2, 5, seed=3), "a single query")
    yield case(normal(1, 4, 3, 2), normal(1, 4, 3, 2, seed=4), "a batch of one")
    yield case(normal(2, 3, 1, 4), normal(2, 5, 1, 4, seed=5), "one head")
    yield case(normal(2, 2, 3, 1), normal(2, 4, 3, 1, seed=6), "heads of one number")
    yield case(normal(1, 1, 1, 1), normal(1, 1, 1, 1, seed=7), "one number in all")
    moved, shared = normal(3, 2, 4, 5).transpose(1, 2), normal(1, 6, 2, 5, seed=8)
    yield case(moved, shared.expand(3, -1, -1, -1), "inputs that aren't contiguous")
    for size in sizes(2, batch=(2, 4), seq=(2, 6), more=(0, 3), head=(2, 5), dim=(2, 9)):
        q = normal(size.batch, size.seq, size.head, size.dim, seed=9)
        k = normal(size.batch, size.seq + size.more, size.head, size.dim, seed=10)
        yield case(q, k, "other sizes")
        yield case(q.double(), k.double(), "inputs in float64")
    q, k = (normal(2, 3, 2, 4, seed=seed).round() for seed in (11, 12))
    yield case(q.half(), k.half(), "inputs in float16")
    yield case(100 * q, 100 * k, "scores of several thousand")


@exercise(
    "One head has 2 queries and 4 keys of 3 numbers. How many scores are there, and what does each "
    "sum over?"
)
def head_scores(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Check the attention scores of each head for queries and keys [batch, seq, head, dim]."""
    judge(function, score_cases(), "batch head query key", dot_products)


# masked_mean


def mean_of_kept(x: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean of each row's tokens whose mask is True."""
    return torch.stack([row[keep].mean(0) for row, keep in zip(x, mask, strict=True)])


def mean_mistakes(x: Tensor, mask: Tensor) -> Mistakes:
    """Return what typical mistakes in the mean over tokens produce."""
    kept = x * rearrange(mask, "batch seq -> batch seq 1")
    counts = reduce(mask.float(), "batch seq -> batch 1", "sum")
    return {
        "you averaged over all tokens, padding included: the mask has no effect.": x.mean(1),
        "you set the padding to zero but divided by the sequence length: divide by the number of "
        "tokens that are kept.": kept.mean(1),
        "that is the sum of the kept tokens; divide by how many there are.": kept.sum(1),
        "you divide by the number of kept tokens, but padding is in the sum.": x.sum(1) / counts,
        "you divided by the kept tokens of the whole batch: each row has its own number of them.": (
            kept.sum(1) / mask.sum()
        ),
        "you averaged the padding and dropped the tokens: True marks a token that counts.": (
            reduce(x * ~mask[..., None], "batch seq hidden -> batch hidden", "sum")
            / (x.size(1) - counts)
        ),
        "you pooled over the whole batch; return one vector for each row.": (
            kept.sum((0, 1)) / mask.sum()
        ),
        "that is the largest value of the kept tokens; the mean is expected.": (
            x.masked_fill(~mask[..., None], -torch.inf).amax(1)
        ),
        "a division with // drops the fraction; use /.": kept.sum(1) // counts,
        "you use the first row's mask for all rows.": mean_of_kept(x, mask[:1].expand_as(mask)),
        "you divide every row by the first row's number of tokens.": kept.sum(1) / counts[0],
        "you divide every row by the largest number of tokens in the batch.": (
            kept.sum(1) / counts.max()
        ),
        "you divide by the number of rows; divide by each row's number of kept tokens.": (
            kept.sum(1) / len(x)
        ),
        "that is the first token's vector; the mean of the kept tokens is expected.": x[:, 0],
        "that is the median of the kept tokens; the mean is expected.": torch.stack(
            [row[keep].median(0).values for row, keep in zip(x, mask, strict=True)]
        ),
        "a softmax of the mask gives padding some weight, too; weigh it with 0.": (
            x * mask.to(x.dtype).softmax(1)[..., None]
        ).sum(1),
    }


def place_mistakes(x: Tensor, mask: Tensor) -> Mistakes:
    """Return what mistakes about the place of the padding produce."""
    places = torch.arange(x.size(1))
    from_left = places < mask.sum(1, keepdim=True)
    last = mask.long().cumsum(1).argmax(1, keepdim=True)
    first = mask.long().argmax(1, keepdim=True)
    kept = x * mask[..., None]
    return {
        "you assume that padding comes last, but the mask may begin with False: use its positions, "
        "not only their number.": mean_of_kept(x, from_left),
        "padding may also stand between tokens: use every position of the mask, not the first and "
        "the last.": mean_of_kept(x, (places >= first) & (places <= last)),
        "padding may also come first: you average from the beginning to the last kept token.": (
            mean_of_kept(x, places <= last)
        ),
        "you divide by the number of values that aren't zero; a kept token may have "
        "zeros.": kept.sum(1) / (kept != 0).sum(1),
        "a token that counts may be all zeros; count the mask, not the vectors.": kept.sum(1)
        / (kept != 0).any(-1).sum(1, keepdim=True),
    }


def length_mistakes(x: Tensor, mask: Tensor) -> Mistakes:
    """Return what mistakes with long sequences produce."""
    total, counts = (x * mask[..., None]).sum(1), mask.sum(1, keepdim=True)
    kinds = torch.bfloat16, torch.float16, torch.uint8, torch.int8
    return {
        f"a count of {int(counts[0]):,} doesn't fit into {str(kind).removeprefix('torch.')}; count "
        "in int64 or float32.": total / counts.to(kind).to(x.dtype)
        for kind in kinds
    } | {
        f"you use the first {most} tokens only.": mean_of_kept(x[:, :most], mask[:, :most])
        for most in (128, 256, 512, 1024, 2048)
    }


def mean_cases() -> Iterator[Case]:
    """Yield tokens [batch, seq, hidden] and masks [batch, seq]."""
    x = normal(3, 5, 4)
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 0, 0, 0, 0]]).bool()
    errors = {
        "scalar type": "x may be float64, but mask.float() is float32; mask.to(x.dtype) fits both.",
        "[Ss]ize of tensor": "two shapes do not fit together; they are matched from the right, so "
        "keep an axis of size 1 where one is missing: `batch 1` to divide by, `batch seq 1` to "
        "multiply with.",
        "[Bb]ool\\b": "the mask is boolean, and this needs numbers: mask.to(x.dtype) has ones and "
        "zeros.",
    }
    yield Case(
        {"x": x, "mask": mask},
        mean_of_kept(x, mask),
        mistakes=mean_mistakes(x, mask),
        errors=errors,
    )

    def case(x: Tensor, mask: Tensor, what: str) -> Case:
        return Case(
            {"x": x, "mask": mask},
            mean_of_kept(x, mask),
            what=what,
            mistakes=place_mistakes(x, mask),
            errors=errors,
        )

    left = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1]]).bool()
    yield case(normal(3, 6, 4), left, "padding on the left")
    holes = torch.tensor([[1, 0, 1, 0, 0], [0, 1, 0, 0, 1], [1, 0, 0, 1, 1]]).bool()
    yield case(normal(3, 5, 2, seed=1), holes, "padding between tokens")
    yield case(normal(4, 4, 3, seed=2), torch.eye(4).bool(), "one token in each row")
    yield case(normal(2, 3, 5, seed=3), torch.ones(2, 3).bool(), "a batch without padding")
    zeros = normal(2, 4, 3, seed=4)
    zeros[:, 1], zeros[:, 0, 0] = 0, 0
    yield case(zeros, torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0]]).bool(), "a token of zeros")
    yield case(normal(1, 1, 1), torch.ones(1, 1).bool(), "one number in all")
    moved = normal(5, 3, 4, seed=5).transpose(0, 1)
    yield case(moved, moved[..., 0] < 1, "an x that isn't contiguous")
    yield case(normal(1, 5, 2, seed=6).expand(3, -1, -1), holes, "an expanded x")
    for size in sizes(3, batch=(1, 4), seq=(2, 9), hidden=(1, 6)):
        x = normal(size.batch, size.seq, size.hidden, seed=7)
        mask = normal(size.batch, size.seq, seed=8) > 0
        mask[:, size.seq // 2] = True  # every row has a token
        yield case(x, mask, "other sizes")
        yield case(x.double(), mask, "inputs in float64")
    x, mask = (4 * normal(2, 5, 3, seed=8)).round(), torch.zeros(2, 5).bool()
    mask[0, 1:], mask[1, 2:4] = True, True
    yield case(x.half(), mask, "inputs in float16")
    # A count in bf16 rounds 259 to 260, and one in fp16 rounds 2,571 to 2,572.
    for tokens, first in ((300, 259), (3000, 2571)):
        long = torch.ones(2, tokens).bool()
        long[0, first:], long[1, 100:260] = False, False
        x = normal(2, tokens, 3, seed=9) + 5
        by_length = case(x, long, f"{tokens:,} tokens")
        yield replace(by_length, mistakes=by_length.mistakes | length_mistakes(x, long))


@exercise(
    "A row's tokens are [2, 4, 9], and its mask is [True, False, True]. What do you sum, and what "
    "do you divide by?"
)
def masked_mean(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Check the mean over all tokens that aren't padding."""
    judge(function, mean_cases(), "batch hidden", mean_of_kept)


# image_to_patches

VIEW = (
    "`view` can't join axes that a transpose has moved apart; `rearrange` and `reshape` copy where "
    "they must."
)


def cut(images: Tensor, size: int, output: str = "b (h w) (p1 p2 c)") -> Tensor:
    """Cut images into patches, and arrange the values by the pattern `output`."""
    return rearrange(images, f"b c (h p1) (w p2) -> {output}", p1=size, p2=size)


def patch_mistakes(images: Tensor, size: int) -> Mistakes:
    """Return what typical mistakes in cutting patches produce."""
    by_number = "b c (h p1) (w p2) -> b (h w) (p1 p2 c)"
    strided = "b c (p1 h) (p2 w) -> b (h w) (p1 p2 c)"
    sliding = images.unfold(2, size, 1).unfold(3, size, 1)
    return {
        "the channel varies slowest inside a patch; it should come last, as in (p1 p2 c).": (
            cut(images, size, "b (h w) (c p1 p2)")
        ),
        "the patches come column by column; make `h` the slow axis to go row by row.": (
            cut(images, size, "b (w h) (p1 p2 c)")
        ),
        "inside a patch, rows and columns are swapped: p1 before p2.": (
            cut(images, size, "b (h w) (p2 p1 c)")
        ),
        "every patch is a thinned-out image; in (h p1) the left name is the slow one, so the "
        "patch index comes first and the place inside the "
        "patch second.": rearrange(images, strided, p1=size, p2=size),
        "`size` is the size of a patch, p1 and p2; you gave it to h and w, the number of them.": (
            rearrange(images, by_number, h=size, w=size)
        ),
        "the patches are right but not flattened into vectors.": (
            cut(images, size, "b (h w) p1 p2 c")
        ),
        "the patches still lie on a grid: join `h` and `w` into one axis.": (
            cut(images, size, "b h w (p1 p2 c)")
        ),
        "the patches of all images are in one axis; keep `batch` apart.": (
            cut(images, size, "(b h w) (p1 p2 c)")
        ),
        "the values come before the patches; the order should be batch patch value.": (
            cut(images, size, "b (p1 p2 c) (h w)")
        ),
        "your patches overlap; each begins `size` pixels after the one before it.": (
            rearrange(sliding, "b c h w p1 p2 -> b (h w) (p1 p2 c)")
        ),
        "you move the channel to the end and then only reshape; a patch's pixels don't lie next to "
        "each other.": images.permute(0, 2, 3, 1).reshape(cut(images, size).shape),
        "a reshape alone keeps the elements in their old order; a patch's pixels don't lie next to "
        "each other.": images.reshape(cut(images, size).shape),
    }


def patch_cases() -> Iterator[Case]:
    """Yield images [batch, channel, height, width] and sizes of patches."""

    def case(images: Tensor, size: int, what: str = "", fixed: bool = False) -> Case:
        mistakes = {} if what else patch_mistakes(images, size)
        if fixed:
            message = "`size` has no effect; your patches are always 4 x 4."
            mistakes = {message: cut(images, 4)}
        errors = {"view size is not compatible": VIEW}
        target = cut(images, size)
        return Case({"images": images}, target, (size,), what, mistakes, errors)

    images = normal(2, 3, 8, 12)
    yield case(images, 4)
    yield case(images, 2, "another size on the same images", fixed=True)
    yield case(normal(2, 3, 12, 6, seed=1), 3, "images that are taller than wide, and size 3")
    yield case(normal(2, 1, 4, 6, seed=2), 2, "one channel")
    yield case(normal(3, 5, 4, 4, seed=3), 2, "five channels and square images")
    yield case(normal(2, 3, 5, 5, seed=4), 5, "one patch in each image")
    yield case(normal(2, 3, 2, 3, seed=5), 1, "patches of one pixel")
    yield case(normal(1, 1, 1, 1), 1, "one pixel in all")
    last = images.contiguous(memory_format=torch.channels_last)
    yield case(last, 4, "images that are stored channels last")
    yield case(normal(1, 2, 6, 3, seed=6).expand(4, -1, -1, -1), 3, "expanded images")
    for size in sizes(3, batch=(1, 3), channel=(1, 4), h=(1, 4), w=(1, 4), patch=(2, 5)):
        shape = size.batch, size.channel, size.h * size.patch, size.w * size.patch
        yield case(normal(*shape, seed=7), size.patch, "other sizes")
    images = normal(2, 2, 4, 6, seed=8)
    yield case(images.double(), 2, "inputs in float64")
    yield case(images.half(), 2, "inputs in float16")


@exercise("A 2 x 2 image is red 1, 2, 3, 4 and green 5, 6, 7, 8. What is its one patch of size 2?")
def image_to_patches(function: Callable[[Tensor, int], Tensor]) -> None:
    """Check the conversion of images to flattened patches with the channel as last dimension."""
    judge(function, patch_cases(), "batch patch value", cut)


# grouped_query_attention

ONE_DTYPE = "everything must have one dtype; a new tensor is float32 unless you say dtype=q.dtype."


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    kv_heads: int,
    *,
    split: str = "batch seq (head dim) -> batch head seq dim",
    merge: str = "batch head seq dim -> batch seq (head dim)",
    keys: str = "(kv group)",
    values: str = "(kv group)",
    scale: float | None = None,
    masked: str = "future",
    fill: float = -torch.inf,
    mask_weights: bool = False,
    softmax_over: int = -1,
) -> Tensor:
    """Compute grouped-query attention.

    The default arguments are correct. Each argument can reproduce a typical mistake.
    """
    group = heads // kv_heads
    q = rearrange(q, split, head=heads)
    k, v = (
        repeat(rearrange(x, split, head=kv_heads), f"b kv s d -> b {order} s d", group=group)
        for x, order in ((k, keys), (v, values))
    )
    scores = q @ k.mT * (q.size(-1) ** -0.5 if scale is None else scale)
    ones = torch.ones(scores.shape[-2:], dtype=torch.bool)
    masks = {
        "future": ones.triu(1),
        "too little": ones.triu(2),
        "itself": ones.triu(0),
        "past": ones.tril(-1),
        "past and itself": ones.tril(0),
        "none": ~ones,
    }
    forbidden = masks[masked]
    if mask_weights:
        weights = torch.softmax(scores, softmax_over).masked_fill(forbidden, 0.0)
    else:
        weights = torch.softmax(scores.masked_fill(forbidden, fill), softmax_over)
    return rearrange(weights @ v, merge)


def first_head(x: Tensor, heads: int) -> Tensor:
    """Return the first head's numbers for all heads."""
    return x[..., : x.size(-1) // heads].repeat(1, 1, heads)


def head_mistakes(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int) -> Mistakes:
    """Return what mistakes in splitting, sharing and merging heads produce."""
    case = q, k, v, heads, kv_heads
    unmerged = attend(*case, merge="batch head seq dim -> batch head seq dim")

    def misread(x: Tensor, count: int) -> Tensor:
        """Read the elements as if they came by head, then by token."""
        by_head = x.reshape(len(x), count, x.size(1), -1)
        return rearrange(by_head, "batch head seq dim -> batch seq (head dim)")

    return {
        "query head h reads key head h % kv_heads; neighboring heads share one, so split the "
        "query heads as (kv group), not (group kv).": (
            attend(*case, keys="(group kv)", values="(group kv)")
        ),
        "keys are shared by neighboring query heads, but values aren't; both are (kv group).": (
            attend(*case, values="(group kv)")
        ),
        "values are shared by neighboring query heads, but keys aren't; both are (kv group).": (
            attend(*case, keys="(group kv)")
        ),
        "the heads are merged as (dim head); the order they were split in is (head dim).": (
            attend(*case, merge="batch head seq dim -> batch seq (dim head)")
        ),
        "the heads are split as (dim head); a head's numbers are neighbors: (head dim).": (
            attend(*case, split="batch seq (dim head) -> batch head seq dim")
        ),
        "the heads are split and merged as (dim head); a head's numbers are neighbors, so both are "
        "(head dim).": attend(
            *case,
            split="batch seq (dim head) -> batch head seq dim",
            merge="batch head seq dim -> batch seq (dim head)",
        ),
        "head and seq are mixed up when splitting: split the width into (head dim) first, then "
        "bring head in front of seq.": (
            attend(misread(q, heads), misread(k, kv_heads), misread(v, kv_heads), heads, kv_heads)
        ),
        "head and seq are mixed up when merging: bring seq in front of head, then join.": (
            unmerged.reshape(q.shape)
        ),
        "you sum up keys; the weights belong to the values.": attend(q, k, k, heads, kv_heads),
        "all query heads read the first key head; each group has its own.": attend(
            q, first_head(k, kv_heads), first_head(v, kv_heads), heads, kv_heads
        ),
        "all query heads read the first key head; each group has its own, as it has its values.": (
            attend(q, first_head(k, kv_heads), v, heads, kv_heads)
        ),
        "the heads are not merged; the result should be batch seq (head dim).": unmerged,
    }


def softmax_mistakes(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int) -> Mistakes:
    """Return what mistakes in the scale, the mask and the softmax produce."""
    case = q, k, v, heads, kv_heads
    dim = q.size(-1) // heads
    return {
        "the scores are not scaled: divide them by sqrt(dim).": attend(*case, scale=1.0),
        "the scale uses the width of all heads; use the dim of one head.": (
            attend(*case, scale=(heads * dim) ** -0.5)
        ),
        "the scale uses the width of all key heads; use the dim of one head.": (
            attend(*case, scale=(kv_heads * dim) ** -0.5)
        ),
        "you divided by dim; use its square root.": attend(*case, scale=1 / dim),
        "you multiply by sqrt(dim); divide by it.": attend(*case, scale=dim**0.5),
        "there is no causal mask: tokens look at the future.": attend(*case, masked="none"),
        "that mask is inverted; each token looks at the future instead of the past.": (
            attend(*case, masked="past")
        ),
        "that mask hides a token's past and itself; hide only its future, triu(1).": (
            attend(*case, masked="past and itself")
        ),
        "each token sees one position too far; the future begins at triu(1).": (
            attend(*case, masked="too little")
        ),
        "a token sees itself, so the future is triu(1); here the first token's row is empty, and "
        "its softmax is NaN.": attend(*case, masked="itself"),
        "the future's scores are 0, but exp(0) is 1, so softmax still gives them weight; set them "
        "to -inf.": attend(*case, fill=0.0),
        "you mask after the softmax, so the weights of a query no longer add up to 1; set the "
        "scores to -inf before it.": attend(*case, mask_weights=True),
        "softmax runs over the queries; the weights of one query over all keys add up to 1.": (
            attend(*case, softmax_over=-2)
        ),
        "softmax runs over the heads; the weights of one query over all keys add up to 1.": (
            attend(*case, softmax_over=1)
        ),
    }


def attention_cases() -> Iterator[Case]:
    """Yield queries, keys and values [batch, seq, width] with the numbers of heads."""

    def case(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int, what: str = "") -> Case:
        numbers = heads, kv_heads
        mistakes: Mistakes = {}
        if not what:
            mistakes = head_mistakes(q, k, v, *numbers) | softmax_mistakes(q, k, v, *numbers)
        target = reference_attention(q, k, v, *numbers)
        errors = {
            "view size is not compatible": VIEW,
            "without overflow": "your lowest score doesn't fit into float16; use -torch.inf.",
            "scalar type": ONE_DTYPE,
            "same dtype": ONE_DTYPE,
        }
        return Case({"q": q, "k": k, "v": v}, target, numbers, what, mistakes, errors)

    def drawn(
        batch: int, seq: int, heads: int, kv_heads: int, dim: int, what: str = "", seed: int = 0
    ) -> Case:
        widths = heads * dim, kv_heads * dim, kv_heads * dim
        q, k, v = (3 * normal(batch, seq, width, seed=seed + n) for n, width in enumerate(widths))
        return case(q, k, v, heads, kv_heads, what)

    yield drawn(2, 5, 6, 2, 4)
    yield drawn(2, 5, 6, 3, 4, "pairs of query heads", seed=1)
    yield drawn(3, 4, 5, 1, 3, "one key head for all query heads", seed=2)
    yield drawn(2, 3, 4, 4, 5, "as many key heads as query heads", seed=3)
    yield drawn(2, 4, 1, 1, 6, "one head", seed=4)
    yield drawn(3, 1, 4, 2, 2, "a single token", seed=5)
    yield drawn(1, 7, 4, 2, 3, "a batch of one", seed=6)
    yield drawn(2, 3, 6, 2, 1, "heads of one number", seed=7)
    yield drawn(1, 1, 1, 1, 1, "one number in all", seed=8)
    for size in sizes(2, batch=(1, 4), seq=(2, 8), kv=(2, 3), group=(2, 4), dim=(2, 7)):
        heads = size.kv * size.group
        yield drawn(size.batch, size.seq, heads, size.kv, size.dim, "other sizes", seed=9)
    q, k, v = normal(2, 6, 24).split((16, 4, 4), dim=-1)
    yield case(q, k, v, 4, 1, "inputs that are slices of one tensor")
    expanded = normal(1, 4, 6).expand(3, -1, -1)
    yield case(expanded, expanded, expanded, 2, 2, "one expanded tensor for q, k and v")
    yield case(q.double(), k.double(), v.double(), 4, 1, "inputs in float64")
    yield drawn(1, 70, 2, 1, 4, "70 tokens", seed=10)
    yield drawn(1, 1100, 2, 1, 4, "1,100 tokens", seed=10)  # more than GPT-2's context
    q, k, v = (normal(2, 5, width, seed=width) for width in (16, 8, 8))
    yield case(q.half(), k.half(), v.half(), 4, 2, "inputs in float16")
    # Whole numbers and dim 4 make the scores exact, however they are computed.
    large = (16, -100.0, "scores of several hundred"), (200, -1e4, "scores of many thousands")
    for factor, fill, what in large:
        q, k = (factor * normal(2, 6, width, seed=width).round() for width in (16, 8))
        v = normal(2, 6, 8)
        yield replace(
            case(q, k, v, 4, 2, what),
            mistakes={
                "a masked score must be lower than any other, so set it to -inf.": (
                    attend(q, k, v, 4, 2, fill=fill)
                )
            },
            nan="there are NaNs: exp overflows, or only masked keys had weight; set the future to "
            "-inf before the softmax, and let the softmax subtract the maximum.",
        )


@exercise(
    "With 4 query heads and 2 key heads, which key head does each query head read, and which "
    "tokens does the second token see?"
)
def grouped_query_attention(function: Callable[..., Tensor]) -> None:
    """Check causal grouped-query attention, with several query heads per key and value head."""
    judge(function, attention_cases(), "batch seq width", reference_attention)
    q, k, v = (torch.empty(2, 5, width, device="meta") for width in (16, 8, 8))
    expect_device(lambda: function(q, k, v, 4, 2))


def reference_attention(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Compute grouped-query attention with repeated heads and PyTorch's fused attention."""
    q = q.unflatten(-1, (heads, -1)).transpose(1, 2)
    k, v = (
        t.unflatten(-1, (kv_heads, -1)).transpose(1, 2).repeat_interleave(heads // kv_heads, 1)
        for t in (k, v)
    )
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
