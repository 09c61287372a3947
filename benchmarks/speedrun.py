"""Separate what recipe and code contribute to the speed of a small training run.

    python -m benchmarks.speedrun --text FILE --nanogpt PATH [--seeds 3]

The code is that of nanoGPT or ours. The recipe is the shape, batch, optimizer and schedule of
nanoGPT's README for a CPU (4 layers, 128 wide, 2000 steps), or of our preset shakespeare-char. Each
code runs with each recipe. With its own recipe, nanoGPT's code is unmodified. With ours, it gets
our optimizer and learning rates through benchmarks.nanogpt_with_ours.

All four get the same text, split and characters. They are timed as whole processes, start-up
included, and scored by one function on the same validation windows of context 64. Threads spin
while they wait (OMP_WAIT_POLICY=ACTIVE), which is faster on idle cores. By default, ours would let
them sleep.

benchmarks.texts makes other texts.

Each run is stored at once in results/speedrun_<text>.part. If the program is interrupted, run the
same command again. It continues with the next run. The last line, `ratio R`, says how many times as
long nanoGPT with its own recipe takes as ours.
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
from functools import partial
from pathlib import Path
from typing import Any

import cs336_lib  # noqa: F401  (before torch: it decides how torch's threads wait)

# isort: split
import numpy as np
import torch
import tyro
from torch import Tensor, nn

from benchmarks import common, peers
from cs336_lib.config import PRESETS, UserError
from cs336_lib.data.loader import open_data
from cs336_lib.data.prepare import prepare
from cs336_lib.io import write_atomic
from cs336_lib.training import checkpoint

CONTEXT = 64
# README of nanoGPT, "I only have a macbook", which is its recipe for CPUs.
NANOGPT_FLAGS = (
    "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 "
    "--log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 "
    "--max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
).split()
# The same recipe as flags of ours, with what nanoGPT's config file and train.py add to it. nanoGPT
# evaluates 20 batches of both splits, which ours does on validation text only.
SAME_FLAGS = (
    "--n-layer 4 --n-head 4 --n-embd 128 --no-bias --batch-tokens 768 --max-steps 2000 "
    "--optimizer adamw --learning-rate 1e-3 --min-learning-rate 1e-4 --schedule cosine "
    "--warmup-steps 100 --beta2 0.99 --weight-decay 0.1 --eval-every 250 --eval-tokens 30720 "
    "--checkpoint-every 250"
).split()

Run = tuple[float, float]  # seconds and loss


def our_recipe() -> list[str]:
    """Return the preset as flags of nanoGPT's train.py, without the optimizer's settings."""
    config = PRESETS["shakespeare-char"][1]
    shape = ("n_layer", "n_head", "n_embd", "block_size", "dropout", "bias", "grad_clip")
    settings = {name: getattr(config, name) for name in shape} | {
        "batch_size": config.batch_windows,
        "max_iters": config.max_steps,
        "eval_interval": config.eval_every,
        "eval_iters": config.eval_tokens // config.batch_tokens // 2,  # of both splits
        "always_save_checkpoint": True,
    }
    return [f"--{name}={value}" for name, value in settings.items()]


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


def run_nanogpt(recipe: str, checkout: Path, validation: np.ndarray, seed: int) -> Run:
    """Seconds and loss of nanoGPT's code, in a checkout whose data are prepared."""
    program, flags = ["train.py"], NANOGPT_FLAGS
    if recipe == "ours":
        program = ["-c", f"from benchmarks import nanogpt_with_ours as n; n.train({seed})"]
        flags = [*NANOGPT_FLAGS, *our_recipe()]
    saved_as = checkout / "out-shakespeare-char" / "ckpt.pt"
    saved_as.unlink(missing_ok=True)
    seconds = timed([sys.executable, *program, *flags], checkout)
    saved = torch.load(saved_as, weights_only=True)
    module = peers.load_module("nanogpt_model", checkout / "model.py")
    model = module.GPT(module.GPTConfig(**saved["model_args"]))
    model.load_state_dict(saved["model"])
    return seconds, score(model, validation, lambda m, x, y: m(x, y)[0])


