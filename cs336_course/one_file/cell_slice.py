"""Find an exercise's answer in a learner's notebook, and the earlier code that it needs."""

import ast
import functools
import json
import re
import symtable
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

from cs336_lib.config import UserError

# The body of a cell with one of these magics is Python. Other cells with a magic are skipped.
TRANSPARENT = {"time", "timeit", "capture", "prun"}
STAR = "*"
# Names that exist in the notebook only. A file has no checks and no magics.
NOTEBOOK_ONLY = {"checks", "get_ipython"}


@dataclass(frozen=True)
class Statement:
    """A top-level statement of a notebook.

    Attributes:
        node: The statement.
        binds: Names that it assigns, or whose items or attributes it assigns.
        uses: Names that it needs when it runs.
        later: Names that its functions need when they are called.
        text: Its lines in the cell, and the comments and blank lines above it.
    """

    node: ast.stmt
    binds: frozenset[str]
    uses: frozenset[str]
    later: frozenset[str]
    text: str = ""


@dataclass(frozen=True)
class Answer:
    """The code of an answer.

    Attributes:
        setup: Statements of other cells that the answer needs, in order.
        body: Statements of the answer's own cell, without calls of checks.
        arguments: What the learner passes to the check, or the course's arguments.
    """

    setup: Sequence[ast.stmt]
    body: Sequence[ast.stmt]
    arguments: Sequence[ast.expr]


@dataclass(frozen=True)
class Course:
    """The course's definitions before an exercise.

    Attributes:
        given: Statements that have already run, in the form of `ast.dump`.
        names: Names that the learner's notebook doesn't redefine.
        modules: Names of modules.
        known: All names that are defined.
    """

    given: Collection[str]
    names: Collection[str]
    modules: Collection[str]
    known: Collection[str]


@dataclass(frozen=True)
class Context:
    """The statements of a notebook around an answer.

    Attributes:
        before: Definitions in the cells above the answer's cell.
        own: Statements of the answer's cell, without calls of checks.
        after: Definitions in the cells below.
        arguments: What the learner passes to the check, or the course's arguments.
    """

    before: Sequence[Statement]
    own: Sequence[Statement]
    after: Sequence[Statement]
    arguments: Sequence[ast.expr]


def read_code(path: Path) -> list[tuple[str, str]]:
    """Return the source of each code cell of a notebook, and the name of its exercise or "".

    Raises:
        UserError: If the file isn't a notebook.
        OSError: If it can't be read.
    """
    try:
        return [
            ("".join(cell["source"]), str(marks_of(cell).get("exercise", "")))
            for cell in json.loads(path.read_bytes())["cells"]
            if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path}: not a notebook") from None


def is_edited(path: Path, course: Path) -> bool:
    """Return whether the code of a copy differs from the course's notebook, if it is a notebook."""
    try:
        return read_code(path) != read_code(course)
    except UserError:
        return False


