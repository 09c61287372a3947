"""Connect the processes of a distributed run."""

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
import torch.distributed.nn  # before a process group exists, which it would keep alive
from torch import Tensor

from cs336_lib.config import UserError

# Seconds that a process may keep the others waiting. This is enough for rank 0 to write a
# checkpoint, but a slow disk needs more.
TIMEOUT, TIMEOUT_VARIABLE = 600, "CS336_TIMEOUT"
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")  # in World's order

# What gloo, NCCL and torchrun's store write when another process hangs or dies.
HUNG = re.compile("timed out (waiting|after)|wait timeout|operation timeout", re.IGNORECASE)
DEAD = re.compile("(reset|closed) by peer|broken pipe|connection was closed", re.IGNORECASE)


@dataclass(frozen=True)
class World:
    """Rank of this process, its rank on this machine, and the number of processes."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the process that prints and writes files."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """Return the part of `range(count)` for this rank. Part sizes differ by at most one."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def pieces(self, count: int, largest: int) -> list[tuple[int, int]]:
        """Split the part of `range(count)` for this rank into (first, size) pieces.

        The size of a piece is at most `largest`, and can be 0. All ranks get the same number of
        pieces, because DDP and FSDP require equally many forward and backward passes on each rank.
        """
        number = -(-count // (self.size * largest))
        mine = self.share(count)
        cuts = [mine.start + len(mine) * piece // number for piece in range(number + 1)]
        return [(min(a, count - 1), b - a) for a, b in pairwise(cuts)]

    def sum(self, *values: float, device: torch.device) -> list[float]:
        """Sum each value over all ranks, in float64."""
        if self.size == 1:
            return list(values)
        return self.all_reduce(torch.tensor(values, dtype=torch.float64, device=device)).tolist()

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks in place, without waiting for the device."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        if self.size > 1:
            dist.barrier()


@dataclass(frozen=True)
class Place:
    """Where a model runs.

    Attributes:
        device: Device of this process.
        dtype: Data type of the matmuls under autocast, or `None` for fp32.
        world: The processes that share the work, by default this one.
    """

    device: torch.device
    dtype: torch.dtype | None = None
    world: World = World()

    @property
    def autocast(self) -> torch.autocast:
        """Context that sets the precision of a forward pass."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype is not None)


def world_from_environment() -> World:
    """Read torchrun's RANK, LOCAL_RANK and WORLD_SIZE from the environment.

    If all three variables are missing, this returns a world of one process. Raises `ValueError` if
    only some variables are set, or if a value isn't a valid number.
    """
    values = [os.environ.get(name, "") for name in VARIABLES]
    if not any(values):
        return World()
    rank, _, size = values
    shown = ", ".join(f"{name}={value!r}" for name, value in zip(VARIABLES, values, strict=True))
    wanted = "numbers expected, with RANK below WORLD_SIZE; start with torchrun, or unset all three"
    if not all(value.isdecimal() for value in values) or int(rank) >= int(size):
        raise UserError(f"{shown}: {wanted}")
    return World(*map(int, values))


def timeout_seconds() -> int:
    """Return the timeout for communication between processes, in seconds.

    The environment variable CS336_TIMEOUT overrides the default of 600. Raises `ValueError` if its
    value isn't a whole number from 1 to 1000000.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, str(TIMEOUT))
    if not (text.isdecimal() and 1 <= int(text) <= 1_000_000):
        wanted = "whole seconds from 1 to 1000000 expected"
        raise UserError(f"{TIMEOUT_VARIABLE} is {text!r}; {wanted}")
    return int(text)


def fresh_store(world: World, timeout: timedelta) -> dist.Store:
    """Open the store through which the processes exchange addresses.

    torchrun reuses one store across restarts, so a process could read the address of a dead process
    (https://github.com/pytorch/pytorch/issues/135712). TORCHELASTIC_RESTART_COUNT doesn't identify
    a restart, because it differs between machines. Therefore, rank 0 draws a random prefix for the
    keys of each start. The other ranks request this prefix under a random key, so they can't read
    an answer from an earlier start.
    """
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world.size,
        is_master=world.is_main and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        timeout=timeout,
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
    deadline = time.monotonic() + timeout.total_seconds()
    for rank in range(1, world.size):
        while not store.check([f"cs336/heard/{name}/{rank}"]):
            question = store.get(f"cs336/question/{rank}").decode()  # the dead process's at first
            store.set(f"cs336/answer/{question}", name)
            if time.monotonic() > deadline:
                raise dist.DistStoreError(f"timed out waiting for rank {rank}")
            time.sleep(0.01)
    return dist.PrefixStore(name, store)


def rank_failure(error: RuntimeError, size: int, seconds: int) -> OSError | None:
    """Return what an error says about the other ranks, or `None` if it is another kind of error.

    NCCL and the store raise `DistError`. gloo raises a plain `RuntimeError`, known by its text.

    Args:
        error: The error, raised while the processes were connected.
        size: Number of processes.
        seconds: The timeout.
    """
    text = str(error)
    hung, dead = HUNG.search(text), DEAD.search(text)
    if not (isinstance(error, dist.DistError) or hung or dead):
        return None
    if hung:
        message = f"another of the {size} processes did not answer for {seconds} seconds"
        return TimeoutError(f"{message} ({TIMEOUT_VARIABLE} sets how long to wait)")
    if dead:
        return ConnectionError(f"another of the {size} processes died")
    reason = " ".join(text.split())
    return ConnectionError(f"the {size} processes could not communicate ({reason:.200})")


@contextmanager
def process_group(device: torch.device) -> Iterator[World]:
    """Initialize torch.distributed within this block, and destroy the process group at the end.

    The backend is NCCL for GPUs and gloo for CPUs. If a process hangs or dies, NCCL may terminate
    the other processes instead of raising an error. When the model is gone too, so are gloo's
    threads, which can abort a process that exits (https://github.com/pytorch/pytorch/pull/179291).

    Raises:
        ValueError: If MASTER_ADDR or MASTER_PORT isn't set.
        TimeoutError: If a process didn't respond before the timeout.
        ConnectionError: If a process died, or communication failed in another way.
    """
    world = world_from_environment()
    if world.size == 1:
        yield world
        return
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        advice = f"start with torchrun, or unset {' and '.join(VARIABLES)}"
        raise UserError(f"WORLD_SIZE is {world.size} but {' and '.join(missing)} not set; {advice}")
    on_gpu = device.type == "cuda"
    seconds = timeout_seconds()
    timeout = timedelta(seconds=seconds)
    try:
        store = fresh_store(world, timeout)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=store,
            rank=world.rank,
            world_size=world.size,
            timeout=timeout,
            device_id=device if on_gpu else None,  # only NCCL uses it
        )
        yield world
    except RuntimeError as error:
        failure = rank_failure(error, world.size, seconds)
        if failure is None:
            raise
        raise failure from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
