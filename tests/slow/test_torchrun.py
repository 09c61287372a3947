"""Several processes learn what one does, even if one dies or computes NaN (gloo on CPUs)."""

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from forked import rows, rows_written, wait
from safetensors.torch import load_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads variables of the ranks")

STEPS = 60
LAST = f"checkpoints/step_{STEPS:08d}"
FLAGS = (
    "train shakespeare-char --n-layer 2 --n-head 2 --n-embd 32 --block-size 16 --batch-tokens 160 "
    f"--max-steps {STEPS} --warmup-steps 5 --eval-every 10 --eval-tokens 256 "
    "--checkpoint-every 5 --device cpu --precision fp32 "
    "--optimizer adamw --learning-rate 3e-3 --min-learning-rate 1e-4"
).split()
FOUR = ("--micro-batch-size", "4", "--dropout", "0.1")


@contextmanager
def running(
    run_dir: Path, processes: int, *flags: str, restarts: int = 0, program: str = ""
) -> Iterator[subprocess.Popen]:
    """`torchrun -m cs336_lib train`, or a Python program that does it; ended at the end."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += [f"--nproc_per_node={processes}", f"--max-restarts={restarts}"]
    what = [program] if program else ["-m", "cs336_lib"]
    command = [*launcher, *what, *FLAGS, *flags, "--run-dir", str(run_dir)]
    with open(f"{run_dir}.out", "w") as out, open(f"{run_dir}.err", "w") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def finish(run_dir: Path, processes: int, *flags: str) -> None:
    """Train to the end."""
    with running(run_dir, processes, *flags) as process:
        assert process.wait() == 0, complaints(run_dir)
    assert output(run_dir).count("parameters") == 1, "only rank 0 speaks"
    assert [row["step"] for row in rows(run_dir)] == list(range(STEPS))


def output(run_dir: Path) -> str:
    """What the command printed."""
    return Path(f"{run_dir}.out").read_text()


def complaints(run_dir: Path) -> list[str]:
    """What the command said on stderr, without progress bars and without what torchrun says."""
    lines = Path(f"{run_dir}.err").read_text().replace("\r", "\n").splitlines()
    return [line[line.index("cs336: ") :] for line in lines if "cs336: " in line]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Callable[[int, int, str], Path]:
    """Train with so many processes, micro-batch size and parallelism, once for all tests."""
    root = tmp_path_factory.mktemp("trained")

    @functools.cache
    def train(processes: int, micro: int, parallel: str) -> Path:
        folder = root / f"{processes}-{micro}-{parallel}"
        finish(folder, processes, "--micro-batch-size", str(micro), "--parallel", parallel)
        return folder

    return train


# Ten windows a step. Two processes have five each, in pieces of four and one. The shares of three
# differ (3, 3, 4), so that with a micro-batch of 1 two of them add a piece that counts nothing.
@pytest.mark.parametrize(
    ("processes", "micro", "parallel"), [(2, 4, "ddp"), (3, 1, "ddp"), (3, 1, "fsdp")]
)
def test_ranks_give_the_curve_of_one_process(trained, processes, micro, parallel):
    alone, several = trained(1, 10, "ddp"), trained(processes, micro, parallel)
    for one, many in zip(rows(alone), rows(several), strict=True):
        assert one["train_loss"] == pytest.approx(many["train_loss"], abs=2e-3)
        assert (one["lr"], one["tokens"]) == (many["lr"], many["tokens"])
        assert one.get("val_loss", 0) == pytest.approx(many.get("val_loss", 0), abs=2e-3)
    ours, theirs = (load_file(run / LAST / "model.safetensors") for run in (several, alone))
    # Adam turns rounding noise in near-zero gradients (key biases) into full steps: not bit-equal.
    for name, value in theirs.items():
        assert "bias" in name or torch.allclose(value, ours[name], atol=5e-3), name


@pytest.mark.parametrize(
    ("before", "processes", "parallel"),
    [((3, 1, "fsdp"), 1, "ddp"), ((1, 10, "ddp"), 2, "fsdp")],
)
def test_a_run_resumes_with_another_number_of_processes(
    trained, tmp_path, before, processes, parallel
):
    """One process, replicas and shards write the same checkpoints."""
    shutil.copytree(trained(*before), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / LAST)
    flags = ("--micro-batch-size", str(before[1]), "--parallel", parallel, "--resume")
    finish(tmp_path / "run", processes, *flags)
    alone = rows(trained(1, 10, "ddp"))
    assert rows(tmp_path / "run")[-1]["train_loss"] == pytest.approx(
        alone[-1]["train_loss"], abs=2e-3
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """A run of two processes that nothing interrupts."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(run_dir, 2, *FOUR)
    return run_dir


