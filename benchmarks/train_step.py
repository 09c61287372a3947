"""How long a training step of GPT-2 124M takes: ours, transformers' and nanoGPT's.

    python -m benchmarks.train_step [--nanogpt PATH] [--batch 4 --seq 256] [--device cuda]

Same weights, same batch; a step is forward, backward, clipping and the update. Each contender has a
process of its own, and they take turns. Ours and transformers run with fused AdamW, and in bf16
where the device multiplies it; nanoGPT at what its train.py chooses for the device, and on a CPU
with bf16 also with bf16 and fused AdamW. CPU threads spin for as long as they do by default in
PyTorch. The last line, `ratio R`, says how many times as long transformers takes.
"""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import SPINS

os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))  # OpenMP reads it once, when torch is loaded

# isort: split
import cs336_lib  # noqa: F401  (before torch: it decides how torch's threads wait)

# isort: split
import torch
import tyro
from torch import Tensor, nn

from benchmarks import common, peers
from cs336_course.shared import stopwatch
from cs336_lib import accounting
from cs336_lib.config import GPTConfig, TrainConfig, UserError
from cs336_lib.model import GPT
from cs336_lib.optim import make_optimizer, parameter_groups
from cs336_lib.system import hardware
from cs336_lib.system.processes import Place
from cs336_lib.training.distributed import compiles, prepare_model

Step = Callable[[], float]
LossOf = Callable[[nn.Module, Tensor, Tensor], Tensor]
whole_process = ExitStack()  # left when the process ends


def make_step(
    model: nn.Module,
    tokens: Tensor,
    loss_of: LossOf,
    optimizer: torch.optim.Optimizer,
    autocast: torch.autocast | nullcontext,
) -> Step:
    """One whole step, returning its loss."""
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()  # nanoGPT takes views

    def step() -> float:
        with autocast:
            loss = loss_of(model, x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def loss_of_transformers(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Its mean cross-entropy; it would shift the labels itself, ours are shifted."""
    logits = model(x).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), y.flatten())


def bf16_where_fast(device: torch.device) -> torch.autocast:
    """As `cs336 train` chooses it."""
    dtype = hardware.autocast_dtype(device)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def same_start(device: torch.device, batch: int, seq: int, n_layer: int) -> tuple[GPT, Tensor]:
    """The weights and the tokens that all begin with."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(n_layer=n_layer))
    tokens = torch.randint(model.config.vocab_size, (batch, seq + 1))
    return model.to(device), tokens.to(device)


def make_ours(device: torch.device, batch: int, seq: int, n_layer: int) -> Step:
    """The step of `cs336 train`, with what it does for the process around it."""
    model, tokens = same_start(device, batch, seq, n_layer)
    config = TrainConfig(block_size=1024, n_layer=n_layer)
    compiled = compiles(config, Place(device))
    called = prepare_model(model, config, Place(device), compiled=compiled)
    optimizer = make_optimizer(model, config)
    whole_process.enter_context(hardware.freed_memory_kept())
    return make_step(called, tokens, lambda m, x, y: m(x, y), optimizer, bf16_where_fast(device))


def make_transformers(device: torch.device, batch: int, seq: int, n_layer: int) -> Step:
    """transformers' GPT2LMHeadModel, compiled on a GPU."""
    ours, tokens = same_start(device, batch, seq, n_layer)
    model = peers.transformers_model(ours).train()
    optimizer = torch.optim.AdamW(
        parameter_groups(model, 0.1), lr=6e-4, betas=(0.9, 0.95), fused=True
    )
    called = torch.compile(model) if device.type == "cuda" else model
    return make_step(called, tokens, loss_of_transformers, optimizer, bf16_where_fast(device))


def make_nanogpt(
    checkout: Path, device: torch.device, batch: int, seq: int, n_layer: int, tuned: bool = False
) -> Step:
    """nanoGPT as its train.py: on a GPU bf16, compiled and fused; on a CPU fp32 and neither.

    `tuned` takes bf16 and fused AdamW on a CPU too.
    """
    ours, tokens = same_start(device, batch, seq, n_layer)
    model = peers.nanogpt_model(checkout, ours).train()
    on_gpu = device.type == "cuda"
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), device.type)
    if tuned:
        optimizer = torch.optim.AdamW(
            optimizer.param_groups, lr=6e-4, betas=(0.9, 0.95), fused=True
        )
    in_bf16 = on_gpu or tuned
    context = torch.autocast(device.type, torch.bfloat16) if in_bf16 else nullcontext()
    called = torch.compile(model) if on_gpu else model
    return make_step(called, tokens, lambda m, x, y: m(x, y)[1], optimizer, context)


