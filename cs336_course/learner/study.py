"""Manage the learner's copy of the notebooks and the record of passed exercises.

Learners edit a copy of the notebooks that git ignores, so `git pull` never conflicts with their
edits. The copy is next to the original folder, so relative links work in both. It has no outputs,
which would answer the predictions. This module reads notebooks as plain JSON, so that the course
opens quickly.
"""

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import Any

from cs336_course.course import PAGES, SIDE_TRIPS
from cs336_lib.config import UserError
from cs336_lib.data.corpus import DATA
from cs336_lib.io import locked, read_json, sha256, write_atomic

COURSE, MINE = Path("notebooks"), Path("my_notebooks")
LECTURES = Path("my_lectures")  # a copy for teachers, with outputs
STUB = re.compile(r"raise NotImplementedError|[=:,] \.\.\.")  # what an exercise leaves open
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
        section: Section of the notebook that explains the exercise.
        is_part: Whether the answer is a part of the one-file trainer.
        has_hint: Whether a hint follows.
        verdict: Result of the last attempt, or "passed" since the first that passed.
        said: Diagnosis of the last wrong answer.
    """

    name: str
    section: str = ""
    is_part: bool = False
    has_hint: bool = False
    verdict: str = OPEN
    said: str = ""


Progress = Mapping[str, Sequence[Exercise]]  # by notebook: "03_einops"


def read_cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook, whose sources are text.

    Raises:
        UserError: If the file isn't a notebook.
    """
    try:
        cells = json.loads(path.read_bytes())["cells"]
        found = [{"metadata": {}, **cell, "source": "".join(cell["source"])} for cell in cells]
        return [cell for cell in found if cell["cell_type"]]  # a notebook's cells have one
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{path}: not a notebook") from None


@cache
def shipped(page: str) -> list[dict[str, Any]]:
    """Return the cells of a notebook of the course, as they were when it was first read."""
    return read_cells(SHIPPED / f"{page}.ipynb")


