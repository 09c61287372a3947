"""Other answers to the exercises of the room thousands_of_gpus."""

from cs336_course.engine import edits
from cs336_course.pages.thousands_of_gpus.exercises import FAST, LOST, SOME

RIGHT = {
    "plan": [
        edits(
            (FAST, "layout = Layout(dp=128, tp=4, zero=3, micro_batches=4)"),
            (SOME, 'recompute = "none"'),
        ),
        edits((FAST, "layout = Layout(dp=512, zero=3)"), (SOME, 'recompute = "full"')),
        (LOST, '"failures": dollars / share - dollars'),
    ],
}
