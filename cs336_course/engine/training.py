"""Observe what an answer does with a model that it trains or evaluates."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock
from weakref import WeakSet

import torch
from torch import Tensor, nn

from cs336_course.engine.observe import NoValues, ReadsValuesError
from cs336_course.engine.records import Record, plain


class Autocast(AbstractContextManager):
    """Substitute for autocast. `is_open` is true within the block."""

    is_open = False

    def __enter__(self) -> None:
        self.is_open = True

    def __exit__(self, *error: object) -> None:
        self.is_open = False


@contextmanager
def watched_forward(model: nn.Module, look: Callable[[Tensor], object]) -> Iterator[None]:
    """Call a function with the first input of each forward pass within the block.

    PyTorch's own hooks see `model(x)`, but they don't see `model.forward(x)`.
    """
    forward = model.forward

    def seen(*given: Any, **named: Any) -> Any:
        look(named["idx"] if "idx" in named else given[0])
        return forward(*given, **named)

    with mock.patch.object(model, "forward", seen):
        yield


class Passes:
    """Watch how an answer calls a model.

    Attributes:
        inputs: Input of each forward pass.
    """

    def __init__(self, model: nn.Module, autocast: Autocast):
        self.model, self.autocast = model, autocast
        self.inputs: list[Tensor] = []
        self.seen: set[tuple[bool, bool, bool]] = set()

    def look(self, x: Tensor) -> None:
        """Note a forward pass."""
        self.inputs.append(x)
        self.seen.add((self.model.training, torch.is_grad_enabled(), self.autocast.is_open))

    def facts(self) -> Record:
        """Return in which modes the model was called, with gradients or without, and where."""
        names = ("in training mode", "with gradients", "in autocast")
        return {name: sorted({seen[n] for seen in self.seen}) for n, name in enumerate(names)}


class Kept:
    """An activation that a graph keeps for its backward pass."""

    def __init__(self, value: Tensor):
        self.value = value.detach()  # an output's own graph would keep it forever


@contextmanager
def activations() -> Iterator[WeakSet[Kept]]:
    """Yield the activations that graphs from within the block keep at any moment."""
    alive: WeakSet[Kept] = WeakSet()

    def pack(value: Tensor) -> Kept:
        alive.add(kept := Kept(value))
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.value):
        yield alive


def flat_gradient(model: nn.Module) -> Tensor:
    """Concatenate all gradients to one vector. Missing gradients are zeros."""
    gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())
    return torch.cat([gradient.flatten() for gradient in gradients])


def flat_weights(model: nn.Module) -> Tensor:
    """Concatenate all weights to one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def one_number(value: Any) -> Any:
    """Return a plain value. A tensor with one number may have any dtype and number of axes."""
    is_one = isinstance(value, Tensor) and value.numel() == 1
    return plain(value.detach().float().reshape(()) if is_one else value)


# A model on another device


class OneForEach(NoValues):
    """Give the number 1 for each tensor on the meta device whose number an answer asks for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make any other call."""
        name = getattr(func, "__name__", "")
        if name in ("item", "__float__", "cpu", "to") and args[0].is_meta:
            if name in ("item", "__float__"):
                return 1.0
            try:
                return func(*args, **(kwargs or {}))
            except NotImplementedError:  # there is nothing to copy to the CPU
                return torch.ones(args[0].shape)
        return super().__torch_function__(func, types, args, kwargs)


def elsewhere(model: nn.Module, call: Callable[[], Any]) -> str:
    """Return how an answer runs with a model on another device than the CPU.

    Args:
        model: Model on the meta device, which refuses to mix its tensors with those of another.
        call: Calls the answer with the model.

    Returns:
        "runs", "fails", or "the result is on the CPU".
    """
    moved: list[bool] = []
    try:
        with OneForEach(), watched_forward(model, lambda x: moved.append(x.is_meta)):
            result = call()
    except ReadsValuesError:  # as a right answer may
        return "runs"
    except Exception:
        return "fails"
    if not all(moved):
        return "fails"
    is_there = not isinstance(result, Tensor) or result.is_meta
    return "runs" if is_there else "the result is on the CPU"
