"""Observe a training script from outside, and know what a power cut would leave of its files."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

HELD_OUT = 32  # ids from here on are held out; the ids below are for training
OPTIONS = {"weight_decay": 0.0, "eps": 1e-8}
Files = dict[str, bytes]


class PowerCutError(BaseException):
    """Simulated power cut. It isn't an `Exception`, so `except Exception` doesn't catch it."""


Look = Callable[[Any, tuple[Any, ...], dict[str, Any]], object]


def watch_forward(
    model: nn.Module, before: Look | None = None, after: Callable[..., object] | None = None
) -> Callable[[], None]:
    """Call functions at each forward pass, by `model(x)` as well as by `model.forward(x)`.

    PyTorch's own hooks don't see the second one.

    Args:
        model: The model.
        before: Called with the model, the arguments and the named arguments.
        after: Called with the same, and with the result.

    Returns:
        Function that ends it.
    """
    forward = model.forward

    def seen(*given: Any, **named: Any) -> Any:
        if before is not None:
            before(model, given, named)
        result = forward(*given, **named)
        if after is not None:
            after(model, given, named, result)
        return result

    model.forward = seen
    return lambda: model.__dict__.pop("forward", None)


@dataclass
class Forward:
    """Observations from one forward pass."""

    x: Tensor
    training: bool
    with_graph: bool
    autocast: torch.dtype | None
    logits: Tensor
    mask: Tensor | None
    """True where dropout kept a number."""
    target: Tensor | None = None
    """The tokens that the gradient of the logits points at."""
    weight: float = 0.0
    """How much each token's loss counts in the gradient."""


@dataclass
class Update:
    """Observations before one optimizer step."""

    optimizer: str
    betas: Any
    rates: list[float]
    """The learning rate of each parameter group."""
    options: list[dict[str, float]]
    """The weight decay and eps of each parameter."""
    absent: list[str]
    """Names of the parameters that the optimizer doesn't have."""
    weights: list[Tensor]
    gradients: list[Tensor]
    """What the optimizer receives."""
    backwards: list[list[Tensor]]
    """What each backward pass added, by parameter."""
    is_stale: bool
    """Whether gradients were left from before."""
    in_autocast: bool


@dataclass
class State:
    """The files in the folder at one moment, and how they came about since the moment before."""

    step: int
    how: str
    files: Files
    unsynced: frozenset[str]
    """Names of files whose bytes may still be in memory only."""


@dataclass(frozen=True)
class PowerCut:
    """What the folder holds after a power cut."""

    moment: str
    torn: str
    """Name of the file that is there by half, or ""."""
    files: Files
    is_named: bool = False
    """Whether the torn file already has its final name."""


class NotedGenerator(torch.Generator):
    """A generator that notes the seeds that it and its like are given."""

    seeds: ClassVar[set[int]] = set()

    def manual_seed(self, seed: int) -> "NotedGenerator":
        """Note the seed, and set it."""
        self.seeds.add(int(seed))
        super().manual_seed(seed)
        return self


