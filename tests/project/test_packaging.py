"""Test that pyproject.toml, uv.lock, constraints.txt and environment.yml agree, and the imports."""

import ast
import re
import sys
import tomllib
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from importlib.util import resolve_name
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

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


def requirements() -> list[Requirement]:
    """Return everything that pyproject.toml asks for, other than its own extras."""
    return [one for one in all_requirements() if one.name != PROJECT["name"]]


def test_every_requirement_is_pinned_within_its_range():
    pinned = pins()
    for requirement in requirements():
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} but {version} pinned"


def test_what_those_require_is_pinned_too():
    pinned, seen = pins(), set()
    todo = [requirement.name for requirement in requirements()]
    while todo:
        name = canonicalize_name(todo.pop())
        if name in seen:
            continue
        seen.add(name)
        if brought_by_torch(name):
            continue
        assert name in pinned, f"{name} is missing in constraints.txt"
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # of an extra that is not installed here
        for text in required:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(requirement.name)


def test_this_environment_has_the_pinned_versions():
    prefix = Path(sys.prefix)
    for name, version in pins_of_environment(prefix).items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        if keeps_torch(prefix) and not Path(found.locate_file("")).is_relative_to(prefix):
            continue  # lies beside the PyTorch that was kept; the course does not require it
        assert Version(found.version).public == version, f"{name} {found.version} installed"
    (torch,) = (r for r in requirements() if r.name == "torch")
    assert torch.specifier.contains(Version(metadata.version("torch")).public)


def test_torch_ends_below_the_next_minor_which_a_weekly_job_tries():
    """Private operators of PyTorch may change with every minor version."""
    (torch,) = (one for one in requirements() if one.name == "torch")
    pinned = Version(pins()["torch"])
    untested = f"{pinned.major}.{pinned.minor + 1}"
    assert torch.specifier == SpecifierSet(f">=2.11,<{untested}")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "newest.yml").read_text())
    triggers = workflow[True]  # YAML takes the key `on` for a boolean
    assert re.fullmatch(r"\d+ \d+ \* \* [0-6]", triggers["schedule"][0]["cron"])  # weekly
    commands = {
        name: [step["run"] for step in job["steps"] if "run" in step]
        for name, job in workflow["jobs"].items()
    }
    assert commands.keys() == {"torch", "pytest"}
    for name, (install, newest, version, *tests) in commands.items():
        assert install == "make .venv/.test"  # the pinned versions of all the rest
        assert newest.startswith(".venv/bin/python -m pip install --upgrade ")
        assert "constraint" not in newest  # it ignores the cap and the pins on purpose
        assert name in newest
        assert name in version
        assert ".venv/bin/python -m pytest --nbval notebooks/" in tests
    everything = next(line for line in commands["torch"] if "pytest tests" in line)
    deselected = re.findall(r"--deselect tests/project/test_packaging.py::(\w+)", everything)
    assert deselected == [test_this_environment_has_the_pinned_versions.__name__]


def keeps_torch(prefix: Path) -> bool:
    """Whether an environment was made with `make TORCH=keep`, to see the packages below it."""
    path = prefix / "pyvenv.cfg"
    return path.exists() and "include-system-site-packages = true" in path.read_text()


def pins_of_environment(prefix: Path) -> dict[str, str]:
    """What an environment must hold: all pins, or with `make TORCH=keep` all but PyTorch's."""
    if not keeps_torch(prefix):
        return pins()
    found, own = pins(prefix / "constraints.txt"), {"torch", "setuptools"}
    assert {n: v for n, v in found.items() if n not in own} == {
        n: v for n, v in pins().items() if n not in own
    }
    return found


@pytest.mark.parametrize(("system_packages", "torch"), [("true", "2.11.0"), ("false", None)])
def test_only_an_environment_made_to_keep_its_torch_may_have_another(
    tmp_path, system_packages, torch
):
    (tmp_path / "pyvenv.cfg").write_text(f"include-system-site-packages = {system_packages}\n")
    text = (ROOT / "constraints.txt").read_text()
    (tmp_path / "constraints.txt").write_text(re.sub("(?m)^torch==.*\n", "torch==2.11.0\n", text))
    assert pins_of_environment(tmp_path)["torch"] == (torch or pins()["torch"])


