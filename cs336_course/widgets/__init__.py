"""Interactive widgets for the notebooks."""

from cs336_course.widgets.bill import ModelBill
from cs336_course.widgets.layout import Strides
from cs336_course.widgets.letters import AttentionAndSampling
from cs336_course.widgets.number import FloatBits
from cs336_course.widgets.price import FirstBill
from cs336_course.widgets.writing import writer

attention_and_sampling = AttentionAndSampling
first_bill = FirstBill
float_bits = FloatBits
model_bill = ModelBill
strides = Strides
__all__ = [
    "attention_and_sampling",
    "first_bill",
    "float_bits",
    "model_bill",
    "strides",
    "writer",
]
