"""Show the verdict on an answer, as a card in a notebook and as text elsewhere."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from IPython.core.getipython import get_ipython
from IPython.display import display

from cs336_lib.report.palette import GREEN, RED, SKY

# Mark, words and colour of a verdict. The colour is only a border, and the words say the same.
PASSED = ("✓", "passed", GREEN)
WRONG = ("✗", "not right yet", RED)
ERROR = ("✗", "stopped", RED)
TYPO = ("?", "a wrong name", SKY)

Kind = tuple[str, str, str]


@dataclass(frozen=True)
class Card:
    """Verdict on an answer.

    Attributes:
        name: Name of the exercise.
        kind: `PASSED`, `WRONG`, `ERROR` or `TYPO`.
        text: The verdict in words, for terminals, tests and screen readers.
        said: The diagnosis alone.
        more: Further lines, such as the number of the attempt and what comes next.
    """

    name: str
    kind: Kind
    text: str
    said: str = ""
    more: Sequence[str] = ()

    def plain(self) -> str:
        """Return the card as lines of text."""
        return "\n".join([self.text, *self.more])

    def html(self) -> str:
        """Return the card as HTML in the colours of JupyterLab's theme."""
        mark, words, colour = self.kind
        head = f"<strong>{mark} <code>{html.escape(self.name)}</code> {words}</strong>"
        said = f"<p style='margin: 4px 0 0'>{marked_up(self.said)}</p>" if self.said else ""
        more = " · ".join(map(marked_up, self.more))
        foot = f"<p style='margin: 6px 0 0; font-size: 0.92em'>{more}</p>" if more else ""
        style = (
            f"border-left: 5px solid {colour}; padding: 6px 14px; max-width: 46em; "
            "white-space: normal; overflow-wrap: break-word; line-height: 1.45; "
            "font-family: var(--jp-content-font-family, sans-serif); "
            "color: var(--jp-content-font-color1, inherit); "
            "background: var(--jp-layout-color2, transparent)"
        )
        return f'<div class="cs336-check" role="status" style="{style}">{head}{said}{foot}</div>'


def marked_up(said: str) -> str:
    """Return a sentence as HTML, with what is between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(said)).replace("\n", "<br>")


def show(card: Card) -> None:
    """Display a card in a notebook, or print it."""
    if get_ipython() is None:
        print(card.plain())
    else:
        display({"text/plain": card.plain(), "text/html": card.html()}, raw=True)
