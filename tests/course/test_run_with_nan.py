"""The run of notebook 06 that dies at step 9000."""

import numpy as np
import torch

from cs336_course.pages.training_loop import run_with_nan


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


def test_a_high_rate_climbs_in_fp32_and_jumps_in_the_run_s_own_format():
    pages = run_with_nan.Pages("To be, or not to be, that is the question!\n" * 400)
    last = {}
    for autocast in (True, False):
        config = run_with_nan.Config(rate=10.0, autocast=autocast, page=False)
        losses = run_with_nan.train(pages, 60, config).losses
        assert not np.isfinite(losses).all()
        last[autocast] = np.nanmax(losses[np.isfinite(losses)])
    assert last[True] < 1e4 < 1e9 < last[False]


def test_a_seed_changes_the_weights_and_the_order_and_a_checkpoint_is_saved_where_we_say():
    pages = run_with_nan.Pages("To be, or not to be, that is the question!\n" * 400)
    first, other = (
        run_with_nan.train(pages, 6, run_with_nan.Config(seed=seed), save_at=3) for seed in (0, 1)
    )
    assert (first.losses != other.losses).any()
    assert first.checkpoint["step"] == 3
    resumed = run_with_nan.train(pages, 6, run_with_nan.CONFIG, first.checkpoint)
    assert (resumed.losses == first.losses[3:]).all()
