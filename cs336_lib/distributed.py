"""The processes of one run: who am I, how many are we, and the sums we share."""

import math
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

import torch
import torch.distributed as dist

# How long a process may keep the others waiting. Long enough for rank 0 to write a checkpoint; who
# pays for idle GPUs may want less, and who writes to a slow disk more.
TIMEOUT, TIMEOUT_VARIABLE = 600.0, "CS336_TIMEOUT"
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")  # in World's order
# How gloo, NCCL and torchrun's store say it.
HUNG = re.compile("timed out (waiting|after)|wait timeout|operation timeout", re.IGNORECASE)
DEAD = re.compile("(reset|closed) by peer|broken pipe|connection was closed", re.IGNORECASE)


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
    """Read torchrun's RANK, LOCAL_RANK and WORLD_SIZE; without them this is the only process.

    Raises:
        ValueError: some of them are set and others are not, or one is no such number.
    """
    found = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if not found:
        return World()
    first, instead = next(iter(found)), "start with torchrun, or unset " + " and ".join(found)
    for name in VARIABLES:
        if name not in found:
            raise ValueError(f"{first} is set but {name} is not; {instead}")
        if not re.fullmatch("[0-9]{1,9}", found[name]):
            raise ValueError(f"{name} is {found[name]!r}; a number expected; {instead}")
    rank, local_rank, size = (int(found[name]) for name in VARIABLES)
    if rank >= size:
        raise ValueError(f"RANK is {rank}, WORLD_SIZE {size}; a smaller rank expected; {instead}")
    return World(rank, local_rank, size)


def timeout_seconds() -> float:
    """Seconds that a process may keep the others waiting: CS336_TIMEOUT's, or ten minutes.

    Raises:
        ValueError: the variable is set to something else.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, str(TIMEOUT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds <= 1e6:
        raise ValueError(f"{TIMEOUT_VARIABLE} is {text!r}; seconds, 1 to 1000000, expected")
    return seconds


def fresh_store(world: World, seconds: float) -> dist.Store:
    """Where the processes leave their addresses for each other, without those of earlier ones.

    torchrun keeps one store for all its restarts, so a process could find the address of one that
    has died (https://github.com/pytorch/pytorch/issues/135712), and TORCHELASTIC_RESTART_COUNT is
    not the same on all machines. So rank 0 draws a name for this start and gives it to each rank
    in answer to a question with a name of its own, which nobody can have answered before.
    """
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world.size,
        is_master=world.is_main and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        timeout=timedelta(seconds=seconds),
        multi_tenant=True,
        wait_for_workers=False,
        use_libuv=os.name != "nt",  # PyTorch's wheels for Windows are built without it
    )
    name = uuid.uuid4().hex
    if not world.is_main:
        store.set(f"cs336/question/{world.rank}", name)
        name = store.get(f"cs336/answer/{name}").decode()  # waits for it
        store.set(f"cs336/heard/{name}/{world.rank}", "")
        return dist.PrefixStore(name, store)
    missing = set(range(1, world.size))
    deadline = time.monotonic() + seconds
    while missing:
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out waiting for ranks {sorted(missing)}")
        for rank in sorted(missing):
            if store.check([f"cs336/heard/{name}/{rank}"]):
                missing.remove(rank)
            elif store.check([f"cs336/question/{rank}"]):
                question = store.get(f"cs336/question/{rank}").decode()
                store.set(f"cs336/answer/{question}", name)
        time.sleep(0.01)
    return dist.PrefixStore(name, store)


@contextmanager
def process_group(device: torch.device) -> Iterator[World]:
    """Join the other processes (NCCL between GPUs, gloo between CPUs) and leave them at the end.

    Raises:
        ValueError: nobody says where the others are.
        TimeoutError, ConnectionError: another process hung or died. (NCCL may end this one itself.)
    """
    world = world_from_environment()
    if world.size == 1:
        yield world
        return
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise ValueError(
                f"WORLD_SIZE is {world.size} but {name} is not set; start with torchrun, or unset "
                f"{' and '.join(VARIABLES)}"
            )
    backend = "nccl" if device.type == "cuda" else "gloo"
    seconds = timeout_seconds()
    try:
        dist.init_process_group(
            backend,
            store=fresh_store(world, seconds),
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(seconds=seconds),
        )
        yield world
    except RuntimeError as error:
        if HUNG.search(str(error)):
            raise TimeoutError(
                f"another of the {world.size} processes did not answer for {seconds:g} seconds "
                f"({TIMEOUT_VARIABLE} sets how long to wait)"
            ) from error
        if DEAD.search(str(error)):
            raise ConnectionError(f"another of the {world.size} processes died") from error
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
