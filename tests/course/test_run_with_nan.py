"""The run of notebook 06 that dies at step 9000."""

import numpy as np
import torch

from cs336_course.demos import run_with_nan


def test_only_step_9000_has_a_page_that_is_no_language():
    pages = run_with_nan.Pages(
        "One page of a play, with some more characters than it needs!\n" * 40_000
    )
    repeated = [
        step for step in range(len(pages.starts)) if len(pages.batch(step)[0].unique()) == 1
    ]
    assert repeated == [run_with_nan.BAD_STEP]
    x, y = pages.batch(17)
    assert torch.equal(x[1:], y[:-1])


def test_the_run_logs_a_number_per_step_and_repeats_itself():
    pages = run_with_nan.Pages("To be, or not to be, that is the question!\n" * 400)
    first, again = (run_with_nan.train(pages, steps=5) for _ in range(2))
    assert len(first.losses) == len(first.grad_norms) == 5
    assert np.isfinite(first.losses).all()
    assert (first.losses == again.losses).all()
