"""What ships with the package: Shakespeare's plays and GPT-2's vocabulary."""

from pathlib import Path

# A wheel carries the data inside the package; in the repository it lies beside the package.
PACKAGE = Path(__file__).parents[1]
DATA = next(folder for folder in (PACKAGE / "shipped", PACKAGE.parent / "data") if folder.is_dir())


def shakespeare() -> str:
    """The corpus that ships: all of Shakespeare's plays (see data/README.md)."""
    return (DATA / "shakespeare.txt").read_text(encoding="utf-8")
