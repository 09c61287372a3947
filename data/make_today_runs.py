"""Train the small models of today_runs.json: python data/make_today_runs.py PART...

PART is control or the name of a setting, such as "width 48, batch 256". Up to five runs are one
batched model, and two such models train at a time with one thread each. Finished runs are skipped,
so you can interrupt the script.

Each recipe is swept with three seeds that nothing else uses, until its best rates lie inside, and
then trained with eight seeds at these. A setting has the recipe of today, the same without each of
its changes, GPT-2's recipe, and the recipe of today with fewer and more steps, at the same
rates. Part control has Adam's directions at the length of Muon's step, at Muon's rates and at its
own best, and the recipe of today with longer scores behind its QK-norm.
"""

import datetime
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from cs336_course.pages.recipe_of_today import story as today
from cs336_course.pages.recipe_of_today.story import (
    BASE,
    CONTROL,
    SEEDS,
    SETTINGS,
    SHARP,
    TUNING,
    Rates,
)

TARGET = Path(__file__).with_name("today_runs.json")
GRID = (
    *(0.0006, 0.0009, 0.0013, 0.002, 0.003, 0.0045, 0.0067, 0.01, 0.015, 0.023),
    *(0.034, 0.051, 0.076, 0.11, 0.17, 0.25, 0.38),
)

Run = tuple[str, tuple[str, ...], Rates, int, int]
"""Setting, changes, rates, seed and steps."""


def train(runs: list[Run]) -> list[dict]:
    """Train the models of runs that differ in their rates and seeds, and return their rows."""
    setting, changes, _, _, steps = runs[0]
    torch.set_num_threads(1)
    rates, seeds = [run[2] for run in runs], [run[3] for run in runs]
    losses, tenths = today.train(SETTINGS[setting], changes, rates, seeds, steps)
    rows = []
    for run, loss, parts in zip(runs, losses, tenths, strict=True):
        row = {"setting": setting, "changes": list(changes), "adamw": run[2].adamw}
        row |= {"blocks": run[2].blocks, "seed": run[3], "steps": steps, "loss": round(loss, 4)}
        rows.append(row | {"tenths": [round(x, 2) for x in parts]})
    return rows


def key(row: dict) -> Run:
    """Return the run that a row is the result of."""
    rates = Rates(row["adamw"], row["blocks"])
    return row["setting"], tuple(row["changes"]), rates, row["seed"], row["steps"]


def moved(rates: Rates, names: str, by: int) -> Rates:
    """Return rates of which some are moved on the grid."""
    found = {name: GRID[GRID.index(getattr(rates, name)) + by] for name in names.split()}
    return replace(rates, **found)


class Recorder:
    """The file of the runs, which are trained when somebody asks for them."""

    def __init__(self, pool: ProcessPoolExecutor):
        self.pool = pool
        self.content = json.loads(TARGET.read_text()) if TARGET.exists() else {"runs": []}
        self.rows = {key(row): row for row in self.content["runs"]}

    def record(self, runs: list[Run]) -> None:
        """Train the runs of a recipe that the file doesn't have, up to five at once."""
        missing = [run for run in dict.fromkeys(runs) if run not in self.rows]
        size = max(1, min(5, (len(missing) + 1) // 2))
        parts = [missing[i : i + size] for i in range(0, len(missing), size)]
        for rows in self.pool.map(train, parts):
            self.rows |= {key(row): row for row in rows}
        if missing:
            self.write()

    def write(self) -> None:
        """Write all rows, one a line."""
        about = {
            "date": datetime.date.today().isoformat(),
            "command": "python data/make_today_runs.py "
            + " ".join(f'"{name}"' for name in SETTINGS)
            + " control",
            "machine": f"a core with AVX512_BF16, PyTorch {torch.__version__}",
        }
        self.content = about | {"runs": list(self.rows.values())}
        parts = [f" {json.dumps(name)}: {json.dumps(x)}" for name, x in about.items()]
        rows = ",\n".join(f"  {json.dumps(row)}" for row in self.content["runs"])
        temporary = TARGET.with_suffix(".tmp")
        temporary.write_text("{\n" + ",\n".join([*parts, f' "runs": [\n{rows}\n ]']) + "\n}\n")
        os.replace(temporary, TARGET)

    def climb(self, setting: str, changes: tuple[str, ...], rates: Rates, *names: str) -> Rates:
        """Sweep rates, until the best of each sweep has a worse one on both sides.

        Args:
            setting: Name of the setting.
            changes: Changes of the recipe.
            rates: Where the first sweep begins.
            names: Rates that move together, for each sweep.
        """
        steps = SETTINGS[setting].steps
        for together in names:
            while True:
                tried = [moved(rates, together, by) for by in (-1, 0, 1)]
                self.record(
                    [(setting, changes, other, seed, steps) for other in tried for seed in TUNING]
                )
                found = today.sweep(self.content, setting, changes)
                best = min(tried, key=lambda other: sum(found[other]))
                if best == rates:
                    break
                rates = best
        rates = today.best(self.content, setting, changes)
        self.seeds(setting, changes, rates)
        values = today.losses(self.content, setting, changes)
        print(setting, changes, rates, f"{sum(values) / len(values):.4f}", flush=True)
        return rates

    def seeds(self, setting: str, changes: tuple[str, ...], rates: Rates, steps: int = 0) -> None:
        """Train eight seeds."""
        steps = steps or SETTINGS[setting].steps
        self.record([(setting, changes, rates, seed, steps) for seed in SEEDS])


def control(recorder: Recorder) -> None:
    """Train with Adam's directions at the length of Muon's step, and with longer scores."""
    rates = today.best(recorder.content, BASE, today.CHANGES)
    changes = tuple(CONTROL if name == "muon" else name for name in today.CHANGES)
    recorder.seeds(BASE, changes, rates)
    recorder.climb(BASE, changes, rates, "blocks", "adamw")
    recorder.climb(BASE, (*today.CHANGES, SHARP), rates, "adamw blocks")


def leave_one_out(recorder: Recorder, name: str) -> None:
    """Train the recipe of today, also with other steps, without each change, and GPT-2's."""
    recipe = tuple(today.CHANGES)
    rates = recorder.climb(name, recipe, Rates(0.11, 0.034), "adamw blocks", "blocks", "adamw")
    for steps in today.rungs(name):
        recorder.seeds(name, recipe, rates, steps)
    recorder.climb(name, (), Rates(0.0045), "adamw")
    for change in recipe:
        if change == "muon":
            start = replace(rates, blocks=0.0067)  # AdamW, with a rate of its own for the blocks
            recorder.climb(name, today.without(change), start, "blocks", "adamw")
        else:
            recorder.climb(name, today.without(change), rates, "adamw blocks")


if __name__ == "__main__":
    with ProcessPoolExecutor(2) as processes:
        for part in sys.argv[1:]:
            if part == "control":
                control(Recorder(processes))
            else:
                leave_one_out(Recorder(processes), part)
