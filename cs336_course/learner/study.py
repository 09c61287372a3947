"""Manage the learner's copy of the notebooks and the record of passed exercises.

Learners edit a copy of the notebooks that git ignores, so `git pull` never conflicts with their
edits. The copy is next to the original folder, so relative links work in both. It has no outputs,
which would answer the predictions, and no notes for teachers. This module reads notebooks as plain
JSON, so that the course opens quickly.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from cs336_course.course import PAGES, SIDE_TRIPS
from cs336_lib.config import UserError
from cs336_lib.data.corpus import DATA
from cs336_lib.io import locked, read_json, sha256, write_atomic

COURSE, MINE = Path("notebooks"), Path("my_notebooks")
LECTURES = Path("my_lectures")  # a copy for teachers, with outputs and notes
NOTE = "For the instructor: "  # begins a cell that only teachers need
COVER = "cover"  # tag of a cell whose output a learner sees before running it
CREATE = "here; create it with `cs336 lab`, or `make lab` in a clone"
# A wheel has the notebooks among its data, the repository beside them.
SHIPPED = next(f for f in (DATA / COURSE, DATA.parent / COURSE) if f.is_dir())
COPIES = ".copies.json"  # records what was copied, and marks a folder as a learner's
VERDICTS = ".verdicts.jsonl"  # results of the exercise checks, one per line
GUESSES = ".guesses.jsonl"  # the learner's predictions, one per line
RULES = "AGENTS.md"  # tells AI assistants to explain instead of solving
# It has another name in the package, because an assistant that develops the course may solve.
OUR_RULES = Path(__file__).with_name("for_assistants.md")
LOCK = ".updating"  # held while the folder is updated, since two terminals may start at once
PASSED, WRONG, OPEN = "passed", "not right yet", "not attempted"
TYPO = "typo"  # recorded for a wrong name, which is no attempt at the exercise
BAR = 10
# The kernel's description of its language. JupyterLab writes it into every notebook that it opens,
# and would mark a notebook without it as changed.
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
    """State of an exercise.

    Attributes:
        name: Name of the check.
        verdict: Result of the last attempt, or "passed" since the first that passed.
        said: Diagnosis of the last wrong answer.
        attempts: Number of different answers up to the one that passed.
        section: Section of the notebook that explains the exercise.
    """

    name: str
    verdict: str
    said: str = ""
    attempts: int = 0
    section: str = ""


Progress = Mapping[str, Sequence[Exercise]]  # by notebook: "03_einops"


def describe(path: Path) -> dict[str, Any]:
    """Return the exercises of a notebook, and checksums of its file and cells.

    Checksums of cells exclude outputs, so a notebook that was run but not edited counts as
    unedited.

    Raises:
        UserError: If the file isn't a notebook.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
        marks = [cell["metadata"].get("cs336", {}) for cell in cells]
        named = [mark.get("exercise") for mark in marks]
        asked = {m["prediction"]: [m["answer"], m["topic"]] for m in marks if "prediction" in m}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: not a notebook") from None
    return {
        "file": sha256(path),
        "cells": checksum(sources),
        "shown": checksum([each for each in sources if not each[1].startswith(NOTE)]),
        "exercises": [name for name in named if name],
        "parts": [mark["exercise"] for mark in marks if "part" in mark and "exercise" in mark],
        "predictions": asked,
        "sections": {n: section_of(cells[:i]) for i, n in enumerate(named) if n},
        "hints": [n for i, n in enumerate(named) if n and is_hint(cells[i + 1 : i + 2])],
    }


