"""Train the preset shakespeare-char with several seeds, and record the runs in reference_runs.json.

python data/make_reference_runs.py RUNS_DIR

`cs336 compare RUN --with reference` judges runs by these. Record them again when the preset
changes. Eight runs take about three minutes on two idle cores. Finished runs are kept.
"""

import dataclasses
import datetime
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import torch

from cs336_lib.config import PRESETS, TrainConfig
from cs336_lib.report.runs import RECORDED, curve_of, read_run, recipe_of, weight_readings
from cs336_lib.training.loop import train

SEEDS = range(8)


def record(config: TrainConfig) -> dict[str, Any]:
    """Train a run unless it is finished, and return its curves and the readings of its weights."""
    folder = Path(config.run_dir)
    train(config)
    curve = curve_of(read_run(folder).rows)
    rounded = {
        name: [None if math.isnan(value) else round(value, 4) for value in values]
        for name, values in curve.items()
    }
    weights = weight_readings(folder, config.max_steps)
    return {"seed": config.seed, "weights": weights, **rounded}


def main(runs: Path) -> None:
    """Record all seeds."""
    recipe = PRESETS["shakespeare-char"][1]
    config = dataclasses.replace(recipe, log_every=100, resume=True)
    content = {
        "date": datetime.date.today().isoformat(),
        "command": "python data/make_reference_runs.py RUNS_DIR",
        "machine": f"CPU, PyTorch {torch.__version__}",
        "licence": "MIT",
        "recipe": recipe_of(config),
        "runs": [
            record(dataclasses.replace(config, run_dir=str(runs / f"ref{seed}"), seed=seed))
            for seed in SEEDS
        ],
    }
    text = json.dumps(content, indent=1)
    text = re.sub(r"\[[^\[\]{}]+\]", lambda numbers: "".join(numbers[0].split()), text)
    RECORDED.write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
