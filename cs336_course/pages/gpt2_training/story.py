"""The learner's file in a process of its own, watched by its log while it runs."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import tiktoken
import torch

Row = dict[str, Any]


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


def untrained(
    parts: ModuleType, letters: tiktoken.Encoding, config: Any, prompt: str, count: int
) -> str:
    """Return what a model with random weights writes after a prompt.

    Args:
        parts: Module with the learner's model and `generate`.
        letters: The tokenizer.
        config: The model's shape.
        prompt: Beginning of the text.
        count: Number of tokens to write.
    """
    torch.manual_seed(config.seed)
    model = parts.GPT(config)
    ids = torch.tensor([letters.encode_ordinary(prompt)])
    return letters.decode(parts.generate(model, ids, count)[0].tolist())
