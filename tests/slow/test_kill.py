"""Training that is killed twelve times ends like training that never was, to the last bit."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from forked import CONTEXT, rows, rows_written, wait

SEED = 7  # decides which moments are aimed at; what a kill hits also depends on the machine
KILLS = {"step": 5, "save": 7}
STEPS = 90
LAST = f"step_{STEPS:08d}"
FLAGS = (
    "train shakespeare-char --n-layer 2 --n-head 2 --n-embd 32 --block-size 16 --batch-tokens 64 "
    f"--micro-batch-size 2 --dropout 0.1 --max-steps {STEPS} --warmup-steps 5 --eval-every 10 "
    "--eval-tokens 256 --checkpoint-every 3 --device cpu --precision fp32 "
    "--optimizer adamw --learning-rate 3e-3 --min-learning-rate 1e-4 --resume --run-dir"
).split()


def start(run_dir: Path) -> BaseProcess:
    """`cs336 train ... --resume` in a process of its own."""
    from cs336_lib.cli import main

    process = CONTEXT.Process(target=main, args=([*FLAGS, str(run_dir)],))
    process.start()
    return process


def saving(run_dir: Path, after: int) -> bool:
    """Whether a checkpoint of a step beyond `after` is being written right now."""
    found = (run_dir / "checkpoints").glob(".tmp-new-step_*")
    return any(int(path.name.removeprefix(".tmp-new-step_")) > after for path in found)


def stop_while(process: BaseProcess, is_so: Callable[[], bool]) -> None:
    """Stop a process at a moment at which something is so."""
    while True:
        wait(process.is_alive, is_so)
        os.kill(process.pid, signal.SIGSTOP)
        if is_so():
            return
        os.kill(process.pid, signal.SIGCONT)


def contents(run_dir: Path) -> dict[str, bytes]:
    """Every byte of every checkpoint: weights, optimizer state, and what lies about."""
    folder = run_dir / "checkpoints"
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    process = start(run_dir)
    process.join()
    assert process.exitcode == 0
    return run_dir


def test_killed_twelve_times(undisturbed, tmp_path):
    rng = random.Random(SEED)
    run_dir = tmp_path / "run"
    kinds = [kind for kind, number in KILLS.items() for _ in range(number)]
    rng.shuffle(kinds)
    targets = sorted(rng.randrange(1, STEPS - 10) for _ in kinds)
    story = [f"seed {SEED}"]
    for kind, target in zip(kinds, targets, strict=True):
        process = start(run_dir)
        if kind == "step":
            wait(process.is_alive, lambda target=target: rows_written(run_dir) > target)
        else:
            stop_while(process, lambda target=target: saving(run_dir, target))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, story
        left = sorted(path.name for path in (run_dir / "checkpoints").glob(".tmp-*"))
        assert left or kind != "save", story
        story.append(f"{kind} {target}: {rows_written(run_dir)} rows, left {left}")

    process = start(run_dir)
    process.join()
    assert process.exitcode == 0, story
    assert [row["step"] for row in rows(run_dir)] == list(range(STEPS)), story
    assert rows(run_dir) == rows(undisturbed), story
    kept = contents(run_dir)
    assert {f"{LAST}/model.safetensors", f"{LAST}/optimizer.safetensors"} <= set(kept)
    assert kept.keys() == contents(undisturbed).keys(), story
    assert kept == contents(undisturbed), story


def stop_after(count: int, number: int, command: list[str], run_dir: Path) -> None:
    """Run the command and send it a signal after so many rows; it must save and say so."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait(lambda: process.poll() is None, lambda: rows_written(run_dir) >= count)
    process.send_signal(number)
    output, error = process.communicate()
    assert process.returncode == 0, error
    done = rows_written(run_dir)
    assert count <= done < STEPS
    assert (run_dir / "checkpoints" / f"step_{done:08d}" / "manifest.json").exists()
    last = output.splitlines()[-1]
    assert last == f"Stopped after step {done} of {STEPS} and saved; --resume continues it."


def test_asked_to_stop_it_saves_first_and_says_how_to_resume(undisturbed, tmp_path):
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "cs336_lib", *FLAGS, str(run_dir)]
    stop_after(20, signal.SIGTERM, command, run_dir)
    stop_after(50, signal.SIGINT, command, run_dir)
    subprocess.run(command, check=True, capture_output=True)
    assert rows(run_dir) == rows(undisturbed)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert contents(run_dir)[f"{LAST}/{name}"] == contents(undisturbed)[f"{LAST}/{name}"]
