import dataclasses
import errno
import io
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cs336_lib import cli
from cs336_lib.distributed import (
    DEAD,
    HUNG,
    VARIABLES,
    Bar,
    World,
    process_group,
    timeout_seconds,
    world_from_environment,
)
from cs336_lib.train import train


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 9))
def test_pieces_cover_everything_once_in_step_with_each_other(count, size, largest):
    ranks = [World(rank=rank, size=size).pieces(count, largest) for rank in range(size)]
    assert len({len(pieces) for pieces in ranks}) == 1, "every rank the same number of pieces"
    seen = [first + i for pieces in ranks for first, n in pieces for i in range(n)]
    assert seen == list(range(count))
    assert all(0 <= first < count and 0 <= n <= largest for pieces in ranks for first, n in pieces)
    assert len(ranks[0]) == math.ceil(count / (size * largest)), "and no more than needed"


def test_one_process_cuts_evenly():
    assert World().pieces(8, 3) == [(0, 2), (2, 3), (5, 3)]
    assert World().pieces(8, 8) == [(0, 8)]


def test_how_long_to_wait_can_be_set(monkeypatch):
    monkeypatch.delenv("CS336_TIMEOUT", raising=False)
    assert timeout_seconds() == 600
    monkeypatch.setenv("CS336_TIMEOUT", "90")
    assert timeout_seconds() == 90
    for text in ("", "soon", "0", "-5", "nan", "inf"):
        monkeypatch.setenv("CS336_TIMEOUT", text)
        with pytest.raises(ValueError, match=r"CS336_TIMEOUT is '.*'; seconds"):
            timeout_seconds()


def test_hung_and_dead_are_told_apart():
    """In the words of gloo, NCCL and the store; tests/slow/test_ranks.py sees them in earnest."""
    for text in (
        "unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation to complete",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE",
        "wait timeout after 600000ms, keys: /default_pg/0//0//0",
    ):
        assert HUNG.search(text)
        assert not DEAD.search(text)
    for text in ("Read error [::1]:1: Connection reset by peer", "Connection closed by peer [::1]"):
        assert DEAD.search(text)
        assert not HUNG.search(text)
    assert not HUNG.search("CUDA error: the launch timed out and was terminated")


@pytest.mark.parametrize(
    ("set_to", "message"),
    [
        ({"RANK": "0"}, "RANK is set but LOCAL_RANK is not; start with torchrun, or unset RANK"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set but RANK is not; start with torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "LOCAL_RANK is not; .* unset RANK and WORLD_SIZE"),
        ({"RANK": "0", "LOCAL_RANK": "x", "WORLD_SIZE": "1"}, "LOCAL_RANK is 'x'; a number"),
        ({"RANK": "-1", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, "RANK is '-1'; a number"),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE 0; a smaller rank"),
        ({"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "RANK is 2, WORLD_SIZE 2"),
    ],
)
def test_half_of_what_torchrun_sets_is_one_line(monkeypatch, set_to, message):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert world_from_environment() == World()
    for name, value in set_to.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message) as error:
        world_from_environment()
    assert "\n" not in str(error.value)


def test_processes_need_a_place_to_meet(monkeypatch):
    for name, value in zip(VARIABLES, ("1", "0", "2"), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert world_from_environment() == World(rank=1, local_rank=0, size=2)
    with (
        pytest.raises(ValueError, match="WORLD_SIZE is 2 but MASTER_ADDR is not set"),
        process_group(torch.device("cpu")),
    ):
        pass


class Unwritable(io.StringIO):
    """A log on a full disk."""

    def write(self, text: str = "") -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    flush = write


def closed() -> io.StringIO:
    """A log that somebody has closed."""
    log = io.StringIO()
    log.close()
    return log


@pytest.mark.parametrize("log", [Unwritable, closed, lambda: None])
def test_a_log_that_cannot_be_written_ends_nothing(monkeypatch, log):
    monkeypatch.setattr(sys, "stderr", log())
    bar = Bar(range(3), mininterval=0)
    bar.set_postfix_str("loss 1.0")
    assert list(bar) == [0, 1, 2]
    assert list(Bar(range(2), leave=False)) == [0, 1]
    with pytest.raises(SystemExit) as ended:
        cli.main(["estimate", "--mfu", "2"])
    assert ended.value.code == 2


def test_a_bar_is_as_wide_as_the_terminal(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    list(Bar(range(3), desc="wide"))
    assert "wide: 100%" in log.getvalue()
    assert "█" in log.getvalue() or "#" in log.getvalue()
    log.fileno = lambda: 99
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((41, fd)))
    list(Bar(range(3), desc="narrow", postfix="x" * 99))
    line = log.getvalue().rpartition("\r")[2].rstrip("\n")
    assert line.startswith("narrow")
    assert len(line) == 40


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("log", ["2>/dev/full", "2>&-"])
def test_commands_work_with_a_full_or_closed_log(tiny_run, log):
    train(dataclasses.replace(tiny_run, max_steps=3))
    run = f"-m cs336_lib eval --run-dir {shlex.quote(tiny_run.run_dir)} --device cpu"
    command = f"{shlex.quote(sys.executable)} {run} {log}"
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0
    assert "bits per byte" in done.stdout
    done = subprocess.run(
        command.replace(" eval ", " evil "),
        shell=True,
        capture_output=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
