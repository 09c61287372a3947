"""Test that docs/symptoms.md quotes messages of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def template(node: ast.AST) -> str:
    """Return the text of a string, with an ellipsis for each value, or "" for other nodes."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value) or "…" for value in node.values)
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return ""


def templates() -> Iterator[str]:
    """Yield every string of the package, and the Makefile."""
    yield re.sub(r"\$\(\w+\)|\{[^}]+\}(\.\{[^}]+\})?", "…", (ROOT / "Makefile").read_text())
    for path in (*ROOT.glob("cs336_*/**/*.py"), *ROOT.glob("tools/*.py")):
        yield from filter(None, map(template, ast.walk(ast.parse(path.read_text()))))


def test_every_quoted_message_is_in_the_code():
    page = (ROOT / "docs" / "symptoms.md").read_text()
    quoted = re.findall(r"^### `(.+)`$", page, re.M)
    assert len(quoted) == len(set(quoted)) >= 25
    known = set(templates())
    missing = []
    for message in quoted:
        pattern = ".*".join(re.escape(part) for part in message.split("…"))
        if not any(re.search(pattern, text) for text in known):
            missing.append(message)
    assert missing == []
