"""Print the scores of exercises: `python -m tests.mutation 03_einops 04_compute`."""

import sys

from .survey import by_module, table

print(table([score for name in sys.argv[1:] for score in by_module(name)]))
