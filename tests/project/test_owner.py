"""`make owner` writes the owner into every link, and a placeholder isn't published."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools import owner

ROOT = Path(__file__).parents[2]
PLACEHOLDER = f"{owner.PLACEHOLDER}/cs336-lib"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A git repository with every file that has a link to ours, as they are with a placeholder."""
    ours = re.compile(owner.HOSTS + re.escape(owner.repository(ROOT)))
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        content = (ROOT / name).read_bytes()
        if name == "README.md" or ours.search(content.decode("utf-8", errors="ignore")):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG github.com/" + PLACEHOLDER.encode())
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    owner.rename(tmp_path, PLACEHOLDER)
    return tmp_path


def texts(folder: Path) -> dict[Path, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {path: path.read_bytes() for path in found}


def run(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.owner", *arguments]
    return subprocess.run(
        command, cwd=clone, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )


def test_every_link_names_the_owner_and_back(clone):
    before = texts(clone)
    assert len(before) > 25  # notebooks, pages, the card and the settings
    done = run(clone, "ada")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ada/cs336-lib: ")
    for path, content in texts(clone).items():
        assert (PLACEHOLDER.encode() in content) == (path.suffix == ".png"), path
        if path.suffix == ".ipynb":  # still in normal form
            assert nbformat.writes(nbformat.reads(content.decode(), 4)) + "\n" == content.decode()
    readme = (clone / "README.md").read_text()
    assert "(https://codespaces.new/ada/cs336-lib)" in readme
    assert "github/ada/cs336-lib/blob/main/notebooks/00_start_here.ipynb)" in readme
    once = texts(clone)
    assert "0 files" in run(clone, "ada").stdout
    assert texts(clone) == once
    assert run(clone, "ada/my-course").returncode == 0
    assert "github.com/ada/my-course/issues" in (clone / "pyproject.toml").read_text()
    assert run(clone, PLACEHOLDER).returncode == 0
    assert texts(clone) == before


def test_another_repository_with_a_longer_name_is_left_alone(clone):
    page = clone / "CONTRIBUTING.md"
    page.write_text(f"https://github.com/{PLACEHOLDER}-fork and data/{PLACEHOLDER}\n")
    before = page.read_text()
    owner.rename(clone, "ada/cs336-lib")
    assert page.read_text() == before


def test_a_placeholder_has_no_badges_and_is_not_published(clone):
    assert "![Open in" not in (clone / "README.md").read_text()
    refused = run(clone, "--check")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "make owner NAME=" in refused.stderr
    owner.rename(clone, "ada/cs336-lib")
    assert run(clone, "--check").returncode == 0
    assert run(clone, "--check", "ada/cs336-lib").returncode == 0
    assert "make owner NAME=bob/cs336-lib" in run(clone, "--check", "bob/cs336-lib").stderr


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "a-/-b c", "https://github.com/ada"])
def test_a_bad_name_changes_nothing(clone, name):
    before = texts(clone)
    done = run(clone, name)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert texts(clone) == before


def test_the_site_and_the_release_ask_first():
    makefile = (ROOT / "Makefile").read_text()
    check, build = makefile.index("tools.owner --check"), makefile.index("tools.publish site")
    assert makefile.index("\nsite:") < check < build
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert release.index("tools.owner --check") < release.index("uv build")
