"""Test that pyproject.toml, uv.lock, constraints.txt and environment.yml agree, and the imports."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]


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
    deselected = re.findall(r"--deselect tests/test_packaging.py::(\w+)", everything)
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


def test_modules_import_only_downwards():
    floors = [
        ["config", "io", "cpu_bf16"],
        ["model"],
        ["agreement"],
        ["data.corpus", "data.shards"],
        ["datasheets"],
        ["accounting", "hardware", "data.tokenizer"],
        ["data.documents", "architecture"],
        [
            "data.loader",
            "data.prepare",
            "schedule",
            "optim",
            "trackers",
            "published",
            "communication",
            "cost",
            "scaling",
        ],
        ["memory"],
        ["distributed", "simulate"],
        ["hf", "report", "published"],
        ["step_report", "checkpoint", "generate", "evals.loss", "evals.hellaswag"],
        ["run", "training.subject"],
        ["train", "run_report"],
        ["here"],
        ["machine_report"],
        ["cli"],
    ]
    floor_of = {name: number for number, names in enumerate(floors) for name in names}
    package = ROOT / "cs336_lib"
    for path in package.rglob("*.py"):
        name = ".".join(path.relative_to(package).with_suffix("").parts)
        if name.startswith("classroom") or name.endswith(("__init__", "__main__")):
            continue
        assert name in floor_of, f"add {name} to the floors"
        text = path.read_text()
        imported = set(re.findall(r"from cs336_lib\.([\w.]+) import", text))
        for folder, names in re.findall(r"from cs336_lib((?:\.\w+)?) import ([\w, ]+)", text):
            imported |= {f"{folder}.{one.strip()}".strip(".") for one in names.split(",")}
        for other in imported & set(floor_of):
            assert floor_of[other] < floor_of[name], f"{name} imports {other}"
        if name != "cli":
            assert not any(one.startswith("classroom") for one in imported), name


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    repository = PROJECT["urls"]["Repository"]
    assert citation["repository-code"] == repository
    readme = (ROOT / "README.md").read_text()
    assert f"lib[lab] @ git+{repository}" in readme
    assert f"codespaces.new/{repository.removeprefix('https://github.com/')})" in readme
