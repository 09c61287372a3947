"""Tables of `cs336 estimate --here`."""

from pathlib import Path
from typing import Any

import torch

from cs336_lib.bill import here
from cs336_lib.bill.here import Machine, Prediction
from cs336_lib.config import TrainConfig, from_json
from cs336_lib.formatting import digits, duration, gigabytes, table
from cs336_lib.io import read_json
from cs336_lib.system import hardware


def sampling_choice(sampling: dict[str, float]) -> str:
    """Format the fastest data type of the weights, and the times of all types."""
    best = min(sampling, key=sampling.__getitem__)
    times = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in sampling.items())
    note = "" if best == "fp32" else "; fewer bits may change the text"
    return f"{best} to sample (--weights {best}): {times} ms a token{note}"


def cells(row: Prediction) -> list[str]:
    """Format the prediction for a run as the cells of a table."""
    start, memory = [row.name, row.precision], gigabytes(row.memory)
    if row.seconds is None:
        return [*start, "too large", "", memory, ""]
    is_short = row.seconds < 10
    step = f"{digits(1000 * row.seconds)} ms" if is_short else f"{digits(row.seconds)} s"
    rate = f"{row.tokens / row.seconds:,.0f}"
    return [*start, step, rate, memory, duration(row.steps * row.seconds)]


def matmul_table(machine: Machine) -> list[str]:
    """Format the speed of GPT-2's matmuls in GFLOP/s."""
    header = ["GFLOP/s of matmuls, 1,024 tokens", "forward", "input grad", "weight grad"]
    rows = [
        [f"  {precision}  {shape}", *(f"{rate / 1e9:,.0f}" for rate in rates)]
        for precision, shapes in machine.matmuls.items()
        for shape, rates in shapes.items()
    ]
    return table([header, *rows])


def choices(machine: Machine) -> list[str]:
    """Format the fastest precision, number of threads and data type of the weights."""
    trained = next(row.precision for row in machine.rows if row.name == "gpt2-124m")
    return [
        f"precision  {trained} to train GPT-2 124M (--precision {trained})",
        f"threads    {machine.threads} of {torch.get_num_threads()} "
        f"(OMP_NUM_THREADS={machine.threads})",
        f"weights    {sampling_choice(machine.sampling)}",
    ]


def report(config: str = "") -> str:
    """Measure this machine, predict the training steps of every preset, and format the result.

    Args:
        config: JSON file with fields of `TrainConfig`, such as the config.json of a run. This run
            is predicted too.

    Raises:
        OSError: If the config can't be read.
        UserError: If the config is invalid.
    """
    device = hardware.select_device()
    own: dict[str, Any] = {config: read_json(Path(config))} if config else {}
    configs = {name: from_json(TrainConfig, content, name) for name, content in own.items()}
    machine = here.this_machine(device)
    rows = list(machine.rows)
    for name, chosen in configs.items():
        rows.append(here.predict(name, chosen, here.precisions_of(chosen, device), device))
    peaks = (f"{name} {peak / 1e9:,.0f} GFLOP/s" for name, peak in machine.peaks.items() if peak)
    header = ["run", "precision", "step", "tokens/s", "memory", "all steps"]
    total = hardware.memory(device)
    return "\n".join(
        [
            f"{hardware.cpu_model()}; {hardware.device_name(device)}; torch {torch.__version__}",
            f"peak       {', '.join(peaks) or 'unknown'}",
            f"memory     {gigabytes(total) if total else 'unknown'}, "
            f"read at {machine.bandwidth / 1e9:.1f} GB/s",
            "",
            *matmul_table(machine),
            "",
            *choices(machine),
            "",
            *table([header, *map(cells, rows)]),
            "",
            "All steps take this long without validation and checkpoints.",
        ]
    )
