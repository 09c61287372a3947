"""Observe an answer: call it with the inputs of a case, and record what it did."""

import copy
import signal
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import cs336_course
import cs336_lib
from cs336_course.engine import state
from cs336_course.engine.cases import Case
from cs336_course.engine.records import Record, plain

GRADIENT = "gradient of {}"
Observer = Callable[[Any, Case], Record]
"""Runs an answer on a case. What it returns are the facts that are compared, in this order."""

LONGEST = 30.0  # seconds that an answer may compute for one case; right ones need less than three

# Folders of code that isn't a learner's: these packages, and PyTorch wherever it is installed
OTHERS = tuple(Path(module.__file__).parent for module in (cs336_course, cs336_lib, torch))
# Functions that read a tensor's values, which have none on the meta device
READS = {"item", "tolist", "numpy", "nonzero", "unique", "__bool__", "__int__", "__float__"}
READS |= {"__index__", "__contains__", "equal", "allclose", "masked_select", "argwhere"}


class EndlessError(BaseException):
    """Error of an answer that was stopped. It passes an answer's own `except Exception`."""


def observed(observe: Observer, answer: Any, case: Case, may_seed: bool = False) -> Record:
    """Return the record of an answer for a case, including what it leaves changed.

    Raises:
        NotImplementedError: If the answer is an untouched stub.
    """
    with state.guarded() as left:
        try:
            with limited():
                record = observe(answer, case)
        except (Exception, EndlessError) as error:  # the learner's own code may raise anything
            if isinstance(error, NotImplementedError) and not str(error):
                raise  # only a stub's error has no message
            record = {"raises": raised(error)}
    if may_seed and state.SEED in left:
        left.remove(state.SEED)
    return {"left": left, **record}


@contextmanager
def limited() -> Iterator[None]:
    """Stop the block once this thread has computed for `LONGEST` seconds, as an endless loop does.

    The thread's clock stands while others use the core, so a busy machine shortens nothing. Windows
    has no such timer. There, and in other threads, only the kernel's stop button helps.

    Raises:
        EndlessError: If the block is stopped.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() != threading.main_thread():
        yield
        return
    begun = time.thread_time()

    def look(*_: object) -> None:
        if time.thread_time() - begun >= LONGEST:
            raise EndlessError

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, LONGEST, 1)  # by the clock of all threads together
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def raised(error: BaseException) -> dict[str, Any]:
    """Return an error as a fact: its type, its message, and whether the learner's code raised it.

    An exercise may intercept the functions that an answer calls, so other code may be the last.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = any(is_learners(frame.filename) for frame in frames)
    return {"type": type(error).__name__, "message": str(error).strip()[:500], "own": own}


def is_learners(filename: str) -> bool:
    """Return whether code is neither these packages' nor Python's nor an installed package's."""
    others = [*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), *OTHERS]
    return not any(Path(filename).is_relative_to(folder) for folder in others)


def value() -> Observer:
    """Return the observer of an answer that is a value, such as a dict, and not a function."""

    def observe(answer: Any, case: Case) -> Record:
        if answer is ... or (isinstance(answer, dict) and ... in answer.values()):
            raise NotImplementedError
        return {"answer": plain(answer)}

    return observe


def function(
    grad: str = "",
    on_other_device: bool = False,
    by_hand: Iterable[tuple[Any, str]] = (),
) -> Observer:
    """Return the observer of a function: its result, and what it does to its inputs.

    Args:
        grad: Names of the inputs whose gradients are compared in the first cases, as in "q k".
            Later cases may round too much.
        on_other_device: Whether inputs may be on another device than new tensors are by default.
        by_hand: Functions that an answer must not call, as (torch.nn.functional, "softmax").
    """

    def observe(answer: Any, case: Case) -> Record:
        inputs = copy.deepcopy(case.inputs)
        with watched(by_hand) as used:
            record: Record = {"result": plain(answer(*inputs.values()))}
        record["used"] = sorted(used)
        record["changed"] = [name for name in inputs if not same(inputs[name], case.inputs[name])]
        if grad and not case.what:
            names = grad.split()
            lost = dict.fromkeys(map(GRADIENT.format, names))
            record |= lost if record["changed"] else gradients(answer, case, names)
        if on_other_device:
            record["elsewhere"] = runs_elsewhere(answer, case)
        return record

    return observe


