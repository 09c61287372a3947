"""How soon a small GPT has learned a text as well as nanoGPT's CPU recipe ends up.

    python -m benchmarks.speedrun --text FILE --nanogpt PATH [--seeds 3]

nanoGPT trains as its README says for a CPU (4 layers, 128 wide, 2000 steps), unmodified; ours is
`cs336 train shakespeare-char`. Both get the same text, split and characters; both are timed as
whole processes, start-up included; both are scored by one function on the same validation windows
of context 64. Threads spin while they wait in both (OMP_WAIT_POLICY=ACTIVE), which is the faster
way on idle cores; ours would let them sleep. The last line, `ratio R`, is how many times as long
nanoGPT takes.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cs336_lib  # noqa: F401  (before torch: it decides how torch's threads wait)

# isort: split
import numpy as np
import torch
import tyro
from torch import Tensor, nn

from benchmarks import common, peers
from cs336_lib import checkpoint
from cs336_lib.config import require
from cs336_lib.data.loader import open_data
from cs336_lib.data.prepare import prepare

CONTEXT = 64
# README of nanoGPT, "I only have a macbook", which is its recipe for CPUs.
NANOGPT_FLAGS = (
    "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 "
    "--log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 "
    "--max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
).split()


@torch.no_grad()
def score(model: nn.Module, tokens: np.ndarray, logits_of: Any) -> float:
    """Mean loss in nats per character over all whole windows of the validation text."""
    count = (len(tokens) - 1) // CONTEXT
    text = torch.from_numpy(tokens[: count * CONTEXT + 1].astype(np.int64))
    x, y = text[:-1].view(count, CONTEXT), text[1:].view(count, CONTEXT)
    total = 0.0
    for inputs, targets in zip(x.split(128), y.split(128), strict=True):
        logits: Tensor = logits_of(model.eval(), inputs, targets)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        total += loss.item()
    return total / y.numel()


def timed(command: list[str], folder: Path) -> float:
    """Seconds of a whole process."""
    start = time.perf_counter()
    spinning = os.environ | {"OMP_WAIT_POLICY": "ACTIVE"}
    done = subprocess.run(
        command, cwd=folder, env=spinning, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    require(done.returncode == 0, f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return seconds


def run_nanogpt(checkout: Path, validation: np.ndarray) -> tuple[float, float]:
    """Seconds and loss of nanoGPT's recipe, in a checkout whose data are prepared."""
    seconds = timed([sys.executable, "train.py", *NANOGPT_FLAGS], checkout)
    saved = torch.load(checkout / "out-shakespeare-char" / "ckpt.pt", weights_only=True)
    module = peers.load_module("nanogpt_model", checkout / "model.py")
    model = module.GPT(module.GPTConfig(**saved["model_args"]))
    model.load_state_dict(saved["model"])
    return seconds, score(model, validation, lambda m, x, y: m(x, y)[0])


def run_ours(data: Path, run_dir: Path, seed: int, validation: np.ndarray) -> tuple[float, float]:
    """Seconds and loss of the shakespeare-char preset."""
    command = [sys.executable, "-m", "cs336_lib", "train", "shakespeare-char", "--device", "cpu"]
    command += ["--train-data", str(data), "--run-dir", str(run_dir), "--seed", str(seed)]
    seconds = timed(command, common.ROOT)
    model = checkpoint.load_model(run_dir, torch.device("cpu"))
    return seconds, score(model, validation, lambda m, x, _: m(x))


def main(text: Path, nanogpt: Path, seeds: int = 3) -> None:
    """Race nanoGPT's CPU recipe.

    Args:
        text: what to learn; "tiny shakespeare" or the text that ships, for example.
        nanogpt: a checkout of karpathy/nanoGPT.
        seeds: how many runs of each; ours has another seed each time, nanoGPT knows one only.
    """
    require(text.is_file(), f"{text}: not found")
    require((nanogpt / "train.py").is_file(), f"{nanogpt}: no checkout of karpathy/nanoGPT")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        checkout = work / "nanoGPT"
        shutil.copytree(nanogpt, checkout, ignore=shutil.ignore_patterns(".git", "out*"))
        data = checkout / "data" / "shakespeare_char"
        shutil.copyfile(text, data / "input.txt")
        timed([sys.executable, "prepare.py"], data)
        prepare(text, work / "prepared", "char")
        _, stream, _ = open_data(str(work / "prepared"), "", "char")
        validation = np.fromfile(data / "val.bin", dtype=np.uint16)
        require(
            np.array_equal(stream.read(0, len(stream)), validation),
            f"{text}: the two validation splits differ",
        )
        results: dict[str, list[tuple[float, float]]] = {"nanoGPT": [], "ours": []}
        for seed in range(seeds):
            results["nanoGPT"].append(run_nanogpt(checkout, validation))
            run_dir = work / f"run{seed}"
            results["ours"].append(run_ours(work / "prepared", run_dir, 1337 + seed, validation))
            for name, runs in results.items():
                print(f"round {seed}: {name:8} {runs[-1][0]:7.1f} s, loss {runs[-1][1]:.4f}")
    seconds = {name: [s for s, _ in runs] for name, runs in results.items()}
    losses = {name: [loss for _, loss in runs] for name, runs in results.items()}
    goal = statistics.median(losses["nanoGPT"])
    reached = statistics.median(losses["ours"]) <= goal
    ratio = common.ratio(seconds["nanoGPT"], seconds["ours"])
    for name in results:
        found = common.spread(seconds[name])
        print(
            f"{name:8} {found['median']:7.1f} s ({found['lowest']:.1f} to {found['highest']:.1f}), "
            f"loss {statistics.median(losses[name]):.4f}"
        )
    print(
        f"the goal, {goal:.4f}, is {'reached' if reached else 'NOT REACHED'} (medians of {seeds})"
    )
    result = {
        "machine": common.machine(torch.device("cpu")),
        "text": {"name": text.name, "bytes": text.stat().st_size},
        "nanogpt": common.commit(nanogpt),
        "seconds": {name: common.spread(values) for name, values in seconds.items()},
        "losses": losses,
        "reached": reached,
        "ratio": ratio,
    }
    print(common.write("speedrun", result))
    print(f"ratio {ratio:.2f}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except ValueError as error:
        sys.exit(str(error))
