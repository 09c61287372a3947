"""Makes a bare `pytest --nbval notebooks/` right: no further flags, no hanging on a dead kernel."""

import time
from pathlib import Path
from queue import Empty

import pytest

import cs336_lib  # noqa: F401 -- before torch, also for the kernels: it sets how threads wait

ROOT = Path(__file__).parent
CELL_TIMEOUT = 300.0  # seconds; the slowest cell takes about one minute on two cores
OUTPUT_TIMEOUT = 60.0  # seconds between two outputs; nbval's 5 are too few on a busy machine
# Differs between machines without meaning anything: progress bars, drawings, rich tables.
NOT_COMPARED = ("stderr", "image/svg+xml", "text/html")


def pytest_configure(config: pytest.Config) -> None:
    """Set nbval's options, unless the command line has set them."""
    options = config.option
    if not getattr(options, "nbval", False):
        return
    options.nbval_current_env = not options.nbval_kernel_name
    options.nbval_sanitize_with = options.nbval_sanitize_with or str(
        ROOT / "tests" / "nbval_sanitize.cfg"
    )
    if options.nbval_cell_timeout == 2000:  # nbval's default: half an hour for a hung cell
        options.nbval_cell_timeout = CELL_TIMEOUT
    notice_dead_kernels()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Tell each notebook what not to compare."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += NOT_COMPARED


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let each cell wait longer for its outputs; nbval has no option for that."""
    if hasattr(item, "output_timeout"):
        item.output_timeout = OUTPUT_TIMEOUT


def notice_dead_kernels() -> None:
    """Look once a second whether the kernel still lives; nbval itself waits the timeout out."""
    from nbval.kernel import RunningKernel

    def get_message(self, stream, timeout=None, original=RunningKernel.get_message):
        deadline = time.monotonic() + (timeout or CELL_TIMEOUT)
        while True:
            try:
                left = deadline - time.monotonic()
                return original(self, stream, timeout=max(0.0, min(1.0, left)))
            except Empty:
                if not self.is_alive():
                    raise RuntimeError("the kernel died (out of memory, or it crashed)") from None
                if time.monotonic() >= deadline:
                    raise

    if RunningKernel.get_message.__defaults__ == (None,):  # once, also where pytest runs in pytest
        RunningKernel.get_message = get_message
