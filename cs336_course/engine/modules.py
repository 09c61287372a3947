"""Observe a class of modules: build one, give it weights by name, and record what it computes."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from cs336_course.engine.cases import Case, normal
from cs336_course.engine.observe import Observer, runs_elsewhere, same
from cs336_course.engine.records import Record, plain

SAYS = {
    "frozen": "a parameter has requires_grad=False, so it would never learn; leave it on.",
    "repeated": "two calls with one input differ. Is there dropout, or another random number?",
    "in eval mode": "the output changes after model.eval(); do the same in both modes.",
    "second result": (
        "right for the first input, but not for a second one. Is something of the first call kept?"
    ),
    "backward": (
        "the backward pass fails. Is a value changed in place that it needs, as by x += ...?"
    ),
}


def module() -> Observer:
    """Return the observer of a class derived from nn.Module.

    A case has the `config` from which the module is built, and the inputs of `forward` by name. It
    may have `gradients=False` where numbers are so large that rounding hides the gradients, and
    `on_other_device=True`, which takes longer than all else.
    """

    def observe(answer: Any, case: Case) -> Record:
        inputs = dict(case.inputs)
        config = inputs.pop("config")
        has_gradients = inputs.pop("gradients", True)
        on_other_device = inputs.pop("on_other_device", False)
        mine = built(answer, config)
        built(answer, replace(config, n_layer=1, n_head=1, vocab_size=config.vocab_size // 2))
        record = parameters(mine)
        fill(mine)
        mine.to(next((x.dtype for x in inputs.values() if x.is_floating_point()), torch.float32))
        record |= outputs(mine, inputs)
        if has_gradients and record["result"] is not None:
            record |= gradients(mine, inputs)
        if on_other_device:
            mine.to("meta")
            record["elsewhere"] = runs_elsewhere(lambda *args: mine(*args), Case(**inputs))
        return record

    return observe


def built(answer: Any, config: Any) -> nn.Module:
    """Build a module.

    Raises:
        TypeError: If it is none.
    """
    mine = answer(config)
    if not isinstance(mine, nn.Module):
        raise TypeError("the class isn't derived from nn.Module")
    return mine


def parameters(mine: nn.Module) -> Record:
    """Return the names and shapes of a module's parameters, and which of them don't learn."""
    found = dict(mine.named_parameters())
    return {
        **{f"parameter {name}": p.detach().to("meta") for name, p in sorted(found.items())},
        "parameters": sorted(found),
        "frozen": sorted(name for name, p in found.items() if not p.requires_grad),
    }


@torch.no_grad()
def fill(mine: nn.Module, std: float = 0.2) -> None:
    """Give each parameter random numbers that depend on its name only."""
    for name, parameter in mine.named_parameters():
        is_gain = parameter.ndim == 1 and name.endswith("weight")
        drawn = normal(*parameter.shape, seed=crc32(name.encode()))
        parameter.copy_(std * drawn + is_gain)


def outputs(mine: nn.Module, inputs: Mapping[str, Tensor]) -> Record:
    """Return the output, and whether it depends on anything but the input."""
    given = copy.deepcopy(dict(inputs))
    with torch.no_grad():
        first = mine(*given.values())
        second = mine(*(x.flip(1) for x in inputs.values()))
        again = mine(*copy.deepcopy(list(inputs.values())))
        in_eval = mine.eval()(*copy.deepcopy(list(inputs.values())))
    mine.train()
    return {
        "repeated": alike(first, again),
        "in eval mode": alike(first, in_eval),
        "result": plain(first),
        "second result": plain(second),
        "changed": [name for name in inputs if not same(given[name], inputs[name])],
    }


def alike(one: Any, other: Any) -> bool:
    """Return whether two outputs of one module are equal, up to rounding."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other)
    return one.shape == other.shape and torch.allclose(one, other, 1e-4, 1e-5, equal_nan=True)


def gradients(mine: nn.Module, inputs: Mapping[str, Tensor]) -> Record:
    """Return the gradients of a weighted sum of the outputs. They are None where they are lost."""
    leaves = {
        name: x.clone().requires_grad_() for name, x in inputs.items() if x.is_floating_point()
    }
    given = copy.deepcopy(dict(inputs)) | {name: leaf.clone() for name, leaf in leaves.items()}
    leaves |= dict(sorted(mine.named_parameters()))
    result = mine(*given.values())
    if not isinstance(result, Tensor) or not result.requires_grad:
        return {"backward": True, **{f"gradient of {name}": None for name in leaves}}
    weights = torch.linspace(-1, 1, result.numel()) if result.ndim else torch.ones(1)
    try:
        found = torch.autograd.grad(
            (result.flatten() * weights.to(result)).sum(), list(leaves.values()), allow_unused=True
        )
    except RuntimeError:
        return {"backward": False}
    of_leaves = zip(leaves, found, strict=True)
    return {"backward": True, **{f"gradient of {name}": plain(g) for name, g in of_leaves}}
