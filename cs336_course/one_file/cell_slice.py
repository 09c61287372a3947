"""Find an exercise's answer in a learner's notebook, and the other code that it needs."""

import ast
import dis
import functools
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, ModuleType

from IPython.core.compilerop import CachingCompiler
from IPython.core.inputtransformer2 import TransformerManager

from cs336_course.course import PAGES
from cs336_course.learner import study
from cs336_lib.config import UserError

NOTEBOOK_BYTES = 100 * 2**20

# The body of a cell with one of these magics is Python. Other cells with a magic are skipped.
TRANSPARENT = {"time", "timeit", "capture", "prun"}
IMPORTS = (ast.Import, ast.ImportFrom)
STAR = "*"
# What Python does with the names of a module or a class
STORES = {"STORE_NAME"}
LOADS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL"}
# Names that exist in the notebook only. A file has no checks and no magics.
NOTEBOOK_ONLY = {"checks", "get_ipython"}


@dataclass(frozen=True)
class Statement:
    """A top-level statement of a notebook.

    Attributes:
        node: The statement.
        binds: Names that it assigns, or whose items or attributes it assigns.
        uses: Names that it needs, or its functions when they are called.
        text: Its lines in the cell, and the comments and blank lines above it.
        cell: Code of the whole cell, in whose lines it stands.
    """

    node: ast.stmt
    binds: frozenset[str]
    uses: frozenset[str]
    text: str
    cell: str

    @property
    def is_for_files(self) -> bool:
        """Whether a file can have it: neither checks nor magics, and no names of unknown origin."""
        is_future = getattr(self.node, "module", "") == "__future__"
        return not self.uses & NOTEBOOK_ONLY and (is_future or STAR not in self.binds)


@dataclass(frozen=True)
class Course:
    """The course's definitions before an exercise.

    Attributes:
        given: Statements that have already run, in the form of `ast.dump`.
        names: Names that the learner's notebook doesn't redefine.
        known: All names that are defined.
    """

    given: Collection[str]
    names: Collection[str]
    known: Collection[str]


@dataclass(frozen=True)
class Slice:
    """A learner's answer and the statements around it.

    Attributes:
        above: Statements of the cells above the answer's cell.
        own: Statements of the answer's cell above the call of its check.
        below: Statements below the call, in its cell and in others.
        arguments: What the learner passes to the check, or the course's arguments.
        known: Names that the course defines.
    """

    above: Sequence[Statement]
    own: Sequence[Statement]
    below: Sequence[Statement]
    arguments: Sequence[ast.expr]
    known: Collection[str]

    @property
    def setup(self) -> list[Statement]:
        """Statements of other cells that the answer's whole cell needs, in order."""
        own = range(len(self.above), len(self.above) + len(self.own))
        listed = [*self.above, *self.own, *self.below]
        chosen = needed(listed, own, names_in(self.arguments), self.known)
        return [listed[i] for i in chosen]

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
            line = f"{ast.unparse(name)} = {ast.unparse(argument)}"
            if ast.unparse(name) != ast.unparse(argument):
                own += [replace(s, text=f"\n\n\n{line}") for s in statements(line)]
        cells = (self.above, own, self.below)
        above, own, below = ([s for s in cell if s.is_for_files] for cell in cells)
        listed = [*above, *own, *below]
        names, inside = names_in(default.args), range(len(above), len(above) + len(own))
        indices = needed(listed, range(inside.stop, inside.stop), names, self.known)
        if lacking := sorted(names.difference(*(listed[i].binds for i in indices))):
            raise LookupError(", ".join(lacking))
        others = [listed[i].text.strip() for i in indices if i not in inside]
        answer = "".join(listed[i].text for i in indices if i in inside)
        return "\n\n\n".join([*others, answer.strip()]).strip()


def attempts(source: str, name: str) -> range:
    """Return the ways in which `answer` can read a cell that has calls of an exercise's check."""
    return range(1 + max(1, len(re.findall(rf"\bchecks\.{name}\s*\(", source))))


