"""Measure everything that is worth measuring on a GPU.

    python -m benchmarks.gpu [--nanogpt PATH] [--device cuda] [--parts step memory ...]

Each part runs in a separate process. When it ends, its result is stored in
results/gpu_<device>.json. If the program is interrupted, run the same command again. It runs only
the parts that are missing or have failed. Delete the file to measure everything again. A fast GPU
trains GPT-2 124M with 16 x 1024 tokens, and other devices train a small model. The last line,
`ratio R`, says how many times as long a training step of transformers takes.
"""

import itertools
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import cs336_lib  # noqa: F401  (before torch: it decides how torch's threads wait)

# isort: split
import numpy as np
import torch
import tyro

from benchmarks import common, generate, train_step
from cs336_course.one_file import assemble
from cs336_course.pages.gpt2_speed import story as speed_ladder
from cs336_course.pages.gpt2_speed.story import (
    Parts,
    Settings,
    Shape,
    Step,
    shape_for,
    training_batch,
)
from cs336_course.shared import stopwatch
from cs336_course.shared.activation_memory import SavedTensors
from cs336_lib import accounting
from cs336_lib.bill.memory import of_gpt
from cs336_lib.config import PRESETS, GPTConfig, TrainConfig, UserError
from cs336_lib.data.shards import write_shard
from cs336_lib.model import GPT
from cs336_lib.optim import make_optimizer
from cs336_lib.system import hardware
from cs336_lib.training import loop
from cs336_lib.training.job import open_run

Result = dict[str, Any]
PartName = Literal["step", "training", "memory", "sampling", "ladder"]
NOTEBOOKS = common.ROOT / "notebooks"


def slug(device: torch.device) -> str:
    """Return the device's name for use in a file name, such as nvidia-h100-80gb-hbm3."""
    return re.sub(r"[^a-z0-9]+", "-", hardware.device_name(device).lower()).strip("-")


# The parts


def step(device: torch.device, shape: Shape, nanogpt: Path | None) -> Result:
    """Measure a training step beside transformers and nanoGPT, which are compiled on a GPU."""
    size, layers = shape.config.block_size, shape.config.n_layer
    return train_step.measure(device, shape.batch, size, n_layer=layers, nanogpt=nanogpt)


def run_config(device: torch.device, shape: Shape) -> TrainConfig:
    """Return the preset gpt2-124m for a model of this shape.

    The small model has a shorter batch than GPT-2.
    """
    c, preset = shape.config, PRESETS["gpt2-124m"][1]
    return replace(
        preset,
        n_layer=c.n_layer,
        n_head=c.n_head,
        n_embd=c.n_embd,
        block_size=c.block_size,
        micro_batch_size=shape.batch,
        batch_tokens=preset.batch_tokens if c == GPTConfig() else 4 * shape.tokens,
        log_every=10,  # the host doesn't wait for each step
        device=str(device),
    )


def training(device: torch.device, shape: Shape, _: Path | None) -> Result:
    """Measure whole steps of `cs336 train`, and how well they overlap with the loader.

    A step with the loader is compared with a step on batches that are on the device already. If
    they overlap, both take the same time. The tokens are random.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        tokens = np.random.default_rng(0).integers(0, 50257, 20_000_000, dtype=np.uint16)
        for split, part in (("train", tokens), ("val", tokens[:2_000_000])):
            write_shard(Path(folder) / f"{split}_000000.bin", part)
        patterns = {f"{split}_data": f"{folder}/{split}_*.bin" for split in ("train", "val")}
        config = replace(run_config(device, shape), run_dir=f"{folder}/run", **patterns)
        run = stack.enter_context(open_run(config))
        job, loaded, numbers = run.job, run.batches(), itertools.count()
        stack.callback(loaded.close)  # type: ignore[attr-defined]
        ready = itertools.repeat(next(loaded))
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        ways: dict[str, Callable[[], object]] = {
            "loader and step": lambda: loop.train_step(job, loaded, next(numbers)),
            "step": lambda: loop.train_step(job, ready, next(numbers)),
            "loader": lambda: list(run.micro_batches(next(numbers))),
        }
        seconds = stopwatch.seconds_in_turns(ways, device, rounds=5, warmup=2)
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    median = {name: statistics.median(values) for name, values in seconds.items()}
    rate = config.batch_tokens / median["loader and step"]
    added = median["loader and step"] - median["step"]
    print(
        f"cs336 train    {rate:,.0f} tok/s; the loader's {1000 * median['loader']:.1f} ms make a "
        f"step of {1000 * median['step']:.1f} ms {1000 * added:.1f} ms longer"
    )
    flops = accounting.train_flops_per_token(job.model.config)
    return {
        "seconds": {name: common.spread(values) for name, values in seconds.items()},
        "tokens_per_second": rate,
        "mfu": accounting.mfu(rate * flops, hardware.peak_flops(device, job.place.dtype)[0]),
        "loader_adds_seconds": added,
        "peak_bytes": peak,
    }


def memory(device: torch.device, shape: Shape, _: Path | None) -> Result:
    """Measure the memory of an uncompiled step, and predict it with `bill.memory`."""
    by_kind = memory_by_kind(shape, device)
    settings = Settings(
        precision="bf16" if hardware.has_bf16(device) else "fp32",
        attention="flash",
        padded=True,
        fused=True,
        library=True,
    )
    uncompiled = Step(settings, shape, device, learned_parts())
    for _ in range(2):  # creates the optimizer's state
        uncompiled()
    kinds = of_gpt(shape.config, shape.batch, autocast=settings.precision == "bf16")
    kinds.pop("gradients")  # they don't exist yet when the only backward pass starts
    by_kind["measured"]["peak"] = speed_ladder.peak_bytes(uncompiled)
    by_kind["predicted"]["peak"] = sum(kinds.values())
    print(f"{'':28}{'measured':>12}{'predicted':>12}")
    for kind, measured in by_kind["measured"].items():
        predicted = by_kind["predicted"][kind]
        print(f"{kind:28}{measured / 1e9:9.3f} GB{predicted / 1e9:9.3f} GB")
    return by_kind


def memory_by_kind(shape: Shape, device: torch.device) -> dict[str, dict[str, float]]:
    """Return the bytes at the start of the backward pass, measured and predicted.

    The step isn't compiled. The gradients are those of the step before, as in
    `bill.memory.of_gpt`. Saved tensors are counted storage by storage.
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
    kinds = of_gpt(shape.config, shape.batch, autocast=dtype is not None)
    del kinds["temporary"]
    predicted = {name: kinds.pop(name) for name in ("weights", "gradients", "optimizer state")}
    predicted["activations"] = sum(kinds.values())
    return {"measured": measured, "predicted": predicted}