def run_ours(recipe: str, work: Path, validation: np.ndarray, seed: int) -> Run:
    """Seconds and loss of our code."""
    run_dir = work / f"{recipe}{seed}"
    command = [sys.executable, "-m", "cs336_lib", "train", "shakespeare-char", "--device", "cpu"]
    command += ["--train-data", str(work / "prepared"), "--run-dir", str(run_dir)]
    command += ["--seed", str(seed), *(SAME_FLAGS if recipe == "nanogpt" else [])]
    seconds = timed(command, common.ROOT)
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


def measure(text: Path, nanogpt: Path, seeds: int, about: dict[str, Any]) -> dict[str, list[Run]]:
    """Run all four in turns, and store each run at once.

    Runs that an interrupted call has stored for the same text and checkout aren't repeated.
    """
    part = common.RESULTS / f"speedrun_{text.stem}.part"
    stored = json.loads(part.read_text(encoding="utf-8")) if part.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        validation = prepared(text, nanogpt, work)
        contenders = {
            "nanoGPT": partial(run_nanogpt, "nanogpt", work / "nanoGPT", validation),
            "nanoGPT, our recipe": partial(run_nanogpt, "ours", work / "nanoGPT", validation),
            "ours, nanoGPT's recipe": partial(run_ours, "nanogpt", work, validation),
            "ours": partial(run_ours, "ours", work, validation),
        }
        runs: dict[str, list[Run]] = {name: [] for name in contenders}
        if stored.get("about") == about:
            runs = stored["runs"]
        for seed in range(seeds):
            for name, run in contenders.items():
                if len(runs[name]) == seed:
                    runs[name].append(run(1337 + seed))
                    common.RESULTS.mkdir(exist_ok=True)
                    write_atomic(part, json.dumps({"about": about, "runs": runs}))
                    seconds, loss = runs[name][-1]
                    print(f"round {seed}: {name:22} {seconds:7.1f} s, loss {loss:.4f}", flush=True)
    return runs


def main(text: Path, nanogpt: Path, seeds: int = 3, source: str = "") -> None:
    """Race nanoGPT's CPU recipe.

    Args:
        text: what to learn; "tiny shakespeare" or the text that ships, for example.
        nanogpt: a checkout of karpathy/nanoGPT.
        seeds: how many runs of each; nanoGPT with its own recipe has the same seed each time.
        source: origin and licence of the text, which the result names.
    """
    if not text.is_file():
        raise UserError(f"{text}: not found")
    if not (nanogpt / "train.py").is_file():
        raise UserError(f"{nanogpt}: no checkout of karpathy/nanoGPT")
    content = text.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    named = {"name": text.name, "bytes": len(content), "sha256": digest, "source": source}
    about = {"text": named, "nanogpt": common.commit(nanogpt)}
    runs = measure(text, nanogpt, seeds, about)
    seconds = {name: [s for s, _ in found] for name, found in runs.items()}
    losses = {name: [loss for _, loss in found] for name, found in runs.items()}
    goal = statistics.median(losses["nanoGPT"])
    reached = statistics.median(losses["ours"]) <= goal
    ratio = common.ratio(seconds["nanoGPT"], seconds["ours"])
    for name in runs:
        found = common.spread(seconds[name])
        print(
            f"{name:22} {found['median']:7.1f} s ({found['lowest']:.1f} to {found['highest']:.1f}),"
            f" loss {statistics.median(losses[name]):.4f}"
        )
    print(
        f"the goal, {goal:.4f}, is {'reached' if reached else 'NOT REACHED'} (medians of {seeds})"
    )
    result = {
        "machine": common.machine(torch.device("cpu")),
        **about,
        "seconds": {name: common.spread(values) for name, values in seconds.items()},
        "losses": losses,
        "reached": reached,
        "ratio": ratio,
    }
    path = common.write(f"speedrun_{text.stem}", result)
    path.with_suffix(".part").unlink()
    print(path)
    print(f"ratio {ratio:.2f}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except UserError as error:
        sys.exit(str(error))
