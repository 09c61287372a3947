"""A dataset that worker processes can read: importable, cheap to send, opened where it is used.

A worker that is started afresh (`spawn`: macOS, Windows) imports the dataset's class by its name,
so the class must live in a module; one written in a notebook cell cannot be found.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from cs336_lib.config import require


class TokenWindows(Dataset):
    """Every full window of a raw uint16 token file, in order; each tells which process read it.

    Only the path travels to a worker. A memmap among the attributes would be pickled as a copy of
    the whole file.
    """

    def __init__(self, path: Path, block_size: int):
        tokens = path.stat().st_size // 2
        require(tokens > block_size, f"{path}: {tokens} tokens, one window takes {block_size + 1}")
        self.path, self.block_size = path, block_size
        self.windows = (tokens - 1) // block_size
        self.reads = 0  # by this process' copy of the dataset

    def __len__(self) -> int:
        return self.windows

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Inputs `x`, targets `y` (int64, block_size each), and the reader's `pid` and `seed`.

        Raises:
            IndexError: there is no such window.
        """
        if not 0 <= index < self.windows:
            raise IndexError(f"window {index}, but there are {self.windows}")
        self.reads += 1
        tokens = np.memmap(self.path, dtype=np.uint16, mode="r")
        start = index * self.block_size
        row = torch.from_numpy(tokens[start : start + self.block_size + 1].astype(np.int64))
        return {"x": row[:-1], "y": row[1:], "pid": os.getpid(), "seed": torch.initial_seed()}