def same(one: Any, other: Any) -> bool:
    """Return whether an input is as before."""
    if isinstance(one, Tensor):
        is_alike = one.shape == other.shape and one.dtype == other.dtype
        return (
            is_alike
            and one.requires_grad == other.requires_grad
            and torch.equal(one.nan_to_num(7.25), other.nan_to_num(7.25))
        )
    return repr(one) == repr(other)


def gradients(answer: Any, case: Case, names: Iterable[str]) -> Record:
    """Return the gradients of a weighted sum of the results. They are None where they are lost."""
    inputs = copy.deepcopy(case.inputs)
    leaves = {name: inputs[name].requires_grad_() for name in names}
    for name, leaf in leaves.items():
        inputs[name] = leaf.clone()  # so that a change in place is no error
    result = answer(*inputs.values())
    results = result if isinstance(result, tuple | list) else [result]
    kept = [x.flatten().float() for x in results if isinstance(x, Tensor) and x.requires_grad]
    facts = [GRADIENT.format(name) for name in leaves]
    if not kept:
        return dict.fromkeys(facts)
    every = torch.cat(kept)
    loss = every @ torch.linspace(-1, 1, len(every))
    try:
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    except RuntimeError:  # a value that the gradient needs was changed in place
        return dict.fromkeys(facts, "<an error>")
    return dict(zip(facts, map(plain, found), strict=True))


# What an answer calls


@contextmanager
def watched(by_hand: Iterable[tuple[Any, str]], without_torch: bool = False) -> Iterator[set[str]]:
    """Collect the names of functions that an answer calls although it mustn't.

    Args:
        by_hand: Modules or classes, each with the name of a function.
        without_torch: Whether that is any function of PyTorch.
    """
    used: set[str] = set()
    with ExitStack() as stack:
        names: dict[Any, str] = {}
        for module, name in by_hand:
            original = getattr(module, name)
            names[original] = f"{short_name(module)}.{name}"
            noted = noting(used, names[original], original)
            stack.enter_context(mock.patch.object(module, name, noted))
        if without_torch or names:
            stack.enter_context(TorchCalls(used, names, "torch" if without_torch else ""))
        yield used


def short_name(module: Any) -> str:
    """Return a module's or class's name as one writes it, as in "nn.functional" or "Tensor"."""
    return module.__name__.removeprefix("torch.")


def noting(used: set[str], name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that adds its name to `used` when it is called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        used.add(name)
        return original(*args, **kwargs)

    return call


class TorchCalls(TorchFunctionMode):
    """Note calls of PyTorch's functions within the block, however they were imported.

    Args:
        used: The names of what is called are added here.
        names: Names of functions to note.
        other: Name of any other function, or "" to note none.
    """

    def __init__(self, used: set[str], names: Mapping[Any, str], other: str):
        super().__init__()
        self.used, self.names, self.other = used, names, other

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a call, and make it."""
        if name := self.names.get(func, self.other):
            self.used.add(name)
        return func(*args, **(kwargs or {}))


# Inputs on another device


class ReadsValuesError(Exception):
    """Error of an answer that reads values, as a right one may. There are none on "meta"."""


class NoValues(TorchFunctionMode):
    """Tell calls that read values of a tensor on the meta device from mixed-up devices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make any other call."""
        kwargs = kwargs or {}
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        name = getattr(func, "__name__", "")
        index = args[1] if name in ("__getitem__", "__setitem__") and len(args) > 1 else ()
        parts = index if isinstance(index, tuple) else (index,)
        indices = [part for part in parts if isinstance(part, Tensor)]
        by_value = any(x.dtype == torch.bool or (x.is_meta and x.ndim == 0) for x in indices)
        if any(x.is_meta for x in tensors) and (name in READS or by_value):
            raise ReadsValuesError
        if name == "embedding" and len({x.device for x in tensors}) > 1:
            raise RuntimeError("ids and table are on different devices")  # meta alone allows it
        return func(*args, **kwargs)


def runs_elsewhere(answer: Any, case: Case) -> bool:
    """Return whether an answer also runs with inputs on another device than the CPU.

    The meta device has no values, but it refuses to mix its tensors with those of another device.
    """
    inputs = copy.deepcopy(case.inputs)
    moved = (
        x.to("meta") if isinstance(x, Tensor | torch.nn.Module) else x for x in inputs.values()
    )
    try:
        with NoValues():
            result = answer(*moved)
    except ReadsValuesError:
        return True
    except Exception:
        return False
    results = result if isinstance(result, tuple | list) else [result]
    return all(x.is_meta for x in results if isinstance(x, Tensor))
