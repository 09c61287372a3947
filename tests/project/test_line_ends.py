"""A clone under Git for Windows, which converts line ends unless .gitattributes says otherwise."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_clone_that_converts_line_ends_has_every_byte(tmp_path):
    """Checksums of the shipped model and the first line of a shell script need each byte."""
    clone = ["git", "clone", "-q", "-c", "core.autocrlf=true", ROOT, tmp_path / "clone"]
    subprocess.run(clone, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "--eol"],
        cwd=tmp_path / "clone",
        capture_output=True,
        check=True,
        text=True,
    )
    assert "w/lf" in listed.stdout
    assert not [
        line for line in listed.stdout.splitlines() if "w/crlf" in line or "w/mixed" in line
    ]
