"""Derive wrong answers from a printed solution.

First-order mutants change one operator, constant, name or argument, and come from mutmut. Ideas are
answers that a plausible misunderstanding produces, such as a size read from the first call only.
"""

import ast
import copy
import difflib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import libcst as cst
import torch
from mutmut.mutation.mutators import mutation_operators
from torch import Tensor, nn


@dataclass(frozen=True)
class Mutant:
    """An answer that should be refused.

    Attributes:
        name: The changed lines, or the idea.
        code: Code that defines the answer.
        setup: Names that the code uses.
    """

    name: str
    code: str
    setup: dict[str, Any]


def changed_lines(old: str, new: str) -> str:
    """Describe a mutant by the lines that differ from the solution."""
    lines = list(difflib.ndiff(old.splitlines(), new.splitlines()))
    before = " ".join(line[2:].strip() for line in lines if line.startswith("- "))
    after = " ".join(line[2:].strip() for line in lines if line.startswith("+ "))
    return f"{before}  =>  {after}"


class OnePlace(cst.CSTTransformer):
    """Apply one of mutmut's mutations; `names` lists them all. Annotations stay as they are."""

    def __init__(self, place: int):
        super().__init__()
        self.place, self.places = place, 0

    def visit_Annotation(self, node: cst.Annotation) -> bool:  # noqa: N802
        """Skip annotations, which Python ignores."""
        return False

    def on_leave(self, original: Any, updated: Any) -> Any:
        """Replace the node, if it is the one."""
        new = super().on_leave(original, updated)
        for kind, operator in mutation_operators:
            if isinstance(original, kind):
                for mutated in operator(original):
                    self.places += 1
                    if self.places - 1 == self.place:
                        new = mutated
        return new


def first_order(solution: str) -> list[Mutant]:
    """Return the mutants that differ from the solution in one place."""
    module = cst.parse_module(solution)
    counter = OnePlace(-1)
    module.visit(counter)
    codes = dict.fromkeys(module.visit(OnePlace(n)).code for n in range(counter.places))
    return [
        Mutant(changed_lines(solution, code), code, {})
        for code in codes
        if parses(code) and ast.dump(ast.parse(code)) != ast.dump(ast.parse(solution))
        if code.lower() != solution.lower()  # axis names of einops in capitals are right
    ]


def parses(code: str) -> bool:
    """Return whether the code is valid Python."""
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


# Ideas that rewrite the solution


class Rewrite(ast.NodeTransformer):
    """Rewrite the expression at one place; `places` counts them."""

    def __init__(self, rule: Callable[[ast.expr], ast.expr | None], place: int):
        self.rule, self.place, self.places = rule, place, 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        node = super().generic_visit(node)
        new = self.rule(node) if isinstance(node, ast.expr) else None
        if new is None:
            return node
        self.places += 1
        return new if self.places - 1 == self.place else node


def fixed_size(node: ast.expr) -> ast.expr | None:
    """Keep the first value of a size: `x.shape[1]`, `x.size(-1)`, `len(x)`, `x.numel()`."""
    is_shape = isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "shape"
    name = getattr(
        getattr(node, "func", None), "attr", getattr(getattr(node, "func", None), "id", "")
    )
    if is_shape or name in {"size", "len", "numel", "dim"}:
        wrapped = ast.parse("_first(lambda: 0)", mode="eval").body
        wrapped.args[0].body = node  # type: ignore[attr-defined]
        return wrapped
    return None


def floor_division(node: ast.expr) -> ast.expr | None:
    """Replace `/` by `//`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return ast.BinOp(node.left, ast.FloorDiv(), node.right)
    return None


def last_axis(node: ast.expr) -> ast.expr | None:
    """Replace the axis of a reduction by the last one."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            named = keyword.arg in {"dim", "axis"}
            if named and ast.unparse(keyword.value) not in {"-1", "(-1,)"}:
                new = copy.deepcopy(node)
                new.keywords[node.keywords.index(keyword)].value = ast.Constant(-1)
                return new
    return None


class First:
    """Give the first value of an expression, at every call."""

    def __init__(self) -> None:
        self.value: Any = None

    def __call__(self, compute: Callable[[], Any]) -> Any:
        if self.value is None:
            self.value = compute()
        return self.value


RULES: dict[str, Callable[[ast.expr], ast.expr | None]] = {
    "size from the first call": fixed_size,
    "integer division": floor_division,
    "last axis": last_axis,
}


def rewritten(solution: str) -> Iterator[Mutant]:
    """Yield the solution with one expression rewritten by one rule."""
    tree = ast.parse(solution)
    for idea, rule in RULES.items():
        counter = Rewrite(rule, -1)
        counter.visit(copy.deepcopy(tree))
        for place in range(counter.places):
            new = ast.fix_missing_locations(Rewrite(rule, place).visit(copy.deepcopy(tree)))
            code = ast.unparse(new)
            name = f"{idea}: {changed_lines(ast.unparse(tree), code).split('  =>  ')[0]}"
            if place:
                name += f" ({place + 1})"
            yield Mutant(name, code, {"_first": First()})


