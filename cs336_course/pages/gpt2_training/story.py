"""The learner's file in a process of its own, watched by its log while it runs."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cs336_lib.data.corpus import DATA

Row = dict[str, Any]


def recorded() -> tuple[str, list[Row]]:
    """Return when and how short runs were made, and their rows (data/make_warmup_runs.py)."""
    made = json.loads((DATA / "warmup_runs.json").read_text(encoding="utf-8"))
    return made["about"], made["runs"]


def watch(
    script: Path,
    arguments: Sequence[object],
    log: Path,
    on_row: Callable[[Row], object],
    every: float = 0.2,
) -> list[Row]:
    """Run a script until it ends, and return the rows of its log.

    Args:
        script: A Python file that writes a row of JSON per step.
        arguments: Its command line.
        log: The file with the rows, which needn't exist yet.
        on_row: Called with each row soon after it was written. It has the loss as `train_loss`, as
            the library's rows do.
        every: How long to wait before the log is read again [s].

    Raises:
        RuntimeError: If the script fails. The message is the end of what it printed.
    """
    command = [sys.executable, str(script), *map(str, arguments)]
    output = script.with_suffix(".txt")
    rows: list[Row] = []
    with output.open("w") as file:
        running = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            while True:
                has_ended = running.poll() is not None
                for row in new_rows(log, len(rows)):
                    rows.append(row)
                    on_row({"train_loss": row["loss"], **row})
                if has_ended:
                    break
                time.sleep(every)
        finally:
            running.kill()
            running.wait()
    if running.returncode:
        last = output.read_text(errors="replace").splitlines()[-3:]
        raise RuntimeError(f"{script.name} failed: " + "\n".join(last))
    return rows


def new_rows(log: Path, known: int) -> Iterator[Row]:
    """Yield the complete rows of a log after the first `known` ones."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    for line in text.splitlines(keepends=True)[known:]:
        if line.endswith("\n"):
            yield json.loads(line)
