"""The notebooks' stored outputs also hold on the other kind of CPU, with bf16 or without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cs336_lib.system import hardware

ROOT = Path(__file__).parents[2]
HAS_BF16 = bool(hardware.cpu_flags() & hardware.BF16_FLAGS)
# It trains with precision "auto".
NOTEBOOKS = ["06_training_loop"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_stored_outputs_hold_on_the_other_kind_of_cpu(name):
    command = [sys.executable, "-m", "pytest", "--nbval", f"notebooks/{name}.ipynb", "-q"]
    environment = os.environ | {"CS336_CPU_BF16": str(int(not HAS_BF16))}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
