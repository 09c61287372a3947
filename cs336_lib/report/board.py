"""Write a race's line for the board of docs/board.md."""

from pathlib import Path
from typing import Any

from cs336_lib.config import UserError
from cs336_lib.io import inside, printable, read_json
from cs336_lib.report.compare import read_run
from cs336_lib.training.metrics import LARGEST
from cs336_lib.training.race import RESULT
from cs336_lib.training.run_folder import ENVIRONMENT

NUMBERS = ("minutes", "seconds", "bits_per_byte", "cores")
FEW = 4  # cores of a small CPU


def line(folder: Path) -> str:
    """Return the line of a race as a row of a Markdown table, or "" if the run wasn't a race.

    Raises `UserError` if race.json is malformed.
    """
    path = inside(folder, RESULT)
    if not path.exists():
        return ""
    result = read_json(path)
    for name in NUMBERS:
        value = result.get(name)
        if not (isinstance(value, (int, float)) and 0 < value < LARGEST):
            raise UserError(f"{path}: {name} is {value!r:.40}; a number expected")
    environment = read_json(inside(folder, ENVIRONMENT))
    config, load = read_run(folder).config, result.get("load")
    cells = (
        device_class(environment, result["cores"]),
        f"{result['bits_per_byte']:.3f}",
        f"{result['minutes']:g} ({result['seconds']:.0f} s)",
        f"{environment.get('device')}, {result['cores']:g} cores",
        "unknown" if load is None else f"{load}",
        f"{config.n_layer} x {config.n_embd}, {config.max_steps:,} steps",
        f"torch {environment.get('torch')}, {environment.get('precision')}",
    )
    return "| " + " | ".join(printable(str(cell)).replace("|", "/") for cell in cells) + " |"


def device_class(environment: dict[str, Any], cores: float) -> str:
    """Return the class of a race's device. A machine's class is what others compare theirs with."""
    if not str(environment.get("device", "")).startswith("CPU"):
        return "GPU"
    return f"CPU, up to {FEW} cores" if cores <= FEW else f"CPU, more than {FEW} cores"
