"""How well `cs336 estimate --here` predicts the training steps of this machine.

    python -m benchmarks.here

Eleven configs are predicted from models with 1 and 4 blocks, and then trained for some steps. They
are presets, wide and narrow models, long and short sequences, fp32 and bf16, accumulation, AdamW
and Muon. Predictions and steps take turns. The shortest of each are compared, because other
programs only add time; all are stored. The last line, `ratio R`, is the largest factor between the
two.
"""

import dataclasses
import sys
import tempfile
import time
from contextlib import ExitStack

import cs336_lib  # noqa: F401  (before torch: it decides how torch's threads wait)

# isort: split
import tyro

from benchmarks import common
from cs336_lib.bill import here
from cs336_lib.config import PRESETS, TrainConfig, UserError
from cs336_lib.system import hardware
from cs336_lib.training.job import open_run
from cs336_lib.training.loop import train_step


def own(
    layers: int, heads: int, width: int, micro: int, seq: int, *, pieces: int = 1, **more: str
) -> TrainConfig:
    """A config of this shape, with `pieces` micro-batches of `micro` sequences in a step."""
    return TrainConfig(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        micro_batch_size=micro,
        block_size=seq,
        batch_tokens=pieces * micro * seq,
        **more,  # type: ignore[arg-type]
    )


CONFIGS = {
    "shakespeare-char": PRESETS["shakespeare-char"][1],
    "shakespeare": PRESETS["shakespeare"][1],
    "124M, 4 x 256": own(12, 12, 768, 4, 256),
    "124M, 1 x 256, fp32": own(12, 12, 768, 1, 256, precision="fp32"),
    "124M, 3 x 1 x 512": own(12, 12, 768, 1, 512, pieces=3),
    "355M, 1 x 256": own(24, 16, 1024, 1, 256),
    "24 blocks, 128 wide": own(24, 4, 128, 4, 256),
    "4 blocks, 1536 wide": own(4, 12, 1536, 2, 256),
    "2048 tokens": own(6, 6, 384, 1, 2048),
    "3 x 8 x 32 tokens, fp32": own(8, 8, 512, 8, 32, pieces=3, precision="fp32"),
    "Muon": own(8, 6, 384, 4, 256, optimizer="muon"),
}


def measured_steps(config: TrainConfig, seconds: float) -> list[float]:
    """Seconds of the steps of `cs336 train`, at least three.

    Three steps of warm-up are left out, because the heap still grows in them.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        quick = dataclasses.replace(config, run_dir=f"{folder}/run", warmup_steps=1)
        run = stack.enter_context(open_run(quick))
        batches, times = run.batches(), []
        while len(times) < 6 or sum(times[3:]) < seconds:
            begin = time.perf_counter()
            measured = train_step(run.job, batches, len(times))
            measured["train_loss"].item()
            times.append(time.perf_counter() - begin)
    return times[3:]


def main(seconds: float = 3.0, rounds: int = 2) -> None:
    """Compare predicted and measured steps.

    Args:
        seconds: how long each config is trained in a round.
        rounds: how often each config is predicted and trained.
    """
    device = hardware.select_device("cpu")
    print(f"{hardware.device_name(device)}; a step in ms")
    rows, worst = {}, 1.0
    for name, config in CONFIGS.items():
        predictions, steps = [], []
        for _ in range(rounds):
            predictions.append(here.step_seconds(config, here.vocabulary(config), device))
            steps += measured_steps(config, seconds)
        predicted, measured = common.spread(predictions), common.spread(steps)
        factor = predicted["lowest"] / measured["lowest"]
        worst = max(worst, factor, 1 / factor)
        rows[name] = {"predicted": predicted, "measured": measured, "factor": factor}
        print(
            f"{name:24} predicted {1000 * predicted['lowest']:8.1f}  measured "
            f"{1000 * measured['lowest']:8.1f} (median {1000 * measured['median']:.1f})  "
            f"{factor - 1:+.0%}",
            flush=True,
        )
    within = sum(abs(row["factor"] - 1) <= 0.15 for row in rows.values())
    print(f"{within} of {len(rows)} within 15%")
    result = {"machine": common.machine(device), "seconds": rows, "within_15_percent": within}
    print(common.write("here", result))
    print(f"ratio {worst:.2f}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except UserError as error:
        sys.exit(str(error))
