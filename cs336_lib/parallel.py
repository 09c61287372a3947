"""One model on many devices: compiled, replicated (DDP) or sharded (FSDP2)."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cs336_lib import accounting, hardware
from cs336_lib.config import GPTConfig, TrainConfig
from cs336_lib.distributed import World
from cs336_lib.model import GPT


def micro_batch(config: TrainConfig, world: World) -> int:
    """Sequences that a process has in memory at once."""
    return min(config.micro_batch_size, -(-config.batch_windows // world.size))


def require_room(
    shape: GPTConfig, config: TrainConfig, device: torch.device, world: World, autocast: bool
) -> None:
    """Raise `ValueError` where no process could train a model of this shape, whatever is free."""
    sharing = world.size if config.parallel == "fsdp" else 1
    held = accounting.count_parameters(shape) / sharing
    needed = held * accounting.bytes_per_parameter(config.optimizer).total
    if device.type == "cpu":  # elsewhere a compiler keeps less than we would count
        kept = accounting.activation_bytes(shape, micro_batch(config, world), autocast=autocast)
        needed += sum(kept.values())
    hardware.require_memory(needed, device, f"training with {config.optimizer}")


def shard(model: GPT, config: TrainConfig, device: torch.device, world: World) -> None:
    """With parallel="fsdp", leave each process only its part of every parameter.

    A block's weights are gathered when it is about to run and dropped again after it (FSDP2;
    Zhao et al. 2023). Must come before the optimizer is made, whose state is then sharded too.
    """
    if world.size == 1 or config.parallel != "fsdp":
        return
    # Imported here because it takes a third as long as torch itself, and few runs are sharded.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world.size,))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # the embeddings, the last norm and the tied output matrix


def stepper(model: GPT, config: TrainConfig, device: torch.device, world: World) -> nn.Module:
    """What the loop calls: the model, compiled where that pays and replicated where asked.

    torch.compile is on where it is asked for and, by default, on a GPU (see docs/decisions.md).
    """
    wanted = config.compile == "on" or (config.compile == "auto" and device.type == "cuda")
    called = torch.compile(model) if wanted else model
    if world.size == 1 or config.parallel == "fsdp":
        return called
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(called, device_ids=ids)


@contextmanager
def gradient_sync(called: nn.Module, wanted: bool) -> Iterator[None]:
    """Whether backward passes in here add gradients over the processes, or keep them for later."""
    if isinstance(called, DistributedDataParallel):
        with nullcontext() if wanted else called.no_sync():
            yield
        return
    model = getattr(called, "_orig_mod", called)  # as it was before torch.compile
    if hasattr(model, "set_requires_gradient_sync"):  # FSDP's
        model.set_requires_gradient_sync(wanted)
    yield


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor, sharded or not; every process must ask at the same time."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def spread_like(tensor: Tensor, model_tensor: Tensor) -> Tensor:
    """Shard a whole tensor as `model_tensor` is sharded; the way back from `gathered`."""
    if not hasattr(model_tensor, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    where = (model_tensor.device_mesh, model_tensor.placements)
    return distribute_tensor(tensor.to(model_tensor.device), *where)
