"""Train the small models of today_runs.json: python data/make_today_runs.py PART

PART is small, again, large, alone, short or crossed, in this order. Two runs go on at a time, with
one thread each. Finished runs are skipped, so you can interrupt the script and start it again.

Part small goes through the changes with five seeds. A change is kept if a paired t-test says that
it helps (or, for the simpler norms, unless it says that they hurt). The rates of GPT-2's recipe, of
QK-norm, of a head of its own and of Muon are swept with three seeds that nothing else uses. The
other changes take the rates of the recipe before them. Part again tries Muon a second time, at the
end of the path and with new seeds, because the t-test on five couldn't decide.

Part large repeats the path in a larger model at the same rates. Part alone adds Muon to GPT-2's
recipe, and part short gives the last recipe fewer steps, both in the small model. Part crossed
trains the recipes before and after QK-norm at each other's rate, in both models, because QK-norm
came together with a rate of its own.
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
from cs336_course.pages.recipe_of_today.story import CHANGES, SIZES, Rates

TARGET = Path(__file__).with_name("today_runs.json")
SEEDS, FRESH, TUNING = range(5), range(10, 15), range(100, 103)
TABLE = (1.0, 5.0, 25.0)
ADAMW = (0.002, 0.003, 0.0045, 0.0067)
MUON = (0.003, 0.0045, 0.0067, 0.01, 0.015, 0.023)

Run = tuple[str, tuple[str, ...], Rates, int, int]
"""Size, changes, rates, seed and steps."""


def train(run: Run) -> dict:
    """Train one model and return its row."""
    size, changes, rates, seed, steps = run
    torch.set_num_threads(1)
    loss, tenths = today.train(SIZES[size], changes, rates, seed, steps)
    row = {"size": size, "changes": list(changes), "adamw": rates.adamw, "muon": rates.muon}
    row |= {"table": rates.table, "seed": seed, "steps": steps, "loss": round(loss, 4)}
    return row | {"tenths": [round(x, 3) for x in tenths]}


def key(row: dict) -> Run:
    """Return the run that a row is the result of."""
    rates = today.rates_of(row)
    return row["size"], tuple(row["changes"]), rates, row["seed"], row["steps"]


class Recorder:
    """The file of the runs, which are trained when somebody asks for their losses.

    Runs at a rate that isn't their recipe's have a list of their own, so that a recipe has one
    rate in the other.
    """

    def __init__(self, pool: ProcessPoolExecutor, rows: str = "runs"):
        self.pool, self.name = pool, rows
        self.content = json.loads(TARGET.read_text()) if TARGET.exists() else {}
        self.rows = {key(row): row for row in self.content.get(rows, [])}

    def losses(self, runs: list[Run]) -> list[float]:
        """Return the losses of runs, and train those that the file doesn't have."""
        missing = [run for run in dict.fromkeys(runs) if run not in self.rows]
        for row in self.pool.map(train, missing):
            self.rows[key(row)] = row
            print({name: x for name, x in row.items() if name != "tenths"}, flush=True)
            self.write()
        return [self.rows[run]["loss"] for run in runs]

    def write(self) -> None:
        """Write all rows, one a line."""
        about = {
            "date": datetime.date.today().isoformat(),
            "command": "python data/make_today_runs.py small again large alone short crossed",
            "machine": f"a core with AVX512_BF16, PyTorch {torch.__version__}",
            "tuning_seeds": list(TUNING),
            "path": self.content.get("path", []),
        }
        lists = {name: self.content.get(name, []) for name in ("runs", "crossed")}
        lists[self.name] = list(self.rows.values())
        self.content = about | lists
        parts = [f" {json.dumps(name)}: {json.dumps(x)}" for name, x in about.items()]
        for name, found in lists.items():
            rows = ",\n".join(f"  {json.dumps(row)}" for row in found)
            parts.append(f" {json.dumps(name)}: [\n{rows}\n ]")
        temporary = TARGET.with_suffix(".tmp")
        temporary.write_text("{\n" + ",\n".join(parts) + "\n}\n")
        os.replace(temporary, TARGET)

    def best(self, size: str, changes: tuple[str, ...], tried: list[Rates]) -> Rates:
        """Return the rates with the lowest mean loss of the tuning seeds."""
        steps = SIZES[size].steps
        self.losses([(size, changes, rates, seed, steps) for rates in tried for seed in TUNING])
        found = today.sweep(self.content, size, changes)
        return min(tried, key=found.__getitem__)

    def seeds(
        self,
        size: str,
        changes: tuple[str, ...],
        rates: Rates,
        steps: int = 0,
        seeds: range = SEEDS,
    ) -> list[float]:
        """Return the losses of five seeds."""
        steps = steps or SIZES[size].steps
        return self.losses([(size, changes, rates, seed, steps) for seed in seeds])


