"""Grade the notebooks of a class."""
