"""Print the scores of exercises: `python -m tests.mutation n03_einops n04_flops_and_memory`."""

import sys

from .survey import by_module, table

print(table([score for name in sys.argv[1:] for score in by_module(name)]))
