"""Compare a learner's part of GPT-2 with the library's, by values, gradients and devices."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cs336_course.checks import draws
from cs336_course.checks.report import expect
from cs336_course.checks.surroundings import seeded
from cs336_lib.config import GPTConfig

NO_RETURN = "your function returns None; is the `return` missing?"
NO_FORWARD = "`forward` returns None; is its `return` missing?"
ON_CPU = (
    "right on the CPU, but it would fail on a GPU. Create new tensors on the inputs' device, as in "
    "torch.arange(..., device=x.device)."
)
LOST_GRADIENT = "no gradient flows through; is something detached or in no_grad?"
LN_EPS = 1e-5


def same(got: Tensor, right: Tensor) -> bool:
    """Return whether two tensors are equal up to float32's rounding."""
    return got.shape == right.shape and torch.allclose(got.double(), right.double(), 1e-4, 1e-5)


def and_then(cases: Iterable[Any], describe: Callable[[Any], str]) -> Iterator[tuple[Any, str]]:
    """Yield each case with the words for a wrong result, which name the first case as right."""
    first = ""
    for case in cases:
        text = describe(case)
        yield case, f"right for {first}, but not for {text}." if first else f"wrong for {text}."
        first = first or text


# What a result must be


def expect_like(got: Any, want: Tensor, none: str = NO_RETURN) -> None:
    """Expect a tensor with the shape, dtype and device of another."""
    expect(got is not None, none)
    expect(isinstance(got, Tensor), f"a tensor is expected, not {type(got).__name__}.")
    found, wanted = tuple(got.shape), tuple(want.shape)
    expect(found == wanted, f"the shape is {found}; {wanted} is expected.")
    expect(got.dtype == want.dtype, f"the result is {got.dtype}; keep {want.dtype}.")
    expect(got.device == want.device, f"the result is on the device {got.device}.")


def expect_none_of(got: Tensor, slips: Mapping[str, Tensor], right: Tensor) -> None:
    """Fail with a diagnosis if `got` equals the result of a known mistake in `slips`."""
    for diagnosis, wrong in slips.items():
        expect(same(wrong, right) or not same(got, wrong), diagnosis)


@contextmanager
def unchanged(**inputs: Tensor) -> Iterator[None]:
    """Fail if the block changes one of these tensors in place."""
    before = {name: tensor.detach().clone() for name, tensor in inputs.items()}
    flags = {name: tensor.requires_grad for name, tensor in inputs.items()}
    try:
        yield
    except RuntimeError as error:
        names = " or ".join(inputs)
        changes = "leaf Variable" in str(error)
        expect(not changes, f"you change {names} in place; write x = x + ..., not x += ...")
        raise
    for name, tensor in inputs.items():
        is_equal = torch.equal(tensor, before[name])
        expect(is_equal, f"your code changes its input {name} in place; work on a copy.")
        same_flag = tensor.requires_grad == flags[name]
        expect(same_flag, f"your code changes requires_grad of its input {name}; leave it.")


def expect_gradients(pairs: Mapping[str, tuple[Tensor, Tensor]], got: Tensor, want: Tensor) -> None:
    """Fail unless `got` and `want` have equal gradients with respect to the tensors in `pairs`."""
    weights = torch.linspace(-1, 1, want.numel()).reshape(want.shape).to(want)
    expect(got.requires_grad, LOST_GRADIENT)
    try:
        mine = torch.autograd.grad(got, [a for a, _ in pairs.values()], weights, allow_unused=True)
    except RuntimeError as error:
        changed = "modified by an inplace" in str(error)
        expect(not changed, "you change a value that its gradient needs; write x = x + ...")
        raise
    theirs = torch.autograd.grad(want, [b for _, b in pairs.values()], weights, allow_unused=True)
    for name, a, b in zip(pairs, mine, theirs, strict=True):
        is_right = b is None or (a is not None and same(a, b))
        is_near = a is not None and b is not None and (a - b).norm() < 0.05 * b.norm()
        expect(
            is_right or not is_near,
            f"the values are nearly right, but the gradient of {name} is slightly off. Is a "
            "constant rounded, something small added, or a part detached?",
        )
        expect(
            is_right,
            f"the values are right, but the gradient of {name} isn't; is something detached, or "
            "computed under no_grad?",
        )


def expect_device(run: Callable[[], Any], reads_values: bool = False) -> None:
    """Fail if code for inputs on another device needs tensors on the CPU.

    Args:
        run: Runs the code on the meta device, whose tensors have no values.
        reads_values: Whether a right answer may read values of the inputs, as `tolist` does.
    """
    try:
        result = run()
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        text = str(error)
        allowed = ["item() cannot be called", "data-independent"]  # only meta can't do these
        allowed += ["no data"] if reads_values else []
        expect(any(words in text for words in allowed), ON_CPU)
    else:
        expect(not isinstance(result, Tensor) or result.is_meta, ON_CPU)


class NoFusedAttention(TorchFunctionMode):
    """Refuse torch's attention function within the block, however it is imported."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Call any other function."""
        name = getattr(func, "__name__", "")
        fused = "scaled_dot_product" in name or "multi_head_attention" in name
        expect(not fused, f"{name} does all the work here; write it by hand.")
        return func(*args, **(kwargs or {}))


# Modules


