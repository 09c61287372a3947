"""What a newcomer types, in a fresh clone: the course opens, and the package works elsewhere."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PORT = 8897


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A clone of what is committed."""
    folder = tmp_path_factory.mktemp("newcomer") / "course"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def open_lab(clone: Path, limit: float) -> tuple[subprocess.Popen, str, float]:
    """`make lab`, headless; returns the process, its address with token, and the seconds."""
    start = time.monotonic()
    environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    environment["PIP_COMPILE"] = "0"  # Python compiles the few modules that it imports
    server = subprocess.Popen(
        [
            "make",
            "lab",
            f"ARGS=--no-browser --port {PORT} --allow-root",
            f"PYTHON={sys.executable}",
        ],
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    alarm = threading.Timer(limit, stop, [server])  # ends the wait for a line that never comes
    alarm.start()
    said = []
    for line in server.stdout:
        said.append(line)
        found = re.search(rf"http://localhost:{PORT}/\S*00_start_here.ipynb\?token=\w+", line)
        if found:
            alarm.cancel()
            return server, found[0], time.monotonic() - start
    raise AssertionError(f"no address within {limit} s:\n" + "".join(said))


def fetch(address: str) -> str:
    """Get a page; the server says its address a moment before it listens."""
    for _ in range(40):
        try:
            with urllib.request.urlopen(address, timeout=30) as page:
                return page.read().decode()
        except urllib.error.URLError:
            time.sleep(0.5)
    raise AssertionError(f"{address} does not answer")


def stop(server: subprocess.Popen) -> None:
    """End make and the server it started."""
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def test_make_lab_opens_the_course_twice(clone):
    server, address, _ = open_lab(clone, limit=900)
    try:
        assert "JupyterLab" in fetch(address)
        token = address.split("token=")[1]
        specs = f"http://localhost:{PORT}/api/kernelspecs?token={token}"
        assert json.loads(fetch(specs))["default"] == "python3"
    finally:
        stop(server)
    code = "import cs336_lib, sys; print(cs336_lib.__file__)"
    done = subprocess.run(
        [clone / ".venv/bin/python", "-c", code],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(clone))
    server, address, seconds = open_lab(clone, limit=60)
    try:
        fetch(address)
    finally:
        stop(server)
    assert seconds < 30  # 3 s on a quiet machine; nothing is installed again
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert status.stdout == ""


def test_a_wheel_carries_the_data_and_works_elsewhere(clone, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, str(clone)],
        check=True,
    )
    (wheel,) = tmp_path.glob("cs336_lib-*.whl")
    target = tmp_path / "elsewhere"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target]
    subprocess.run([*install, wheel], check=True)
    code = (
        "import cs336_lib; from cs336_lib.data.corpus import shakespeare; "
        "from cs336_lib.data.tokenizer import gpt2_encoding; "
        "print(cs336_lib.__file__); assert len(shakespeare()) > 4_000_000; "
        "assert gpt2_encoding().encode('First Citizen') == [5962, 22307]; "
        "from cs336_lib.classroom import explorers; assert 'render' in explorers.strides()._esm"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(target))
