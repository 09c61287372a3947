import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from cs336_course.learner import jupyterhub, lab

ROOT = Path(__file__).parents[2]
NAME = "03_einops.ipynb"


@pytest.fixture
def settings(monkeypatch) -> SimpleNamespace:
    """The options of a student's server. Its environment is restored at the end."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    made = SimpleNamespace(LabApp=SimpleNamespace(), MappingKernelManager=SimpleNamespace())
    jupyterhub.configure(made)
    return made


def git(folder: Path, *command: str) -> None:
    """Run git in a folder, with the environment that `configure` has set."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", *identity, *command], cwd=folder, env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def change(path: Path, source: str = "", outputs: str = "") -> bytes:
    """Change the first code cell, or what it prints, as Jupyter saves it."""
    notebook = nbformat.read(path, as_version=4)
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    cell.source = source or cell.source
    if outputs:
        cell.outputs = [nbformat.v4.new_output("stream", text=outputs)]
    nbformat.write(notebook, path)
    return path.read_bytes()


def test_the_server_has_the_settings_of_the_lab(settings):
    assert settings.LabApp.app_settings_dir == str(lab.SETTINGS)
    assert settings.MappingKernelManager.cull_idle_timeout == 3600


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_pull_replaces_a_notebook_that_was_only_run(settings, tmp_path, is_edited):
    git(tmp_path, "init", "-q", "-b", "main")
    for name in (".gitattributes", f"notebooks/{NAME}"):
        (tmp_path / Path(name).name).write_bytes((ROOT / name).read_bytes())
    path = tmp_path / NAME
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "the course")
    git(tmp_path, "checkout", "-q", "-b", "newer")
    newer = change(path, source="print('a correction')")
    git(tmp_path, "commit", "-qam", "a correction")
    git(tmp_path, "checkout", "-q", "main")
    mine = change(path, source="x = 42" if is_edited else "", outputs="mine\n")
    git(tmp_path, "commit", "-qam", "the student's")
    git(tmp_path, "merge", "-Xours", "newer")  # as nbgitpuller does
    assert path.read_bytes() == (mine if is_edited else newer)
