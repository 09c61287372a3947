"""`python -m cs336_lib` is the same program as `cs336`."""

from cs336_lib.cli import main

main()
