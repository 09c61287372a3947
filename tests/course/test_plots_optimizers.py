"""The figures of 05_adagrad draw the numbers they are given."""

import math

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from cs336_course.figures import optimizers as plots


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def test_errors_are_drawn_over_the_number_of_occurrences():
    errors = {"SGD": [0.9, 0.1], "AdaGrad": [0.2, 0.0]}
    axes = plots.error_by_frequency([10, 1000], errors, "title").axes[0]
    sgd, adagrad, not_learned = axes.lines
    assert sgd.get_xydata().tolist() == [[10, 0.9], [1000, 0.1]]
    assert adagrad.get_xydata().tolist() == [[10, 0.2], [1000, 0.0]]
    assert [line.get_marker() for line in (sgd, adagrad)] == ["o", "^"]
    assert not_learned.get_ydata() == [1, 1]
    assert axes.get_xscale() == "log"


def test_rate_sweep_draws_means_with_ranges_and_leaves_out_what_diverged():
    swept = {
        "SGD": {0.5: [1.0, 2.0, 6.0], 1: [0.5, 0.5, math.nan]},
        "Muon and AdamW": {2: [4.0, 4.0]},
    }
    axes = plots.rate_sweep(swept, "title", "loss", (0, 8)).axes[0]
    sgd, muon = axes.containers
    assert sgd.lines[0].get_xydata().tolist() == [[0.5, 3.0]]
    assert sgd.lines[2][0].get_segments()[0].tolist() == [[0.5, 1.0], [0.5, 6.0]]
    assert muon.lines[0].get_xydata().tolist() == [[2, 4]]
    assert [c.lines[0].get_marker() for c in (sgd, muon)] == ["o", "*"]
    assert [c.get_label() for c in (sgd, muon)] == ["SGD", "Muon and AdamW"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.5", "1", "2"]
    assert axes.get_ylim() == (0, 8)