def answer(
    sources: Sequence[str], at: int, default: ast.Call, course: Course, attempt: int = 0
) -> Slice:
    """Read the answer in cell `at`, and the other statements of the notebook.

    Args:
        sources: Code of the notebook's cells, in order.
        at: Index of the answer's cell.
        default: The course's call of the check.
        course: Definitions of the course.
        attempt: 0 for the cell's last call of the check and the definitions that it needs, 1 if
            whatever runs may also fill what it uses, and from 2 on for an earlier call.

    Raises:
        SyntaxError: If the cell isn't Python.
    """
    own, calls = list(statements(sources[at])), []
    for node in ast.parse(plain(sources[at])).body:
        call = check_call(node)
        if call and ast.unparse(call.func) == ast.unparse(default.func):
            calls.append(call)
    above, below = read(sources[:at], course), read(sources[at + 1 :], course)
    call = default
    if calls:  # what stands below the call, such as a trial with another f, comes too late for it
        call = calls[-min(max(attempt, 1), len(calls))]
        below = [s for s in own if not is_above(s.node, call)] + below
        own = [s for s in own if is_above(s.node, call)]
    if attempt == 1:
        listed = filling([*above, *own], course.known)
        above, own = listed[: len(above)], listed[len(above) :]
    # The file may import the same already.
    own = [s for s in own if not isinstance(s.node, IMPORTS) or s.binds.difference(course.names)]
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    return Slice(above, own, below, arguments, course.known)


def run_file(code: str, module: ModuleType) -> None:
    """Run the code of a file in a module, whose functions know their source."""
    sys.modules[module.__name__] = module  # dataclasses look their module up
    code = with_futures_first(code)
    exec(compile(code, CachingCompiler().cache(code), "exec", dont_inherit=True), vars(module))


def with_futures_first(code: str) -> str:
    """Return code with the imports from `__future__` where Python demands them."""
    line = re.compile(r"(?m)^from __future__ import .*\n")
    found = "".join(dict.fromkeys(line.findall(code)))
    return re.sub(r"(?m)^(?=import )", found, line.sub("", code), count=1)


def read_code(path: Path) -> list[tuple[str, str]]:
    """Return the source of each code cell of a notebook, and the name of its exercise or "".

    Some platforms remove the metadata of cells.

    Raises:
        UserError: If the file isn't a notebook, or is too large.
        OSError: If it can't be read.
    """
    if path.stat().st_size > NOTEBOOK_BYTES:
        raise UserError(f"{path}: larger than {NOTEBOOK_BYTES:,} bytes")
    cells = [cell for cell in study.read_cells(path) if cell["cell_type"] == "code"]
    return [(cell["source"], str(study.marks_of(cell).get("exercise", ""))) for cell in cells]


def is_copy(path: Path, course: Path) -> bool:
    """Return whether a notebook is a copy of the course's, by its name or else its exercises."""
    stems = (page.name.rpartition("/")[2] for page in PAGES)
    begins = [stem for stem in stems if re.match(rf"{stem}(?![A-Za-z])", path.stem)]
    return course.stem in begins if begins else study.share(path, course)


def newest_copy(paths: Iterable[Path], course: Path) -> Path | None:
    """Return the learner's copy of the course's notebook, or `None`.

    Among several copies, such as "03_einops (1).ipynb", the one that was changed last is used.
    A copy without edits is used only if there is no other, because pulling makes newer ones.
    """
    found = [path for path in paths if is_copy(path, course)]

    def rank(path: Path) -> tuple[bool, float, bool]:
        return is_edited(path, course), path.stat().st_mtime, path.stem == course.stem

    return max(found, key=rank, default=None)


def is_edited(path: Path, course: Path) -> bool:
    """Return whether a copy is edited or can't be read, so that it is used and named."""
    try:
        return read_code(path) != read_code(course)
    except (OSError, UserError):
        return True


def locate(
    cells: Sequence[tuple[str, str]], name: str, original: str, names: Collection[str] = ()
) -> int | None:
    """Return the index of the cell of an exercise or a given part, or `None`.

    Without a cell that has the exercise's metadata or calls its check, it is the one that defines
    all `names`. Among several cells, the last one that differs from the course's is used. The text
    is searched, which also finds a cell with a syntax error.

    Args:
        cells: Code and exercise of each cell.
        name: The exercise, or "".
        original: Code of the course's cell.
        names: Names that the cell defines.
    """
    call = re.compile(rf"\bchecks\.{name}\s*\(")
    found = [i for i, (source, mark) in enumerate(cells) if mark == name or call.search(source)]
    if names and not (name and found):
        begins = [re.compile(rf"(?m)^(?:class|def) +{name}\b") for name in names]
        found = [i for i, (source, _) in enumerate(cells) if all(b.search(source) for b in begins)]
    edited = [i for i in found if cells[i][0].split() != original.split()]
    return (edited or found or [None])[-1]


