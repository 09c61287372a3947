"""Race the preset shakespeare-char against nanoGPT's CPU recipe on every text of benchmarks.texts.

    python -m benchmarks.texts FOLDER
    python -m benchmarks.speedrun FOLDER --nanogpt PATH [--seeds 3] [--only NAME ...]

On each text, the preset runs with the first seed, then nanoGPT, whose seed is fixed, and then the
preset with the other seeds. nanoGPT's recipe is that of its README for a CPU (4 layers, 128 wide,
2000 steps), and its code is unmodified. Both get the same text, split and characters. They are
timed as whole processes, start-up included, and scored by one function on the same validation
windows of context 64. Threads spin while they wait (OMP_WAIT_POLICY=ACTIVE), which is faster on
idle cores. By default, ours would let them sleep. Each text is stored at once in
results/texts.json.
"""

import hashlib
import json
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
from benchmarks.texts import TEXTS
from cs336_lib.config import UserError
from cs336_lib.data.loader import open_data
from cs336_lib.data.prepare import prepare
from cs336_lib.training import checkpoint

CONTEXT = 64
RESULT = "texts"
# README of nanoGPT, "I only have a macbook", which is its recipe for CPUs.
NANOGPT_FLAGS = (
    "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 "
    "--log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 "
    "--max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
).split()
Run = tuple[float, float]  # seconds and loss


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
    variables = os.environ | {"OMP_WAIT_POLICY": "ACTIVE", "PYTHONPATH": str(common.ROOT)}
    variables.pop("GOMP_SPINCOUNT", None)  # cs336_lib's limit for this process, which waits
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise UserError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return seconds


def run_nanogpt(checkout: Path, validation: np.ndarray) -> Run:
    """Seconds and loss of nanoGPT's recipe, in a checkout whose data are prepared."""
    seconds = timed([sys.executable, "train.py", *NANOGPT_FLAGS], checkout)
    saved = torch.load(checkout / "out-shakespeare-char" / "ckpt.pt", weights_only=True)
    module = peers.load_module("nanogpt_model", checkout / "model.py")
    model = module.GPT(module.GPTConfig(**saved["model_args"]))
    model.load_state_dict(saved["model"])
    return seconds, score(model, validation, lambda m, x, y: m(x, y)[0])


def run_ours(work: Path, validation: np.ndarray, seed: int) -> Run:
    """Seconds and loss of the preset."""
    run_dir = work / f"seed{seed}"
    command = [sys.executable, "-m", "cs336_lib", "train", "shakespeare-char", "--device", "cpu"]
    command += ["--train-data", str(work / "prepared"), "--run-dir", str(run_dir)]
    seconds = timed([*command, "--seed", str(seed)], common.ROOT)
    model = checkpoint.load_model(run_dir, torch.device("cpu"))
    return seconds, score(model, validation, lambda m, x, _: m(x))


def prepared(text: Path, nanogpt: Path, work: Path) -> np.ndarray:
    """Prepare the text for both in the folder `work`, and return the validation tokens."""
    checkout = work / "nanoGPT"
    shutil.copytree(nanogpt, checkout, ignore=shutil.ignore_patterns(".git", "out*"))
    data = checkout / "data" / "shakespeare_char"
    shutil.copyfile(text, data / "input.txt")
    timed([sys.executable, "prepare.py"], data)
    prepare(text, work / "prepared", "char")
    _, stream, _ = open_data(str(work / "prepared"), "", "char")
    validation = np.fromfile(data / "val.bin", dtype=np.uint16)
    if not np.array_equal(stream.read(0, len(stream)), validation):
        raise UserError(f"{text}: the two validation splits differ")
    return validation


def race(text: Path, nanogpt: Path, seeds: int) -> dict[str, Any]:
    """Run both on a text, and return what was found."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        validation = prepared(text, nanogpt, work)
        ours = [run_ours(work, validation, 1337)]
        theirs = run_nanogpt(work / "nanoGPT", validation)
        ours += [run_ours(work, validation, 1337 + seed) for seed in range(1, seeds)]
    seconds, losses = zip(*ours, strict=True)
    content = text.read_bytes()
    return {
        "bytes": len(content),
        "length": len(content.decode()),
        "characters": len(set(content.decode())),
        "sha256": hashlib.sha256(content).hexdigest(),
        "nanogpt_seconds": theirs[0],
        "nanogpt_loss": theirs[1],
        "seconds": common.spread(list(seconds)),
        "losses": list(losses),
        "ratio": theirs[0] / statistics.median(seconds),
        "reached": statistics.median(losses) <= theirs[1],
        "machine": common.machine(torch.device("cpu")),
        "nanogpt": common.commit(nanogpt),
    }


def main(
    folder: Path, /, nanogpt: Path, seeds: int = 3, only: tuple[str, ...] = tuple(TEXTS)
) -> None:
    """Race nanoGPT's CPU recipe on many texts.

    Args:
        folder: texts that benchmarks.texts made.
        nanogpt: a checkout of karpathy/nanoGPT.
        seeds: how many runs of the preset on each text.
        only: names of texts (default: all).
    """
    path = common.RESULTS / f"{RESULT}.json"
    for name in only:
        text = folder / f"{name}.txt"
        if not text.is_file():
            raise UserError(f"{text}: not found; make it with benchmarks.texts")
        found = race(text, nanogpt, seeds)
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        common.write(RESULT, stored | {name: found})
        print(
            f"{name:16} {found['seconds']['median']:5.1f} s and {found['ratio']:.2f} x, loss "
            f"{statistics.median(found['losses']):.4f} (nanoGPT {found['nanogpt_loss']:.4f})",
            flush=True,
        )


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except UserError as error:
        sys.exit(str(error))
