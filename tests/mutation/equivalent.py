"""Mutants that pass because they are right: by exercise, the changed line and why it is right."""

RIGHT: dict[str, dict[str, str]] = {}