def plain(source: str) -> str:
    """Return a cell's code as Python. Magics become calls of `get_ipython()`."""
    with suppress(SyntaxError, ValueError):
        ast.parse(source)
        return source  # without magics; IPython takes ten times as long
    while source.lstrip().startswith("%%"):
        first, _, source = source.lstrip().partition("\n")
        if first[2:].split(" ")[0] not in TRANSPARENT:
            return ""
    source = re.sub(r"(?m)^%time ", "", source)
    return TransformerManager().transform_cell(source)


@functools.lru_cache(maxsize=2000)  # every answer of a notebook reads all its cells
def statements(source: str) -> tuple[Statement, ...]:
    """Parse a cell into top-level statements, without calls of checks.

    Raises:
        SyntaxError: If the cell isn't Python.
    """
    code = plain(source)
    nodes = ast.parse(code).body
    pairs = zip(nodes, texts(code, nodes), strict=True)
    return tuple(described(node, text, code) for node, text in pairs if not check_call(node))


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


def is_above(node: ast.stmt, call: ast.Call) -> bool:
    """Return whether a statement stands above a call in its cell."""
    return (node.lineno, node.col_offset) < (call.lineno, call.col_offset)


def filling(listed: Sequence[Statement], known: Collection[str]) -> list[Statement]:
    """Return statements of which each also binds the unknown names that it may fill.

    These are the names that it uses, and those that the functions use that it calls.
    """
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    inside = {s.node.name: s.uses for s in listed if isinstance(s.node, kinds)}
    found = []
    for each in listed:
        if not isinstance(each.node, kinds) or each.node.decorator_list:
            reached = each.uses.union(*(inside.get(name, ()) for name in each.uses))
            each = replace(each, binds=each.binds | reached.difference(known))
        found.append(each)
    return found


def described(node: ast.stmt, text: str, cell: str) -> Statement:
    """Find the names that a statement binds and uses.

    Raises:
        SyntaxError: If the statement is only allowed inside a function.
    """
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(ast.Module([node], []), "<cell>", "exec", flags, dont_inherit=True)
    binds = mutated(node) | arguments_of(code, STORES)
    is_from = isinstance(node, ast.ImportFrom)
    if is_from and (node.names[0].name == STAR or node.module == "__future__"):
        binds.add(STAR)  # statements need it that don't name it
    return Statement(node, frozenset(binds), frozenset(globals_of(code, set())), text, cell)


def globals_of(code: CodeType, local: set[str]) -> set[str]:
    """Return the global names that code loads, with its functions and classes."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    found = arguments_of(code, LOADS) - local
    return found.union(*(globals_of(each, arguments_of(each, STORES)) for each in inner))


def arguments_of(code: CodeType, operations: Collection[str]) -> set[str]:
    """Return the names on which code does one of the operations."""
    return {each.argval for each in dis.get_instructions(code) if each.opname in operations}


def mutated(node: ast.AST) -> set[str]:
    """Return the names whose items or attributes a statement assigns, such as `MLP.forward`.

    Functions in it aren't called yet, so `self.c_fc = ...` in a class isn't an assignment to `self`
    in the notebook.
    """
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return set()
    found = {name for child in ast.iter_child_nodes(node) for name in mutated(child)}
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
        root: ast.expr = node
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
            cell = statements(source)
        except (SyntaxError, ValueError, RecursionError):
            continue
        found += [s for s in cell if not s.binds or s.binds - {*course.names, "checks"}]
    return [statement for statement in found if ast.dump(statement.node) not in course.given]


def needed(
    statements: Sequence[Statement], body: range, names: Collection[str], known: Collection[str]
) -> list[int]:
    """Return the indices of the statements that an answer needs, without its own.

    A name is taken from its last definition before the statement that uses it, and from the last
    one before the call of the check, which calls functions. If there is none and the course doesn't
    define the name, it is taken from the cells below the answer.

    Args:
        statements: Statements of the notebook, in order.
        body: Indices of the answer's own statements.
        names: Names in the call of the check.
        known: Names that the course defines.
    """
    chosen = {i for i in range(body.stop) if STAR in statements[i].binds}.union(body)
    todo = [(name, body.stop) for name in names]

    def use(i: int) -> None:
        todo.extend((name, at) for name in statements[i].uses for at in (i, body.stop))

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
    return sorted(chosen.difference(body))


def last(statements: Sequence[Statement], name: str) -> int | None:
    """Return the index of the last statement that binds a name, or `None`."""
    return next((i for i in reversed(range(len(statements))) if name in statements[i].binds), None)