def tidy(rate: float) -> float:
    """Round a rate to two digits."""
    return float(f"{rate:.2g}")


def swept(recorder: Recorder, size: str, changes: tuple[str, ...], rates: Rates) -> Rates:
    """Return the rates for the last of the changes, where `rates` are those of the recipe before.

    QK-norm bounds what a large rate can break, so it's also tried at larger ones. A table that
    begins at a std of 1 has a longer way to go than one that begins at 0.02.
    """
    tried = {
        (): [Rates(rate) for rate in ADAMW],
        ("qk_norm",): [Rates(tidy(rates.adamw * factor)) for factor in (1, 1.5, 2.25)],
        ("untied",): [replace(rates, table=factor) for factor in TABLE],
        ("muon",): [replace(rates, muon=rate) for rate in MUON],
    }.get(changes[-1:])
    return recorder.best(size, changes, tried) if tried else rates


def verdict(change: str, before: list[float], after: list[float]) -> bool:
    """Return whether the change stays."""
    pair = today.Pair(change, (), Rates(0.0), before, after, kept=False)
    told = "kept" if pair.passes else "dropped"
    print(f"== {change}: {pair.mean:+.4f}, p = {pair.p:.4f}, {told}", flush=True)
    return pair.passes


def small(recorder: Recorder) -> None:
    """Find the recipe, one change at a time, and write the path."""
    rates = swept(recorder, "small", (), Rates(0.0))
    before, recipe = recorder.seeds("small", (), rates), ()
    path: list[dict] = []
    for change in CHANGES:
        tried = (*recipe, change)
        found = swept(recorder, "small", tried, rates)
        after = recorder.seeds("small", tried, found)
        kept = verdict(change, before, after)
        path.append({"change": change, "base": list(recipe), "kept": kept, "first_seed": 0})
        if kept:
            recipe, rates, before = tried, found, after
        recorder.content["path"] = path
        recorder.write()


def again(recorder: Recorder) -> None:
    """Try Muon once more, on the recipe of the path and with five new seeds."""
    path = [row for row in recorder.content["path"] if row["first_seed"] == 0]
    recipe = tuple(row["change"] for row in path if row["kept"])
    (first,) = (row for row in path if row["change"] == "muon")
    found = today.rates(recorder.content, "small", (*first["base"], "muon"))
    tried = (*recipe, "muon")
    before = recorder.seeds("small", recipe, replace(found, muon=0.0), seeds=FRESH)
    after = recorder.seeds("small", tried, found, seeds=FRESH)
    kept = verdict("muon", before, after)
    recorder.seeds("small", tried, found)
    row = {"change": "muon", "base": list(recipe), "kept": kept, "first_seed": FRESH[0]}
    recorder.content["path"] = [*path, row]
    recorder.write()


def large(recorder: Recorder) -> None:
    """Repeat the path in the larger model at the same rates, with its two ends first."""
    path = [(*row["base"], row["change"]) for row in recorder.content["path"]]
    for changes in ((), today.recipe(recorder.content), *path):
        rates = today.rates(recorder.content, "small", changes)
        print(changes, recorder.seeds("large", changes, rates), flush=True)


def alone(recorder: Recorder) -> None:
    """Add Muon to GPT-2's recipe, at the rate that was found for it."""
    start = today.rates(recorder.content, "small", ())
    (last,) = (row for row in recorder.content["path"] if row["first_seed"] > 0)
    found = today.rates(recorder.content, "small", (*last["base"], "muon"))
    after = recorder.seeds("small", ("muon",), replace(start, muon=found.muon))
    verdict("muon", recorder.seeds("small", (), start), after)


def short(recorder: Recorder) -> None:
    """Train the last recipe with fewer steps."""
    changes = today.recipe(recorder.content)
    rates = today.rates(recorder.content, "small", changes)
    for part in (2, 3, 4, 6):
        print(
            part, recorder.seeds("small", changes, rates, SIZES["small"].steps // part), flush=True
        )


def crossed(recorder: Recorder) -> None:
    """Train the recipes before and after QK-norm, each at the other's rate."""
    content = recorder.content
    (step,) = (row for row in content["path"] if row["change"] == "qk_norm")
    before, after = tuple(step["base"]), (*step["base"], "qk_norm")
    for size in SIZES:
        for changes, other in ((before, after), (after, before)):
            rates = today.rates(content, "small", other)
            print(size, changes, rates, recorder.seeds(size, changes, rates), flush=True)


if __name__ == "__main__":
    parts = {"small": small, "large": large, "again": again, "alone": alone, "short": short}
    with ProcessPoolExecutor(2) as pool:
        for name in sys.argv[1:]:
            if name == "crossed":
                crossed(Recorder(pool, rows="crossed"))
            else:
                parts[name](Recorder(pool))
