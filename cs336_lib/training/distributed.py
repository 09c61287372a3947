"""Connect the processes of a distributed run, and wrap models with DDP or FSDP2."""

import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before a process group exists, which it would keep alive
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cs336_lib import accounting
from cs336_lib.config import GPTConfig, TrainConfig, require
from cs336_lib.model import GPT
from cs336_lib.system import hardware

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
    are_numbers = all(value.isdecimal() for value in values)
    require(are_numbers and int(rank) < int(size), f"{shown}: {wanted}")
    return World(*map(int, values))


def timeout_seconds() -> int:
    """Return the timeout for communication between processes, in seconds.

    The environment variable CS336_TIMEOUT overrides the default of 600. Raises `ValueError` if its
    value isn't a whole number from 1 to 1000000.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, str(TIMEOUT))
    message = f"{TIMEOUT_VARIABLE} is {text!r}; whole seconds from 1 to 1000000 expected"
    require(text.isdecimal() and 1 <= int(text) <= 1_000_000, message)
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
                raise RuntimeError(f"timed out waiting for rank {rank}")
            time.sleep(0.01)
    return dist.PrefixStore(name, store)


@contextmanager
def process_group(device: torch.device) -> Iterator[World]:
    """Initialize torch.distributed within this block, and destroy the process group at the end.

    The backend is NCCL for GPUs and gloo for CPUs. If a process hangs or dies, NCCL may terminate
    the other processes instead of raising an error. When the model is gone too, so are gloo's
    threads, which can abort a process that exits (https://github.com/pytorch/pytorch/pull/179291).

    Raises:
        ValueError: If MASTER_ADDR or MASTER_PORT isn't set.
        TimeoutError: If a process didn't respond before the timeout.
        ConnectionError: If a process died.
    """
    world = world_from_environment()
    if world.size == 1:
        yield world
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    message = f"WORLD_SIZE is {world.size} but {' and '.join(missing)} not set; start with torchrun"
    require(not missing, f"{message}, or unset {' and '.join(VARIABLES)}")
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
        if HUNG.search(str(error)):
            message = f"another of the {world.size} processes did not answer for {seconds} seconds"
            raise TimeoutError(f"{message} ({TIMEOUT_VARIABLE} sets how long to wait)") from error
        if DEAD.search(str(error)):
            raise ConnectionError(f"another of the {world.size} processes died") from error
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def micro_batch(config: TrainConfig, world: World) -> int:
    """Return the largest number of sequences in a forward pass on one process."""
    return min(config.micro_batch_size, -(-config.batch_windows // world.size))


def is_sharded(config: TrainConfig, world: World) -> bool:
    """Return whether FSDP shards the model over several processes."""
    return config.parallel == "fsdp" and world.size > 1


def require_room(
    shape: GPTConfig, config: TrainConfig, device: torch.device, world: World, autocast: bool
) -> None:
    """Raise `ValueError` if training this model needs more memory than the device has."""
    per = accounting.bytes_per_parameter(config.optimizer)
    needed = accounting.count_parameters(shape) * per.total
    if is_sharded(config, world):
        needed /= world.size
    elif device.type == "cpu":  # elsewhere a compiler keeps less than we would count
        batch, optimizer = micro_batch(config, world), config.optimizer
        kinds = accounting.peak_memory(shape, batch, optimizer=optimizer, autocast=autocast)
        # At the backward pass of a step's only micro-batch there are no gradients yet.
        needed = max(needed, sum(kinds.values()) - kinds["gradients"])
    hardware.require_memory(needed, device, f"training with {config.optimizer}")


def compiles(config: TrainConfig, device: torch.device, world: World) -> bool:
    """Return whether to use torch.compile.

    By default, torch.compile is used only on a GPU. If a test compilation fails there, this prints
    the reason and returns False. Raises `ValueError` if the config requires torch.compile and the
    test compilation fails.
    """
    if config.compile == "off" or (config.compile == "auto" and device.type != "cuda"):
        return False
    reason = hardware.why_not_compiled(device)
    message = f"torch.compile: {reason}; repair that, or pass --compile off"
    require(not reason or config.compile == "auto", message)
    if reason and world.is_main:
        print(f"compile    off ({reason}); the run is slower without it")
    return not reason


def prepare_model(
    model: GPT,
    config: TrainConfig,
    device: torch.device,
    world: World,
    dtype: torch.dtype | None,
    *,
    compiled: bool,
) -> nn.Module:
    """Move the model to its device, compile it, and replicate or shard it.

    Parameters are replaced in place, so create the optimizer after this call. A model on the meta
    device is initialized after sharding. `dtype` is the data type of the gathered weights under
    FSDP, or `None` for fp32.

    Returns:
        The module to call in the training loop. It is `model` or a wrapper around it.
    """
    if is_sharded(config, world):
        if compiled:  # block by block, since the gathering of weights between them isn't compiled
            for block in model.get_submodule("transformer.h").children():
                block.forward = torch.compile(block.forward, fullgraph=True)
        shard(model, device, world, dtype, config.seed)
        return model
    model.to(device)
    # torch.compile turns a Module into another, though it is annotated for functions.
    wrapped: nn.Module = torch.compile(model) if compiled else model  # type: ignore[assignment]
    if world.size == 1:
        return wrapped
    ids = [device.index] if device.type == "cuda" else None
    # Gradients that are views of DDP's buckets take 4 bytes a parameter, copies of them 8.
    return DistributedDataParallel(wrapped, device_ids=ids, gradient_as_bucket_view=True)


def shard(
    model: GPT, device: torch.device, world: World, dtype: torch.dtype | None, seed: int
) -> None:
    """Shard every parameter over the processes with FSDP2 (Zhao et al. 2023).

    The weights of a block are all-gathered in `dtype` just before the block runs, and freed
    afterwards. Every backward pass reduce-scatters the gradients in fp32, so a process never holds
    the full gradients of more than one block. With bf16, the residual stream is also in bf16, as in
    torchtitan. Under autocast, which DDP uses, the residual stream stays in fp32. A model on the
    meta device is initialized from `seed`.
    """
    # Imported here because it takes a third as long as torch itself, and few runs are sharded.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (world.size,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model.get_submodule("transformer.h").children():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)  # embeddings, last norm, tied output matrix
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=device)
        init_shards(model, seed)


@torch.no_grad()
def init_shards(model: GPT, seed: int) -> None:
    """Initialize a sharded model with the same weights as an unsharded model.

    Every process draws all tensors from `seed`, one at a time, and keeps only its own shard.
    """
    for name, parameter in model.named_parameters():
        full = torch.empty(parameter.shape)
        model.init_parameter(name, full, seed)
        parameter.copy_(sharded_like(full, parameter))


def gradient_sync(model: nn.Module, wanted: bool) -> AbstractContextManager:
    """Return a context in which DDP communicates gradients only if `wanted` is true.

    FSDP communicates gradients after every backward pass. Otherwise, each process would need memory
    for the full gradients.
    """
    if isinstance(model, DistributedDataParallel) and not wanted:
        return model.no_sync()
    return nullcontext()


def gathered(tensor: Tensor) -> Tensor:
    """Gather the full tensor if `tensor` is sharded, and otherwise return it unchanged.

    All processes must call this function.
    """
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def sharded_like(tensor: Tensor, like: Any) -> Tensor:
    """Shard a full tensor in the same way as `like`. This is the inverse of `gathered`."""
    if not hasattr(like, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    tensor = tensor.to(like.device)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
