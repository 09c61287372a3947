"""What the root conftest.py promises of a bare `pytest --nbval`: it compares and never hangs."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

ROOT = Path(__file__).parents[1]


def run_nbval(
    folder: Path, *cells: dict, arguments: tuple[str, ...] = ()
) -> tuple[int, str, float]:
    """Run nbval on these cells under a copy of our conftest; return code, output, seconds."""
    shutil.copy(ROOT / "conftest.py", folder)
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "nbval_sanitize.cfg", folder / "tests")
    numbered = [new_code_cell(**{"execution_count": 1, **cell}) for cell in cells]
    nbformat.write(new_notebook(cells=numbered), folder / "case.ipynb")
    start = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "case.ipynb", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr, time.perf_counter() - start


def stdout(text: str) -> list:
    return [new_output("stream", name="stdout", text=text)]


def test_a_wrong_stored_output_fails(tmp_path):
    code, text, _ = run_nbval(tmp_path, {"source": "print(1 + 1)", "outputs": stdout("3\n")})
    assert code == 1
    assert "Cell outputs differ" in text


def test_progress_bars_and_addresses_do_not(tmp_path):
    source = "import sys; print('50%', file=sys.stderr); print(object())"
    stored = stdout("<object object at 0x123456789abc>\n")
    assert run_nbval(tmp_path, {"source": source, "outputs": stored})[0] == 0


def test_a_dead_kernel_fails_in_seconds(tmp_path):
    cells = {"source": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"}, {"source": "1"}
    code, text, seconds = run_nbval(tmp_path, *cells)
    assert code == 1
    assert "the kernel died" in text
    assert seconds < 60  # starting Python, pytest and a kernel on a busy machine included


def test_a_hung_cell_is_interrupted(tmp_path):
    cell = {"source": "import time\ntime.sleep(600)"}
    limit = ("--nbval-cell-timeout", "3")
    code, text, seconds = run_nbval(tmp_path, cell, arguments=limit)
    assert code == 1
    assert "Timeout of 3 seconds exceeded" in text
    assert seconds < 60


# As on a busy machine: what follows the kernel's reply, which ends the cell, is 7 seconds late.
SLOW_AFTER_REPLY = """
import time
session = get_ipython().kernel.session
send = session.send
def sent(stream, message, *arguments, **named):
    result = send(stream, message, *arguments, **named)
    if message == "execute_reply":
        session.send = send
        time.sleep(7)
    return result
session.send = sent
"""


def test_outputs_that_come_late_are_waited_for(tmp_path):
    cells = {"source": SLOW_AFTER_REPLY}, {"source": "print(1 + 1)", "outputs": stdout("2\n")}
    code, text, _ = run_nbval(tmp_path, *cells)
    assert code == 0, text


def test_without_flags_a_hung_cell_gets_minutes_not_half_an_hour(pytestconfig):
    import importlib.util

    spec = importlib.util.spec_from_file_location("root_conftest", ROOT / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert 60 <= module.CELL_TIMEOUT <= 600


@pytest.mark.parametrize("name", ["make", "README.md"])
def test_the_documented_command_needs_no_flags(name):
    text = (ROOT / ("Makefile" if name == "make" else name)).read_text()
    assert "pytest --nbval notebooks/\n" in text
