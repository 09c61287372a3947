"""Train the small models of scaling_runs.json: python data/make_scaling_runs.py RUNS_DIR [PART]

Every run is a `cs336 train` command, which the JSON file records. Finished runs are skipped, so you
can interrupt the script and start it again. PART is isoflop, a budget such as 3e12, batch_size or
gradient_noise.
"""

import itertools
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from cs336_lib import accounting
from cs336_lib.config import PRESETS, GPTConfig
from cs336_lib.data.corpus import DATA
from cs336_lib.data.loader import Loader, open_data
from cs336_lib.io import read_json, write_atomic
from cs336_lib.model import GPT
from cs336_lib.training import checkpoint
from cs336_lib.training.metrics import read_metrics

TARGET = DATA / "scaling_runs.json"
CHARACTERS = 62  # vocabulary of the plays
# The preset's settings when we ran this. Today's differ.
PRESET = "--weight-decay 0.1 --micro-batch-size 16"
SAME = f"--precision fp32 --device cpu --checkpoint-every 0 {PRESET}"

# Budget in FLOPs: tokens per step, peak learning rate and widths. We tuned batch and rate at one
# width per budget, except for the last, whose rate continues the trend.
ISOFLOP: dict[float, tuple[int, float, tuple[int, ...]]] = {
    3e10: (256, 0.03, (8, 12, 16, 20, 24, 32)),
    1e11: (512, 0.03, (12, 16, 20, 24, 32, 48)),
    3e11: (512, 0.02, (20, 24, 32, 40, 48, 64)),
    1e12: (1024, 0.015, (24, 32, 40, 48, 64, 96)),
    3e12: (1024, 0.01, (40, 48, 64, 80, 96, 128)),
}

# Steps to a loss at a constant learning rate. The rate grows with the square root of the batch.
BATCHES = (256, 512, 1024, 2048, 4096, 8192)
RATES = (0.0025, 0.005, 0.01)  # at 1024 tokens
LOWEST = 0.00125  # also tried with the largest batch, where the lowest of RATES was the best
LOSS = 2.1  # validation loss to reach
NARROW = f"--n-embd 32 --optimizer adamw --eval-tokens 32768 {SAME}"

# Norms are averaged over the checkpoints of a window, because the ratios of single checkpoints
# scattered by a factor of ten. Windows end at these steps.
NOISE_EVERY, NOISE_STEPS = 15, (60, 120, 240, 480, 720, 840, 900, 945)
SMALL, BIG = 1, 256  # sequences in a batch


def config_of(width: int) -> GPTConfig:
    """Return the shape of the preset with another width."""
    preset = PRESETS["shakespeare-char"][1]
    return GPTConfig(preset.block_size, CHARACTERS, preset.n_layer, preset.n_head, width)


def train(flags: str, run_dir: Path) -> list[dict]:
    """Run `cs336 train shakespeare-char` with these flags, and return its metrics."""
    command = [sys.executable, "-m", "cs336_lib", "train", "shakespeare-char", *shlex.split(flags)]
    where = ["--run-dir", str(run_dir), "--resume", "--log-every", "100"]
    subprocess.run([*command, *where], check=True, stdout=subprocess.DEVNULL)
    return read_metrics(run_dir / "metrics.jsonl")


def isoflop_run(budget: float, width: int, runs: Path) -> dict:
    """Train one model for a budget."""
    batch, rate, _ = ISOFLOP[budget]
    config = config_of(width)
    per_token = accounting.train_flops_per_token(config)
    steps = round(budget / per_token / batch)
    flags = (
        f"--n-embd {width} --batch-tokens {batch} --max-steps {steps} --learning-rate {rate} "
        f"--eval-every 0 --eval-tokens 131072 {SAME}"
    )
    rows = train(flags, runs / f"isoflop_{budget:.0e}_{width}")
    counts = accounting.parameter_counts(config)
    parameters = sum(counts.values())
    return {
        "budget": budget,
        "n_layer": config.n_layer,
        "n_embd": width,
        "parameters": parameters,
        "non_embedding": parameters - counts["wte"] - counts["wpe"],
        "tokens": steps * batch,
        "flops": steps * batch * per_token,
        "val_loss": round(rows[-1]["val_loss"], 4),
        "command": f"cs336 train shakespeare-char {flags}",
    }


