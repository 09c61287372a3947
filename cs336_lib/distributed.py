"""The processes of one run: who am I, how many are we, and the sums we share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class World:
    """This process' place among the processes of a run (torchrun sets it in the environment)."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the one process that prints and writes."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """The part of `range(count)` that falls to this rank; parts differ by one at most."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def pieces(self, count: int, largest: int) -> list[tuple[int, int]]:
        """This rank's part of `range(count)` as (first, size) pieces of `largest` at most.

        Every rank gets the same number of pieces, since ranks that share weights or gradients must
        keep step; where there is too little to share out, pieces of size 0 make up the number.
        """
        number = -(-count // (self.size * largest))
        mine = self.share(count)
        cuts = [mine.start + len(mine) * piece // number for piece in range(number + 1)]
        return [(min(a, count - 1), b - a) for a, b in pairwise(cuts)]

    def sum(self, *values: float, device: torch.device) -> list[float]:
        """Add each value over all ranks, in float64 where the device has it."""
        if self.size == 1:
            return list(values)
        dtype = torch.float32 if device.type == "mps" else torch.float64
        total = torch.tensor(values, dtype=dtype, device=device)
        dist.all_reduce(total)
        return total.tolist()

    def barrier(self) -> None:
        """Wait until every rank has come this far."""
        if self.size > 1:
            dist.barrier()


def world_from_environment() -> World:
    """Read torchrun's RANK, LOCAL_RANK and WORLD_SIZE; without them this is the only process."""
    if "RANK" not in os.environ:
        return World()
    return World(
        rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        size=int(os.environ["WORLD_SIZE"]),
    )


@contextmanager
def process_group(device: torch.device) -> Iterator[World]:
    """Join the other processes (NCCL between GPUs, gloo between CPUs) and leave them at the end."""
    world = world_from_environment()
    if world.size == 1:
        yield world
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield world
    finally:
        dist.destroy_process_group()
