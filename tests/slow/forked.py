"""Start processes as children of one that has PyTorch loaded, which saves them three seconds."""

import json
import multiprocessing
import os
import runpy
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
# The optimizers import the compiler.
CONTEXT.set_forkserver_preload(["cs336_lib.cli", "cs336_lib.training.loop", "torch._dynamo"])


def rows(run_dir: Path) -> list[dict]:
    """Return the metrics of a run without what is measured by the clock."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    timed = {"step_ms", "tokens_per_sec", "mfu"}
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]


def rows_written(run_dir: Path) -> int:
    """Return how many steps a run has logged."""
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait(is_running: Callable[[], bool], until: Callable[[], bool]) -> None:
    """Look every half millisecond for a moment in the life of a process."""
    while not until():
        assert is_running() or until(), "it ended before that moment"
        time.sleep(0.0005)


def run(module: str, arguments: Sequence[str], ranks: int, folder: Path) -> tuple[str, str]:
    """Run a module on several ranks, as `torchrun -m` does, and return their stdout and stderr.

    The outputs are collected in files in the folder.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    target = partial(run_rank, module, arguments, folder, ranks, port)
    processes = [CONTEXT.Process(target=target, args=(rank,)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    out, err = (
        "".join((folder / f"{rank}.{end}").read_text() for rank in range(ranks))
        for end in ("out", "err")
    )
    assert not any(process.exitcode for process in processes), err[-3000:]
    return out, err


def run_rank(
    module: str, arguments: Sequence[str], folder: Path, ranks: int, port: int, rank: int
) -> None:
    """Run a module in this process with the variables and the one thread that torchrun sets."""
    import torch

    for number, end in ((1, "out"), (2, "err")):
        with open(folder / f"{rank}.{end}", "w") as file:
            os.dup2(file.fileno(), number)
    if ranks > 1:
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in variables.items()}
        os.environ["MASTER_ADDR"] = "localhost"
        torch.set_num_threads(1)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
