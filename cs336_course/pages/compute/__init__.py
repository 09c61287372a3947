"""The room of the page compute."""
