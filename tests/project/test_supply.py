"""What runs in a workflow is pinned, and may only read."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_and_names_each_action_by_its_commit(path):
    text = path.read_text()
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    assert not re.search(r"pull_request_target|workflow_run|secrets\.", text)
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")
    # What a stranger writes into a title or a branch's name is no part of a command.
    jobs = yaml.safe_load(text)["jobs"].values()
    allowed = [job for job in jobs if "permissions" in job]  # which run no code of the repository
    assert not any("checkout" in step.get("uses", "") for job in allowed for step in job["steps"])
    assert not any("${{" in step.get("run", "") for job in jobs for step in job["steps"])
    for action in re.findall(r"uses: *(.*)", text):
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
