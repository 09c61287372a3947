"""What a newcomer types, in a fresh clone: the course opens, and the package works elsewhere."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def lab(clone: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """`make lab`, headless: the process and its address with token; ended at the end."""
    environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    environment["PIP_COMPILE"] = "0"  # Python compiles the few modules that it imports
    arguments = [f"ARGS=--no-browser --port {PORT} --allow-root", f"PYTHON={sys.executable}"]
    server = subprocess.Popen(
        ["make", "lab", *arguments],
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield server, wait_for_address(server)
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # make and the server that it has started
        server.wait()


def wait_for_address(server: subprocess.Popen) -> str:
    """Read what a server says until it names the first notebook's address with its token."""
    said = []
    for line in server.stdout:
        said.append(line)
        found = re.search(rf"http://localhost:{PORT}/\S*00_start_here.ipynb\?token=\w+", line)
        if found:
            return found[0]
    raise AssertionError("no address:\n" + "".join(said))


def fetch(server: subprocess.Popen, address: str) -> str:
    """Get a page; the server says its address a moment before it listens."""
    while server.poll() is None:
        try:
            with urllib.request.urlopen(address) as page:
                return page.read().decode()
        except urllib.error.URLError:
            time.sleep(0.5)
    raise AssertionError("it has ended")


def test_make_lab_opens_the_course_twice(clone):
    with lab(clone) as (server, address):
        assert "JupyterLab" in fetch(server, address)
    code = "import cs336_lib, sys; print(cs336_lib.__file__)"
    done = subprocess.run(
        [clone / ".venv/bin/python", "-E", "-c", code],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(clone))
    installed = (clone / ".venv/.lab").stat().st_mtime
    with lab(clone) as (server, address):
        fetch(server, address)
    assert (clone / ".venv/.lab").stat().st_mtime == installed  # nothing is installed again
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert status.stdout == ""


@pytest.fixture(scope="module")
def unpacked(clone, tmp_path_factory) -> Path:
    """The package as it comes from a wheel, without the packages that it needs."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "-w", folder, str(clone)], check=True)
    (wheel,) = folder.glob("cs336_lib-*.whl")
    assert wheel.stat().st_size < 15e6
    target = folder / "elsewhere"
    install = [*pip, "install", "--quiet", "--no-deps", "--target", target, wheel]
    subprocess.run(install, check=True)
    return target


def test_a_wheel_carries_the_data_and_works_elsewhere(unpacked, tmp_path):
    code = (
        "import cs336_lib; from cs336_lib.data.corpus import shakespeare; "
        "from cs336_lib.data.tokenizer import gpt2_encoding; "
        "print(cs336_lib.__file__); assert len(shakespeare()) > 4_000_000; "
        "assert gpt2_encoding().encode('First Citizen') == [5962, 22307]; "
        "from cs336_course import widgets; assert 'render' in widgets.strides()._esm"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(unpacked))
    (description,) = unpacked.glob("cs336_lib-*.dist-info/METADATA")
    links = re.findall(r"\]\(([^)]*)\)", description.read_text())
    assert len(links) > 20
    assert all(link.startswith("https://") for link in links)  # PyPI has no files beside it
    for notebook in (unpacked / "cs336_lib" / "shipped" / "notebooks").rglob("*.ipynb"):
        for link in re.findall(r"\]\((\.\./[^)#]+)", notebook.read_text()):
            assert (notebook.parent / link).exists(), (notebook, link)
