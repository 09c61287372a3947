"""Assemble the one-file trainers that a learner writes in the notebooks."""

import ast
import builtins
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from cs336_course.course import page_of
from cs336_course.learner import study
from cs336_course.learner.study import solution
from cs336_course.one_file import cell_slice
from cs336_course.one_file.processes import ERROR, MEMORY, NO_RESULT, NO_VERDICT, TIME, Process
from cs336_course.one_file.recipes import TRAIN_GPT2
from cs336_lib.io import write_atomic

UNTOUCHED = "not attempted yet"
WRONG = "yours isn't right yet"
NO_CELL = "your notebook has no cell for"
NO_NOTEBOOK = "this folder has no notebook"
TAKEN = "the file already has a `{}`; give yours another name"
SECONDS = 120  # for a part and its check
FOOTER = """if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # so that a terminal's encoding can't end a run
    main(tyro.cli(Config))
"""
# Verdicts on earlier jobs, because a notebook asks for the same parts several times
known: dict[str, tuple[str, str, str]] = {}


@dataclass(frozen=True)
class Part:
    """A part of the assembled file.

    Attributes:
        name: Name of the part. A later notebook can define a new part with the same name.
        notebook: Number of the notebook that defines the part, such as "07".
        code: Source code of the part.
        given: Whether the notebook provides the code. If not, the part is an exercise.
        missing: Reason why the learner's cell isn't used, or "" if it is used.
        is_changed: Whether the code is given, and the learner has changed it.
        later: Reason why the learner's answer in a later notebook isn't used, or "".
        path: Learner's notebook, or `None` without one.
        course: The course's code of the part.
        check: What `worker.in_file` reads of the part's check.
    """

    name: str
    notebook: str
    code: str
    given: bool
    missing: str = ""
    is_changed: bool = False
    later: str = ""
    path: Path | None = None
    course: str = ""
    check: Mapping[str, Any] = field(default_factory=dict)

    def replaced(self, reason: str) -> "Part":
        """Return the course's code instead of the learner's, which only a check alone accepts."""
        missing = f"right alone, but {reason}"
        return replace(self, code=self.course, missing=missing, is_changed=False)

    @property
    def is_mine(self) -> bool:
        """Whether the learner wrote this part."""
        return not self.given and not self.missing

    @property
    def is_wrong(self) -> bool:
        """Whether the learner's cell isn't used because it isn't right."""
        missing = self.missing
        return missing not in ("", UNTOUCHED) and not missing.startswith((NO_CELL, NO_NOTEBOOK))


@dataclass(frozen=True)
class Notebook:
    """A notebook of the course and the learner's copy.

    Attributes:
        number: Number of the notebook, such as "07".
        course: Cells of the course's notebook, which says which parts there are.
        cells: Code and exercise of each code cell of the learner's copy.
        path: Learner's copy, or `None` without one.
    """

    number: str
    course: Sequence[Mapping[str, Any]]
    cells: Sequence[tuple[str, str]]
    path: Path | None

    @property
    def checks(self) -> str:
        """Module of the checks."""
        room = page_of(self.number).name.rpartition("/")[2].lstrip("0123456789_")
        return f"cs336_course.pages.{room}.exercises"

    @cached_property
    def given(self) -> frozenset[str]:
        """Statements of the course's notebook, in the form of `ast.dump`.

        An answer can use the imports, so these are left out. The file needs none of our packages.
        """
        sources = [cell["source"] for cell in self.course if cell["cell_type"] == "code"]
        found = [one for source in sources for one in cell_slice.statements(source)]
        return frozenset(ast.dump(one.node) for one in found if not is_import(one.node))


def is_import(node: ast.stmt) -> bool:
    """Return whether a statement imports something from another package."""
    is_ours = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cs336_")
    return isinstance(node, (ast.Import, ast.ImportFrom)) and not is_ours


