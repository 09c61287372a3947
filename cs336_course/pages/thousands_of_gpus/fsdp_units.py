"""Watch FSDP2 gather, free and send the units of a model, as one rank of many.

PyTorch's fake process group answers for the other ranks at once, so no message is sent.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

Moment = tuple[str, list[str]]  # what runs, and the units whose weights are whole


class Sent(TorchDispatchMode):
    """Count the calls and the bytes that a rank sends in rings, by collective.

    Args:
        ranks: Number of ranks that take part in an all-reduce.
    """

    def __init__(self, ranks: int):
        super().__init__()
        self.ranks = ranks
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, and count it if it sends something."""
        result = function(*args, **(kwargs or {}))
        name = str(function).split(".")[1]
        if name in ("_allgather_base_", "all_gather_into_tensor"):
            parts = args[:2] if name == "_allgather_base_" else (result, args[0])
            self.count("all-gather", parts[0].nbytes - parts[1].nbytes)
        elif name in ("_reduce_scatter_base_", "reduce_scatter_tensor"):
            parts = args[:2] if name == "_reduce_scatter_base_" else (result, args[0])
            self.count("reduce-scatter", parts[1].nbytes - parts[0].nbytes)
        elif name == "all_reduce":
            self.count("all-reduce", 2 * args[0].nbytes * (self.ranks - 1) // self.ranks)
        return result

    def count(self, collective: str, size: int) -> None:
        """Add a call that sends `size` bytes."""
        self.calls[collective] += 1
        self.bytes[collective] += size


@contextmanager
def rank_0_of(world: int) -> Iterator[DeviceMesh]:
    """Pretend to be rank 0 of `world`, and yield the devices in a row."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        with warnings.catch_warnings(action="ignore"):
            yield init_device_mesh("cpu", (world,))
    finally:
        dist.destroy_process_group()


def whole(units: Mapping[str, nn.Module]) -> list[str]:
    """Return the names of the units whose weights are gathered at this moment."""
    own = {name: next(unit.parameters()) for name, unit in units.items()}
    return [name for name, parameter in own.items() if not isinstance(parameter, DTensor)]


def watch(model: nn.Module, x: Tensor, y: Tensor) -> list[Moment]:
    """Run a micro-batch, and note during each block's passes which units are whole.

    Args:
        model: GPT to which `fully_shard` was applied block by block and as a whole.
        x: Token ids (batch, seq).
        y: Targets (batch, seq).
    """
    blocks = {f"block {i}": block for i, block in enumerate(model.transformer.h, start=1)}  # type: ignore[arg-type, union-attr]
    units = {**blocks, "the rest": model}
    moments: list[Moment] = []
    for name, block in blocks.items():

        def forward(*given: Any, name: str = name, run: Any = block.forward) -> Any:
            moments.append((f"forward {name[-1]}", whole(units)))
            return run(*given)

        def backward(*_: Any, name: str = name) -> None:
            moments.append((f"backward {name[-1]}", whole(units)))

        block.forward = forward
        block.register_full_backward_hook(backward)
    loss = model(x, y)
    moments.append(("loss", whole(units)))
    loss.backward()
    moments.append(("end", whole(units)))
    return moments
