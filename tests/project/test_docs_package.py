"""README and docs/package.md: commands are accepted, and what they write stays out of git."""

import itertools
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "package.md"]


def commands() -> list[list[str]]:
    """The words of each command in the code blocks, without comments."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.S | re.M):
            lines = [line for line in block.splitlines() if line and not line.startswith("#")]
            found += [shlex.split(line, comments=True) for line in lines]
    return [words for words in found if words]


def written() -> list[str]:
    """The files and folders that the commands write."""
    found = ["my_train_gpt2.py", "runs/shakespeare-char"]  # the defaults of assemble and train
    for words in commands():
        named = dict(itertools.pairwise(words))
        found += [named[flag] for flag in ("--out", "--run-dir") if flag in named]
        if words[0] == "torchrun" and "--out" not in named:
            found.append("log")  # train_gpt2.py's default
    return sorted(set(found) - {"data/shakespeare_gpt"})


@pytest.mark.parametrize("name", written())
def test_what_a_command_writes_is_ignored_by_git(name):
    for path in (name, f"{name}/file"):
        command = ["git", "check-ignore", "--quiet", path]
        done = subprocess.run(command, cwd=ROOT, check=False)
        assert done.returncode == 0, path


def test_a_report_shows_samples_of_the_runs_that_are_trained():
    trained = [words for words in commands() if words[:2] == ["cs336", "train"]]
    reported = {words[2] for words in commands() if words[:2] == ["cs336", "report"]}
    for folder in reported:
        sampled = [words for words in trained if "--sample" in words]
        assert any(folder in (*words, f"runs/{words[2]}") for words in sampled), folder


def test_the_pages_have_their_commands():
    programs = {words[1] for words in commands() if words[0] == "cs336"}
    assert programs >= {"train", "sample", "eval", "prepare", "report", "export", "estimate"}
