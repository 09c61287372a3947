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
from cs336_lib.system.hardware import cpu_model

RUNS = [(rate, warmup, 400, 0.1, 1) for rate in (8, 4, 16, 2) for warmup in (40, 160, 10)]
RUNS += [(8, 40, 1200, 0.1, 1), (8, 40, 400, 1, 1), (8, 160, 400, 1, 1), (8, 40, 400, 0.1, 0.1)]
NAMES = "rate warmup steps lowest clip seed loss forward backward"
PAGE = "little_model short_run two_readings parts split_run"  # cells of the notebook


def main() -> None:
    """Write data/warmup_runs.json."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        prepare(DATA / "shakespeare.txt", Path(folder, "letters"), tokenizer="char")
        file = runpy.run_path("train_gpt2.py")
        names = file | {"mine": SimpleNamespace(**file), "folder": Path(folder)}
        page = given_parts.run("09_gpt2_training", *PAGE.split(), names=names)
        rows = []
        for seed in range(4):
            for rate, *others in RUNS:
                model, log = page["short_run"](rate / 1000, others[0], seed, *others[1:])
                losses = (log[-1]["val_loss"], *page["two_readings"](model))
                row = (rate / 1000, *others, seed, *(round(loss, 3) for loss in losses))
                rows.append(dict(zip(NAMES.split(), row, strict=True)))
                print(rows[-1], flush=True)
            for part in page["parts"]:  # it alone has the long warm-up
                losses = page["two_readings"](page["split_run"](part, seed))
                readings = zip(("forward", "backward"), losses, strict=True)
                rows.append({"part": part, "seed": seed} | {k: round(x, 3) for k, x in readings})
    about = f"{date.today()}, PyTorch {torch.__version__}, one core of {cpu_model()}"
    text = json.dumps({"about": about, "runs": rows}).replace("}, ", "},\n")
    (DATA / "warmup_runs.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
