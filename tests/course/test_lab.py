"""`cs336 lab` opens the learner's copy, in a clone and without one."""

import json
import subprocess
import sys

import pytest

from cs336_course import cli
from cs336_course.learner import lab, study


@pytest.fixture
def started(tmp_path, monkeypatch) -> list[str]:
    """The command that starts JupyterLab, which isn't run, in an empty folder."""
    command: list[str] = []
    monkeypatch.setattr(lab.subprocess, "call", lambda given: command.extend(given) or 3)
    monkeypatch.chdir(tmp_path)
    return command


def test_the_copy_comes_from_the_package(started, tmp_path):
    with pytest.raises(SystemExit) as ended:
        cli.main(["lab", "--port", "9000", "--no-browser"])
    assert ended.value.code == 3
    assert {"--port=9000", "--no-browser", "--ServerApp.root_dir=."} <= set(started)
    assert "cs336_course.learner.lab" in started
    assert "--LabApp.default_url=/lab/tree/my_notebooks/00_start_here.ipynb" in started
    names = {path.name for path in (tmp_path / "my_notebooks").rglob("*.ipynb")}
    assert names == {path.name for path in study.originals(study.SHIPPED)}


def test_a_clone_comes_first_and_a_notebook_can_be_restored(started, tmp_path, capsys):
    (tmp_path / "notebooks").mkdir()
    source = study.SHIPPED / "00_start_here.ipynb"
    (tmp_path / "notebooks" / source.name).write_bytes(source.read_bytes())
    with pytest.raises(SystemExit):
        cli.main(["lab"])
    copy = tmp_path / "my_notebooks" / source.name
    assert [path.name for path in copy.parent.glob("*.ipynb")] == [source.name]
    edited = json.loads(copy.read_text())
    edited["cells"][1]["source"] = "mine"
    copy.write_text(json.dumps(edited))
    started.clear()
    cli.main(["lab", "--reset", "00"])
    assert "00_start_here.ipynb is as the course has it; yours is now " in capsys.readouterr().out
    assert not started
    assert copy.read_bytes() == study.as_copy(source, copy.parent)


def test_jupyterlab_starts_without_the_slow_parser():
    command = [sys.executable, "-X", "importtime", "-m", "cs336_course.learner.lab", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("4.")
    assert "jsonschema._format" in done.stderr
    assert "rfc3987_syntax.syntax_helpers" not in done.stderr


@pytest.mark.parametrize("options", [[], ["--allow-root"]])
def test_root_learns_how_to_start_it(options, monkeypatch, capsys):
    from jupyterlab import labapp

    monkeypatch.setattr(labapp, "main", lambda: sys.exit(1))  # as JupyterLab ends as root
    monkeypatch.setattr(lab, "is_root", lambda: True)
    monkeypatch.setattr(sys, "argv", ["lab", *options])
    monkeypatch.setitem(sys.modules, "rfc3987_syntax", None)
    with pytest.raises(SystemExit):
        lab.main()
    assert ("make lab ARGS=--allow-root" in capsys.readouterr().err) == (not options)
