"""Everything that is worth measuring on a GPU, by one command.

    python -m benchmarks.gpu [--nanogpt PATH] [--device cuda]

The training step of GPT-2 124M at 16 x 1024 tokens beside its peers, the ladder of notebook 09 rung
by rung (with the parts from the notebooks' solutions), the memory of a step by kind beside
`accounting`'s prediction, and generation. The last line, `ratio R`, is the training step's: how
many times as long transformers takes.
"""

import re
import sys
from pathlib import Path
from typing import Any

import cs336_lib  # noqa: F401  (before torch: it decides how torch's threads wait)

# isort: split
import torch
import tyro

from benchmarks import common, generate, train_step
from cs336_lib import accounting, hardware
from cs336_lib.classroom import assemble, ladder
from cs336_lib.classroom.speed_step import Parts, Shape, shape_for, training_batch
from cs336_lib.classroom.tensor_bytes import SavedTensors
from cs336_lib.config import TrainConfig
from cs336_lib.model import GPT
from cs336_lib.optim import make_optimizer


def slug(device: torch.device) -> str:
    """The device's name, fit for a file's: nvidia-h100-80gb-hbm3."""
    return re.sub(r"[^a-z0-9]+", "-", hardware.device_name(device).lower()).strip("-")


def memory_by_kind(shape: Shape, device: torch.device) -> dict[str, dict[str, float]]:
    """Bytes when the backward pass begins, measured and predicted, of an uncompiled step.

    Gradients are those of the step before, as in `accounting.training_memory`; what autograd keeps
    is counted storage by storage.
    """
    dtype = hardware.autocast_dtype(device, "auto")
    model = GPT(shape.config).to(device)
    optimizer = make_optimizer(model, TrainConfig(block_size=shape.config.block_size))
    x, y = training_batch(shape, device)
    parameters = list(model.parameters())
    for _ in range(2):
        with (
            torch.autocast(device.type, dtype=dtype, enabled=dtype is not None),
            SavedTensors(parameters) as saved,
        ):
            loss = model(x, y)
        loss.backward()
        optimizer.step()
        state = [v for kept in optimizer.state.values() for v in kept.values()]
        measured = {
            "weights": sum(p.nbytes for p in parameters),
            "gradients": sum(p.grad.nbytes for p in parameters if p.grad is not None),
            "optimizer state": sum(t.nbytes for t in state if t.dim()),
            "activations": saved.bytes,
        }
        optimizer.zero_grad(set_to_none=True)
    kinds = accounting.training_memory(shape.config, shape.batch, autocast=dtype is not None)
    predicted = {name: kinds.pop(name) for name in ("weights", "gradients", "optimizer state")}
    predicted["activations"] = sum(kinds.values())
    return {"measured": measured, "predicted": predicted}


def climb(device: torch.device) -> dict[str, Any]:
    """The whole ladder, printed rung by rung."""
    notebooks = common.ROOT / "notebooks"
    parts = Parts(assemble.module("08", notebooks), assemble.module("09", notebooks))
    climbing = ladder.Ladder(shape_for(device), device, parts)
    for _ in ladder.RUNGS:
        row = climbing.climb()
        said = row.note if row.ms is None else f"{row.ms:9.1f} ms {row.tokens_per_sec:11,.0f} tok/s"
        print(f"{row.name:18} {said}", flush=True)
    return ladder.report(climbing)


def main(nanogpt: Path | None = None, device: str = "cuda") -> None:
    """Measure a GPU.

    Args:
        nanogpt: a checkout of karpathy/nanoGPT; left out, it is not measured.
        device: cuda or cuda:1; cpu climbs the small ladder and trains a small batch.
    """
    where = hardware.select_device(device)
    shape = shape_for(where)
    result = climb(where) | {"machine": common.machine(where)}
    result["memory"] = memory = memory_by_kind(shape, where)
    print(f"{'bytes when backward begins':28}{'measured':>12}{'predicted':>12}")
    for kind, measured in memory["measured"].items():
        predicted = memory["predicted"][kind]
        print(f"{kind:28}{measured / 1e9:9.3f} GB{predicted / 1e9:9.3f} GB")
    prefix = "gpu_ladder" if where.type == "cuda" else "ladder"
    print(common.write(f"{prefix}_{slug(where)}", result))
    generate.main(nanogpt=nanogpt, device=device)
    full = where.type == "cuda"
    train_step.main(
        nanogpt=nanogpt, batch=16 if full else 1, seq=1024 if full else 128, device=device
    )


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except ValueError as error:
        sys.exit(str(error))
