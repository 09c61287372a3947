"""Colours stand in one file, and what reads no style sheet of ours has the same."""

import re
from pathlib import Path

import pytest

from cs336_lib.report import palette

ROOT = Path(__file__).parents[2]
SOURCE = "cs336_lib/report/palette.py"
KNOWN = {value for value in vars(palette).values() if str(value).startswith("#")}
OTHERS = {  # with colours of their own
    "tools/learning_picture.py": "the dark ground of GitHub's code",
    "cs336_course/widgets/letters.py": "the darkest of Matplotlib's Blues, as in the stored figure",
    "cs336_course/drawing/training.py": "a light orange, for the dtype that nearly has its name",
}
GREYEST = 32  # of 255, between the channels of an ink, a ground or a tint of one
KINDS = (".py", ".css", ".js", ".html", ".j2")
FILES = [
    *(
        path.relative_to(ROOT).as_posix()
        for folder in ("cs336_lib", "cs336_course", "docs", "tools")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in KINDS
    ),
    "docs/_static/favicon.svg",
]


def colours(path: str) -> set[str]:
    """Return the colours that a file spells, without greys."""
    found = set()
    for digits in re.findall(r"#([0-9a-fA-F]{6})\b", (ROOT / path).read_text(encoding="utf-8")):
        channels = bytes.fromhex(digits)
        if max(channels) - min(channels) > GREYEST:
            found.add(f"#{digits.upper()}")
    return found


def test_colours_stand_in_one_file():
    assert SOURCE in FILES
    spelled = {path for path in FILES if colours(path)} - {SOURCE, *OTHERS}
    assert spelled == {"cs336_course/widgets/vote.html", "docs/_static/favicon.svg"}


@pytest.mark.parametrize("path", ["cs336_course/widgets/vote.html", "docs/_static/favicon.svg"])
def test_a_file_that_stands_alone_has_the_same_colours(path):
    assert colours(path) <= KNOWN


def test_a_style_sheet_names_only_colours_that_there_are():
    named = set()
    for path in FILES:
        if path != SOURCE:
            text = (ROOT / path).read_text(encoding="utf-8")
            named |= set(re.findall(r"var\((--cs336-\w+)", text))
    assert named == set(re.findall(r"(--cs336-\w+):", palette.CSS))
