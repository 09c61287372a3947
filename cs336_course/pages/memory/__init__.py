"""The room of the page memory."""
