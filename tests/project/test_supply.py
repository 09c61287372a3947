"""Where the course's code comes from, and what it opens: pins, workflows, JupyterLab."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


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
