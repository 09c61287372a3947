"""Several processes learn what one does (gloo on CPUs; NCCL on GPUs is the same code)."""

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import forked
import pytest
import torch
from safetensors.torch import load_file

FLAGS = (
    "train shakespeare-char --n-layer 2 --n-head 2 --n-embd 32 --block-size 32 --batch-tokens 320 "
    "--optimizer adamw --learning-rate 3e-3 --max-steps 30 --warmup-steps 5 --eval-every 10 "
    "--eval-tokens 2048 --checkpoint-every 15 --device cpu --precision fp32"
).split()


def run(run_dir: Path, processes: int, *flags: str) -> tuple[list[dict], dict]:
    """Train as under torchrun; return metrics and final weights."""
    arguments = [*FLAGS, *flags, "--run-dir", str(run_dir)]
    out, _ = forked.run("cs336_lib", arguments, processes, run_dir.parent)
    assert out.count("parameters") == 1, "only rank 0 speaks"
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return rows, load_file(run_dir / "checkpoints" / "step_00000030" / "model.safetensors")


@dataclass
class Run:
    """A finished run with its metrics and final weights."""

    folder: Path
    rows: list[dict]
    weights: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Callable[[int, int, str], Run]:
    """Train with so many processes, micro-batch size and parallelism, once for all tests."""
    root = tmp_path_factory.mktemp("trained")

    @functools.cache
    def train(processes: int, micro: int, parallel: str) -> Run:
        folder = root / f"{processes}-{micro}-{parallel}"
        flags = ("--micro-batch-size", str(micro), "--parallel", parallel)
        return Run(folder, *run(folder, processes, *flags))

    return train


@pytest.fixture(scope="module")
def alone(trained) -> Run:
    return trained(1, 10, "ddp")


# Ten windows a step. Two processes have five each, in pieces of four and one. The shares of three
# differ (3, 3, 4), so that with a micro-batch of 1 two of them add a piece that counts nothing.
@pytest.mark.parametrize(
    ("processes", "micro", "parallel"), [(2, 4, "ddp"), (3, 1, "ddp"), (3, 1, "fsdp")]
)
def test_ranks_give_the_curve_of_one_process(alone, trained, processes, micro, parallel):
    several = trained(processes, micro, parallel)
    rows, weights = several.rows, several.weights
    assert [row["step"] for row in rows] == list(range(30))
    for one, many in zip(alone.rows, rows, strict=True):
        assert one["train_loss"] == pytest.approx(many["train_loss"], abs=2e-3)
        assert one["lr"] == many["lr"]
        assert one["tokens"] == many["tokens"]
        assert ("val_loss" in one) == ("val_loss" in many)
    assert alone.rows[-1]["val_loss"] == pytest.approx(rows[-1]["val_loss"], abs=2e-3)
    # Adam turns rounding noise in near-zero gradients (key biases) into full steps: not bit-equal.
    for name, value in alone.weights.items():
        if "bias" not in name:
            assert torch.allclose(value, weights[name], atol=5e-3), name


@pytest.mark.parametrize(
    ("before", "processes", "parallel"),
    [((2, 4, "ddp"), 1, "ddp"), ((3, 1, "fsdp"), 1, "ddp"), ((1, 10, "ddp"), 2, "fsdp")],
)
def test_a_run_resumes_with_another_number_of_processes(
    alone, trained, tmp_path, before, processes, parallel
):
    """One process, two replicas and three shards write the same checkpoints."""
    shutil.copytree(trained(*before).folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_00000030")
    flags = ("--micro-batch-size", str(before[1]), "--parallel", parallel, "--resume")
    rows, _ = run(tmp_path / "run", processes, *flags)
    assert [row["step"] for row in rows] == list(range(30))
    assert rows[-1]["train_loss"] == pytest.approx(alone.rows[-1]["train_loss"], abs=2e-3)


def test_sharded_blocks_can_be_compiled(alone, tmp_path):
    flags = ("--micro-batch-size", "5", "--parallel", "fsdp", "--compile", "on")
    rows, _ = run(tmp_path / "run", 2, *flags)
    assert rows[-1]["train_loss"] == pytest.approx(alone.rows[-1]["train_loss"], abs=2e-3)


def test_sharded_bf16_learns_what_autocast_learns(tmp_path):
    """Weights are gathered in bf16, gradients summed and weights kept in fp32."""
    bf16 = ("--micro-batch-size", "3", "--precision", "bf16")
    alone, _ = run(tmp_path / "alone", 1, *bf16)
    rows, weights = run(tmp_path / "two", 2, *bf16, "--parallel", "fsdp")
    assert rows[-1]["train_loss"] == pytest.approx(alone[-1]["train_loss"], abs=5e-3)
    assert {value.dtype for value in weights.values()} == {torch.float32}


THREADS = """
import sys
from pathlib import Path
from cs336_lib import cli
cli.main(sys.argv[1:])
print("alive:", *(path.read_text() for path in Path("/proc/self/task").glob("*/comm")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads from /proc")
def test_no_thread_of_gloo_outlives_the_training(tmp_path):
    """Such a thread can abort a process that has done its work."""
    (tmp_path / "threads.py").write_text(THREADS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    flags = [*FLAGS, "--max-steps", "2", "--warmup-steps", "1", "--run-dir", tmp_path / "run"]
    command = [*torchrun, tmp_path / "threads.py", *flags]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.count("alive:") == 2
    assert "pt_gloo" not in done.stdout
