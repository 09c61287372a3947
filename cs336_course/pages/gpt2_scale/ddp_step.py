"""Run a step on two ranks with DDP, and note what DDP sends and when.

Usage: python -m cs336_course.pages.gpt2_scale.ddp_step FILE, with the variables of torchrun. The
file defines functions `(model, step, first, second)`, of which each is a training step of two
micro-batches.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cs336_course.shared import torchrun


class Moment(NamedTuple):
    """What a rank has after a micro-batch: calls so far, a weight's gradient, and the loss."""

    calls: int
    gradient: float
    loss: float


def on_two_ranks(folder: Path, *steps: Callable[..., None]) -> list[list[list[Moment]]]:
    """Run training steps in two processes, each with its own data.

    Args:
        folder: Folder for the program.
        steps: Functions `(model, step, first, second)`. They call `step(first)` and `step(second)`.

    Returns:
        For each function and each micro-batch, a `Moment` of each rank.
    """
    program = folder / "ddp_steps.py"
    program.write_text("\n\n".join(inspect.getsource(step) for step in steps), encoding="utf-8")
    texts = torchrun.ranks(folder, 2, "-m", "cs336_course.pages.gpt2_scale.ddp_step", str(program))
    found = json.loads(texts[0])
    return [[[Moment(*rank) for rank in moment] for moment in run] for run in found]


def note_steps(source: str) -> list[list[Moment]]:
    """Run the functions of a source text on this rank, and note what it has when."""
    steps: dict[str, Any] = {}
    exec(source, steps)
    del steps["__builtins__"]
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    torch.manual_seed(0)  # the same weights on every rank
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    torch.manual_seed(100 + dist.get_rank())  # and its own data, two micro-batches of 8 examples
    first, second = torch.randn(2, 8, 4)
    calls = 0

    def count(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal calls  # DDP calls this in place of its own all-reduce
        calls += 1
        dist.all_reduce(bucket.buffer().div_(size))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model.register_comm_hook(None, count)
    moments: list[Moment] = []

    def step(x: torch.Tensor) -> None:
        loss = model(x).square().mean()
        (loss / 2).backward()
        moments.append(Moment(calls, model.module.weight.grad[0, 0].item(), loss.item()))

    found = []
    for run in steps.values():
        model.zero_grad()
        calls = 0
        moments.clear()
        run(model, step, first, second)
        found.append(moments[:])
    return found


if __name__ == "__main__":
    mine = note_steps(Path(sys.argv[1]).read_text(encoding="utf-8"))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if dist.get_rank() == 0:  # one process speaks for all
        print(json.dumps([list(zip(*run, strict=True)) for run in zip(*everyone, strict=True)]))
    sys.stdout.flush()
    os._exit(0)  # threads of gloo, which DDP keeps alive, can crash Python's own exit
