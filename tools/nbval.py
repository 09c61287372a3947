"""Pytest plugin that adapts `pytest --nbval notebooks/` to the course.

The root `conftest.py` loads this plugin. It adds eight features to nbval 0.11:

- It uses the kernel of the current environment and the sanitizing patterns of the course.
- It ignores irrelevant differences between machines, such as progress bars.
- It fails a cell whose figure has too little contrast. What a figure shows is compared as text.
- It fails a cell that writes to stderr, which a reader sees on red ground.
- It ends a cell that hangs or loops, but not one that is slow because the machine is busy.
- It reports a dead kernel within a second instead of after nbval's timeout.
- It leaves out a notebook whose model isn't there, and says how to get it (`cs336 fetch`).
- It runs only the notebooks in which a cell has the tag `measures`, or only the others
  (`--measuring`). Those that assert on measured times need the machine for themselves.
- It compares numbers with a tolerance if the cell metadata contains `{"cs336": {"rtol": 1e-3}}`.

The tolerance applies to numbers with a decimal point or an exponent, because CPUs and GPUs round
differently. Integers and all other text must be equal.
"""

import copy
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from queue import Empty

import pytest

from cs336_course.fetch import lacks
from cs336_course.one_file.processes import Patience

CELL_TIMEOUT = 300.0  # seconds of a core, or of waiting; the slowest cell takes about 100
OUTPUT_TIMEOUT = 60.0  # seconds of waiting between two outputs; nbval's 5 may be too few
LOOK = 1.0  # seconds between two looks at the kernel
NBVAL_CELL_TIMEOUT = 2000  # nbval's default, half an hour for a hung cell
NOT_COMPARED = ("stderr", "image/svg+xml", "text/html")
MEASURES = '"measures"'  # the tag of a cell, as the file has it
LEFT_OUT = pytest.StashKey[list[str]]()
SANITIZE = Path(__file__).with_name("nbval_sanitize.cfg")
NUMBER = re.compile(r"[-+]?(?:\d[\d,_]*)?\.?\d+(?:[eE][-+]?\d+)?")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses notebooks."""
    told = "run only the notebooks that measure times, or only the others"
    parser.addoption("--measuring", choices=("all", "only", "no"), default="all", help=told)


def pytest_configure(config: pytest.Config) -> None:
    """Set default values for nbval's command-line options."""
    options = config.option
    if not getattr(options, "nbval", False):
        return
    options.nbval_current_env = not options.nbval_kernel_name
    options.nbval_sanitize_with = options.nbval_sanitize_with or str(SANITIZE)
    if options.nbval_cell_timeout == NBVAL_CELL_TIMEOUT:
        options.nbval_cell_timeout = CELL_TIMEOUT
    watch_kernels()
    os.environ["CS336_CHECK_FIGURES"] = "1"  # see cs336_course/drawing/shown.py


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a notebook whose model isn't there, or that `--measuring` doesn't want."""
    is_notebook = getattr(config.option, "nbval", False) and collection_path.suffix == ".ipynb"
    if is_notebook and (wanted := config.option.measuring) != "all":
        measures = MEASURES in collection_path.read_text(encoding="utf-8")
        if measures != (wanted == "only"):
            return True
    if is_notebook and (missing := lacks(collection_path.name)):
        config.stash.setdefault(LEFT_OUT, []).append(missing)
        return True
    return None  # other plugins decide


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """List the notebooks that were left out."""
    for missing in config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(f"SKIPPED {missing}", yellow=True)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Set the types of output that nbval ignores in each notebook."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += NOT_COMPARED


def pytest_itemcollected(item: pytest.Item) -> None:
    """Set the output timeout of each cell, and the tolerance from its metadata."""
    if not hasattr(item, "output_timeout"):
        return
    item.output_timeout = OUTPUT_TIMEOUT
    rtol = item.cell.metadata.get("cs336", {}).get("rtol")
    if rtol is not None:
        compare = item.compare_outputs
        item.compare_outputs = lambda test, ref, skip_compare=None: compare(
            forgive(test, ref, rtol), ref, skip_compare
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a cell that writes to stderr, although its other outputs are right."""
    yield
    for output in getattr(item, "test_outputs", []):
        if output.get("name") == "stderr":
            item.raise_cell_error("The cell writes to stderr", output.text)


def forgive(test: list[dict], ref: list[dict], rtol: float) -> list[dict]:
    """Replace new outputs by the stored outputs if both agree within the tolerance.

    Args:
        test: New outputs of the cell, in nbformat's format.
        ref: Outputs stored in the notebook.
        rtol: Maximum relative difference between two numbers.
    """
    forgiven = copy.deepcopy(test)
    for new, old in zip(forgiven, ref, strict=False):
        for new_texts, old_texts, key in (
            (new, old, "text"),
            (new.get("data", {}), old.get("data", {}), "text/plain"),
        ):
            both = key in new_texts and key in old_texts
            if both and same_text(new_texts[key], old_texts[key], rtol):
                new_texts[key] = old_texts[key]
    return forgiven


def same_text(new: str, old: str, rtol: float) -> bool:
    """Return whether two texts are equal, up to spaces and a tolerance for numbers."""
    if [part.split() for part in NUMBER.split(new)] != [part.split() for part in NUMBER.split(old)]:
        return False
    pairs = zip(NUMBER.findall(new), NUMBER.findall(old), strict=True)
    return all(a == b or close(a, b, rtol) for a, b in pairs)


def close(new: str, old: str, rtol: float) -> bool:
    """Return whether two numbers with a decimal point or an exponent are close."""
    if not all(re.search(r"[.eE]", number) for number in (new, old)):
        return False
    a, b = (float(number.replace(",", "")) for number in (new, old))
    return math.isclose(a, b, rel_tol=rtol)


def watch_kernels() -> None:
    """Look each second whether the kernel is alive and works.

    nbval's timeout becomes one of the time that the kernel takes on each core, or that it waits. On
    a busy machine, a cell may take longer.
    """
    from nbval.kernel import RunningKernel, start_new_kernel

    def get_message(self, stream, timeout=None, original=RunningKernel.get_message):
        most = os.cpu_count() * (timeout or CELL_TIMEOUT)
        patience = Patience(self.km.provisioner.pid, most, LOOK)
        while True:
            try:
                return original(self, stream, timeout=LOOK)
            except Empty:
                if not self.is_alive():
                    raise RuntimeError("the kernel died (out of memory, or it crashed)") from None
                if patience.is_over():
                    raise

    start_new_kernel.__defaults__ = (CELL_TIMEOUT, *start_new_kernel.__defaults__[1:])
    if RunningKernel.get_message.__defaults__ == (None,):  # once, also where pytest runs in pytest
        RunningKernel.get_message = get_message