def check_same(run_dir: Path, other: Path) -> None:
    """The same metrics, weights and optimizer state, to the last bit."""
    assert rows(run_dir) == rows(other)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (run_dir / LAST / name).read_bytes() == (other / LAST / name).read_bytes(), name


def wait_for_rows(run_dir: Path, number: int, process: subprocess.Popen) -> None:
    """Wait until so many steps are logged."""
    wait(lambda: process.poll() is None, lambda: rows_written(run_dir) >= number)


# A rank is killed in step 18, and after the restart from step 15 another one in step 38.
DYING = """
import os, sys
sys.path.insert(0, FOLDER)
from forked import signal_at
from cs336_lib.cli import main

victims = [("1", 18), ("0", 23), ("nobody", 0)]
victim, call = victims[int(os.environ["TORCHELASTIC_RESTART_COUNT"])]
if os.environ["RANK"] == victim:
    signal_at("cs336_lib.training.loop.backward", call)
main()
"""


def test_after_a_rank_is_killed_the_run_goes_on_by_itself(undisturbed, tmp_path):
    program, run_dir = tmp_path / "dying.py", tmp_path / "run"
    program.write_text(DYING.replace("FOLDER", repr(str(Path(__file__).parent))))
    with running(run_dir, 2, *FOUR, "--resume", restarts=3, program=str(program)) as process:
        assert process.wait() == 0
    check_same(run_dir, undisturbed)
    assert output(run_dir).count("parameters") == 3, "two restarts"
    assert all("died" in line for line in complaints(run_dir)), complaints(run_dir)


def test_torchrun_told_to_stop_lets_the_ranks_save(undisturbed, tmp_path):
    run_dir = tmp_path / "run"
    for number, after in ((signal.SIGTERM, 12), (signal.SIGINT, 32)):
        with running(run_dir, 2, *FOUR, "--resume") as process:
            wait_for_rows(run_dir, after, process)
            os.killpg(process.pid, number)  # as a scheduler or a terminal's Ctrl-C does
            process.wait()
        done = len(rows(run_dir))
        assert after <= done < STEPS
        said = f"Stopped after step {done} of {STEPS} and saved; --resume continues it."
        assert said in output(run_dir)
    finish(run_dir, 2, *FOUR, "--resume")
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


@pytest.mark.parametrize("on_nan", ["skip", "stop"])
def test_all_ranks_do_the_same_about_nan_on_one(tmp_path, on_nan):
    (tmp_path / "poisoned.py").write_text(POISONED)
    run_dir, flags = tmp_path / "run", ("--micro-batch-size", "5", "--on-nan", on_nan)
    with running(run_dir, 2, *flags, program=str(tmp_path / "poisoned.py")) as process:
        assert (process.wait() == 0) == (on_nan == "skip"), complaints(run_dir)
    if on_nan == "skip":
        assert [row["step"] for row in rows(run_dir) if row.get("skipped")] == [7]
        assert f"1 of {STEPS} steps skipped for NaN or infinity: 7" in output(run_dir)
        return
    assert len(rows(run_dir)) == 7
    assert complaints(run_dir)
    for line in complaints(run_dir):
        assert "step 7: loss nan, gradient norm nan; the batch is windows 70 to 79" in line
        assert "step_00000005" in line
