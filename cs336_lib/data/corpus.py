"""Locate the data that ships with the package, such as Shakespeare's plays."""

from pathlib import Path

# A wheel has the data inside the package, the repository beside it.
PACKAGE = Path(__file__).parents[1]
DATA = next(folder for folder in (PACKAGE / "shipped", PACKAGE.parent / "data") if folder.is_dir())


def shakespeare() -> str:
    """Return the text of all Shakespeare plays in data/ (see data/README.md)."""
    return (DATA / "shakespeare.txt").read_text(encoding="utf-8")
