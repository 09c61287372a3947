"""Bars and remarks on stderr, which end no work where they cannot be written."""

import sys
from contextlib import suppress
from time import monotonic
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


LOG_SECONDS = 30.0  # from one line in a log to the next
LOG_LINE = (
    "{desc}{percentage:.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
)


class Bar(tqdm):
    """A progress bar that cannot end what it shows the progress of.

    A terminal and a notebook show a bar. A log, which keeps every character, gets a line every half
    minute, and a last one unless `leave` is off.
    """

    def __init__(self, *arguments: Any, **settings: Any):
        self.in_place = draws_over_lines(sys.stderr)
        self.written = self.begun = monotonic()
        # tqdm asks for the terminal's width by itself only where it writes to sys.stderr directly.
        super().__init__(*arguments, file=Log(), dynamic_ncols=True, **settings)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Draw the bar, or write a line if the last one is old enough."""
        if self.in_place:
            return super().display(msg, pos)
        if msg is None and monotonic() - self.written >= LOG_SECONDS:
            self.write_line()
        return False  # nothing is left that would have to be wiped out

    def write_line(self) -> None:
        """Write the bar's numbers as a line of a log."""
        self.written = monotonic()
        shown = self.format_dict
        if self.total:
            shown |= {"bar_format": LOG_LINE, "prefix": self.desc and f"{self.desc}: "}
        self.fp.write(self.format_meter(**shown) + "\n")
        self.fp.flush()

    def close(self) -> None:
        """Leave the bar, or a last line, and end."""
        if not getattr(self, "disable", True) and not self.in_place:
            if self.leave and self.n > self.initial and monotonic() - self.begun >= self.delay:
                self.write_line()
            self.leave = False  # else tqdm would add an empty line
        super().close()


def draws_over_lines(stream: Any) -> bool:
    """Return whether a carriage return begins the line again: in a terminal or a notebook."""
    with suppress(OSError, ValueError, AttributeError):  # failed, closed, None
        return stream.isatty() or type(stream).__module__.startswith("ipykernel.")
    return False