def sampling(device: torch.device, shape: Shape, nanogpt: Path | None) -> Result:
    """Measure the sampler beside transformers and nanoGPT."""
    dtype = "bfloat16" if hardware.has_bf16(device) else "float32"
    new_tokens = min(128, shape.config.block_size - 16)
    return generate.measure(
        device, shape.config, new_tokens=new_tokens, dtype=dtype, nanogpt=nanogpt
    )


def learned_parts() -> Parts:
    """Return the model of the notebooks' solutions, before and after notebook 09."""
    return Parts(assemble.module("09", NOTEBOOKS), assemble.module("10", NOTEBOOKS))


def climb(device: torch.device, shape: Shape, _: Path | None) -> Result:
    """Measure the ladder of notebook 09."""
    climbing = speed_ladder.Ladder(shape, device, learned_parts())
    for _ in speed_ladder.RUNGS:
        row = climbing.climb()
        said = row.note if row.ms is None else f"{row.ms:9.1f} ms {row.tokens_per_sec:11,.0f} tok/s"
        print(f"{row.name:18} {said}", flush=True)
    return speed_ladder.report(climbing)


PARTS = {
    "step": step,
    "training": training,
    "memory": memory,
    "sampling": sampling,
    "ladder": climb,
}


def run_part(part: Callable[..., Result], *arguments: Any) -> Result:
    """Run a part in a separate process, so that it starts with an empty device."""
    with common.own_process(partial(partial, part, *arguments)) as work:
        return work()


# Running and storing the parts


def measured(work: Callable[[], Result]) -> Result:
    """Return the result of a part, or its error as "failed", with the seconds it took."""
    start = time.perf_counter()
    try:
        found = work()
    except ValueError as error:
        print(error, file=sys.stderr)
        found = {"failed": str(error)}
    return found | {"part_seconds": time.perf_counter() - start, "commit": common.commit()}


def missing(
    parts: Sequence[str], found: dict[str, Result], *arguments: Any
) -> Iterator[tuple[str, Result]]:
    """Run the parts without a result, and yield the name and result of each when it ends."""

    def is_missing(name: str) -> bool:
        return "failed" in found.get(name, {"failed": ""})

    for name in filter(is_missing, parts):
        print(f"\n{name}", flush=True)
        yield name, measured(partial(run_part, PARTS[name], *arguments))


def main(
    nanogpt: Path | None = None,
    device: str = "cuda",
    parts: tuple[PartName, ...] = get_args(PartName),
) -> None:
    """Measure a GPU.

    Args:
        nanogpt: a checkout of karpathy/nanoGPT; left out, it is not measured.
        device: cuda or cuda:1; cpu measures a small model.
        parts: what to measure.
    """
    where = hardware.select_device(device)
    name = f"gpu_{slug(where)}"
    path = common.RESULTS / f"{name}.json"
    found: dict[str, Result] = {}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))["parts"]
    shape, machine = shape_for(where), common.machine(where, ("transformers",))
    for part, result in missing(parts, found, where, shape, nanogpt):
        found[part] = result
        common.write(name, {"machine": machine, "shape": str(shape), "parts": found})
    print(f"\n{path}: {sum(part['part_seconds'] for part in found.values()):.0f} s")
    if failed := [part for part, result in found.items() if "failed" in result]:
        raise UserError(f"{', '.join(failed)} failed; run the command again to repeat them")
    if "step" in found:
        print(f"ratio {found['step']['times_ours']['transformers']:.2f}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except UserError as error:
        sys.exit(str(error))
