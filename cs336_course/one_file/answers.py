"""Ask another process whether parts of the assembled file are right."""

import json
import sys
from typing import Any

from cs336_course.one_file.processes import EndedError, Process, SlowError

UNTOUCHED = "not attempted yet"
ENDED = "your code ended Python"
SECONDS = 120  # for a part and its check
RUN = "from cs336_course.one_file import check_parts; check_parts.main()"

# Results of earlier jobs, because a notebook asks for the same parts several times
known: dict[str, str] = {}


def checking() -> Process:
    """Return a process that checks parts, for a `with` block."""
    return Process([sys.executable, "-c", RUN])


def reason(process: Process, **job: Any) -> str:
    """Return why a part isn't right, or "".

    Args:
        process: What `checking` returns.
        job: before, the code of the file above the part; code, that of the part; checks, the module
            of the exercise; check, its name, or "" if the part only has to run; and arguments, what
            the check receives.

    Raises:
        RuntimeError: If the process doesn't start.
    """
    key = json.dumps(job)
    if key in known:
        return known[key]
    try:
        known[key] = process.do(job, SECONDS)
        return known[key]
    except EndedError:
        return ENDED
    except SlowError:
        return f"your code took more than {SECONDS:g} seconds"
    except RuntimeError as error:
        raise RuntimeError(f"the process that checks your code didn't start: {error}") from None
