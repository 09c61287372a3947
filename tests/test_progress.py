"""A log that cannot be written is no reason to lose the work it is about."""

import dataclasses
import errno
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cs336_lib import cli
from cs336_lib import io as io_module
from cs336_lib.io import Bar
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
    log.isatty = lambda: True
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


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The seconds that a log's bar sees; change the number to let time pass."""
    now = [100.0]
    monkeypatch.setattr(io_module, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_every_half_minute_and_a_last_one(monkeypatch, clock):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    bar = Bar(range(100), desc="training", unit="step", mininterval=0, miniters=1)
    for step in bar:
        bar.set_postfix_str(f"loss {step}")
        clock[0] += 7
    assert "\r" not in log.getvalue()
    lines = log.getvalue().split("\n")
    assert lines.pop() == ""
    assert len(lines) == 1 + 100 * 7 // 35
    assert re.fullmatch(r"training: 5% 5/100 \[\d\d:\d\d<.*step.*, loss 4\]", lines[0])
    assert re.fullmatch(r"training: 100% 100/100 \[.*, loss 99\]", lines[-1])


def test_a_log_gets_no_last_line_of_what_was_short_or_leaves_nothing(monkeypatch, clock):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    list(Bar(range(3), delay=1))
    list(Bar(range(3), leave=False))
    list(Bar([], desc="nothing"))
    list(Bar(range(3), disable=True))
    assert log.getvalue() == ""
    bar = Bar(desc="without a total", unit="tok", unit_scale=True, delay=1)
    clock[0] += 2
    bar.update(5_000_000)
    bar.close()
    bar.close()
    assert re.fullmatch(r"without a total: 5\.00Mtok \[.*\]\n", log.getvalue())


def test_a_notebook_has_a_bar(monkeypatch):
    """The kernel's stream is no terminal, but it draws over a line as one does."""
    iostream = pytest.importorskip("ipykernel.iostream")
    stream = iostream.OutStream.__new__(iostream.OutStream)
    stream._isatty = False
    drawn = io.StringIO()
    monkeypatch.setattr(iostream.OutStream, "write", lambda self, text: drawn.write(text))
    monkeypatch.setattr(iostream.OutStream, "flush", lambda self: None)
    monkeypatch.setattr(iostream.OutStream, "__del__", lambda self: None)
    monkeypatch.setattr(sys, "stderr", stream)
    list(Bar(range(3), desc="in a cell"))
    assert "\rin a cell: 100%|██████████| 3/3" in drawn.getvalue()


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
