"""Where the course's code comes from, and what it opens: pins, workflows, JupyterLab."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_everything_is_installed_at_the_pinned_version():
    """test_packaging.py sees to it that constraints.txt holds all that is needed."""
    found = 0
    newest = ROOT / ".github/workflows/newest.yml"  # tries other versions; see test_packaging.py
    for path in (ROOT / "Makefile", *(one for one in WORKFLOWS if one != newest)):
        for line in path.read_text().splitlines():
            if re.search(r"^INSTALL = ", line):
                continue  # the command, which the recipes use with a constraint
            if re.search(r"pip install |\$\((PIP|INSTALL)\)", line):
                assert re.search(r"--constraint (\$\((VENV|GRADERS)\)/)?constraints.txt ", line), (
                    line
                )
                found += 1
    assert found >= 3
    assert (ROOT / "environment.yml").read_text().count("--constraint constraints.txt") == 1


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every step of every job."""
    for job in workflow["jobs"].values():
        yield from job["steps"]


# What a job may do beyond reading: prove to PyPI and to GitHub Pages which workflow it is.
MAY = {
    ("release.yml", "publish"): {"id-token": "write"},
    ("release.yml", "deploy"): {"id-token": "write", "pages": "write"},
}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_and_nothing_else(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job.get("permissions", {}) == MAY.get((path.name, name), {}), name
        if "permissions" in job:  # runs no code of the repository
            actions = [step.get("uses", "").split("@")[0] for step in job["steps"]]
            assert "actions/checkout" not in actions
    assert not re.search(r"pull_request_target|workflow_run|secrets\.", path.read_text())
    for step in steps(workflow):
        # What a stranger writes into a title or a branch's name is no part of a command.
        assert "${{" not in step.get("run", "")
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_an_action_is_named_by_its_commit(path):
    used = re.findall(r"uses: *(.*)", path.read_text())
    assert len(used) == sum("uses" in step for step in steps(yaml.safe_load(path.read_text()))) > 0
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_a_workflow_that_runs_every_notebook_fails_without_their_model():
    found = 0
    for path in WORKFLOWS:
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            commands = [step.get("run", "") for step in job["steps"]]
            runs = [at for at, one in enumerate(commands) if re.search("--nbval|make test$", one)]
            if runs:
                assert any(one.endswith("cs336 fetch smollm2") for one in commands[: runs[0]]), path
                found += 1
    assert found == 5


def lab_command() -> list[str]:
    """How the Makefile starts JupyterLab."""
    (line,) = re.findall(r"^\t@?(.*learner\.lab .*)$", (ROOT / "Makefile").read_text(), re.M)
    return shlex.split(line.replace("$(BIN)/", "").replace("$(ARGS)", ""))


def test_the_makefile_leaves_jupyters_locks_alone():
    forbidden = ("ip", "token", "password", "root=", "allow", "xsrf", "certfile", "config")
    for argument in lab_command():
        name = argument.split("=")[0].lower()
        assert not any(word in name for word in forbidden), argument


@pytest.fixture
def server(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """JupyterLab as `make lab` starts it, without a browser; what it says about itself."""
    places = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
    environment = {name: value for name, value in os.environ.items() if "JUPYTER" not in name}
    environment |= {name: str(tmp_path / name) for name in places}
    binary = ROOT / ".venv" / "bin" / "python"
    command = lab_command()
    if binary.exists():
        command[0] = str(binary)
    command += ["--no-browser", "--port=0"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # in a container; a learner is not root
        command += ["--allow-root"]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while not (said := list((tmp_path / places[0]).glob("jpserver-*.json"))):
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        yield json.loads(said[0].read_text()) | {"pid": process.pid}
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def listening(pid: int) -> set[str]:
    """The addresses at which a process waits for connections."""
    connections = psutil.Process(pid).net_connections("tcp")
    return {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}


def status(url: str, token: str | None = None) -> int:
    """What a server answers."""
    headers = {"Authorization": f"token {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_jupyterlab_listens_here_only_and_wants_its_token(server):
    assert server["hostname"] in ("localhost", "127.0.0.1", "::1")
    assert len(server["token"]) >= 40
    while not (addresses := listening(server["pid"])):  # it may write its file before
        assert psutil.Process(server["pid"]).status() != psutil.STATUS_ZOMBIE
        time.sleep(0.1)
    assert addresses <= {"127.0.0.1", "::1"}
    contents = f"{server['url']}api/contents"
    assert status(contents) == 403
    assert status(contents, "0" * 48) == 403
    assert status(contents, server["token"]) == 200


def test_the_gpu_runner_has_the_documented_labels_unless_a_variable_names_others():
    job = yaml.safe_load((ROOT / ".github/workflows/gpu.yml").read_text())["jobs"]["notebooks"]
    found = re.fullmatch(r"\$\{\{ fromJSON\(vars\.GPU_RUNNER \|\| '(.*)'\) \}\}", job["runs-on"])
    assert json.loads(found[1]) == ["self-hosted", "linux", "gpu"]
    assert f"`{found[1]}`" in (ROOT / "CONTRIBUTING.md").read_text()
    assert job["env"] == {"TORCH": "${{ vars.GPU_TORCH }}"}  # which the Makefile reads
