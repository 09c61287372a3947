"""Atomic writes, locks, syncing to disk, and progress bars."""

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
from safetensors import SafetensorError

from cs336_lib import cli
from cs336_lib.io import TEMPORARY, Bar, atomic, locked, write_atomic
from cs336_lib.training.loop import train

# --- atomic writes


def test_an_error_names_its_file_once(tmp_path):
    inner = tmp_path / "missing" / "inner"
    with pytest.raises(OSError, match="inner") as error, atomic(tmp_path / "outer"):
        write_atomic(inner, "text")
    assert str(error.value) == f"{inner}: cannot be written (No such file or directory)"
    text = "Error while serializing: I/O error: File too large (os error 27)"
    with (
        pytest.raises(OSError, match=r"outer: cannot be written \(File too large\)$"),
        atomic(tmp_path / "outer"),
    ):
        raise SafetensorError(text)


def test_a_folder_replaces_what_a_kill_left_and_no_full_folder(tmp_path):
    (tmp_path / ".tmp-new-target").mkdir()
    (tmp_path / ".tmp-new-target" / "old").touch()
    with atomic(tmp_path / "target", folder=True) as temporary:
        (temporary / "new").touch()
    with (
        pytest.raises(OSError, match="target: cannot be written"),
        atomic(tmp_path / "target", folder=True),
    ):
        pass
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


# --- locks

HOLD = """
import sys
from pathlib import Path
from cs336_lib.io import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()  # until this process is killed
"""


def holder(lock: Path) -> subprocess.Popen:
    """Start a process that holds the lock."""
    command, pipe = [sys.executable, "-c", HOLD, str(lock)], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_is_refused_in_one_line_and_released_by_a_kill(tmp_path):
    lock = tmp_path / "lock"
    with holder(lock) as first:
        with (
            pytest.raises(ValueError, match="another process holds this lock; wait") as error,
            locked(lock, timeout=0.2),
        ):
            pass
        assert "\n" not in str(error.value)
        first.kill()
    assert lock.exists(), "a kill leaves the file"
    with locked(lock, timeout=60):
        assert lock.exists()
    assert not lock.exists()


def test_a_lock_file_that_cannot_be_made_is_one_line(tmp_path):
    for lock in (tmp_path / ("x" * 300), Path("/proc/lock")):
        with pytest.raises(OSError, match="cannot be written") as error, locked(lock, timeout=60):
            pass
        assert "\n" not in str(error.value)


# --- files are synced before they get their names

# --- progress bars and logs


class Unwritable(io.StringIO):
    """A log on a full disk."""

    def write(self, text: str = "") -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    flush = write


def closed() -> io.StringIO:
    """A log that is closed."""
    log = io.StringIO()
    log.close()
    return log


def test_a_log_that_cannot_be_written_ends_nothing(monkeypatch):
    for log in (Unwritable(), closed(), None):
        monkeypatch.setattr(sys, "stderr", log)
        bar = Bar(range(3), mininterval=0)
        bar.set_postfix_str("loss 1.0")
        assert list(bar) == [0, 1, 2]
        assert list(Bar(range(2), leave=False)) == [0, 1]
        with pytest.raises(SystemExit) as ended:
            cli.main(["estimate", "--mfu", "2"])
        assert ended.value.code == 2


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The bar's clock in seconds, which a test can change to let time pass."""
    now = [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


def test_a_log_gets_a_line_every_half_minute_and_a_last_one(monkeypatch, clock):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    bar = Bar(range(100), desc="training", unit="step", leave=True)
    for step in bar:
        bar.set_postfix_str(f"loss {step}", refresh=False)
        clock[0] += 7
    assert "\r" not in log.getvalue()
    lines = log.getvalue().split("\n")
    assert lines.pop() == ""
    assert len(lines) == 1 + 100 * 7 // 35
    assert re.fullmatch(r"training: +5% 5/100 \[\d\d:\d\d<.*step.*, loss 4\]", lines[0])
    assert re.fullmatch(r"training: 100% 100/100 \[.*, loss 99\]", lines[-1])


@pytest.fixture
def displays(monkeypatch) -> list[list[str]]:
    """What a notebook's cell displays: the states of each display."""
    monkeypatch.setattr("cs336_lib.io.in_notebook", lambda stream: True)
    found: list[list[str]] = []

    class Handle:
        def update(self, content, raw):
            self.states.append(content["text/html"])

    def display(content, raw, display_id):
        handle = Handle()
        handle.states = [content["text/html"]]
        found.append(handle.states)
        return handle

    monkeypatch.setattr("IPython.display.display", display)
    return found


def test_a_bar_of_a_notebook_disappears(displays, clock):
    for _ in Bar(range(3), desc="sampling"):
        clock[0] += 2
    (states,) = displays
    assert "sampling:  33%" in states[0]
    assert states[-1] == f"<pre {TEMPORARY} hidden></pre>"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_commands_work_with_a_full_or_closed_log(tiny_run):
    train(dataclasses.replace(tiny_run, max_steps=3))
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    program = f"{shlex.quote(sys.executable)} -m cs336_lib"
    flags = f"--run-dir {shlex.quote(tiny_run.run_dir)} --device cpu"
    for log in ("2>/dev/full", "2>&-"):
        done, refused = (
            subprocess.run(
                f"{program} {command} {flags} {log}",
                shell=True,
                capture_output=True,
                text=True,
                env=environment,
                check=False,
            )
            for command in ("eval", "evil")
        )
        assert done.returncode == 0
        assert "bits per byte" in done.stdout
        assert (refused.returncode, refused.stdout) == (2, "")
