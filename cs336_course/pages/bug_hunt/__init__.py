"""The room of the page bug_hunt."""
