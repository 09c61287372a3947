"""Find and copy what a class has handed in, which nobody has checked before."""

import os
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile

from cs336_course.learner import study
from cs336_course.one_file.cell_slice import is_copy
from cs336_lib.config import UserError

FOLDER_BYTES = 200 * 10**6  # of a learner


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
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.suffix.lower() != ".ipynb":
            continue
        if path.is_file() and not path.is_symlink() and all(is_visible(Path(p)) for p in parts):
            yield path


def unknown(folder: Path) -> list[str]:
    """Return the names of a learner's notebooks that are no copies of the course's."""
    course = study.originals(study.SHIPPED)
    found = (path for path in notebooks(folder) if not any(is_copy(path, one) for one in course))
    return [str(path.relative_to(folder)) for path in found]


def copy_files(folder: Path, to: Path) -> list[str]:
    """Copy a learner's files, and return the names of those left out.

    What isn't a plain file is left out, and so is a file if more than `FOLDER_BYTES` would be
    copied. The holes of sparse files count.
    """
    left, left_out = FOLDER_BYTES, []
    to.mkdir(mode=0o755)  # another account reads it in a container
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts):
            continue
        try:
            if path.is_dir() and not path.is_symlink():
                (to / name).mkdir()
                continue
            facts = path.stat()
            if path.is_symlink() or not path.is_file() or facts.st_size > left:
                raise UserError("not a plain file, or too large")
            copyfile(path, to / name)
            os.utime(to / name, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # the newest is graded
            left -= facts.st_size
        except (OSError, UserError):
            left_out.append(str(name))
    return left_out
