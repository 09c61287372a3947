"""Under torchrun, ranks that die, hang or compute NaN: the run goes on, or says why not."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from forked import rows, rows_written, wait

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")

STEPS = 60
FLAGS = (
    "train shakespeare-char --n-layer 2 --n-head 2 --n-embd 32 --block-size 16 --batch-tokens 64 "
    f"--micro-batch-size 2 --dropout 0.1 --max-steps {STEPS} --warmup-steps 5 --eval-every 10 "
    "--eval-tokens 256 --checkpoint-every 5 --device cpu --precision fp32 "
    "--optimizer adamw --learning-rate 3e-3 --min-learning-rate 1e-4"
).split()
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
TIMEOUT = 30  # seconds until a rank gives up another; a busy machine needs some for the start


@contextmanager
def running(
    run_dir: Path, *flags: str, restarts: int = 0, program: str = "", timeout: int = 600
) -> Iterator:
    """`torchrun ... -m cs336_lib train`, or of a Python program that does it; ended at the end."""
    what = [program] if program else ["-m", "cs336_lib"]
    command = [*LAUNCHER, f"--max-restarts={restarts}", *what, *FLAGS, *flags]
    environment = os.environ | {"CS336_TIMEOUT": str(timeout)}
    output, error = (run_dir.with_suffix(end) for end in (".out", ".err"))
    with open(output, "w") as out, open(error, "w") as err:
        process = subprocess.Popen(
            [*command, "--run-dir", str(run_dir)],
            stdout=out,
            stderr=err,
            env=environment,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def output(run_dir: Path) -> str:
    return run_dir.with_suffix(".out").read_text()


def complaints(run_dir: Path) -> list[str]:
    """What the command said on stderr, without progress bars and without what torchrun says."""
    lines = run_dir.with_suffix(".err").read_text().replace("\r", "\n").splitlines()
    return [line[line.index("cs336: ") :] for line in lines if "cs336: " in line]


def rank_pid(launcher: int, rank: int) -> int:
    """The process of a rank that this torchrun has started and that is alive."""
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended
        if parent == launcher and f"RANK={rank}".encode() in variables:
            return pid
    raise AssertionError(f"no rank {rank} found")


def wait_for_rows(run_dir: Path, number: int, process: subprocess.Popen) -> None:
    wait(lambda: process.poll() is None, lambda: rows_written(run_dir) >= number)


def check_same(run_dir: Path, other: Path) -> None:
    """The same metrics, weights and optimizer state, to the last bit."""
    assert [row["step"] for row in rows(run_dir)] == list(range(STEPS))
    assert rows(run_dir) == rows(other)
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = (d / "checkpoints" / f"step_{STEPS:08d}" / name for d in (run_dir, other))
        assert ours.read_bytes() == theirs.read_bytes(), name


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    with running(run_dir) as process:
        assert process.wait() == 0
    assert output(run_dir).count("validation loss") == 1, "only rank 0 speaks"
    return run_dir


def test_after_a_rank_is_killed_the_run_goes_on_by_itself(undisturbed, tmp_path):
    run_dir = tmp_path / "run"
    with running(run_dir, "--resume", restarts=3) as process:
        for number, rank in ((18, 1), (41, 0)):
            wait_for_rows(run_dir, number, process)
            ranks = [rank_pid(process.pid, each) for each in (0, 1)]
            os.kill(ranks[rank], signal.SIGKILL)
            psutil.wait_procs([psutil.Process(pid) for pid in ranks if psutil.pid_exists(pid)])
        assert process.wait() == 0
    check_same(run_dir, undisturbed)
    assert output(run_dir).count("parameters") == 3, "two restarts"
    assert all("died" in line for line in complaints(run_dir)), complaints(run_dir)


def test_a_hung_rank_is_waited_for_no_longer_than_told(undisturbed, tmp_path):
    run_dir = tmp_path / "run"
    with running(run_dir, "--resume", restarts=1, timeout=TIMEOUT) as process:
        wait_for_rows(run_dir, 18, process)
        hung = rank_pid(process.pid, 1)
        os.kill(hung, signal.SIGSTOP)
        wait(lambda: process.poll() is None, lambda: bool(complaints(run_dir)))
        os.kill(hung, signal.SIGKILL)  # torchrun would wait 30 seconds for it to end by itself
        assert process.wait() == 0
    check_same(run_dir, undisturbed)
    (line,) = complaints(run_dir)
    assert "another of the 2 processes did not answer for 30 seconds" in line
    assert "with --resume the run continues from step_000000" in line
    assert "Traceback" not in run_dir.with_suffix(".err").read_text()


def test_torchrun_told_to_stop_lets_the_ranks_save(undisturbed, tmp_path):
    run_dir = tmp_path / "run"
    for number, after in ((signal.SIGTERM, 12), (signal.SIGINT, 32)):
        with running(run_dir, "--resume") as process:
            wait_for_rows(run_dir, after, process)
            os.killpg(process.pid, number)  # as a scheduler or a terminal's Ctrl-C does
            process.wait()
        done = len(rows(run_dir))
        assert after <= done < STEPS
        said = f"Stopped after step {done} of {STEPS} and saved; --resume continues it."
        assert said in output(run_dir)
        assert (run_dir / "checkpoints" / f"step_{done:08d}" / "manifest.json").exists()
    with running(run_dir, "--resume") as process:
        assert process.wait() == 0
    check_same(run_dir, undisturbed)


# Rank 1 alone gets a loss of NaN, in its part of step 7.
POISONED = """
import math, os
from cs336_lib import model
from cs336_lib.cli import main

