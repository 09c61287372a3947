"""One engine for every exercise: observe an answer, compare the records, and say what is wrong."""

from cs336_course.engine.cases import Case, normal, sizes
from cs336_course.engine.exercise import Exercise
from cs336_course.engine.observe import function, value
from cs336_course.engine.task import edits

__all__ = ["Case", "Exercise", "edits", "function", "normal", "sizes", "value"]
