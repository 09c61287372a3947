"""Print the scores of notebooks: `python -m tests.mutation 03_einops --only masked_mean`."""

import argparse

from .exercises import NOTEBOOKS
from .survey import survey, table

parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
parser.add_argument("notebooks", nargs="*", help="as in 03_einops (default: all)")
parser.add_argument("--only", nargs="*", default=(), help="names of exercises")
chosen = parser.parse_args()
paths = sorted(NOTEBOOKS.glob("*.ipynb"))
paths = [path for path in paths if not chosen.notebooks or path.stem in chosen.notebooks]
print(table([score for path in paths for score in survey(path, chosen.only)]))
