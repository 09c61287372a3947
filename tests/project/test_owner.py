"""`make owner` writes the owner into every link, and a placeholder isn't published."""

import subprocess

import pytest

from tools import owner

SETTING = 'Repository = "https://github.com/{}"\n'


@pytest.fixture
def clone(tmp_path):
    """A git repository with a setting, a README with a link, and a picture."""
    ours = f"{owner.PLACEHOLDER}/cs336-lib"
    (tmp_path / "pyproject.toml").write_text(SETTING.format(ours))
    links = f"https://github.com/{ours}/issues, https://github.com/{ours}-fork, data/{ours}\n"
    (tmp_path / "README.md").write_text(f"{links}{owner.BEGIN}{owner.END}")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG github.com/" + ours.encode())
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    return tmp_path


def test_every_link_names_the_owner_and_back(clone):
    before = {path: path.read_bytes() for path in clone.glob("[!.]*.*")}
    with pytest.raises(SystemExit, match="make owner NAME="):
        owner.refuse_placeholder(clone)
    assert len(owner.rename(clone, "ada/my-course")) == 2
    owner.refuse_placeholder(clone)
    readme = (clone / "README.md").read_text()
    assert readme.startswith("https://github.com/ada/my-course/issues, https://github.com/YOUR_")
    assert "(https://codespaces.new/ada/my-course)" in readme
    assert owner.rename(clone, "ada/my-course") == []
    owner.rename(clone, f"{owner.PLACEHOLDER}/cs336-lib")
    assert {path: path.read_bytes() for path in clone.glob("[!.]*.*")} == before