def line(
    name: str,
    seconds: dict[str, Any],
    tokens: int,
    mfu: float | None,
    ratio: float,
    losses: list[float],
) -> str:
    """What is printed about a contender, whose steps have `tokens` tokens."""
    share = "" if mfu is None else f"  MFU {mfu:.0%}"
    return (
        f"{name:14} {1000 * seconds['median']:9.1f} ms ({1000 * seconds['lowest']:.1f} to "
        f"{1000 * seconds['highest']:.1f})  {tokens / seconds['median']:9,.0f} tok/s{share}  "
        f"{ratio:.2f} x ours  loss {losses[0]:.4f} to {losses[-1]:.4f}"
    )


def measure(
    where: torch.device,
    batch: int,
    seq: int,
    rounds: int = 5,
    n_layer: int = 12,
    nanogpt: Path | None = None,
) -> dict[str, Any]:
    """Measure and print the steps of all contenders, each of which runs in its own process.

    Args:
        where: Device of the models.
        batch: Sequences per step.
        seq: Tokens per sequence.
        rounds: Measured steps of each contender, after two of warm-up.
        n_layer: Number of blocks.
        nanogpt: A checkout of karpathy/nanoGPT, or `None` to leave nanoGPT out.
    """
    dtype = hardware.autocast_dtype(where)
    makers: dict[str, Callable[..., Step]] = {"transformers": make_transformers, "ours": make_ours}
    if nanogpt:
        peers.nanogpt_file(nanogpt)  # before anything is started
        if dtype and where.type == "cpu":
            makers = {"nanoGPT, bf16": partial(make_nanogpt, nanogpt, tuned=True), **makers}
        makers = {"nanoGPT": partial(make_nanogpt, nanogpt), **makers}
    losses: dict[str, list[float]] = {name: [] for name in makers}
    peak_before, _ = hardware.peak_flops(where, dtype)
    with ExitStack() as processes:
        steps: dict[str, Callable[[], object]] = {}
        for name, make in makers.items():
            made = partial(make, where, batch, seq, n_layer)
            step = processes.enter_context(common.own_process(made))
            steps[name] = lambda name=name, step=step: losses[name].append(step())
        seconds = stopwatch.seconds_in_turns(steps, where, rounds=rounds, warmup=2)
    config = GPTConfig(n_layer=n_layer)
    hardware._best_matmul_flops.cache_clear()  # on a shared CPU, either peak may be too low
    peak, source = hardware.peak_flops(where, dtype)
    if peak and peak_before:
        peak = max(peak, peak_before)
    flops = batch * seq * accounting.train_flops_per_token(config, seq)
    spreads = {name: common.spread(values) for name, values in seconds.items()}
    ratios = {name: common.ratio(values, seconds["ours"]) for name, values in seconds.items()}
    mfus = {name: accounting.mfu(flops / s["median"], peak) for name, s in spreads.items()}

    place = hardware.device_name(where)
    print(f"{accounting.count_parameters(config):,} parameters, batch {batch} x {seq}, {place}")
    print(f"{'bf16' if dtype else 'fp32'}; {rounds} alternating rounds, medians; peak: {source}")
    for name, s in spreads.items():
        print(line(name, s, batch * seq, mfus[name], ratios[name], losses[name]))
    if not nanogpt:
        print("nanoGPT        absent (--nanogpt PATH)")
    return {
        "machine": common.machine(where, ("transformers",)),
        "setup": {
            "batch": batch,
            "seq": seq,
            "n_layer": n_layer,
            "dtype": "bf16" if dtype else "fp32",
            "nanogpt": common.commit(nanogpt) if nanogpt else "absent",
        },
        "seconds": spreads,
        "tokens_per_second": {name: batch * seq / s["median"] for name, s in spreads.items()},
        "mfu": mfus,
        "peak_flops": peak,
        "peak_source": source,
        "losses": losses,
        "times_ours": ratios,
    }


def main(
    nanogpt: Path | None = None,
    batch: int = 4,
    seq: int = 256,
    rounds: int = 5,
    device: str = "cpu",
    n_layer: int = 12,
) -> None:
    """Measure a training step.

    Args:
        nanogpt: a checkout of karpathy/nanoGPT; left out, it is not measured.
        batch: sequences per step.
        seq: tokens per sequence.
        rounds: how many steps each contender makes, after two of warm-up.
        device: cpu, cuda or mps.
        n_layer: blocks; 12 is GPT-2 124M.
    """
    where = hardware.select_device(device)
    result = measure(where, batch, seq, rounds, n_layer, nanogpt)
    precision = "_bf16" if where.type == "cpu" and result["setup"]["dtype"] == "bf16" else ""
    print(common.write(f"train_step_{where.type}{precision}_{batch}x{seq}", result))
    print(f"ratio {result['times_ours']['transformers']:.2f}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except UserError as error:
        sys.exit(str(error))
