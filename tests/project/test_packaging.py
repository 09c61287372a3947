"""Test that pyproject.toml, uv.lock, constraints.txt and environment.yml agree, and the imports."""

import ast
import re
import tomllib
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(path: Path = ROOT / "constraints.txt") -> dict[str, str]:
    """Name and version of every line in constraints.txt."""
    lines = path.read_text().splitlines()
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (specifier,) = requirement.specifier
            assert specifier.operator == "==", line
            found[canonicalize_name(requirement.name)] = specifier.version
    return found


def test_the_pins_are_those_of_the_lock():
    """Test that `make lock` has exported uv.lock, whose links lead to PyPI only."""
    text = (ROOT / "uv.lock").read_text()
    packages = tomllib.loads(text)["package"]
    locked = {package["name"]: package["version"] for package in packages}
    assert len(locked) == len(packages), "two versions of a package"
    ours = {name: version for name, version in locked.items() if not brought_by_torch(name)}
    del ours[PROJECT["name"]]
    assert pins() == ours, "run `make lock`"
    hosts = set(re.findall(r'"\w+://([^/"]+)', text))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}
    (itself,) = (package for package in packages if package["name"] == PROJECT["name"])
    declared = itself["metadata"]["requires-dist"]
    assert {(one["name"], SpecifierSet(one.get("specifier", ""))) for one in declared} == {
        (canonicalize_name(one.name), one.specifier) for one in all_requirements()
    }, "run `make lock`"


def brought_by_torch(name: str) -> bool:
    """Return whether a package is pinned by a CUDA build of PyTorch."""
    return name.startswith(("cuda-", "nvidia-")) or name == "triton"


def all_requirements() -> list[Requirement]:
    """Everything that pyproject.toml asks for, extras included."""
    extras = (r for listed in PROJECT["optional-dependencies"].values() for r in listed)
    return [Requirement(text) for text in (*PROJECT["dependencies"], *extras)]


# What each folder of the course may import of the others, from the top to the ground. Pages import
# no other page, and what pages share imports no page.
BELOW = {
    "grading": {"one_file", "engine", "learner"},
    "pages": {"one_file", "widgets", "shared", "engine", "drawing", "learner"},
    "one_file": {"engine", "learner"},
    "widgets": {"shared", "drawing", "learner"},
    "shared": {"engine", "learner"},
    "engine": {"learner"},
    "drawing": {"shared"},
    "learner": set(),
}


def modules(root: Path, package: str) -> dict[str, Path]:
    """Return the file of every module of a package."""
    found: dict[str, Path] = {}
    for path in (root / package).rglob("*.py"):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        assert name not in found, f"{name} is a module and a folder"
        found[name] = path
    return found


def imports(name: str, path: Path, known: Collection[str]) -> set[str]:
    """Return which of the `known` modules a module imports, in any place."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} has a relative import"
            found |= {
                f"{node.module}.{alias.name}" for alias in node.names
            }  # modules, or names in one
    return {next(filter(known.__contains__, prefixes(one)), name) for one in found} - {name}


def prefixes(name: str) -> Iterator[str]:
    """Yield a dotted name and those of the folders around it, from the inside out."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def room(name: str) -> str:
    """Return the folder of a module, where each page has one of its own."""
    parts = name.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["pages"] else 2])


def upwards(name: str, other: str) -> bool:
    """Return whether a module imports one that stands above it, or one of another page."""
    mine, theirs = room(name), room(other)
    packages = ["tools", "cs336_course", "cs336_lib"]
    if packages.index(name.split(".")[0]) > packages.index(other.split(".")[0]):
        return True
    folder, below = (each.split(".")[1] if "." in each else "" for each in (mine, theirs))
    return mine != theirs and {folder, below} <= BELOW.keys() and below not in BELOW[folder]


def test_imports_run_downwards():
    files = {}
    for package in ("tools", "cs336_course", "cs336_lib"):
        files |= modules(ROOT, package)
    graph = {name: imports(name, path, files) for name, path in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' < '.join(error.args[1])}")
    pairs = [(one, other) for one in graph for other in graph[one] if upwards(one, other)]
    assert not pairs, "\n".join(f"{one} imports {other}" for one, other in pairs)
