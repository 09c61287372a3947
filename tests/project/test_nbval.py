"""The plugin for nbval compares outputs, forgives late digits where asked, and never hangs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools import nbval

ROOT = Path(__file__).parents[2]


def run_nbval(folder: Path, notebooks: dict[str, list[dict]], *arguments: str) -> str:
    """Run nbval on these cells under a copy of our conftest, and return its output."""
    shutil.copy(ROOT / "conftest.py", folder)
    for name, cells in notebooks.items():
        numbered = [new_code_cell(**{"execution_count": 1, **cell}) for cell in cells]
        path = folder / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(new_notebook(cells=numbered), path)
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", "-rA", "--nbval", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def outcomes(text: str, name: str) -> list[str]:
    """The outcome of each cell of a notebook, in the order of the cells."""
    found = re.findall(rf"^(PASSED|FAILED|ERROR) {name}\.ipynb::Cell (\d+)", text, re.MULTILINE)
    return [outcome for outcome, _ in sorted(found, key=lambda pair: int(pair[1]))]


def stdout(text: str) -> list:
    return [new_output("stream", name="stdout", text=text)]


NOISE = """
from IPython.display import display
display({"text/html": "<pre>50%</pre>"}, raw=True)
print(object())
"""
LATE = "print('loss 1.2346 after 10 steps')"
STORED = stdout("loss   1.2345 after 10 steps\n")
IGNORED = {"tags": ["nbval-ignore-output"]}
TOLERANT = {"cs336": {"rtol": 1e-3}}
NOTEBOOKS = {
    "plain": [
        {"source": "print(1 + 1)", "outputs": stdout("3\n")},
        {"source": NOISE, "outputs": stdout("<object object at 0x123456789abc>\n")},
        {"source": "import sys; print(2, file=sys.stderr); print(1)", "outputs": stdout("1\n")},
        {"source": "import warnings; warnings.warn('old')", "metadata": IGNORED},
        {"source": "print(1)", "outputs": stdout("1\n")},
    ],
    "dead": [
        {"source": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"},
        {"source": "1"},
    ],
    "tolerant": [
        {"source": LATE, "outputs": STORED, "metadata": TOLERANT},
        {"source": LATE, "outputs": STORED},
        {"source": LATE.replace("6 ", "9 "), "outputs": STORED, "metadata": TOLERANT},
        {"source": LATE.replace("2346", "2446"), "outputs": STORED, "metadata": TOLERANT},
    ],
}


@pytest.fixture(scope="module")
def nbval_run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Output of one run over all of NOTEBOOKS, because starting pytest is slow."""
    return run_nbval(tmp_path_factory.mktemp("nbval"), NOTEBOOKS)


def test_a_wrong_stored_output_fails_and_progress_bars_and_addresses_do_not(nbval_run: str):
    assert "Cell outputs differ" in nbval_run
    assert outcomes(nbval_run, "plain")[:2] == ["FAILED", "PASSED"]


def test_a_cell_that_writes_to_stderr_fails(nbval_run: str):
    assert nbval_run.count("The cell writes to stderr") >= 2
    assert "UserWarning: old" in nbval_run
    assert outcomes(nbval_run, "plain")[2:] == ["FAILED", "FAILED", "PASSED"]


def test_a_dead_kernel_fails(nbval_run: str):
    assert "the kernel died" in nbval_run
    assert outcomes(nbval_run, "dead")[0] == "FAILED"


def test_a_tolerance_in_the_metadata_forgives_late_digits(nbval_run):
    assert outcomes(nbval_run, "tolerant") == ["PASSED", "FAILED", "PASSED", "FAILED"]


def test_a_notebook_without_its_model_is_left_out_and_named(tmp_path, monkeypatch):
    monkeypatch.delenv("CS336_SMOLLM2", raising=False)
    monkeypatch.setenv("CS336_CACHE", str(tmp_path / "cache"))
    name, cells = "side_trips/model_of_today", [{"source": "print(2)", "outputs": stdout("2\n")}]
    text = run_nbval(tmp_path, {name: cells, "plain": cells})
    assert "SKIPPED model_of_today.ipynb needs SmolLM2: cs336 fetch smollm2\n" in text
    assert outcomes(text, "plain") == ["PASSED"]
    assert outcomes(text, name) == []
    (tmp_path / "model.gguf").touch()
    monkeypatch.setenv("CS336_SMOLLM2", str(tmp_path))
    text = run_nbval(tmp_path, {})
    assert "SKIPPED" not in text
    assert outcomes(text, "plain") == outcomes(text, name) == ["PASSED"]


def test_a_hung_cell_is_interrupted(tmp_path):
    hung = {"hung": [{"source": "import time\ntime.sleep(600)"}]}
    text = run_nbval(tmp_path, hung, "--nbval-cell-timeout", "3")
    assert "Timeout of 3 seconds exceeded" in text
    assert outcomes(text, "hung") == ["FAILED"]


@pytest.mark.parametrize(
    ("new", "old", "same"),
    [
        ("1.0001", "1.0002", True),
        ("1.01", "1.02", False),
        ("1e-8 and 3", "1.0001e-8 and 3", True),
        ("1001 steps", "1000 steps", False),
        ("1001", "1000.0", False),
        ("12,345.01", "12,345.02", True),
        ("-0.5", "0.5", False),
        ("nan", "nan", True),
        ("inf", "1.0", False),
        ("1.0 1.0", "1.0", False),
        ("tensor([0.1000])", "tensor([0.1000,\n 0.2])", False),
    ],
)
def test_numbers_within_the_tolerance_are_the_same(new, old, same):
    assert nbval.same_text(new, old, rtol=1e-3) == same
