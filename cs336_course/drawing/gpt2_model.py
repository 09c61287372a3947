"""What the figures of language models share: looks of their lines, and how a token is shown."""

DASHES = ("-", "--", "-.", ":")  # distinct without colour, too
MARKERS = ("o", "s", "D", "^")


def visible(token: str) -> str:
    """Return a token in a form that an axis can show."""
    return token.replace(" ", "·").replace("\n", "↵")
