"""Run the commands of the library with `python -m cs336_lib`, which needs no course."""

from cs336_lib.cli import main

main()
