"""What a power cut may leave of a checkpoint, seen at each call that a `save` makes."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

Files = dict[str, bytes]
CALLS = {"replace": "renamed", "rename": "renamed", "remove": "removed", "unlink": "removed"}
SYNCS = ("fsync", "fdatasync", "sync")  # Windows has only the first one


@dataclass
class State:
    """The files in the folder at one moment, and how they came about since the moment before."""

    how: str
    files: Files
    unsynced: frozenset[str]
    """Names of files whose bytes may still be in memory only."""


class Saving:
    """Observer of the files in a folder while a checkpoint is saved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.synced: dict[tuple[int, int], bytes] = {}  # by device and inode
        self.states: list[State] = []

    def look(self, how: str) -> None:
        """Record the files in the folder."""
        files = read_files(self.folder)
        unsynced = frozenset(
            name
            for name, content in files.items()
            if self.synced.get(identity(os.stat(self.folder / name))) != content
        )
        self.states.append(State(how, files, unsynced))

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

    @contextmanager
    def watching(self, names: dict[str, Any]) -> Iterator[None]:
        """Observe the files within this block.

        Args:
            names: The global names of `save`, of which some may be functions of `os`, as after
                `from os import replace`.
        """
        seen = {name: self.moving(getattr(os, name), how) for name, how in CALLS.items()}
        seen |= {n: self.syncing(getattr(os, n)) for n in SYNCS if hasattr(os, n)}
        with ExitStack() as stack:
            for name, replacement in seen.items():
                original = getattr(os, name)
                stack.enter_context(mock.patch.object(os, name, replacement))
                for mine in [key for key, value in names.items() if value is original]:
                    stack.enter_context(mock.patch.dict(names, {mine: replacement}))
            self.look("")
            yield
            self.look("written")

    def after_power_cut(self) -> Iterator[tuple[str, Files]]:
        """Yield what the folder may hold after a power cut, and what went wrong.

        A renaming and a removal happen or don't. A file that is written may be there by half, even
        after it was renamed, unless its bytes were brought to the disk by `fsync` before.
        """
        for before, now in zip(self.states, self.states[1:], strict=False):
            old = before.files
            changed = [name for name, content in now.files.items() if old.get(name) != content]
            if now.how == "written":
                for name in changed:
                    yield "torn", old | {name: half_written(old.get(name, b""), now.files[name])}
            else:
                yield "lost", now.files
            if now.how == "renamed":
                for name in set(changed) & now.unsynced:
                    yield "overtaken", now.files | {name: half_written(b"", now.files[name])}


def identity(found: os.stat_result) -> tuple[int, int]:
    """Return what a file keeps when it gets another name."""
    return found.st_dev, found.st_ino


def read_files(folder: Path) -> Files:
    """Read all files in a folder, by their relative paths."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def write_files(folder: Path, files: Files) -> None:
    """Write files into a new folder, by their relative paths."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def half_written(old: bytes, new: bytes) -> bytes:
    """Return what a power cut leaves of a file that is written, or to which more is appended."""
    kept = len(old) if old and new.startswith(old) else 0
    return new[: (kept + len(new)) // 2]
