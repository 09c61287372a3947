"""Train small GPTs with several schedules, with and without clipping, into recipe_runs.json.

It takes about five minutes on one core:

    python data/make_recipe_runs.py
"""

import datetime
import json
import math
from pathlib import Path

import torch

from cs336_course.pages.gpt2_training import recipe_runs

STEPS, WARMUP, SEEDS = 1600, 40, range(3)
PEAKS = (0.004, 0.008, 0.016)
CLIPPED = "half a cosine, to a tenth"


def main() -> None:
    """Write a row per run."""
    torch.set_num_threads(1)
    rows = []
    for name, rates in recipe_runs.schedules(STEPS, WARMUP).items():
        for peak in PEAKS:
            for seed in SEEDS:
                for limit in (1.0, math.inf) if name == CLIPPED else (1.0,):
                    loss, clipped = recipe_runs.held_out_loss(rates, seed, STEPS, peak, limit)
                    row = {"schedule": name, "peak": peak, "seed": seed, "clipping": limit == 1.0}
                    rows.append(row | {"loss": round(loss, 4), "clipped": round(clipped, 4)})
                    print(rows[-1], flush=True)
    made = {
        "date": datetime.date.today().isoformat(),
        "command": "python data/make_recipe_runs.py",
        "machine": f"one core, PyTorch {torch.__version__}",
        "steps": STEPS,
        "runs": rows,
    }
    path = Path(__file__).with_name("recipe_runs.json")
    path.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
