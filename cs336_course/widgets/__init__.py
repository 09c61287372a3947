"""Interactive widgets for the notebooks."""

from cs336_course.widgets.bill import model_bill
from cs336_course.widgets.budget import training_budget
from cs336_course.widgets.einsum import einsum_steps
from cs336_course.widgets.layout import strides
from cs336_course.widgets.letters import attention_and_sampling
from cs336_course.widgets.number import float_bits
from cs336_course.widgets.pattern import einops_pattern
from cs336_course.widgets.price import first_bill
from cs336_course.widgets.race import optimizer_race
from cs336_course.widgets.writing import writer

__all__ = [
    "attention_and_sampling",
    "einops_pattern",
    "einsum_steps",
    "first_bill",
    "float_bits",
    "model_bill",
    "optimizer_race",
    "strides",
    "training_budget",
    "writer",
]
