"""Interactive widgets for the notebooks."""

from cs336_course.widgets.bill import ModelBill
from cs336_course.widgets.einsum import EinsumSteps
from cs336_course.widgets.layout import Strides
from cs336_course.widgets.letters import AttentionAndSampling
from cs336_course.widgets.number import FloatBits
from cs336_course.widgets.pattern import EinopsPattern
from cs336_course.widgets.price import FirstBill
from cs336_course.widgets.race import OptimizerRace
from cs336_course.widgets.writing import writer

attention_and_sampling = AttentionAndSampling
einops_pattern = EinopsPattern
einsum_steps = EinsumSteps
first_bill = FirstBill
float_bits = FloatBits
model_bill = ModelBill
optimizer_race = OptimizerRace
strides = Strides
__all__ = [
    "attention_and_sampling",
    "einops_pattern",
    "einsum_steps",
    "first_bill",
    "float_bits",
    "model_bill",
    "optimizer_race",
    "strides",
    "writer",
]