def parts(folder: Path | None, until: str = "") -> list[Part]:
    """Read the parts of a file from the notebooks in `folder`.

    The course's notebooks say which parts there are. If the learner's code for an exercise passes
    the check, it is used. Otherwise, the printed solution is used. Without a folder, the notebooks
    are those beside the kernel's notebook, and the course's for those that aren't there.

    Args:
        folder: Folder of the notebooks.
        until: Last notebook to take parts from (default: the file's last).

    Raises:
        FileNotFoundError: If a notebook is missing.
        UserError: If a file isn't a notebook, or if no part is in a notebook `until`.
    """
    found = dict[str, Part]()
    with Process() as process:
        for number in TRAIN_GPT2.notebooks_until(until):
            read_notebook(open_notebook(folder, number), found, process)
        check_whole(found, process)
    return list(found.values())


def open_notebook(folder: Path | None, number: str) -> Notebook:
    """Read the learner's copy of a notebook and the course's.

    The copy with the course's name is used. Without it, it is chosen as `cs336 grade` does.

    Raises:
        FileNotFoundError: If `folder` doesn't have the notebook.
        UserError: If a file isn't a notebook.
    """
    name, place = page_of(number).name, folder or study.here()
    course, path = study.SHIPPED / f"{name}.ipynb", place / f"{name}.ipynb"
    found = path if path.exists() else cell_slice.newest_copy(path.parent.glob("*.ipynb"), course)
    if folder and found is None:
        raise FileNotFoundError(
            f"{place.resolve()}: no notebook {number}_*.ipynb; give the folder of the notebooks"
        )
    cells = cell_slice.read_code(found) if found else []
    return Notebook(number, study.read_cells(course), cells, found)


def read_notebook(book: Notebook, found: dict[str, Part], process: Process) -> None:
    """Add the parts of a notebook to those `found` in earlier ones, in the order of the course.

    An answer to an earlier exercise stays if the one here isn't right, unless the course says that
    the part replaces it. (The earlier one would be wrong with several processes.)
    """
    for cell in book.course:
        marks = study.marks_of(cell)
        if marks.get("part") not in TRAIN_GPT2.parts:
            continue
        name, source = marks["part"], cell["source"].strip()
        others = (part.code for part in found.values() if part.name != name)
        before = "\n\n\n".join([TRAIN_GPT2.header, *others])
        exercise = marks.get("exercise", "")
        ours = solution(book.course, exercise) if exercise else source
        if not ours:
            raise ValueError(f"the course's notebook {book.number} has no solution of {name}")
        call, check = check_of(book, exercise, source)
        code, missing = written(book, source, before, call, check, process)
        is_changed = not exercise and code not in ("", source)
        code, ours = (code or ours).strip(), ours.strip()
        part = Part(name, book.number, code, not exercise, missing, is_changed, "", book.path)
        part = replace(part, course=ours, check=check)
        earlier = found.get(name)
        if earlier and earlier.is_mine and not (part.is_mine or marks.get("replaces")):
            part = replace(earlier, later=missing)
        found[name] = part


