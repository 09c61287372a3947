"""Dataset for worker processes, and a simulation of slow batch loading.

A worker process that was started with `spawn` (macOS, Windows) imports the class of the dataset by
name. The class must therefore be in a module and not in a notebook cell.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from cs336_lib.config import UserError

Batch = tuple[torch.Tensor, torch.Tensor]


class TokenWindows(Dataset):
    """Dataset of all full windows of a raw uint16 token file, in order.

    Each item also contains the ID of the process that read it. Only the path is sent to workers,
    because pickling a memmap would copy the entire file.
    """

    def __init__(self, path: Path, block_size: int):
        tokens = path.stat().st_size // 2
        if tokens <= block_size:
            raise UserError(
                f"{path} has {tokens} tokens, but a window needs {block_size + 1}; "
                "use a longer file or a smaller block_size"
            )
        self.path, self.block_size = path, block_size
        self.windows = (tokens - 1) // block_size
        self.reads = 0  # counted in this process's copy of the dataset

    def __len__(self) -> int:
        return self.windows

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the inputs `x`, the targets `y`, and the process ID and seed of the reader.

        Both tensors are int64 with block_size elements.

        Raises:
            IndexError: If the window doesn't exist.
        """
        if not 0 <= index < self.windows:
            raise IndexError(f"window {index} does not exist; there are {self.windows} windows")
        self.reads += 1
        tokens = np.memmap(self.path, dtype=np.uint16, mode="r")
        start = index * self.block_size
        row = torch.from_numpy(tokens[start : start + self.block_size + 1].astype(np.int64))
        return {"x": row[:-1], "y": row[1:], "pid": os.getpid(), "seed": torch.initial_seed()}


def read_and_compute(
    way: Callable[[Iterable[Batch]], Iterable[Batch]], batches: int = 6, seconds: float = 0.02
) -> dict[str, list[tuple[float, float]]]:
    """Simulate reading and processing batches, and return the busy intervals of both, in ms.

    Args:
        way: Function that wraps the reader, such as `iter` or a function that prefetches.
        batches: Number of batches.
        seconds: Time to read one batch, and also the time to process it.
    """
    begin = time.perf_counter()
    spans: dict[str, list[tuple[float, float]]] = {"read": [], "compute": []}

    def work(who: str) -> None:
        start = time.perf_counter()
        time.sleep(seconds)
        spans[who].append((1e3 * (start - begin), 1e3 * (time.perf_counter() - begin)))

    def reader() -> Iterator[Batch]:
        for number in range(batches):
            work("read")
            yield torch.tensor([number]), torch.tensor([number])

    for _ in way(reader()):
        work("compute")
    return spans