def checksum(sources: Sequence[tuple[str, str]]) -> str:
    """Return a checksum of the types and sources of cells."""
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def section_of(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the last section heading in the cells, or "" without one."""
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return next(reversed(re.findall(r"^## (.+)", text, flags=re.MULTILINE)), "")


def is_hint(cells: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the first of the cells is a hint."""
    return any("hint" in cell["metadata"].get("tags", []) for cell in cells[:1])


def is_touched(path: Path, copied: Mapping[str, Any]) -> bool:
    """Return whether the learner has edited a cell of a copied notebook."""
    try:
        return describe(path)["cells"] not in (copied.get("cells"), copied.get("shown"))
    except UserError:
        return True


def read_copies(folder: Path) -> dict[str, Any]:
    """Read the record of copied files by name. It is empty before the first copy."""
    try:
        return read_json(folder / COPIES)
    except (UserError, FileNotFoundError):  # without a record, every notebook counts as touched
        return {}


def write_copies(folder: Path, copies: Mapping[str, Any]) -> None:
    """Replace the record of copied files."""
    write_atomic(folder / COPIES, json.dumps(copies, indent=1) + "\n")


def is_learners(folder: Path) -> bool:
    """Return whether a learner works in a folder: a copy, or the course pulled to a JupyterHub."""
    is_pulled = "JUPYTERHUB_USER" in os.environ and any(folder.glob("00_*.ipynb"))
    return is_pulled or (folder / COPIES).exists()


def contents(folder: Path) -> dict[str, Any]:
    """Describe the notebooks in a learner's folder by name. It is empty for other folders."""
    if (folder / COPIES).exists() or not is_learners(folder):
        return read_copies(folder)
    return {path.name: describe(path) for path in originals(SHIPPED)}


def update(course: Path = COURSE, mine: Path = MINE) -> list[str]:
    """Update the learner's copy of the notebooks.

    A notebook is copied if it is new or missing, or if the learner hasn't edited it. Edited
    notebooks aren't changed.

    Returns:
        The names of edited notebooks for which the course has a newer version.

    Raises:
        UserError: If `course` has no notebooks, or `mine` can't be written.
    """
    sources = originals(course)
    try:
        mine.mkdir(exist_ok=True)
        with locked(mine / LOCK, timeout=60):
            return copy_all(sources, mine)
    except OSError as error:
        raise UserError(f"{mine}: cannot be written ({error.strerror or error})") from None


def copy_all(sources: Sequence[Path], mine: Path) -> list[str]:
    """Copy the notebooks and what goes with them, and return what `update` returns."""
    kept = []
    copies = read_copies(mine)
    for source in sources:
        name, new, old = source.name, describe(source), copies.get(source.name, {})
        copy = mine / name
        if copy.exists() and (new["file"] == old.get("file") or is_fresh(copy, source)):
            copies[name] = new  # the course has no newer version
        elif copy.exists() and is_touched(copy, old):
            kept.append(source.stem)
            copies[name] = new | dict.fromkeys(("file", "cells", "shown"), "") | old
        else:
            replace_whole(copy, as_copy(source, mine))
            copies[name] = new
    for style in sources[0].parent.glob("rise.css"):  # RISE looks for it beside the notebook
        replace_whole(mine / style.name, style.read_bytes())
    rules, copied = mine / RULES, copies.get(RULES, {}).get("file")
    if not rules.exists() or sha256(rules) == copied:  # a learner's own rules stay
        replace_whole(rules, OUR_RULES.read_bytes())
        copies[RULES] = {"file": sha256(OUR_RULES)}
    write_copies(mine, copies)
    return kept


def reset(name: str, course: Path = COURSE, mine: Path = MINE) -> tuple[Path, Path | None]:
    """Restore a notebook, and return its path and the path of a backup.

    `name` is a notebook such as 03_einops, or only its number. An edited notebook is backed up in
    the same folder under a name with the date. If it wasn't edited, the second path is `None`.

    Raises:
        UserError: If the notebook doesn't exist, or if the notebooks haven't been copied yet.
    """
    names = [path.stem for path in originals(course)]
    stem = {stem.partition("_")[0]: stem for stem in names}.get(name, name).removesuffix(".ipynb")
    if stem not in names:
        raise UserError(f"no notebook {name!r}; one of {', '.join(names)} expected")
    if not mine.is_dir():
        raise UserError(f"no {mine} {CREATE}")
    source, copy = course / f"{stem}.ipynb", mine / f"{stem}.ipynb"
    kept = None
    with locked(mine / LOCK, timeout=60):
        if copy.exists() and not is_fresh(copy, source):
            kept = new_name(mine / f"{stem}_{datetime.now():%Y-%m-%d_%H%M%S}.ipynb")
            os.replace(copy, kept)
        replace_whole(copy, as_copy(source, mine))
        write_copies(mine, read_copies(mine) | {copy.name: describe(source)})
    return copy, kept


def new_name(path: Path) -> Path:
    """Return the path, or if it exists, one with the next number that is free."""
    numbered = (path.with_name(f"{path.stem}_{number}{path.suffix}") for number in count(2))
    return next(free for free in chain([path], numbered) if not free.exists())


def for_learners(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook without outputs and without the notes for teachers."""
    kept = []
    for cell in notebook["cells"]:
        if "".join(cell["source"]).startswith(NOTE):
            continue
        if cell["cell_type"] == "code" and COVER not in cell["metadata"].get("tags", []):
            cell = cell | {"outputs": [], "execution_count": None}
        kept.append(cell)
    return notebook | {"cells": kept}


def as_copy(source: Path, folder: Path) -> bytes:
    """Return what a folder gets of a notebook, with the version of this Python in its metadata.

    Only `LECTURES` gets the outputs and the notes for teachers.
    """
    notebook = json.loads(source.read_text(encoding="utf-8"))
    if folder.name != LECTURES.name:
        notebook = for_learners(notebook)
    notebook["metadata"]["language_info"] = LANGUAGE
    # in the form that Jupyter writes
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    return f"{text}\n".encode()


def is_fresh(copy: Path, source: Path) -> bool:
    """Return whether a copy is identical to the notebook of the course."""
    return copy.read_bytes() in (source.read_bytes(), as_copy(source, copy.parent))


def replace_whole(target: Path, content: bytes) -> None:
    """Write a file so that a crash leaves either the old or the new content."""
    temporary = target.with_name(f".tmp-{target.name}")
    temporary.write_bytes(content)
    os.replace(temporary, target)


def find_course() -> Path:
    """Return the notebooks of the clone in the current folder, or else those of the package."""
    return COURSE if any(COURSE.glob("00_*.ipynb")) else SHIPPED


def originals(course: Path) -> list[Path]:
    """Return the notebooks of the course in order.

    Raises:
        UserError: If there are no notebooks.
    """
    paths = (course / f"{page.name}.ipynb" for page in PAGES)
    found = [path for path in paths if path.exists()]
    if not found:
        raise UserError(f"{course}: no notebooks found; run this in the folder of the course")
    return found


def here() -> Path:
    """Return the folder of the course that has this kernel's notebook; `%cd` doesn't change it.

    Outside a notebook, it is the current folder.
    """
    from IPython.core.getipython import get_ipython  # opening the course doesn't need it

    shell = get_ipython()
    folder = Path(shell.starting_dir) if shell else Path.cwd()
    return folder.parent if folder.name == SIDE_TRIPS else folder


def record(folder: Path, name: str, verdict: str, said: str = "", cell: str = "") -> None:
    """Record the verdict of a check if a learner works in `folder`.

    `folder` is what `here` returns, and `cell` is a checksum of the answer.
    Verdicts are appended as lines, so that several open notebooks can write to the same file.
    """
    if not is_learners(folder):
        return
    row = {"exercise": name, "verdict": verdict, "said": " ".join(said.split()), "cell": cell}
    append(folder / VERDICTS, row)


def wrong_attempts(folder: Path, name: str) -> int:
    """Count the different wrong answers to an exercise.

    Running a cell again doesn't count, and neither does a typo.
    """
    rows = read_rows(folder / VERDICTS, ("exercise", "verdict", "cell"))
    mine = (row for row in rows if row["exercise"] == name)
    return len({row["cell"] for row in mine if row["verdict"] == WRONG})


def has_hint(folder: Path, name: str) -> bool:
    """Return whether a hint follows the exercise in the learner's copy."""
    return any(name in copied.get("hints", []) for copied in contents(folder).values())


def record_guess(folder: Path, name: str, guess: str) -> None:
    """Record a prediction if a learner works in `folder`."""
    if is_learners(folder):
        append(folder / GUESSES, {"prediction": name, "guess": guess})


def append(path: Path, row: Mapping[str, str]) -> None:
    """Append a row with the current time to a JSON lines file.

    A full disk may have torn the last line. The row then starts on a line of its own.
    """
    row = {**row, "at": datetime.now().isoformat(timespec="seconds")}
    try:
        with open(path, "ab+") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            is_torn = file.read() not in (b"", b"\n")
            file.write(b"\n" * is_torn + json.dumps(row).encode() + b"\n")
    except OSError:
        pass  # on a full disk, the learner should still see the verdict


def progress(folder: Path) -> Progress:
    """Return the state of all exercises in a learner's copy of the notebooks.

    A passed exercise stays passed, even if a later check fails. Otherwise, the last verdict counts.
    The result is empty if `folder` isn't a learner's copy.
    """
    latest: dict[str, Exercise] = {}
    cells: dict[str, set[str]] = {}
    for row in read_rows(folder / VERDICTS, ("exercise", "verdict", "said", "cell")):
        name = row["exercise"]
        if name not in latest or latest[name].verdict != PASSED:
            cells.setdefault(name, set()).add(row["cell"])
            verdict = WRONG if row["verdict"] == TYPO else row["verdict"]
            latest[name] = Exercise(name, verdict, row["said"], len(cells[name]))
    return {
        name.removesuffix(".ipynb"): [
            replace(
                latest.get(exercise, Exercise(exercise, OPEN)),
                section=copied.get("sections", {}).get(exercise, ""),
            )
            for exercise in copied["exercises"]
        ]
        for name, copied in sorted(contents(folder).items())
        if name.endswith(".ipynb")
    }


def what_next(folder: Path, name: str) -> list[str]:
    """Return where an exercise that was passed leaves the learner, in a sentence or two.

    It is empty if `folder` isn't a learner's copy.
    """
    found = progress(folder)
    passed = {e.name for listed in found.values() for e in listed if e.verdict == PASSED} | {name}
    here = next((names for listed in found.values() if name in (names := names_of(listed))), [])
    if not here:
        return []
    left = [each for each in here if each not in passed]
    said = [f"{len(here) - len(left)} of {len(here)} in this notebook"]
    if left:
        said[0] += f", next: {left[0]}"
    parts = [part for copied in contents(folder).values() for part in copied.get("parts", [])]
    if name in parts:
        mine = len(passed.intersection(parts))
        said.append(f"You have written {mine} of {len(parts)} parts of your train_gpt2.py")
    return [f"{each}." for each in said]


def names_of(exercises: Sequence[Exercise]) -> list[str]:
    """Return the names of exercises."""
    return [exercise.name for exercise in exercises]


def read_rows(path: Path, names: Sequence[str]) -> list[dict[str, str]]:
    """Read the fields `names` from each line of a record. Incomplete lines are ignored.

    Records of earlier versions have no checksum of the cell, so each line counts as its own.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:  # no record yet
        return []
    rows = []
    for number, line in enumerate(text.splitlines()):
        try:
            row = {"cell": f"line {number}"} | json.loads(line)
            rows.append({name: row[name] for name in names})
        except (ValueError, KeyError, TypeError):
            continue
    return rows


def intuition(folder: Path) -> str:
    """Format the number of correct first guesses, one line per topic.

    The result is empty if there are no guesses.
    """
    first: dict[str, str] = {}
    for row in read_rows(folder / GUESSES, ("prediction", "guess")):
        first.setdefault(row["prediction"], row["guess"])
    right: dict[str, list[bool]] = {}
    for copied in contents(folder).values():
        for name, (answer, topic) in copied.get("predictions", {}).items():
            if name in first:
                right.setdefault(topic, []).append(first[name] == answer)
    lines = [f"    {topic:<22} {sum(hits)} of {len(hits)}" for topic, hits in right.items()]
    return "\n".join(["predictions that were right", *lines]) if lines else ""


def bars(found: Progress) -> str:
    """Format one line per notebook with a progress bar and the next exercise."""
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
    """Format the progress bar of one notebook."""
    done = sum(exercise.verdict == PASSED for exercise in exercises)
    filled = BAR * done // max(1, len(exercises))
    return f"{name:<22} {'█' * filled}{'░' * (BAR - filled)} {done} of {len(exercises)}"


def report(found: Progress) -> str:
    """Format the exercises of each notebook by verdict.

    A wrong answer is listed with its diagnosis and the section to read again.
    """
    lines = []
    for name, exercises in found.items():
        lines.append(bar_line(name, exercises))
        for verdict in (PASSED, OPEN):
            if listed := [e.name + tries(e) for e in exercises if e.verdict == verdict]:
                lines.append(f"    {verdict:<14} {', '.join(listed)}")
        for wrong in (e for e in exercises if e.verdict == WRONG):
            lines.append(f"    {wrong.verdict:<14} {wrong.name}{tries(wrong)}: {wrong.said}")
            if wrong.section:
                lines.append(f"    {'':<14} Read section {wrong.section!r} again.")
    every = [exercise for exercises in found.values() for exercise in exercises]
    count = {v: sum(e.verdict == v for e in every) for v in (PASSED, WRONG, OPEN)}
    lines.append(", ".join(f"{number} {verdict}" for verdict, number in count.items()))
    return "\n".join(lines)


def tries(exercise: Exercise) -> str:
    """Format the number of attempts, if it is more than one."""
    return f" ({exercise.attempts} attempts)" if exercise.attempts > 1 else ""


def find() -> Path:
    """Find the learner's notebooks in the current folder.

    They are in the current folder itself, in the subfolder that `make lab` creates, or on a
    JupyterHub in the folder of the course.

    Raises:
        UserError: If there is no copy.
    """
    for folder in (Path.cwd(), Path.cwd() / MINE, Path.cwd() / COURSE):
        if is_learners(folder):
            return folder
    raise UserError(f"no {MINE} {CREATE}")


def update_and_report(course: Path, mine: Path = MINE) -> None:
    """Update the copy, and print which edited notebooks have a newer version."""
    if kept := update(course, mine):
        command = "make reset NOTEBOOK=" if course == COURSE else "cs336 lab --reset "
        if mine == LECTURES:
            command = "cs336 lab --lectures --reset "
        print(
            f"Yours, though the course has newer ones: {', '.join(kept)}. "
            f"`{command}{kept[0]}` takes the new one and keeps your copy."
        )


def reset_and_report(name: str, course: Path, mine: Path = MINE) -> None:
    """Restore a notebook, and print where the edited one is."""
    fresh, old = reset(name, course, mine)
    print(f"{fresh} is as the course has it" + (f"; yours is now {old}" if old else ""))


def main(arguments: Sequence[str] | None = None) -> None:
    """Update the learner's copy (`make lab`), or restore a notebook (`make reset`)."""
    parser = argparse.ArgumentParser(prog="study", description=main.__doc__)
    parser.add_argument("--reset", metavar="NOTEBOOK", help="as in 03_einops")
    name = parser.parse_args(arguments).reset
    try:
        if name is not None:
            reset_and_report(name, find_course())
        else:
            update_and_report(find_course())
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
