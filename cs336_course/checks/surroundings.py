"""Compare what all code of a process shares before and after an answer, and restore it."""

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
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
        read: Returns its value.
        write: Restores a value.
        left: Tells a learner whose function changes it.
        found: Tells what a learner's own cell did, if the value isn't `normal`. It is "" where
            checks work with any value.
        normal: The value that checks need.
    """

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

    torch.get_default_device calls functions of PyTorch that a check may forbid.
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
        torch.is_inference_mode_enabled,
        write_inference,
        "your code leaves inference mode on; write `with torch.inference_mode():`, which ends.",
        "inference mode was on",
        False,
    ),
    Setting(
        torch.is_grad_enabled,
        torch.set_grad_enabled,
        "your code leaves gradients off for all code after it; leave that out, or, if nothing in "
        "this task needs a gradient, use `with torch.no_grad():`, which ends.",
        "gradients were off",
        True,
    ),
    Setting(
        read_autocast,
        write_autocast,
        "your code leaves autocast switched on; enter one only with `with`, which leaves it again.",
        "autocast was on",
        (0, False, False, torch.bfloat16, torch.float16),
    ),
    Setting(
        torch.get_default_dtype,
        torch.set_default_dtype,
        "your code changes PyTorch's default dtype; give `dtype=` where you create a tensor.",
        "the default dtype wasn't float32",
        torch.float32,
    ),
    Setting(
        read_device,
        torch.set_default_device,
        "your code changes PyTorch's default device; give `device=` where you create a tensor.",
        "the default device wasn't the CPU",
    ),
    Setting(
        torch.get_num_threads,
        torch.set_num_threads,
        "your code changes the number of threads; leave torch.set_num_threads to the caller.",
    ),
    Setting(
        read_deterministic,
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        "your code changes torch.use_deterministic_algorithms; leave it to the caller.",
    ),
)
SEEDS = (
    "your code seeds a generator that all code shares, so whatever runs after it draws the same "
    "numbers; leave the seed to the caller."
)


class Watch:
    """What an answer shares with all other code, for one run of a check.

    Args:
        expect: Fails the check with a diagnosis unless its first argument is true.
        may_seed: Whether the task is to seed the global generators.
    """

    def __init__(self, expect: Callable[[object, str], None], may_seed: bool):
        self.expect, self.may_seed = expect, may_seed
        self.seedings = 0

    def read(self) -> list[Any]:
        """Return the values of all settings, and then what tells a seed."""
        values = [setting.read() for setting in SETTINGS]
        return [*values, (torch.initial_seed(), self.seedings)]

    def restore(self, values: list[Any]) -> None:
        """Restore the settings."""
        for setting, now, before in zip(SETTINGS, self.read(), values, strict=False):
            if now != before:
                setting.write(before)

    def compare(self, before: list[Any]) -> None:
        """Fail the check if a value has changed."""
        *now, seed = self.read()
        for setting, value, old in zip(SETTINGS, now, before, strict=False):
            self.expect(value == old, setting.left)
        self.expect(self.may_seed or seed == before[-1], SEEDS)

    def function(self, answer: Callable[..., Any]) -> Callable[..., Any]:
        """Return the learner's function, which also compares the state before and after a call."""

        @functools.wraps(answer)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = self.read()
            try:
                result = answer(*args, **kwargs)
                self.compare(before)
            finally:
                self.restore(before)
            return result

        return call

    def counted(self, seed: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that also counts its calls."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.seedings += 1
            return seed(*args, **kwargs)

        return call

    @contextmanager
    def open(self, answers: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """Watch the calls of functions, and of a class's methods, within the block."""
        with ExitStack() as stack:
            for module in (random, np.random):
                stack.enter_context(mock.patch.object(module, "seed", self.counted(module.seed)))
            for answer in answers:
                names = ("__init__", "forward") if isinstance(answer, type) else ()
                for name in names:
                    method = vars(answer).get(name)
                    if isinstance(method, FunctionType):
                        watched = self.function(method)
                        stack.enter_context(mock.patch.object(answer, name, watched))
            yield tuple(
                self.function(answer) if isinstance(answer, FunctionType) else answer
                for answer in answers
            )


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
    """Seed torch's global generator within the block, and restore it afterwards.

    The seed differs from those that answers set, so that `Watch` can tell them apart.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(ODD_SEED + 1 + seed)
        yield


def set_back(name: str) -> None:
    """Set back what a learner's own cell has left, and say so, because later cells need it."""
    for setting in SETTINGS:
        if setting.found and setting.read() != setting.normal:
            setting.write(setting.normal)
            print(f"{name}: {setting.found} before this check, so the check has set that back.")


def watched(
    check: Callable[..., None], expect: Callable[[object, str], None], may_seed: bool = False
) -> Callable[..., None]:
    """Return a check that also fails if an answer changes what all code shares.

    Whatever happens, the state is restored.

    Args:
        check: The check of an exercise.
        expect: Fails the check with a diagnosis unless its first argument is true.
        may_seed: Whether the task is to seed the global generators.
    """

    @functools.wraps(check)
    def run(*answers: Any) -> None:
        set_back(check.__name__)
        watch = Watch(expect, may_seed)
        with drawing():
            before = watch.read()
            try:
                with watch.open(answers) as given:
                    check(*given)
                watch.compare(before)
            finally:
                watch.restore(before)

    return run
