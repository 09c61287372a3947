"""Atomic writes, file locks, untrusted JSON, checksums and progress bars."""

import hashlib
import html
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from tqdm import tqdm

from cs336_lib.config import UserError

JSON_BYTES = 4 * 2**20  # our largest file, a tokenizer of 65,536 characters, has 0.8 MB


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Add the file name to the message of disk errors within this block.

    Errors such as "No space left on device" don't include the file name. Errors raised by
    safetensors are converted to `OSError`.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno is None:
            raise  # an inner block has named its file
        reason = getattr(error, "strerror", None) or str(error)
        reason = re.sub(r"^.*I/O error: | \(os error \d+\)$", "", reason)
        raise OSError(f"{path}: cannot be written ({reason})") from None


@contextmanager
def atomic(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """Write a file or folder so that a crash leaves either the old or the new version.

    The block writes to a temporary path in the same folder. At the end, all files are flushed to
    disk and renamed. If the block fails, the temporary path is removed. An `OSError` gets a
    one-line message with the final path and the reason.

    Args:
        path: The final path. An existing file is replaced. A folder must be empty or absent.
        folder: Whether to create a folder instead of a file.
    """
    temporary = temporary_path(path)
    with writing(path):
        try:
            if folder:
                shutil.rmtree(temporary, ignore_errors=True)  # a killed process left it
                temporary.mkdir(parents=True)
            yield temporary
            for written in (*temporary.rglob("*"), temporary):
                sync(written)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                shutil.rmtree(temporary) if folder else temporary.unlink()
            raise
        sync(path.parent)


def temporary_path(path: Path) -> Path:
    """Return the temporary path to which `atomic` writes."""
    return path.parent / f".tmp-new-{path.name}"


def write_atomic(path: Path, text: str) -> None:
    """Replace a text file so that a crash leaves either the old or the new version."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # of half pairs


def sync(path: Path) -> None:
    """Flush a file, or the directory entries of a folder, to disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return  # Windows cannot open a folder
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(file: Path, timeout: float = 5.0) -> Iterator[None]:
    """Hold an exclusive lock on `file` within this block, and remove the file at the end.

    If the process is killed, the operating system releases the lock. The lock file may remain, but
    it doesn't block other processes.

    Raises:
        UserError: If another process still holds the lock after `timeout` seconds.
        OSError: If the file can't be created.
    """
    lock = FileLock(file, timeout=timeout, poll_interval=0.1)
    try:
        with writing(file):
            file.touch()  # FileLock would wait for a file that can't be created
            lock.acquire()
    except Timeout:
        raise UserError(
            f"{file}: another process holds this lock; wait, or choose another folder"
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes it on release
            file.unlink()
        lock.release()


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, and show a progress bar after two seconds."""
    digest = hashlib.sha256()
    size, name = path.stat().st_size, f"checksum of {path.name}"
    bar = Bar(total=size, desc=name, unit="B", unit_scale=True, delay=2)
    with open(path, "rb") as file, bar:
        while piece := file.read(2**22):
            digest.update(piece)
            bar.update(len(piece))
    return digest.hexdigest()


def digest(value: Any) -> str:
    """Return the SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file in an untrusted folder. The file doesn't have to exist.

    Raises `UserError` if a link in the path leads out of the folder or in a circle, if the name
    can't be one, or if the path isn't a file.
    """
    path, home = folder / name, folder.resolve()
    if home.parent.name == "snapshots":  # the hub's client links to ../../blobs
        home = home.parents[1]
    try:
        target = path.resolve()
    except (ValueError, RuntimeError):  # a NUL or half a surrogate pair; a circle until Python 3.12
        raise UserError(f"{path}: not a file that can be opened") from None
    if not target.is_relative_to(home):
        raise UserError(f"{path}: leads out of {folder}; expected a file in that folder")
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a regular file")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in an untrusted file.

    Raises:
        FileNotFoundError: If the file doesn't exist.
        UserError: If the file is larger than `JSON_BYTES`, or isn't a JSON object.
    """
    with open(path, "rb") as file:
        content = file.read(JSON_BYTES + 1)
    if len(content) > JSON_BYTES:
        raise UserError(f"{path}: larger than {JSON_BYTES:,} bytes, the limit for JSON files")
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object, not a {type(value).__name__}")
    return value


def printable(text: str) -> str:
    """Return a text in one line, with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Log:
    """Proxy for sys.stderr that ignores write errors.

    A full disk or a closed terminal therefore doesn't stop a run. A notebook shows stderr on red
    ground, so the text is displayed there instead.
    """

    def write(self, text: str) -> None:
        """Write text to stderr, and ignore errors."""
        if in_notebook(sys.stderr):
            CellLine().write(text)
            return
        with suppress(OSError, ValueError, AttributeError):  # failed, closed, None
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush stderr, and ignore errors."""
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


class LinesLog(Log):
    """Log that writes each state of a progress bar on a new line.

    By default, tqdm overwrites a single line with a carriage return.
    """

    def write(self, text: str) -> None:
        """Write text as one line. Text that contains only whitespace is ignored."""
        if line := text.strip():
            super().write(f"{line}\n")


class CellLine(Log):
    """Line of text below a notebook's cell. Each text replaces the one before.

    It is HTML only, so stored outputs needn't have it (see tools/notebooks.py and tools/nbval.py).
    """

    handle: Any = None  # of the display, once there is one

    def write(self, text: str) -> None:
        """Display a text. Spaces after a carriage return, which blank a line, hide the last one."""
        if text.strip():
            self.show(f"<pre {TEMPORARY}>{html.escape(text.strip())}</pre>")
        elif self.handle and "\r" in text:
            self.show(f"<pre {TEMPORARY} hidden></pre>")

    def show(self, element: str) -> None:
        """Display an HTML element in place of the one before."""
        from IPython.display import display  # there, because a kernel runs us

        content = {"text/html": element}
        if self.handle:
            self.handle.update(content, raw=True)
        else:
            self.handle = display(content, raw=True, display_id=True)


TEMPORARY = 'class="cs336-progress"'  # marks what a notebook needn't store
LOG_SECONDS = 30.0  # between two lines in a log


class Bar(tqdm):
    """Progress bar that ignores write errors and also works in log files.

    Terminals and notebooks show a bar after one second. Log files get one line every 30 seconds.
    The bar disappears at the end unless `leave` is true.
    """

    def __init__(self, *arguments: Any, **settings: Any):
        settings = {"leave": False, "delay": 1} | settings
        in_place = draws_in_place(sys.stderr)
        if not in_place:  # without columns, tqdm leaves out the bar itself
            settings |= {"ncols": 0, "mininterval": LOG_SECONDS, "miniters": 1}
        # tqdm finds the terminal's width by itself only if it writes to sys.stderr directly.
        file = CellLine() if in_notebook(sys.stderr) else Log() if in_place else LinesLog()
        super().__init__(*arguments, file=file, dynamic_ncols=in_place, **settings)


def draws_in_place(stream: Any) -> bool:
    """Return whether `stream` is a terminal or notebook, which can overwrite a line."""
    with suppress(OSError, ValueError, AttributeError):  # failed, closed, None
        return stream.isatty() or in_notebook(stream)
    return False


def in_notebook(stream: Any) -> bool:
    """Return whether `stream` belongs to the kernel of a notebook."""
    return type(stream).__module__.startswith("ipykernel.")
