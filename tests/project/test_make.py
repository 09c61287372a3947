"""The Makefile's promises that can be checked in seconds; tests/slow opens the course for real."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run our Makefile in an empty folder, without uv if the arguments don't name one."""
    command = ["make", "-f", str(ROOT / "Makefile"), "UV=", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 15, 0), (2, 7, 18)])
def test_another_python_gets_one_clear_line(tmp_path, version):
    fake = tmp_path / "python"
    fake.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = {version}; '
        'exec(sys.argv[1])" "$2"\n'
    )
    fake.chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    done = make(tmp_path, "lab", f"PYTHON={fake}")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1
    assert f"needs Python 3.11 to 3.14, and {fake} is {version[0]}.{version[1]}" in said[0]
    assert not (tmp_path / ".venv").exists()


FAKE = """#!/bin/sh
# Makes an environment without packages; pip says what it was told; all else is done by Python.
if [ "$2" = venv ]; then
    for folder; do :; done
    [ "$3" = --system-site-packages ] && own=true || own=false
    mkdir -p "$folder/bin" && cp "$0" "$folder/bin/python"
    echo "include-system-site-packages = $own" > "$folder/pyvenv.cfg"
elif [ "$2" = pip ]; then
    echo "$@"
else
    exec {python} "$@"
fi
"""


@pytest.fixture
def fake(tmp_path) -> Path:
    """A Python for which installing takes no time, beside an empty course."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").write_text(
        "numpy==2.4.6\nsetuptools==84.2.1\ntorch==2.0.0\ntqdm==4.70.1\n"
    )
    path = tmp_path / "python"
    path.write_text(FAKE.replace("{python}", sys.executable))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("arguments", "pinned"), [((), True), (("TORCH=keep",), False), (("TORCH=",), True)]
)
def test_a_torch_to_keep_is_pinned_to_what_is_there(tmp_path, fake, arguments, pinned):
    kept = f"torch=={metadata.version('torch')}\n"
    done = make(tmp_path, ".venv/.test", f"PYTHON={fake}", *arguments)
    assert done.returncode == 0, done.stderr
    assert "install --quiet --constraint .venv/constraints.txt" in done.stdout
    ours = (tmp_path / "constraints.txt").read_text()
    used = tmp_path / ".venv" / "constraints.txt"
    assert used.read_text() == (ours if pinned else f"numpy==2.4.6\ntqdm==4.70.1\n{kept}")
    (tmp_path / "constraints.txt").write_text("numpy==2.5.0\ntorch==2.14.0\n")
    for path in (tmp_path / ".venv").glob("*"):
        os.utime(path, (1e9, 1e9))
    make(tmp_path, ".venv/.test", f"PYTHON={fake}")  # no longer told: the environment remembers
    assert used.read_text() == "numpy==2.5.0\n" + ("torch==2.14.0\n" if pinned else kept)