def marks_of(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the course's marks in the metadata of a cell, of which others may be left."""
    metadata = cell["metadata"]
    found = metadata.get("cs336", {}) if isinstance(metadata, dict) else {}
    return found if isinstance(found, dict) else {}


def solution(cells: Sequence[Mapping[str, Any]], exercise: str) -> str:
    """Return the printed solution of an exercise, or "" if a handout leaves it out."""
    found = False
    for cell in cells:
        name = marks_of(cell).get("exercise")
        found = name == exercise if name else found
        if found and "solution" in cell["metadata"].get("tags", []):
            (block,) = re.findall(r"```python\n(.*?)```", "".join(cell["source"]), flags=re.S)
            return block
    return ""


def describe(path: Path) -> dict[str, str]:
    """Return checksums of a notebook's file, and of its cells without outputs.

    So a notebook that was run but not edited counts as unedited.

    Raises:
        UserError: If the file isn't a notebook.
    """
    sources = [(cell["cell_type"], cell["source"]) for cell in read_cells(path)]
    cells = hashlib.sha256(json.dumps(sources).encode()).hexdigest()
    return {"file": sha256(path), "cells": cells}


Predictions = Mapping[str, tuple[str, str]]  # right answer and topic


@cache
def read_page(path: Path, changed: int) -> tuple[Sequence[Exercise], Predictions]:
    """Read the exercises and predictions of a notebook, whose file `changed` at that time."""
    exercises, predictions, section = [], {}, ""
    cells = read_cells(path)
    for i, cell in enumerate(cells):
        marks = marks_of(cell)
        if cell["cell_type"] == "markdown":
            headings = re.findall(r"^## (.+)", cell["source"], re.MULTILINE)
            section = headings[-1] if headings else section
        if "exercise" in marks:
            has_hint = any("hint" in c["metadata"].get("tags", []) for c in cells[i + 1 : i + 2])
            exercises.append(Exercise(marks["exercise"], section, "part" in marks, has_hint))
        if "prediction" in marks:
            predictions[marks["prediction"]] = marks["answer"], marks["topic"]
    return exercises, predictions


def course_of(folder: Path) -> dict[str, tuple[Sequence[Exercise], Predictions]]:
    """Return what each notebook has, by its name, for a learner's folder, or else nothing."""
    paths = originals(SHIPPED) if is_learners(folder) else []
    return {name_of(path, SHIPPED): read_page(path, path.stat().st_mtime_ns) for path in paths}


def name_of(path: Path, course: Path) -> str:
    """Return the name of a notebook in a folder, such as "side_trips/low_bits"."""
    return path.relative_to(course).with_suffix("").as_posix()


def is_touched(path: Path, copied: Mapping[str, Any]) -> bool:
    """Return whether the learner has edited a cell of a copied notebook.

    In records of the third edition, "shown" is the copy without the course's notes for teachers.
    """
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


def update(course: Path = COURSE, mine: Path = MINE) -> list[str]:
    """Update the learner's copy of the notebooks, and print what isn't as in the course.

    A notebook is copied if it is new or missing, or if the learner hasn't edited it. Edited
    notebooks aren't changed.

    Returns:
        The names of edited notebooks for which the course has a newer version.

    Raises:
        UserError: If `course` has no notebooks, or `mine` can't be written.
    """
    originals(course)
    before = read_copies(mine)
    try:
        mine.mkdir(exist_ok=True)
        with locked(mine / LOCK, timeout=60):
            kept = copy_all(course, mine)
    except OSError as error:
        raise UserError(f"{mine}: cannot be written ({error.strerror or error})") from None
    if kept:
        command = "make reset NOTEBOOK=" if course == COURSE else "cs336 lab --reset "
        if mine == LECTURES:
            command = "cs336 lab --lectures --reset "
        print(
            f"Yours, though the course has newer ones: {', '.join(kept)}. "
            f"`{command}{kept[0]}` takes the new one and keeps your copy."
        )
    after = read_copies(mine)
    for file in [file for file in before if before[file] and after.get(file) == {}]:
        now = [name_of(path, course) for path in originals(course) if share(path, mine / file)]
        where = f"now {', '.join(now)}. Your answers are there" if now else "no page any more"
        print(f"{file.removesuffix('.ipynb')} is {where}, and your file stays.")
    return kept


def share(one: Path, other: Path) -> bool:
    """Return whether two notebooks share an exercise, as after the pages got other names."""
    with suppress(UserError, OSError, LookupError, TypeError, AttributeError):
        pages = [read_page(path, path.stat().st_mtime_ns)[0] for path in (one, other)]
        names = [{exercise.name for exercise in page} for page in pages]
        return not names[0].isdisjoint(names[1])
    return False


def copy_all(course: Path, mine: Path) -> list[str]:
    """Copy the notebooks and what goes with them, and return what `update` returns."""
    kept, copies = [], read_copies(mine)
    answers = answers_of(mine, copies)
    for source in originals(course):
        name = name_of(source, course)
        file, copy = f"{name}.ipynb", mine / f"{name}.ipynb"
        new, old = describe(source), copies.get(file, {})
        if copy.exists() and (new["file"] == old.get("file") or is_fresh(copy, source, mine)):
            copies[file] = new  # the course has no newer version
        elif copy.exists() and is_touched(copy, old):
            kept.append(name)
            copies[file] = dict.fromkeys(new, "") | old
        else:
            copy.parent.mkdir(exist_ok=True)
            moved = answers if mine.name != LECTURES.name and not copy.exists() else {}
            replace_whole(copy, as_copy(source, mine, moved))
            copies[file] = new
    pages = {f"{page.name}.ipynb" for page in PAGES}
    for file in [file for file in copies if file.endswith(".ipynb") and file not in pages]:
        old_copy = mine / file  # without work in it, a notebook of another edition is in the way
        if old_copy.exists() and is_touched(old_copy, copies[file]):
            copies[file] = {}  # its answers are still found
        else:
            old_copy.unlink(missing_ok=True)
            del copies[file]
    for style in course.glob("rise.css"):  # RISE looks for it beside each notebook
        for folder in {(mine / name_of(source, course)).parent for source in originals(course)}:
            replace_whole(folder / style.name, style.read_bytes())
    rules, copied = mine / RULES, copies.get(RULES, {}).get("file")
    if not rules.exists() or sha256(rules) == copied:  # a learner's own rules stay
        replace_whole(rules, OUR_RULES.read_bytes())
        copies[RULES] = {"file": sha256(OUR_RULES)}
    write_copies(mine, copies)
    return kept


def answers_of(mine: Path, copies: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of the exercises in the notebooks that a learner has edited, by name.

    A stub that wasn't checked isn't an answer, although it may differ from the course's of today.
    """
    checked = {row["exercise"] for row in read_rows(mine / VERDICTS, ("exercise",))}
    found = {}
    for file, record in copies.items():
        path = mine / file
        if path.suffix != ".ipynb" or not path.exists() or not is_touched(path, record):
            continue
        with suppress(UserError):
            for cell in read_cells(path):
                name, source = marks_of(cell).get("exercise", ""), cell["source"]
                if name and (name in checked or not STUB.search(source)):
                    found[name] = source
    return found


def reset(name: str, course: Path = COURSE, mine: Path = MINE) -> tuple[Path, Path | None]:
    """Restore a notebook, and return its path and the path of a backup, which are printed.

    `name` is a notebook such as 03_einops, or only its number. An edited notebook is backed up in
    the same folder under a name with the date. If it wasn't edited, the second path is `None`.

    Raises:
        UserError: If the notebook doesn't exist, or if the notebooks haven't been copied yet.
    """
    names = {name_of(path, course): path for path in originals(course)}
    keys = {page.key: page.name for page in PAGES if page.name in names}
    wanted = keys.get(name, name).removesuffix(".ipynb")
    if wanted not in names:
        raise UserError(f"no notebook {name!r}; one of {', '.join(names)} expected")
    if not mine.is_dir():
        raise UserError(f"no {mine} {CREATE}")
    source, copy, kept = names[wanted], mine / f"{wanted}.ipynb", None
    with locked(mine / LOCK, timeout=60):
        if copy.exists() and not is_fresh(copy, source, mine):
            kept = new_name(copy.with_stem(f"{copy.stem}_{datetime.now():%Y-%m-%d_%H%M%S}"))
            os.replace(copy, kept)
        copy.parent.mkdir(exist_ok=True)
        replace_whole(copy, as_copy(source, mine))
        write_copies(mine, read_copies(mine) | {f"{wanted}.ipynb": describe(source)})
    print(f"{copy} is as the course has it" + (f"; yours is now {kept}" if kept else ""))
    return copy, kept


def new_name(path: Path) -> Path:
    """Return the path, or if it exists, one with the next number that is free."""
    numbered = (path.with_name(f"{path.stem}_{number}{path.suffix}") for number in count(2))
    return next(free for free in chain([path], numbered) if not free.exists())


def for_learners(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook without outputs."""
    cells = [
        cell | {"outputs": [], "execution_count": None}
        if cell["cell_type"] == "code" and COVER not in cell["metadata"].get("tags", [])
        else cell
        for cell in notebook["cells"]
    ]
    return notebook | {"cells": cells}


def as_copy(source: Path, folder: Path, answers: Mapping[str, str] | None = None) -> bytes:
    """Return what a folder gets of a notebook, with the version of this Python in its metadata.

    Only `LECTURES` gets the outputs.

    Args:
        source: The notebook.
        folder: The folder.
        answers: Cells of exercises that replace the stubs, by the name of the exercise.
    """
    notebook = json.loads(source.read_text(encoding="utf-8"))
    if folder.name != LECTURES.name:
        notebook = for_learners(notebook)
    for cell in notebook["cells"]:
        cell["source"] = (answers or {}).get(marks_of(cell).get("exercise", ""), cell["source"])
    notebook["metadata"]["language_info"] = LANGUAGE
    # in the form that Jupyter writes
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    return f"{text}\n".encode()


def is_fresh(copy: Path, source: Path, folder: Path) -> bool:
    """Return whether a copy in a folder is identical to the notebook of the course."""
    return copy.read_bytes() in (source.read_bytes(), as_copy(source, folder))


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
    pages = course_of(folder).values()
    return any(each.name == name and each.has_hint for page, _ in pages for each in page)


def record_guess(folder: Path, name: str, guess: str) -> None:
    """Record a prediction if a learner works in `folder`."""
    if is_learners(folder):
        append(folder / GUESSES, {"prediction": name, "guess": guess})


def append(path: Path, row: Mapping[str, str]) -> None:
    """Append a row to a JSON lines file.

    A full disk may have torn the last line. The row then starts on a line of its own.
    """
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
    latest: dict[str, dict[str, str]] = {}
    for row in read_rows(folder / VERDICTS, ("exercise", "verdict", "said")):
        name = row.pop("exercise")
        if name not in latest or latest[name]["verdict"] != PASSED:
            latest[name] = row | {"verdict": WRONG if row["verdict"] == TYPO else row["verdict"]}
    return {
        name: [replace(each, **latest.get(each.name, {})) for each in exercises]
        for name, (exercises, _) in course_of(folder).items()
    }


def what_next(folder: Path, name: str) -> list[str]:
    """Return where an exercise that was passed leaves the learner, in a sentence or two.

    It is empty if `folder` isn't a learner's copy.
    """
    pages = progress(folder).values()
    here = next((page for page in pages if name in [each.name for each in page]), [])
    if not here:
        return []
    left = [each.name for each in here if each.verdict != PASSED and each.name != name]
    said = f"{len(here) - len(left)} of {len(here)} in this notebook"
    said = [f"{said}, next: {left[0]}." if left else f"{said}."]
    parts = [each for page in pages for each in page if each.is_part]
    if name in [each.name for each in parts]:
        mine = sum(each.verdict == PASSED or each.name == name for each in parts)
        said.append(f"You have written {mine} of {len(parts)} parts of your train_gpt2.py.")
    return said


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
    for _, predictions in course_of(folder).values():
        for name, (answer, topic) in predictions.items():
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
    bar = "█" * filled + "░" * (BAR - filled)
    return f"{name.rpartition('/')[2]:<22} {bar} {done} of {len(exercises)}"


def report(found: Progress) -> str:
    """Format the exercises of each notebook by verdict.

    A wrong answer is listed with its diagnosis and the section to read again.
    """
    lines = []
    for name, exercises in found.items():
        lines.append(bar_line(name, exercises))
        for verdict in (PASSED, OPEN):
            if listed := [e.name for e in exercises if e.verdict == verdict]:
                lines.append(f"    {verdict:<14} {', '.join(listed)}")
        for wrong in (e for e in exercises if e.verdict == WRONG):
            lines.append(f"    {wrong.verdict:<14} {wrong.name}: {wrong.said}")
            if wrong.section:
                lines.append(f"    {'':<14} Read section {wrong.section!r} again.")
    every = [exercise for exercises in found.values() for exercise in exercises]
    count = {v: sum(e.verdict == v for e in every) for v in (PASSED, WRONG, OPEN)}
    lines.append(", ".join(f"{number} {verdict}" for verdict, number in count.items()))
    return "\n".join(lines)


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


def main(arguments: Sequence[str]) -> None:
    """Update the learner's copy (`make lab`), or restore a notebook (`make reset`)."""
    try:
        if arguments[:1] == ["--reset"]:
            reset("".join(arguments[1:]), find_course())
        else:
            update(find_course())
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