honest, steps = model.GPT.forward, []

def forward(self, *arguments):
    loss = honest(self, *arguments)
    if self.training and os.environ["RANK"] == "1":
        steps.append(len(steps))
        loss = loss * math.nan if steps[-1] == 7 else loss
    return loss

model.GPT.forward = forward
main()
"""


@pytest.fixture
def poisoned(tmp_path) -> str:
    (tmp_path / "poisoned.py").write_text(POISONED)
    return str(tmp_path / "poisoned.py")


@pytest.mark.parametrize("parallel", ["fsdp"])
def test_nan_on_one_rank_is_skipped_by_all_and_counted(tmp_path, poisoned, parallel):
    run_dir = tmp_path / "run"
    flags = ("--on-nan", "skip", "--parallel", parallel)
    with running(run_dir, *flags, program=poisoned) as process:
        assert process.wait() == 0, complaints(run_dir)
    assert [row["step"] for row in rows(run_dir)] == list(range(STEPS))
    assert [row["step"] for row in rows(run_dir) if row.get("skipped")] == [7]
    assert f"1 of {STEPS} steps skipped for NaN or infinity: 7" in output(run_dir)
    assert rows(run_dir)[-1]["train_loss"] < rows(run_dir)[0]["train_loss"]


EXAMPLE = {"ctx": "To be, or not to", "endings": [" be", " sky", " 1", " x"], "label": 0}


@pytest.mark.parametrize("parallel", ["fsdp"])
def test_ranks_share_an_odd_number_of_examples_and_one_sample(tmp_path, parallel):
    file, run_dir = tmp_path / "hellaswag.jsonl", tmp_path / "run"
    file.write_text("\n".join([json.dumps(EXAMPLE)] * 3))
    flags = ["--tokenizer", "gpt2", "--parallel", parallel, "--max-steps", "10"]
    flags += ["--hellaswag", str(file), "--sample", "To be", "--dropout", "0"]
    with running(run_dir, *flags) as process:
        assert process.wait() == 0, complaints(run_dir)
    (row,) = (row for row in rows(run_dir) if "val_loss" in row)
    assert row["hellaswag"] in (0, 1)
    assert row["sample"].startswith("To be")


def test_nan_on_one_rank_stops_all_and_says_where(tmp_path, poisoned):
    run_dir = tmp_path / "run"
    with running(run_dir, program=poisoned) as process:
        assert process.wait() != 0
    lines = complaints(run_dir)
    assert lines
    for line in lines:
        assert "step 7: loss nan, gradient norm nan; the batch is windows 28 to 31" in line
        assert "step_00000005" in line
    assert len(rows(run_dir)) == 7
