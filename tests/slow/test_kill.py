"""Training that is killed sixteen times ends like training that never was, to the last bit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from forked import CONTEXT

SEED = 7  # decides which moments are aimed at; what a kill hits also depends on the machine
KILLS = {"start": 3, "step": 5, "save": 8}
STEPS = 90
LAST = f"step_{STEPS:08d}"
FLAGS = (
    "train shakespeare-char --n-layer 2 --n-head 2 --n-embd 32 --block-size 16 --batch-tokens 64 "
    f"--micro-batch-size 2 --dropout 0.1 --max-steps {STEPS} --warmup-steps 5 --eval-every 10 "
    "--eval-tokens 256 --checkpoint-every 3 --device cpu --precision fp32 "
    "--optimizer adamw --learning-rate 3e-3 --min-learning-rate 1e-4 --resume --run-dir"
).split()
LIMIT = 120.0  # seconds that one life may take


def start(run_dir: Path) -> BaseProcess:
    """`cs336 train ... --resume` in a process of its own."""
    from cs336_lib.cli import main

    process = CONTEXT.Process(target=main, args=([*FLAGS, str(run_dir)],))
    process.start()
    return process


def wait(process: BaseProcess, until: Callable[[], bool]) -> None:
    """Look every half millisecond."""
    deadline = time.monotonic() + LIMIT
    while not until():
        assert process.is_alive(), "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def rows_written(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def saving(run_dir: Path, after: int) -> bool:
    """Whether a checkpoint of a step beyond `after` is being written right now."""
    found = (run_dir / "checkpoints").glob(".tmp-new-step_*")
    return any(int(path.name.removeprefix(".tmp-new-step_")) > after for path in found)


def rows(run_dir: Path) -> list[dict]:
    """The metrics without what is measured by the clock."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    timed = {"step_ms", "tokens_per_sec", "mfu"}
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]


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
    process.join(LIMIT)
    assert process.exitcode == 0
    return run_dir


def test_killed_sixteen_times(undisturbed, tmp_path):
    rng = random.Random(SEED)
    run_dir = tmp_path / "run"
    kinds = [kind for kind, number in KILLS.items() for _ in range(number)]
    rng.shuffle(kinds)
    targets = sorted(rng.randrange(1, STEPS - 10) for _ in kinds)
    hits = 0
    story = [f"seed {SEED}"]
    for kind, target in zip(kinds, targets, strict=True):
        process = start(run_dir)
        if kind == "start":
            before, end = rows_written(run_dir), time.monotonic() + rng.uniform(0, 0.5)
            while time.monotonic() < end and rows_written(run_dir) <= before:
                time.sleep(0.0005)
        elif kind == "step":
            wait(process, lambda target=target: rows_written(run_dir) > target)
            time.sleep(rng.uniform(0, 0.03))
        else:
            wait(process, lambda target=target: saving(run_dir, target))
            time.sleep(rng.choice([0.0, rng.uniform(0, 0.03)]))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, story
        left = sorted(path.name for path in (run_dir / "checkpoints").glob(".tmp-*"))
        hits += kind != "start" and bool(left)  # what a start finds is another kill's
        story.append(f"{kind} {target}: {rows_written(run_dir)} rows, left {left}")
    print("\n".join(story))
    assert hits >= 3, f"of {KILLS['save']} kills while saving, {hits} hit: {story}"

    process = start(run_dir)
    process.join(LIMIT)
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
    deadline = time.monotonic() + LIMIT
    while rows_written(run_dir) < count:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(number)
    output, error = process.communicate(timeout=LIMIT)
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
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT)
    assert rows(run_dir) == rows(undisturbed)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert contents(run_dir)[f"{LAST}/{name}"] == contents(undisturbed)[f"{LAST}/{name}"]


def can_mount() -> bool:
    """Whether a disk of any size can be had here, in a name space of our own."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs leave to mount; RLIMIT_FSIZE stands in for it")
def test_a_disk_that_is_really_full(undisturbed, tmp_path):
    """A separate file system fills up during a save; when it is made larger, the run resumes."""
    disk, out = tmp_path / "disk", tmp_path / "out"
    disk.mkdir()
    train = f'"{sys.executable}" -m cs336_lib {" ".join(FLAGS)} "{disk}/run"'
    script = f"""
        mount -t tmpfs -o size=700k tmpfs "{disk}" || exit 99
        {train}; echo "exit $?"; ls -a "{disk}/run/checkpoints"
        mount -o remount,size=64m "{disk}" || exit 99
        {train} && cp -r "{disk}/run" "{out}"
    """
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "exit 2" in done.stdout
    assert ".tmp-" not in done.stdout, "half a checkpoint does not fill the disk"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("cs336: ")]
    assert "cannot be written (No space left on device); with --resume the run continues " in line
    assert "Traceback" not in done.stderr
    assert rows(out) == rows(undisturbed)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert contents(out)[f"{LAST}/{name}"] == contents(undisturbed)[f"{LAST}/{name}"]
