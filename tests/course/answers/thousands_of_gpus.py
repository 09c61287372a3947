"""Other answers to the exercises of the room thousands_of_gpus."""

from cs336_course.engine import edits
from cs336_course.pages.thousands_of_gpus.exercises import FAST, LOST, SOME

RIGHT = {
    "plan": [
        (FAST, "layout = Layout(dp=128, tp=4, zero=3, micro_batch=2, micro_batches=2)"),
        edits((FAST, "layout = Layout(dp=512, zero=3)"), (SOME, 'recompute = "full"')),
        (LOST, '"failures": dollars / share - dollars'),
    ],
}
