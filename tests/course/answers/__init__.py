"""Answers that try the checks, by room: other right ones, and wrong ones without an idea."""
