"""The figures of 05_adagrad draw the numbers they are given."""

import math
import re
from pathlib import Path

import matplotlib
import torch

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from cs336_course.drawing import optimizers as plots


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


def test_steps_are_drawn_over_the_condition_number():
    axes = plots.steps_by_condition({"SGD": {1: 1, 100: 230}, "Momentum": {100: 45}}).axes[0]
    sgd, momentum = axes.lines
    assert sgd.get_xydata().tolist() == [[1, 1], [100, 230]]
    assert momentum.get_xydata().tolist() == [[100, 45]]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_gaps_are_smoothed_and_drawn_for_each_seed():
    rows = torch.stack([torch.arange(12.0), 2 * torch.arange(12.0)])
    axes = plots.behind({"beta2": rows}, first=3).axes[0]
    one, two, mean, _ = axes.lines
    assert one.get_xydata().tolist() == [[3, 4.5], [4, 5.5], [5, 6.5]]
    assert two.get_ydata().tolist() == [9, 11, 13]
    assert mean.get_ydata().tolist() == [6.75, 8.25, 9.75]


def test_each_rate_of_the_embeddings_has_a_panel():
    swept = {("AdamW", 0.002): {0.1: [1.0, 2.0]}, ("AdamW", 0.016): {0.1: [3.0, 3.0]}}
    panels = plots.rates_apart(swept).axes
    ((low,), (high,)) = (axes.containers for axes in panels)
    assert low.lines[0].get_xydata().tolist() == [[0.1, 1.5]]
    assert high.lines[0].get_xydata().tolist() == [[0.1, 3.0]]
    assert [axes.get_title(loc="left") for axes in panels] == [
        "50 steps, embeddings at 0.002",
        "50 steps, embeddings at 0.016",
    ]
    assert low.get_label() == "AdamW"


def test_rates_that_are_close_together_share_a_label():
    axes = plt.figure().add_subplot()
    plots.label_rates(axes, [{1: [0.1], 1.2: [0.1]}, {1.3: [0.1], 1.4: [0.1], 2: [0.1]}])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "1.4", "2"]


def test_the_cover_shows_what_the_notebook_prints():
    plots.cover_rare_words()
    drawn = {line.get_label(): tuple(line.get_xdata()) for line in plt.gca().lines}
    assert {word: drawn[word] for word in plots.LEARNED} == {
        word: answers for word, (_, answers) in plots.LEARNED.items()
    }
    printed = Path("notebooks/05_adagrad.ipynb").read_text()
    for word, (seen, answers) in plots.LEARNED.items():
        numbers = " ".join(map(str, answers))
        assert re.search(rf"{word.lower()} +{seen} .* {re.escape(numbers)}", printed)
