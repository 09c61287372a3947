"""Locks and logs. tests/faults has what happens to files."""

import dataclasses
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cs336_lib import cli
from cs336_lib.io import locked
from cs336_lib.training.loop import train

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
