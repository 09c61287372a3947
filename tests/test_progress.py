"""A log that cannot be written is no reason to lose the work it is about."""

import dataclasses
import errno
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cs336_lib import cli
from cs336_lib.progress import Bar
from cs336_lib.train import train


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


@pytest.mark.parametrize("log", [Unwritable, closed, lambda: None])
def test_training_goes_on_without_a_log(tiny_run, monkeypatch, log):
    monkeypatch.setattr(sys, "stderr", log())
    assert train(tiny_run).finished
