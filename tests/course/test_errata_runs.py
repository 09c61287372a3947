"""The small runs of notebook 11."""

import math

import torch

from cs336_course.demos import errata_runs


def test_tiny_weights_stop_the_learning_and_a_norm_restores_it():
    stuck = errata_runs.fit_mirror(1 / errata_runs.WIDTH, norm=False, steps=4)
    assert math.isclose(stuck[0], stuck[-1], rel_tol=1e-5)
    normed = errata_runs.fit_mirror(1 / errata_runs.WIDTH, norm=True, steps=4)
    assert normed[-1] < 0.99 * normed[0]


def test_a_reader_learns_what_it_reads():
    ids = torch.zeros(400, dtype=torch.long)
    ids[::4] = torch.arange(100) % 7 + 1
    model, losses = errata_runs.train_reader(ids, steps=25)
    assert len(losses) == 25
    assert losses[-1] < losses[0] / 2
    each_fourth, others = errata_runs.loss_of_each_fourth(model, ids)
    assert others < 0.5 < each_fourth
