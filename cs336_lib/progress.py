"""Bars and remarks on stderr, which end no work where they cannot be written."""

import sys
from contextlib import suppress
from typing import Any

from tqdm import tqdm


class Log:
    """stderr as it is when somebody writes; that it cannot be written stops nobody's work.

    The disk that a log is on can be full, its reader gone or its file closed, and the run's own
    files be as safe as ever. What is lost is a line of progress.
    """

    def write(self, text: str) -> int:
        """Write, or else forget it."""
        with suppress(OSError, ValueError, AttributeError):  # failed, closed, None
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Have it written now, if it can be."""
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        """Its encoding, its terminal and so on."""
        return getattr(sys.stderr, name)


class Bar(tqdm):
    """A progress bar that cannot end what it shows the progress of."""

    def __init__(self, *arguments: Any, **settings: Any):
        # tqdm asks for the terminal's width by itself only where it writes to sys.stderr directly.
        super().__init__(*arguments, file=Log(), dynamic_ncols=True, **settings)
