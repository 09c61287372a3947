"""Train under torchrun, and print the bytes of tensors on each rank.

The program runs `train` and measures memory after every micro-batch. The measurement starts when
the optimizer has state. The program prints the maximum of each kind as JSON.

Usage:
    torchrun ... -m cs336_course.pages.thousands_of_gpus.bytes_per_rank RUN_DIR CONFIG_AS_JSON
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

from cs336_lib.config import TrainConfig
from cs336_lib.training import distributed, job, loop

optimizers: list[torch.optim.Optimizer] = []
most = {"weights": 0, "gradients": 0, "optimizer state": 0, "everything": 0}


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the memory of tensors on this rank in bytes. Shared storage is counted once."""
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in local}
    return sum(storages.values())


def live_tensors() -> list[Tensor]:
    """Return all live tensors in this process, including FSDP buffers."""
    gc.collect()
    return [
        thing for thing in gc.get_objects() if issubclass(type(thing), Tensor) and not thing.is_meta
    ]


def look(model: nn.Module) -> None:
    """Measure the memory of live tensors, and update the maximum of each kind."""
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
    *arguments: Any, make: Callable = job.make_optimizer
) -> torch.optim.Optimizer:
    """Create the optimizer, and store a reference so that `look` can measure its state."""
    optimizers.append(make(*arguments))
    return optimizers[-1]


@contextmanager
def sync_then_look(
    model: nn.Module, wanted: bool, gradient_sync: Callable = distributed.gradient_sync
) -> Iterator[None]:
    """Wrap `distributed.gradient_sync`, and measure memory after the backward pass."""
    with gradient_sync(model, wanted):
        yield
    look(model)


if __name__ == "__main__":
    job.make_optimizer = remember_optimizer
    distributed.gradient_sync = sync_then_look
    loop.train(TrainConfig(run_dir=sys.argv[1], **json.loads(sys.argv[2])))
    print(f"\nheld {os.environ['RANK']} {json.dumps(most)}")
