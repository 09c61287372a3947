"""Start programs as torchrun does, wait for them, and kill them.

Each program runs on one CPU thread. The variables keep it off a GPU, which two processes can't
share, and off libuv, which PyTorch for Windows lacks.
"""

import os
import subprocess
import sys
from pathlib import Path

SETTINGS = {"OMP_NUM_THREADS": "1", "USE_LIBUV": "0", "CUDA_VISIBLE_DEVICES": ""}
TORCHRUN = ("-m", "torch.distributed.run")  # the command torchrun


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start Python with these arguments in a folder, and don't wait for it."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | SETTINGS | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for the end of a program, and return what it printed.

    Raises:
        ChildProcessError: If the program failed.
    """
    printed, errors = process.communicate(timeout=250)
    if process.returncode:
        raise ChildProcessError(errors[-2000:])
    return printed


def kill_after(process: subprocess.Popen[str], beginning: str) -> None:
    """Kill a program as soon as it prints a line that begins like this, as a power cut would."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            break
    process.kill()
    process.communicate()
