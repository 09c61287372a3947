"""Files that are whole or absent, JSON, checksums and progress bars."""

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

from safetensors import SafetensorError
from tqdm import tqdm

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

JSON_BYTES = 4 * 2**20  # our largest, a tokenizer of 65,536 characters, has 0.8 MB


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Have an error of the disk name the file, which "No space left on device" alone does not.

    Raises:
        OSError: one line, the path and the reason; safetensors' errors become that too.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        reason = re.sub(r"^.*I/O error: | \(os error \d+\)$", "", reason)
        raise OSError(f"{path}: cannot be written ({reason})") from None


@contextmanager
def locked(folder: Path, patience: float = 5.0) -> Iterator[None]:
    """In here no other process that asks likewise writes to `folder`, which must exist.

    The system lets go of the lock however this process ends. One that is just ending is waited for,
    `patience` seconds. On Windows, and on file systems without locks, nobody is kept out.

    Raises:
        ValueError: another process holds the folder, or has moved or removed it meanwhile.
    """
    if fcntl is None:
        yield
        return
    descriptor, until = os.open(folder, os.O_RDONLY), time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not leads_to(folder, descriptor):  # what we hold is not what we would write to
                    raise ValueError(
                        f"{folder}: another process has just moved or removed it; run the same "
                        "command again"
                    )
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise ValueError(
                        f"{folder}: another process is writing to it; wait until it has ended, or "
                        "choose another folder"
                    ) from None
                time.sleep(0.1)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)


def leads_to(path: Path, descriptor: int) -> bool:
    """Whether a path is that of an open file or folder."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def sync(path: Path) -> None:
    """Have the operating system put a file, or a folder's entries, on the disk now."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return  # Windows has no such thing for folders
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, text: str) -> None:
    """Replace a text file so that at every moment either the old or the new one is there.

    Raises:
        OSError: one line with the path and the reason.
    """
    temporary = path.with_name(f".tmp-{path.name}")
    with writing(path):
        temporary.write_text(text, encoding="utf-8")
        sync(temporary)
        os.replace(temporary, path)


def sha256(path: Path) -> str:
    """Checksum of a file; of gigabytes it takes a while, so a bar shows how far it is."""
    digest = hashlib.sha256()
    size, name = path.stat().st_size, f"checksum of {path.name}"
    with (
        open(path, "rb") as file,
        Bar(total=size, desc=name, unit="B", unit_scale=True, leave=False, delay=2) as bar,
    ):
        while piece := file.read(2**22):
            digest.update(piece)
            bar.update(len(piece))
    return digest.hexdigest()


def inside(folder: Path, name: str) -> Path:
    """The path of a file in a folder that may come from anywhere; it may not exist.

    Raises:
        ValueError: it is a link that leads out of the folder, or no regular file.
    """
    path, home = folder / name, folder.resolve()
    if home.parent.name == "snapshots":  # where the hub's client puts links to ../../blobs
        home = home.parents[1]
    if not path.resolve().is_relative_to(home):
        raise ValueError(f"{path}: leads out of {folder}; a file in that folder expected")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: not a regular file")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file that may come from anywhere.

    Raises:
        ValueError: there is no such file, or it is too large, not JSON, or no object.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    with open(path, "rb") as file:
        content = file.read(JSON_BYTES + 1)
    if len(content) > JSON_BYTES:
        raise ValueError(f"{path}: larger than {JSON_BYTES:,} bytes, which no such file of ours is")
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: a JSON object expected, it holds a {type(found).__name__}")
    return found


class Log:
    """stderr as it is when somebody writes; that it cannot be written stops nobody's work.

    The disk that a log is on can be full, its reader gone or its file closed, and the run's own
    files be as safe as ever. What is lost is a line of progress.
    """

    def write(self, text: str) -> int:
        """Write, or else forget it."""
        with suppress(OSError, ValueError, AttributeError):  # failed, closed, None
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Have it written now, if it can be."""
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        """Its encoding, its terminal and so on."""
        return getattr(sys.stderr, name)


LOG_SECONDS = 30.0  # from one line in a log to the next

LOG_LINE = (
    "{desc}{percentage:.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
)


class Bar(tqdm):
    """A progress bar that cannot end what it shows the progress of.

    A terminal and a notebook show a bar. A log, which keeps every character, gets a line every half
    minute, and a last one unless `leave` is off.
    """

    def __init__(self, *arguments: Any, **settings: Any):
        self.in_place = draws_over_lines(sys.stderr)
        self.written = self.begun = monotonic()
        # tqdm asks for the terminal's width by itself only where it writes to sys.stderr directly.
        super().__init__(*arguments, file=Log(), dynamic_ncols=True, **settings)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Draw the bar, or write a line if the last one is old enough."""
        if self.in_place:
            return super().display(msg, pos)
        if msg is None and monotonic() - self.written >= LOG_SECONDS:
            self.write_line()
        return False  # nothing is left that would have to be wiped out

    def write_line(self) -> None:
        """Write the bar's numbers as a line of a log."""
        self.written = monotonic()
        shown = self.format_dict
        if self.total:
            shown |= {"bar_format": LOG_LINE, "prefix": self.desc and f"{self.desc}: "}
        self.fp.write(self.format_meter(**shown) + "\n")
        self.fp.flush()

    def close(self) -> None:
        """Leave the bar, or a last line, and end."""
        if not getattr(self, "disable", True) and not self.in_place:
            if self.leave and self.n > self.initial and monotonic() - self.begun >= self.delay:
                self.write_line()
            self.leave = False  # else tqdm would add an empty line
        super().close()


def draws_over_lines(stream: Any) -> bool:
    """Return whether a carriage return begins the line again: in a terminal or a notebook."""
    with suppress(OSError, ValueError, AttributeError):  # failed, closed, None
        return stream.isatty() or type(stream).__module__.startswith("ipykernel.")
    return False