# Ideas that wrap the solution

Call = Callable[..., Any]


class Wrap:
    """Change the arguments or results of an answer's calls.

    `applied` tells whether a check gave it anything to change. If not, the idea doesn't apply to
    the exercise.
    """

    applied = False

    def __call__(self, call: Call) -> Call:
        """Return the changed answer."""

        def answer(*args: Any, **kwargs: Any) -> Any:
            args = tuple(self.argument(n, value) for n, value in enumerate(args))
            return self.result(call(*args, **kwargs), args)

        return answer

    def argument(self, number: int, value: Any) -> Any:
        """Return what the solution receives for an argument."""
        return value

    def result(self, value: Any, args: tuple) -> Any:
        """Return what the check receives."""
        return value

    def each_tensor(self, change: Callable[[Tensor], Tensor | None], value: Any) -> Any:
        """Apply `change` to a tensor, or to each in a tuple or list. None leaves it as it is."""
        if isinstance(value, Tensor):
            new = change(value)
            self.applied |= new is not None
            return value if new is None else new
        if type(value) in (tuple, list):
            return type(value)(self.each_tensor(change, item) for item in value)
        return value


class FirstResult(Wrap):
    """Return the first result at every call."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def result(self, value: Any, args: tuple) -> Any:
        """Return the first result."""
        self.applied = value is not None
        self.kept.append(value)
        return self.kept[0]


class FirstArgument(Wrap):
    """Use an argument's value from the first call at every call."""

    def __init__(self, number: int):
        self.number = number
        self.kept: list[Any] = []

    def argument(self, number: int, value: Any) -> Any:
        """Return the first value of this argument."""
        if number != self.number:
            return value
        self.applied = True
        self.kept.append(value.clone() if isinstance(value, Tensor) else value)
        return self.kept[0]


class ChangedInputs(Wrap):
    """Change each tensor argument before the call."""

    def __init__(self, change: Callable[[Tensor], Tensor | None]):
        self.change = change

    def argument(self, number: int, value: Any) -> Any:
        """Return the changed argument."""
        return self.each_tensor(self.change, value)


class ChangedResult(Wrap):
    """Change each tensor of the result."""

    def __init__(self, change: Callable[[Tensor], Tensor | None]):
        self.change = change

    def result(self, value: Any, args: tuple) -> Any:
        """Return the changed result."""
        return self.each_tensor(self.change, value)


class SpoiledInputs(Wrap):
    """Add one to each tensor argument after the call."""

    @torch.no_grad()
    def result(self, value: Any, args: tuple) -> Any:
        """Change the arguments, and return the result as it was."""
        copied = Wrap().each_tensor(Tensor.clone, value)
        self.each_tensor(self.spoil, args)
        return copied

    def spoil(self, x: Tensor) -> Tensor | None:
        """Add one to a tensor in place."""
        fixed = x.is_meta or x.dtype == torch.bool or 0 in x.stride()
        return None if fixed else x.add_(1)


def first_row(x: Tensor) -> Tensor | None:
    """Use the first row for the whole batch."""
    return x[:1].expand_as(x).clone() if x.dim() > 1 and len(x) else None


def only_counts(x: Tensor) -> Tensor | None:
    """Move the True values of a mask to the front of each row."""
    is_mask = x.dtype == torch.bool and x.dim() > 0
    return x.sort(dim=-1, descending=True).values if is_mask else None


def other_dtype(x: Tensor) -> Tensor:
    """Return the numbers in another dtype of the same kind."""
    others = {torch.float32: torch.float64, torch.int64: torch.int32, torch.bool: torch.int64}
    return x.to(others.get(x.dtype, torch.float32))


def detached(x: Tensor) -> Tensor | None:
    """Cut the result off from its gradient."""
    return x.detach() if x.is_floating_point() else None


WRAPS: dict[str, Callable[[], Wrap]] = {
    "first result at every call": FirstResult,
    **{
        f"argument {n + 1} of the first call": functools.partial(FirstArgument, n) for n in range(6)
    },
    "first row for the batch": lambda: ChangedInputs(first_row),
    "counts of a mask": lambda: ChangedInputs(only_counts),
    "input changed": SpoiledInputs,
    "other dtype": lambda: ChangedResult(other_dtype),
    "other device": lambda: ChangedResult(lambda x: x.to("meta")),
    "no gradient": lambda: ChangedResult(detached),
}


def wrap_answer(answer: Any, wrap: Wrap) -> Any:
    """Wrap a function, the `forward` of a module's class, or each function of a tuple."""
    if isinstance(answer, tuple):
        return tuple(wrap_answer(one, wrap) for one in answer)
    if not (isinstance(answer, type) and issubclass(answer, nn.Module)):
        return wrap(answer)

    def forward(self: nn.Module, *args: Any) -> Any:
        return wrap(functools.partial(answer.forward, self))(*args)

    return type(answer.__name__, (answer,), {"forward": forward})
