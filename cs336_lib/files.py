"""Files that are whole or absent, whatever is killed when."""

import hashlib
import os
from pathlib import Path


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


def write_whole(path: Path, text: str) -> None:
    """Replace a text file so that at every moment either the old or the new one is there."""
    temporary = path.with_name(f".tmp-{path.name}")
    temporary.write_text(text, encoding="utf-8")
    sync(temporary)
    os.replace(temporary, path)


def sha256(path: Path) -> str:
    """Checksum of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
