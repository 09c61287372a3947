"""Race the preset shakespeare-char against nanoGPT's CPU recipe on every text of benchmarks.texts.

    python -m benchmarks.texts FOLDER
    python -m benchmarks.speedrun_texts FOLDER --nanogpt PATH [--seeds 3] [--only NAME ...]

On each text, the preset runs with the first seed, then nanoGPT, whose seed is fixed, and then the
preset with the other seeds. Everything else is as in benchmarks.speedrun. Each text is stored at
once in results/texts.json.
"""

import hashlib
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import cs336_lib  # noqa: F401  (before torch: it decides how torch's threads wait)

# isort: split
import torch
import tyro

from benchmarks import common
from benchmarks.speedrun import prepared, run_nanogpt, run_ours
from benchmarks.texts import TEXTS
from cs336_lib.config import UserError

RESULT = "texts"


def race(text: Path, nanogpt: Path, seeds: int) -> dict[str, Any]:
    """Run both on a text, and return what was found."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        validation = prepared(text, nanogpt, work)
        ours = [run_ours("ours", work, validation, 1337)]
        theirs = run_nanogpt("nanogpt", work / "nanoGPT", validation, 1337)
        ours += [run_ours("ours", work, validation, 1337 + seed) for seed in range(1, seeds)]
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
