"""Print how many lines of Python each part of the repository has, and fail above the budget.

python -m tools.budget

A change that needs more lines takes them from somewhere else. Blank lines count, too, since this is
no game of formatting. What is wanted is less than what is allowed; lower `ALLOWED` when lines go.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

WANTED = {
    "cs336_lib": 9_500,
    "cs336_course": 22_000,
    "tests": 12_000,
    "tools, benchmarks, data, reproduce": 4_500,
}
ALLOWED = {
    "cs336_lib": 10_020,
    "cs336_course": 21_900,
    "tests": 13_940,
    "tools, benchmarks, data, reproduce": 4_025,
}


def counted() -> Counter[str]:
    """Return the lines of all Python files that git tracks, by the part of the budget."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    parts = {folder: part for part in ALLOWED for folder in part.split(", ")}
    found: Counter[str] = Counter()
    for path in map(Path, filter(None, listed.split("\0"))):
        if path.parts[0] in parts and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            found[parts[path.parts[0]]] += len(lines)
    return found


def main() -> None:
    """Print a line per part, and exit with 1 if a part has too many."""
    found = counted()
    for part, most in ALLOWED.items():
        over = f", {found[part] - most:,} too many" if found[part] > most else ""
        print(f"{part}: {found[part]:,} lines of {most:,}, wanted {WANTED[part]:,}{over}")
    sys.exit(any(found[part] > most for part, most in ALLOWED.items()))


if __name__ == "__main__":
    main()