@dataclass
class Witness:
    """Observer of a training run that can simulate a power cut at a step."""

    model: nn.Module
    folder: Path
    cut_step: int | None = None
    steps: list[list[Forward]] = field(default_factory=lambda: [[]])
    updates: list[Update] = field(default_factory=list)
    evaluations: list[tuple[int, Forward]] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    masks: list[Tensor] = field(default_factory=list)
    is_stale: bool = False
    global_seeds: set[int] = field(default_factory=set)
    """What torch.manual_seed was called with."""
    generator_seeds: set[int] = field(default_factory=set)
    """What separate generators of torch were seeded with."""

    def __post_init__(self) -> None:
        self.synced: dict[tuple[int, int], bytes] = {}  # by device and inode
        self.parameters = list(self.model.parameters())
        self.backwards: list[list[Tensor]] = [[] for _ in self.parameters]

    def dropout(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Record which numbers a dropout layer kept."""
        self.masks.append(output.detach() != 0)

    def forward(
        self, model: nn.Module, given: tuple[Any, ...], named: dict[str, Any], logits: Tensor
    ) -> None:
        """Record a forward pass, and register a hook that records the gradient of its logits."""
        x = next(iter((*given, *named.values())))
        seen = Forward(
            x=x.detach().clone(),
            training=model.training,
            with_graph=torch.is_grad_enabled(),
            autocast=torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None,
            logits=logits.detach().clone(),
            mask=self.masks[-1] if self.masks else None,
        )
        self.masks.clear()
        if (seen.x >= HELD_OUT).any():
            self.evaluations.append((len(self.updates), seen))
            return
        self.steps[-1].append(seen)
        if logits.requires_grad:
            logits.register_hook(lambda gradient: note_gradient(seen, gradient))

    def backward(self, place: int, gradient: Tensor) -> None:
        """Record what a backward pass adds to the gradient of a parameter."""
        if not any(self.backwards):
            self.is_stale = any(p.grad is not None and p.grad.any() for p in self.parameters)
        self.backwards[place].append(gradient.detach().clone())

    def before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Record an optimizer step, or simulate a power cut before it."""
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        mine = [groups.get(id(p)) for p in self.parameters]
        if not any(mine):
            return
        self.look("written")
        if len(self.updates) == self.cut_step:
            raise PowerCutError
        names = [name for name, _ in self.model.named_parameters()]
        update = Update(
            optimizer=type(optimizer).__name__,
            betas=optimizer.param_groups[0].get("betas"),
            rates=[float(group["lr"]) for group in optimizer.param_groups],
            options=[
                {name: (group or {}).get(name, default) for name, default in OPTIONS.items()}
                for group in mine
            ],
            absent=[name for name, group in zip(names, mine, strict=True) if group is None],
            weights=[p.detach().clone() for p in self.parameters],
            gradients=[
                torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.parameters
            ],
            backwards=self.backwards,
            is_stale=self.is_stale,
            in_autocast=torch.is_autocast_enabled("cpu"),
        )
        self.updates.append(update)
        self.steps.append([])
        self.backwards, self.is_stale = [[] for _ in self.parameters], False

    def look(self, how: str) -> None:
        """Record the files in the folder."""
        files = read_files(self.folder)
        unsynced = frozenset(
            name
            for name, content in files.items()
            if self.synced.get(identity(os.stat(self.folder / name))) != content
        )
        self.states.append(State(len(self.updates), how, files, unsynced))

    def moving(self, call: Callable[..., Any], how: str) -> Callable[..., Any]:
        """Return a function of `os` that also records the files before and after its call."""

        def moved(*args: Any, **kwargs: Any) -> Any:
            self.look("written")
            result = call(*args, **kwargs)
            self.look(how)
            return result

        return moved

    def syncing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of `os` that also records which bytes it brings to the disk."""

        def synced(*given: Any) -> Any:
            result = call(*given)
            only = None
            if given:
                number = given[0] if isinstance(given[0], int) else given[0].fileno()
                only = identity(os.fstat(number))
            for name, content in read_files(self.folder).items():
                found = identity(os.stat(self.folder / name))
                if only in (None, found):
                    self.synced[found] = content
            return result

        return synced

    def seeding(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `torch.manual_seed`, which also records its seeds."""

        def seeded(seed: Any) -> Any:
            self.global_seeds.add(int(seed))
            return call(seed)

        return seeded

    def replaced(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield what is replaced while a script runs: a module, a name, and the replacement."""
        for name in ("replace", "rename", "remove", "unlink"):
            how = "renamed" if name in ("replace", "rename") else "removed"
            yield os, name, self.moving(getattr(os, name), how)
        for name in ("fsync", "fdatasync", "sync"):
            if hasattr(os, name):  # Windows has only the first one
                yield os, name, self.syncing(getattr(os, name))
        yield torch, "manual_seed", self.seeding(torch.manual_seed)
        noted = {"seeds": self.generator_seeds}
        yield torch, "Generator", type("Generator", (NotedGenerator,), noted)

    @contextmanager
    def watching(self, names: dict[str, Any] | None = None) -> Iterator[None]:
        """Observe forward and backward passes, optimizer steps and files within this block.

        Args:
            names: The script's global names, of which some may be functions of `os`, as after
                `from os import replace`.
        """
        dropouts = [module for module in self.model.modules() if isinstance(module, nn.Dropout)]
        with ExitStack() as stack:
            stack.callback(watch_forward(self.model, after=self.forward))
            handles = [
                register_optimizer_step_pre_hook(self.before_update),
                *(module.register_forward_hook(self.dropout) for module in dropouts),
            ]
            for place, p in enumerate(self.parameters):
                handles.append(p.register_hook(lambda g, place=place: self.backward(place, g)))
            for handle in handles:
                stack.callback(handle.remove)
            for module, name, replacement in list(self.replaced()):
                original = getattr(module, name)
                stack.enter_context(mock.patch.object(module, name, replacement))
                for mine in [key for key, value in (names or {}).items() if value is original]:
                    names[mine] = replacement  # type: ignore[index]
                    stack.callback(names.__setitem__, mine, original)  # type: ignore[union-attr]
            yield

    def after_power_cut(self, step: int) -> Iterator[PowerCut]:
        """Yield what the folder may hold after a power cut between two optimizer steps.

        A renaming and a removal happen or don't. A file that is written may be there by half, even
        after it was renamed, unless its bytes were brought to the disk by `fsync` before.

        Args:
            step: Number of optimizer steps before the power cut.
        """
        first = next(place for place, state in enumerate(self.states) if state.step == step)
        last = max(place for place, state in enumerate(self.states) if state.step == step)
        for place in range(first, last + 1):
            old, now = self.states[place - 1].files, self.states[place]
            changed = [name for name, content in now.files.items() if old.get(name) != content]
            if now.how == "written":
                for name in changed:
                    half = half_written(old.get(name, b""), now.files[name])
                    yield PowerCut(f"while {name} was being written", name, old | {name: half})
            elif place < last and now.files not in (old, self.states[last].files):
                yield PowerCut(f"after a file was {now.how}", "", now.files)
            if now.how == "renamed":
                for name in set(changed) & now.unsynced:
                    half = half_written(b"", now.files[name])
                    moment = f"after {name} was renamed, and before its bytes were on the disk"
                    yield PowerCut(moment, name, now.files | {name: half}, is_named=True)


def identity(found: os.stat_result) -> tuple[int, int]:
    """Return what a file keeps when it gets another name."""
    return found.st_dev, found.st_ino


def read_files(folder: Path) -> Files:
    """Read all files in a folder, by their relative paths."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def write_files(folder: Path, files: Files) -> None:
    """Write files into a folder, by their relative paths."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def half_written(old: bytes, new: bytes) -> bytes:
    """Return what a power cut leaves of a file that is written, or to which more is appended."""
    kept = len(old) if old and new.startswith(old) else 0
    return new[: (kept + len(new)) // 2]


def note_gradient(seen: Forward, gradient: Tensor) -> None:
    """Infer the targets and loss weights from the gradient of the logits.

    The gradient of cross-entropy is weight * (softmax - one-hot), which is negative only at the
    target.
    """
    rows = gradient.detach().float().flatten(0, -2)
    chances = seen.logits.float().flatten(0, -2).softmax(-1)
    target = rows.argmin(-1)
    seen.target = target.reshape(seen.x.shape)
    there = rows.gather(1, target[:, None]) / (chances.gather(1, target[:, None]) - 1)
    seen.weight = there.median().item()
