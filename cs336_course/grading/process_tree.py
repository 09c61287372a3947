"""Find, measure and end the descendants of a process on Linux. Elsewhere, none are found."""

import os
import re
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

END_SECONDS = 10  # for processes that start others faster than they are ended


def descendants(process: int) -> list[int]:
    """Return the descendants of a process that haven't ended."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # Only the name of the program, in parentheses, can have spaces.
            state, parent, *_ = path.read_text(errors="replace").rpartition(")")[2].split()
            if state != "Z":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    found = list(children.get(process, []))
    for one in found:  # also those that are added here
        found += children.get(one, [])
    return found


def end_descendants(process: int) -> None:
    """Kill all descendants of a process, and wait until they have ended."""
    deadline = time.monotonic() + END_SECONDS
    while (found := descendants(process)) and time.monotonic() < deadline:
        for one in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.005)


def resident(process: int) -> int:
    """Return the bytes in memory of a process, including those that it shares with others."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):  # it has ended
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def memory(processes: Collection[int], limit: float) -> float:
    """Return the bytes in memory of processes.

    Shared memory is divided among the processes that share it. Because the system takes
    milliseconds to compute this, it is done only if the sum with all of it is above `limit`.
    """
    total = sum(resident(one) for one in processes)
    return sum(proportional(one) for one in processes) if total > limit else total


def proportional(process: int) -> int:
    """Return the bytes in memory of a process, with its share of shared memory."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:  # it has ended, or the system doesn't tell
        return resident(process)
    found = re.search(r"^Pss: +(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