def shape(n_head: int, n_embd: int, n_layer: int = 2, **others: int) -> GPTConfig:
    """Return a small config with a padded vocabulary."""
    sizes = {"block_size": 11, "vocab_size": 50} | others
    return GPTConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, **sizes)


def module_cases(seed: int) -> Iterator[tuple[GPTConfig, int, int]]:
    """Yield configs with the batch and length of an input, the most readable case first."""
    yield shape(3, 24), 2, 7
    yield shape(1, 6, block_size=5), 1, 1  # one head and one token
    yield shape(4, 4, block_size=33), 2, 33  # head_dim is 1, and the context is full
    bounds = {"head": (2, 5), "dim": (2, 7), "batch": (1, 4), "seq": (2, 12), "spare": (0, 5)}
    for case in draws.sizes(1, seed, **bounds):
        config = shape(case.head, case.head * case.dim, block_size=case.seq + case.spare)
        yield config, case.batch, case.seq


def described(case: tuple[GPTConfig, int, int]) -> str:
    """Return a case of `module_cases` in words."""
    config, batch, seq = case
    return f"x of shape {(batch, seq, config.n_embd)} and n_head {config.n_head}"


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return a module's parameters by name."""
    return dict(module.named_parameters())


def expect_names(mine: nn.Module, theirs: nn.Module) -> None:
    """Expect the names and shapes of GPT-2's checkpoint."""
    ours, right = named_parameters(mine), named_parameters(theirs)
    shared = dict(mine.named_parameters(remove_duplicate=False))
    for name, parameter in right.items():
        is_bias = name.endswith("bias") and name.replace("bias", "weight") in ours
        expect(
            name in ours or name not in shared,
            f"{name} is one tensor with another parameter; create a module for each.",
        )
        expect(
            name in ours or not is_bias,
            f"{name} is missing. GPT-2's linear layers and norms have a bias.",
        )
        expect(
            name in ours,
            f"there is no parameter {name}. Checkpoints are read by name, so use GPT-2's names. "
            f"Yours are {', '.join(list(ours)[:6]) or 'none'}.",
        )
        found, wanted = tuple(ours[name].shape), tuple(parameter.shape)
        expect(found == wanted, f"{name} has the shape {found}; {wanted} is expected.")
        trains = ours[name].requires_grad
        expect(trains, f"{name} has requires_grad=False, so it would never learn; leave it on.")
    extra = [name for name in ours if name not in right]
    expect(not extra, f"{extra[:1]} is a parameter that GPT-2 doesn't have.")
    for name, module in mine.named_modules():
        eps = getattr(module, "eps", LN_EPS)
        expect(eps == LN_EPS, f"{name} has eps={eps}; GPT-2 has nn.LayerNorm's default.")


def twins(
    answer: Callable[..., Any],
    theirs: Callable[..., nn.Module],
    config: GPTConfig,
    seed: int,
    before: Callable[[Any], None] = lambda mine: None,
) -> tuple[Any, Any]:
    """Create the learner's module and the reference module with equal random weights.

    Args:
        answer: The learner's class.
        theirs: The library's class.
        config: The shape of both.
        seed: Seed of the weights.
        before: Further expectations of the learner's module, checked before its names.
    """
    with seeded(seed):
        mine, right = answer(config), theirs(config)
        answer(shape(2, 2, block_size=3))  # must not change the first one, as a global would
        expect(isinstance(mine, nn.Module), "make it a class derived from nn.Module.")
        before(mine)
        expect_names(mine, right)
        ours = named_parameters(mine)
        with torch.no_grad():
            for name, parameter in right.named_parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=0.2)
                ours[name].copy_(parameter)
    return mine, right


def expect_stable(call: Callable[[], Tensor], mine: nn.Module, got: Tensor) -> None:
    """Fail unless a module gives the same result again, and in eval mode."""
    expect(
        same(got, call()), "two calls differ. GPT-2 is trained without dropout here; leave it out."
    )
    mine.eval()
    expect(same(got, call()), "the output changes after model.eval(); do the same in both modes.")
    mine.train()


def expect_agreement(
    mine: nn.Module,
    right: nn.Module,
    x: Tensor,
    slips: Mapping[str, Callable[[Any, Tensor], Tensor]],
    wrong_case: str,
) -> None:
    """Fail unless the outputs and gradients of both modules agree. Diagnose known mistakes.

    Args:
        mine: The learner's module.
        right: The library's module with the same weights.
        x: The input.
        slips: Maps a diagnosis to the output of a known mistake.
        wrong_case: Diagnosis of any other output.
    """
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    want = right(b)
    with unchanged(x=a):
        got = mine(a)
    expect_like(got, want, NO_FORWARD)
    with torch.no_grad():
        expect_none_of(got, {text: wrong(right, x) for text, wrong in slips.items()}, want)
    expect_stable(lambda: mine(a), mine, got)
    expect(same(got, want), f"with GPT-2's weights the output is {wrong_case}")
    expect(
        same(mine(-a), right(-b)),
        "right for the first input, but not for a second one; keep nothing of an earlier call.",
    )
    ours, theirs = named_parameters(mine), named_parameters(right)
    expect_gradients({"x": (a, b)} | {n: (ours[n], theirs[n]) for n in theirs}, got, want)
    mine.to("meta")
    expect_device(lambda: mine(x.to("meta")))
