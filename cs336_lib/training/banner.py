"""Describe a run, its machine and how long it may take, before it starts."""

import json
import platform

import torch

from cs336_lib import __version__, accounting, schedule
from cs336_lib.formatting import duration, human
from cs336_lib.io import write_atomic
from cs336_lib.system import hardware
from cs336_lib.training.job import Job, OpenRun
from cs336_lib.training.run_folder import ENVIRONMENT

# The range of MFU for the estimate before the start. Public runs of GPT-2 reach a quarter to half
# of a datasheet's peak (docs/reproduce_gpt2.md). A CPU's peak is measured, and steps of GPT-2 come
# close to it (docs/benchmarks.md).
EXPECTED_MFU = {"cpu": (0.3, 0.85), "cuda": (0.25, 0.5)}


def announce(run: OpenRun) -> None:
    """Print what will be trained, and write environment.json, on rank 0."""
    if run.job.place.world.is_main:
        text = json.dumps(environment(run.job), indent=1) + "\n"
        write_atomic(run.folder / ENVIRONMENT, text)
        print(banner(run))


def environment(job: Job) -> dict[str, str | int]:
    """Describe the machine and the software of a run, for `cs336 report`."""
    return {
        "device": hardware.device_name(job.place.device),
        "devices": job.place.world.size,
        "precision": "bf16 autocast" if job.place.dtype else "fp32",
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cs336_lib": __version__,
    }


def banner(run: OpenRun) -> str:
    """Describe a run and its expected duration before it starts."""
    job, config, tokenizer = run.job, run.job.config, run.data.tokenizer
    place, devices = job.place, job.place.world.size
    model, first_step = job.raw_model, run.steps.start
    done, total = (schedule.windows_before(n, config) for n in (first_step, config.max_steps))
    tokens = (total - done) * config.block_size
    flops = tokens * accounting.train_flops_per_token(model.config)
    speed, source = hardware.peak_flops(place.device, place.dtype)
    expected = "unknown (no peak FLOP/s known for this device)"
    if speed is not None:
        slow, fast = EXPECTED_MFU[place.device.type]
        shortest, longest = (
            duration(accounting.training_seconds(flops, devices, speed, share))
            for share in (fast, slow)
        )
        shortest = shortest.removesuffix(f" {longest.split()[1]}")  # "3 to 8 minutes"
        shares = f"at {fast:.0%} to {slow:.0%} MFU as in PaLM; small models take longer"
        expected = f"{shortest} to {longest} without validation ({shares})"
        source = f"peak {human(speed)}FLOP/s, {source}"
    resumed = f", from step {first_step}" if first_step else ""
    return f"""\
model      {model.num_parameters():,} parameters: {config.n_layer} layers, {config.n_head} heads, \
{config.n_embd} wide, context {config.block_size}
data       {config.train_data or "the plays that ship"}, tokenizer {tokenizer.name}, \
{tokenizer.vocab_size:,} ids
device     {hardware.device_name(place.device)} x {devices}, \
{"bf16 autocast" if place.dtype else "fp32"} ({source})
run        {config.max_steps} steps of {config.batch_tokens:,} tokens{resumed}: \
{tokens:,} tokens, {flops:.2e} FLOPs
expected   {expected}
writes to  {config.run_dir}"""
