"""Train for two steps under torchrun and print how many bytes each rank holds.

The program runs `train` itself, and looks after every micro-batch of the second step, when the
optimizer has its state. It prints, for each kind of tensor, the most that was held.

Usage: torchrun ... held_bytes.py RUN_DIR TRAIN_CONFIG_AS_JSON
"""

import gc
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cs336_lib import parallel
from cs336_lib import train as train_module
from cs336_lib.config import TrainConfig

optimizers: list[torch.optim.Optimizer] = []
most = {"weights": 0, "gradients": 0, "optimizer state": 0, "everything": 0}


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' memory on this rank; memory that several share counts once."""
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in local}
    return sum(storages.values())


def live_tensors() -> list[Tensor]:
    """Every tensor that Python knows, whoever holds it: FSDP's own buffers too."""
    gc.collect()
    return [
        thing for thing in gc.get_objects() if issubclass(type(thing), Tensor) and not thing.is_meta
    ]


def look(model: nn.Module) -> None:
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


def remember_optimizer(*arguments, make=train_module.make_optimizer) -> torch.optim.Optimizer:
    optimizers.append(make(*arguments))
    return optimizers[-1]


@contextmanager
def sync_then_look(model, wanted, gradient_sync=parallel.gradient_sync) -> Iterator[None]:
    with gradient_sync(model, wanted):
        yield
    look(model)


train_module.make_optimizer = remember_optimizer
parallel.gradient_sync = sync_then_look
train_module.train(TrainConfig(run_dir=sys.argv[1], **json.loads(sys.argv[2])))
print(f"\nheld {os.environ['RANK']} {json.dumps(most)}")
