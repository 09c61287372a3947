"""What all code of a process shares: compare it before and after an answer, and restore it."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.utils._device

KINDS = ("cpu", "cuda")
ODD_SEED = 0x5EED_0DD1  # far from any seed that an answer might set
LEFT: list[torch.inference_mode] = []  # an object that is gone would turn the mode back


@dataclass(frozen=True)
class Setting:
    """A part of the state that all code shares.

    Attributes:
        name: Names it in a record.
        read: Returns its value.
        write: Restores a value.
        left: Tells a learner whose function changes it.
        found: Tells what a learner's own cell did, if the value isn't `normal`. It is "" where
            exercises work with any value.
        normal: The value that exercises need.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    left: str
    found: str = ""
    normal: Any = None


def read_autocast() -> tuple[Any, ...]:
    """Return how many autocasts are open, which devices have one, and its dtype."""
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    enabled = (torch.is_autocast_enabled(kind) for kind in KINDS)
    return depth, *enabled, *(torch.get_autocast_dtype(kind) for kind in KINDS)


def write_autocast(value: tuple[Any, ...]) -> None:
    """Leave the autocasts that an answer has entered.

    PyTorch keeps its bf16 copies of the weights until the outermost block ends. A block that stays
    open would make later training steps compute with old weights.
    """
    depth, *others = value
    while read_autocast()[0] > depth:
        torch.autocast_decrement_nesting()
    while read_autocast()[0] < depth:
        torch.autocast_increment_nesting()
    for kind, is_enabled, dtype in zip(KINDS, others, others[len(KINDS) :], strict=False):
        torch.set_autocast_enabled(kind, is_enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.clear_autocast_cache()


def write_inference(value: bool) -> None:
    """Turn inference mode on or off until the process ends or something else changes it."""
    LEFT.append(torch.inference_mode(value))
    LEFT[-1].__enter__()


def read_device() -> torch.device | None:
    """Return the default device, or None if it is the CPU.

    torch.get_default_device calls functions of PyTorch that an exercise may forbid.
    """
    device = torch.utils._device.CURRENT_DEVICE
    return None if device is None or device.type == "cpu" else device


def read_deterministic() -> tuple[bool, bool]:
    """Return whether deterministic algorithms are demanded, and whether others only warn."""
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warns


# Inference mode comes first, since it also turns gradients off.
SETTINGS = (
    Setting(
        "inference mode",
        torch.is_inference_mode_enabled,
        write_inference,
        "your code leaves inference mode on; write `with torch.inference_mode():`, which ends.",
        "inference mode was on",
        False,
    ),
    Setting(
        "gradients",
        torch.is_grad_enabled,
        torch.set_grad_enabled,
        "your code leaves gradients off for all code after it; leave that out, or, if nothing in "
        "this task needs a gradient, use `with torch.no_grad():`, which ends.",
        "gradients were off",
        True,
    ),
    Setting(
        "autocast",
        read_autocast,
        write_autocast,
        "your code leaves autocast switched on; enter one only with `with`, which leaves it again.",
        "autocast was on",
        (0, False, False, torch.bfloat16, torch.float16),
    ),
    Setting(
        "default dtype",
        torch.get_default_dtype,
        torch.set_default_dtype,
        "your code changes PyTorch's default dtype; give `dtype=` where you create a tensor.",
        "the default dtype wasn't float32",
        torch.float32,
    ),
    Setting(
        "default device",
        read_device,
        torch.set_default_device,
        "your code changes PyTorch's default device; give `device=` where you create a tensor.",
        "the default device wasn't the CPU",
    ),
    Setting(
        "threads",
        torch.get_num_threads,
        torch.set_num_threads,
        "your code changes the number of threads; leave torch.set_num_threads to the caller.",
    ),
    Setting(
        "deterministic algorithms",
        read_deterministic,
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        "your code changes torch.use_deterministic_algorithms; leave it to the caller.",
    ),
)
SEED = "seed"
SENTENCES = {setting.name: setting.left for setting in SETTINGS} | {
    SEED: "your code seeds a generator that all code shares, so whatever runs after it draws the "
    "same numbers; leave the seed to the caller."
}


@contextmanager
def guarded() -> Iterator[list[str]]:
    """Observe what the block changes of the state that all code shares, and restore it.

    PyTorch's generator has a known seed within the block.

    Yields:
        A list to which the names of what has changed are added at the end of the block.
    """
    changed: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(drawing())
        seedings = [stack.enter_context(counting(module)) for module in (random, np.random)]
        before = [setting.read() for setting in SETTINGS]
        try:
            yield changed
        finally:
            if torch.initial_seed() != ODD_SEED or any(seed.called for seed in seedings):
                changed.append(SEED)
            for setting, value in zip(SETTINGS, before, strict=True):
                if setting.read() != value:
                    changed.append(setting.name)
                    setting.write(value)


def counting(module: Any) -> Any:
    """Replace a module's `seed` within a block by one that knows whether it was called."""
    return mock.patch.object(module, "seed", mock.Mock(side_effect=module.seed))


@contextmanager
def drawing() -> Iterator[None]:
    """Give PyTorch's generator a known seed within the block, and restore all generators."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    torch.default_generator.manual_seed(ODD_SEED)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(pytorch)
        if on_gpus:
            torch.cuda.set_rng_state_all(on_gpus)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator within the block, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(ODD_SEED + 1 + seed)
        yield


def set_back(name: str) -> None:
    """Set back what a learner's own cell has left, and say so, because later cells need it."""
    for setting in SETTINGS:
        if setting.found and setting.read() != setting.normal:
            setting.write(setting.normal)
            print(f"{name}: {setting.found} before this check, so the check has set that back.")
