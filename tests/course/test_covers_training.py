"""The pictures that open the notebooks on training, and the numbers that they draw."""

import importlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cs336_course.drawing import alt
from cs336_course.pages.bug_hunt import script_tests
from cs336_course.pages.gpt2_model import guesses
from cs336_course.pages.gpt2_speaks import gpt2_speaks
from cs336_course.pages.reproducible_runs import same_run
from cs336_course.shared import letter_gpt
from cs336_course.shared.model_of_today import SMOLLM2
from cs336_lib.accounting import count_parameters

COVERS = {
    "optimizers.cover_untrained": "Before training",
    "logs.cover": "9,000 healthy steps",
    "training.cover_resumed": "2 panels. The loss looks fine",
    "hunt.cover": "One of these two runs",
    "gpt2_model.cover": "The darker a letter",
    "gpt2_speaks.cover": "2 panels. A model writes",
    "model_of_today.cover": "Two models to scale",
    "gpt2_training.cover": "2 panels. One hour of training",
}


@pytest.mark.parametrize("name", COVERS)
def test_a_cover_is_small_and_has_an_alternative_text(name):
    module, function = name.split(".")
    before = torch.get_rng_state()
    getattr(importlib.import_module(f"cs336_course.drawing.{module}"), function)()
    (number,) = plt.get_fignums()
    assert np.all(plt.figure(number).get_size_inches() <= (10, 3.2))
    assert COVERS[name] in alt.describe(plt.figure(number))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_broken_model_is_sure_and_pays_for_it():
    x, y = letter_gpt.batch(torch.Generator().manual_seed(0), rows=128)
    for std, loss, sure in ((0.02, 4.14, 0.05), (1.0, 23.34, 1.0)):
        logits = letter_gpt.untrained_logits(x, std)
        assert F.cross_entropy(logits.flatten(0, 1), y.flatten()).item() == pytest.approx(
            loss, 0.01
        )
        assert logits[4, -1].softmax(0).max().item() == pytest.approx(sure, abs=0.02)


def test_the_resumed_run_looks_fine_and_is_another():
    straight, resumed, changed = same_run.looks_fine(stop=20, end=40, weights=60)
    assert straight[20] == resumed[0]
    assert 0 < np.abs(np.subtract(straight[20:], resumed)).max() < 0.1
    assert changed.shape == (32, 60)
    assert changed.any(0).all()


def test_the_half_blind_run_is_drawn_first():
    blind, healthy = script_tests.half_blind()
    assert healthy[:3] == pytest.approx([4.3292, 4.2105, 4.0129], abs=1e-3)
    assert blind[0] != healthy[0]


def test_each_letter_is_as_likely_as_the_models_say():
    table, gpt = guesses.letter_by_letter("And suddenly; where injury of chance").values()
    losses = [-chances.log().mean().item() for chances in (table, gpt)]
    assert losses == pytest.approx([2.47, 1.45], abs=0.01)


def test_the_reloaded_model_babbles():
    (before, _), (after, chances) = gpt2_speaks.before_and_after("My lord, ", 10)
    assert before == "My lord, I will not"
    assert after == "My lord, inininigen"
    assert len(chances) == 10


def test_smollm2_has_its_size():
    assert count_parameters(SMOLLM2) == 134_515_008
