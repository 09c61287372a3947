"""Train under torchrun, and print how many bytes of tensors each rank holds.

The program runs `train`. It measures memory after every micro-batch once the optimizer has its
state, and prints the maximum of each kind as JSON.

Usage: torchrun ... -m cs336_lib.classroom.held_bytes RUN_DIR TRAIN_CONFIG_AS_JSON
"""

import gc
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cs336_lib import distributed
from cs336_lib import train as train_module
from cs336_lib.config import TrainConfig

optimizers: list[torch.optim.Optimizer] = []
most = {"weights": 0, "gradients": 0, "optimizer state": 0, "everything": 0}


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Sum the tensors' memory on this rank, counting shared memory once."""
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in local}
    return sum(storages.values())


def live_tensors() -> list[Tensor]:
    """Return all tensors that Python knows, including FSDP's buffers."""
    gc.collect()
    return [
        thing for thing in gc.get_objects() if issubclass(type(thing), Tensor) and not thing.is_meta
    ]


def look(model: nn.Module) -> None:
    """Measure the memory in use, and keep the maximum of each kind."""
    parameters = list(model.parameters())
    state = [t for entry in optimizers[0].state.values() for t in entry.values()]
    if not state:
        return
    held = {
        "weights": storage_bytes(parameters),
        "gradients": storage_bytes(p.grad for p in parameters if p.grad is not None),
        "optimizer state": storage_bytes(state),
        "everything": storage_bytes(live_tensors()),
    }
    most.update({kind: max(most[kind], size) for kind, size in held.items()})


def remember_optimizer(
    *arguments: Any, make: Callable = train_module.make_optimizer
) -> torch.optim.Optimizer:
    """Create the optimizer as `train` does, and keep a reference so that `look` can measure it."""
    optimizers.append(make(*arguments))
    return optimizers[-1]


@contextmanager
def sync_then_look(
    model: nn.Module, wanted: bool, gradient_sync: Callable = distributed.gradient_sync
) -> Iterator[None]:
    """Synchronize gradients as `gradient_sync` does, and measure after the backward pass."""
    with gradient_sync(model, wanted):
        yield
    look(model)


if __name__ == "__main__":
    train_module.make_optimizer = remember_optimizer
    distributed.gradient_sync = sync_then_look
    train_module.train(TrainConfig(run_dir=sys.argv[1], **json.loads(sys.argv[2])))
    print(f"\nheld {os.environ['RANK']} {json.dumps(most)}")
