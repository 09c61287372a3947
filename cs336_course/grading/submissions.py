"""Find and read what a class has handed in, which nobody has checked before."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile

from cs336_course.one_file import cell_slice
from cs336_lib.config import UserError

NOTEBOOK_BYTES = 100 * 2**20

FOLDER_BYTES, FILES = 200 * 10**6, 10_000  # of a learner, without notebooks


def learners(folder: Path) -> list[Path]:
    """Return the learners' folders in order of their names.

    Raises:
        UserError: If there is no such folder, or no learner in it.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    found = sorted(path for path in folder.iterdir() if path.is_dir() and is_visible(path))
    example = "a folder with a folder for each learner expected, as in FOLDER/ada/03_einops.ipynb"
    if not found:
        raise UserError(f"{folder}: {example}")
    if not any(has_one(path) for path in found):
        raise UserError(f"{folder}: no notebooks; {example}")
    return found


def has_one(folder: Path) -> bool:
    """Return whether a learner's folder has a notebook, or can't be read."""
    try:
        return next(notebooks(folder), None) is not None
    except (OSError, RecursionError):
        return True


def is_visible(path: Path) -> bool:
    """Return whether a path isn't one of the folders that systems add, such as .git."""
    return not path.name.startswith((".", "__MACOSX"))


def notebooks(folder: Path) -> Iterator[Path]:
    """Yield the notebooks in a learner's folder and its subfolders."""
    for path in sorted(folder.rglob("*.ipynb")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not path.is_symlink() and all(is_visible(Path(p)) for p in parts):
            yield path


def find(folder: Path, course: Path) -> Path | None:
    """Return a learner's copy of the course's notebook, whose name begins like its, or None.

    Among several copies, such as "03_einops (1).ipynb", the one that was changed last is used.
    A copy without edits is used only if there is no other, because pulling makes newer ones.
    """
    stem = course.stem
    after = len(stem)
    names = [p for p in notebooks(folder) if p.stem.startswith(stem)]
    found = [path for path in names if not path.stem[after : after + 1].isalpha()]

    def rank(path: Path) -> tuple[bool, float, bool]:
        return may_be_edited(path, course), path.stat().st_mtime, path.stem == stem

    return max(found, key=rank, default=None)


def may_be_edited(path: Path, course: Path) -> bool:
    """Return whether a copy is edited or can't be read, so that it is graded and named."""
    try:
        return read(path) != cell_slice.read_code(course)
    except (OSError, UserError):
        return True


def read(path: Path) -> list[tuple[str, str]]:
    """Return the code cells of an untrusted notebook, as `cell_slice.read_code` does.

    Raises:
        UserError: If the file isn't a notebook, or is too large.
    """
    if path.stat().st_size > NOTEBOOK_BYTES:
        raise UserError(f"{path}: larger than {NOTEBOOK_BYTES:,} bytes")
    return cell_slice.read_code(path)


def copy_files(folder: Path, to: Path) -> list[str]:
    """Copy a learner's files other than notebooks, and return the names of those left out.

    A file is left out if it can't be read, or if more than `FOLDER_BYTES` or `FILES` would be
    copied. The holes of sparse files count.
    """
    left, files, left_out = FOLDER_BYTES, FILES, []
    to.mkdir()
    to.chmod(0o755)  # another account reads it in a container
    for root, folders, names in os.walk(folder):
        here = to / Path(root).relative_to(folder)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links = [name for name in folders if Path(root, name).is_symlink()]
        for name in sorted({*folders, *names}):
            path = Path(root, name)
            if name.startswith(".") or path.suffix == ".ipynb":
                continue
            try:
                status = path.lstat()
                size = status.st_size if stat.S_ISREG(status.st_mode) else 0
                if size > left or files == 0:
                    raise UserError("too large")
                copy_one(path, here / name, status.st_mode)
                left, files = left - size, files - 1
            except (OSError, UserError):
                left_out.append(str(path.relative_to(folder)))
        folders[:] = [name for name in folders if name not in links and (here / name).is_dir()]
    return left_out


def copy_one(path: Path, to: Path, mode: int) -> None:
    """Copy a file or link, or make a folder.

    Raises:
        UserError: If it is something else.
        OSError: If it can't be read or written.
    """
    if stat.S_ISLNK(mode):
        to.symlink_to(path.readlink())
        return
    if stat.S_ISDIR(mode):
        to.mkdir()
    elif stat.S_ISREG(mode):
        copyfile(path, to, follow_symlinks=False)
    else:
        raise UserError("not a file")
    to.chmod(0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o644)
