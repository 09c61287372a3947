"""Interactive widgets for the notebooks."""

from cs336_course.widgets.bill import ModelBill
from cs336_course.widgets.layout import Strides
from cs336_course.widgets.letters import Sampling
from cs336_course.widgets.number import FloatBits
from cs336_course.widgets.price import FirstBill
from cs336_course.widgets.writing import writer

first_bill = FirstBill
float_bits = FloatBits
model_bill = ModelBill
sampling = Sampling
strides = Strides
__all__ = [
    "first_bill",
    "float_bits",
    "model_bill",
    "sampling",
    "strides",
    "writer",
]
