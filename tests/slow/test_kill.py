"""Training that is killed twelve times ends like training that never was, to the last bit."""

import contextlib
import random
import signal
from pathlib import Path

import pytest
from forked import CONTEXT, rows, rows_written, signal_at

SEED = 7  # decides at which calls the process is killed
STEP, SYNC, RENAME = "cs336_lib.training.loop.backward", "os.fsync", "os.replace"
KILLS = {STEP: 4, SYNC: 5, RENAME: 3}
CALLS = {STEP: 10, SYNC: 24, RENAME: 6}  # a process is killed at one of so many
STEPS = 90
LAST = f"step_{STEPS:08d}"
FLAGS = (
    "train shakespeare-char --n-layer 2 --n-head 2 --n-embd 32 --block-size 16 --batch-tokens 64 "
    f"--micro-batch-size 2 --dropout 0.1 --max-steps {STEPS} --warmup-steps 5 --eval-every 10 "
    "--eval-tokens 256 --checkpoint-every 3 --device cpu --precision fp32 "
    "--optimizer adamw --learning-rate 3e-3 --min-learning-rate 1e-4 --resume --run-dir"
).split()


def train(run_dir: Path, *signalled: str | int) -> None:
    """Run `cs336 train ... --resume` in a process that may get a signal."""
    from cs336_lib.cli import main

    if signalled:
        signal_at(*signalled)
    with open(f"{run_dir}.out", "w") as out, contextlib.redirect_stdout(out):
        main([*FLAGS, str(run_dir)])


def exit_code(run_dir: Path, *signalled: str | int) -> int:
    """Train in a process of its own, and return how it ended."""
    process = CONTEXT.Process(target=train, args=(run_dir, *signalled))
    process.start()
    process.join()
    return process.exitcode


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
    assert exit_code(run_dir) == 0
    return run_dir


def check_same(run_dir: Path, undisturbed: Path) -> None:
    """Compare the metrics of all steps, and every byte of the checkpoints that are kept."""
    assert [row["step"] for row in rows(run_dir)] == list(range(STEPS))
    assert rows(run_dir) == rows(undisturbed)
    kept = contents(run_dir)
    assert {f"{LAST}/model.safetensors", f"{LAST}/optimizer.safetensors"} <= set(kept)
    assert kept.keys() == contents(undisturbed).keys()
    assert kept == contents(undisturbed)


def test_killed_twelve_times(undisturbed, tmp_path):
    rng, run_dir, left = random.Random(SEED), tmp_path / "run", set[str]()
    functions = [function for function, number in KILLS.items() for _ in range(number)]
    rng.shuffle(functions)
    for function in functions:
        assert exit_code(run_dir, function, rng.randrange(CALLS[function])) == -signal.SIGKILL, (
            function
        )
        left |= {path.name for path in run_dir.rglob(".tmp-new-step_*")}
    assert left, "no kill has met a checkpoint that was being written"
    assert rows_written(run_dir) < STEPS
    assert exit_code(run_dir) == 0
    check_same(run_dir, undisturbed)


def test_asked_to_stop_it_saves_first_and_says_how_to_resume(undisturbed, tmp_path):
    run_dir = tmp_path / "run"
    for number, after in ((signal.SIGTERM, 20), (signal.SIGINT, 50)):
        call = after - (rows_written(run_dir) if run_dir.exists() else 0)
        assert exit_code(run_dir, STEP, call, number) == 0
        done = after + 1  # it ends the step in which it was told
        assert rows_written(run_dir) == done
        assert (run_dir / "checkpoints" / f"step_{done:08d}" / "manifest.json").exists()
        last = Path(f"{run_dir}.out").read_text().splitlines()[-1]
        assert last == f"Stopped after step {done} of {STEPS} and saved; --resume continues it."
    assert exit_code(run_dir) == 0
    assert rows(run_dir) == rows(undisturbed)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert contents(run_dir)[f"{LAST}/{name}"] == contents(undisturbed)[f"{LAST}/{name}"]
