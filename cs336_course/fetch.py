"""Stand-in until `cs336 fetch` is here: find a published model in a folder."""

import os
from pathlib import Path


def find(name: str) -> Path | None:
    """Return the folder of a published model, or `None`."""
    folder = os.environ.get(f"CS336_{name.upper()}")
    return Path(folder) if folder else None