def batch_size_run(batch: int, rate: float, runs: Path) -> dict:
    """Train with one batch size and rate, and find the steps to the loss by interpolation."""
    steps, every = 400 + 1_300_000 // batch, max(2, 20_480 // batch)
    flags = (
        f"--batch-tokens {batch} --max-steps {steps} --learning-rate {rate:.3g} "
        f"--min-learning-rate {rate:.3g} --eval-every {every} {NARROW}"
    )
    rows = train(flags, runs / f"batch_{batch}_{rate:.3g}")
    curve = [(row["step"] + 1, row["val_loss"]) for row in rows if "val_loss" in row]
    reached = None
    for (before, high), (after, low) in itertools.pairwise(curve):
        if low <= LOSS:
            reached = round(before + (after - before) * (high - LOSS) / (high - low), 1)
            break
    return {
        "batch_tokens": batch,
        "learning_rate": rate,
        "steps": reached,
        "command": f"cs336 train shakespeare-char {flags}",
    }


def gradient_noise(runs: Path) -> list[dict]:
    """Measure squared gradient norms of small and big batches at checkpoints of one run."""
    every = f"{NOISE_EVERY} --keep-every {NOISE_EVERY}"
    flags = (
        "--batch-tokens 1024 --max-steps 960 --learning-rate 0.005 --min-learning-rate 0 "
        f"--eval-every {NOISE_EVERY} {NARROW}"
    ).replace("--checkpoint-every 0", f"--checkpoint-every {every}")
    rows = train(flags, runs / "noise")
    losses = {row["step"] + 1: row["val_loss"] for row in rows if "val_loss" in row}
    config = config_of(32)
    data, _, tokenizer = open_data("", "", "char")
    loader = Loader(data, config.block_size, tokenizer.vocab_size, seed=0)
    found, first = [], NOISE_EVERY
    for last in NOISE_STEPS:
        steps = range(first, last + 1, NOISE_EVERY)
        norms = []
        for step in steps:
            model = GPT(config)
            folder = checkpoint.path_of(runs / "noise" / "checkpoints", step)
            checkpoint.load_weights(folder / checkpoint.MODEL, model)
            norms.append(squared_norms(model, loader, step))
        small, big = np.mean(norms, axis=0)
        found.append(
            {
                "first_step": first,
                "step": last,
                "val_loss": round(float(np.mean([losses[step] for step in steps])), 4),
                "small": SMALL * config.block_size,
                "big": BIG * config.block_size,
                "small_squared_norm": float(f"{small:.5g}"),
                "big_squared_norm": float(f"{big:.5g}"),
                "command": f"cs336 train shakespeare-char {flags}",
            }
        )
        first = last + NOISE_EVERY
    return found


def squared_norms(model: GPT, loader: Loader, number: int) -> tuple[float, float]:
    """Return the mean squared gradient norm of batches of one sequence, and that of BIG together.

    `number` selects the sequences.
    """
    small = []
    total: torch.Tensor | float = 0.0
    for first in range(number * BIG, (number + 1) * BIG):
        model.zero_grad()
        model(*loader.batch(first, SMALL)).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        small.append(gradient.square().sum().item())
        total = total + gradient / BIG
    return float(np.mean(small)), total.square().sum().item()


def add(part: str, rows: list[dict]) -> None:
    """Add rows to a part of the JSON file, and sort them by budget or batch and width or rate."""
    content = read_json(TARGET) if TARGET.exists() else {}
    merged = {key(row): row for row in [*content.get(part, []), *rows]}
    content[part] = [merged[k] for k in sorted(merged)]
    parts = []
    for name in sorted(content):
        lines = ",\n".join(f"  {json.dumps(row)}" for row in content[name])
        parts.append(f' "{name}": [\n{lines}\n ]')
    write_atomic(TARGET, "{\n" + ",\n".join(parts) + "\n}\n")


def key(row: dict) -> tuple[float, float]:
    """Return what identifies a row among the others of its part."""
    first = row.get("budget") or row.get("batch_tokens") or row["step"]
    return first, row.get("n_embd") or row.get("learning_rate", 0)


def main(runs: Path, part: str) -> None:
    """Train what is missing, and write the file after every run."""
    content = read_json(TARGET) if TARGET.exists() else {}
    done = {key(row) for rows in content.values() for row in rows}
    if part == "gradient_noise":
        add(part, gradient_noise(runs))
    elif part == "batch_size":
        for batch in BATCHES:
            tried = RATES if batch < BATCHES[-1] else (LOWEST, *RATES)
            for rate in (r * (batch / 1024) ** 0.5 for r in tried):
                if (batch, rate) not in done:
                    add(part, [batch_size_run(batch, rate, runs)])
    else:
        for budget in ISOFLOP if part == "isoflop" else [float(part)]:
            for width in ISOFLOP[budget][2]:
                if (budget, width) not in done:
                    add("isoflop", [isoflop_run(budget, width, runs)])


if __name__ == "__main__":
    for part in sys.argv[2:] or ("isoflop", "batch_size", "gradient_noise"):
        main(Path(sys.argv[1]), part)
