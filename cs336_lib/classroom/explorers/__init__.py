"""Interactive widgets for the notebooks."""

from cs336_lib.classroom.explorers.bill import model_bill
from cs336_lib.classroom.explorers.budget import training_budget
from cs336_lib.classroom.explorers.layout import strides
from cs336_lib.classroom.explorers.letters import attention_and_sampling
from cs336_lib.classroom.explorers.number import float_bits
from cs336_lib.classroom.explorers.pattern import einops_pattern
from cs336_lib.classroom.explorers.race import optimizer_race

__all__ = [
    "attention_and_sampling",
    "einops_pattern",
    "float_bits",
    "model_bill",
    "optimizer_race",
    "strides",
    "training_budget",
]
