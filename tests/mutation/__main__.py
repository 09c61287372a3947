"""Print the scores of all exercises, or of pages: `python -m tests.mutation einops compute`."""

import sys

from .survey import exercises, survey, table

print(table([score for one in exercises(*sys.argv[1:]) for score in survey(one)]))
