"""Print the code lines of `cs336_lib`: no blanks, comments or docstrings."""

import ast
import io
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "cs336_lib"
SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def code_lines(source: str) -> int:
    """Count the lines on which code stands; a string that is a whole statement is documentation."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        is_string = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_string and isinstance(node.value.value, str):
            documented |= set(range(node.lineno, node.end_lineno + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*SKIPPED, tokenize.ENDMARKER):
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


if __name__ == "__main__":
    total = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        count = code_lines(path.read_text(encoding="utf-8"))
        total += count
        print(f"{count:6,}  {name}")
    print(f"{total:6,}  in all")
