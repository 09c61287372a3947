"""Write the GitHub repository's owner into every link of the course (`make owner NAME=ada`).

The links to Colab, Codespaces and the installation, the notebooks' first cells and the model cards
name the repository of pyproject.toml. As long as it is a placeholder, README has no badges, and
`make site` and the release refuse to publish dead links.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

PLACEHOLDER = "YOUR_NAME"
SETTING = re.compile(r'^Repository = "https://github\.com/([^/"]+/[^/"]+)"$', re.M)
NAME = re.compile(rf"([A-Za-z\d][A-Za-z\d-]{{0,38}}|{PLACEHOLDER})(/[\w.-]+)?")
HOSTS = r"(github\.com/|githubusercontent\.com/|codespaces\.new/|google\.com/github/)"
BEGIN, END = "<!-- badges: make owner -->\n", "<!-- end of badges -->\n"
BADGES = """[![Open in Colab](docs/open_in_colab.svg)](https://colab.research.google.com/github/{0}/blob/main/notebooks/00_start_here.ipynb)
[![Open in Codespaces](docs/open_in_codespaces.svg)](https://codespaces.new/{0})
"""


def repository(root: Path) -> str:
    """Return the owner and the name of the repository that all links name."""
    found = SETTING.search((root / "pyproject.toml").read_text(encoding="utf-8"))
    if not found:
        sys.exit('pyproject.toml: no line Repository = "https://github.com/OWNER/NAME" in it')
    return found[1]


def with_badges(readme: str, repository: str) -> str:
    """Return README with badges that lead to this repository, or without them."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    badges = "" if repository.startswith(f"{PLACEHOLDER}/") else BADGES.format(repository)
    return f"{before}{BEGIN}{badges}{END}{after}"


def rename(root: Path, new: str) -> list[Path]:
    """Replace the repository in every file that git tracks, and return the changed files."""
    link = re.compile(HOSTS + re.escape(repository(root)) + r"(?![\w-])")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, stdout=subprocess.PIPE, check=True, text=True
    )
    changed = []
    for path in (root / name for name in listed.stdout.split("\0") if name):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            old_text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:  # a picture or weights
            continue
        text = link.sub(rf"\g<1>{new}", old_text)
        if path == root / "README.md":
            text = with_badges(text, new)
        if text != old_text:
            path.write_bytes(text.encode("utf-8"))
            changed.append(path)
    return changed


def refuse_placeholder(root: Path, expected: str = "") -> None:
    """End with one line if the links name a placeholder, or another repository than expected."""
    named = repository(root)
    if named.startswith(f"{PLACEHOLDER}/") or (expected and named != expected):
        owner = expected or "your-github-name"
        sys.exit(
            f"The links name {named}, so they would be dead: run `make owner NAME={owner}` first. "
            "(`python -m tools.publish site` builds the site for yourself only.)"
        )


def main() -> None:
    """Set the owner, or check that there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="", help="owner, or owner/repository")
    parser.add_argument("--check", action="store_true", help="refuse the placeholder instead")
    flags, root = parser.parse_args(), Path.cwd()
    if flags.check:
        refuse_placeholder(root, flags.name)
        return
    if not NAME.fullmatch(flags.name):
        sys.exit(
            f"{flags.name!r} is no GitHub name; give the owner, or the owner and the repository: "
            "make owner NAME=ada (or NAME=ada/my-course)"
        )
    new = flags.name if "/" in flags.name else f"{flags.name}/cs336-lib"
    changed = rename(root, new)
    print(f"{new}: {len(changed)} files changed; look at them with `git diff`, and commit them")


if __name__ == "__main__":
    main()
