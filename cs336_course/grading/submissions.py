"""Find and read what a class has handed in, which nobody has checked before."""

from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile

from cs336_course.one_file import cell_slice
from cs336_lib.config import UserError

NOTEBOOK_BYTES = 100 * 2**20
FOLDER_BYTES = 200 * 10**6  # of a learner, without notebooks


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

    What isn't a plain file is left out, and so is a file if more than `FOLDER_BYTES` would be
    copied. The holes of sparse files count.
    """
    left, left_out = FOLDER_BYTES, []
    to.mkdir(mode=0o755)  # another account reads it in a container
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.suffix == ".ipynb" or any(part.startswith(".") for part in name.parts):
            continue
        try:
            if path.is_dir() and not path.is_symlink():
                (to / name).mkdir()
                continue
            if path.is_symlink() or not path.is_file() or path.stat().st_size > left:
                raise UserError("not a plain file, or too large")
            copyfile(path, to / name)
            left -= path.stat().st_size
        except (OSError, UserError):
            left_out.append(str(name))
    return left_out
