"""The room of the page how_large."""
