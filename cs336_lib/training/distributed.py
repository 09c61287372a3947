"""Replicate, shard and compile a model for the processes of a run."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cs336_lib import accounting
from cs336_lib.bill import memory
from cs336_lib.config import GPTConfig, TrainConfig, UserError
from cs336_lib.model import GPT
from cs336_lib.system import cpu, hardware
from cs336_lib.system.processes import Place, World


def micro_batch(config: TrainConfig, world: World) -> int:
    """Return the largest number of sequences in a forward pass on one process."""
    return min(config.micro_batch_size, -(-config.batch_windows // world.size))


def is_sharded(config: TrainConfig, world: World) -> bool:
    """Return whether FSDP shards the model over several processes."""
    return config.parallel == "fsdp" and world.size > 1


def require_room(shape: GPTConfig, config: TrainConfig, place: Place) -> None:
    """Raise `UserError` if training this model needs more memory than there is.

    Its weights are drawn on the CPU, unless it is sharded.
    """
    per = accounting.bytes_per_parameter(config.optimizer)
    numbers = accounting.count_parameters(shape)
    needed = numbers * per.total
    if is_sharded(config, place.world):
        needed /= place.world.size
    elif place.device.type == "cpu":  # elsewhere a compiler keeps less than we would count
        batch, bf16 = micro_batch(config, place.world), place.dtype is not None
        kinds = memory.of_gpt(shape, batch, optimizer=config.optimizer, autocast=bf16)
        # At the backward pass of a step's only micro-batch there are no gradients yet.
        needed = max(needed, sum(kinds.values()) - kinds["gradients"])
    hardware.require_memory(needed, place.device, f"training with {config.optimizer}")
    if not is_sharded(config, place.world):
        what = f"a model of {numbers:,} parameters"
        hardware.require_memory(4 * numbers, torch.device("cpu"), what)


def compiles(config: TrainConfig, place: Place) -> bool:
    """Return whether to use torch.compile.

    By default, torch.compile is used only on a GPU. If a test compilation fails there, this prints
    the reason and returns False. Raises `ValueError` if the config requires torch.compile and the
    test compilation fails.
    """
    if config.compile == "off" or (config.compile == "auto" and place.device.type != "cuda"):
        return False
    reason = hardware.why_not_compiled(place.device)
    if reason and config.compile == "on":
        raise UserError(f"torch.compile: {reason}; repair that, or pass --compile off")
    if reason and place.world.is_main:
        print(f"compile    off ({reason}); the run is slower without it")
    return not reason


def prepare_model(model: GPT, config: TrainConfig, place: Place, *, compiled: bool) -> nn.Module:
    """Move the model to its device, replicate or shard it, and make it fast there.

    Parameters are replaced in place, so create the optimizer after this call. A model on the meta
    device is initialized after sharding.

    Returns:
        The module to call in the training loop. It is `model` or a wrapper around it.
    """
    device = place.device
    if device.type == "cpu":
        cpu.accelerate(model)
    if is_sharded(config, place.world):
        if compiled:  # block by block, since the gathering of weights between them isn't compiled
            for block in model.get_submodule("transformer.h").children():
                block.forward = torch.compile(block.forward, fullgraph=True)
        shard(model, place, config.seed)
        return model
    model.to(device)
    # torch.compile turns a Module into another, though it is annotated for functions.
    wrapped: nn.Module = torch.compile(model) if compiled else model  # type: ignore[assignment]
    if place.world.size == 1:
        return wrapped
    ids = [device.index] if device.type == "cuda" else None
    # Gradients that are views of DDP's buckets take 4 bytes a parameter, copies of them 8.
    return DistributedDataParallel(wrapped, device_ids=ids, gradient_as_bucket_view=True)


def shard(model: GPT, place: Place, seed: int) -> None:
    """Shard every parameter over the processes with FSDP2 (Zhao et al. 2023).

    The weights of a block are all-gathered in `place.dtype` just before the block runs, and freed
    afterwards. Every backward pass reduce-scatters the gradients in fp32, so a process never holds
    the full gradients of more than one block. With bf16, the residual stream is also in bf16, as in
    torchtitan. Under autocast, which DDP uses, the residual stream stays in fp32. A model on the
    meta device is initialized from `seed`.
    """
    # Imported here because it takes a third as long as torch itself, and few runs are sharded.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(place.device.type, (place.world.size,))
    policy = MixedPrecisionPolicy(param_dtype=place.dtype, reduce_dtype=torch.float32)
    for block in model.get_submodule("transformer.h").children():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)  # embeddings, last norm, tied output matrix
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=place.device)
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
