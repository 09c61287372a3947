"""Train notebook 09's little model at several rates and warm-ups, with four seeds.

Usage: python data/make_warmup_runs.py
"""

import json
import runpy
import tempfile
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import torch

from cs336_course.shared import given_parts
from cs336_lib.data.corpus import DATA
from cs336_lib.data.prepare import prepare

RUNS = [(rate, warmup, 400, 0.1) for rate in (8, 4, 16, 2) for warmup in (40, 160, 10)]
RUNS += [(8, 40, 1200, 0.1), (8, 160, 400, 1.0)]  # three times the steps; a constant rate
SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 48, "block_size": 16, "vocab_size": 62}
SHAPE |= {"batch_tokens": 128, "micro_batch_size": 8, "eval_tokens": 2**14}
NAMES = "rate warmup steps lowest seed loss forward backward"


def main() -> None:
    """Write data/warmup_runs.json."""
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        prepare(DATA / "shakespeare.txt", Path(folder, "letters"), tokenizer="char")
        file = runpy.run_path("train_gpt2.py")
        little = file["Config"](**SHAPE)
        unseen = file["Tokens"](Path(folder, "letters"), "val", little)
        names = file | {"mine": SimpleNamespace(**file), "folder": Path(folder), "unseen": unseen}
        names |= {"little": little, "fp32": torch.autocast("cpu", enabled=False)}
        page = given_parts.run("09_gpt2_training", "short_run", "two_readings", names=names)
        for seed in range(4):
            for rate, *others in RUNS:
                model, log = page["short_run"](rate / 1000, others[0], seed, *others[1:])
                losses = (log[-1]["val_loss"], *page["two_readings"](model))
                row = (rate / 1000, *others, seed, *(round(loss, 3) for loss in losses))
                rows.append(dict(zip(NAMES.split(), row, strict=True)))
                print(rows[-1], flush=True)
    about = f"notebook 09's short_run and two_readings; {date.today()}, PyTorch {torch.__version__}"
    text = json.dumps({"about": about, "runs": rows}).replace("}, ", "},\n")
    (DATA / "warmup_runs.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
