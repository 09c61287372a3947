"""Find an exercise's answer in a learner's notebook, and the other code that it needs."""

import ast
import functools
import json
import re
import symtable
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

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
class Slice:
    """A learner's answer and the statements around it.

    Attributes:
        above: Definitions in the cells above the answer's cell.
        own: Statements of the answer's cell, without calls of checks.
        below: Definitions in the cells below.
        arguments: What the learner passes to the check, or the course's arguments.
        known: Names that the course defines.
    """

    above: Sequence[Statement]
    own: Sequence[Statement]
    below: Sequence[Statement]
    arguments: Sequence[ast.expr]
    known: Collection[str]

    @property
    def setup(self) -> list[ast.stmt]:
        """Statements of other cells that the answer's whole cell needs, in order."""
        own = range(len(self.above), len(self.above) + len(self.own))
        listed = [*self.above, *self.own, *self.below]
        names = names_in(self.arguments)
        return [listed[i].node for i in needed(listed, own, names, self.known)]

    def text(self, default: ast.Call) -> str:
        """Return the text of the answer for a file.

        It has only the statements that define the answer. Checks, magics, prints and other code
        that tries the answer out are left out. If the learner passes the answer to the check under
        another name, the text ends with an assignment to the name in the course's call.

        Raises:
            LookupError: If the notebook doesn't define a name that the course's call uses.
        """
        own = [*self.own]
        for name, argument in zip(default.args, self.arguments, strict=False):
            if ast.unparse(name) != ast.unparse(argument):
                line = f"{ast.unparse(name)} = {ast.unparse(argument)}"
                own += [replace(s, text=f"\n\n\n{line}") for s in statements(line, frozenset())]
        cells = [[s for s in self.above if STAR not in s.binds], own, self.below]
        above, own, below = ([s for s in cell if not s.uses & NOTEBOOK_ONLY] for cell in cells)
        listed = [*above, *own, *below]
        names, inside = names_in(default.args), range(len(above), len(above) + len(own))
        indices = needed(listed, range(inside.stop, inside.stop), names, self.known)
        bound = {name for i in indices for name in listed[i].binds}
        if lacking := sorted(names - bound):
            raise LookupError(", ".join(lacking))
        others = [listed[i].text.strip() for i in indices if i not in inside]
        answer = "".join(listed[i].text for i in indices if i in inside)
        return "\n\n\n".join([*others, answer.strip()]).strip()


def answer(sources: Sequence[str], at: int, default: ast.Call, course: Course) -> Slice:
    """Read the answer in cell `at`, and the definitions in the other cells.

    Args:
        sources: Code of the notebook's cells, in order.
        at: Index of the answer's cell.
        default: The course's call of the check.
        course: Definitions of the course.

    Raises:
        SyntaxError: If the cell isn't Python.
    """
    own = statements(sources[at], frozenset(course.modules))
    calls = [call for node in ast.parse(plain(sources[at])).body if (call := check_call(node))]
    same = [call for call in calls if ast.unparse(call.func) == ast.unparse(default.func)]
    call = same[-1] if same else default
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    above, below = read(sources[:at], course), read(sources[at + 1 :], course)
    return Slice(above, own, below, arguments, course.known)


def read_code(path: Path) -> list[tuple[str, str]]:
    """Return the source of each code cell of a notebook, and the name of its exercise or "".

    Some platforms remove the metadata of cells.

    Raises:
        UserError: If the file isn't a notebook.
        OSError: If it can't be read.
    """
    try:
        return [
            (
                "".join(cell["source"]),
                str(cell.get("metadata", {}).get("cs336", {}).get("exercise", "")),
            )
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


def locate(cells: Sequence[tuple[str, str]], name: str, stub: str) -> int | None:
    """Return the index of an exercise's cell, or `None` if the notebook doesn't have it.

    A cell without metadata that calls the check also counts. Among several cells, the last one that
    differs from the stub is used.
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
    loops = [loop for loop in ast.walk(node) if isinstance(loop, ast.comprehension)]
    inside = [name for loop in loops for name in ast.walk(loop.target)]
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

    A name is taken from its last definition before the statement that uses it, and a function's
    names also from the last one before the call of the check. If there is none and the course
    doesn't define the name, it is taken from the cells below the answer.

    Args:
        statements: Statements of the notebook, in order.
        body: Indices of the answer's own statements.
        names: Names in the call of the check.
        known: Names that the course defines.
    """
    end, chosen = body.stop, set(body)
    chosen |= {i for i in range(end) if STAR in statements[i].binds}
    todo = [(name, end) for name in names]

    def use(i: int) -> None:
        todo.extend((name, i) for name in statements[i].uses | statements[i].later)
        todo.extend((name, end) for name in statements[i].later)

    for i in chosen:
        use(i)
    while todo:
        name, until = todo.pop()
        found = last(statements[:until], name)
        if found is None and until >= body.start and name not in known:
            found = last(statements, name)
        if found is not None and found not in chosen:
            chosen.add(found)
            use(found)
    return sorted(chosen - set(body))


def last(statements: Sequence[Statement], name: str) -> int | None:
    """Return the index of the last statement that binds a name, or `None`."""
    indices = reversed(range(len(statements)))
    return next((i for i in indices if name in statements[i].binds), None)
