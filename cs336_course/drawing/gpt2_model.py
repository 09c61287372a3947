"""How the figures of language models show a token."""


def visible(token: str) -> str:
    """Return a token in a form that an axis can show."""
    return token.replace(" ", "·").replace("\n", "↵")
