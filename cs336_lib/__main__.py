"""Run the `cs336` command with `python -m cs336_lib`."""

from cs336_lib.cli import main

main()
