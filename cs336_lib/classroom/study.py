"""The learner's own copy of the notebooks, and what has been passed in it.

The course's notebooks change with every `git pull`, a learner's by being studied. So `make lab`
opens a copy that git ignores, in a folder beside the original: relative links lead to the same
places from both. Only JSON is read here, so that opening the course takes no time.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cs336_lib.config import require
from cs336_lib.io import read_json, sha256, write_atomic

COURSE, MINE = Path("notebooks"), Path("my_notebooks")
COPIES = ".copies.json"  # what was copied; a folder with this file is a learner's
VERDICTS = ".verdicts.jsonl"  # what the exercises' checks have said, a line each
RULES = "AGENTS.md"  # which AI assistants read: explain, do not solve
# Stored under another name, because an assistant that helps with the course itself may solve.
OUR_RULES = Path(__file__).with_name("for_assistants.md")
PASSED, WRONG, OPEN = "passed", "not right yet", "not attempted"
BAR = 10
# How the kernel describes its language. JupyterLab writes that into every notebook that it opens,
# and marks the notebook as changed unless it was there before.
LANGUAGE = {
    "codemirror_mode": {"name": "ipython", "version": sys.version_info[0]},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": f"ipython{sys.version_info[0]}",
    "version": platform.python_version(),
}


@dataclass(frozen=True)
class Exercise:
    """How far a learner is with one exercise; `said` is the last diagnosis of a wrong answer."""

    name: str
    verdict: str
    said: str = ""


Progress = Mapping[str, Sequence[Exercise]]  # by notebook: "03_einops"


def describe(path: Path) -> dict[str, Any]:
    """What the record keeps of a notebook: checksums of the file and of its cells; its exercises.

    What a learner writes is in the cells' sources. Running a notebook changes only outputs, which
    are not counted: it is still untouched.

    Raises:
        ValueError: the file is no notebook.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
        named = [cell["metadata"].get("cs336", {}).get("exercise") for cell in cells]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path}: not a notebook") from None
    return {
        "file": sha256(path),
        "cells": hashlib.sha256(json.dumps(sources).encode()).hexdigest(),
        "exercises": [name for name in named if name],
    }


def is_touched(path: Path, copied: Mapping[str, Any]) -> bool:
    """Whether a learner has written something into a copy."""
    try:
        return describe(path)["cells"] != copied.get("cells")
    except ValueError:
        return True


def read_copies(folder: Path) -> dict[str, Any]:
    """The record of what was copied, by file name; empty before the first time."""
    try:
        return read_json(folder / COPIES)
    except (ValueError, FileNotFoundError):  # without a record, nothing counts as untouched
        return {}


def write_copies(folder: Path, copies: Mapping[str, Any]) -> None:
    """Replace the record."""
    write_atomic(folder / COPIES, json.dumps(copies, indent=1) + "\n")


def update(course: Path = COURSE, mine: Path = MINE) -> list[str]:
    """Make the copy follow the course, and return the names of the notebooks that were kept.

    A notebook that is new, missing, or in which the learner has written nothing, is copied. One
    with a learner's work stays; it is named where the course has a newer one.

    Raises:
        ValueError: there are no notebooks in `course`, or `mine` cannot be written.
    """
    sources = originals(course)
    kept = []
    try:
        mine.mkdir(exist_ok=True)
        copies = read_copies(mine)
        for source in sources:
            name, new, old = source.name, describe(source), copies.get(source.name, {})
            copy = mine / name
            if copy.exists() and (new["file"] == old.get("file") or is_fresh(copy, source)):
                copies[name] = new  # the course has nothing newer
            elif copy.exists() and is_touched(copy, old):
                kept.append(source.stem)
                copies[name] = new | {"file": "", "cells": ""} | old
            else:
                replace_whole(copy, as_copy(source))
                copies[name] = new
        for style in course.glob("rise.css"):  # of the live slides; looked for beside a notebook
            replace_whole(mine / style.name, style.read_bytes())
        rules, copied = mine / RULES, copies.get(RULES, {}).get("file")
        if not rules.exists() or sha256(rules) == copied:  # a learner's own rules stay
            replace_whole(rules, OUR_RULES.read_bytes())
            copies[RULES] = {"file": sha256(OUR_RULES)}
        write_copies(mine, copies)
    except OSError as error:
        raise ValueError(f"{mine}: cannot be written ({error.strerror})") from None
    return kept


def reset(name: str, course: Path = COURSE, mine: Path = MINE) -> tuple[Path, Path | None]:
    """Restore a notebook; return its path and that of the learner's version, which is kept.

    `name` is as in 03_einops, or 03. What is kept gets a date in its name and stays in the folder,
    so that it still runs; nothing is kept where nothing was changed.

    Raises:
        ValueError: there is no such notebook, or no copy of the course yet.
    """
    names = [path.stem for path in originals(course)]
    stem = {stem[:2]: stem for stem in names}.get(name, name).removesuffix(".ipynb")
    require(
        stem in names, f"no notebook {name!r}; NOTEBOOK=03_einops, or one of {', '.join(names)}"
    )
    require(mine.is_dir(), f"{mine}: no such folder; `make lab` makes it")
    source, copy = course / f"{stem}.ipynb", mine / f"{stem}.ipynb"
    kept = None
    if copy.exists() and not is_fresh(copy, source):
        kept = mine / f"{stem}_{datetime.now():%Y-%m-%d_%H%M%S}.ipynb"
        os.replace(copy, kept)
    replace_whole(copy, as_copy(source))
    write_copies(mine, read_copies(mine) | {copy.name: describe(source)})
    return copy, kept


