"""One model on many devices: compiled, replicated (DDP) or sharded (FSDP2)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cs336_lib import accounting, hardware
from cs336_lib.config import GPTConfig, TrainConfig, require
from cs336_lib.distributed import World
from cs336_lib.model import GPT


def micro_batch(config: TrainConfig, world: World) -> int:
    """Sequences that a process has in memory at once."""
    return min(config.micro_batch_size, -(-config.batch_windows // world.size))


def is_sharded(config: TrainConfig, world: World) -> bool:
    """Whether each process holds only a shard of the model."""
    return config.parallel == "fsdp" and world.size > 1


def require_room(
    shape: GPTConfig, config: TrainConfig, device: torch.device, world: World, autocast: bool
) -> None:
    """Raise `ValueError` where no process could train a model of this shape, whatever is free."""
    sharing = world.size if is_sharded(config, world) else 1
    parameters = accounting.count_parameters(shape) / sharing
    per = accounting.bytes_per_parameter(config.optimizer)
    needed = parameters * per.total
    if device.type == "cpu":  # elsewhere a compiler keeps less than we would count
        batch = micro_batch(config, world)
        kept = sum(accounting.activation_bytes(shape, batch, autocast=autocast).values())
        kept += accounting.backward_bytes(shape, batch, autocast=autocast)
        # At the backward pass of a step's only micro-batch there are no gradients yet.
        needed = max(needed, parameters * (per.total - per.gradient) + kept)
    hardware.require_memory(needed, device, f"training with {config.optimizer}")


def compiles(config: TrainConfig, device: torch.device, world: World) -> bool:
    """Whether to use torch.compile: where the config says so and, by default, on a GPU.

    A GPU on which compiling fails runs eagerly after one line that gives the reason.

    Raises:
        ValueError: the config demands torch.compile, and it fails here.
    """
    if config.compile == "off" or (config.compile == "auto" and device.type != "cuda"):
        return False
    reason = hardware.why_not_compiled(device)
    require(
        not reason or config.compile == "auto",
        f"torch.compile: {reason}; repair that, or pass --compile off",
    )
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
    """Put the model on its device, compiled and replicated or sharded as the config says.

    Args:
        model: on the CPU, or on the meta device if it is to be sharded and has no weights yet. Its
            parameters are changed in place, so the optimizer must be made afterwards.
        dtype: what matmuls run in; None means fp32.

    Returns:
        What the training loop calls. It is `model`, or it wraps `model`.
    """
    if is_sharded(config, world):
        if compiled:  # block by block, since the gathering of weights between them isn't compiled
            for block in model.transformer.h:
                block.forward = torch.compile(block.forward, fullgraph=True)
        shard(model, device, world, dtype, config.seed)
        return model
    called = torch.compile(model.to(device)) if compiled else model.to(device)
    if world.size == 1:
        return called
    ids = [device.index] if device.type == "cuda" else None
    # Gradients that are views of DDP's buckets take 4 bytes a parameter, copies of them 8.
    return DistributedDataParallel(called, device_ids=ids, gradient_as_bucket_view=True)


def shard(
    model: GPT, device: torch.device, world: World, dtype: torch.dtype | None, seed: int
) -> None:
    """Leave each process its shard of every parameter (FSDP2; Zhao et al. 2023).

    The weights of a block are gathered, in `dtype`, just before it runs and freed after it. After
    every backward pass gradients are reduce-scattered in fp32, so that a process never holds the
    gradients of more than one unit as a whole. With bf16 the residual stream is bf16 too, as in
    torchtitan; under DDP's autocast it is fp32. A model on the meta device gets its initial weights
    from `seed`.
    """
    # Imported here because it takes a third as long as torch itself, and few runs are sharded.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (world.size,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)  # embeddings, last norm, tied output matrix
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=device)
        init_shards(model, seed)


@torch.no_grad()
def init_shards(model: GPT, seed: int) -> None:
    """Give a sharded model the initial weights that one process would draw from `seed`.

    Every process draws every tensor, one at a time, and keeps its shard.
    """
    torch.manual_seed(seed)
    # PyTorch's layers draw weights when they are built on a CPU. Those are replaced at once, but
    # they come first in the generator's stream.
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        elif isinstance(layer, nn.Embedding):
            nn.Embedding(layer.num_embeddings, layer.embedding_dim)
    for name, parameter in model.named_parameters():
        whole = torch.empty(parameter.shape)
        model.init_parameter(name, whole)
        parameter.copy_(spread_like(whole, parameter))


@contextmanager
def gradient_sync(called: nn.Module, wanted: bool) -> Iterator[None]:
    """Within this block, backward passes of DDP communicate gradients only if `wanted`.

    FSDP always does, since it would have to keep whole gradients otherwise.
    """
    if isinstance(called, DistributedDataParallel) and not wanted:
        with called.no_sync():
            yield
    else:
        yield


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor, sharded or not; every process must ask at the same time."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def spread_like(tensor: Tensor, model_tensor: Tensor) -> Tensor:
    """Shard a tensor that every process has, as `model_tensor` is sharded; undoes `gathered`."""
    if not hasattr(model_tensor, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    where = (model_tensor.device_mesh, model_tensor.placements)
    return distribute_tensor(tensor.to(model_tensor.device), *where, src_data_rank=None)
