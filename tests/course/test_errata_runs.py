"""The small runs of notebook 11."""

import math

import matplotlib
import torch

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from cs336_course.pages.errata import errata_runs
from cs336_course.pages.errata import pictures as errata
from cs336_course.shared import letter_gpt


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


def test_the_recorded_losses_are_those_of_the_readers():
    letters, _ = letter_gpt.letters()
    letters = letters[:200_000]
    misread = torch.stack([letters, *[torch.zeros_like(letters)] * 3], 1).flatten()
    for name, ids in (("letters", letters), ("misread letters", misread)):
        _, losses = errata_runs.train_reader(ids, steps=40)
        means = torch.tensor(losses).view(2, 20).mean(1).tolist()
        for mean, recorded in zip(means, errata_runs.READERS[name], strict=False):
            assert math.isclose(mean, recorded, abs_tol=0.03), name


def test_the_cover_does_not_say_which_run_is_broken(monkeypatch):
    monkeypatch.setattr(errata, "show_cover", lambda: None)
    errata.cover()
    (axes,) = plt.gcf().axes
    assert [text.get_text() for text in axes.texts] == ["run A", "run B"]
    right, broken = axes.lines
    assert right.get_ydata()[-1] > 2 * broken.get_ydata()[-1]
