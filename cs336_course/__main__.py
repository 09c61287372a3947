"""Run the `cs336` command with `python -m cs336_course`."""

from cs336_course.cli import main

main()