def check_of(book: Notebook, exercise: str, source: str) -> tuple[ast.Call, dict[str, Any]]:
    """Return the call of the check in a cell of the course, and what `worker.in_file` reads of it.

    A given part only has to run.
    """
    nodes = ast.parse(source).body
    call = cell_slice.check_call(nodes[-1]) if exercise else None
    assert call or not exercise, f"{exercise} doesn't end with its check"
    if call is None:
        defined = [n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
        call = ast.Call(ast.Name("given"), [ast.Name(name) for name in defined], [])
    arguments = [ast.unparse(argument) for argument in call.args]
    checks = book.checks if exercise else ""
    return call, {"checks": checks, "check": exercise, "arguments": arguments}


def written(
    book: Notebook, source: str, before: str, call: ast.Call, check: dict[str, Any], run: Process
) -> tuple[str, str]:
    """Return the learner's code of a part and "", or "" and the reason why it isn't used.

    Args:
        book: The notebook.
        source: Code of the course's cell.
        before: Code of the file above the part.
        call: Call of the check in the course's cell.
        check: What `worker.in_file` reads of it.
        run: Process that runs the learner's code.
    """
    names, exercise = cell_slice.names_in(call.args), check["check"]
    at = cell_slice.locate(book.cells, exercise, source, names)
    is_untouched = at is not None and book.cells[at][0].split() == source.split()
    if exercise and is_untouched:
        return "", UNTOUCHED
    if not exercise and (is_untouched or book.path is None):
        return source, ""
    if book.path is None:
        return "", f"{NO_NOTEBOOK} {book.number}"
    if at is None:
        return "", f"{NO_CELL} {', '.join(sorted(names))}"
    ours = names_of(before) - names
    course = cell_slice.Course(book.given, ours, ours.union(dir(builtins)))
    sources, reasons = [one for one, _ in book.cells], []
    try:
        for attempt in cell_slice.attempts(sources[at], exercise):
            found = cell_slice.answer(sources, at, call, course, attempt)
            code = found.text(call)
            reasons.append(reason(run, before=before, code=code, **check))
            if not reasons[-1]:
                return code, ""
    except LookupError as error:
        return "", f"your cell doesn't define {error}"
    except (SyntaxError, ValueError, RecursionError) as error:
        return "", f"your code raised {type(error).__name__}: {error}"
    given = book.given.union(ast.dump(each.node) for each in cell_slice.statements(before))
    unmarked = [one for one, mark in book.cells if not mark]
    others = cell_slice.read(unmarked, cell_slice.Course(given, (), ()))
    theirs = {name for each in others if not is_import(each.node) for name in each.binds}
    taken = theirs & ours & {name for each in found.own for name in each.uses}
    return "", "; ".join([reasons[0].rstrip("."), *map(TAKEN.format, sorted(taken)[:1])])


def names_of(code: str) -> set[str]:
    """Return the names that code of a file binds."""
    return {name for each in cell_slice.statements(code) for name in each.binds}


def check_whole(found: dict[str, Part], process: Process) -> None:
    """Take the course's code for each part that is right alone and spoils the whole file."""
    for name, part in reversed(found.items()):
        others = [TRAIN_GPT2.header, *(one.code for one in found.values() if one is not part)]
        more = names_of(part.code) - names_of(part.course)
        if taken := more & set().union(*map(names_of, others)):
            found[name] = part.replaced(TAKEN.format(min(taken)))
    whole = text(list(found.values()))
    for name, part in found.items():
        said = reason(process, before=whole, code="", **part.check) if part.is_mine else ""
        if said:
            found[name] = part.replaced(f"in the whole file, {said}")


def reason(process: Process, **job: Any) -> str:
    """Return why a part isn't right, or "".

    Args:
        process: Process that runs the learner's code.
        job: The part, as `worker.in_file` reads it.
    """
    key = json.dumps(job)
    if key not in known:
        known[key] = process.do(job, SECONDS)
    verdict, said, _ = known[key]
    if verdict == study.OPEN:
        return UNTOUCHED
    if verdict == TIME:
        return f"your code took more than {SECONDS:g} seconds"
    if verdict == MEMORY:
        return "your code took more memory than there is"
    if said in (NO_RESULT, NO_VERDICT):
        return "your code ended Python"
    if unknown := re.search("NameError: (name '.*' is not defined)", said):
        return f"{unknown[1]} in train_gpt2.py; import it by name, or make it, in the cell"
    return f"your code raised {said}".rstrip(": ") if verdict == ERROR else said


def text(found: list[Part]) -> str:
    """Join parts into the text of a file, in sections.

    If the learner wrote at least one part, comments mark the reference solutions.
    """
    marked = any(part.is_mine for part in found)
    parts, pieces = {part.name: part for part in found}, []
    for section, names in TRAIN_GPT2.outline.items():
        here = [parts[name] for name in names.split() if name in parts]
        if here:
            pieces.append(f"# {f' {section} ':=^94}")
        for part in here:
            is_ours = marked and not part.given and part.missing
            mark = f"# From the solutions of notebook {part.notebook}.\n" if is_ours else ""
            pieces.append(mark + part.code)
    if "main" in parts:
        pieces.append(FOOTER)
    body = "\n\n\n".join(pieces)
    whole = f"{header(body, TRAIN_GPT2.header)}\n\n\n{body.rstrip()}\n"
    return cell_slice.with_futures_first(whole)


def header(body: str, whole: str) -> str:
    """Return the whole header without the imports and the settings that the body doesn't use."""
    lines = []
    for line in whole.rstrip().splitlines():
        if found := re.match(r"(from \S+ import|import) (.+)", line):
            names = [name for name in found[2].split(", ") if is_used(name, whole + body)]
            if not names:
                continue
            line = f"{found[1]} {', '.join(names)}"
        setting = re.match(r"    (\w+): .* = ", line)
        if setting and not re.search(rf"\.{setting[1]}\b", body):
            continue
        if "torchrun" in line and "dist." not in body:
            continue
        lines.append(line)
    return "\n".join(lines)


def is_used(name: str, text: str) -> bool:
    """Return whether a text uses an imported name, such as "torch.nn.functional as F"."""
    alias = name.split(" as ")[-1].split(".")[0]
    uses = [line for line in text.splitlines() if not re.match("(from|import) ", line)]
    return re.search(rf"(?<![.\w]){alias}\b", "\n".join(uses)) is not None


def write(
    path: Path, folder: Path | None = None, overwrite: bool = False, until: str = ""
) -> list[Part]:
    """Assemble the file, and return its parts.

    Args:
        path: File to write.
        folder: Folder of the notebooks (default: as in `parts`).
        overwrite: Whether to replace an existing file.
        until: Last notebook to take parts from, as in `parts`. Since 08 GPT-2's file can be run.

    Raises:
        FileExistsError: If the file exists and `overwrite` is off.
        FileNotFoundError: If a notebook is missing.
    """
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; pass --overwrite, or another name with --out")
    found = parts(folder, until)
    write_atomic(path, text(found))
    return found


def module(until: str = "", folder: Path | None = None) -> ModuleType:
    """Assemble the parts up to notebook `until`, and import them as a module.

    It prints which answers it doesn't use.

    Example:
        >>> model = assemble.module("07").GPT(GPTConfig())
    """
    made = ModuleType(TRAIN_GPT2.file.removesuffix(".py"))
    found = parts(folder, until)
    for row in remarks(found):
        print(row)
    pieces = [TRAIN_GPT2.header, *(part.code for part in found)]
    cell_slice.run_file("\n\n\n".join(pieces), made)
    return made


def progress(until: str = "", folder: Path | None = None) -> str:
    """Describe the length of the assembled file, and which parts the learner wrote."""
    return describe(parts(folder, until))


def describe(found: list[Part]) -> str:
    """Summarize which parts the learner wrote, and why other parts use the reference solution."""
    lines = sum(1 for line in text(found).splitlines() if line.strip())
    rows = [f"{TRAIN_GPT2.file}: {len(found)} parts, {lines} lines without the blank ones"]
    groups: dict[str, list[str]] = {"yours": [], "given": [], "from the solutions": []}
    for part in found:
        if part.missing.startswith(NO_NOTEBOOK) or part.missing in ("", UNTOUCHED):
            groups.setdefault(whose(part), []).append(part.name)
    for title, names in groups.items():
        row = f"{title}: {', '.join(names) or 'none'}"
        rows.append(textwrap.fill(row, 96, subsequent_indent="  "))
    return "\n".join([*rows, *remarks(found)])


def whose(part: Part) -> str:
    """Say whose a part is, and why."""
    if part.is_mine:
        return "yours"
    if part.is_changed:
        return "given, and changed in your notebook"
    source = "given" if part.given else "from the solutions"
    if part.missing in ("", UNTOUCHED):
        return source
    return f"{source}, because {WRONG if part.is_wrong else part.missing}"


def remarks(found: list[Part]) -> Iterator[str]:
    """Yield why cells of the learner aren't used, and which notebooks weren't read."""
    for part in found:
        if part.is_wrong:
            yield f"{whose(part)}: {part.name} ({part.missing})"
        if part.missing.startswith(NO_CELL):
            yield f"{whose(part)}: {part.name}"
        if part.later not in ("", UNTOUCHED):
            row = f"yours of notebook {part.notebook} instead of a later one"
            yield f"{row}: {part.name} ({part.later})"
    for path in dict.fromkeys(part.path for part in found if part.path):
        number = path.name.partition("_")[0]
        names = sorted(other.name for other in path.parent.glob(f"{number}_*.ipynb"))
        if others := [name for name in names if name != path.name]:
            yield f"notebook {number} is {path.name}; not read: {', '.join(others)}"