def marks_of(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the course's marks in a cell's metadata, which some platforms remove."""
    return cell.get("metadata", {}).get("cs336", {})


def locate(cells: Sequence[tuple[str, str]], name: str, stub: str) -> int | None:
    """Return the index of an exercise's cell, or `None` if the notebook doesn't have it.

    Some platforms remove the metadata of cells, so a cell that calls the check also counts. Among
    several cells, the last one that differs from the stub is used.
    """
    call = re.compile(rf"\bchecks\.{name}\s*\(")
    found = [i for i, (source, mark) in enumerate(cells) if mark == name or call.search(source)]
    return last_edited(cells, found, stub)


def locate_definitions(
    cells: Sequence[tuple[str, str]], names: Collection[str], original: str
) -> int | None:
    """Return the index of the cell that defines all `names`, or `None`, as `locate` does.

    It reads the text, so it also finds a cell with a syntax error.
    """
    begins = [re.compile(rf"(?m)^(?:class|def) +{name}\b") for name in names]
    found = [i for i, (source, _) in enumerate(cells) if all(b.search(source) for b in begins)]
    return last_edited(cells, found, original)


def last_edited(
    cells: Sequence[tuple[str, str]], found: Sequence[int], original: str
) -> int | None:
    """Return the last of the indices `found` whose cell differs from the original."""
    edited = [i for i in found if cells[i][0].split() != original.split()]
    return (edited or found or [None])[-1]


def plain(source: str) -> str:
    """Return a cell's code as Python. Magics become calls of `get_ipython()`."""
    with suppress(SyntaxError, ValueError):
        ast.parse(source)
        return source  # without magics; IPython takes ten times as long
    if source.lstrip().startswith("%%"):
        first, _, source = source.lstrip().partition("\n")
        if first[2:].split(" ")[0] not in TRANSPARENT:
            return ""
    source = re.sub(r"(?m)^%time ", "", source)
    return TransformerManager().transform_cell(source)


def parse(source: str) -> list[ast.stmt]:
    """Parse a cell into top-level statements.

    Raises:
        SyntaxError: If the cell isn't Python.
    """
    return ast.parse(plain(source)).body


@functools.lru_cache(maxsize=2000)  # every answer of a notebook reads all its cells
def statements(source: str, modules: frozenset[str]) -> tuple[Statement, ...]:
    """Parse a cell into top-level statements, without calls of checks.

    Args:
        source: Code of the cell.
        modules: Names of modules, as in `describe`.

    Raises:
        SyntaxError: If the cell isn't Python.
    """
    code = plain(source)
    nodes = ast.parse(code).body
    pairs = zip(nodes, texts(code, nodes), strict=True)
    found = [replace(describe(n, modules), text=text) for n, text in pairs if not check_call(n)]
    return tuple(found)


def texts(code: str, nodes: Sequence[ast.stmt]) -> list[str]:
    """Return the lines of each statement, and those between it and the statement above."""
    lines = re.split("\r\n?|\n", code)
    ends = [node.end_lineno or node.lineno for node in nodes]
    begins = [node.lineno for node in nodes]
    found = []
    for i, (node, above, end) in enumerate(zip(nodes, [0, *ends], ends, strict=False)):
        is_shared = begins[i] == above or end in begins[i + 1 : i + 2]  # a line with a semicolon
        text = ast.unparse(node) if is_shared else "\n".join(lines[above:end])
        found.append("\n" * (i > 0) + text)
    return found


def check_call(node: ast.stmt) -> ast.Call | None:
    """Return the call in `checks.name(answer)` or `answer = checks.name(answer)`."""
    value = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
    is_call = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
    return value if is_call and ast.unparse(value.func.value) == "checks" else None


def names_in(nodes: Sequence[ast.expr]) -> set[str]:
    """Return the names in expressions."""
    return {x.id for node in nodes for x in ast.walk(node) if isinstance(x, ast.Name)}


def describe(node: ast.stmt, modules: Collection[str]) -> Statement:
    """Find the names that a statement binds and uses.

    Args:
        node: The statement.
        modules: Names of modules. Assigning an attribute of a module doesn't bind its name, because
            an exercise shouldn't change the modules that other exercises use.

    Raises:
        SyntaxError: If the statement is only allowed inside a function.
    """
    binds, uses, later = mutated(node).difference(modules), set(), set()
    top = symtable.symtable(ast.unparse(node), "<cell>", "exec")
    inner = loop_names(node)
    for symbol in top.get_symbols():
        if symbol.get_name() in inner:
            continue
        if symbol.is_assigned() or symbol.is_imported():
            binds.add(symbol.get_name())
        if symbol.is_referenced():
            uses.add(symbol.get_name())
    todo = [(table, False) for table in top.get_children()]
    while todo:
        table, is_deferred = todo.pop()
        is_deferred |= table.get_type() == "function"
        free = {s.get_name() for s in table.get_symbols() if s.is_global()}
        (later if is_deferred else uses).update(free)
        todo += [(child, is_deferred) for child in table.get_children()]
    if isinstance(node, ast.ImportFrom) and node.names[0].name == STAR:
        binds.add(STAR)
    return Statement(node, frozenset(binds), frozenset(uses), frozenset(later))


def loop_names(node: ast.stmt) -> set[str]:
    """Return the names that only comprehensions bind. Python 3.12 lists them in the outer scope."""
    inside = [
        name
        for loop in ast.walk(node)
        if isinstance(loop, ast.comprehension)
        for name in ast.walk(loop.target)
    ]
    names = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
    stored = [name for name in names if isinstance(name.ctx, ast.Store)]
    return {n.id for n in stored if n in inside} - {n.id for n in stored if n not in inside}


def mutated(node: ast.stmt) -> set[str]:
    """Return the names whose items or attributes a statement assigns, such as `MLP.forward`.

    Functions in it aren't called yet, so `self.c_fc = ...` in a class isn't an assignment to `self`
    in the notebook.
    """
    found: set[str] = set()
    todo: list[ast.AST] = [node]
    while todo:
        target = todo.pop()
        if not isinstance(target, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            todo += ast.iter_child_nodes(target)
        if isinstance(target, (ast.Attribute, ast.Subscript)) and isinstance(target.ctx, ast.Store):
            root: ast.expr = target
            while isinstance(root, (ast.Attribute, ast.Subscript)):
                root = root.value
            if isinstance(root, ast.Name):
                found.add(root.id)
    return found


def read(sources: Sequence[str], course: Course) -> list[Statement]:
    """Read the definitions in cells that the course hasn't run. Invalid cells are skipped."""
    found = []
    for source in sources:
        try:
            described = statements(source, frozenset(course.modules))
        except (SyntaxError, ValueError, RecursionError):
            continue
        found += [s for s in described if s.binds and not s.binds <= {*course.names, "checks"}]
    return [statement for statement in found if ast.dump(statement.node) not in course.given]


def needed(
    statements: Sequence[Statement], body: range, names: Collection[str], known: Collection[str]
) -> list[int]:
    """Return the indices of the statements that an answer needs, without its own.

    A name is taken from its last definition before the statement that uses it. If there is none and
    the course doesn't define the name, it is taken from the cells below the answer.

    Args:
        statements: Statements of the notebook, in order.
        body: Indices of the answer's own statements.
        names: Names in the call of the check.
        known: Names that the course defines.
    """
    end, chosen = body.stop, set(body)
    chosen |= {i for i in range(end) if STAR in statements[i].binds}
    todo = [(name, end) for name in names]
    todo += [use for i in chosen for use in uses_of(statements[i], i, end)]
    while todo:
        name, until = todo.pop()
        found = last(statements[:until], name)
        if found is None and until >= body.start and name not in known:
            found = last(statements, name)
        if found is not None and found not in chosen:
            chosen.add(found)
            todo += uses_of(statements[found], found, end)
    return sorted(chosen - set(body))


def uses_of(statement: Statement, i: int, end: int) -> list[tuple[str, int]]:
    """Return the names that a statement uses, and the index before which each is defined.

    A function finds its names when it is called, so their last definition counts, too.
    """
    return [(name, i) for name in statement.uses | statement.later] + [
        (name, end) for name in statement.later
    ]


def last(statements: Sequence[Statement], name: str) -> int | None:
    """Return the index of the last statement that binds a name, or `None`."""
    indices = reversed(range(len(statements)))
    return next((i for i in indices if name in statements[i].binds), None)


def context(sources: Sequence[str], at: int, default: ast.Call, course: Course) -> Context:
    """Read the answer in cell `at`, and the definitions in the other cells.

    Args:
        sources: Code of the notebook's cells.
        at: Index of the answer's cell.
        default: The course's call of the check.
        course: Definitions of the course.

    Raises:
        SyntaxError: If the cell isn't Python.
    """
    own = statements(sources[at], frozenset(course.modules))
    calls = [call for node in parse(sources[at]) if (call := check_call(node))]
    same = [call for call in calls if ast.unparse(call.func) == ast.unparse(default.func)]
    call = same[-1] if same else default
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    return Context(read(sources[:at], course), own, read(sources[at + 1 :], course), arguments)


def answer(sources: Sequence[str], at: int, default: ast.Call, course: Course) -> Answer:
    """Return the code of the answer in cell `at`, for a process that runs the whole cell.

    The arguments are those of `context`.

    Raises:
        SyntaxError: If the cell isn't Python.
    """
    found = context(sources, at, default, course)
    listed = [*found.before, *found.own, *found.after]
    body = range(len(found.before), len(found.before) + len(found.own))
    indices = needed(listed, body, names_in(found.arguments), course.known)
    setup = [listed[i].node for i in indices]
    return Answer(setup, [statement.node for statement in found.own], found.arguments)


def definitions(sources: Sequence[str], at: int, default: ast.Call, course: Course) -> str:
    """Return the text of the answer in cell `at`, for a file.

    The text has only the statements that define the answer. Checks, magics, prints and other code
    that tries the answer out are left out. If the learner passes the answer to the check under
    another name, the text ends with an assignment to the course's name. The arguments are those of
    `context`.

    Raises:
        SyntaxError: If the cell isn't Python.
        LookupError: If the notebook doesn't define a name that the course's call uses.
    """
    found = context(sources, at, default, course)
    own = [*found.own]
    for name, argument in zip(default.args, found.arguments, strict=False):
        if ast.unparse(name) != ast.unparse(argument):
            line = f"{ast.unparse(name)} = {ast.unparse(argument)}"
            own.append(*statements(line, frozenset()))
            own[-1] = replace(own[-1], text=f"\n\n\n{line}")
    before = [s for s in found.before if STAR not in s.binds]
    above, own, below = (
        [s for s in listed if not s.uses & NOTEBOOK_ONLY] for listed in (before, own, found.after)
    )
    listed = [*above, *own, *below]
    names, end = names_in(default.args), len(above) + len(own)
    indices = needed(listed, range(end, end), names, course.known)
    bound = {name for i in indices for name in listed[i].binds}
    if lacking := sorted(names - bound):
        raise LookupError(", ".join(lacking))
    inside = range(len(above), end)
    setup = [listed[i].text.strip() for i in indices if i not in inside]
    answer = "".join(listed[i].text for i in indices if i in inside)
    return "\n\n\n".join([*setup, answer.strip()]).strip()