def test_conda_makes_the_same_course():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python = next(d for d in environment["dependencies"] if str(d).startswith("python="))
    assert Version(python.split("=")[1]) in Requirement(f"x{PROJECT['requires-python']}").specifier
    (pip,) = (d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    assert pip == ["--constraint constraints.txt", "--editable .[lab,test]"]


def test_the_python_range_is_the_same_everywhere():
    assert PROJECT["requires-python"] == ">=3.11,<3.15"
    assert "(3, 11) <= v[:2] <= (3, 14)" in (ROOT / "Makefile").read_text()
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "cpu.yml").read_text())
    versions = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    assert sys.version_info[:2] >= (3, 11)


# The packages, and the folders of each, from the top to the ground: imports run downwards. Folders
# on one floor may import each other, but modules never form a circle.
HOUSE = {
    "tools": [],
    "cs336_course": [
        *("grading", "one_file widgets", "figures"),
        *("exercises", "engine", "learner demos"),
    ],
    "cs336_lib": ["report", "bill evals training", "system", "data"],
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
    """Return which of the `known` modules a module imports, in any place and any spelling."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            found |= {f"{module}.{alias.name}" for alias in node.names}  # modules, or names in one
    return {next(filter(known.__contains__, prefixes(one)), name) for one in found} - {name}


def prefixes(name: str) -> Iterator[str]:
    """Yield a dotted name and those of the folders around it, from the inside out."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def check_house(root: Path, house: dict[str, list[str]]) -> None:
    """Check that imports between the packages below `root`, and between folders, run downwards."""
    packages = list(house)
    files = {name: path for one in packages for name, path in modules(root, one).items()}
    graph = {name: imports(name, path, files) for name, path in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' < '.join(error.args[1])}")
    floors: dict[str, int] = {}
    for package, rows in house.items():
        for floor, row in enumerate(rows):
            for room in row.split():
                assert f"{package}.{room}" not in floors, f"{package}.{room} is listed twice"
                floors[f"{package}.{room}"] = floor
    for name, others in graph.items():
        package, room = name.split(".")[0], ".".join(name.split(".")[:2])
        is_folder = room != package and (root / room.replace(".", "/")).is_dir()
        assert not is_folder or package == "tools" or room in floors, f"add {room} to the floors"
        for other in others:
            below, message = ".".join(other.split(".")[:2]), f"{name} imports {other}"
            assert packages.index(package) <= packages.index(other.split(".")[0]), message
            if other.startswith(f"{package}.") and {room, below} <= floors.keys():
                assert floors[room] <= floors[below], message


def test_imports_run_downwards():
    check_house(ROOT, HOUSE)


LOOP = "from cs336_lib.data.loader import Loader"
BAD_IMPORTS = {
    "cs336_lib/data/loader.py": [
        "from cs336_lib.bill import (\n    memory,\n)",
        "def f():\n    from cs336_lib.bill import memory",
        "from ..bill import memory",
        "import cs336_lib.bill.memory as m",
        "def f():\n    import cs336_course",
        "from cs336_course.demos import (\n    story,\n)",
        "if True:\n    import tools.site",
        "from cs336_lib.config import Config",
    ],
    "cs336_course/demos/story.py": ["def f():\n    from tools import site"],
    "cs336_lib/new/room.py": [""],
}


@pytest.mark.parametrize(
    ("file", "source"), [(file, one) for file, sources in BAD_IMPORTS.items() for one in sources]
)
def test_a_wrong_import_is_found(tmp_path, file, source):
    files = {
        "tools/site.py": "from cs336_course.demos import story",
        "cs336_course/__init__.py": "",
        "cs336_course/demos/story.py": "def f():\n    from cs336_lib.bill.memory import peak",
        "cs336_lib/bill/memory.py": LOOP,
        "cs336_lib/config.py": f"def f():\n    {LOOP}",
        "cs336_lib/data/loader.py": "import torch",
    }
    house = {"tools": [], "cs336_course": ["demos"], "cs336_lib": ["bill", "data"]}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    check_house(tmp_path, house)
    with pytest.raises(AssertionError, match="listed twice"):
        check_house(tmp_path, house | {"cs336_lib": ["bill", "data bill"]})
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(source)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_house(tmp_path, house)


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    repository = PROJECT["urls"]["Repository"]
    assert citation["repository-code"] == repository
    assert f"lib[lab] @ git+{repository}" in (ROOT / "docs" / "install.md").read_text()
