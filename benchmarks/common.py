"""What the benchmarks share: own processes, ratios, and a JSON file that says where."""

import datetime
import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from cs336_lib.config import UserError
from cs336_lib.io import write_atomic
from cs336_lib.system.hardware import device_name

RESULTS = Path(__file__).parent / "results"
ROOT = RESULTS.parent.parent


def serve(make: Callable[[], Callable[[], Any]], connection: Connection) -> None:
    """Make something to call, and call it as often as one asks for it."""
    work = make()
    connection.send("ready")
    while connection.recv() == "go":
        connection.send(work())


@contextmanager
def own_process(make: Callable[[], Callable[[], Any]]) -> Iterator[Callable[[], Any]]:
    """What `make` returns, called in a process of its own, where no other's settings reach it.

    Raises:
        UserError: the process died; what it said stands above.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(make, there))
    process.start()
    there.close()  # so that its death is an end of file here

    def answer() -> Any:
        try:
            return here.recv()
        except EOFError:
            process.join()
            raise UserError(f"{process.name} died with exit code {process.exitcode}") from None

    def call() -> Any:
        here.send("go")
        return answer()

    answer()
    try:
        yield call
    finally:
        if process.is_alive():
            here.send("done")
        process.join()


def spread(values: list[float]) -> dict[str, Any]:
    """Median, lowest, highest, and the values themselves."""
    return {
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
        "rounds": values,
    }


def ratio(slow: list[float], fast: list[float]) -> float:
    """How many times as long `slow` takes: the median of what the single rounds say."""
    return statistics.median(s / f for s, f in zip(slow, fast, strict=True))


def machine(device: torch.device, packages: Iterable[str] = ()) -> dict[str, Any]:
    """Where and with what something was measured; `packages` are named besides torch."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = [line.partition(":") for line in info.read_text().splitlines()]
        cpu = next((value.strip() for key, _, value in fields if key.strip() == "model name"), cpu)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "system": platform.platform(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "device": device_name(device),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", *packages)},
    }


def commit(folder: Path = ROOT) -> str | None:
    """The commit that is checked out, with a + if files differ from it; None outside of git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def write(name: str, result: dict[str, Any]) -> Path:
    """Store a result as JSON in results/ and return where."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    write_atomic(path, json.dumps(result, indent=2) + "\n")
    return path
