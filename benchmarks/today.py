"""Race the file of today's recipe against that of GPT-2's, at equal FLOPs.

    python -m benchmarks.today [--processes 2]

Both files train on the letters of the plays, at two sizes. At each size the file of GPT-2's recipe
makes a fixed number of steps. The other makes as many as have the same FLOPs, with those of its
optimizer's matrix products, so it makes fewer. Both read the same windows in the same order, which
depends on the seed, and are scored on the same held-out windows. Peak learning rates are swept with
three seeds that the race doesn't use, and the best one of each file runs for all seeds.

Each run is one thread and is stored at once in results/today.json. If the program is interrupted,
run the same command again. It continues with the next run.
"""

import contextlib
import importlib.util
import itertools
import json
import math
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import tyro
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import common
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.prepare import prepare
from cs336_lib.io import write_atomic
from cs336_lib.system import hardware

RESULTS = common.ROOT / "benchmarks" / "results" / "today.json"
GPT2, TODAY = "train_gpt2", "train_gpt2_today"
# The second size has four times the FLOPs per token. A step reads 16 windows of 64 letters.
SIZES = {"small": (2, 2, 64, 300), "large": (2, 4, 128, 300)}  # layers, heads, width, steps
BATCH = {"block_size": 64, "batch_tokens": 1024, "micro_batch_size": 16, "eval_tokens": 50_000}
RATES = {GPT2: (4e-3, 8e-3, 16e-3, 32e-3, 64e-3), TODAY: (0.02, 0.04, 0.08, 0.16)}
SWEPT, SEEDS = (0, 100, 101), range(1, 9)  # the seeds of the sweep, and those of the race


def load(name: str) -> ModuleType:
    """Import one of the two files."""
    spec = importlib.util.spec_from_file_location(name, common.ROOT / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(name: str, size: str, rate: float, steps: int, seed: int) -> dict[str, Any]:
    """Return the settings of a run, with a tenth of the steps as GPT-2's warm-up."""
    n_layer, n_head, n_embd, _ = SIZES[size]
    found = {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, "learning_rate": rate}
    found |= {"max_steps": steps, "eval_every": steps, "seed": seed, **BATCH}
    if name == GPT2:
        found |= {"min_learning_rate": rate / 10, "warmup_steps": steps // 10}
    return found | {"bf16": False, "compile": False}


def flops_of_a_step(name: str, size: str) -> int:
    """Count the FLOPs of a step, with the matrix products of the optimizer."""
    file = load(name)
    config = file.Config(**settings(name, size, 1e-3, 10, 0), vocab_size=65)
    model, tokens = file.GPT(config), torch.zeros(16, 64, dtype=torch.long)
    optimizer = file.make_optimizer(model, config)
    math_only = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with math_only, FlopCounterMode(display=False) as counter:
        file.backward(model, [(tokens, tokens)], 1, contextlib.nullcontext())
        file.update(model, optimizer, 1e-3, 1.0)
    return counter.get_total_flops()


def train(name: str, size: str, rate: float, steps: int, seed: int, data: str) -> float:
    """Train one of the files, and return its loss on held-out text in nats per letter."""
    torch.set_num_threads(1)
    file = load(name)
    vocab_size = file.open_tokenizer(data).n_vocab
    changes = {"data": data, "vocab_size": vocab_size}
    config = file.Config(**settings(name, size, rate, steps, seed), **changes)
    tokens, held_out = (file.Tokens(data, split, config) for split in ("train", "val"))
    torch.manual_seed(seed)
    model = file.GPT(config)
    optimizer, fp32 = file.make_optimizer(model, config), contextlib.nullcontext()

    def batches(step: int) -> Any:
        return file.micro_batches(tokens, step + 97 * seed, config)

    *_, last = file.train(model, optimizer, batches, held_out, config, fp32)
    return last["val_loss"]


def p_value(differences: list[float]) -> float:
    """Return the two-sided p-value of the exact sign-flip test, 2 / 2**n at least."""
    seen = abs(sum(differences)) - 1e-12
    signs = list(itertools.product((1, -1), repeat=len(differences)))
    sums = (abs(sum(s * d for s, d in zip(one, differences, strict=True))) for one in signs)
    return sum(total >= seen for total in sums) / len(signs)


class Race:
    """The runs so far, and the data of those to come."""

    def __init__(self, folder: Path, processes: int):
        self.data, self.processes = folder / "letters", processes
        (folder / "text.txt").write_text(shakespeare())
        prepare(folder / "text.txt", self.data, "char")
        self.found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        self.found.setdefault("runs", {})

    def losses(self, jobs: list[tuple[Any, ...]]) -> list[float]:
        """Return the losses of runs, of which those that are stored don't run again."""
        keys = [" ".join(map(str, job)) for job in jobs]
        with ProcessPoolExecutor(self.processes) as pool:
            new = {
                pool.submit(train, *job, str(self.data)): key
                for key, job in zip(keys, jobs, strict=True)
                if key not in self.found["runs"]
            }
            for future in as_completed(new):
                key = new[future]
                self.found["runs"][key] = future.result()
                print(f"{key}: {future.result():.4f}", flush=True)
                self.save()
        return [self.found["runs"][key] for key in keys]

    def save(self) -> None:
        """Store what is known."""
        write_atomic(RESULTS, json.dumps(self.found, indent=1) + "\n")

    def race(self, size: str) -> dict[str, Any]:
        """Sweep the rates at a size, run all seeds, and compare."""
        flops = {name: flops_of_a_step(name, size) for name in (GPT2, TODAY)}
        steps = {GPT2: SIZES[size][3]}
        steps[TODAY] = steps[GPT2] * flops[GPT2] // flops[TODAY]
        result: dict[str, Any] = {"flops_per_step": flops, "steps": steps}
        for name, rates in RATES.items():
            jobs = [(name, size, rate, steps[name], seed) for rate in rates for seed in SWEPT]
            swept, count = self.losses(jobs), len(SWEPT)
            means = [statistics.mean(swept[at : at + count]) for at in range(0, len(jobs), count)]
            best = min(zip(means, rates, strict=True))[1]
            assert best not in (rates[0], rates[-1]), f"{name} {size}: the best rate is an end"
            runs = self.losses([(name, size, best, steps[name], seed) for seed in SEEDS])
            result[name] = {"rate": best, "losses": runs, "mean": statistics.mean(runs)}
            result[name]["tuning_loss"] = min(means)
        pairs = zip(result[GPT2]["losses"], result[TODAY]["losses"], strict=True)
        differences = [one - other for one, other in pairs]
        result["mean_difference"] = statistics.mean(differences)
        result["std_of_differences"] = statistics.stdev(differences)
        result["p"] = p_value(differences)
        return result


def main(processes: int = 2) -> None:
    """Run the race, and print its table."""
    with tempfile.TemporaryDirectory() as folder:
        race = Race(Path(folder), processes)
        about = {"device": hardware.device_name(torch.device("cpu")), "torch": torch.__version__}
        race.found |= about | {"date": date.today().isoformat(), "batch": BATCH}
        for size in SIZES:
            found = race.found[size] = race.race(size)
            race.save()
            gap = math.sqrt(len(SEEDS)) * found["mean_difference"] / found["std_of_differences"]
            print(f"{size}: {found[GPT2]['mean']:.4f} against {found[TODAY]['mean']:.4f}")
            print(f"  difference {found['mean_difference']:.4f}, p {found['p']:.4f}, t {gap:.1f}")


if __name__ == "__main__":
    tyro.cli(main)