def as_copy(source: Path) -> bytes:
    """A notebook of the course as a learner gets it: with this Python's version in its metadata."""
    notebook = json.loads(source.read_text(encoding="utf-8"))
    notebook["metadata"]["language_info"] = LANGUAGE
    text = json.dumps(
        notebook, indent=1, ensure_ascii=False, sort_keys=True
    )  # as Jupyter writes it
    return f"{text}\n".encode()


def is_fresh(copy: Path, source: Path) -> bool:
    """Whether a copy is as the course has it, neither changed nor run."""
    return copy.read_bytes() in (source.read_bytes(), as_copy(source))


def replace_whole(target: Path, content: bytes) -> None:
    """Write a file so that at every moment the target is the old or the new one."""
    temporary = target.with_name(f".tmp-{target.name}")
    temporary.write_bytes(content)
    os.replace(temporary, target)


def originals(course: Path) -> list[Path]:
    """The course's notebooks, in order.

    Raises:
        ValueError: there are none.
    """
    found = sorted(course.glob("[0-9][0-9]_*.ipynb"))
    require(bool(found), f"{course}: no notebooks; run this in the folder of the course")
    return found


def record(folder: Path, name: str, verdict: str, said: str = "") -> None:
    """Note what a check has said, if `folder` is a learner's; a kernel's is where its notebook is.

    A line is appended, so that notebooks open at the same time do not overwrite each other's.
    """
    if not (folder / COPIES).exists():
        return
    row = {"exercise": name, "verdict": verdict, "said": " ".join(said.split())}
    row["at"] = datetime.now().isoformat(timespec="seconds")
    try:
        with open(folder / VERDICTS, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    except OSError:
        pass  # a full disk must not stand between a learner and the verdict


def progress(folder: Path) -> Progress:
    """All exercises of a learner's notebooks; none where `folder` is not a learner's.

    Passed once is passed, whatever is tried afterwards; else the last verdict counts.
    """
    latest: dict[str, Exercise] = {}
    for row in read_verdicts(folder / VERDICTS):
        name = row["exercise"]
        if name not in latest or latest[name].verdict != PASSED:
            latest[name] = Exercise(name, row["verdict"], row["said"])
    return {
        name.removesuffix(".ipynb"): [
            latest.get(exercise, Exercise(exercise, OPEN)) for exercise in copied["exercises"]
        ]
        for name, copied in sorted(read_copies(folder).items())
        if name.endswith(".ipynb")
    }


def read_verdicts(path: Path) -> list[dict[str, str]]:
    """The lines of the record; one that was cut off by a full disk is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
            rows.append({name: row[name] for name in ("exercise", "verdict", "said")})
        except (ValueError, KeyError, TypeError):
            continue
    return rows


def bars(found: Progress) -> str:
    """A line per notebook with a bar of what is passed, and what comes next."""
    every = [exercise for exercises in found.values() for exercise in exercises]
    done = sum(exercise.verdict == PASSED for exercise in every)
    if done == 0:
        return "No progress yet: the exercises that you pass in your copy are counted here."
    lines = [bar_line(name, exercises) for name, exercises in found.items()]
    lines.append(f"{done} of {len(every)} exercises passed")
    ahead = (n for n, listed in found.items() if any(e.verdict != PASSED for e in listed))
    if following := next(ahead, ""):
        name = next(e.name for e in found[following] if e.verdict != PASSED)
        lines[-1] += f"; next: {name} in {following}"
    return "\n".join(lines)


def bar_line(name: str, exercises: Sequence[Exercise]) -> str:
    """One notebook's bar."""
    done = sum(exercise.verdict == PASSED for exercise in exercises)
    filled = BAR * done // max(1, len(exercises))
    return f"{name:<22} {'█' * filled}{'░' * (BAR - filled)} {done} of {len(exercises)}"


def report(found: Progress) -> str:
    """Every notebook's exercises by verdict, the wrong ones with their diagnosis."""
    lines = []
    for name, exercises in found.items():
        lines.append(bar_line(name, exercises))
        for verdict in (PASSED, OPEN):
            if names := [e.name for e in exercises if e.verdict == verdict]:
                lines.append(f"    {verdict:<14} {', '.join(names)}")
        for wrong in (e for e in exercises if e.verdict == WRONG):
            lines.append(f"    {wrong.verdict:<14} {wrong.name}: {wrong.said}")
    every = [exercise for exercises in found.values() for exercise in exercises]
    count = {v: sum(e.verdict == v for e in every) for v in (PASSED, WRONG, OPEN)}
    lines.append(", ".join(f"{number} {verdict}" for verdict, number in count.items()))
    return "\n".join(lines)


def find() -> Path:
    """The learner's folder: this one, or the one that `make lab` makes here.

    Raises:
        ValueError: there is none.
    """
    for folder in (Path.cwd(), Path.cwd() / MINE):
        if (folder / COPIES).exists():
            return folder
    raise ValueError(f"no {MINE} here; `make lab` makes it, in the folder of the course")


def main(arguments: Sequence[str] | None = None) -> None:
    """`make lab` and `make reset`: bring the copy up to date, or restore one notebook of it."""
    parser = argparse.ArgumentParser(prog="study", description=main.__doc__)
    parser.add_argument("--reset", metavar="NOTEBOOK", help="as in 03_einops")
    name = parser.parse_args(arguments).reset
    try:
        if name is not None:
            fresh, old = reset(name)
            print(f"{fresh} is as the course has it" + (f"; yours is now {old}" if old else ""))
        elif kept := update():
            print(
                f"Yours, though the course has newer ones: {', '.join(kept)}. "
                f"`make reset NOTEBOOK={kept[0]}` takes the new one and keeps your copy."
            )
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
