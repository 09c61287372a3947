"""What two processes may not do to one folder."""

import subprocess
import sys
import threading
import time

import pytest

from cs336_lib.io import locked

HOLD = """
import sys, time
from pathlib import Path
from cs336_lib.io import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot lock a folder")


def holder(folder, seconds) -> subprocess.Popen:
    """A process that has the lock."""
    command = [sys.executable, "-c", HOLD, str(folder), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_is_refused_in_one_line(tmp_path):
    with holder(tmp_path, 60) as first:
        with (
            pytest.raises(ValueError, match="another process is writing to it; wait"),
            locked(tmp_path, patience=0.2),
        ):
            pass
        first.kill()  # and the system lets go for it
    with locked(tmp_path, patience=0.2):
        pass


def test_one_that_is_just_ending_is_waited_for(tmp_path):
    with holder(tmp_path, 0.5):
        start = time.monotonic()
        with locked(tmp_path):
            assert time.monotonic() - start < 5


@pytest.mark.parametrize("what", ["moved", "replaced"])
def test_a_folder_that_is_gone_once_it_is_ours_is_not_written_to(tmp_path, what):
    folder = tmp_path / "folder"
    folder.mkdir()
    entered, leave = threading.Event(), threading.Event()

    def first():
        with locked(folder):
            entered.set()
            leave.wait()
            folder.rename(tmp_path / "done")
            if what == "replaced":
                folder.mkdir()

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    threading.Timer(0.3, leave.set).start()
    with pytest.raises(ValueError, match="has just moved or removed it"), locked(folder):
        pass
    thread.join()
